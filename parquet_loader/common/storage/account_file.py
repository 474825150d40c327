"""The file format of an account: a crash-safe record of a directory's used bytes, changed under the directory's lock.

The account saves listing the directory, which remains the truth. A process marks the file before it changes anything,
and removes the mark when the new account is written. If the next holder of the lock finds a mark, a process died in
between; a checksum shows damage. In both cases the account is computed again from the directory.

    mark | CRC-32 of the text, 8 hexadecimal digits | text | line feed
"""

from __future__ import annotations

import os
import zlib

_CLEAN, _CHANGING = b"=", b"!"


def parse_account(content: bytes) -> tuple[bytes | None, bool]:
    """Return the text of an account, or None if it is damaged, and whether its last change was completed."""
    crc, text = content[1:9], content[9:].rstrip(b"\n")
    return text if crc == _checksum(text) else None, content[:1] == _CLEAN


def format_account(text: bytes) -> bytes:
    """Return the bytes that follow the mark."""
    return _checksum(text) + text + b"\n"


def begin_account(descriptor: int) -> None:
    """Mark the file as being changed. The caller holds the lock."""
    os.pwrite(descriptor, _CHANGING, 0)


def end_account(descriptor: int, text: bytes) -> None:
    """Write the account and remove the mark."""
    content = format_account(text)
    os.pwrite(descriptor, content, 1)
    os.ftruncate(descriptor, 1 + len(content))
    os.pwrite(descriptor, _CLEAN, 0)


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
