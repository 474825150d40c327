"""A mistyped address of a store is reported as such."""

from __future__ import annotations

import http.server
import os
import socket
import ssl
import threading
import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from parquet_loader import BatchedDataLoader, ConfigurationError, ReadOptions, RemoteError, RemoteOptions, SourceError
from parquet_loader.common import probe
from parquet_loader.common.storage.filesystem import resolve
from tests.support.http_server import serving

CONNECTIONS = ["obstore", "native"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore this machine's proxies and credentials."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class _Console(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = b"<!doctype html><html><body>console</body></html>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_HEAD = do_GET  # noqa: N815 (the name that http.server calls)

    def log_message(self, *_: object) -> None:
        pass


def opened(source: object, connections: str = "obstore", deadline_s: float = 100.0, **options: object) -> None:
    remote = RemoteOptions(connections=connections, deadline_s=deadline_s)  # type: ignore[arg-type]
    BatchedDataLoader(source, 4, read_options=ReadOptions(remote=remote), **options).close()  # type: ignore[arg-type]


def at(endpoint: str, more: str = "&scheme=http") -> str:
    return f"s3://key:secret@bucket/train?endpoint_override={endpoint}&region=us-east-1{more}"


@pytest.mark.parametrize("connections", CONNECTIONS)
def test_a_server_of_plain_http_that_is_asked_in_https_is_told_within_seconds(connections: str) -> None:
    began = time.monotonic()
    with (
        serving(_Console) as endpoint,
        pytest.raises(RemoteError, match=r"was asked in https; add scheme=http"),
    ):
        opened(at(endpoint, ""), connections)
    assert time.monotonic() - began < 60  # else it was tried again until the deadline


def test_a_store_that_speaks_https_is_not_refused_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection, pytest.raises((ssl.SSLError, OSError)):
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=refuse)
        thread.start()
        assert probe("127.0.0.1", server.getsockname()[1], encrypted=True) is None
        thread.join()


def test_a_server_that_is_no_object_store_is_told_as_such() -> None:
    with (
        serving(_Console) as endpoint,
        pytest.raises(SourceError, match="no object store answers there; check the endpoint"),
    ):
        opened(at(endpoint))


def test_a_store_that_never_answers_is_a_remote_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(RemoteError, match="the store does not answer; check the endpoint"),
    ):
        opened(at(f"127.0.0.1:{silent.getsockname()[1]}"), deadline_s=1.0)


def test_an_option_that_nobody_knows_is_named() -> None:
    with pytest.raises(SourceError, match="query parameter in S3 URI: 'endpoint'"):
        opened("s3://bucket/train?endpoint=http://127.0.0.1:1")


@pytest.mark.parametrize("source", [Path("s3://bucket/train"), "gs:/bucket/train"])
def test_a_url_that_lost_a_slash_is_told(source: object) -> None:
    with pytest.raises(SourceError, match=r"(s3|gs)://bucket/train: this URL came with one slash"):
        opened(source)


def test_a_directory_of_such_a_name_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    assert resolve("s3:/bucket")[1] == str(tmp_path / "s3:" / "bucket")


@pytest.mark.parametrize("path", ["bucket/train", "s3://bucket/train", "s3a://bucket/train", "S3://bucket/train"])
def test_a_path_of_a_filesystem_may_be_a_url_of_it(path: str) -> None:
    store = pafs.S3FileSystem(region="us-east-1", access_key="a", secret_key="b")
    assert resolve(path, store)[1] == "bucket/train"


def test_a_url_of_another_filesystem_is_refused() -> None:
    store = pafs.S3FileSystem(region="us-east-1", access_key="a", secret_key="b")
    with pytest.raises(ConfigurationError, match="filesystem= is one of s3://, and this is not a path within it"):
        resolve("gs://bucket/train", store)


def test_the_scheme_of_a_url_may_be_in_capitals() -> None:
    found, path = resolve("S3://a:b@bucket/train?region=us-east-1")
    assert (found.type_name, path) == ("s3", "bucket/train")
