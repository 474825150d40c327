"""Operations on local files that are safe if several processes run them at the same time."""

from __future__ import annotations

import os
import secrets
import stat

TEMPORARY = ".tmp"


def remove_file(path: str) -> bool:
    """Remove a file; return whether it existed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def replace_file(path: str, content: bytes, mode: int | None = None) -> None:
    """Replace a small file atomically and durably: even after a power failure it is either the old or the new one.

    A killed process may leave a hidden file in the same directory, whose name ends with `TEMPORARY`.

    Args:
        path: The file.
        content: Its new content.
        mode: Its permissions; None for those of a new file.
    """
    folder, name = os.path.split(path)
    hidden = os.path.join(folder, f".{name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with open(hidden, "xb") as file:
            if mode is not None:
                os.chmod(hidden, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        remove_file(hidden)
        raise


def write_report(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file that the user names, with its permissions; a link or device, such as /dev/stdout, is written to.

    Raises:
        OSError: It cannot be written; an existing file is kept. The error has the user's name of the file.
    """
    try:
        mode = os.lstat(path).st_mode if os.path.lexists(path) else None
        if mode is not None and not stat.S_ISREG(mode):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            absolute, mode = os.path.abspath(path), None if mode is None else stat.S_IMODE(mode)
            replace_file(absolute, text.encode("utf-8"), mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
