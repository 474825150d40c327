"""Leases: the files that readers still need.

A lease is a file under ``readers/``: a line of JSON, the names of the files, and at its end one byte for each file. The
byte is 0 as long as the file is needed. A reader sets it to 1 + the number of times that the file was delivered, in
place and without a lock. While the lease's own lock is held, files whose byte is 0 are not evicted. The system releases
that lock when the process ends.

Leases are made and removed under the store's lock, so no file is evicted between a listing and its lease.

A list that `SampleStore.hold` keeps is a file under ``holds/`` instead, and needs no process.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parquet_loader.common import IntArray, LockedFile, is_locked
from parquet_loader.store.files.file_names import new_identity
from parquet_loader.store.files.paths import StorePaths, names_in, share_record

_MOST_TIMES = 254


class FileLease:
    """This process's lease on the files of one epoch. Used by one thread at a time.

    Args:
        paths: The paths of the store.
        names: The files; all are needed at first.
        about: Facts about the reader, for status reports.

    Raises:
        OSError: The file system refuses (a full disk).
    """

    def __init__(self, paths: StorePaths, names: Sequence[str], about: dict[str, Any]) -> None:
        about = {"files": len(names), "pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), **about}
        text = "\n".join([json.dumps(about), *names, ""]).encode("utf-8")
        self._file = LockedFile(os.path.join(paths.readers, new_identity()), text + bytes(len(names)))
        share_record(self._file.path)
        self._offset = len(text)
        self._times = np.zeros(len(names), np.int64)
        self._positions = np.arange(len(names))
        self._unwritten: list[int] = []

    @property
    def is_here(self) -> bool:
        """Whether this process holds the lease."""
        return self._file.is_here

    @property
    def needed(self) -> int:
        """Number of files still needed."""
        return int((self._times == 0).sum()) if self.is_here else 0

    def keep_only(self, files: Sequence[int]) -> None:
        """Release all other files as not delivered; from now on, positions refer to `files`."""
        self.release(sorted(set(range(len(self._times))) - set(files)), times=0)
        self._positions = np.asarray(files, np.int64)

    def release(self, files: Iterable[int], times: int = 1) -> None:
        """Release files, given by their positions, as delivered `times` times.

        If the file system refuses, they stay leased for now: each further call, and the end of the lease, tries again.
        Deliveries that cannot be written until then are not counted.
        """
        for position in files:
            number = int(self._positions[position])
            if not self._times[number]:
                self._times[number] = 1 + min(times, _MOST_TIMES)
                self._unwritten.append(number)
        self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while self._unwritten:
                number = self._unwritten[-1]
                self._file.write(bytes([int(self._times[number])]), self._offset + number)
                self._unwritten.pop()

    def drop(self) -> None:
        """End the lease without the store's lock; the next process that finds it counts the deliveries."""
        self._write()
        self._file.close()


@dataclass(frozen=True, slots=True)
class LeaseContent:
    """The content of a lease's file.

    Attributes:
        about: As given by its reader, with ``files``, ``pid``, ``host`` and ``since`` (seconds since 1970).
        names: The files.
        times: int64 ``[files]``: 0 for needed, else 1 + times delivered.
    """

    about: dict[str, Any]
    names: tuple[str, ...]
    times: IntArray

    def delivered(self) -> dict[str, int]:
        """Return how often each delivered file was delivered, by name."""
        return {self.names[i]: int(self.times[i]) - 1 for i in np.flatnonzero(self.times > 1)}


def read_lease(path: str) -> LeaseContent | None:
    """Return the content of a lease; None if it is gone or incomplete."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        first, _, rest = data.partition(b"\n")
        about = json.loads(first)
        count = int(about["files"])
        end = len(data) - count
        names = rest[: len(rest) - count].decode("utf-8").splitlines()
        if len(names) != count or data[end - 1 : end] != b"\n":
            return None
        return LeaseContent(about, tuple(names), np.frombuffer(data, np.uint8, offset=end).astype(np.int64))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # other errors are raised, because files that may be leased must not be evicted


@dataclass(frozen=True, slots=True)
class NeededFiles:
    """The files that must not be evicted, at one moment; test with ``name in needed``."""

    leases: tuple[tuple[dict[str, int], IntArray], ...]
    pinned: Mapping[str, int]

    def __contains__(self, name: str) -> bool:
        return name in self.pinned or any(
            position is not None and not times[position]
            for position, times in ((positions.get(name), times) for positions, times in self.leases)
        )


class LeaseTable:
    """Finds the files that must not be evicted. Used by one thread at a time.

    Only the last bytes of a lease change, so its names are parsed once.
    """

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._parsed: dict[str, dict[str, int]] = {}
        self._pinned: dict[str, tuple[int, frozenset[str]]] = {}

    def needed(self) -> NeededFiles:
        """Return the files that live readers need, and those that `hold` keeps.

        Call it under the store's lock; else it may miss a reader that begins meanwhile.
        """
        leases: list[tuple[dict[str, int], IntArray]] = []
        present = names_in(self._paths.readers)
        for gone in self._parsed.keys() - set(present):
            del self._parsed[gone]
        for lease in present:
            path = os.path.join(self._paths.readers, lease)
            if is_locked(path):
                leases.extend(self._of_lease(lease, path))
        return NeededFiles(tuple(leases), self.pinned())

    def pinned(self) -> Mapping[str, int]:
        """Return the files that `hold` keeps, and the number of holds of each."""
        present = names_in(self._paths.holds)
        for gone in self._pinned.keys() - set(present):
            del self._pinned[gone]
        for name in present:
            path = os.path.join(self._paths.holds, name)
            with contextlib.suppress(FileNotFoundError):
                changed = os.stat(path).st_mtime_ns
                if self._pinned.get(name, (None,))[0] != changed:
                    with open(path, encoding="utf-8") as file:
                        self._pinned[name] = (changed, frozenset(file.read().splitlines()[1:]))
        return Counter(name for _, names in self._pinned.values() for name in names)

    def _of_lease(self, lease: str, path: str) -> list[tuple[dict[str, int], IntArray]]:
        if lease not in self._parsed:
            content = read_lease(path)
            if content is None:
                return []
            self._parsed[lease] = {name: position for position, name in enumerate(content.names)}
        positions = self._parsed[lease]
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            file.seek(-len(positions), os.SEEK_END)
            times = np.frombuffer(file.read(len(positions)), np.uint8)
            if len(times) == len(positions):
                return [(positions, times.astype(np.int64))]
        return []
