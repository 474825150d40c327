"""Publishes the files of a writer or a job, and completes or undoes the commit of a job that died.

If directories can be renamed, all files of a job appear by one rename of its own subdirectory. Otherwise they are
renamed one by one, and a journal in the job's directory records the progress. A journal with the step ``publish`` means
that the commit was interrupted: the files that it lists are removed. A journal with the step ``remove`` means that all
new files are published: the old files that it lists are removed. To rewrite or remove the journal is the commit. If
neither succeeds, the journal stays, and the next job on the path completes it.

A `DatasetWriter` publishes by the same functions, without a journal file: it has no lease, so another process cannot
tell whether it is alive, and must not complete its commit.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import in_threads, is_local, is_plain_name, is_within, look_up
from parquet_loader.errors import UnfinishedCommitError, WriteError
from parquet_loader.write.os_errors import reason
from parquet_loader.write.staging import copy_mode, exchange, join, make_directory, move_file, sync_directory
from parquet_loader.write.target import check_replaceable, listing

JOURNAL = "journal.json"
_THREADS = (16, "parquet_loader-commit")
_STORAGE_ERRORS = (OSError, pa.ArrowException)


class Journal:
    """The record of a commit file by file, for the process that completes it.

    Args:
        filesystem: The file system of the job.
        path: The journal's file; None: no other process completes the commit.

    Attributes:
        is_needed: Whether a commit is incomplete, and some of its files may be visible.
        is_published: Whether all new files have appeared.
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str | None) -> None:
        self.path = path
        self.is_needed = False
        self.is_published = False
        self._filesystem = filesystem

    def write(self, step: Literal["publish", "remove"], paths: Sequence[str]) -> None:
        """Replace the journal atomically: readers find the old one or the new one."""
        if self.path is not None:
            self._write(self.path, step, paths)
        self.is_published = step == "remove"

    def _write(self, path: str, step: str, paths: Sequence[str]) -> None:
        content = json.dumps({"step": step, "paths": list(paths)}).encode()
        # An object appears whole when it is closed.
        fresh = _fresh(path) if renames_directories(self._filesystem) else path
        with self._filesystem.open_output_stream(fresh) as stream:
            stream.write(content)
        if fresh != path:
            move_file(self._filesystem, fresh, path)

    def remove(self) -> None:
        """Remove the journal, because the commit is done."""
        if self.path is not None:
            self._filesystem.delete_file(self.path)
        self.is_needed = False
        self.is_published = True

    def remedy(self, left: Sequence[str]) -> str:
        """Return how files disappear that could not be deleted, for errors."""
        if self.path is not None:
            return "the next job on this path deletes them"
        return f"delete {', '.join(left[:3])}" + (f" and {len(left) - 3} more" if left[3:] else "")


def renames_directories(filesystem: pafs.FileSystem) -> bool:
    """Return whether a directory can be renamed in one step: on local file systems and HDFS."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        filesystem = filesystem.base_fs
    # "hdfs" is Arrow's own; "py::hdfs" and "py::fsspec+webhdfs" are Python's, handed to Arrow.
    return is_local(filesystem) or re.split(r"::|\+", filesystem.type_name)[-1] in ("hdfs", "webhdfs")


def publish_directory(
    filesystem: pafs.FileSystem, data: str, path: str, folder: str, *, mode: Literal["error", "append", "overwrite"]
) -> str:
    """Publish a directory of files in one step, and return its path.

    Args:
        filesystem: A file system that renames directories.
        data: The directory.
        path: The data set. `data` is renamed to it if it does not exist or is empty, or if `mode` is ``"overwrite"``
            (local only). An overwritten directory gets the name `data`.
        folder: The name within `path` for `data`, if `path` holds files to which `mode` appends.
        mode: As in `DatasetWriter`.

    Raises:
        WriteError: Files have appeared in `path` since the job began.
        UnfinishedCommitError: All is published, but the directory could not be synced to the disk.
    """
    left = ""
    if mode == "overwrite" and os.path.isdir(path):
        check_replaceable(listing(filesystem, path), path)
        target = os.path.realpath(path)
        copy_mode(target, data)
        exchange(data, target)
        left = f"; the old ones are in {data}"
    elif not _rename_to(filesystem, data, path):
        if mode != "append":
            raise WriteError(f"{path}: while the job ran, others wrote into the directory; nothing was published")
        path = join(path, folder)
        _rename_directory(filesystem, data, path)
    try:
        sync_directory(filesystem, os.path.dirname(os.path.realpath(path)))
    except OSError as error:
        raise UnfinishedCommitError(
            f"{path}: the new files are published, but their directory could not be synced to the disk "
            f"({reason(error)}){left}"
        ) from error
    return path


def publish_files(
    filesystem: pafs.FileSystem,
    path: str,
    moves: Sequence[tuple[str, str]],
    replaced: Sequence[str],
    journal: Journal,
    check: Callable[[], None] | None = None,
) -> None:
    """Publish files one by one, then delete those they replace.

    Args:
        filesystem: Any file system.
        path: The data set.
        moves: Hidden path and final path of each file; or of a directory, if directories can be renamed.
        replaced: Paths of the files that are replaced.
        journal: A journal that is not written yet.
        check: Called after the new files have appeared; if it raises, they are removed.

    Raises:
        OSError: A file cannot be published; the new files are removed.
        UnfinishedCommitError: All files are published, but not all old ones are deleted; or some files are published
            and could not be removed. Then the journal has to be kept for the next job on the path.
    """
    targets = [target for _, target in moves]
    journal.write("publish", targets)
    journal.is_needed = True
    try:
        in_threads(lambda move: _move(filesystem, *move), moves, *_THREADS)
        sync_directory(filesystem, path)
        if check is not None:
            check()
        if replaced:
            journal.write("remove", replaced)
        else:
            journal.remove()
    except BaseException as error:
        _take_back(filesystem, path, targets, journal, error)
        raise
    if replaced:
        if left := _remove_all(filesystem, replaced):
            why = next(iter(left.values()))
            raise UnfinishedCommitError(
                f"{path}: the new files are published, but {len(left)} of {len(replaced)} old ones could not be "
                f"deleted ({reason(why)}), so that readers see both: {journal.remedy([*left])}"
            ) from why
        with contextlib.suppress(*_STORAGE_ERRORS):
            journal.remove()
        journal.is_needed = False


def _take_back(
    filesystem: pafs.FileSystem, path: str, targets: Sequence[str], journal: Journal, why: BaseException
) -> None:
    journal.is_needed = True
    try:
        journal.write("publish", targets)  # again, because the failed write or removal may have changed the journal
        left = _remove_all(filesystem, targets)
    except _STORAGE_ERRORS as error:
        left = dict.fromkeys(targets, error)
    if left:
        raise UnfinishedCommitError(
            f"{path}: the data set could not be written ({reason(why) or type(why).__name__}), and {len(left)} of its "
            f"{len(targets)} new files could not be removed ({reason(next(iter(left.values())))}), so that readers "
            f"may see them: {journal.remedy([*left])}"
        ) from why
    journal.is_needed = False


def finish_or_undo(filesystem: pafs.FileSystem, journal: str, data_set: str) -> None:
    """Undo an interrupted commit, or complete it if all its files are published.

    Anyone with write access to the data set may have written the journal, so nothing outside the data set is removed.

    Raises:
        WriteError: The journal names a path outside the data set.
    """
    for path in (journal, _fresh(journal)):  # only the second may exist: HDFS removes the old one before it renames
        try:
            with filesystem.open_input_stream(path) as stream:
                entries = json.loads(stream.read())
        except FileNotFoundError:
            continue
        except ValueError:  # incomplete, so nothing was published
            return
        named = entries.get("paths") if isinstance(entries, dict) else None
        outside = [n for n in named if not _lies_in(filesystem, n, data_set)] if isinstance(named, list) else [entries]
        if outside:
            raise WriteError(
                f"{path}: the journal of an unfinished job names {outside[0]!r:.200}, which is not in {data_set}; "
                "nothing was removed; find out who wrote it, and delete the journal"
            )
        for error in _remove_all(filesystem, named or []).values():
            raise error
        return


def _lies_in(filesystem: pafs.FileSystem, path: object, data_set: str) -> bool:
    if not isinstance(path, str) or "\0" in path:
        return False
    if not is_local(filesystem):
        return is_within(path, data_set)
    folder, name = os.path.split(path)
    return is_plain_name(name) and is_within(os.path.join(os.path.realpath(folder), name), os.path.realpath(data_set))


def _rename_to(filesystem: pafs.FileSystem, data: str, path: str) -> bool:
    """Rename `data` to `path`; return False if `path` exists and is not empty."""
    if is_local(filesystem):
        target = os.path.realpath(path)
        if os.path.isdir(target):
            copy_mode(target, data)
        try:
            os.rename(data, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True
    if listing(filesystem, path):
        return False
    if look_up(filesystem, path).type == pafs.FileType.Directory:  # HDFS would move `data` into it
        aside = f"{data}-before"
        filesystem.move(path, aside)
        if listing(filesystem, aside):  # another job was faster
            _rename_directory(filesystem, aside, path)
            return False
    _rename_directory(filesystem, data, path)
    return True


def _rename_directory(filesystem: pafs.FileSystem, source: str, target: str) -> None:
    if is_local(filesystem):
        os.rename(source, os.path.realpath(target))
    else:
        if parent := os.path.dirname(target):
            make_directory(filesystem, parent)
        filesystem.move(source, target)


def _move(filesystem: pafs.FileSystem, source: str, target: str) -> None:
    if _is_directory(filesystem, source):
        _rename_directory(filesystem, source, target)
    else:
        move_file(filesystem, source, target)


def _remove_all(filesystem: pafs.FileSystem, paths: Sequence[str]) -> dict[str, Exception]:
    """Remove every file or directory that can be removed; return the error of each other one."""

    def error_of(path: str) -> Exception | None:
        try:
            _remove(filesystem, path)
        except _STORAGE_ERRORS as error:
            return error
        return None

    errors = in_threads(error_of, paths, *_THREADS)
    return {path: error for path, error in zip(paths, errors, strict=True) if error is not None}


def _remove(filesystem: pafs.FileSystem, path: str) -> None:
    try:
        if _is_directory(filesystem, path):
            filesystem.delete_dir(path)
        else:
            filesystem.delete_file(path)
    except _STORAGE_ERRORS:
        if look_up(filesystem, path).type != pafs.FileType.NotFound:
            raise


def _is_directory(filesystem: pafs.FileSystem, path: str) -> bool:
    """Whether a path is a directory; asks only if the file system has directories that are published as a whole."""
    return renames_directories(filesystem) and look_up(filesystem, path).type == pafs.FileType.Directory


def _fresh(path: str) -> str:
    return f"{path}.new"
