"""Leases on cached row groups: one locked file for each running loader. The lock, and so the lease, ends with it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import struct
import time
import weakref

import numpy as np

from parquet_loader.common import Digests, LockedFile, is_locked, remove_file
from parquet_loader.read.cache.eviction import ReaderLease
from parquet_loader.read.cache.paths import CachePaths

_NAME = re.compile(r"[0-9a-f]{16}")
_HEAD = struct.Struct("<QII")


class HeldLease:
    """One loader's lease; ends with `release`, with this object, or with the process.

    Construct it with the cache's lock held, so that no other process mistakes the new file for that of a dead process.

    Args:
        paths: The paths of the cache.
        row_groups, columns: As in `ReaderLease`.
    """

    def __init__(self, paths: CachePaths, row_groups: Digests, columns: frozenset[int]) -> None:
        content = _HEAD.pack(time.time_ns(), len(columns), len(row_groups))
        content += b"".join(column.to_bytes(8, "little") for column in sorted(columns))
        content += row_groups.astype("<u8").tobytes()
        file = LockedFile(os.path.join(paths.readers, secrets.token_hex(8)), content)
        self._finalizer = weakref.finalize(self, _end, file)

    def release(self) -> None:
        """End the lease; idempotent."""
        self._finalizer()


def _end(file: LockedFile) -> None:
    if file.is_here:
        with contextlib.suppress(OSError):
            os.unlink(file.path)
        file.close()


def lease_bytes(row_groups: int, columns: int) -> int:
    """Return the bytes of a lease's file."""
    return _HEAD.size + 8 * (row_groups + columns)


def lease_sizes(paths: CachePaths) -> list[int]:
    """Return the bytes of each lease's file."""
    sizes: list[int] = []
    with os.scandir(paths.readers) as found:
        for item in found:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(item.stat(follow_symlinks=False).st_size)
    return sizes


def live_leases(paths: CachePaths) -> frozenset[str]:
    """Return the names of the leases of live processes. A lease never changes."""
    return frozenset(name for name in _names(paths) if is_locked(os.path.join(paths.readers, name)))


def _names(paths: CachePaths) -> list[str]:
    """Return the names of all leases; other files in the directory are ignored."""
    with contextlib.suppress(FileNotFoundError):
        return [name for name in os.listdir(paths.readers) if _NAME.fullmatch(name)]
    return []


def read_lease(paths: CachePaths, name: str) -> ReaderLease | None:
    """Return the content of a lease, or None if it is gone or damaged."""
    try:
        with open(os.path.join(paths.readers, name), "rb") as file:
            content = file.read()
        began_ns, columns, row_groups = _HEAD.unpack_from(content)
        numbers = np.frombuffer(content, "<u8", offset=_HEAD.size)
    except (OSError, ValueError, struct.error):
        return None
    if len(numbers) != columns + row_groups:
        return None
    return ReaderLease(numbers[columns:], frozenset(numbers[:columns].tolist()), began_ns)


def remove_dead_leases(paths: CachePaths) -> None:
    """Remove the leases of processes that died; called with the cache's lock held."""
    for name in _names(paths):
        path = os.path.join(paths.readers, name)
        if not is_locked(path):
            remove_file(path)
