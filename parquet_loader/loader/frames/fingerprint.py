"""Computes keys of frames: from the content of a pandas frame, Dask's token, or Spark's analysed plan."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from parquet_loader.common import named
from parquet_loader.errors import ConfigurationError
from parquet_loader.schema import Schema, iter_tables

# A plan over files with only these nodes means the same in every process. Any other node may hold code or data of this
# session (an RDD, a local relation, a function), so the key of such a plan is valid only in this session.
_PORTABLE_NODES = frozenset(
    (
        *("Project", "Filter", "Join", "Aggregate", "Sort", "GlobalLimit", "LocalLimit", "Union", "Distinct"),
        *("Deduplicate", "Repartition", "RepartitionByExpression", "SubqueryAlias", "Range", "LogicalRelation"),
    )
)
_FOREIGN_WORDS = ("UDF", "Subquery", "Exists", "Invoke", "UserDefined")
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_TIME_ZONE = "spark.sql.session.timeZone"
_FULL_TEXT = "spark.sql.debug.maxToStringFields"


def digest(*parts: object) -> str:
    """Return a digest of the parts, a valid name of a directory."""
    hashed = hashlib.blake2b(digest_size=20)
    for part in parts:
        text = str(part).encode()
        hashed.update(len(text).to_bytes(8, "little") + text)
    return hashed.hexdigest()


def pandas_key(frame: Any, schema: Schema | None) -> tuple[str, int]:
    """Return a key of the rows as they will be stored, and the number of rows; takes about a second for a GB."""
    rows = 0
    hashed = hashlib.blake2b(digest_size=20)
    for table in iter_tables(frame, schema):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        hashed.update(memoryview(sink.getvalue()))
        rows += table.num_rows
    return hashed.hexdigest(), rows


def dask_key(data: Any) -> str:
    """Return Dask's own token of the graph, and of the sizes and times of the files that it reads."""
    from dask.base import tokenize  # noqa: PLC0415  (installed, because the data are Dask's)

    return str(tokenize(data))


def spark_key(df: Any) -> str:
    """Return a key of the analysed plan, of the session's SQL settings, and of the sizes and times of its files.

    A plan of relational operators over files has the same key in every process. Any other plan holds data or functions
    of its session, and its key is valid only in that session.

    Raises:
        ConfigurationError: `df` is not a Spark DataFrame whose plan this process can read.
    """
    if not hasattr(df, "_jdf"):
        raise ConfigurationError(
            f"from_spark: expected a DataFrame of a Spark session of this process (not of Spark Connect), found "
            f"{named(df)}; write the rows with write_spark or write_dataset, and load the files"
        )
    plan = df._jdf.queryExecution().analyzed()
    with _full_text(df.sparkSession):
        sources = _sources(plan)
        if sources is None:
            text = f"{df.sparkSession.sparkContext.applicationId} {plan.toString()}"
        else:
            text = f"{plan.canonicalized().toString()} {df.schema.json()} {sources}"
    return digest(text, _settings(df.sparkSession), _files(df))


def _sources(plan: Any) -> list[str] | None:
    """Return the details of a plan's leaves that its text lacks; None if the plan is valid only in its session."""
    if plan.getClass().getSimpleName() not in _PORTABLE_NODES:
        return None
    if not all(map(_is_portable, _items(plan.expressions()))):
        return None
    if plan.getClass().getSimpleName() == "LogicalRelation":
        relation = plan.relation()
        if relation.getClass().getSimpleName() != "HadoopFsRelation":
            return None
        format_ = relation.fileFormat().getClass().getName()
        return [f"{format_} {relation.options().toString()} {relation.dataSchema().json()}"]
    found: list[str] = []
    for child in _items(plan.children()):
        below = _sources(child)
        if below is None:
            return None
        found += below
    return found


def _is_portable(expression: Any) -> bool:
    name = expression.getClass().getName()
    if not name.startswith(_EXPRESSIONS) or any(word in name for word in _FOREIGN_WORDS):
        return False
    return bool(expression.deterministic()) and all(map(_is_portable, _items(expression.children())))


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))


def _files(df: Any) -> list[str]:
    """Return path, size and time of change of every file that the frame reads."""
    context = df.sparkSession.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    found = []
    for name in sorted(df.inputFiles()):
        path = context._jvm.org.apache.hadoop.fs.Path(name)
        status = path.getFileSystem(configuration).getFileStatus(path)
        found.append(f"{name} {status.getLen()} {status.getModificationTime()}")
    return found


def _settings(spark: Any) -> list[str]:
    """Return the session's SQL settings: the meaning of a plan depends on them, for example on the time zone."""
    found = [f"{_TIME_ZONE} {spark.conf.get(_TIME_ZONE)}"]
    pairs = spark._jsparkSession.conf().getAll().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        if pair._1().startswith("spark.sql.") and pair._1() != _FULL_TEXT:
            found.append(f"{pair._1()} {pair._2()}")
    return sorted(found)


@contextlib.contextmanager
def _full_text(spark: Any) -> Iterator[None]:
    """Let the text of plans list all columns inside the ``with`` block."""
    before = spark.conf.get(_FULL_TEXT, None)
    spark.conf.set(_FULL_TEXT, str(2**31 - 1))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_FULL_TEXT)
        else:
            spark.conf.set(_FULL_TEXT, before)
