"""Checks whether a writer may add to a directory or replace it."""

from __future__ import annotations

import os
import re
from itertools import compress
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import list_below, look_up, system_error
from parquet_loader.errors import SchemaError, WriteError
from parquet_loader.schema import METADATA_KEY, Schema, is_bytes, is_list_like, is_text, plain_type
from parquet_loader.source import is_hidden, read_file_schema, table_to_write_to

_MOST_SHOWN = 20

# Names of jobs' files inside the data set, used if a job cannot write next to it; see `jobs.job` and `jobs.lease`.
_OF_JOB = re.compile(r"\.job-[0-9a-f]{32}(-dead|\.lease(\.[0-9a-f]{32}|\.new)?)?")

WriteMode: TypeAlias = Literal["error", "append", "overwrite"]

_OURS = re.compile(
    r".*\.(parquet|parq|pq)|_metadata|_common_metadata|_SUCCESS|_committed_\d+|_started_\d+|"
    r"\.part-[0-9a-f-]{32,}\.parquet\.tmp|\.rewrite-[0-9a-f]{32}[-.][a-z0-9.-]*|\.job-[0-9a-f]{32}\.lease.*|\..*\.crc"
)


def check_target(
    filesystem: pafs.FileSystem, path: str, mode: WriteMode, schema: Schema | None
) -> tuple[Schema | None, bool]:
    """Check that `mode` allows writing to a directory.

    Args:
        filesystem, path: The directory.
        mode: As in `DatasetWriter`.
        schema: The schema to write, if known.

    Returns:
        The schema to write, and whether rows are added to existing files. If they are, the schema of these files
        replaces an unknown one, completes one with ``extra="infer"``, and tells how categories are stored.

    Raises:
        WriteError: `mode` does not allow it.
        SchemaError: The existing files have another schema.
    """
    found = [i for i in listing(filesystem, path) if not _is_of_job(i.path, path)]
    if mode == "error":
        check_new(found, path)
    elif mode == "overwrite":
        check_replaceable(found, path)
    elif files := parquet_files(found, path):
        there = existing_schema(filesystem, files[0])
        if schema is None:
            schema = Schema.from_arrow(there)
        elif schema.extra == "infer":
            known, declared = Schema.from_arrow(there), schema.column_names()
            schema = schema.over({n: f for n, f in known.items() if n not in declared}, known)
        if METADATA_KEY in (there.metadata or {}):
            schema = schema.as_stored(Schema.from_arrow(there))
        check_appendable(schema, there, files[0])
        return schema, True
    return schema, False


def listing(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    """Return everything below a directory, including hidden names; nothing if there is no directory.

    Raises:
        WriteError: `path` is a file or a sample store, belongs to a table of Delta, Iceberg or another format, or holds
            a name that is not UTF-8.
    """
    if look_up(filesystem, path).type == pafs.FileType.File:
        raise WriteError(f"{path}: this is a file; a data set is written to a directory")
    found = list_below(filesystem, path, recursive=True)
    try:
        paths = [info.path for info in found]
    except UnicodeDecodeError as error:
        raise WriteError(
            f"{path}: it holds {os.fsdecode(error.object)!r}, a name that is not UTF-8; rename it, or write elsewhere"
        ) from None
    are_files = (info.type == pafs.FileType.File for info in found)
    table = table_to_write_to(filesystem, path, compress(paths, are_files))
    if table is not None:
        raise WriteError(table.writing_refusal(path))
    if f"{path.rstrip('/')}/.store/store.json" in paths:
        raise WriteError(
            f"{path}: this is a sample store, which reads no other files than its own; write with "
            "SampleStore(path).writer(), write_dask(data, store) or write_spark(df, store)"
        )
    return found


def parquet_files(found: list[pafs.FileInfo], path: str) -> list[str]:
    """Return the paths of the Parquet files that readers would see, in order."""
    return sorted(i.path for i in found if i.type == pafs.FileType.File and not _is_hidden(i.path, path))


def check_new(found: list[pafs.FileInfo], path: str) -> None:
    """Refuse a directory that is not empty."""
    if found:
        raise WriteError(
            f"{path}: the directory is not empty, it holds {found[0].base_name!r}; "
            "mode='append' adds files, mode='overwrite' replaces all of it"
        )


def check_replaceable(found: list[pafs.FileInfo], path: str) -> None:
    """Refuse to delete anything that is not part of a Parquet data set."""
    for info in found:
        if info.type == pafs.FileType.File and not _OURS.fullmatch(info.base_name):
            raise WriteError(
                f"{path}: mode='overwrite' deletes the directory, but it holds {info.path[len(path) :].lstrip('/')!r}, "
                "which is not a Parquet file; move it away, or write elsewhere"
            )


def existing_schema(filesystem: pafs.FileSystem, path: str) -> pa.Schema:
    """Return the Arrow schema of one file."""
    try:
        return read_file_schema(filesystem, path).arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        failure = system_error(path, error)
        if failure is not None:
            raise failure from error
        raise WriteError(f"{path}: the footer of this file cannot be read ({error}); nothing can be appended") from None


def check_appendable(schema: Schema, there: pa.Schema, path: str) -> None:
    """Refuse to add files whose schema differs from that of the existing ones.

    Args:
        schema: The schema to write.
        there: The Arrow schema of an existing file.
        path: The existing file.

    Raises:
        SchemaError: The schemas differ; the message names the differences.
    """
    if METADATA_KEY in (there.metadata or {}):
        old: dict[str, object] = dict(Schema.from_arrow(there))
        new: dict[str, object] = dict(schema)
    else:
        old = {field.name: _storage(field.type) for field in there}
        new = {name: _storage(field.type) for name, field in schema.stored_columns().items()}
    problems = [f"column {n!r} is {old[n]} there, and would be {new[n]}" for n in old if n in new and old[n] != new[n]]
    problems += [f"appending would add column {n!r}, which is not there" for n in new if n not in old]
    problems += [f"appending needs column {n!r}, which the new schema lacks" for n in old if n not in new]
    if problems:
        more = f"; and {len(problems) - _MOST_SHOWN} more" if len(problems) > _MOST_SHOWN else ""
        raise SchemaError(
            f"{path}: {'; '.join(problems[:_MOST_SHOWN])}{more}; append with the schema of the files there, or write "
            "to another directory and load both with a schema= whose fields have one type for both, missing=<value> "
            "for new columns, and aliases=<names> for renamed ones"
        )
    if list(old) != list(new):
        raise SchemaError(f"{path}: the columns are {list(old)} there, and would be {list(new)}; give them that order")


def _storage(type_: pa.DataType) -> str:
    """Name a type without details that make no difference in a file: widths of offsets, names of items, nullability."""
    type_ = plain_type(type_)
    if is_text(type_) or is_bytes(type_):
        return "text" if is_text(type_) else "bytes"
    if is_list_like(type_):
        length = f"[{type_.list_size}]" if pa.types.is_fixed_size_list(type_) else ""
        return f"list<{_storage(type_.value_type)}>{length}"
    return str(type_)


def _is_of_job(path: str, root: str) -> bool:
    first = path[len(root) :].strip("/").partition("/")[0]
    return _OF_JOB.fullmatch(first) is not None


def _is_hidden(path: str, root: str) -> bool:
    inner = path[len(root) :].strip("/")
    return any(map(is_hidden, inner.split("/")))
