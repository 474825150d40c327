"""`import_mosaicml`: shards of MosaicML Streaming (MDS) to Parquet, without its package.

``index.json`` lists the shards and their columns. A shard holds, little-endian: the number of samples (uint32), the
offset of each sample and of the end (uint32), the columns again as JSON, and the samples. A sample holds the size
(uint32) of each column without a fixed size, then the columns' values.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import PathLike, is_plain_name
from parquet_loader.errors import SourceError
from parquet_loader.write.imports.importing import run_import
from parquet_loader.write.imports.records import listed
from parquet_loader.write.imports.report import ImportReport
from parquet_loader.write.imports.sharded import Record, ShardedSource
from parquet_loader.write.imports.values import Digits
from parquet_loader.write.options import WriteOptions

_INDEX = "index.json"
_MOST_INDEX_BYTES = 2**30
_NUMBERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}
_ARRAY_TYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_MODES = {"L": (), "RGB": (3,), "RGBA": (4,)}
_ARROW_CODECS = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}


def import_mosaicml(
    source: PathLike,
    target: PathLike,
    *,
    columns: Sequence[str] | None = None,
    options: WriteOptions | None = None,
    progress: bool = False,
) -> ImportReport:
    """Import the shards of a MosaicML data set into a new directory, or continue the import that was interrupted.

    The shards are read twice: once to find the shapes of arrays and the content of bytes, once for the rows. A
    compressed shard is decompressed in memory.

    Args:
        source: The directory that holds ``index.json``.
        target: Directory of the data set: a local one, which does not exist or is empty.
        columns: Names to import; default: all.
        options: Sizes and codec.
        progress: Show a progress bar (needs tqdm).

    Raises:
        SourceError: A shard cannot be read, is damaged, holds a pickle, or has changed since the interrupted run.
        WriteError: The target is not empty, or the file system refuses.
    """
    return run_import(MosaicMLSource(source, columns), target, options=options, progress=progress)


class MosaicMLSource(ShardedSource):
    """A directory of shards."""

    format = "mosaicml"

    def find_files(self) -> list[str]:
        """Return the shards of the index."""
        self._shards = _index_of(self.path)
        for shard in self._shards.values():
            for name, encoding in zip(shard["column_names"], shard["column_encodings"], strict=True):
                if self.wants(name):
                    _reader_of(f"{self.path}: column {name!r}", encoding)
        return list(self._shards)

    def identity(self) -> Any:
        """Return the files and the index."""
        status = os.stat(os.path.join(self.path, _INDEX))
        return [super().identity(), status.st_size, status.st_mtime_ns]

    def records(self, path: str, *, scans: bool) -> Iterator[Record]:
        """Yield the samples of a shard; the first pass verifies the hash of its file."""
        shard = self._shards[path]
        if scans:
            _check_hashes(path, shard)
        data = memoryview(_raw(path, shard))
        count = shard["samples"]
        head = 4 * (count + 2)
        if len(data) < head or int.from_bytes(data[:4], "little") != count:
            raise SourceError(f"{path}: not a shard of {count} samples, as {_INDEX} says")
        offsets = np.frombuffer(data[4:head], "<u4").astype(np.int64)
        if offsets[0] < head or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
            raise SourceError(f"{path}: the offsets of samples are damaged, or the file is truncated")
        columns = [
            (name, size, _reader_of(path, encoding) if self.wants(name) else None)
            for name, size, encoding in zip(
                shard["column_names"], shard["column_sizes"], shard["column_encodings"], strict=True
            )
        ]
        for number in range(count):
            sample = data[offsets[number] : offsets[number + 1]]
            try:
                yield Record(dict(_values(sample, columns)), len(sample))
            except (ValueError, IndexError, KeyError, OverflowError) as error:
                raise SourceError(f"{path}: sample {number} is damaged ({error})") from error


def _values(sample: memoryview, columns: Sequence[tuple[str, int | None, Any]]) -> Iterator[tuple[str, Any]]:
    at = 4 * sum(1 for _, size, _ in columns if not size)
    sizes = iter(np.frombuffer(sample[:at], "<u4").tolist())
    for name, size, read in columns:
        length = size or next(sizes)
        value = sample[at : at + length]
        if len(value) != length:
            raise ValueError(f"column {name!r} is longer than its sample")
        if read is not None:
            yield name, read(value)
        at += length
    if at != len(sample):
        raise ValueError(f"{len(sample) - at} bytes follow its columns")


def _index_of(folder: str) -> dict[str, dict[str, Any]]:
    """Return the shards by the paths of their files."""
    path = os.path.join(folder, _INDEX)
    if not os.path.isfile(path):
        inner = [entry.name for entry in listed(folder) if os.path.isfile(os.path.join(entry.path, _INDEX))]
        more = f"; import each of {', '.join(inner)} to a directory of its own" if inner else ""
        raise SourceError(f"{folder}: no {_INDEX}; expected a directory of MDS shards{more}")
    try:
        with open(path, "rb") as file:
            index = json.loads(file.read(_MOST_INDEX_BYTES))
        shards = {_file_of(folder, shard): _checked(shard) for shard in index["shards"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{path}: not an index of MDS shards ({error})") from error
    if not shards or len(shards) != len(index["shards"]):
        raise SourceError(f"{path}: {'lists no shards' if not shards else 'lists a shard twice'}")
    return shards


def _file_of(folder: str, shard: dict[str, Any]) -> str:
    """Return the file of a shard, or else its compressed file."""
    names = [part["basename"] for part in (shard["raw_data"], shard.get("zip_data")) if part]
    for name in names:
        if not isinstance(name, str) or not is_plain_name(name):
            raise ValueError(f"{name!r} is not the name of a file")
        if os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise SourceError(f"{folder}: {' or '.join(names)} is missing, which {_INDEX} lists")


def _checked(shard: dict[str, Any]) -> dict[str, Any]:
    if shard["format"] != "mds" or shard["version"] != 2:
        raise ValueError(f"format {shard['format']!r}, version {shard['version']!r}; only mds, version 2, is imported")
    names, sizes, encodings = shard["column_names"], shard["column_sizes"], shard["column_encodings"]
    if not len(names) == len(sizes) == len(encodings) == len(set(names)):
        raise ValueError("names, sizes and encodings of columns do not fit together")
    if not all(isinstance(name, str) for name in (*names, *encodings)):
        raise ValueError("names and encodings of columns are not text")
    parts = (shard["raw_data"], shard.get("zip_data") or shard["raw_data"])
    if not all(isinstance(part["bytes"], int) and isinstance(part.get("hashes") or {}, dict) for part in parts):
        raise ValueError("size or hashes of a file are damaged")
    if not all(size is None or (isinstance(size, int) and size >= 0) for size in sizes):
        raise ValueError("sizes of columns are not numbers")
    if not isinstance(shard["samples"], int) or not 0 <= shard["samples"] < 2**31:
        raise ValueError("samples is not a number")
    return shard


def _check_hashes(path: str, shard: dict[str, Any]) -> None:
    part = shard["raw_data"]
    if os.path.basename(path) != part["basename"]:
        part = shard["zip_data"]
    if os.path.getsize(path) != part["bytes"]:
        raise SourceError(f"{path}: has {os.path.getsize(path)} bytes, and {_INDEX} says {part['bytes']}")
    for name, expected in (part.get("hashes") or {}).items():
        if name in hashlib.algorithms_available and not name.startswith("shake"):
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, partial(hashlib.new, name, usedforsecurity=False)).hexdigest()
            if found != expected:
                raise SourceError(f"{path}: its {name} is {found}, and {_INDEX} says {expected}: the file is damaged")


def _raw(path: str, shard: dict[str, Any]) -> bytes:
    """Return the content of a shard, decompressed."""
    size = shard["raw_data"]["bytes"]
    with open(path, "rb") as file:
        data = file.read()
    if os.path.basename(path) != shard["raw_data"]["basename"]:
        codec = str(shard["compression"]).partition(":")[0]
        try:
            if codec in ("gz", "bz2"):
                opener: Any = gzip.open if codec == "gz" else bz2.open
                with opener(io.BytesIO(data)) as packed:
                    data = packed.read(size + 1)
            elif codec in _ARROW_CODECS:
                data = pa.Codec(_ARROW_CODECS[codec]).decompress(data, decompressed_size=size, asbytes=True)
            else:
                raise SourceError(f"{path}: compression {codec!r} is unknown")
        except pa.ArrowException as error:
            raise SourceError(f"{path}: cannot be decompressed ({error})") from error
    if len(data) != size:
        raise SourceError(f"{path}: holds {len(data)} bytes, and {_INDEX} says {size}")
    return data


def _reader_of(where: str, encoding: str) -> Callable[[memoryview], Any]:
    """Return a function that reads the values of an encoding."""
    kind, _, options = encoding.partition(":")
    if kind == "pkl":
        raise SourceError(f"{where}: pickles are never loaded, because they may run code; leave it out by --columns")
    if kind in ("bytes", "jpeg", "png"):
        return bytes
    if kind in ("str", "json", "str_decimal"):
        return lambda value: str(value, "utf-8")
    if kind == "str_int":
        return Digits
    if kind == "str_float":
        return lambda value: np.float64(str(value, "utf-8"))
    if kind == "int" or kind in _NUMBERS:
        dtype = np.dtype("int64" if kind == "int" else kind)
        return lambda value: np.frombuffer(value, dtype).reshape(())
    if kind == "pil":
        return _pixels
    if kind == "ndarray":
        name, _, shape = options.partition(":")
        known = np.dtype(name) if name in _ARRAY_TYPES.values() else None
        if (name and known is None) or not all(n.isdigit() for n in shape.split(",") if shape):
            raise SourceError(f"{where}: the encoding {encoding!r} is unknown")
        fixed = tuple(map(int, shape.split(","))) if shape else None
        return lambda value: _array(value, known, fixed)
    raise SourceError(f"{where}: the encoding {encoding!r} is unknown; leave the column out by --columns")


def _array(value: memoryview, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> Any:
    at = 0
    if dtype is None:
        dtype, at = np.dtype(_ARRAY_TYPES[value[0]]), 1
    if shape is None:
        dimensions, width = value[at] >> 2, 1 << (value[at] & 3)
        at += 1
        shape = tuple(np.frombuffer(value[at : at + dimensions * width], f"<u{width}").tolist())
        if len(shape) != dimensions:
            raise ValueError("the shape of an array is cut short")
        at += dimensions * width
    if len(value) - at != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of {dtype} {list(shape)} has {len(value) - at} bytes")
    return np.frombuffer(value[at:], dtype).reshape(shape)


def _pixels(value: memoryview) -> Any:
    """Return an image of Pillow in MDS as pixels: uint8 ``[height, width]`` or ``[height, width, channels]``."""
    width, height, length = np.frombuffer(value[:12], "<u4").tolist()
    mode = str(value[12 : 12 + length], "utf-8")
    if mode not in _MODES:
        raise ValueError(f"an image of mode {mode!r}; only {', '.join(_MODES)} are imported")
    return np.frombuffer(value[12 + length :], np.uint8).reshape((height, width, *_MODES[mode]))
