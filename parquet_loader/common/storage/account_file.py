"""The file of an account: what is taken of a directory, changed under the directory's lock, never trusted when torn.

The directory is the truth; the account avoids listing it. A process marks the file before it changes anything, and
removes the mark when the new account is written. A mark that the next holder of the lock finds was left by a process
that died, and a checksum shows damage: in both cases the account is made anew from the directory.

    mark | CRC-32 of the text, 8 hexadecimal digits | text | line feed
"""

from __future__ import annotations

import os
import zlib

_CLEAN, _CHANGING = b"=", b"!"


def parse_account(content: bytes) -> tuple[bytes | None, bool]:
    """Return the text of an account, None if it is damaged, and whether no change of it was cut short."""
    crc, text = content[1:9], content[9:].rstrip(b"\n")
    return text if crc == _checksum(text) else None, content[:1] == _CLEAN


def format_account(text: bytes) -> bytes:
    """Return what stands behind the mark."""
    return _checksum(text) + text + b"\n"


def begin_account(descriptor: int) -> None:
    """Mark the file: from now on the account is being changed. The caller holds the lock."""
    os.pwrite(descriptor, _CHANGING, 0)


def end_account(descriptor: int, text: bytes) -> None:
    """Write the account and remove the mark."""
    content = format_account(text)
    os.pwrite(descriptor, content, 1)
    os.ftruncate(descriptor, 1 + len(content))
    os.pwrite(descriptor, _CLEAN, 0)


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
