"""Recognises tables that callers name by a path or by another library's object."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from parquet_loader.common import is_local, resolve
from parquet_loader.source.file_types import is_pattern
from parquet_loader.source.tables.delta.source import DeltaSource
from parquet_loader.source.tables.formats import DELTA, ICEBERG, TableFormat, local_table_at
from parquet_loader.source.tables.hub_commits import HubSource
from parquet_loader.source.tables.iceberg import IcebergSource, is_metadata_file, is_table
from parquet_loader.source.tables.table_version import TableSource

# The class of each format's tables, by the name of the format.
_SOURCES: dict[str, Callable[[Any], TableSource]] = {DELTA.name: DeltaSource, ICEBERG.name: IcebergSource}


def local_table(source: Any, filesystem: Any) -> TableSource | None:
    """Return the table whose local directory a source names, or None."""
    if not isinstance(source, str | os.PathLike) or (filesystem is not None and not is_local(filesystem)):
        return None
    text = os.fspath(source)
    if not isinstance(text, str) or ("://" in text and not text.lower().startswith("file://")):
        return None
    _, path = resolve(source, filesystem)
    if is_pattern(path) and not os.path.isdir(path):
        return None
    try:
        table = local_table_at(path) if os.path.isdir(path) else None
    except OSError:  # listing the directory will fail as well, and explain why
        return None
    return None if table is None else table_source_of(table.format, source)


def table_source_of(format_: TableFormat, source: Any) -> TableSource | None:
    """Return the table of a format whose directory is the source or its only entry; None if it is not supported."""
    make = _SOURCES.get(format_.name)
    return None if make is None else make(source[0] if isinstance(source, list | tuple) else source)


def table_source(source: Any) -> Any:
    """Return the table for an object of another library or a metadata file; else return the source.

    A `HubSource` that is not followed becomes its address.
    """
    if isinstance(source, HubSource) and not source.follow:
        return source.address
    if is_table(source) or (isinstance(source, str | os.PathLike) and is_metadata_file(os.fspath(source))):
        return IcebergSource(source)
    kind = type(source)
    if kind.__name__ == "DeltaTable" and kind.__module__.partition(".")[0] == "deltalake":
        options = getattr(source, "_storage_options", None)
        return DeltaSource(_local_path_of(source.table_uri), source.version(), storage_options=options)
    return source


def _local_path_of(url: str) -> str:
    """Return the local path of a URL in which special characters are percent-encoded."""
    return unquote(url.removeprefix("file://")) if url.startswith("file:///") else url
