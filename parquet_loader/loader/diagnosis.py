"""Adds figures of storage and shuffling, and advice, to an epoch's figures."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import PROBLEM, IntArray, ReadOptions, available_processors, is_local
from parquet_loader.dataset import LARGEST_DEFAULT_WINDOW_BYTES, Dataset
from parquet_loader.decode import decodable_chunks, is_known_codec, is_known_type, page_header
from parquet_loader.errors import ParquetLoaderError
from parquet_loader.loader.advice import findings_of
from parquet_loader.loader.epochs.epoch_figures import EpochFigures
from parquet_loader.loader.mixing import MOST_COLUMNS, MixingFigures, SortingFigures, overlap_share
from parquet_loader.loader.stats import CodecFigures, LoaderStats, ShuffleFigures, SlowColumns, StorageFigures
from parquet_loader.plan import MixingScore, Plan, mixing_score
from parquet_loader.source import Metadata, MetadataError, RowGroupRef, Snapshot, bounds_of, selected

# Sample sizes for the figures of a data set.
SAMPLED_ROW_GROUPS = 8
SAMPLED_WINDOWS = 16
# Most and fewest row groups whose bounds are compared, and the largest share of overlapping pairs in sorted data.
COMPARED_ROW_GROUPS, FEWEST_COMPARED, SORTED_SHARE = 64, 8, 0.2
# Sizes of the pages that are decompressed to measure the rate.
SMALLEST_PAGE_BYTES = 16 * 1024
LARGEST_PAGE_BYTES = 4 * 2**20


def diagnosed(
    stats: LoaderStats,
    dataset: Dataset,
    figures: EpochFigures,
    planned: IntArray,
    options: ReadOptions,
    *,
    isolation: str,
    transforms: bool,
    chooses_window: bool,
) -> LoaderStats:
    """Return the figures of an epoch with those of storage and shuffling, and with advice.

    Args:
        stats: The epoch's own figures.
        dataset: Its data set.
        figures: Has the epoch's plan; keeps the results of this function for the next call.
        planned: int64 ``[row groups]``, the rows of each row group in the plan.
        options: How the files are read.
        isolation, transforms: As in `LoaderStats`.
        chooses_window: Whether the loader chose `window_rows` by itself.
    """
    plan, remote = figures.plan, dataset.snapshot.remote
    if figures.storage is None and stats.is_judged:
        with suppress(ParquetLoaderError, OSError, ValueError):  # deleted files have no figures
            figures.storage = storage_figures(dataset, options)
    if not figures.knows_sorting and plan.shuffle and plan.windows > 1:
        figures.knows_sorting = True
        figures.score = mixing_score(plan, planned)
        with suppress(ParquetLoaderError, OSError, ValueError):
            figures.sorting = sorting_of(dataset)
    shuffling = shuffle_figures(
        dataset, plan, figures.mixing.worst(), figures.sorting, figures.score, chooses_window=chooses_window
    )
    complete = replace(
        stats,
        isolation=isolation,
        transforms=transforms,
        processors=available_processors(),
        kernels=PROBLEM,
        max_requests=None if remote is None else remote.options.max_requests,
        shuffling=shuffling,
        storage=figures.storage,
    )
    return replace(complete, findings=findings_of(complete))


def shuffle_figures(
    dataset: Dataset,
    plan: Plan,
    mixing: MixingFigures | None,
    sorting: SortingFigures | None,
    score: MixingScore | None,
    *,
    chooses_window: bool,
) -> ShuffleFigures:
    """Return figures of an epoch's windows; reads no file."""
    counts = dataset.counts[dataset.counts > 0]
    windows = np.unique(np.linspace(0, max(0, plan.windows - 1), SAMPLED_WINDOWS).astype(int)) if plan.windows else ()
    sources = [len({slice_.row_group for slice_ in plan.slices(int(window))}) for window in windows]
    default_rows = LARGEST_DEFAULT_WINDOW_BYTES / max(dataset.sizing.row.decoded, 1)
    return ShuffleFigures(
        is_shuffled=plan.shuffle,
        batch_size=plan.batch_size,
        rows=plan.rows,
        windows=plan.windows,
        window_rows=plan.largest_window_rows,
        row_groups=len(counts),
        largest_row_group_rows=int(counts.max(initial=0)),
        row_groups_per_window=float(np.mean(sources)) if sources else 0.0,
        is_cut_by_memory=chooses_window and dataset.sizing.window_rows < 0.9 * min(default_rows, dataset.rows),
        measured=mixing,
        sorting=sorting,
        score=score,
    )


def sorting_of(dataset: Dataset) -> SortingFigures | None:
    """Return the column by which the data is sorted most, judged by bounds of row groups; None if there is none."""
    snapshot = dataset.snapshot
    with_rows = np.flatnonzero(dataset.counts > 0)
    if len(with_rows) < FEWEST_COMPARED:
        return None
    chosen = with_rows[np.unique(np.linspace(0, len(with_rows) - 1, COMPARED_ROW_GROUPS).astype(int))].tolist()
    bounds = defaultdict[str, list[tuple[Any, Any]]](list)
    numbers_rows = defaultdict[str, int](int)
    for row_group in map(snapshot.row_group, chosen):
        footer = _footer_in_memory(snapshot, row_group)
        if footer is None:
            return None
        stored = footer.schema.stored
        for leaf in selected(footer.names, dataset.reader.chunks.columns_read(row_group))[:MOST_COLUMNS]:
            path = footer.paths[leaf]
            if stored.get_field_index(path) < 0:
                continue  # inside a list or a struct, or one of several columns of this name
            with suppress(MetadataError):
                chunk, type_ = footer.check(row_group.number, leaf), stored.field(path).type
                found = bounds_of(footer, chunk, footer.schema.leaves[leaf], type_)
                if found is not None:
                    bounds[path].append(found)
                    is_number = isinstance(found[0], int) and found[1] - found[0] + 1 == chunk.values
                    numbers_rows[path] += is_number and chunk.values > 1
    shares = {}
    for path, pairs in bounds.items():
        if len(pairs) == len(chosen) and numbers_rows[path] < len(chosen):
            least, greatest = np.empty(len(pairs), object), np.empty(len(pairs), object)
            least[:], greatest[:] = zip(*pairs, strict=True)
            shares[path] = overlap_share(least, greatest)
    column = min(shares, key=lambda path: shares[path], default=None)
    return None if column is None or shares[column] > SORTED_SHARE else SortingFigures(column, shares[column])


def storage_figures(dataset: Dataset, options: ReadOptions) -> StorageFigures:
    """Return figures of the storage of columns, from a few footers and one decompressed page for each codec."""
    snapshot, chunks = dataset.snapshot, dataset.reader.chunks
    with_rows = np.flatnonzero(dataset.counts > 0)
    if not len(with_rows):
        return StorageFigures(dataset.sizing.row.decoded, 0)
    chosen = with_rows[np.unique(np.linspace(0, len(with_rows) - 1, SAMPLED_ROW_GROUPS).astype(int))].tolist()
    stored, encoded = defaultdict[str, int](int), defaultdict[str, int](int)
    columns, largest = defaultdict[str, set[str]](set), dict[str, tuple[int, str, int, int]]()
    slow, slow_bytes = defaultdict[str, dict[str, None]](dict), defaultdict[str, int](int)
    number_bytes, leaves_read = 0, 0
    for row_group in map(snapshot.row_group, chosen):
        footer = _footer_in_memory(snapshot, row_group)
        if footer is None:
            continue
        paths, names = footer.paths, chunks.columns_read(row_group)
        types = {field.name: field.type for field in row_group.schema}
        known = set(decodable_chunks(footer, row_group.number, names, row_group.schema).names)
        leaves = selected(footer.names, names)
        leaves_read = max(leaves_read, len(leaves))
        for leaf in leaves:
            try:
                chunk, path = footer.check(row_group.number, leaf), paths[leaf]
            except MetadataError:  # raised again when the column is read
                continue
            codec, size = chunk.codec_name.lower(), chunk.encoded_bytes
            stored[codec] += chunk.stored_bytes
            encoded[codec] += size
            columns[codec].add(path)
            if size > largest.get(codec, (0,))[0]:
                largest[codec] = (size, row_group.file.path, chunk.data_at, chunk.data_at + chunk.stored_bytes)
            if path not in types or not is_known_type(types[path]):
                continue
            number_bytes += size
            reason = ""
            if options.verify_checksums:
                reason = "options"
            elif path not in known and is_known_codec(codec):
                reason = "encoding"
            if reason:
                slow[reason][path] = None
                slow_bytes[reason] += size
    total, total_stored = max(1, sum(encoded.values())), max(1, sum(stored.values()))
    is_here = is_local(snapshot.filesystem)
    return StorageFigures(
        row_bytes=dataset.sizing.row.decoded,
        columns=leaves_read,
        codecs=tuple(
            CodecFigures(
                codec,
                len(columns[codec]),
                nbytes / total_stored,
                encoded[codec] / max(1, nbytes),
                _decompression_rate(codec, *largest[codec][1:]) if is_here and codec in largest else None,
            )
            for codec, nbytes in sorted(stored.items(), key=lambda item: -item[1])
        ),
        slow=tuple(
            SlowColumns(reason, tuple(names), slow_bytes[reason] / total)
            for reason, names in sorted(slow.items(), key=lambda item: -slow_bytes[item[0]])
        ),
        number_share=number_bytes / total,
    )


def _footer_in_memory(snapshot: Snapshot, row_group: RowGroupRef) -> Metadata | None:
    """Return the footer of a row group's file; None if it is remote and not in memory."""
    get = snapshot.footers.get if snapshot.remote is None else snapshot.footers.cached
    return get(row_group.file_number)


def _decompression_rate(codec: str, path: str, start: int, stop: int) -> float | None:
    """Return the bytes per second that one thread decompresses, measured on the page at `start`; None if unknown."""
    if codec == "uncompressed":
        return None
    with suppress(OSError, ValueError, NotImplementedError, pa.ArrowException):
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(min(stop - start, LARGEST_PAGE_BYTES))
        header = page_header(data)
        plain_bytes = header.plain_bytes - header.levels_bytes
        body = memoryview(data)[header.nbytes + header.levels_bytes : header.nbytes + header.page_bytes]
        if not SMALLEST_PAGE_BYTES <= plain_bytes <= LARGEST_PAGE_BYTES:
            return None
        took = []
        for _ in range(3):
            began = time.thread_time()
            pa.Codec(codec).decompress(body, plain_bytes)
            took.append(time.thread_time() - began)
        return plain_bytes / max(min(took), 1e-6)
    return None
