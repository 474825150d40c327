"""Publishes the files of one writer, all of them or none."""

from __future__ import annotations

import contextlib
import os
import uuid

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import is_local, look_up
from parquet_loader.errors import UnfinishedCommitError
from parquet_loader.write.os_errors import reason
from parquet_loader.write.staging import (
    StagedFile,
    copy_mode,
    exchange,
    join,
    make_directory,
    remove_tree,
    sync_directory,
)
from parquet_loader.write.target import check_replaceable, listing


class Publication:
    """The files of one writer: staged one by one, published or discarded together.

    Locally, ``replace=True`` stages in a hidden directory next to `path` and exchanges the two. If that is impossible
    (object stores, mount points, a read-only parent), files are staged in `path` itself, published, and the old ones
    deleted after: a reader that lists in between sees both. When all new files are published, nothing removes them any
    more, even if old ones cannot be deleted.

    Args:
        filesystem: The file system of the data set.
        path: Its directory.
        replace: Whether the new files replace all files of the directory.
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str, *, replace: bool) -> None:
        self.filesystem = filesystem
        self.path = path
        self.replace = replace
        self._process = os.getpid()
        self._id = uuid.uuid4().hex
        self._staged: list[StagedFile] = []
        self._is_published = False
        self._created = look_up(filesystem, path).type == pafs.FileType.NotFound
        self._sibling = self._make_sibling() if replace and not self._created and is_local(filesystem) else None
        if self._sibling is None:
            make_directory(filesystem, path)

    @property
    def is_published(self) -> bool:
        """Whether all new files have appeared."""
        return self._is_published

    def new_file(self) -> StagedFile:
        """Return the next file, not open yet."""
        hidden = f".part-{self._id}-{len(self._staged)}.parquet.tmp"
        file = StagedFile(self.filesystem, join(self._sibling or self.path, hidden))
        self._staged.append(file)
        return file

    def commit(self) -> list[str]:
        """Publish all files and return their paths.

        Raises:
            OSError: one cannot be renamed; none is published then.
            UnfinishedCommitError: all are published, but old files could not be deleted; or some are, and cannot be
                removed.
        """
        old = listing(self.filesystem, self.path) if self.replace else []
        if self.replace:
            check_replaceable(old, self.path)
        if self._sibling is not None:
            self._publish_into(self._sibling)
            self._exchange(self._sibling)
        else:
            self._publish_in_place()
            self._is_published = True
            self._delete([i for i in old if i.type == pafs.FileType.File and not self._is_ours(i.base_name)])
        return self._paths_in(self.path)

    def discard(self) -> None:
        """Remove all files that are not published; never raises. In a forked child it does nothing."""
        if self._process != os.getpid():
            for file in self._staged:
                file.release()
            return
        if self._is_published:
            return
        for file in self._staged:
            file.discard()
        if self._sibling is not None:
            remove_tree(self._sibling)
        elif self._created and is_local(self.filesystem):
            with contextlib.suppress(OSError):
                os.rmdir(self.path)  # only if it is empty

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

    def _paths_in(self, directory: str) -> list[str]:
        return [join(directory, f"part-{self._id}-{number}.parquet") for number in range(len(self._staged))]

    def _publish_into(self, directory: str) -> None:
        for file, path in zip(self._staged, self._paths_in(directory), strict=True):
            file.publish(path)
        sync_directory(self.filesystem, directory)

    def _exchange(self, sibling: str) -> None:
        target = os.path.realpath(self.path)
        exchange(sibling, target)
        self._is_published = True
        try:
            sync_directory(self.filesystem, os.path.dirname(target))
        except OSError as error:
            raise UnfinishedCommitError(
                f"{self.path}: the new files are published, but their directory's name could not be forced to the disk "
                f"({reason(error)}); the old ones lie in {sibling}"
            ) from error
        remove_tree(sibling)

    def _publish_in_place(self) -> None:
        try:
            self._publish_into(self.path)
            if self._created:
                sync_directory(self.filesystem, os.path.dirname(self.path))
        except (OSError, pa.ArrowException) as error:
            if left := self._remaining_files():
                raise UnfinishedCommitError(
                    f"{self.path}: the data set could not be written ({reason(error)}), and {len(left)} of its "
                    f"{len(self._staged)} new files could not be taken back: delete {_some(left)}"
                ) from error
            raise

    def _remaining_files(self) -> list[str]:
        """Remove the new files, and return those that may be there nevertheless."""
        for file in self._staged:
            file.discard()
        paths = self._paths_in(self.path)
        with contextlib.suppress(OSError, pa.ArrowException):
            return [path for path in paths if look_up(self.filesystem, path).type != pafs.FileType.NotFound]
        return paths

    def _delete(self, old: list[pafs.FileInfo]) -> None:
        """Delete files that the new ones replace, every one that can be."""
        left: list[str] = []
        why: Exception | None = None
        for info in old:
            try:
                self.filesystem.delete_file(info.path)
            except FileNotFoundError:
                continue
            except (OSError, pa.ArrowException) as error:
                left.append(info.path)
                why = why or error
        if why is not None:
            raise UnfinishedCommitError(
                f"{self.path}: the new files are published, but {len(left)} of {len(old)} old ones could not be "
                f"deleted ({reason(why)}), so that readers see both: delete {_some(left)}"
            ) from why

    def _is_ours(self, name: str) -> bool:
        return name.lstrip(".").startswith(f"part-{self._id}-")


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if paths[3:] else "")
