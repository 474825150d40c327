"""Operations on local files that are safe if several processes run them at the same time."""

from __future__ import annotations

import os
import secrets

TEMPORARY = ".tmp"


def remove_file(path: str) -> bool:
    """Remove a file; return whether it existed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def replace_file(path: str, content: bytes) -> None:
    """Replace a small file atomically and durably: even after a power failure it is either the old or the new one.

    A killed process may leave a hidden file in the same directory, whose name ends with `TEMPORARY`.
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
