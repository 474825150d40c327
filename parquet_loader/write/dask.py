"""`write_dask`: writes a Dask collection as a data set, on any scheduler."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow.fs as pafs

from parquet_loader.common import PathLike, ShowProgress, named, needs_package, no_progress
from parquet_loader.errors import ConfigurationError, WriteError
from parquet_loader.schema import Schema, check_schema, complete_schema, slices_of, to_table
from parquet_loader.write.jobs.job import JobSpec, JobSummary, WrittenFile
from parquet_loader.write.jobs.job_runner import PartitionTask, StepTask, flatten, run_job
from parquet_loader.write.jobs.store_job import Store, schema_of
from parquet_loader.write.jobs.task import Failure, lasting
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.target import WriteMode

_INFER_ROWS_BYTES = 2**20

# Iterators that were begun in this process, by `id`, because they may not be hashable. The latest iterators without
# weak references (of lists, `map`, `zip`) are kept alive. An exhausted one holds almost nothing; one that failed keeps
# its source alive until it is displaced.
_begun_lock = threading.Lock()
_begun: weakref.WeakValueDictionary[int, Iterator[Any]] = weakref.WeakValueDictionary()
_begun_and_kept: deque[Iterator[Any]] = deque(maxlen=1024)


def write_dask(
    data: Any,
    path: PathLike | Store,
    schema: Schema | None = None,
    *,
    mode: WriteMode = "error",
    options: WriteOptions | None = None,
    filesystem: pafs.FileSystem | None = None,
    shuffle: bool = False,
    seed: int = 0,
    bucket_bytes: int | str = "128MiB",
    retries: int = 2,
    scheduler: Any = None,
    progress: bool = False,
) -> JobSummary:
    """Write a Dask collection as a data set: workers compute and write it, and it is published when it is complete.

    Readers see nothing before the end, and nothing of a job that fails or is killed. Tasks may fail, be run again, or
    run twice at the same time: each partition's rows are published once. Row groups and files are sized by bytes,
    independently of the partitions: small files are merged. With ``mode="append"`` to a directory that holds files, the
    new ones appear in a subdirectory ``job-<id>``.

    Memory of a worker: the partition it computes, and about three row groups; with `shuffle` also twice
    `bucket_bytes`.

    Args:
        data: A Dask DataFrame, a bag of row dicts, a delayed batch, or a list of them. Batches have any form that
            `DatasetWriter.write` accepts. A partition's index is not written. An iterator has to be made by the
            function of its partition; one that is persisted, or made by an earlier task, is refused.
        path: Directory of the data set, local or a URL, or a `SampleStore`, to which rows are added; the driver and all
            workers need the same storage at this path.
        schema: The schema of the columns; None infers it from the first rows of the first partition, which is then
            computed twice. A store has its own schema.
        mode: ``"error"``, ``"append"`` or ``"overwrite"``, as in `DatasetWriter`; not for a store.
        options: Sizes and codec; a store has its own.
        filesystem: A `pyarrow.fs.FileSystem`, which has to pickle; `path` is then a path within it.
        shuffle: Whether to put all rows of the job into a seeded order, through files in the job's directory.
        seed: From 0 to 2**64 - 1. The order depends on it and on the partitions, not on scheduler or workers.
        bucket_bytes: With `shuffle`, bytes of rows that a task permutes at a time; at most 1 GiB with columns of text,
            bytes, images or lists.
        retries: How often a failed task is tried again, on the distributed scheduler. Tasks whose rows do not fit the
            schema are never tried again.
        scheduler: As in `dask.compute`: ``"threads"``, ``"processes"``, ``"synchronous"``, a client, or None for the
            current one.
        progress: Show a progress bar (needs tqdm).

    Raises:
        DataError, SchemaError: Rows do not fit the schema; the message names partition, field and row.
        WriteError: The directory is not empty, not replaceable, or the file system refuses.
        ConfigurationError: `data` is not such a collection, or an argument has the wrong kind.

    Example:
        >>> write_dask(frame, "train", SAMPLES, shuffle=True, seed=1)
    """
    check_schema(schema)
    runner = _DaskRunner(data, scheduler, retries)
    schema = schema or schema_of(path)
    if schema is None or schema.extra == "infer":
        schema = runner.completed(schema)
    if runner.meta is not None:
        to_table(runner.meta, schema)  # refuses columns that cannot fit before any task runs
    return run_job(
        runner,
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


class _DaskRunner:
    """Runs tasks on the current scheduler."""

    def __init__(self, data: Any, scheduler: Any, retries: int) -> None:
        self._dask = _import_dask()
        self.meta = getattr(data, "_meta", None) if hasattr(data, "map_partitions") else None
        self._parts = _delayed_parts(data, self._dask)
        self._scheduler = scheduler
        self._retries = retries

    def completed(self, schema: Schema | None) -> Schema:
        """Return the schema with its missing parts inferred from the first partition that has rows."""
        for part in self._parts:
            tasks = self._made_where_read([part], lambda _, rows, is_own: self._dask.delayed(_first_rows)(rows, is_own))
            for columns in self._compute(tasks, no_progress):
                if columns is not None:
                    return complete_schema(schema, columns)
        raise ConfigurationError("there are no rows to infer a schema from; pass schema=")

    def partitions(self, spec: JobSpec, task: PartitionTask, show: ShowProgress) -> list[Any]:
        """See `Runner`."""

        def call(number: int, part: Any, is_own: bool) -> Any:
            # The spec is not a task: Dask can fuse this task with its partition only if it depends on nothing else.
            return self._dask.delayed(partial(_write_part, (spec, task), is_own), pure=False)(number, part)

        return flatten(self._compute(self._made_where_read(self._parts, call), show))

    def step(self, spec: JobSpec, task: StepTask, count: int, show: ShowProgress) -> list[WrittenFile]:
        """See `Runner`."""
        delayed = self._dask.delayed
        shared = delayed((spec, task), traverse=False, name=f"parquet_loader-step-{spec.directory}")
        call = delayed(_run_step, pure=False)
        return flatten(self._compute([call(shared, index) for index in range(count)], show))

    def _made_where_read(self, parts: list[Any], call: Callable[[int, Any, bool], Any]) -> list[Any]:
        """Return ``call(number, part, is_own)`` for each partition, fused with the task that makes the partition.

        So another attempt makes the partition again. If Dask cannot fuse them (the partition is persisted, or shared
        with other tasks), `is_own` is False: an iterator would come from an earlier task and may be partly consumed.
        """
        if self._client() is None:
            return [call(number, part, True) for number, part in enumerate(parts)]
        numbers = [n for n, part in enumerate(parts) if _is_task(part)]
        joined: dict[int, Any] = {}
        with contextlib.suppress(AttributeError), self._dask.config.set({"optimization.fuse.delayed": True}):
            # Only tasks are optimized: Dask fails on literals and futures here.
            optimized = self._dask.optimize(*[call(n, parts[n], True) for n in numbers])
            left = _keys_used(optimized[0]) if optimized else set()
            joined = {n: task for n, task in zip(numbers, optimized, strict=True) if parts[n].key not in left}
        return [joined[n] if n in joined else call(n, part, False) for n, part in enumerate(parts)]

    def _compute(self, tasks: list[Any], show: ShowProgress) -> list[Any]:
        show(0, len(tasks))
        client = self._client()
        return self._on_cluster(client, tasks, show) if client is not None else self._locally(tasks, show)

    def _client(self) -> Any:
        """Return the client of the distributed scheduler if that scheduler is current; else None."""
        if "distributed" not in sys.modules:
            return None
        from distributed import Client  # noqa: PLC0415  (loaded already; without it there is no client)

        if isinstance(self._scheduler, Client):
            return self._scheduler
        get = self._dask.base.get_scheduler(scheduler=self._scheduler)
        owner = getattr(get, "__self__", None)
        return owner if isinstance(owner, Client) else None

    def _on_cluster(self, client: Any, tasks: list[Any], show: ShowProgress) -> list[Any]:
        from distributed import as_completed  # noqa: PLC0415

        futures = client.compute(tasks, retries=self._retries)
        numbers = {future.key: number for number, future in enumerate(futures)}
        results: list[Any] = [None] * len(tasks)
        try:
            for done, future in enumerate(as_completed(futures, loop=client.loop), 1):
                results[numbers[future.key]] = _checked(future.result())
                show(done, len(tasks))
        finally:
            client.cancel([future for future in futures if not future.done()])
        return results

    def _locally(self, tasks: list[Any], show: ShowProgress) -> list[Any]:
        wanted = {task.key for task in tasks}
        done = 0

        def finished(key: Any, result: Any, *_: Any) -> None:
            nonlocal done
            if key in wanted:
                _checked(result)
                done += 1
                show(done, len(tasks))

        with self._dask.callbacks.Callback(posttask=finished):
            return list(self._dask.compute(*tasks, scheduler=self._scheduler, optimize_graph=False))


def _write_part(shared: tuple[JobSpec, PartitionTask], is_own: bool, partition: int, data: Any) -> Any:
    """Write one partition, on a worker."""
    spec, task = shared
    if getattr(data, "empty", False) is True and not len(data):  # a frame of pandas
        data = ()  # it often has columns of objects, which Dask makes text
    try:
        return task(spec, partition, _unread(data, f"{spec.path}: partition {partition}", is_own))
    except Exception as error:
        failure = lasting(error)
        if failure is None:
            raise
        return failure


def _run_step(shared: tuple[JobSpec, StepTask], index: int) -> list[WrittenFile]:
    """Run a task of the second step, on a worker."""
    spec, task = shared
    return task(spec, index)


def _first_rows(data: Any, is_own: bool) -> dict[str, Any] | None:
    """Return columns of the first rows of a partition, on a worker."""
    for columns, _ in slices_of(_unread(data, "a partition", is_own), _INFER_ROWS_BYTES):
        if any(len(values) for values in columns.values()):
            return columns
    return None


def _unread(data: Any, what: str, is_own: bool) -> Any:
    """Return the rows; refuse an iterator that may be partly consumed, because it lacks rows of the partition.

    Args:
        data: The rows.
        what: The partition, for the error message.
        is_own: Whether the calling task has made the rows itself.

    Raises:
        WriteError: An iterator was read from before (by a failed attempt, or to infer the schema), or another task made
            it: a copy from another worker does not show that it was read from.
    """
    if isinstance(data, Iterator) and (not is_own or not _begins(data)):
        found = "was kept and has been read from before" if is_own else "another task made"
        raise WriteError(
            f"{what}: its rows come from an iterator that {found}; let the delayed function return a table, or an "
            "iterator that nothing else uses and that is not persisted"
        )
    return data


def _begins(data: Iterator[Any]) -> bool:
    """Return whether this is the first call for this iterator."""
    with _begun_lock:
        if _begun.get(id(data)) is data or any(kept is data for kept in _begun_and_kept):
            return False
        try:
            _begun[id(data)] = data
        except TypeError:
            _begun_and_kept.append(data)
    return True


def _is_task(part: Any) -> bool:
    """Return whether a partition has to be computed; False if it is a literal or already computed."""
    graph = part.__dask_graph__() if hasattr(part, "__dask_graph__") else {}
    return hasattr(graph.get(part.key), "dependencies")


def _keys_used(collection: Any) -> set[Any]:
    """Return the keys of a graph's tasks and of their dependencies."""
    graph = dict(collection.__dask_graph__())
    return set(graph).union(*(getattr(node, "dependencies", ()) for node in graph.values()))


def _checked(result: Any) -> Any:
    if isinstance(result, Failure):
        raise result.error()
    return result


def _delayed_parts(data: Any, dask: Any) -> list[Any]:
    if hasattr(type(data), "to_delayed"):  # not the object: a delayed one answers to any name
        parts = data.to_delayed()
        return list(parts.ravel()) if hasattr(parts, "ravel") else list(parts)
    if dask.is_dask_collection(data):
        return [data]
    if isinstance(data, Sequence | Iterable) and not isinstance(data, str | bytes | dict):
        parts = list(data)
        if all(dask.is_dask_collection(part) or hasattr(part, "key") for part in parts):
            return parts
    raise ConfigurationError(
        f"write_dask: expected a Dask DataFrame, a bag, or a list of delayed batches, found {named(data)}; "
        "write_dataset(data, path) writes what is in memory"
    )


def _import_dask() -> Any:
    with needs_package("dask", "writing from Dask needs it: pip install 'torch-parquet-loader[dask]'"):
        import dask  # noqa: PLC0415
        import dask.base  # noqa: PLC0415
        import dask.callbacks  # noqa: PLC0415
    return dask
