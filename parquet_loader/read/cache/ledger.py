"""Keeps the byte count of a cache, so that the directory need not be listed, under one lock for all changes.

`account_file` describes how the count stays correct if a process dies.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from parquet_loader.common import begin_account, end_account, exclusive, parse_account
from parquet_loader.read.cache.paths import CachePaths


@dataclass(slots=True)
class CacheLedger:
    """The account of a cache.

    Attributes:
        taken_bytes: Bytes of cached row groups and of reservations.
    """

    taken_bytes: int


@contextlib.contextmanager
def transaction(paths: CachePaths, *, rebuild: bool = False) -> Iterator[CacheLedger]:
    """Hold the cache's lock, and write the account at the end of the body.

    If the body raises, the account stays marked as wrong, and the next transaction lists the directory.

    Args:
        paths: The paths of the cache.
        rebuild: List the directory even if the ledger is correct.

    Raises:
        TimeoutError: another process holds the lock and does not release it.
        OSError: the directory does not exist, or cannot be written to.
    """
    with exclusive(paths.ledger, paths.patience_s) as descriptor:
        text, is_clean = parse_account(os.pread(descriptor, 64, 0))
        is_sound = text is not None and text.isdigit() and is_clean and not rebuild
        begin_account(descriptor)
        account = CacheLedger(int(text or 0) if is_sound else paths.taken_bytes())
        yield account
        end_account(descriptor, b"%d" % account.taken_bytes)
