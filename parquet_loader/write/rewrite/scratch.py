"""The temporary files of a `rewrite_dataset` run, and the removal of those that a killed run left."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from typing import Self

from parquet_loader.common import FileLock, LockedFile
from parquet_loader.write.staging import finish_exchange, remove_tree
from parquet_loader.write.target import RUN_LOCK


class Scratch:
    """Names for the temporary files of one run, all removed by `close`.

    A file ``.rewrite-<id>.lock`` in the target directory is locked as long as the run lives, and names the hidden files
    of its writer. The kernel releases the lock when the process ends, in any way. So a process that can lock such a
    file knows that its run is over, and may remove its files. `remove_leftovers` does so.

    Args:
        target: Local directory that is written; None if it is not local: then temporary files lie in a directory of
            their own in the system's one, and a killed run leaves them there.
        staging_id: `DatasetWriter.staging_id`.
    """

    def __init__(self, target: str | None, staging_id: str) -> None:
        self._id = uuid.uuid4().hex
        self._own = tempfile.mkdtemp(prefix="parquet_loader-rewrite-") if target is None else None
        self.folder = self._own or os.path.realpath(target or "")
        self._lock_path = os.path.join(self.folder, f".rewrite-{self._id}.lock")
        try:
            self._lock = LockedFile(self._lock_path, json.dumps({"staging_id": staging_id}).encode())
        except BaseException:
            self._remove()
            raise

    def path(self, name: str) -> str:
        """Return the path of a temporary file; `name` is of lower-case letters, digits and dashes."""
        return os.path.join(self.folder, f".rewrite-{self._id}-{name}.tmp")

    def close(self) -> None:
        """Remove all temporary files; idempotent, never raises."""
        self._remove()
        self._lock.close()

    def _remove(self) -> None:
        _remove_files(self.folder, self._id)
        with contextlib.suppress(OSError):
            os.unlink(self._lock_path)
        if self._own is not None:
            remove_tree(self._own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_leftovers(target: str) -> None:
    """Remove the hidden files of killed runs in a local directory and next to it; runs that live keep theirs."""
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
    """Yield the identity of a dead run's writer, empty if it was killed before it wrote it; None if the run lives."""
    staging_id: str | None = None
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it cannot be opened, or is not ours to remove
            lock = stack.enter_context(FileLock(path))
            if lock.acquire(waits=False):
                staging_id = _staging_id(os.pread(lock.descriptor, 4096, 0))
        yield staging_id


def _staging_id(content: bytes) -> str:
    try:
        found = json.loads(content)["staging_id"]
    except (ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{32}", found) else ""


def _remove_files(folder: str, run_id: str) -> None:
    for path in glob.glob(os.path.join(glob.escape(folder), f".rewrite-{run_id}-*.tmp")):
        with contextlib.suppress(OSError):
            os.unlink(path)
