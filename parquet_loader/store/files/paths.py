"""The paths of a store: samples in the directory itself, everything else in a hidden directory inside it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from parquet_loader.common import TEMPORARY, remove_file
from parquet_loader.store.files.file_names import FileName

HIDDEN = ".store"
NONE_KNOWN: Mapping[str, FileName] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The paths of one store.

    Attributes:
        root: The directory, absolute, links resolved.
    """

    root: str

    @property
    def hidden(self) -> str:
        """The directory of everything but samples."""
        return os.path.join(self.root, HIDDEN)

    @property
    def settings(self) -> str:
        """The settings, replaced as a whole."""
        return os.path.join(self.hidden, "store.json")

    @property
    def ledger(self) -> str:
        """The totals; the lock on this file is the store's lock."""
        return os.path.join(self.hidden, "ledger")

    @property
    def seen(self) -> str:
        """How often files were delivered."""
        return os.path.join(self.hidden, "seen")

    @property
    def leaving(self) -> str:
        """The queue of files to evict."""
        return os.path.join(self.hidden, "leaving")

    @property
    def writers(self) -> str:
        """One locked file for each live writer, with the bytes it reserves."""
        return os.path.join(self.hidden, "writers")

    @property
    def readers(self) -> str:
        """One locked file for each running epoch, with the files that it still needs."""
        return os.path.join(self.hidden, "readers")

    @property
    def unfinished(self) -> str:
        """Files being written."""
        return os.path.join(self.hidden, "unfinished")

    @property
    def commits(self) -> str:
        """Records of files that are being published together."""
        return os.path.join(self.hidden, "commits")

    @property
    def snapshots(self) -> str:
        """Lists of files that states of loaders name."""
        return os.path.join(self.hidden, "snapshots")

    @property
    def holds(self) -> str:
        """The lists that `SampleStore.hold` keeps."""
        return os.path.join(self.hidden, "holds")

    def make(self) -> None:
        """Create the directories."""
        inner = self.writers, self.readers, self.unfinished, self.commits, self.snapshots, self.holds
        for path in (self.root, self.hidden, *inner):
            os.makedirs(path, exist_ok=True)

    def file(self, name: str) -> str:
        """Return the path of a published file."""
        return os.path.join(self.root, name)

    def published(self, tag: str, known: Mapping[str, FileName] = NONE_KNOWN) -> dict[str, FileName]:
        """Return the files with names of published files, in their order; reads no file.

        Some files of one commit may be missing; `Ledger.published` returns all or none.

        Args:
            tag: The store's tag, part of its files' names.
            known: An earlier result, which saves parsing most names.
        """
        found: dict[str, FileName] = {}
        for name in sorted(os.listdir(self.root)):
            parsed = known.get(name) or FileName.parse(name)
            if parsed is not None and parsed.tag == tag:
                found[name] = parsed
        return found


def share_record(path: str) -> None:
    """Give a new record, or file of rows, the permissions of its directory, so that all users of the store can read it.

    The umask of the process that makes it must not decide: a writer that cannot read a lease may evict its files.
    """
    with contextlib.suppress(OSError):  # such as another user's file
        mode = stat.S_IMODE(os.stat(path).st_mode)
        shared = mode | os.stat(os.path.dirname(path)).st_mode & 0o666
        if shared != mode:
            os.chmod(path, shared)


def remove_half_replaced(paths: StorePaths) -> int:
    """Remove temporary files of processes that died while they replaced a small file; return their number.

    Called under the store's lock, so no live process is replacing a file.
    """
    removed = 0
    for directory in (paths.hidden, paths.commits, paths.snapshots, paths.holds):
        for name in _files_in(directory):
            if name.endswith(TEMPORARY):
                removed += remove_file(os.path.join(directory, name))
    return removed


def names_in(directory: str) -> list[str]:
    """Return the sorted names of files in a directory, except temporary ones; none if the directory does not exist."""
    return sorted(name for name in _files_in(directory) if not name.endswith(TEMPORARY))


def _files_in(directory: str) -> list[str]:
    """Return the names of regular files; the store makes no others, and to open a FIFO may wait forever."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
