"""The byte count of a cache, and the one lock for every addition, removal and reservation.

The directory is the truth; the ledger avoids listing it. A writer marks the ledger before any change. A mark that is
already there was left by a process that died: the count is then rebuilt from a listing.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from parquet_loader.common import exclusive
from parquet_loader.read.cache.paths import CachePaths

_CLEAN, _CHANGING = b"=", b"!"
# A process that is stopped while it holds the lock must not stop the others, which then do without the cache.
_PATIENCE_S = 5.0


@dataclass(slots=True)
class CacheLedger:
    """What is taken of the disk.

    Attributes:
        taken_bytes: By row groups that are kept, and by reservations.
    """

    taken_bytes: int


@contextlib.contextmanager
def transaction(paths: CachePaths, *, rebuild: bool = False) -> Iterator[CacheLedger]:
    """Hold the cache's lock, and keep what the body makes of the account.

    A body that raises leaves the mark, so that the next one starts from a listing.

    Args:
        paths: The paths of the cache.
        rebuild: Make the account anew, whatever the ledger says.

    Raises:
        TimeoutError: another process holds the lock, and does not go on.
        OSError: the directory is gone, or cannot be written to.
    """
    with exclusive(paths.ledger, _PATIENCE_S) as descriptor:
        data = os.pread(descriptor, 64, 0)
        taken = None if rebuild or data[:1] != _CLEAN else _parsed(data[1:])
        os.pwrite(descriptor, _CHANGING, 0)
        account = CacheLedger(paths.taken_bytes() if taken is None else taken)
        yield account
        os.pwrite(descriptor, _text(account.taken_bytes), 1)
        os.pwrite(descriptor, _CLEAN, 0)


def _text(taken_bytes: int) -> bytes:
    number = b"%020d" % taken_bytes
    return number + b"%08x\n" % zlib.crc32(number)


def _parsed(text: bytes) -> int | None:
    number = text[:20]
    with contextlib.suppress(ValueError):
        return int(number) if text == _text(int(number)) else None
    return None
