"""Publishes the files of one writer, all of them or none."""

from __future__ import annotations

import contextlib
import os
import uuid

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import is_local, look_up, uninterrupted
from parquet_loader.errors import UnfinishedCommitError, WriteError
from parquet_loader.write.jobs.commit import Journal, publish_directory, publish_files
from parquet_loader.write.staging import (
    StagedFile,
    copy_mode,
    join,
    make_directory,
    move_file,
    remove_tree,
    sync_directory,
)
from parquet_loader.write.target import WriteMode, check_replaceable, listing, parquet_files


class Publication:
    """The files of one writer: staged one by one, published or discarded together.

    Locally, ``mode="overwrite"`` stages in a hidden directory next to `path` and exchanges the two. If that is
    impossible (object stores, mount points, a read-only parent), files are staged in `path` itself and published, and
    the old ones are deleted afterwards: a reader that lists in between sees both. After all new files are published,
    they stay, even if old ones cannot be deleted.

    Args:
        filesystem: The file system of the data set.
        path: Its directory.
        mode: As in `DatasetWriter`.
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str, mode: WriteMode) -> None:
        self.filesystem = filesystem
        self.path = path
        self.mode = mode
        self._process = os.getpid()
        self._id = uuid.uuid4().hex
        self._staged: list[StagedFile] = []
        self._journal = Journal(filesystem, None)
        self._targets: list[str] = []
        self._is_exchanged = False
        self._created = look_up(filesystem, path).type == pafs.FileType.NotFound
        replaces = mode == "overwrite" and not self._created
        self._sibling = self._make_sibling() if replaces and is_local(filesystem) else None
        if self._sibling is None:
            make_directory(filesystem, path)

    @property
    def is_published(self) -> bool:
        """Whether all new files have appeared."""
        return self._is_exchanged or self._journal.is_published

    def new_file(self) -> StagedFile:
        """Return the next file, not open yet."""
        if self._sibling is None and is_local(self.filesystem):
            make_directory(self.filesystem, self.path)  # another writer may have created it, failed, and removed it
        hidden = f".part-{self._id}-{len(self._staged)}.parquet.tmp"
        file = StagedFile(self.filesystem, join(self._sibling or self.path, hidden))
        self._staged.append(file)
        return file

    def commit(self) -> list[str]:
        """Publish all files and return their paths.

        Raises:
            OSError: A file cannot be renamed; none is published then.
            WriteError: With ``mode="error"``, others have published files in the directory; none is published.
            UnfinishedCommitError: All files are published, but old ones could not be deleted; or some are published,
                and cannot be removed.
        """
        names = [f"part-{self._id}-{number:06}.parquet" for number in range(len(self._staged))]
        if self._sibling is not None:
            self._exchange(self._sibling, names)
        else:
            self._publish_in_place(names)
        return [join(self.path, name) for name in names]

    def discard(self) -> None:
        """Remove all files that are not published; ignores errors. A forked child only stops writing.

        Ctrl-C waits until local files are removed.
        """
        if self._process != os.getpid():
            for file in self._staged:
                file.release()
        elif is_local(self.filesystem):
            uninterrupted(self._discard)
        else:
            self._discard()

    def _discard(self) -> None:
        if self.is_published:
            return
        for file in self._staged:
            file.discard()
        for path in self._targets:  # Ctrl-C may have come while they were taken back
            with contextlib.suppress(OSError, pa.ArrowException):
                self.filesystem.delete_file(path)
        if self._sibling is not None:
            remove_tree(self._sibling)
        elif self._created and is_local(self.filesystem):
            with contextlib.suppress(OSError):
                os.rmdir(self.path)  # fails if it is not empty

    def _make_sibling(self) -> str | None:
        parent, name = os.path.split(os.path.realpath(self.path))
        sibling = os.path.join(parent, f".{name}-{self._id}.tmp")
        if os.path.ismount(self.path):
            return None
        try:
            os.mkdir(sibling)
            copy_mode(self.path, sibling)
        except OSError:
            return None
        return sibling

    def _exchange(self, sibling: str, names: list[str]) -> None:
        for file, name in zip(self._staged, names, strict=True):
            move_file(self.filesystem, file.path, join(sibling, name))
        sync_directory(self.filesystem, sibling)
        try:
            publish_directory(self.filesystem, sibling, self.path, "", mode="overwrite")
        except UnfinishedCommitError:
            self._is_exchanged = True  # the old files stay in `sibling`
            raise
        self._is_exchanged = True
        remove_tree(sibling)

    def _publish_in_place(self, names: list[str]) -> None:
        old = listing(self.filesystem, self.path) if self.mode == "overwrite" else []
        check_replaceable(old, self.path)
        if self._created:
            sync_directory(self.filesystem, os.path.dirname(self.path))
        self._targets = [join(self.path, name) for name in names]
        sources = [file.path for file in self._staged]
        own = {os.path.basename(path) for path in sources}
        replaced = [i.path for i in old if i.type == pafs.FileType.File and i.base_name not in own]
        moves = list(zip(sources, self._targets, strict=True))
        self._check_alone()
        publish_files(self.filesystem, self.path, moves, replaced, self._journal, self._check_alone)

    def _check_alone(self) -> None:
        """Check that an empty directory still holds no files of others; before and after its own files appear.

        So if several writers began in the directory, at most one of them publishes.
        """
        if self.mode != "error":
            return
        others = set(parquet_files(listing(self.filesystem, self.path), self.path)) - set(self._targets)
        if others:
            raise WriteError(
                f"{self.path}: the directory was empty when this writer began, and now holds "
                f"{os.path.basename(min(others))!r} of another one; nothing was published; write in one process only, "
                "or let all writers append (mode='append')"
            )
