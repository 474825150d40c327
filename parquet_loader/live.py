"""Sources that change between epochs: each epoch sees one immutable snapshot, and says what it needs no longer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np

from parquet_loader.plan import Plan
from parquet_loader.snapshot import Snapshot
from parquet_loader.types import IntArray


@dataclass(frozen=True, slots=True)
class Growth:
    """How a source changed since the epoch before; before the first there was nothing.

    Attributes:
        new_files, new_rows, new_bytes: What has come.
        gone_files, gone_rows: What has left.
    """

    new_files: int = 0
    new_rows: int = 0
    new_bytes: int = 0
    gone_files: int = 0
    gone_rows: int = 0

    def __str__(self) -> str:
        return f"+{self.new_rows} rows in {self.new_files} files, -{self.gone_rows} rows in {self.gone_files} files"


class EpochFiles(Protocol):
    """What one epoch reads; all of it stays readable until it is said to be delivered, or `close`."""

    @property
    def identity(self) -> str:
        """Names the snapshot: equal where it is the same."""

    @property
    def snapshot(self) -> Snapshot:
        """The files."""

    @property
    def growth(self) -> Growth:
        """How they differ from the last epoch's."""

    def delivered(self, files: IntArray) -> None:
        """Let go of files, by their position in the snapshot."""

    def close(self) -> None:
        """Let go of all of them; idempotent, waits for nothing, and is called by finalisers too."""


class Follower(Protocol):
    """One loader's view of a source that changes."""

    def begin_epoch(self, epoch: int) -> EpochFiles:
        """Look at the source again and return what there is to read."""


@runtime_checkable
class LiveSource(Protocol):
    """A source that a loader examines anew at each epoch's start."""

    def follow(self) -> Follower:
        """Return a view for one loader."""


class Deliveries:
    """Tells a source which files an epoch is done with. Used by the caller's thread; `close` by any.

    Args:
        files: What the epoch reads.
        plan: Its order.
    """

    def __init__(self, files: EpochFiles, plan: Plan) -> None:
        self._files = files
        done = batches_until_done(plan, files.snapshot.row_group_file, len(files.snapshot.files))
        self._order = np.argsort(done, kind="stable")
        self._done = done[self._order]
        self._released = 0

    def after(self, batches: int) -> None:
        """So many batches of the epoch are delivered."""
        if self._released < len(self._done) and self._done[self._released] <= batches:
            end = int(np.searchsorted(self._done, batches, side="right"))
            self._files.delivered(self._order[self._released : end])
            self._released = end

    def close(self) -> None:
        """The epoch has ended."""
        self._files.close()


def batches_until_done(plan: Plan, row_group_file: IntArray, files: int) -> IntArray:
    """Return for each file how many batches are delivered before nothing of it has to be read again, int64 ``[files]``.

    A window's rows are in memory once it is read: those that fill no batch are carried into the next.

    Args:
        plan: The epoch.
        row_group_file: int32 ``[row groups]``, as in `Snapshot`.
        files: Number of files.
    """
    done = np.zeros(files, np.int64)
    if not plan.windows:
        return done
    ends = [part.window_ends(plan.begins) for part in plan.parts]
    batches = np.minimum(np.sum(ends, axis=0)[1:] // plan.batch_size, plan.batches)
    batches[-1] = plan.batches
    for part, end in zip(plan.parts, ends, strict=True):
        if not part.rows:
            continue
        exact = end.astype(object) if part.rows >= 2**31 else end  # products of two numbers of rows
        for low, high in pairwise(part.lanes):
            first, stop = part.first + low, part.first + high
            groups = slice(np.searchsorted(plan.begins, first, "right") - 1, np.searchsorted(plan.begins, stop, "left"))
            last = np.minimum(plan.begins[1:][groups], stop) - 1 - part.first
            read = (low + high * exact // part.rows - low * exact // part.rows).astype(np.int64)
            window = np.searchsorted(read, last, side="right") - 1
            np.maximum.at(done, row_group_file[plan.row_group[groups]], batches[window])
    return done
