"""The queue of files to evict next: new epochs leave them out, so that they can be evicted when older epochs end.

Without the queue, overlapping epochs or the hold of a trainer's newest checkpoint could keep every file at every
moment, and a writer would wait forever. A writer that finds no file to evict queues as many files as it needs. Readers
that list the store leave these out, and they are evicted when the epochs and holds that keep them have ended. The queue
is a file of names that is read and written under the store's lock; text that is not the name of a published file is
ignored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from parquet_loader.common import remove_file
from parquet_loader.store.files.paths import StorePaths, share_record


def queued_evictions(paths: StorePaths) -> list[str]:
    """Return the names of the queued files; some may be gone."""
    try:
        with open(paths.leaving, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def queue_evictions(paths: StorePaths, ranking: Iterable[str], pinned: Mapping[str, int], count: int) -> None:
    """Queue files of at least `count` bytes in all, already queued ones first; called under the store's lock.

    Files that `hold` keeps come last, those of the fewest holds first: the next checkpoint does not hold them.

    Args:
        paths: The paths of the store.
        ranking: Names of its files, in the order of eviction.
        pinned: Files that `hold` keeps, and the number of holds of each.
        count: The missing bytes.
    """
    named = queued_evictions(paths)
    chosen: list[str] = []
    for name in sorted(dict.fromkeys([*named, *ranking]), key=lambda name: pinned.get(name, 0)):
        if count <= 0:
            break
        with contextlib.suppress(OSError):
            count -= os.stat(paths.file(name)).st_size
            chosen.append(name)
    if chosen != named:
        with contextlib.suppress(OSError), open(paths.leaving, "w", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in chosen))
            share_record(paths.leaving)


def clear_evictions(paths: StorePaths) -> None:
    """Empty the queue; called under the store's lock."""
    remove_file(paths.leaving)
