"""`BatchLineage`: which documents a batch of sequences comes from, computed without reading."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.loader.tokens.token_cache import TextOrigin
from parquet_loader.plan import Plan
from parquet_loader.source import Snapshot


@dataclass(frozen=True, slots=True)
class BatchLineage:
    """The documents of one batch; all arrays have an element for each piece, in the order of ``seq_lens``.

    Attributes:
        paths: The file of each piece.
        row_groups: int64 ``[pieces]``: the row group in the file.
        rows: int64 ``[pieces]``: the row in the row group, counted among those that pass the filters.
        first_tokens: int64 ``[pieces]``: the first token in the document.
        tokens: int64 ``[pieces]``: the number of tokens.
        sequences: int64 ``[pieces]``: the row of the batch.
    """

    paths: list[str]
    row_groups: IntArray
    rows: IntArray
    first_tokens: IntArray
    tokens: IntArray
    sequences: IntArray


def lineage_of(packing: EpochPacking, batch: int, snapshot: Snapshot, origin: TextOrigin | None) -> BatchLineage:
    """Return the documents of a batch.

    Args:
        packing: The epoch.
        batch: The number of the batch.
        snapshot: The files with the tokens.
        origin: The origin of their rows, if they are cached; the lineage then names files of text.
    """
    parts, sequences = [], 0
    for first_sequence, high in packing.ranges_of(batch) if batch < packing.steps else []:
        low = first_sequence
        while low < high:
            window = packing.window_of(low)
            end, before = min(high, int(packing.begins[window + 1])), int(packing.begins[window])
            chosen = np.arange(low - before, end - before)
            some = packing.packed(window, packing.ordered_lengths(window)).taken(chosen)
            rows, _ = packing.rule.rows(some)
            sequence = np.repeat(np.arange(sequences, sequences + len(rows) - 1), np.diff(rows))
            parts.append((*_rows_of(packing.plan, window, some.document), some.first, some.tokens, sequence))
            low, sequences = end, sequences + len(rows) - 1
    joined = [np.concatenate(arrays).astype(np.int64) for arrays in zip(*parts, strict=True)] if parts else []
    group, row, first, tokens, sequence = joined or [np.zeros(0, np.int64)] * 5
    if origin is not None:
        snapshot = origin.rows.snapshot
        group, row = origin.rows.locate(packing.lengths.begins[group] + row)
    paths = [snapshot.files[int(snapshot.row_group_file[g])].path for g in group]
    return BatchLineage(paths, snapshot.row_group_number[group].astype(np.int64), row, first, tokens, sequence)


def _rows_of(plan: Plan, window: int, documents: npt.NDArray[np.int32]) -> tuple[IntArray, IntArray]:
    """Return the row group of documents of a window, and the row there among those that pass the filters."""
    order, slices = plan.order(window), plan.slices(window)
    read = documents if order is None else order[documents]
    starts = np.cumsum([0, *(s.rows for s in slices)])
    number = np.searchsorted(starts, read, side="right") - 1
    group: IntArray = np.array([s.row_group for s in slices])[number]
    row: IntArray = read - starts[number] + np.array([s.start for s in slices])[number]
    return group, row
