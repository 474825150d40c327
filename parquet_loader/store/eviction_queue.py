"""The queue of files to evict next: new epochs leave them out, so that they are free when older epochs end.

Without this, readers whose epochs overlap could hold every file at every moment, and a writer would wait forever. A
writer that finds nothing to evict names the next files, as many as it needs. Readers that list the store leave them
out, and they are evicted once the epochs that hold them have ended. The names are advice, in a file that is read and
written under the store's lock: anything that is not the name of a published file is ignored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from parquet_loader.common import remove_file
from parquet_loader.store.files.paths import StorePaths


def queued_evictions(paths: StorePaths) -> list[str]:
    """Return the names of the queued files; some may be gone."""
    try:
        with open(paths.leaving, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def queue_evictions(paths: StorePaths, ranking: Iterable[str], pinned: frozenset[str], count: int) -> None:
    """Queue files of at least `count` bytes together, those queued before first; called under the store's lock.

    Args:
        paths: The paths of the store.
        ranking: Names of its files, those that go first first.
        pinned: Files that are held on purpose, and are never queued.
        count: Bytes that are lacking.
    """
    named = queued_evictions(paths)
    chosen: list[str] = []
    for name in dict.fromkeys([*named, *ranking]):
        if count <= 0:
            break
        if name not in pinned:
            with contextlib.suppress(OSError):
                count -= os.stat(paths.file(name)).st_size
                chosen.append(name)
    if chosen != named:
        with contextlib.suppress(OSError), open(paths.leaving, "w", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in chosen))


def clear_evictions(paths: StorePaths) -> None:
    """Empty the queue; called under the store's lock."""
    remove_file(paths.leaving)
