"""`write_spark`: writes a Spark DataFrame as a data set, in the Python workers of Spark's executors."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import PathLike, ShowProgress, named, no_progress, starting_threads
from parquet_loader.errors import ConfigurationError, MissingPackageError, ParquetLoaderError, SchemaError
from parquet_loader.schema import Group, Image, Schema, Tensor, check_schema, infer_schema, to_table
from parquet_loader.write.jobs.job import JobSpec, JobSummary, WrittenFile
from parquet_loader.write.jobs.job_runner import PartitionTask, StepTask, run_job
from parquet_loader.write.jobs.job_shuffle import Chunk
from parquet_loader.write.jobs.store_job import Store, schema_of
from parquet_loader.write.jobs.task import Failure
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.target import WriteMode

_BATCH_BYTES = 32 * 2**20
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_ROWS = 10_000
_IMAGE_BYTES = 128 * 2**10
_REPORT = "kind string, report string"
_MARK = "<<parquet_loader "
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(parquet_loader|pyarrow|numpy)'")
_REPORTS: dict[str, Any] = {"WrittenFile": WrittenFile, "Chunk": Chunk}
_DONE = "done"
_POLL_S = 0.5


def write_spark(
    df: Any,
    path: PathLike | Store,
    schema: Schema | None = None,
    *,
    mode: WriteMode = "error",
    options: WriteOptions | None = None,
    filesystem: pafs.FileSystem | None = None,
    shuffle: bool = False,
    seed: int = 0,
    bucket_bytes: int | str = "128MiB",
    progress: bool = False,
) -> JobSummary:
    """Write a Spark DataFrame as a data set: executors run the library's writer on Arrow batches (`mapInArrow`).

    The Python workers of the executors need this package, numpy and pyarrow, but not torch; see `package_archive`.
    Readers see nothing before the end, and nothing of a job that fails or is killed. Tasks may fail, be run again, or
    run twice at the same time (speculation): each partition's rows are published once. Row groups and files are sized
    by bytes, independently of the partitions: small files are merged. With ``mode="append"`` to a directory that holds
    files, the new ones appear in a subdirectory ``job-<id>``.

    ``ArrayType`` columns and ML vectors, dense and sparse, fit `Tensor` fields with the same number of values; nested
    arrays fit tensors of more dimensions; ``BinaryType`` fits images, bytes and raw tensors.

    Memory of a Python worker: Spark's batches of about 32 MiB, and about three row groups; with `shuffle` also twice
    `bucket_bytes`.

    Args:
        df: The DataFrame.
        path: Directory of the data set, local or a URL as in `DatasetWriter` (``s3://``, not ``s3a://``), or a
            `SampleStore`, to which rows are added; the driver and all executors need the same storage at this path.
        schema: The schema of the columns; None infers it from Spark's types and the first row. A store has its own
            schema.
        mode: ``"error"``, ``"append"`` or ``"overwrite"``, as in `DatasetWriter`; not for a store.
        options: Sizes and codec; a store has its own.
        filesystem: A `pyarrow.fs.FileSystem`, which has to pickle; `path` is then a path within it.
        shuffle: Whether to put all rows of the job into a seeded order, through files in the job's directory.
        seed: From 0 to 2**64 - 1. The order depends on it, on the partitions and on the order within them.
        bucket_bytes: With `shuffle`, bytes of rows that a task permutes at a time; at most 1 GiB with columns of text,
            bytes, images or lists.
        progress: Show a progress bar (needs tqdm) next to Spark's own.

    Raises:
        DataError, SchemaError: Rows do not fit the schema; the message names partition, field and row.
        WriteError: The directory is not empty, not replaceable, or the file system refuses.
        ConfigurationError: `df` is not a Spark DataFrame, or an argument has the wrong kind.
        MissingPackageError: Spark's Python workers lack this package, numpy or pyarrow.

    Example:
        >>> write_spark(df, "/mnt/shared/train", SAMPLES, shuffle=True, seed=1)
    """
    if not hasattr(df, "mapInArrow"):
        raise ConfigurationError(
            f"write_spark: expected a Spark DataFrame (pyspark 3.5 or newer), found {named(df)}; "
            "write_dataset(data, path) writes what is in memory"
        )
    check_schema(schema)
    vectors = [field.name for field in df.schema if type(field.dataType).__name__ == "VectorUDT"]
    df = _with_arrays(df, vectors)
    schema = schema or schema_of(path) or _infer(df, vectors)
    if schema.extra == "infer":
        known, inferred = schema.column_names(), _infer(df, vectors)
        schema = schema.over({name: field for name, field in inferred.items() if name not in known}, df.columns)
    empty = _empty_batch(df)
    if empty is not None:
        to_table(empty, schema)  # refuses columns that cannot fit before any task runs
    return run_job(
        _SparkRunner(df),
        path,
        schema,
        mode=mode,
        options=options,
        filesystem=filesystem,
        shuffle=shuffle,
        seed=seed,
        bucket_bytes=bucket_bytes,
        progress=progress,
    )


class _SparkRunner:
    """Runs tasks as partitions of `mapInArrow`: Spark returns the rows of one successful attempt of each."""

    def __init__(self, df: Any) -> None:
        self._df = df
        self._spark = df.sparkSession

    def partitions(self, spec: JobSpec, task: PartitionTask, show: ShowProgress) -> list[Any]:
        """See `Runner`."""
        with _batch_rows(self._spark, _rows_of_a_batch(spec.schema)):
            # Spark resolves the names as expressions: a dot is a member there, and a backtick an error.
            numbered = self._df.toDF(*(f"c{number}" for number in range(len(self._df.columns))))
            write = functools.partial(_write_part, spec, task, tuple(self._df.columns))
            return self._collect(numbered.mapInArrow(write, _REPORT), show)

    def step(self, spec: JobSpec, task: StepTask, count: int, show: ShowProgress) -> list[WrittenFile]:
        """See `Runner`."""
        numbers = self._spark.range(0, count, 1, count)
        return self._collect(numbers.mapInArrow(functools.partial(_run_steps, spec, task), _REPORT), show)

    def _collect(self, reports: Any, show: ShowProgress) -> list[Any]:
        try:
            with _watched(self._spark, show):
                rows = reports.collect()
        except Exception as error:
            failure = _marked_failure(str(error))
            if failure is not None:
                raise failure.error() from None
            missing = _MISSING.search(str(error))
            if missing is None:
                raise
            raise MissingPackageError(
                f"write_spark: Spark's Python workers find no package {missing[1]!r}; on one machine, set the "
                f"environment variable PYSPARK_PYTHON to {sys.executable} before the session begins (Spark takes "
                "python3 from PATH); on a cluster, install numpy, pyarrow and this package on the executors"
            ) from error
        found = [_REPORTS[row["kind"]](**json.loads(row["report"])) for row in rows if row["kind"] != _DONE]
        show(len(rows) - len(found), len(rows) - len(found))
        return found


def _write_part(
    spec: JobSpec, task: PartitionTask, names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write one partition, on an executor; `names` are those of the columns."""
    from pyspark import TaskContext  # noqa: PLC0415  (used only on executors)

    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    with _marked(partition):
        yield _reported(task(spec, partition, (_named_as(batch, names) for batch in batches)))


def _named_as(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    fields = [field.with_name(name) for field, name in zip(batch.schema, names, strict=True)]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields, batch.schema.metadata))


def _run_steps(spec: JobSpec, task: StepTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run tasks of the second step, on an executor."""
    for batch in batches:
        for index in batch.column(0).to_pylist():
            with _marked(index):
                yield _reported(task(spec, index))


def _reported(reports: Any) -> pa.RecordBatch:
    """Return the rows that a task yields: one for each report, and one for the task."""
    kinds = [*(type(report).__name__ for report in reports), _DONE]
    texts = [*(json.dumps(dataclasses.asdict(report)) for report in reports), ""]
    return pa.record_batch([pa.array(kinds, pa.string()), pa.array(texts, pa.string())], ["kind", "report"])


@contextlib.contextmanager
def _marked(partition: int) -> Iterator[None]:
    """Mark the library's errors, so that the driver finds them in Spark's error text."""
    try:
        yield
    except ParquetLoaderError as error:
        failure = json.dumps({"kind": type(error).__name__, "message": str(error)})
        raise RuntimeError(f"task of partition {partition} failed: {_MARK}{failure}>>") from error


def _marked_failure(text: str) -> Failure | None:
    """Return the error that `_marked` put into Spark's error text, which also holds tracebacks with source code."""
    for rest in text.split(_MARK)[1:]:
        with contextlib.suppress(ValueError):
            return Failure(**json.JSONDecoder().raw_decode(rest)[0])
    return None


def _rows_of_a_batch(schema: Schema) -> int:
    """Return the most rows of an Arrow batch, so that a batch of wide rows stays small."""
    row_bytes = 0
    for field in schema.values():
        if isinstance(field, Tensor | Group):
            row_bytes += 2 * field.width_bytes  # Spark may hold wider types, such as float64 for float32
        else:
            row_bytes += _IMAGE_BYTES if isinstance(field, Image) else 64
    return max(1, min(_MOST_ROWS, _BATCH_BYTES // max(1, row_bytes)))


class _RequestedRows:
    """The limits of rows in an Arrow batch that the jobs of one session request; the lowest applies."""

    def __init__(self, before: str | None) -> None:
        self._before = before
        self._users = [int(before)] if before is not None and int(before) > 0 else []
        self.rows: list[int] = []

    def apply(self, conf: Any) -> None:
        """Set the requested value, or the previous one if that is lower or nothing is requested."""
        if self.rows:
            conf.set(_BATCH_ROWS, str(min(self.rows + self._users)))
        elif self._before is None:
            conf.unset(_BATCH_ROWS)
        else:
            conf.set(_BATCH_ROWS, self._before)


_requested_lock = threading.Lock()
_requested: weakref.WeakKeyDictionary[Any, _RequestedRows] = weakref.WeakKeyDictionary()  # by session


@contextlib.contextmanager
def _batch_rows(spark: Any, rows: int) -> Iterator[None]:
    """Lower the limit of rows in Arrow batches for plans made in the body; a lower limit of the user stays.

    Jobs on several threads share a session: the last one restores the previous value.
    """
    with _requested_lock:
        requested = _requested.get(spark) or _RequestedRows(spark.conf.get(_BATCH_ROWS, None))
        _requested[spark] = requested
        requested.rows.append(rows)
    try:
        with _requested_lock:
            requested.apply(spark.conf)
        yield
    finally:
        with _requested_lock:
            requested.rows.remove(rows)
            requested.apply(spark.conf)
            if not requested.rows:
                del _requested[spark]


@contextlib.contextmanager
def _watched(spark: Any, show: ShowProgress) -> Iterator[None]:
    """Show the finished tasks of active stages while the body runs; a thread asks Spark for them."""
    if show is no_progress:
        yield
        return
    stop = threading.Event()

    def watch() -> None:
        with contextlib.suppress(Exception):  # Spark Connect has no tracker, so there is no bar
            tracker = spark.sparkContext.statusTracker()
            while not stop.wait(_POLL_S):
                stages = [stage for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage]
                if stages:
                    show(sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages))

    thread = threading.Thread(target=watch, name="parquet_loader-progress", daemon=True)
    with starting_threads("progress"):
        thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _empty_batch(df: Any) -> pa.Table | None:
    """Return a table without rows of the types that executors will see, or None if Spark cannot tell."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    try:
        arrow = to_arrow_schema(df.schema)
    except Exception:  # Spark cannot send a type as Arrow; the job will raise Spark's own error
        return None
    return arrow.empty_table()


def _with_arrays(df: Any, vectors: Sequence[str]) -> Any:
    """Return the frame with these columns of ML vectors, dense and sparse, as arrays of doubles."""
    if not vectors:
        return df
    from pyspark.ml.functions import vector_to_array  # noqa: PLC0415  (loads much that other frames do not need)
    from pyspark.sql.functions import col, when  # noqa: PLC0415

    for name in vectors:
        quoted = name.replace("`", "``")
        vector = col(f"`{quoted}`")
        df = df.withColumn(name, when(vector.isNotNull(), vector_to_array(vector)))
    return df


def _infer(df: Any, vectors: Sequence[str]) -> Schema:
    """Infer fields from Spark's types; columns of vectors become tensors with the length of the first vector."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    row = df.limit(1)
    if hasattr(row, "toArrow"):
        table = row.toArrow()
    else:  # pyspark 3.5, which returns no batch of a frame without rows
        batches = row._collect_as_arrow()
        table = pa.Table.from_batches(batches) if batches else to_arrow_schema(df.schema).empty_table()
    if vectors and table.num_rows == 0:
        raise SchemaError("the frame has no rows to take the length of its vectors from; pass schema=")
    fields: dict[str, Any] = dict(infer_schema(dict(zip(table.column_names, table.columns, strict=True))))
    for name in vectors:
        vector = table[name][0].as_py()
        if vector is None:
            raise SchemaError(f"field {name!r}: the first vector is null, so its length is not known; pass schema=")
        fields[name] = Tensor("float64", (len(vector),), null="mask")
    return Schema(fields)
