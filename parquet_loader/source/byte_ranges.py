"""Plans the byte ranges to fetch for the columns of a row group, and defines the protocol of fetchers. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from parquet_loader.source.file_schema import MetadataError
from parquet_loader.source.files import SourceFile
from parquet_loader.source.metadata import Metadata

# Arrow reads this many bytes beyond a column chunk, because old versions of parquet-cpp did not count the header of the
# dictionary page in its length (PARQUET-816).
_BEHIND_CHUNK_BYTES = 100
# Ranges this close together are fetched as one: reading the gap costs less than another request.
GAP_BYTES = 2**20


class ByteRange(NamedTuple):
    """A range of bytes of a file.

    Attributes:
        start: Offset of the first byte.
        stop: Offset after the last byte.
    """

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


class RangeFetcher(Protocol):
    """Fetches bytes of a remote file."""

    def fetch(self, file: SourceFile, ranges: Sequence[ByteRange]) -> list[pa.Buffer]:
        """Fetch the bytes of each range, and wait for them; any thread may call it.

        Raises:
            SourceError: the file has vanished, changed or may not be read, or the store did not answer in time, also
                after retries.
        """
        ...


def selected(leaves: Sequence[str], names: Iterable[str]) -> list[int]:
    """Return the numbers of the leaf columns (see `Metadata.names`) at and below names."""
    exact = {*names}

    def is_selected(leaf: str) -> bool:
        return leaf in exact or any(leaf[:at] in exact for at, sign in enumerate(leaf) if sign == ".")

    return [number for number, leaf in enumerate(leaves) if is_selected(leaf)]


def chunk_ranges(footer: Metadata, row_group: int, columns: Iterable[str] | None) -> list[ByteRange]:
    """Return the bytes of a row group's column chunks, in the order of the file's columns.

    Args:
        footer: The file's footer.
        row_group: The row group's number in the file.
        columns: Names to read; None reads all.

    Raises:
        MetadataError: a column cannot be read; see `Metadata.check`.
    """
    found: list[ByteRange] = []
    for number in range(footer.num_columns) if columns is None else selected(footer.names, columns):
        try:
            chunk = footer.check(row_group, number)
        except MetadataError as error:
            raise MetadataError(f"column {footer.paths[number]!r}: {error}") from error
        found.append(
            ByteRange(chunk.start, min(chunk.start + chunk.stored_bytes + _BEHIND_CHUNK_BYTES, footer.file_bytes))
        )
    return found


def merge(ranges: Iterable[ByteRange], *, request_bytes: int, gap_bytes: int = GAP_BYTES) -> tuple[ByteRange, ...]:
    """Return the requests that cover all ranges, in order.

    Ranges with at most `gap_bytes` between them become one. A range larger than `request_bytes` is divided evenly into
    parts that are fetched in parallel.
    """
    merged: list[ByteRange] = []
    for start, stop in sorted(r for r in ranges if r.size):
        if merged and start - merged[-1].stop <= gap_bytes:
            merged[-1] = ByteRange(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(ByteRange(start, stop))
    parts: list[ByteRange] = []
    for start, stop in merged:
        count = -(-(stop - start) // request_bytes)
        cuts = [start + (stop - start) * n // count for n in range(count + 1)]
        parts.extend(ByteRange(a, b) for a, b in itertools.pairwise(cuts))
    return tuple(parts)


def row_group_ranges(
    footer: Metadata,
    row_group: int,
    columns: Iterable[str] | None,
    *,
    request_bytes: int,
    gap_bytes: int = GAP_BYTES,
) -> tuple[ByteRange, ...]:
    """Return the requests for a row group's columns; arguments as in `chunk_ranges` and `merge`.

    Raises:
        MetadataError: a column cannot be read; see `Metadata.check`.
    """
    chunks = chunk_ranges(footer, row_group, columns)
    return merge(chunks, gap_bytes=gap_bytes, request_bytes=request_bytes)
