"""Reads the footers of files, here or in a store, and checks them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import is_local, system_error, without_secrets
from parquet_loader.errors import ParquetLoaderError, SourceError
from parquet_loader.source.byte_ranges import ByteRange, RangeFetcher
from parquet_loader.source.file_schema import LENGTH_AND_MARK_BYTES, MARK, FileSchema, MetadataError
from parquet_loader.source.files import SourceFile, changed_since
from parquet_loader.source.metadata import Metadata, read_schema
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.tables.names import FooterNames

# Bytes at a file's end that are read first, as Arrow does.
_TAIL_BYTES = 64 * 1024
_ENCRYPTED_MARK = b"PARE"
_PARSE_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's footer.

    Attributes:
        parsed: The parsed footer.
        digest: 64 bits of a BLAKE2b digest of its bytes. These include the offset, length and usually the smallest and
            largest value of each column chunk, so files with different data rarely have the same digest.
        raw: Its bytes in the file; `parsed` may have other column names.
    """

    parsed: Metadata
    digest: int
    raw: bytes


def read_footer(
    filesystem: pafs.FileSystem,
    file: SourceFile,
    fetcher: RangeFetcher | None = None,
    names: FooterNames | None = None,
) -> Footer:
    """Read and check one footer, through `fetcher` if one is given; reads no more bytes than Arrow does.

    Raises:
        SourceError: the file is empty, truncated, not Parquet, gone, or its footer contradicts itself.
    """
    if file.size_bytes == 0:
        raise _empty(file)
    try:
        if fetcher is None:
            _check_listed(filesystem, file)  # a named pipe in its place would never answer
            with filesystem.open_input_file(file.path) as opened:
                raw = _footer_bytes(opened)
        else:
            raw = _fetched_footer(fetcher, file)
    except FileNotFoundError as error:
        what = file.if_gone or "make a new loader to read the others"
        raise SourceError(f"{file.name}: the file has vanished since it was listed; {what}") from error
    except _PARSE_ERRORS as error:
        raise _unreadable(file, error) from error
    footer = checked_footer(raw, file, names)
    _check_listed(filesystem, file)
    return footer


def _check_listed(filesystem: pafs.FileSystem, file: SourceFile) -> None:
    changed = changed_since(filesystem, file) if is_local(filesystem) else None
    if changed:
        found = changed.replace("its footer was read", "it was listed")
        raise SourceError(f"{file.name}: the file {found}; make a new loader to read it")


async def fetch_footer(fetcher: Fetcher, file: SourceFile, names: FooterNames | None) -> Footer:
    """As `read_footer`, on the event loop of a fetcher."""
    if file.size_bytes == 0:
        raise _empty(file)
    tail = await _fetched(fetcher, file, _tail_of(file))
    rest = _footer_range(tail, file)
    whole = rest.size <= len(tail)
    return checked_footer(tail[-rest.size :] if whole else await _fetched(fetcher, file, rest), file, names)


def read_file_schema(filesystem: pafs.FileSystem, path: str) -> FileSchema:
    """Return the schema in the footer of one file that was not listed, such as ``_common_metadata``.

    The rest of the footer is ignored: fastparquet's ``_common_metadata`` states rows, and has no row groups.

    Raises:
        MetadataError, ValueError, pyarrow.ArrowException, OSError: the file cannot be read, or is not Parquet.
    """
    with filesystem.open_input_file(path) as opened:
        return read_schema(_footer_bytes(opened))[2]


def checked_footer(raw: bytes, file: SourceFile, names: FooterNames | None) -> Footer:
    """Parse a footer, and check that it does not contradict itself."""
    try:
        named = raw if names is None else names.renamed(raw, file.name)
        return Footer(Metadata(named, file.size_bytes), footer_digest(raw), raw)
    except _PARSE_ERRORS as error:
        raise _unreadable(file, error) from error


def footer_digest(raw: bytes) -> int:
    """Return the digest of a footer's bytes, which is not 0."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") or 1


def _empty(file: SourceFile) -> SourceError:
    return SourceError(f"{file.name}: the file is empty (0 bytes); write it again, or remove it")


def _unreadable(file: SourceFile, error: Exception) -> ParquetLoaderError:
    failure = system_error(file.name, error)
    if failure is not None:
        return failure
    if isinstance(error, UnicodeEncodeError):
        return SourceError(
            f"{file.name}: the name of the file is not UTF-8, and Arrow cannot open it; rename the file, or set "
            "PYTHONUTF8=1 if only the locale of this process is not UTF-8"
        )
    reason = without_secrets(str(error).split("\n")[0].removesuffix("."))
    return SourceError(f"{file.name}: not a readable Parquet file of {file.size_bytes} bytes: {reason}")


def _footer_bytes(opened: pa.NativeFile) -> bytes:
    """Return a file's footer with its length and magic bytes. Raises `MetadataError` if the file has none."""
    size = opened.size()
    tail: bytes = opened.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    whole = footer_length(tail, size)
    return tail[-whole:] if whole <= len(tail) else opened.read_at(whole, size - whole)


def footer_length(tail: bytes, file_bytes: int) -> int:
    """Return the size of a footer with its length and magic bytes, from the last bytes of its file.

    Raises:
        MetadataError: the file does not end with a footer.
    """
    mark = tail[-len(MARK) :]
    if mark == _ENCRYPTED_MARK:
        raise MetadataError("its footer is encrypted, which this library does not read; decrypt the file first")
    if len(tail) < LENGTH_AND_MARK_BYTES or mark != MARK:
        raise MetadataError(
            f"it does not end with {MARK.decode()}, the magic bytes of Parquet: it is truncated, or not a Parquet file"
        )
    length = int.from_bytes(tail[-LENGTH_AND_MARK_BYTES : -len(MARK)], "little") + LENGTH_AND_MARK_BYTES
    if length > file_bytes:
        raise MetadataError(f"it says that its footer takes {length} bytes; it is truncated or damaged")
    return length


def _tail_of(file: SourceFile) -> ByteRange:
    return ByteRange(max(0, file.size_bytes - _TAIL_BYTES), file.size_bytes)


def _footer_range(tail: bytes, file: SourceFile) -> ByteRange:
    """Return the range of a footer with its length and magic bytes. Raises `SourceError` if the file has none."""
    try:
        return ByteRange(file.size_bytes - footer_length(tail, file.size_bytes), file.size_bytes)
    except MetadataError as error:
        raise _unreadable(file, error) from error


def _fetched_footer(fetcher: RangeFetcher, file: SourceFile) -> bytes:
    """Return a footer with its length and magic bytes; one request suffices if it is within the last `_TAIL_BYTES`."""
    tail: bytes = fetcher.fetch(file, [_tail_of(file)])[0].to_pybytes()
    rest = _footer_range(tail, file)
    if rest.size <= len(tail):
        return tail[-rest.size :]
    found: bytes = fetcher.fetch(file, [rest])[0].to_pybytes()
    return found


async def _fetched(fetcher: Fetcher, file: SourceFile, span: ByteRange) -> bytes:
    buffer = np.empty(span.size, np.uint8)
    await fetcher.read_all(file, [span], [buffer])
    return buffer.tobytes()
