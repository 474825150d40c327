"""The queue of files to evict next: new epochs leave them out, so that they can be evicted when older epochs end.

Without the queue, readers with overlapping epochs could lease every file at every moment, and a writer would wait
forever. A writer that finds no file to evict queues as many files as it needs. Readers that list the store leave these
out, and they are evicted after the epochs that lease them have ended. The queue is a file of names that is read and
written under the store's lock; text that is not the name of a published file is ignored.
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
    """Queue files of at least `count` bytes in all, already queued ones first; called under the store's lock.

    Args:
        paths: The paths of the store.
        ranking: Names of its files, in the order of eviction.
        pinned: Files that `hold` keeps, which are never queued.
        count: The missing bytes.
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
