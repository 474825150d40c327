"""`import_tfrecord`: files of ``tf.train.Example`` to Parquet, without TensorFlow.

A file is a sequence of records: the length (uint64), its checksum (uint32), the data, their checksum (uint32), all
little-endian. Checksums are CRC-32C, masked as TensorFlow does. An ``Example`` is a Protocol Buffers message: a map
from names to lists of bytes, floats or int64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import PathLike
from parquet_loader.errors import SourceError
from parquet_loader.write.imports.crc32c import crc32c
from parquet_loader.write.imports.importing import run_import
from parquet_loader.write.imports.protobuf import BYTES, FIXED32, VARINT, WireError, fields_of, varints_of
from parquet_loader.write.imports.report import ImportReport
from parquet_loader.write.imports.sharded import Record, ShardedSource, files_of, opener_of
from parquet_loader.write.imports.values import ValueList
from parquet_loader.write.options import WriteOptions

_HEAD = struct.Struct("<QI")
_MOST_BYTES = 2**31 - 2**20
_MASK_DELTA = 0xA282EAD8


def import_tfrecord(
    source: PathLike,
    target: PathLike,
    *,
    columns: Sequence[str] | None = None,
    options: WriteOptions | None = None,
    progress: bool = False,
) -> ImportReport:
    """Import TFRecord files of ``tf.train.Example`` into a new directory, or continue an interrupted import.

    Each feature becomes a column. The files are read twice: once to find the columns and their types, once for the
    rows. The checksums of all records are verified.

    Args:
        source: A file, a directory of ``.tfrecord`` files, or a pattern; files may be compressed by gzip, zlib, bzip2
            or xz.
        target: Directory of the data set: a local one, which does not exist or is empty.
        columns: Names to import; default: all.
        options: Sizes and codec.
        progress: Show a progress bar (needs tqdm).

    Raises:
        SourceError: A file cannot be read, is damaged or truncated, holds other records, or has changed since the
            interrupted run.
        WriteError: The target is not empty, or the file system refuses.
    """
    return run_import(TFRecordSource(source, columns), target, options=options, progress=progress)


class TFRecordSource(ShardedSource):
    """Files of examples."""

    format = "tfrecord"

    def find_files(self) -> list[str]:
        """Return the files."""
        return files_of(self.path, (".tfrecord", ".tfrecords", ".tfrec", ".tfr", ".tfds"), "TFRecord files")

    def records(self, path: str, *, scans: bool) -> Iterator[Record]:
        """Yield the examples of a file."""
        del scans
        for number, data in enumerate(_frames(path)):
            where = f"{path}: record {number}"
            try:
                values = {name: value for name, value in _example(data, where) if value is not None}
            except WireError as error:
                raise SourceError(f"{where} is not a tf.train.Example: {error}") from None
            if self.columns is not None:
                values = {name: value for name, value in values.items() if name in self.columns}
            yield Record(values, len(data))


def _frames(path: str) -> Iterator[memoryview]:
    """Yield the data of the records, after checking their checksums."""
    with _open(path) as file:
        number = 0
        while head := file.read(_HEAD.size):
            where = f"{path}: record {number}"
            if len(head) < _HEAD.size:
                raise SourceError(f"{where}: the file is truncated")
            length, checksum = _HEAD.unpack(head)
            if _masked(head, 8) != checksum:
                raise SourceError(f"{where}: the checksum of its length is wrong: damaged, or not a TFRecord file")
            if length > _MOST_BYTES:
                raise SourceError(f"{where} is larger than 2 GiB, the most that a row may hold")
            data = file.read(length + 4)
            if len(data) < length + 4:
                raise SourceError(f"{where}: the file is truncated")
            if _masked(data, length) != int.from_bytes(data[length:], "little"):
                raise SourceError(f"{where}: the checksum of its data is wrong: the file is damaged")
            yield memoryview(data)[:length]
            number += 1


def _open(path: str) -> Any:
    """Open a file that may be compressed; TensorFlow's file names do not tell."""
    with open(path, "rb") as file:
        first = file.read(_HEAD.size)
    if len(first) == _HEAD.size and _masked(first, 8) == _HEAD.unpack(first)[1]:
        return open(path, "rb", buffering=2**20)
    if opener := opener_of(first):
        return opener(path, "rb")
    if len(first) > 2 and first[0] == 0x78 and int.from_bytes(first[:2], "big") % 31 == 0:
        return pa.input_stream(path, compression="gzip")  # Arrow also reads zlib, by the header
    return open(path, "rb", buffering=2**20)


def _masked(data: bytes, length: int) -> int:
    checksum = crc32c(data, length)
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _example(data: memoryview, where: str) -> Iterator[tuple[str, ValueList | None]]:
    """Yield the features of an example; of two features with one name, the last one counts."""
    features: list[memoryview] = []
    for number, kind, value in fields_of(data):
        if number == 2 and kind == BYTES:
            raise SourceError(f"{where} is a tf.train.SequenceExample, which is not imported; only tf.train.Example is")
        if number != 1 or kind != BYTES:
            raise WireError(f"field {number} is unknown")
        features.append(value)
    seen: dict[str, ValueList | None] = {}
    for part in features:
        for _, kind, entry in fields_of(part):
            if kind != BYTES:
                raise WireError("a feature is not a message")
            name, feature = b"", memoryview(b"")
            for number, _, value in fields_of(entry):
                if number == 1:
                    name = bytes(value)
                elif number == 2:
                    feature = value
            seen[str(name, "utf-8", "backslashreplace")] = _feature(feature)
    yield from seen.items()


def _feature(data: memoryview) -> ValueList | None:
    """Return the values of a feature; None for an empty one, which TensorFlow treats as absent."""
    found: ValueList | None = None
    for number, kind, value in fields_of(data):
        if kind != BYTES or number not in _LISTS:
            raise WireError(f"field {number} of a feature is unknown")
        found = _LISTS[number](value)
    return None if found is None or not len(found.items) else found


def _bytes_list(data: memoryview) -> ValueList:
    items = []
    for _, kind, value in fields_of(data):
        if kind != BYTES:
            raise WireError("an item of a list of bytes is a number")
        items.append(bytes(value))
    return ValueList("bytes", items)


def _float_list(data: memoryview) -> ValueList:
    parts = []
    for _, kind, value in fields_of(data):
        if kind not in (BYTES, FIXED32) or len(value) % 4:
            raise WireError("an item of a list of floats has another type")
        parts.append(value)
    return ValueList("float32", np.frombuffer(b"".join(parts), "<f4"))


def _int_list(data: memoryview) -> ValueList:
    parts = []
    for _, kind, value in fields_of(data):
        if kind == VARINT:
            parts.append(np.array([value], np.uint64).view(np.int64))
        elif kind == BYTES:
            parts.append(varints_of(value))
        else:
            raise WireError("an item of a list of int64 has another type")
    return ValueList("int64", np.concatenate(parts) if parts else np.empty(0, np.int64))


_LISTS = {1: _bytes_list, 2: _float_list, 3: _int_list}
