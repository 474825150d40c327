"""Protocols of sources that change between epochs: an epoch reads one snapshot, and releases files after their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from parquet_loader.common import IntArray, format_count
from parquet_loader.plan import Plan, batches_until_done, counted_here
from parquet_loader.source import Snapshot


@dataclass(frozen=True, slots=True)
class SourceChange:
    """How a source changed since the previous epoch; before the first epoch it counts as empty.

    Attributes:
        new_files, new_rows, new_bytes: Files that were added, their rows and bytes.
        gone_files, gone_rows: Files that were removed, and their rows; in a table, also rows deleted in other files.
        version: The version of a table that was read.
    """

    new_files: int = 0
    new_rows: int = 0
    new_bytes: int = 0
    gone_files: int = 0
    gone_rows: int = 0
    version: str | None = None

    def __str__(self) -> str:
        version = "" if self.version is None else f"{self.version}: "
        new = f"+{format_count(self.new_rows, 'row')} in {format_count(self.new_files, 'file')}"
        return f"{version}{new}, -{format_count(self.gone_rows, 'row')} in {format_count(self.gone_files, 'file')}"


class EpochFiles(Protocol):
    """The files of one epoch; each stays readable until `delivered`, `release` or `close`."""

    def dump(self) -> bytes:
        """Return the snapshot and its list of files as bytes, for the other ranks."""

    def keep(self, about: bytes) -> str:
        """Let the source keep the list of files, so that `Follower.recall` finds it; return its name.

        Idempotent; also works after `close`. If the source is read-only, only the name is computed.

        Args:
            about: The loader's data about these files; stored unchanged, and part of the list's identity.
        """

    @property
    def about(self) -> bytes | None:
        """The data given to `keep`; None if the files are not from a kept list."""

    @property
    def gone(self) -> IntArray:
        """Files of a kept list that no longer exist, by their position in the snapshot."""

    @property
    def identity(self) -> str:
        """Name of the snapshot; equal names mean the same snapshot."""

    @property
    def snapshot(self) -> Snapshot:
        """The files."""

    @property
    def growth(self) -> SourceChange:
        """The change since the last epoch."""

    def delivered(self, files: IntArray) -> None:
        """Release files, int64 ``[n]`` positions in the snapshot, and count them as delivered."""

    def release(self, files: IntArray) -> None:
        """Release files, int64 ``[n]``, that this epoch does not need or whose delivery another rank counts."""

    def close(self) -> None:
        """Release all files; idempotent, never blocks, and may be called by finalisers."""


class Follower(Protocol):
    """One loader's view of a source that changes."""

    def begin_epoch(self, epoch: int) -> EpochFiles:
        """List the source, and return its files, leased."""

    def take_over(self, data: bytes) -> EpochFiles:
        """Return the files that another rank dumped, leased."""

    def recall(self, name: str) -> EpochFiles | None:
        """Return the files of a kept list that still exist, leased; None if there is no such list."""


@runtime_checkable
class LiveSource(Protocol):
    """A source that a loader lists at each epoch's start."""

    def follow(self) -> Follower:
        """Return a view for one loader."""


class Deliveries:
    """Releases the files that an epoch no longer needs. Used by the caller's thread; any thread may call `close`.

    Args:
        files: The files that the epoch reads.
        plan: The plan of the epoch.
        first_batch: Number of the first batch delivered.
    """

    def __init__(self, files: EpochFiles, plan: Plan, first_batch: int) -> None:
        self._files = files
        snapshot = files.snapshot
        done = batches_until_done(plan, snapshot.row_group_file, len(snapshot.files))
        self._counts = counted_here(plan, snapshot.row_group_file, len(snapshot.files))
        self._order = np.argsort(done, kind="stable")
        self._done = done[self._order]
        self._released = 0
        if first_batch:
            files.release(self._next(first_batch))

    def after(self, batches: int) -> None:
        """Release the files that are complete after this number of batches of the epoch."""
        if self._released < len(self._done) and self._done[self._released] <= batches:
            done = self._next(batches)
            self._files.delivered(done[self._counts[done]])
            self._files.release(done[~self._counts[done]])

    def close(self) -> None:
        """Release all files, at the end of the epoch."""
        self._files.close()

    def _next(self, batches: int) -> IntArray:
        """Return the files that became complete since the last call."""
        begin = self._released
        self._released = int(np.searchsorted(self._done, batches, side="right"))
        return self._order[begin : self._released]
