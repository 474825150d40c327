"""Files written under hidden names and published by a rename, and directories that are exchanged.

Readers skip names that begin with ``.``, so they never see a partial file. A process that is killed leaves its hidden
files, which may be deleted: nothing refers to them.
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

from parquet_loader.common import is_local

_NO_DIRECTORIES = {"s3", "gcs", "abfs"}
_COPY_BYTES = 8 * 2**20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_ASIDE = ".old"
_NO_METADATA: Mapping[bytes, bytes] = MappingProxyType({})


class StagedFile:
    """One Parquet file, written under a hidden name in the directory in which it will appear.

    Args:
        filesystem: Its file system.
        directory: Existing directory within it.
        name: The name under which it is published.
        metadata: Added to its footer.
    """

    def __init__(
        self, filesystem: pafs.FileSystem, directory: str, name: str, metadata: Mapping[bytes, bytes] = _NO_METADATA
    ) -> None:
        self.filesystem = filesystem
        self.path = join(directory, name)
        self.hidden_path = join(directory, f".{name}.tmp")
        self._metadata = dict(metadata)
        self._stream: Any = None
        self._parquet: Any = None

    def open(self, schema: pa.Schema, arguments: dict[str, Any]) -> None:
        """Begin the file, with arguments for `pyarrow.parquet.ParquetWriter`."""
        self._stream = self.filesystem.open_output_stream(self.hidden_path)
        self._parquet = pq.ParquetWriter(self._stream, schema, **arguments)
        if self._metadata:
            self._parquet.add_key_value_metadata(self._metadata)

    def write(self, table: pa.Table) -> int:
        """Write the table as one row group, and return the bytes of the file so far."""
        self._parquet.write_table(table, row_group_size=max(1, table.num_rows))
        return int(self._stream.tell())

    def finish(self) -> int:
        """Write the footer, close the file, force it to the disk, and return its bytes."""
        self._parquet.close()
        size = int(self._stream.tell())
        self._stream.close()
        if is_local(self.filesystem):
            _fsync(self.hidden_path)
        return size

    def publish(self) -> None:
        """Publish the file under its name."""
        move_file(self.filesystem, self.hidden_path, self.path)

    def discard(self) -> None:
        """Remove the file, published or not; never raises."""
        self.release()
        for path in (self.hidden_path, self.path):
            with contextlib.suppress(OSError, pa.ArrowException):
                self.filesystem.delete_file(path)

    def release(self) -> None:
        """Write no more to the file, and leave it as it is; never raises."""
        if self._stream is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._stream.close()
        if self._parquet is not None:
            self._parquet.is_open = False  # else its destructor writes a footer
            self._parquet = None


def move_file(filesystem: pafs.FileSystem, source: str, target: str) -> None:
    """Give a file another name, under which it appears whole."""
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
                filesystem.delete_file(target)  # closed, so it holds a part of the data
            raise
        filesystem.delete_file(source)


def join(directory: str, name: str) -> str:
    """Return the path of a name in a directory of any filesystem."""
    return f"{directory.rstrip('/')}/{name}" if directory else name


def make_directory(filesystem: pafs.FileSystem, path: str) -> None:
    """Create a directory and those above it, if the filesystem has directories at all."""
    if filesystem.type_name not in _NO_DIRECTORIES:
        filesystem.create_dir(path, recursive=True)


def sync_directory(filesystem: pafs.FileSystem, path: str) -> None:
    """Force the names in a local directory to the disk."""
    if is_local(filesystem):
        _fsync(path)


def exchange(staged: str, path: str) -> None:
    """Swap two local directories; on Linux in one step, so that `path` always names a whole data set.

    If the kernel or the file system cannot exchange names, `path` does not exist between two renames.

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
    """Restore `path` if an `exchange` was cut short between its two renames.

    Raises:
        OSError: it cannot be renamed.
    """
    aside = f"{staged}{_ASIDE}"
    if os.path.lexists(aside) and not os.path.lexists(path):
        os.rename(aside, path)


def copy_mode(source: str, target: str) -> None:
    """Give a directory the permissions of another."""
    os.chmod(target, stat.S_IMODE(os.stat(source).st_mode))


def remove_tree(path: str) -> None:
    """Remove a local directory and all it holds; never raises."""
    shutil.rmtree(path, ignore_errors=True)


def _renameat2_exchange(first: str, second: str) -> bool:
    """Return False if the exchange is not supported."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # not Linux, or a C library without it
        return False
    done = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE))
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), second)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
