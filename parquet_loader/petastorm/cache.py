"""Caches of row groups, as they were read and before anything is decoded."""

from __future__ import annotations

import abc
import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from threading import Lock
from typing import Any

import pyarrow as pa

from parquet_loader.common import check_private, local_path, make_private
from parquet_loader.errors import ConfigurationError

_KEPT = re.compile(r"[0-9a-f]{64}\.arrow")
_OURS = re.compile(r"[0-9a-f]{64}\.arrow|\..{8}\.arrow\.partial")


class CacheBase(abc.ABC):
    """What all caches are."""

    @abc.abstractmethod
    def get(self, key: str, fill_cache_func: Callable[[], pa.Table]) -> pa.Table:
        """Return what is kept under a key, or what the function returns, which may be kept then."""


class NullCache(CacheBase):
    """Keeps nothing."""

    def get(self, key: str, fill_cache_func: Callable[[], pa.Table]) -> pa.Table:  # noqa: ARG002
        """Return what the function returns."""
        return fill_cache_func()


class LocalDiskCache(CacheBase):
    """Keeps row groups as Arrow files in a directory; those not used for longest make room for others.

    The directory stays when a reader is closed, so that the next run finds it filled, unless `cleanup` is asked for.
    Any number of threads and processes may share it: a file appears whole or not at all.

    Args:
        path: The directory; it is made if need be.
        size_limit_bytes: Most bytes of all files together.
        expected_row_size_bytes: Bytes of a row, as a guess; only checked against the limit.
        shards: As in Petastorm; there is no need of them here.
        cleanup: Whether `cleanup`, and so the end of a reader, removes what is kept, and the directory if it is empty
            then.
        settings: ``eviction_policy="none"``: what does not fit any more is not kept. Others have no meaning here.

    Raises:
        ConfigurationError: the limit has no room for a few rows.
    """

    def __init__(
        self,
        path: str,
        size_limit_bytes: int,
        expected_row_size_bytes: int | None = None,
        shards: int = 6,
        cleanup: bool = False,
        **settings: Any,
    ) -> None:
        if not path or not isinstance(size_limit_bytes, int) or size_limit_bytes < 1:
            raise ConfigurationError("a local-disk cache needs cache_location, a path, and cache_size_limit, in bytes")
        self._evicts = settings.get("eviction_policy", "least-recently-used") != "none"
        if self._evicts and size_limit_bytes / shards < 5 * (expected_row_size_bytes or 0):
            raise ConfigurationError(
                f"cache_size_limit={size_limit_bytes} has no room for a few rows of {expected_row_size_bytes} bytes"
            )
        self._path = local_path(path)
        self._limit_bytes = size_limit_bytes
        self._cleanup = cleanup
        self._lock = Lock()  # of this process's evictions; files themselves need none
        make_private(self._path)
        if not settings.get("shared", False):
            check_private(self._path, "cache_location", "pass cache_extra_settings={'shared': True}")

    def get(self, key: str, fill_cache_func: Callable[[], pa.Table]) -> pa.Table:
        """Return the row group kept under a key, or read it and keep it."""
        path = os.path.join(self._path, hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest() + ".arrow")
        with contextlib.suppress(OSError, pa.ArrowException):
            with pa.OSFile(path) as file, pa.ipc.open_file(file) as kept:
                table = kept.read_all()
            os.utime(path, follow_symlinks=False)
            return table
        table = fill_cache_func()
        if self._has_room(table.nbytes):
            self._keep(path, table)
        return table

    def _keep(self, path: str, table: pa.Table) -> None:
        partial = None
        try:
            make_private(self._path)  # the end of another reader may have removed it
            descriptor, partial = tempfile.mkstemp(dir=self._path, prefix=".", suffix=".arrow.partial")
            os.close(descriptor)
            with pa.OSFile(partial, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            os.replace(partial, path)
        except OSError:
            if partial is not None:
                with contextlib.suppress(OSError):
                    os.unlink(partial)  # the disk is full: nothing is kept, and the row group is returned all the same

    def _entries(self, names: re.Pattern[str]) -> list[os.DirEntry[str]]:
        """Return the files of this cache; others that lie in the directory are nobody's business here."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as entries:
            return [entry for entry in entries if names.fullmatch(entry.name)]
        return []

    def _has_room(self, nbytes: int) -> bool:
        """Make room, if files may be removed; return whether there is any."""
        if nbytes > self._limit_bytes:
            return False
        with self._lock:
            kept = []
            for entry in self._entries(_KEPT):
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat()
                    kept.append((found.st_mtime_ns, found.st_size, entry.path))
            held = sum(size for _, size, _ in kept)
            if held + nbytes > self._limit_bytes and not self._evicts:
                return False
            for _, size, path in sorted(kept):
                if held + nbytes <= self._limit_bytes:
                    break
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                held -= size
        return True

    def cleanup(self) -> None:
        """Remove what is kept, and the directory if it holds nothing else, if that was asked for."""
        if self._cleanup:
            for entry in self._entries(_OURS):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
            with contextlib.suppress(OSError):
                os.rmdir(self._path)
