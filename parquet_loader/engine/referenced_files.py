"""Opens the files that rows name: by paths relative to the data set, or by references of Parquet's type FILE.

A path of a missing file is damage of its row (`BlobProblem`). Failures of the system or of a store are not: they raise
`SystemReadError` or the like, even if damaged rows are replaced.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Hashable, Sequence
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs

from parquet_loader.common import is_local, schemes_of, system_error
from parquet_loader.decode import (
    BlobProblem,
    Column,
    FileReference,
    RangeFile,
    ValueRange,
    VideoDecoderCache,
    unpacked_reference,
)
from parquet_loader.errors import RemoteError, SourceError
from parquet_loader.schema import Audio, Image, Video
from parquet_loader.source import Snapshot, archive_lock, common_folder

# Bytes of a request to a store: about as many as are transferred in the latency of a request.
_REMOTE_BLOCK_BYTES = 2**18
# Errors of opening a path that names no file; Python file systems may raise them without an errno.
_NO_FILE_ERRORS = (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})


class ReferencedFiles:
    """The files below the directory of a data set. Any thread may open a file; one thread reads it.

    Paths and URLs that lead to other files, paths with ``..``, and links out of a local directory are refused.

    Args:
        snapshot: The data set. Its directory is `ListingContext.root`, or else the common parent of all files.
        videos_bytes: The most bytes of decoders of videos that stay open after their use.

    Attributes:
        videos: Lends decoders of videos.
    """

    def __init__(self, snapshot: Snapshot, videos_bytes: int = 0) -> None:
        self.videos = VideoDecoderCache(videos_bytes)
        root = snapshot.listing_context.root
        if root is None:
            root = common_folder(sorted({posixpath.dirname(file.path) for file in snapshot.files}))
        self._root = root
        self._filesystem = snapshot.filesystem

    def open_value(self, packed: bytes | memoryview) -> OpenedFile:
        """Open a value that stays in a Parquet file, as a file of its own.

        Args:
            packed: A packed `ValueRange`.

        Raises:
            SourceError: The file has vanished or changed since its footer was read.
            SystemReadError, OpenFilesError, RemoteError: The system or the store failed.
        """
        at = ValueRange.unpacked(packed)
        try:
            if is_local(self._filesystem):
                return LocalFile(at.path, None, at)
            file = self._filesystem.open_input_file(at.path)
            if file.size() != at.file_bytes:
                file.close()
                raise _changed(at.path)
            return _StoredFile(at.path, self._filesystem, file, at)
        except (BlobProblem, FileNotFoundError):
            raise _changed(at.path) from None
        except OSError as error:
            raise _failure(at.path, error) from error

    def open(self, name: str) -> OpenedFile:
        """Open a file by its path relative to the directory, or by its absolute path or URL below the directory.

        Nothing in a URL is percent-encoded.

        Raises:
            BlobProblem: The path leads out of the data set, or names no file.
            SystemReadError, OpenFilesError, RemoteError: The system or the store failed.
        """
        path = relative_path(name, self._root, self._filesystem)
        parts = path.split("/")
        if not path or path.startswith("/") or "://" in path or ".." in parts or "\0" in path:
            raise BlobProblem(
                f"the path {name!r} is not one of a file below the data set, which is in {self._root!r}; expected a "
                "relative path"
            )
        full = posixpath.join(self._root, path)
        try:
            if is_local(self._filesystem):
                return LocalFile(full, self._root)
            return _StoredFile(full, self._filesystem, self._filesystem.open_input_file(full))
        except BlobProblem:
            raise
        except (OSError, ValueError) as error:
            if isinstance(error, _NO_FILE_ERRORS) or error.errno in _NO_FILE:
                raise BlobProblem(f"the file {full!r} cannot be opened: {error}") from error
            raise _failure(full, error) from error

    def open_reference(self, reference: FileReference) -> OpenedFile:
        """Open the file that a reference names, or the part of the file.

        A URI without a scheme is relative to the directory of the data set. Percent-encoded characters are decoded.

        Raises:
            BlobProblem: The reference is invalid, leads out of the data set, names no file, or exceeds the file.
            SystemReadError, OpenFilesError, RemoteError: The system or the store failed.
        """
        file = self.open(path_of_uri(reference.uri, self._root, self._filesystem))
        try:
            if reference.offset is not None or reference.size is not None:
                file.narrow(reference.offset, reference.size)
        except BaseException:
            file.close()
            raise
        return file


def files_named_by(columns: Sequence[Column], snapshot: Snapshot, videos_bytes: int = 0) -> ReferencedFiles | None:
    """Return the files of a data set if rows name files, or byte ranges of the data set's own files; else None.

    Args:
        columns: The columns.
        snapshot: The data set.
        videos_bytes: As in `ReferencedFiles`.
    """
    media = [c.image for c in columns if isinstance(c.image, Image | Audio | Video)]
    names_files = any(field.storage == "path" or (isinstance(field, Video) and field.ranges) for field in media)
    return ReferencedFiles(snapshot, videos_bytes) if names_files and snapshot.files else None


def relative_path(name: str, root: str, filesystem: pafs.FileSystem) -> str:
    """Return an absolute path or URL of a file below a directory relative to it, and other names as they are.

    Args:
        name: A name of a file, without percent-encoding.
        root: The directory.
        filesystem: Its file system.
    """
    scheme, is_url, full = name.partition("://")
    if is_url and scheme in schemes_of(filesystem):
        host, slash, path = full.partition("/")
        full = host.partition("@")[0] + slash + path  # a container may be followed by its account
    elif is_local(filesystem):
        full = name
    else:
        return name
    return _below(full, root, filesystem) or name


def path_of_uri(uri: bytes, root: str, filesystem: pafs.FileSystem) -> str:
    """Return the path of a file below a directory, relative to it.

    Args:
        uri: A URI reference of RFC 3986: relative to the directory, or absolute and of a file below the directory.
        root: The directory.
        filesystem: Its file system.

    Raises:
        BlobProblem: It is not such a URI.
    """
    try:
        text = uri.decode()
        parts = urlsplit(text)
    except ValueError as error:
        raise BlobProblem(f"{uri!r} is not a URI: {error}") from None
    if not text:
        raise BlobProblem("the reference names no file: it has neither bytes nor a URI")
    if text[0] == " " or min(text) < " ":  # urlsplit leaves them out
        raise BlobProblem(
            f"the URI {text!r} has a control character, or begins with a space; write it as %20 or the like"
        )
    if parts.query or parts.fragment:
        raise BlobProblem(f"the URI {text!r} has a query or a fragment; write ? as %3F, and # as %23")
    path = unquote(parts.path)
    if not parts.scheme and not parts.netloc and not path.startswith("/"):
        return "/".join(part for part in path.split("/") if part != ".")
    schemes = schemes_of(filesystem)
    authority = parts.netloc.partition("@")[0]  # a container, which may be followed by its account
    if parts.scheme not in schemes and (parts.scheme or parts.netloc or not is_local(filesystem)):
        raise BlobProblem(
            f"the URI {text!r} is not one of a file below the data set; expected a relative one"
            + "".join(f", or {scheme}://" for scheme in schemes)
        )
    full = path if is_local(filesystem) and authority in ("", "localhost") else authority + path
    found = _below(full, root, filesystem)
    if found is None:
        raise BlobProblem(f"the URI {text!r} leads out of the data set, which is in {root!r}")
    return found


def _below(full: str, root: str, filesystem: pafs.FileSystem) -> str | None:
    """Return an absolute path relative to a directory; None if it is not below it."""
    for folder in (root, os.path.realpath(root)) if is_local(filesystem) else (root,):
        prefix = folder.rstrip("/") + "/"
        if full.startswith(prefix):
            return full[len(prefix) :]
    return None


def file_bytes(files: ReferencedFiles | None, value: bytes) -> bytes:
    """Return the bytes of the file that a row names, or of the part of the file.

    Raises:
        BlobProblem, SystemReadError, OpenFilesError, RemoteError: See `opened`.
    """
    reference = unpacked_reference(value)
    if isinstance(reference, bytes):
        return reference
    with opened(files, value) as file:
        return file.read()


def opened(files: ReferencedFiles | None, value: bytes) -> OpenedFile:
    """Open the file that a row names, or the part of the file.

    Args:
        files: The files of the data set.
        value: A path, or a packed reference.

    Raises:
        BlobProblem, SystemReadError, OpenFilesError, RemoteError: See `ReferencedFiles.open` and `open_reference`.
    """
    assert files is not None
    reference = unpacked_reference(value)
    if isinstance(reference, bytes):
        return _InlineFile(reference)
    if reference is not None:
        return files.open_reference(reference)
    try:
        return files.open(value.decode())
    except UnicodeDecodeError:
        raise BlobProblem(f"the path {value!r} is not UTF-8") from None


class OpenedFile:
    """An open file, or a value inside a file; a context manager that closes the file.

    Args:
        path: The file, for error messages.
        size: Bytes of the file.
        value: The value; None for the whole file.
        block_bytes: As in `RangeFile`.
        version: Identifies the file and its content; None if the content is not known to be the same when the file is
            opened again.

    Attributes:
        ranges: The file or value as a seekable file, for decoders.
        identity: Equal for the same part of files with the same version; None without a version.
    """

    def __init__(
        self, path: str, size: int, value: ValueRange | None, block_bytes: int = 2**15, version: Hashable = None
    ) -> None:
        self._path = path
        self._version = version
        self._block_bytes = block_bytes
        self._begin = 0 if value is None else value.offset
        self.ranges = RangeFile(self._read_at, size if value is None else value.size, block_bytes)

    def narrow(self, offset: int | None, size: int | None) -> None:
        """Restrict this to a part of the file that begins at `offset` (None for 0); called before anything is read.

        Raises:
            BlobProblem: The file has no such part.
        """
        begin, whole = offset or 0, self.ranges.size
        if size is None:
            raise BlobProblem(f"the reference has the offset {offset} of {self._path!r}, and no size; add its size")
        if begin < 0 or size < 0 or begin + size > whole:
            raise BlobProblem(f"the reference is to {size} bytes at offset {begin} of {self._path!r}, of {whole} bytes")
        self._begin = begin
        self.ranges = RangeFile(self._read_at, size, self._block_bytes)

    @property
    def identity(self) -> Hashable:
        """See the class."""
        return None if self._version is None else (self._version, self._begin, self.ranges.size)

    def _read_at(self, offset: int, count: int) -> bytes:
        try:
            data = self._read_file(self._begin + offset, count)
        except OSError as error:
            raise _failure(self._path, error) from error
        if len(data) != count:
            raise BlobProblem(f"the file became shorter while it was read: {len(data)} of {count} bytes are there")
        return data

    def _read_file(self, offset: int, count: int) -> bytes:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        raise NotImplementedError

    def read(self) -> bytes:
        """Return the whole file.

        Raises:
            BlobProblem: The file became shorter.
            SystemReadError, RemoteError: It cannot be read.
        """
        self.ranges.load(0, self.ranges.size)
        self.ranges.seek(0)
        return self.ranges.read(self.ranges.size)


class LocalFile(OpenedFile):
    """A local file.

    Args:
        path: The file.
        root: The folder that must contain the file after links are resolved; None if it may be anywhere.
        value: As in `OpenedFile`.
    """

    def __init__(self, path: str, root: str | None, value: ValueRange | None = None) -> None:
        real = os.path.realpath(path)
        if root is not None and not real.startswith(os.path.realpath(root).rstrip("/") + "/"):
            raise BlobProblem(f"the path {path!r} leads out of the data set, to {real!r}")
        # O_NONBLOCK, because opening a named pipe would wait for its writer.
        self._descriptor = os.open(real, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        found = os.fstat(self._descriptor)
        is_changed = value is not None and (
            found.st_size != value.file_bytes or value.mtime_ns not in (-1, found.st_mtime_ns)
        )
        if is_changed or not stat.S_ISREG(found.st_mode):
            os.close(self._descriptor)
            raise _changed(path) if is_changed else BlobProblem(f"the path {path!r} is not that of a file")
        version = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        super().__init__(path, found.st_size, value, version=version)

    def _read_file(self, offset: int, count: int) -> bytes:
        return os.pread(self._descriptor, count, offset)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class _StoredFile(OpenedFile):
    def __init__(self, path: str, filesystem: pafs.FileSystem, file: Any, value: ValueRange | None = None) -> None:
        self._filesystem, self._file = filesystem, file
        tag = (file.metadata() or {}).get(b"ETag")  # S3 sends it with the size
        super().__init__(path, file.size(), value, _REMOTE_BLOCK_BYTES, None if tag is None else (path, tag))

    def _read_file(self, offset: int, count: int) -> bytes:
        with archive_lock(self._filesystem):
            data: bytes = self._file.read_at(count, offset)
        return data

    def close(self) -> None:
        self._file.close()


class _InlineFile(OpenedFile):
    """Bytes that a row holds itself."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        super().__init__("", len(data), None)

    def _read_file(self, offset: int, count: int) -> bytes:
        return self._data[offset : offset + count]

    def close(self) -> None:
        pass


def _failure(path: str, error: OSError) -> Exception:
    return system_error(path, error) or RemoteError(f"{path}: {error}")


def _changed(path: str) -> SourceError:
    return SourceError(
        f"{path}: the file has vanished or changed since its footer was read; make a new loader to read it"
    )
