"""Checks directories that other users may write to: plain names only, and no directory that another user controls."""

from __future__ import annotations

import os
import stat

from parquet_loader.errors import ConfigurationError

_LONGEST_NAME = 255
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def no_link(path: str, flags: int) -> int:
    """The ``opener`` for `open` that fails if the path is a symbolic link."""
    return os.open(path, flags | NO_LINK | getattr(os, "O_CLOEXEC", 0))


def is_plain_name(name: object) -> bool:
    """Whether this is the name of a file within any directory: no separator, not ``.`` or ``..``."""
    return (
        isinstance(name, str)
        and 0 < len(name.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME
        and name not in (".", "..")
        and not any(character in name for character in "/\\\0")
    )


def is_within(path: object, folder: str) -> bool:
    """Whether a path lies below a folder, judged by its text alone: no ``..``, no NUL."""
    base = folder.rstrip("/") + "/"
    return (
        isinstance(path, str)
        and path.startswith(base)
        and "\0" not in path
        and not {"", ".", ".."} & set(path[len(base) :].split("/"))
    )


def make_private(path: str) -> None:
    """Create a directory that only this user may read or write, unless it exists.

    Raises:
        OSError: it cannot be created.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)


def check_private(path: str, where: str, otherwise: str) -> None:
    """Refuse a directory whose contents another user can change; a missing directory is accepted.

    Args:
        path: The directory.
        where: The argument that named it, for the message.
        otherwise: How to use the directory anyway, for the message.

    Raises:
        ConfigurationError: it belongs to a user other than this one and root, or others may write to it.
    """
    try:
        found = os.stat(path)
    except OSError:
        return
    if not hasattr(os, "geteuid"):  # Windows
        return
    if found.st_uid in (0, os.geteuid()) and not found.st_mode & _OTHERS_MAY_WRITE:
        return
    raise ConfigurationError(
        f"{where}: other users can change what is kept in {path}, which belongs to {_user(found.st_uid)} and has mode "
        f"{stat.S_IMODE(found.st_mode):04o}; choose a directory of your own, make it private (chmod 700), or "
        f"{otherwise} if you trust everyone who can write to it"
    )


def _user(number: int) -> str:
    try:
        import pwd  # noqa: PLC0415  (not on Windows)

        return f"user {pwd.getpwuid(number).pw_name}"
    except (ImportError, KeyError):
        return f"user {number}"
