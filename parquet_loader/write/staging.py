"""Writes files under hidden names and publishes them by a rename; exchanges directories.

Readers skip names that begin with ``.``, so they never see a partial file. A killed process leaves its hidden files.
They may be deleted, because nothing refers to them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader.common import is_local, uninterrupted

_NO_DIRECTORIES = {"s3", "gcs", "abfs"}
_COPY_BYTES = 8 * 2**20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_ASIDE = ".old"
_NO_METADATA: Mapping[bytes, bytes] = MappingProxyType({})


class StagedFile:
    """One Parquet file that is being written under a name that readers skip. Used by one thread at a time.

    Args:
        filesystem: Its file system.
        path: Its hidden path, in an existing directory.
        metadata: Metadata to add to its footer.

    Attributes:
        path: Its hidden path.
        rows, row_groups, bytes: Rows, row groups and bytes written so far; `finish` adds the footer's bytes.
        decoded_bytes: The size of these rows in memory.
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str, metadata: Mapping[bytes, bytes] = _NO_METADATA) -> None:
        self.path = path
        self.rows = self.row_groups = self.bytes = self.decoded_bytes = 0
        self._filesystem = filesystem
        self._metadata = dict(metadata)
        self._stream: Any = None
        self._parquet: Any = None

    def open(self, schema: pa.Schema, arguments: dict[str, Any]) -> None:
        """Begin the file, with arguments for `pyarrow.parquet.ParquetWriter`."""
        self._stream = self._filesystem.open_output_stream(self.path)
        self._parquet = pq.ParquetWriter(self._stream, schema, **arguments)
        if self._metadata:
            self._parquet.add_key_value_metadata(self._metadata)

    def write(self, table: pa.Table) -> None:
        """Write the table as one row group."""
        self._parquet.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows
        self.row_groups += 1
        self.bytes = int(self._stream.tell())
        self.decoded_bytes += table.nbytes

    def finish(self, *, durable: bool = True) -> None:
        """Write the footer and close the file; with `durable`, force a local file to the disk."""
        self._parquet.close()
        self.bytes = int(self._stream.tell())
        self._stream.close()
        if durable and is_local(self._filesystem):
            fsync(self.path)

    def discard(self) -> None:
        """Remove the file unless it has got another name; never raises."""
        self.release()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._filesystem.delete_file(self.path)

    def release(self) -> None:
        """Stop writing, and leave the file as it is; never raises."""
        if self._stream is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._stream.close()
        if self._parquet is not None:
            self._parquet.is_open = False  # else its destructor would write a footer
            self._parquet = None


def move_file(filesystem: pafs.FileSystem, source: str, target: str) -> None:
    """Rename a file; it appears as a whole under the new name."""
    if is_local(filesystem):
        os.replace(source, target)
        return
    try:
        filesystem.move(source, target)
    except NotImplementedError:  # stores without rename: one more copy, complete when it is closed
        try:
            with filesystem.open_input_stream(source) as stream, filesystem.open_output_stream(target) as sink:
                while data := stream.read(_COPY_BYTES):
                    sink.write(data)
        except BaseException:
            with contextlib.suppress(OSError, pa.ArrowException):
                filesystem.delete_file(target)  # the stream is closed, so a partial file may be visible
            raise
        filesystem.delete_file(source)


def join(directory: str, name: str) -> str:
    """Return the path of a name in a directory of any filesystem."""
    return f"{directory.rstrip('/')}/{name}" if directory else name


def make_directory(filesystem: pafs.FileSystem, path: str) -> None:
    """Create a directory and its parents, if the file system has directories."""
    if filesystem.type_name not in _NO_DIRECTORIES:
        filesystem.create_dir(path, recursive=True)


def sync_directory(filesystem: pafs.FileSystem, path: str) -> None:
    """Force the names in a local directory to the disk."""
    if is_local(filesystem):
        fsync(path)


def exchange(staged: str, path: str) -> None:
    """Exchange two local directories; on Linux in one step, so that `path` always names a complete data set.

    If the kernel or the file system cannot exchange names, `path` does not exist for a moment between two renames.

    Raises:
        OSError: `path` cannot be renamed, because it is a mount point or its parent is read-only.
    """
    if _renameat2_exchange(staged, path):
        return
    aside = f"{staged}{_ASIDE}"
    try:
        os.rename(path, aside)
        os.rename(staged, path)
    except BaseException:
        finish_exchange(staged, path)
        raise
    os.rename(aside, staged)


def finish_exchange(staged: str, path: str) -> None:
    """Restore `path` if an `exchange` was interrupted between its two renames.

    Raises:
        OSError: It cannot be renamed.
    """
    aside = f"{staged}{_ASIDE}"
    if os.path.lexists(aside) and not os.path.lexists(path):
        os.rename(aside, path)


def copy_mode(source: str, target: str) -> None:
    """Copy the permissions of a directory to another one."""
    os.chmod(target, stat.S_IMODE(os.stat(source).st_mode))


def remove_tree(path: str) -> None:
    """Remove a local directory and its content; ignores errors, and defers Ctrl-C until it is done."""
    uninterrupted(lambda: shutil.rmtree(path, ignore_errors=True))


def _renameat2_exchange(first: str, second: str) -> bool:
    """Exchange two names in one step; return False if that is not supported."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or a C library without it; TypeError: Windows
        return False
    done = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE))
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), second)


def fsync(path: str) -> None:
    """Force a local file, or the names in a local directory, to the disk."""
    if os.name == "nt" and os.path.isdir(path):
        return  # Windows cannot open directories
    descriptor = os.open(path, (os.O_RDWR if os.name == "nt" else os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
