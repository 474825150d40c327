"""Fetches byte ranges from S3, Google Cloud Storage, Azure and HTTP with obstore, without a thread for each request.

The connection options come from the pickled form of the pyarrow filesystem. Missing credentials are those that obstore
finds in the environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs

from parquet_loader.common import RemoteOptions
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile
from parquet_loader.source.remote.blocking_client import fsspec_of
from parquet_loader.source.remote.client import (
    Bytes,
    PermanentError,
    TransientError,
    UnsupportedServerError,
    as_client_error,
    check_same,
    time_ns,
    view,
    words_of,
)

# A chunk is what arrives in this time. Each chunk needs the GIL once, which may take 5 ms if a training loop is busy in
# Python; but with a low bandwidth a chunk has to arrive within `stall_s`.
_CHUNK_S = 0.05
_LEAST_CHUNK_BYTES, _MOST_CHUNK_BYTES = 2**16, 2**20
_NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
# A server without range requests (releases of obstore differ in the error), or that sends bodies in HTTP's chunks.
_UNSUPPORTED = re.compile("non-partial response|Content-Length Header missing")
_PERMANENT = ("NotFoundError", "PermissionDeniedError", "UnauthenticatedError", "PreconditionError", "NotModifiedError")

# If none of these is set, credentials may be in the files of the AWS CLI, which only pyarrow reads.
_S3_FOUND_BY_OBSTORE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)

# The runtime of obstore belongs to the process that used it first; its threads do not exist after a fork.
_used_in: int | None = None


def is_usable() -> bool:
    """Whether obstore is installed, and its runtime does not belong to a parent process."""
    return (_used_in in (None, os.getpid())) and importlib.util.find_spec("obstore") is not None


class ObstoreClient:
    """A client over obstore.

    Args:
        make_store: Makes the store of a bucket, container or host, from its name and obstore's own options.
        options: Deadlines.
        lists: Whether it is for listings; obstore then retries requests itself.
        split: Splits a path into the bucket and the key.
    """

    tells_progress = True

    def __init__(
        self,
        make_store: Callable[[str, Mapping[str, Any]], Any],
        options: RemoteOptions,
        *,
        lists: bool = False,
        split: Callable[[str], tuple[str, str]] = lambda path: (path.partition("/")[0], path.partition("/")[2]),
    ) -> None:
        global _used_in
        _used_in = os.getpid()
        self.obstore: Any = importlib.import_module("obstore")
        self._make_store = make_store
        self._split = split
        connect = timedelta(seconds=min(options.stall_s, 10.0))
        # The fetcher has deadlines of its own; these end requests that it has cancelled.
        patience_s = options.stall_s if lists else options.deadline_s
        client = {"timeout": timedelta(seconds=patience_s), "connect_timeout": connect}
        self._shared = {"client_options": client, "retry_config": _retries(options) if lists else _NO_RETRIES}
        self._stores: dict[str, Any] = {}
        self._bytes_per_s = 0.0  # of the request that ended last

    def again(self) -> Self:
        """Return a client for another fetcher, with the same connections and its own bandwidth estimate."""
        other = copy(self)
        other._bytes_per_s = 0.0
        return other

    def placed(self, path: str) -> tuple[Any, str]:
        """Return the store of a path, and the key in the store."""
        bucket, key = self._split(path)
        if bucket not in self._stores:
            self._stores[bucket] = self._make_store(bucket, self._shared)
        return self._stores[bucket], key

    async def read(self, file: SourceFile, span: ByteRange, into: Bytes, progress: Callable[[], None]) -> None:
        """Fill `into`; see `Client.read`."""
        options: dict[str, Any] = {"range": (span.start, span.stop)}
        # A weak tag never matches (RFC 9110, 8.8.3.2); some servers' listings lack the quotes.
        if file.etag is not None and not file.etag.startswith("W/"):
            options["if_match"] = file.etag if file.etag.startswith('"') else f'"{file.etag}"'
        at, began_s = 0, time.monotonic()
        chunk_bytes = min(max(_LEAST_CHUNK_BYTES, int(_CHUNK_S * self._bytes_per_s)), _MOST_CHUNK_BYTES, span.size)
        try:
            store, key = self.placed(file.path)
            result = await self.obstore.get_async(store, key, options=options)
            progress()
            modified_ns = time_ns(result.meta["last_modified"]) if self._split is _split_url else None
            check_same(file, result.meta["size"], result.meta["e_tag"], modified_ns)
            async for chunk in result.stream(min_chunk_size=chunk_bytes):
                arrived = view(chunk)
                into[at : at + len(arrived)] = arrived[: span.size - at]
                at += len(arrived)
                progress()
        except (TransientError, PermanentError, UnsupportedServerError):
            raise
        except Exception as error:
            raise self._judged(error) from None
        finally:
            self._bytes_per_s = at / max(1e-6, time.monotonic() - began_s)
        if at != span.size:
            raise TransientError(f"{at} of {span.size} bytes arrived")

    def _judged(self, error: Exception) -> Exception:
        kind = type(error).__name__
        if kind == "PreconditionError":
            return PermanentError(f"the file has changed since it was listed: {words_of(error)}")
        if kind == "NotFoundError":
            return PermanentError(f"the file has vanished since it was listed: {words_of(error)}")
        if kind in _PERMANENT:
            return PermanentError(words_of(error))
        if kind == "NotSupportedError" or _UNSUPPORTED.search(str(error)):
            return UnsupportedServerError(words_of(error))
        return as_client_error(error)

    def close(self) -> None:
        """Do nothing, because obstore's connections end with this object."""


def _retries(options: RemoteOptions) -> dict[str, Any]:
    waits = {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=20), "base": 2}
    return {"max_retries": 1000, "retry_timeout": timedelta(seconds=options.deadline_s), "backoff": waits}


def client_for(filesystem: pafs.FileSystem, options: RemoteOptions, *, lists: bool = False) -> ObstoreClient | None:
    """Return an obstore client for a filesystem's store; None if obstore does not support it."""
    if not is_usable():
        return None
    if _is_plain_http(filesystem) and not lists:
        return ObstoreClient(_maker("HTTPStore", {}, {}), options, split=_split_url)
    makers = {"s3": _s3, "gcs": _gcs, "abfs": _azure}
    if filesystem.type_name not in makers:
        return None
    given = filesystem.__reduce__()[1]
    if not (isinstance(given, tuple) and given and isinstance(given[0], dict)):
        return None
    make_store = makers[filesystem.type_name](given[0])
    return None if make_store is None else ObstoreClient(make_store, options, lists=lists)


def _is_plain_http(filesystem: pafs.FileSystem) -> bool:
    """Whether a filesystem is fsspec's for HTTP without options, such as headers or a user."""
    fs = fsspec_of(filesystem)
    if fs is None:
        return False
    return "http" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol) and not fs.storage_options


def _split_url(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise UnsupportedServerError("a URL with a user or a query")
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path).lstrip("/")


def _s3(given: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], Any] | None:
    config: dict[str, Any] = {"region": given["region"] or os.environ.get("AWS_REGION", "us-east-1")}
    client: dict[str, Any] = {}
    if given["role_arn"] or given["proxy_options"]["host"] or given["tls_ca_file_path"]:
        return None
    if given["endpoint_override"]:
        scheme = given["scheme"] or "https"
        config["endpoint"] = given["endpoint_override"]
        if "://" not in config["endpoint"]:
            config["endpoint"] = f"{scheme}://{config['endpoint']}"
        config["virtual_hosted_style_request"] = bool(given["force_virtual_addressing"])
        client["allow_http"] = config["endpoint"].startswith("http://")
    if given["anonymous"]:
        config["skip_signature"] = True
    elif given["access_key"]:
        config["access_key_id"], config["secret_access_key"] = given["access_key"], given["secret_key"]
        if given["session_token"]:
            config["session_token"] = given["session_token"]
    elif not any(os.environ.get(name) for name in _S3_FOUND_BY_OBSTORE):
        return None  # credentials of a profile or of the machine, which pyarrow finds
    return _maker("S3Store", config, client)


def _gcs(given: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], Any] | None:
    if given["access_token"] or given["target_service_account"]:
        return None
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    if given["endpoint_override"]:
        config["base_url"] = f"{given['scheme'] or 'https'}://{given['endpoint_override']}"
        client["allow_http"] = config["base_url"].startswith("http://")
    if given["anonymous"]:
        config["skip_signature"] = True
    return _maker("GCSStore", config, client)


def _azure(given: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], Any] | None:
    config: dict[str, Any] = {"account_name": given["account_name"]}
    client: dict[str, Any] = {"allow_http": given["blob_storage_scheme"] == "http"}
    authority = given["blob_storage_authority"]
    if not authority.startswith("."):
        config["endpoint"] = f"{given['blob_storage_scheme']}://{authority}/{given['account_name']}"
    if given["account_key"]:
        config["account_key"] = given["account_key"]
    if given["sas_token"]:
        config["sas_key"] = given["sas_token"]
    if given["client_id"]:
        names = {"client_id": "client_id", "client_secret": "client_secret", "tenant_id": "tenant_id"}
        config |= {name: given[ours] for name, ours in names.items() if given[ours]}
    return _maker("AzureStore", config, client)


def _maker(kind: str, config: Mapping[str, Any], client: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], Any]:
    def make(bucket: str, shared: Mapping[str, Any]) -> Any:
        store = getattr(importlib.import_module("obstore.store"), kind)
        options = {**shared["client_options"], **client}
        if kind == "HTTPStore":
            options["allow_http"] = bucket.startswith("http://")
            return store(bucket, client_options=options, retry_config=shared["retry_config"])
        return store(bucket, **config, client_options=options, retry_config=shared["retry_config"])

    return make
