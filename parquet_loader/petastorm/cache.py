"""Caches of row groups in their stored form, before decoding."""

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

from parquet_loader.common import check_private, local_path, make_private, remove_file
from parquet_loader.errors import ConfigurationError
from parquet_loader.write import storage_errors

_ENTRY = re.compile(r"[0-9a-f]{64}\.arrow")
_OURS = re.compile(r"[0-9a-f]{64}\.arrow|\..{8}\.arrow\.partial")


class CacheBase(abc.ABC):
    """Base of all caches."""

    @abc.abstractmethod
    def get(self, key: str, fill_cache_func: Callable[[], pa.Table]) -> pa.Table:
        """Return the entry of a key, or else the function's result, which the cache may keep."""


class NullCache(CacheBase):
    """Keeps nothing."""

    def get(self, key: str, fill_cache_func: Callable[[], pa.Table]) -> pa.Table:  # noqa: ARG002
        """Return the function's result."""
        return fill_cache_func()


class LocalDiskCache(CacheBase):
    """Keeps row groups as Arrow files in a directory, and evicts the least recently used ones.

    The directory outlives the reader, unless `cleanup` is set, so the next run finds it filled. Threads and processes
    may share it: a file appears whole or not at all.

    Args:
        path: The directory; created if it does not exist.
        size_limit_bytes: Limit for the size of all files.
        expected_row_size_bytes: Estimated size of a row; only compared with the limit.
        shards: Accepted for compatibility with Petastorm; only compared with the limit.
        cleanup: Whether `cleanup`, which the end of a reader calls, deletes the entries, and the directory if it is
            then empty.
        settings: ``eviction_policy="none"`` keeps old entries and stores no new ones when the cache is full.
            ``shared=True`` accepts a directory that others may write to. Others have no effect.

    Raises:
        ConfigurationError: the limit is too small for a few rows, or others may write to the directory.
        WriteError: the directory cannot be created.
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
                f"cache_size_limit={size_limit_bytes} is too small for a few rows of {expected_row_size_bytes} bytes"
            )
        self._path = local_path(path)
        self._limit_bytes = size_limit_bytes
        self._cleanup = cleanup
        self._lock = Lock()  # held by the thread of this process that evicts; files need no lock
        with storage_errors(f"cache_location={path!r}", "the directory cannot be created: {}; pass another one"):
            make_private(self._path)
        if not settings.get("shared", False):
            check_private(self._path, "cache_location", "pass cache_extra_settings={'shared': True}")

    def get(self, key: str, fill_cache_func: Callable[[], pa.Table]) -> pa.Table:
        """Return the row group of a key from the cache, or else the function's result, which is then kept."""
        path = os.path.join(self._path, hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest() + ".arrow")
        with contextlib.suppress(OSError, pa.ArrowException):
            with pa.OSFile(path) as file, pa.ipc.open_file(file) as entry:
                table = entry.read_all()
            os.utime(path, follow_symlinks=False)
            return table
        table = fill_cache_func()
        with contextlib.suppress(OSError):  # for example, the disk is full
            if self._make_space(table.nbytes):
                self._keep(path, table)
        return table

    def _keep(self, path: str, table: pa.Table) -> None:
        make_private(self._path)  # the end of another reader may have deleted it
        descriptor, partial = tempfile.mkstemp(dir=self._path, prefix=".", suffix=".arrow.partial")
        os.close(descriptor)
        try:
            with pa.OSFile(partial, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            os.replace(partial, path)
        except OSError:
            os.unlink(partial)
            raise

    def _entries(self, names: re.Pattern[str]) -> list[os.DirEntry[str]]:
        """Return the cache's own files in the directory."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as entries:
            return [entry for entry in entries if names.fullmatch(entry.name)]
        return []

    def _make_space(self, nbytes: int) -> bool:
        """Evict entries until that many bytes are free; return whether they are."""
        if nbytes > self._limit_bytes:
            return False
        with self._lock:
            entries = []
            for entry in self._entries(_ENTRY):
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat()
                    entries.append((found.st_mtime_ns, found.st_size, entry.path))
            excess = sum(size for _, size, _ in entries) + nbytes - self._limit_bytes
            for _, size, path in sorted(entries) if self._evicts else ():
                if excess <= 0:
                    break
                remove_file(path)
                excess -= size
        return excess <= 0

    def cleanup(self) -> None:
        """Delete the entries, and the directory if it is then empty, if the cache was made with ``cleanup=True``."""
        if self._cleanup:
            for entry in self._entries(_OURS):
                remove_file(entry.path)
            with contextlib.suppress(OSError):
                os.rmdir(self._path)
