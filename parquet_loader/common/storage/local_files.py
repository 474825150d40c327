"""Steps on local files that several processes may take at once."""

from __future__ import annotations

import os
import secrets

TEMPORARY = ".tmp"


def remove_file(path: str) -> bool:
    """Remove a file, and return whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def replace_file(path: str, content: bytes) -> None:
    """Replace a small file so that it is whole at any instant, after a power cut too.

    A process that is killed may leave a hidden file next to it, whose name ends with `TEMPORARY`.
    """
    folder, name = os.path.split(path)
    hidden = os.path.join(folder, f".{name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with open(hidden, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        remove_file(hidden)
        raise
