"""Hidden files beside what is written, and how those of a run that was killed are found and removed by the next."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import tempfile
import uuid
from typing import Self

from parquet_loader.write.staging import remove_tree

_LOCK = re.compile(r"\.rewrite-(?P<id>[0-9a-f]{32})\.lock")


class Scratch:
    """Names for the temporary files of one run, all removed by `close`.

    A file ``.rewrite-<id>.lock`` in the target directory is locked as long as the run lives, and names the hidden files
    of its writer. The kernel lets go of the lock with the process, whatever ended it; so whoever can lock such a file
    knows that its run is over and may remove all it left. `remove_leftovers` does so.

    Args:
        target: Local directory that is written; None where that is no local one: then temporary files lie in a
            directory of their own below the system's one for such, and what a killed run leaves there is left to that.
        staging_id: `DatasetWriter.staging_id`.
    """

    def __init__(self, target: str | None, staging_id: str) -> None:
        self._id = uuid.uuid4().hex
        self._own = tempfile.mkdtemp(prefix="parquet_loader-rewrite-") if target is None else None
        self.folder = self._own or os.path.realpath(target or "")
        self._lock_path = os.path.join(self.folder, f".rewrite-{self._id}.lock")
        self._descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, json.dumps({"staging_id": staging_id}).encode())
        except BaseException:
            self.close()
            raise

    def path(self, name: str) -> str:
        """Return the path of a temporary file; `name` is of lower-case letters, digits and dashes."""
        return os.path.join(self.folder, f".rewrite-{self._id}-{name}.tmp")

    def close(self) -> None:
        """Remove all temporary files; idempotent, never raises."""
        _remove_files(self.folder, self._id)
        with contextlib.suppress(OSError):
            os.unlink(self._lock_path)
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._own is not None:
            remove_tree(self._own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_leftovers(target: str) -> None:
    """Remove what runs that were killed left in a local directory and beside it; those that live are left alone."""
    folder = os.path.realpath(target)
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        match = _LOCK.fullmatch(name)
        if match is not None:
            _remove_dead(folder, name, match["id"])


def _remove_dead(folder: str, lock: str, run_id: str) -> None:
    path = os.path.join(folder, lock)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        text = os.read(descriptor, 4096)
        _remove_files(folder, run_id)
        try:
            staging_id = json.loads(text)["staging_id"]
        except (ValueError, KeyError, TypeError):
            staging_id = ""  # killed before it wrote anything
        if isinstance(staging_id, str) and re.fullmatch(r"[0-9a-f]{32}", staging_id):
            for hidden in glob.glob(os.path.join(glob.escape(folder), f".part-{staging_id}-*.parquet.tmp")):
                os.unlink(hidden)
            parent, name = os.path.split(folder)
            remove_tree(os.path.join(parent, f".{name}-{staging_id}.tmp"))
        os.unlink(path)
    except OSError:
        pass  # alive, or not ours to remove
    finally:
        os.close(descriptor)


def _remove_files(folder: str, run_id: str) -> None:
    for path in glob.glob(os.path.join(glob.escape(folder), f".rewrite-{run_id}-*.tmp")):
        with contextlib.suppress(OSError):
            os.unlink(path)
