"""Turns a table version into the parts of a snapshot: listed files, schemas, constants, rows that are not deleted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from parquet_loader.common import IntArray, in_threads, is_local, shown
from parquet_loader.errors import ConfigurationError, SchemaError, SourceError, nearest
from parquet_loader.source.files import SourceFile
from parquet_loader.source.named_splits import canonical_split
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.task_group import side_by_side
from parquet_loader.source.tables.deleted_rows import DeletedRows
from parquet_loader.source.tables.names import FooterNames, Names
from parquet_loader.source.tables.table_version import TableInfo, TableVersion
from parquet_loader.source.tables.types import delivered_columns


def of_split(version: TableVersion, split: str) -> TableVersion:
    """Return the table version with the files of one split, by the values of the partition column ``split``.

    Raises:
        ConfigurationError: the table has no such column.
        SourceError: no file belongs to this split.
    """
    root = version.info.root
    column = next((name for name in sorted(version.partitions) if name.lower() == "split"), None)
    if column is None or version.constants is None or version.constants.schema.field(column).type != pa.string():
        raise ConfigurationError(
            f"split={split!r}: {root} is a table without a partition column 'split' of text, so its files do not "
            "belong to splits; use filters=split('id', 0, 0.9) with a column that tells rows apart, or filters= over a "
            "column that names the split"
        )
    names = [None if name is None else canonical_split(name) for name in version.constants.column(column).to_pylist()]
    chosen = [number for number, name in enumerate(names) if name == canonical_split(split)]
    if names and not chosen:
        there = sorted({name for name in names if name is not None})
        raise SourceError(f"{_of(version.info)}, split={split!r}: no file is of this split. {nearest(split, there)}")
    return replace(
        version, files=tuple(version.files[number] for number in chosen), constants=version.constants.take(chosen)
    )


def source_files(version: TableVersion) -> tuple[SourceFile, ...]:
    """Return the data files of a table version as a listing would; checks each local file.

    Raises:
        SourceError: a file is missing, or its size differs from that in the table.
    """
    if_gone = version.info.if_gone
    found: list[SourceFile] = []
    looks = is_local(version.filesystem)
    for file in version.files:
        mtime_ns = file.modified_ns
        if looks:
            try:
                seen = os.stat(file.path)
            except (FileNotFoundError, NotADirectoryError):
                raise SourceError(f"{shown(file.path)}: the file is gone, and {if_gone}") from None
            except (OSError, ValueError) as error:  # a path in metadata may hold any character
                raise SourceError(f"{shown(file.path)!r}: {error}; {if_gone}") from error
            mtime_ns = seen.st_mtime_ns
            if seen.st_size != file.size_bytes:
                raise SourceError(
                    f"{shown(file.path)}: the file has {seen.st_size} bytes, and {_of(version.info)} says "
                    f"{file.size_bytes}; the file was replaced, or the table's metadata is damaged"
                )
        found.append(SourceFile(file.path, file.size_bytes, mtime_ns, (), None, version.prefix, if_gone))
    return tuple(found)


def root_of(version: TableVersion) -> str | None:
    """Return the directory to which paths in rows are relative: the table's, if all data files lie in it; else None."""
    root = version.directory.rstrip("/")
    return root if root and all(file.path.startswith(f"{root}/") for file in version.files) else None


def _of(info: TableInfo) -> str:
    return f"version {info.version} of the table {info.root}"


def footer_names(version: TableVersion) -> FooterNames | None:
    """Return the object that renames the columns of files, or None if they keep their own names."""
    if version.names is None:
        return None
    if not version.constants_win or version.constants is None:
        return FooterNames(version.names)
    hidden = set(version.constants.column_names)
    own = tuple(column for column in version.names.columns if column.name not in hidden)
    return FooterNames(Names(own, version.names.by_id, version.names.names_without_ids))


def check_rows(version: TableVersion, files: Sequence[SourceFile], rows: Sequence[int]) -> None:
    """Compare the numbers of rows in footers with those in the table's metadata.

    Raises:
        SourceError: they differ.
    """
    for file, source, found in zip(version.files, files, rows, strict=True):
        if file.rows is not None and file.rows != found:
            raise SourceError(
                f"{source.name}: the file holds {found} rows, and {_of(version.info)} says {file.rows}; the file was "
                "replaced, or the table's metadata is damaged"
            )


def table_schemas(
    version: TableVersion, stored: Sequence[pa.Schema], first_files: Sequence[SourceFile]
) -> tuple[tuple[pa.Schema, ...], tuple[pa.Schema, ...]]:
    """Return the schemas of files twice: with delivered types, and with stored types.

    Args:
        version: The table version.
        stored: The distinct Arrow schemas of the files, with the names of the table.
        first_files: A file with each schema, for messages.

    Raises:
        SchemaError: a type in a file cannot be delivered as the table's.
    """
    wanted = version.info.schema
    if wanted is None:
        return tuple(stored), tuple(stored)
    if not stored:
        return (pa.schema([]),), (pa.schema([]),)
    if version.constants_win and version.constants is not None:
        hidden = set(version.constants.column_names)
        wanted = pa.schema([field for field in wanted if field.name not in hidden])
    pairs = [
        delivered_columns(schema, wanted, version.promotes, file.name)
        for schema, file in zip(stored, first_files, strict=True)
    ]
    return tuple(delivered for delivered, _ in pairs), tuple(own for _, own in pairs)


def constants_of(version: TableVersion, schemas: Sequence[pa.Schema]) -> pa.Table | None:
    """Return the values of the columns that some files lack, one row for each file, null if no constant is known.

    Raises:
        SchemaError: a file lacks a column that the table does not allow to be null.
    """
    wanted = version.info.schema
    if wanted is None:
        return None
    given = version.constants
    names = [field.name for field in wanted if any(field.name not in schema.names for schema in schemas)]
    for name in names if version.files else ():
        if not wanted.field(name).nullable and (given is None or name not in given.column_names):
            raise SchemaError(
                f"{version.info.root}, column {name!r}: files of {_of(version.info)} lack it, and the table says that "
                "it is never null; leave the column out with columns=[...], or repair the table"
            )
    columns = [
        given.column(name)
        if given is not None and name in given.column_names
        else pa.chunked_array([pa.nulls(len(version.files), wanted.field(name).type)])
        for name in names
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema([wanted.field(name).remove_metadata() for name in names]))


def alive_rows(
    version: TableVersion,
    deleted: DeletedRows,
    row_group_file: IntArray,
    row_group_rows: IntArray,
    fetcher: Fetcher | None,
) -> IntArray:
    """Return the number of rows of each row group that are not deleted, int64 ``[row groups]``.

    The deleted rows of a file are read, one file at a time on each thread, unless it has one row group and the table
    states their number.

    Raises:
        SourceError: deleted rows cannot be read, or are not rows of the file.
    """
    alive = row_group_rows.copy()

    def count(file: int) -> None:
        low, high = np.searchsorted(row_group_file, [file, file + 1]).tolist()
        known = version.files[file].deletes
        assert known is not None
        ends = np.cumsum(row_group_rows[low:high])
        total = int(ends[-1]) if len(ends) else 0
        if known.count is not None:
            _check_count(version, file, known.count, total)
            if high - low == 1:
                alive[low] -= known.count
                return
        positions = deleted.positions(file)
        assert positions is not None
        _check_count(version, file, int(positions[-1]) + 1 if len(positions) else 0, total)
        alive[low:high] -= np.diff(np.searchsorted(positions, ends, side="left"), prepend=0)

    if fetcher is None:
        in_threads(count, list(deleted.by_file), 8, "parquet_loader-footers")
        return alive

    async def counted(file: int) -> None:
        await fetcher.call(lambda: count(file))

    fetcher.run(side_by_side(counted, list(deleted.by_file), 16))
    return alive


def _check_count(version: TableVersion, file: int, needed: int, rows: int) -> None:
    if needed > rows:
        name = shown(f"{version.prefix}{version.files[file].path}")
        raise SourceError(
            f"{name}: {_of(version.info)} says that row {needed - 1} of it is deleted, and it has {rows} rows; the "
            "file was replaced, or the table's metadata is damaged"
        )
