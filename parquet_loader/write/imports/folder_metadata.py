"""Reads the metadata of a folder of images in the form of `datasets`: ``metadata.csv`` or ``metadata.jsonl``."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from parquet_loader.errors import SourceError
from parquet_loader.schema import Schema, encode_columns, infer_schema, lenient, null_levels, with_nulls

METADATA_NAMES = ("metadata.csv", "metadata.jsonl")
_FILE_NAME = "file_name"
_OWN = ("image", "path")


@dataclass
class FolderMetadata:
    """The metadata of a folder; held in memory as a whole.

    Args:
        path: The file.
        read: Its columns, unchanged.
    """

    path: str
    read: pa.Table

    @property
    def name(self) -> str:
        """The file's name."""
        return os.path.basename(self.path)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.read.num_rows)

    @cached_property
    def names(self) -> list[str]:
        """The images, relative to the folder."""
        return self.read.column(_FILE_NAME).to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def _columns(self) -> dict[str, Any]:
        names = (field.name for field in self.read.schema if not pa.types.is_null(field.type))
        return {name: self.read.column(name) for name in names if name != _FILE_NAME}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about columns that are left out because they hold only nulls."""
        empty = (field.name for field in self.read.schema if pa.types.is_null(field.type))
        return tuple(f"column {name!r} of {self.name} holds no values, and is left out" for name in empty)

    @cached_property
    def schema(self) -> Schema:
        """The schema of the other columns; columns with nulls get masks."""
        if not self._columns:
            return Schema({})
        fields = infer_schema(self._columns)
        table = encode_columns(self._columns, Schema({name: lenient(field) for name, field in fields.items()}), 0)
        return Schema(with_nulls(fields, {name for name in fields if any(null_levels(table.column(name)))}, "mask"))

    @cached_property
    def table(self) -> pa.Table:
        """The other columns in their stored form."""
        return encode_columns(self._columns, self.schema, 0)

    def identity(self) -> str:
        """Return a digest of the file."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def find_metadata(folder: str) -> FolderMetadata | None:
    """Return the metadata of a folder; None if there is none.

    Raises:
        SourceError: The metadata cannot be read or names no files, or there are two files of metadata.
    """
    found = [name for name in METADATA_NAMES if os.path.isfile(os.path.join(folder, name))]
    if not found:
        return None
    path = os.path.join(folder, found[0])
    if len(found) > 1:
        raise SourceError(f"{folder}: there are {' and '.join(found)}; remove one of them")
    try:
        if path.endswith(".csv"):
            options = pacsv.ConvertOptions(column_types={_FILE_NAME: pa.string()}, strings_can_be_null=False)
            lines = pacsv.ParseOptions(newlines_in_values=True)
            read = pacsv.read_csv(path, convert_options=options, parse_options=lines)
        else:
            read = pajson.read_json(path)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: cannot be read ({error})") from error
    repeated = [name for name, count in Counter(read.column_names).items() if count > 1]
    if repeated:
        raise SourceError(f"{path}: several columns have the name {', '.join(map(repr, repeated))}; rename them")
    if _FILE_NAME not in read.column_names or not pa.types.is_string(read.schema.field(_FILE_NAME).type):
        raise SourceError(f"{path}: no column {_FILE_NAME!r} of text, only {', '.join(read.column_names)}")
    if read.column(_FILE_NAME).null_count:
        raise SourceError(f"{path}: column {_FILE_NAME!r} has rows without a name")
    for name in _OWN:
        if name in read.column_names:
            raise SourceError(f"{path}: column {name!r} is the name of a column of the import; rename it")
    return FolderMetadata(path, read)
