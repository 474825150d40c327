"""Which bytes of a file a row group's columns take, as few ranges as pay; and who fetches them. Pure, but for names."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.source import SourceFile

# Arrow reads so far behind a column chunk: old versions of parquet-cpp left the header of its dictionary page out of
# its length (PARQUET-816).
_BEHIND_CHUNK_BYTES = 100


class ByteRange(NamedTuple):
    """Bytes of a file.

    Attributes:
        start: The first.
        stop: The one behind the last.
    """

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.stop - self.start


class RangeFetcher(Protocol):
    """What fetches bytes of a file that is not local."""

    def fetch(self, file: SourceFile, ranges: Sequence[ByteRange]) -> list[pa.Buffer]:
        """Return the bytes of each range, waiting for them; any thread may call it.

        Raises:
            SourceError: they cannot be had: the file has vanished, changed or is forbidden, or the store did not
                answer in time, however often it was asked.
        """
        ...


def selected(paths: Sequence[str], names: Iterable[str]) -> list[int]:
    """Return which leaf columns the Parquet reader takes for these names; a struct's name stands for all its leaves."""
    exact = {*names}
    below = tuple(f"{name}." for name in exact)
    return [number for number, path in enumerate(paths) if path in exact or path.startswith(below)]


def chunk_ranges(
    footer: pq.FileMetaData, row_group: int, columns: Iterable[str] | None, file_bytes: int
) -> list[ByteRange]:
    """Return the bytes of a row group's column chunks, in the order of the file's columns.

    Args:
        footer: The file's.
        row_group: Its number in the file.
        columns: Names to read, as the Parquet reader takes them; None: all.
        file_bytes: The file's size.

    Raises:
        ValueError: the footer names bytes that the file does not have.
    """
    group = footer.row_group(row_group)
    chunks = [group.column(number) for number in range(group.num_columns)]
    if columns is not None:
        chunks = [chunks[number] for number in selected([chunk.path_in_schema for chunk in chunks], columns)]
    found: list[ByteRange] = []
    for chunk in chunks:
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        stop = start + chunk.total_compressed_size
        if not 0 <= start <= stop <= file_bytes:
            raise ValueError(
                f"column {chunk.path_in_schema!r} of row group {row_group} is said to lie at bytes {start} to {stop} "
                f"of {file_bytes}"
            )
        found.append(ByteRange(start, min(stop + _BEHIND_CHUNK_BYTES, file_bytes)))
    return found


def merge(ranges: Iterable[ByteRange], *, gap_bytes: int, request_bytes: int) -> tuple[ByteRange, ...]:
    """Return ranges that hold all of these, in order: as few as pay, none larger than a request should be.

    Ranges with at most `gap_bytes` between them become one, as reading so much in vain costs less than another request.
    What is then larger than `request_bytes` is divided evenly, so that its parts can be fetched side by side.
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
    footer: pq.FileMetaData,
    row_group: int,
    columns: Iterable[str] | None,
    *,
    file_bytes: int,
    gap_bytes: int,
    request_bytes: int,
) -> tuple[ByteRange, ...]:
    """Return the requests that a row group's columns take; arguments as in `chunk_ranges` and `merge`.

    Raises:
        ValueError: the footer names bytes that the file does not have.
    """
    chunks = chunk_ranges(footer, row_group, columns, file_bytes)
    return merge(chunks, gap_bytes=gap_bytes, request_bytes=request_bytes)
