"""`EpochPlan`: figures of the next epoch, computed from its plan before anything is read."""

from __future__ import annotations

from dataclasses import dataclass

from parquet_loader.dataset import Dataset
from parquet_loader.plan import MixingScore, Plan, mixing_score


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Figures of an epoch, known before anything is read.

    Attributes:
        epoch: Number of the epoch.
        rows: Rows delivered.
        steps: Batches delivered.
        windows: Number of windows.
        window_rows: Most rows of a window.
        open_row_groups: Row groups with a slice in each window; 1 if windows consist of whole row groups.
        row_groups: Row groups read.
        requests: Column chunks read, before adjacent ones are merged into one request.
        predicted_peak_bytes: The most memory that the loader will hold.
        mixing: How well the epoch would mix rows that are sorted in the files; None without `shuffle`.
    """

    epoch: int
    rows: int
    steps: int
    windows: int
    window_rows: int
    open_row_groups: int
    row_groups: int
    requests: int
    predicted_peak_bytes: int
    mixing: MixingScore | None = None


def figures_of_plan(plan: Plan, dataset: Dataset, num_threads: int) -> EpochPlan:
    """Return the figures of a plan that `num_threads` threads read."""
    sizing, snapshot = dataset.sizing, dataset.snapshot
    groups = plan.row_groups_read
    window = plan.largest_window_rows
    in_windows = sizing.row.decoded + sizing.row.gathered + (sizing.row.decoded if plan.windows > 1 else 0)
    largest = int(dataset.counts.max(initial=0))
    whole = min(largest, sizing.whole_rows)
    reads = min(sizing.reads_bytes, sizing.row_group_bytes(whole) * num_threads)
    if sizing.open_row_groups > 1 or largest > whole:
        reads += sizing.cursor_bytes * sizing.open_row_groups
    footers = snapshot.footers.held_bytes
    return EpochPlan(
        epoch=plan.epoch,
        rows=min(plan.batches * plan.batch_size, plan.delivered_rows),
        steps=plan.batches,
        windows=plan.windows,
        window_rows=window,
        open_row_groups=sizing.open_row_groups,
        row_groups=len(groups),
        requests=dataset.reader.chunks.column_chunks(groups),
        predicted_peak_bytes=int(window * in_windows) + reads + sizing.batches_bytes + footers,
        mixing=mixing_score(plan, dataset.counts),
    )
