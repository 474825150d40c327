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
from collections.abc import Iterator
from typing import Self

from parquet_loader.write.staging import finish_exchange, remove_tree
from parquet_loader.write.target import RUN_LOCK


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
    parent, name = os.path.split(folder)
    # The directory that was replaced takes the lock with it, until its writer puts it back.
    pattern = re.compile(rf"\.{re.escape(name)}-(?P<id>[0-9a-f]{{32}})\.tmp(\.old)?")
    for match in filter(None, map(pattern.fullmatch, _names(parent))):
        for lock in filter(RUN_LOCK.fullmatch, _names(os.path.join(parent, match[0]))):
            _remove_replaced(os.path.join(parent, match[0]), lock, match["id"], folder)
    for match in filter(None, map(RUN_LOCK.fullmatch, _names(folder))):
        _remove_dead(folder, match[0], match["id"])


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove_replaced(folder: str, lock: str, staging_id: str, target: str) -> None:
    with _locked(os.path.join(folder, lock)) as named:
        if named == staging_id:
            with contextlib.suppress(OSError):
                finish_exchange(
                    os.path.join(os.path.dirname(folder), f".{os.path.basename(target)}-{named}.tmp"), target
                )
            remove_tree(folder)


def _remove_dead(folder: str, lock: str, run_id: str) -> None:
    path = os.path.join(folder, lock)
    with _locked(path) as staging_id, contextlib.suppress(OSError):
        if staging_id is None:
            return
        _remove_files(folder, run_id)
        if staging_id:
            for hidden in glob.glob(os.path.join(glob.escape(folder), f".part-{staging_id}-*.parquet.tmp")):
                os.unlink(hidden)
            parent, name = os.path.split(folder)
            remove_tree(os.path.join(parent, f".{name}-{staging_id}.tmp"))
        os.unlink(path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[str | None]:
    """Yield the identity of a dead run's writer, empty if it was killed before it said it; None if the run lives."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            staging_id = json.loads(os.read(descriptor, 4096))["staging_id"]
        except OSError:  # alive, or not ours to remove
            staging_id = None
        except (ValueError, KeyError, TypeError):
            staging_id = ""
        if staging_id is not None and not re.fullmatch(r"[0-9a-f]{32}", str(staging_id)):
            staging_id = ""
        yield staging_id
    finally:
        os.close(descriptor)


def _remove_files(folder: str, run_id: str) -> None:
    for path in glob.glob(os.path.join(glob.escape(folder), f".rewrite-{run_id}-*.tmp")):
        with contextlib.suppress(OSError):
            os.unlink(path)
