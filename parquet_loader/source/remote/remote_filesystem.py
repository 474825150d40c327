"""The remote store of a source: chooses its client, and makes fetchers for an epoch or a single read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import LruCache, RemoteOptions, hub_of, is_local, shown
from parquet_loader.common.storage import hdfs
from parquet_loader.errors import ConfigurationError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile
from parquet_loader.source.remote.blocking_client import BlockingClient, forked
from parquet_loader.source.remote.client import Bytes, Client
from parquet_loader.source.remote.concurrency import FIRST_REQUESTS
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.hub_client import HubClient
from parquet_loader.source.remote.obstore_client import ObstoreClient, client_for, is_usable
from parquet_loader.source.remote.request_scheduler import RequestScheduler

_MOST_URLS = 4096
_SCHEMES = {"s3": "s3", "gcs": "gs", "abfs": "abfs"}


def store_of(filesystem: pafs.FileSystem, options: RemoteOptions) -> RemoteStore | None:
    """Return the store of a filesystem; None if it is local."""
    return None if is_local(filesystem) else RemoteStore(filesystem, options)


class RemoteStore:
    """The filesystem of a remote source. Immutable except for its connections, which each process makes itself.

    Args:
        filesystem: The filesystem.
        options: How to fetch.
    """

    def __init__(self, filesystem: pafs.FileSystem, options: RemoteOptions) -> None:
        self.filesystem = filesystem
        hdfs.note(filesystem)
        self.options = options
        self._pid = os.getpid()
        self._obstore: tuple[int, ObstoreClient | None] | None = None
        self._is_plain = False
        self._signed_urls = LruCache(_MOST_URLS)
        self._shared: Fetcher | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without connections."""
        return RemoteStore, (self.filesystem, self.options)

    def for_one_loader(self) -> RemoteStore:
        """Return the same store with the same connections, but with its own fetchers."""
        own = RemoteStore(self.filesystem, self.options)
        own._pid, own._obstore, own._is_plain = self._pid, self._obstore, self._is_plain
        own._signed_urls = self._signed_urls
        return own

    def name_of(self, path: str) -> str:
        """Return the URL of a file, as messages name it."""
        if hdfs.is_hdfs(self.filesystem):
            return hdfs.url_of(self.filesystem, path)
        scheme = _SCHEMES.get(self.filesystem.type_name)
        return shown(path) if scheme is None or "://" in path else f"{scheme}://{path}"

    def fetcher(self, first_requests: int = FIRST_REQUESTS) -> Fetcher:
        """Return a fetcher that is not started; the caller starts and closes it."""
        return Fetcher(RequestScheduler(self._client, self.options, self.name_of, first_requests))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Use one fetcher for all reads within the block, before the first epoch."""
        with self.fetcher() as fetcher:
            self.share(fetcher)
            try:
                yield
            finally:
                self.unshare(fetcher)

    def prepare(self, path: str) -> None:
        """Make the client that will fetch a file; errors are raised by the first request."""
        with suppress(Exception):
            client = self._client(plain=False)
            if isinstance(client, ObstoreClient):
                client.placed(path)

    def cancel(self) -> None:
        """Cancel reads through the shared fetcher; they raise `LoaderStateError`."""
        if self._shared is not None:
            self._shared.close(wait=False)

    def share(self, fetcher: Fetcher) -> None:
        """Use an epoch's fetcher for all other reads too, until `unshare`."""
        self._shared = fetcher

    def unshare(self, fetcher: Fetcher) -> None:
        """Undo `share`, unless another epoch has shared its fetcher meanwhile."""
        if self._shared is fetcher:
            self._shared = None

    def fetch(self, file: SourceFile, ranges: Sequence[ByteRange]) -> list[pa.Buffer]:
        """Return the bytes of each range; see `RangeFetcher`. Without a shared fetcher it starts one for this call."""
        buffers = [np.empty(r.size, np.uint8) for r in ranges]
        self.fetch_into(file, ranges, buffers)
        return [pa.py_buffer(buffer) for buffer in buffers]

    def fetch_into(self, file: SourceFile, ranges: Sequence[ByteRange], buffers: Sequence[Bytes]) -> None:
        """Fill each buffer with its range. Raises as `fetch`; `LoaderStateError` if the epoch is closed meanwhile."""
        shared = Fetcher.current() or self._shared
        if shared is not None and shared.is_of_this_process:
            shared.run(shared.read_all(file, ranges, buffers))
            return
        with self.fetcher() as fetcher:
            fetcher.run(fetcher.read_all(file, ranges, buffers))

    def _client(self, plain: bool) -> Client:
        self._is_plain = self._is_plain or plain
        wanted = self.options.connections
        hub = hub_of(self.filesystem)
        if hub is not None and wanted != "obstore":
            return HubClient(hub, self._signed_urls, 2 * self.options.max_requests, self.options.stall_s)
        if not self._is_plain and wanted != "native":
            if self._obstore is None or self._obstore[0] != os.getpid():
                self._obstore = (os.getpid(), client_for(self.filesystem, self.options))
            if self._obstore[1] is not None:
                return self._obstore[1].again()
            if wanted == "obstore":
                reason = (
                    "does not support this filesystem" if is_usable() else "is not installed, or unusable after a fork"
                )
                raise ConfigurationError(
                    f"RemoteOptions(connections='obstore'): obstore {reason} ({self.filesystem.type_name}); "
                    "pip install 'torch-parquet-loader[remote]', or leave connections out"
                )
        return BlockingClient(forked(self.filesystem, self._pid), 2 * self.options.max_requests)
