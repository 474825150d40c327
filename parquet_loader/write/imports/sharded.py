"""Sources that are a list of files, each a sequence of records: the base of tars, TFRecords, MDS and LMDB.

Two passes: `prepare` reads all records to find the fields, `chunks` reads them again and encodes them. A position is
the number of a file and of a record in it.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parquet_loader.common import PathLike
from parquet_loader.errors import SourceError
from parquet_loader.schema import Field, Schema
from parquet_loader.write.imports.records import ImportedRows, ImportSource, Position, Prepared, Tally
from parquet_loader.write.imports.values import ColumnValues, encode_rows

_OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a file.

    Attributes:
        values: The values, by column; empty if the record is skipped.
        nbytes: Its size.
        name: The name for the report, if it is skipped.
        reason: Why it is skipped; "" if it is not.
    """

    values: Mapping[str, Any]
    nbytes: int = 0
    name: str = ""
    reason: str = ""


class ShardedSource(ImportSource):
    """Files of records.

    Args:
        source: A file, a directory, or a pattern with ``*``.
        columns: Names to import; None for all.
    """

    def __init__(self, source: PathLike, columns: Sequence[str] | None = None) -> None:
        self.path = os.path.abspath(os.fspath(source))
        self.columns = None if columns is None else tuple(columns)
        self._left_out: dict[str, None] = {}  # names in the files that are not imported, in order
        self.files = self.find_files()

    @abstractmethod
    def find_files(self) -> list[str]:
        """Return the files, in order.

        Raises:
            SourceError: No file was found.
        """

    @abstractmethod
    def records(self, path: str, *, scans: bool) -> Iterator[Record]:
        """Yield the records of a file.

        Args:
            path: The file.
            scans: Whether only the fields are needed; then the first bytes of images suffice.

        Raises:
            SourceError: The file is damaged, or holds values that cannot be imported.
        """

    def wants(self, column: str) -> bool:
        """Whether a column is imported; the names of others are kept for the error about a wrong name."""
        if self.columns is None or column in self.columns:
            return True
        self._left_out[column] = None
        return False

    def identity(self) -> Any:
        """Return name, size and time of each file."""
        status = [os.stat(path) for path in self.files]
        files = [[path, one.st_size, one.st_mtime_ns] for path, one in zip(self.files, status, strict=True)]
        return {"files": files, "columns": None if self.columns is None else list(self.columns)}

    def prepare(self) -> Prepared:
        """Read all records, and return fields that hold all values."""
        found: dict[str, ColumnValues] = {}
        rows = 0
        for path in self.files:
            for number, record in enumerate(self._opened(path, scans=True)):
                if record.reason:
                    continue
                rows += 1
                for name, value in record.values.items():
                    if not name:
                        raise SourceError(f"{path}: record {number} has a value whose name is empty")
                    try:
                        found.setdefault(name, ColumnValues()).add(value)
                    except ValueError as error:
                        raise SourceError(f"{path}: record {number}, column {name!r}: {error}") from None
        missing = [name for name in self.columns or () if name not in found]
        if missing and (rows or self._left_out):
            there_are = ", ".join([*found, *self._left_out])
            raise SourceError(f"{self.path}: no record has {', '.join(missing)}; there are {there_are}")
        if rows and not found:
            raise SourceError(f"{self.path}: nothing to import: none of the {rows:,} records has a value")
        fields: dict[str, Field] = {
            name: values.field_of(f"{self.path}: column {name!r}", rows) for name, values in found.items()
        }
        return Prepared(Schema(fields), total=rows)

    def chunks(self, prepared: Prepared, position: Position | None, group_bytes: int) -> Iterator[ImportedRows]:
        """Yield the records in order."""
        first_file, first_record = (position["file"], position["record"]) if position is not None else (0, 0)
        batch, tally, done = _Batch(self, prepared.schema), Tally(), 0
        at = {"file": first_file, "record": first_record}
        for number in range(first_file, len(self.files)):
            path, skipped = self.files[number], first_record if number == first_file else 0
            for record_number, record in enumerate(self._opened(path, scans=False)):
                if record_number < skipped:
                    continue
                if record.reason:
                    tally.skip(record.reason, f"{os.path.basename(path)}: {record.name}")
                else:
                    batch.add(record, path, record_number)
                    tally.rows += 1
                    tally.nbytes += record.nbytes
                at = {"file": number, "record": record_number + 1}
                if batch.nbytes >= group_bytes:
                    done += len(batch.rows)
                    yield ImportedRows(batch.table(), at, tally, done)
                    batch, tally = _Batch(self, prepared.schema), Tally()
        yield ImportedRows(batch.table(), at, tally, done + len(batch.rows))

    def _opened(self, path: str, *, scans: bool) -> Iterator[Record]:
        """Yield records; errors of the file system and of decompression name the file."""
        try:
            yield from self.records(path, scans=scans)
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise SourceError(f"{path}: truncated or damaged ({error})") from error
        except OSError as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error


class _Batch:
    """Records that become a row group."""

    def __init__(self, source: ShardedSource, schema: Schema) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.nbytes = 0
        self._where = source.path
        self._schema = schema

    def add(self, record: Record, path: str, number: int) -> None:
        if not self.rows:
            self._where = f"{path}: record {number}"
        for name in record.values:
            if name not in self._schema:
                raise SourceError(f"{path}: record {number} has a new column {name!r}; the file changed")
        self.rows.append(record.values)
        self.nbytes += record.nbytes

    def table(self) -> Any:
        if not self.rows:
            return self._schema.arrow_schema().empty_table()
        return encode_rows(self.rows, self._schema, f"{self._where} or later")


def files_of(path: str, suffixes: Sequence[str], what: str) -> list[str]:
    """Return the file, the files that a pattern matches, or the files in a directory with one of the suffixes.

    Args:
        path: File, directory or pattern.
        suffixes: Suffixes of the files in a directory, such as ``".tar"``; one for compression, such as ``".gz"``, may
            follow.
        what: The files in words, for error messages.

    Raises:
        SourceError: No file was found.
    """
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        endings = tuple(suffix + more for suffix in suffixes for more in ("", ".gz", ".bz2", ".xz"))
        found = [os.path.join(path, name) for name in names if not name.startswith(".") and _matches(name, endings)]
        if not found:
            raise SourceError(f"{path}: no {what} in this directory ({', '.join(suffixes)}); found {names[:5]}")
        return found
    if os.path.isfile(path):
        return [path]
    if found := sorted(glob.glob(path)):
        return [name for name in found if os.path.isfile(name)]
    raise SourceError(
        f"{path}: does not exist; expected {what}: a file, a directory, or a pattern such as 'x-*{suffixes[0]}'"
    )


def _matches(name: str, endings: tuple[str, ...]) -> bool:
    """Return whether a name has an ending, perhaps followed by the number of a shard: ``x.tfrecord-00000-of-00002``."""
    stem, dash, rest = name.partition("-of-")
    return name.endswith(endings) or (bool(dash) and rest.isdigit() and stem.rpartition("-")[0].endswith(endings))


def opener_of(first: bytes) -> Callable[..., Any] | None:
    """Return the function that opens a compressed file with these first bytes; None if it is not compressed so."""
    return next((opener for magic, opener in _OPENERS.items() if first.startswith(magic)), None)
