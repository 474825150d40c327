"""Measures the bytes of a row in each stage: by the types, the footers, and a sample of rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from parquet_loader.common import IntArray
from parquet_loader.decode import Arrangement, Column, arrangement_of, flat_widths, header_at, holds_rows
from parquet_loader.errors import DataError, SourceError, is_skippable
from parquet_loader.read import BUFFER_BYTES, HIDDEN_ROW_NUMBERS, RowGroupReader
from parquet_loader.schema import Audio
from parquet_loader.source import ColumnChunk, RowGroupRef, Snapshot, selected

# Bytes of a second of encoded audio: 64 kbit/s, as of speech in an MP3. Uncompressed audio has several times as many.
_AUDIO_BYTES_PER_S = 8000.0
# A row's entries in the permutations of the two windows in progress: three int64 each, and short-lived copies.
ORDER_BYTES = 48
SAMPLE_ROWS = 4096
SAMPLE_BYTES = 8 * 2**20
# An upper estimate of decoded bytes for each encoded byte, used before a sample is decoded.
_GUESS_FACTOR = 4
# An estimate for varying columns that is too low by at most this factor is kept, because the default window, and so the
# order, follows from it. The rest of the limit covers the difference.
TOLERATED = 1.25
# Most writers end pages below this size.
_USUAL_PAGE_BYTES = 2 * 2**20


@dataclass(frozen=True, slots=True)
class RowSizes:
    """Bytes of one row in each stage.

    Attributes:
        gathered: Canonical bytes of the columns that are gathered a window at a time.
        wide: Bytes of the columns that are copied to the window as they are decoded.
        processed: Bytes of a row in a batch made by image decoding or `transform`; 0 without these.
        staged: The part of `gathered` in columns of fixed width, also in the files.
        ragged: The part of `gathered` in each column of varying width, by the name of its `flat_columns`.
        sampled_rows: Rows that were decoded to measure these; 0 if all columns have fixed width.
        cursor_bytes: Bytes that an open cursor in the largest row group holds, without decoded rows.
        media: Bytes of decoded media, if they are decoded window by window; 0 if batch by batch, or without media.
        extra: Bytes by which a decoded row exceeds `decoded` in row groups whose rows are longer than the average.
        extra_cursor_bytes: The same for `cursor_bytes`.
        unplanned_cursor_bytes: Bytes that an open cursor may hold beyond `cursor_bytes`. They delay reading ahead, but
            do not change the windows, and so not the order.
        large_page_bytes: The part of `unplanned_cursor_bytes` in pages that are larger than those of most writers.
    """

    gathered: float
    wide: float
    processed: float
    staged: float = 0.0
    ragged: tuple[tuple[str, float], ...] = ()
    sampled_rows: int = 0
    cursor_bytes: int = 0
    media: float = 0.0
    extra: float = 0.0
    extra_cursor_bytes: int = 0
    unplanned_cursor_bytes: int = 0
    large_page_bytes: int = 0

    @property
    def decoded(self) -> float:
        """Bytes of a decoded row."""
        return self.gathered + self.wide

    @property
    def decoded_at_most(self) -> float:
        """Bytes of a decoded row in row groups whose rows are longer than the average."""
        return self.decoded + self.extra

    @property
    def moved_at_once(self) -> float:
        """Bytes of a decoded row that are copied to the window at once, and so are not kept in decoded form."""
        return self.wide + self.staged + sum(nbytes for _, nbytes in self.ragged)

    @property
    def in_windows(self) -> float:
        """Bytes of a row in the window delivered and in the one being made."""
        return 2 * self.decoded + self.gathered + 2 * self.media + ORDER_BYTES


def has_varying(columns: Sequence[Column]) -> bool:
    """Whether rows of a column differ in size, so that a sample has to be measured."""
    return any(c.row_bytes is None for c in columns)


def row_sizes(
    reader: RowGroupReader,
    counts: IntArray,
    *,
    processes: bool,
    decodes_windows: bool = False,
    ragged: tuple[tuple[str, float], ...] = (),
    sampled_rows: int = 0,
    extra: float = 0.0,
    dense: tuple[RowGroupRef, float] | None = None,
    reads_headers: bool = False,
) -> RowSizes:
    """Return the bytes of a row, from the types, and of a cursor, from the footers.

    Args:
        reader: Provides the row groups, the canonical columns and their routes.
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        processes: Whether batches are made one by one (images, `transform`).
        decodes_windows: Whether media are decoded window by window.
        ragged: Bytes of a row of each column of varying width.
        sampled_rows: Rows that were decoded to measure these.
        extra: As in `RowSizes`.
        dense: A row group with more bytes a row than the average, and the share of such row groups, 0 to 1.
        reads_headers: Whether the sizes of pages may be read from their headers.
    """
    # Hidden numbers of rows are left out, so that windows, and the order, are the same with and without them.
    columns = [c for c in reader.columns if c.name != HIDDEN_ROW_NUMBERS]
    wide = sum(c.row_bytes or 0 for c in columns if arrangement_of(c) is Arrangement.DIRECT)
    gathered: float = sum(c.row_bytes or 0 for c in columns) - wide
    gathered += sum(nbytes for _, nbytes in ragged)
    arrays = [(c.decoded_shape, np.dtype(c.dtype)) for c in columns if c.row_bytes is None and c.image is not None]
    image_bytes = float(sum(np.prod([n or 1 for n in shape]) * dtype.itemsize for shape, dtype in arrays))
    widths = dict(ragged)
    image_bytes += sum(
        widths.get(c.name, 0.0) * c.image.rate * c.image.channels * 4 / _AUDIO_BYTES_PER_S
        for c in columns
        if isinstance(c.image, Audio) and not c.image.is_fixed
    )
    processed = gathered + wide + image_bytes if processes else 0.0
    staged, cursor, cursor_at_most, unplanned, large = 0, 0, 0, 0, 0
    if len(counts) and counts.max():
        largest = reader.snapshot.row_group(int(np.argmax(counts)))
        as_stored = {r.source.name for r in reader.routes(largest) if r.source.is_always_as_stored}
        # Matrices of several columns are decoded from whole row groups. Measured: an epoch of 39 numbers in two groups
        # takes a sixth less time than with slices of 2 MiB.
        stays = [c for c in columns if holds_rows(c) and arrangement_of(c) is Arrangement.NARROW]
        staged = sum(c.row_bytes or 0 for c in stays if c.name in as_stored)
        leaves = reader.chunks.leaves(largest.file_number)
        cursor = _cursor_bytes(reader.snapshot, largest, leaves)
        unplanned = _unplanned_bytes(reader.snapshot, largest, leaves)
        large = _large_page_bytes(reader, largest, leaves) if reads_headers else 0
        if dense is not None:
            row_group, share = dense
            cursor_at_most = _cursor_bytes(reader.snapshot, row_group, reader.chunks.leaves(row_group.file_number))
            average = int(cursor + share * (cursor_at_most - cursor))
            cursor = average if average > TOLERATED * cursor else cursor
    media = image_bytes if decodes_windows else 0.0
    return RowSizes(
        gathered=gathered,
        wide=float(wide),
        processed=processed,
        staged=float(staged),
        ragged=ragged,
        sampled_rows=sampled_rows,
        cursor_bytes=cursor,
        media=media,
        extra=extra,
        extra_cursor_bytes=max(0, cursor_at_most - cursor),
        unplanned_cursor_bytes=unplanned + large,
        large_page_bytes=large,
    )


def guessed_sizes(
    reader: RowGroupReader, counts: IntArray, *, processes: bool, decodes_windows: bool = False
) -> RowSizes:
    """Return an upper estimate of the bytes of a row: `_GUESS_FACTOR` times the footers' sizes for varying columns."""
    snapshot = reader.snapshot
    decoded = np.maximum(_GUESS_FACTOR * snapshot.row_group_bytes, snapshot.row_group_unencoded_bytes)
    ragged = (("", float((decoded / np.maximum(snapshot.row_group_rows, 1)).max(initial=0.0))),)
    return row_sizes(reader, counts, processes=processes, decodes_windows=decodes_windows, ragged=ragged)


def sampled_sizes(
    reader: RowGroupReader,
    counts: IntArray,
    *,
    processes: bool,
    skips: bool,
    decodes_windows: bool = False,
) -> RowSizes:
    """Return the bytes of a row; those of columns of varying width are measured on a sample.

    Args:
        reader: Provides the row groups, and reads the sample: the first rows of the row group with most bytes.
        counts: int64 ``[row groups]``, rows of each that pass the filter; not all are 0.
        processes, decodes_windows: As in `row_sizes`.
        skips: Whether a row group that cannot be read is skipped for the next smaller one.
    """
    snapshot = reader.snapshot
    with nullcontext() if snapshot.remote is None else snapshot.remote.opened():
        sizes = _telling_sizes(snapshot, counts)
        largest, sample = _sample_of_largest(reader, counts, sizes, skips=skips)
        density = sizes / np.maximum(snapshot.row_group_rows, 1)
        mean, of_largest = float(np.average(density, weights=counts)), float(density[largest.index])
        widths, most = _widths(reader, counts, largest, sample)
        dense = largest
        is_dense = (density >= mean) & (counts > 0)
        if mean > TOLERATED * of_largest:
            dense, other = _sample_of_largest(reader, np.where(is_dense, counts, 0), sizes, skips=skips)
            share = (mean - of_largest) / (float(density[dense.index]) - of_largest)
            of_dense, most_of_dense = _widths(reader, counts, dense, other)
            between = {name: width + share * (of_dense[name] - width) for name, width in widths.items()}
            widths = _unless_tolerated(widths, between)
            most = max(most, most_of_dense)
    scale = min(1.0, max(0.25, mean / of_largest)) if of_largest > 0 else 1.0
    varying = [column for column in reader.columns if column.row_bytes is None]
    ragged = tuple((name, width * scale) for name, width in flat_widths(varying, widths, sample).items())
    return row_sizes(
        reader,
        counts,
        processes=processes,
        decodes_windows=decodes_windows,
        ragged=ragged,
        sampled_rows=len(sample),
        extra=max(0.0, most - sum(nbytes for _, nbytes in ragged)),
        dense=(dense, np.count_nonzero(is_dense) / np.count_nonzero(counts)),
        reads_headers=True,
    )


def _telling_sizes(snapshot: Snapshot, counts: IntArray) -> IntArray:
    """Return the encoded bytes of row groups; without dictionaries, if those hide a row group of long words.

    Encoded bytes are the first choice, because all writers state them, and the order follows from the sample.
    """
    encoded = np.where(counts > 0, snapshot.row_group_bytes, 0)
    unencoded = np.where(counts > 0, snapshot.row_group_unencoded_bytes, 0)
    is_hidden = unencoded.max() > TOLERATED * unencoded[np.argmax(encoded)]
    return snapshot.row_group_unencoded_bytes if is_hidden else snapshot.row_group_bytes


def _sample_of_largest(
    reader: RowGroupReader, counts: IntArray, sizes: IntArray, *, skips: bool
) -> tuple[RowGroupRef, pa.Table]:
    by_size = np.argsort(np.where(counts > 0, -sizes, 1), kind="stable")
    for index in by_size[: int(np.count_nonzero(counts))].tolist():
        row_group = reader.snapshot.row_group(index)
        try:
            return row_group, _sample(reader, row_group)
        except (DataError, SourceError) as error:
            if not skips or not is_skippable(error):
                raise
    return reader.snapshot.row_group(int(by_size[0])), reader.empty_table()


def _widths(
    reader: RowGroupReader, counts: IntArray, row_group: RowGroupRef, sample: pa.Table
) -> tuple[dict[str, float], float]:
    """Return the bytes of a row of each varying column of a row group, and the bytes of its longest rows.

    If rows are sorted by length, the first ones are short. The footer then shows more: the number of values in lists,
    and for text and bytes the encoded size (they take no less memory decoded) or, if the writer states it, the size
    without dictionaries. The longest rows are taken for twice as long as the average, as if lengths grew evenly.
    """
    columns = [c for c in reader.columns if c.row_bytes is None]
    sampled = {c.name: sample.column(c.name).nbytes / max(len(sample), 1) for c in columns}
    if len(sample) == row_group.rows or counts[row_group.index] < row_group.rows:
        return sampled, sum(sampled.values())
    footer = reader.snapshot.footers.get(row_group.file_number)
    stored = {route.source.name: route.stored for route in reader.routes(row_group)}
    stated: dict[str, float] = {}
    for column in columns:
        leaves = selected(footer.names, [stored.get(column.name, "")]) if column.image is None else []
        nbytes = sum(_least_decoded(footer.chunk(row_group.number, n), column, row_group) for n in leaves)
        stated[column.name] = max(sampled[column.name], nbytes / row_group.rows)
    if _unless_tolerated(sampled, stated) is sampled:
        return sampled, sum(sampled.values())
    return stated, 2 * sum(stated.values())


def _least_decoded(chunk: ColumnChunk, column: Column, row_group: RowGroupRef) -> int:
    """Return a lower bound, by the footer, for the decoded bytes of a column chunk."""
    while column.item is not None:
        column = column.item
    if column.kind in ("text", "bytes"):
        return max(min(chunk.encoded_bytes, row_group.encoded_bytes), chunk.unencoded_bytes, 0)
    return max(0, chunk.values) * (0 if column.dtype is None else column.dtype.itemsize)


def _unless_tolerated(widths: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    """Return `others` if they exceed `widths` by more than the tolerance; else `widths`."""
    return others if sum(others.values()) > TOLERATED * sum(widths.values()) else widths


def _sample(reader: RowGroupReader, row_group: RowGroupRef) -> pa.Table:
    stream = reader.stream(row_group, 256)
    tables: list[pa.Table] = []
    try:
        for table in stream:
            tables.append(table)
            if sum(map(len, tables)) >= SAMPLE_ROWS or sum(t.nbytes for t in tables) >= SAMPLE_BYTES:
                break
    finally:
        stream.close()  # type: ignore[attr-defined]
    return pa.concat_tables(tables)


def _cursor_bytes(snapshot: Snapshot, row_group: RowGroupRef, leaves: Sequence[int]) -> int:
    """Estimate the bytes of an open cursor: for each column a read buffer, a page, and the decompressed dictionary."""
    footer = snapshot.footers.get(row_group.file_number)
    total, rows = 0, max(row_group.rows, 1)
    for number in leaves:
        chunk = footer.chunk(row_group.number, number)
        encoded = min(max(0, chunk.encoded_bytes), row_group.encoded_bytes)
        page = _page_bytes(encoded, rows)
        dictionary = chunk.data_at - chunk.start
        page *= 1 if chunk.codec_name == "UNCOMPRESSED" else 2  # compressed and decompressed
        total += min(BUFFER_BYTES, encoded) + page
        # Writers end dictionaries at about 1 MiB, except those of Arrow's dictionary type, which Arrow decodes.
        total += min(3 * dictionary // 2, 2**20) if dictionary < 2 * 2**20 else 4 * dictionary
    return total


def _page_bytes(encoded: int, rows: int, most: int = 2**20) -> int:
    """Writers end pages at 20,000 rows or 1 MiB, whichever comes first; Arrow checks this only every 1,024 rows."""
    return min(encoded, max(min(most, encoded * 20_000 // rows), encoded * 1024 // rows))


def _unplanned_bytes(snapshot: Snapshot, row_group: RowGroupRef, leaves: Sequence[int]) -> int:
    """Return the bytes that text and bytes in an open cursor take beyond `_cursor_bytes`.

    Arrow ends a page at the first multiple of 1,024 rows that has 1 MiB, so a page may have nearly 2 MiB. The page
    whose rows are being copied, and one for reuse, are held in addition to the current page.
    """
    footer = snapshot.footers.get(row_group.file_number)
    total, rows = 0, max(row_group.rows, 1)
    for number in leaves:
        chunk = footer.chunk(row_group.number, number)
        if footer.schema.leaves[number].physical_type != "BYTE_ARRAY":
            continue
        encoded = min(max(0, chunk.encoded_bytes), row_group.encoded_bytes)
        step = max(1, encoded * 1024 // rows)
        page = _page_bytes(encoded, rows, -(-(2**20) // step) * step)
        held = 2 if chunk.codec_name == "UNCOMPRESSED" else 3
        total += held * page - (held - 1) * _page_bytes(encoded, rows)
    return total


def _large_page_bytes(reader: RowGroupReader, row_group: RowGroupRef, leaves: Sequence[int]) -> int:
    """Return the bytes that large pages in an open cursor take beyond `_cursor_bytes`.

    A page is large if it has more than 2 MiB, by the header of each column's first data page: DuckDB ends pages at 100
    MiB. Headers of remote files are not read, because each takes a request.

    Raises:
        SourceError: the system cannot read the file.
    """
    snapshot, file, rows = reader.snapshot, row_group.file, max(row_group.rows, 1)
    footer = snapshot.footers.get(row_group.file_number)
    chunks = []
    for number in leaves:
        chunk = footer.chunk(row_group.number, number)
        if min(chunk.encoded_bytes, row_group.encoded_bytes) > _USUAL_PAGE_BYTES:
            chunks.append((chunk, footer.schema.leaves[number].physical_type == "BYTE_ARRAY"))
    if snapshot.remote is not None or not chunks:
        return 0
    total = 0
    try:
        with snapshot.filesystem.open_input_file(file.path) as opened:
            for chunk, is_text in chunks:
                is_inside = 0 <= chunk.data_at < file.size_bytes  # not if the footer is damaged
                header = header_at(partial(_peek, opened), chunk.data_at, file.size_bytes) if is_inside else None
                if header is not None and _USUAL_PAGE_BYTES < header.plain_bytes <= chunk.encoded_bytes:
                    page = header.plain_bytes
                    counted = _page_bytes(min(chunk.encoded_bytes, row_group.encoded_bytes), rows)
                    if chunk.codec_name != "UNCOMPRESSED":
                        page, counted = page + header.page_bytes, 2 * counted
                    # Text and bytes: `_unplanned_bytes` counts pages of this size.
                    total += max(0, page - (max(counted, _USUAL_PAGE_BYTES) if is_text else counted))
    except OSError as error:
        failure = reader.explained(row_group, (), error)
        if not is_skippable(failure):  # else reading the row group raises it, or skips the row group
            raise failure from error
    return total


def _peek(opened: pa.NativeFile, at: int, nbytes: int) -> bytes:
    opened.seek(at)
    data: bytes = opened.read(nbytes)
    return data
