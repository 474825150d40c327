"""A table, or a branch of the Hub, that each epoch reads at its newest version."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from parquet_loader.common import IntArray, RemoteOptions
from parquet_loader.errors import RemoteError, SourceError
from parquet_loader.loader.live_source import SourceChange
from parquet_loader.source import Selection, Snapshot, VersionedSource, dump_snapshot, load_snapshot, open_snapshot


class LiveTable:
    """A `LiveSource` over a table. Any thread may use it. The lock guards the last snapshot; no I/O runs under it.

    No files are leased: a version's files exist until the table's own cleaning removes them.

    Args:
        source: The table, with ``follow=True``.
        filesystem: The caller's ``filesystem=``, or None.
        remote: How remote files are fetched.
        selection: Which of the files are read.
    """

    def __init__(
        self, source: VersionedSource, filesystem: Any, remote: RemoteOptions | None, selection: Selection
    ) -> None:
        self.source = source
        self.filesystem = filesystem
        self.selection = selection
        self.remote = remote or RemoteOptions()
        self._lock = Lock()
        self._known: Snapshot | None = None

    def follow(self) -> TableFollower:
        """Return a view for one loader."""
        return TableFollower(self)

    def open(self, version: int | str | None = None) -> Snapshot:
        """Return a version of the table, or the newest one; known files are not read again.

        Raises:
            SourceError: See `open_snapshot`.
        """
        with self._lock:
            known = self._known
        source = self.source if version is None else self.source.at(version)
        found = open_snapshot(source, self.filesystem, remote=self.remote, known=known, selection=self.selection)
        if known is not None and known.table == found.table and known.numbers_of(found).min(initial=0) >= 0:
            found = known
        with self._lock:
            self._known = found
        return found


class TableFollower:
    """One loader's view of a table; see `Follower`. Used by one thread at a time."""

    def __init__(self, table: LiveTable) -> None:
        self._table = table
        self._last: Snapshot | None = None

    def begin_epoch(self, epoch: int) -> TableFiles:  # noqa: ARG002 (a table knows no epochs)
        """Return the newest version."""
        return self._taken(self._table.open())

    def take_over(self, data: bytes) -> TableFiles:
        """Return the version that another rank dumped."""
        home = self._table.source.filesystem_of(self._table.filesystem)
        return self._taken(load_snapshot(data, home, self._table.remote))

    def recall(self, name: str) -> TableFiles | None:
        """Return the version that a state names; None if the version or one of its files is gone."""
        format_, _, version = name.rpartition(" version ")
        if not format_:
            return None
        try:
            return self._taken(self._table.open(int(version) if version.lstrip("-").isdigit() else version))
        except RemoteError:
            raise
        except SourceError:
            return None

    def _taken(self, snapshot: Snapshot) -> TableFiles:
        before, self._last = self._last, snapshot
        return TableFiles(snapshot, change_between(before, snapshot))


class TableFiles:
    """One version of a table as an epoch reads it; see `EpochFiles`. Immutable."""

    about: bytes | None = None
    gone: IntArray = np.empty(0, np.int64)

    def __init__(self, snapshot: Snapshot, growth: SourceChange) -> None:
        self.snapshot = snapshot
        self.growth = growth

    @property
    def identity(self) -> str:
        """The name of the version, which is all that a state needs."""
        assert self.snapshot.table is not None
        return self.snapshot.table.name

    def dump(self) -> bytes:
        """Return the snapshot, for the other ranks."""
        return dump_snapshot(self.snapshot)

    def keep(self, about: bytes) -> str:  # noqa: ARG002 (the table keeps its versions)
        """Return the version's name."""
        return self.identity

    def delivered(self, files: IntArray) -> None:
        """Do nothing, because no files are leased."""

    def release(self, files: IntArray) -> None:
        """Do nothing, because no files are leased."""

    def close(self) -> None:
        """Do nothing, because no files are leased."""


def change_between(before: Snapshot | None, after: Snapshot) -> SourceChange:
    """Return how one version of a table differs from another; None stands for an empty table."""
    old = {} if before is None else _rows_of(before)
    new = _rows_of(after)
    sizes = {file.lasting_key: file.size_bytes for file in after.files}
    added = [key for key in new if key not in old]
    removed = [key for key in old if key not in new]
    changed = [new[key] - old[key] for key in new if key in old]
    return SourceChange(
        new_files=len(added),
        new_rows=sum(new[key] for key in added) + sum(rows for rows in changed if rows > 0),
        new_bytes=sum(sizes[key] for key in added),
        gone_files=len(removed),
        gone_rows=sum(old[key] for key in removed) - sum(rows for rows in changed if rows < 0),
        version=None if after.table is None else after.table.name,
    )


def _rows_of(snapshot: Snapshot) -> dict[tuple[str, str | None], int]:
    counts = np.bincount(snapshot.row_group_file, weights=snapshot.alive, minlength=len(snapshot.files))
    return dict(zip((file.lasting_key for file in snapshot.files), counts.astype(np.int64).tolist(), strict=True))
