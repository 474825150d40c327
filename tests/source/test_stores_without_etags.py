"""Stores that give no ETags: a file that was replaced is not taken for the one that was listed."""

from __future__ import annotations

import http.server
import io
import re
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, LocalCache, OutputOptions, ReadOptions, RemoteOptions, SourceError
from tests.support.http_server import serving

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


class _Server:
    """One file, without an ETag.

    Attributes:
        body, modified_s: The file, and the time that the server gives; None for no time.
        failures: How many of the next requests about the file, which have no range, fail.
    """

    def __init__(self) -> None:
        self.body, self.failures = b"", 0
        self.modified_s: float | None = None

    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if span is None and server.failures > 0:
                    server.failures -= 1
                    self.send_error(500)
                    return
                body = server.body[int(span[1]) : int(span[2]) + 1] if span else server.body
                self.send_response(206 if span else 200)
                self.send_header("Content-Length", str(len(body)))
                if span:
                    self.send_header("Content-Range", f"bytes {span[1]}-{span[2]}/{len(server.body)}")
                if server.modified_s is not None:
                    self.send_header("Last-Modified", formatdate(server.modified_s, usegmt=True))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 (the name that http.server calls)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> _Server:
    return _Server()


@pytest.fixture
def url(server: _Server) -> Iterator[str]:
    with serving(server.handler()) as endpoint:
        yield f"http://{endpoint}/a.parquet"


def parquet_of(values: list[int]) -> bytes:
    """Return a file whose footer does not depend on the values."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": values}), sink, compression="none", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


def opened(url: str, connections: str | None = None, cache: LocalCache | None = None) -> BatchedDataLoader:
    remote = RemoteOptions(connections=connections)  # type: ignore[arg-type]
    return BatchedDataLoader(
        url, 50, output_options=OutputOptions(format="numpy"), read_options=ReadOptions(remote=remote), cache=cache
    )


def rows_of(loader: BatchedDataLoader) -> list[int]:
    rows: list[int] = np.concatenate([batch["x"] for batch in loader]).tolist()
    return rows


@pytest.mark.parametrize("connections", ["obstore", "native"])
def test_a_file_that_was_modified_between_epochs_is_an_error(server: _Server, url: str, connections: str) -> None:
    if connections == "obstore":
        pytest.importorskip("obstore")
    server.body, server.modified_s = parquet_of([*range(100)]), 1e9
    with opened(url, connections) as loader:
        assert rows_of(loader) == [*range(100)]
        server.body, server.modified_s = parquet_of([*range(100, 200)]), 1e9 + 1
        with pytest.raises(SourceError, match="it was modified after it was listed"):
            rows_of(loader)


def test_a_file_of_fsspec_that_has_another_size_is_an_error(server: _Server, url: str) -> None:
    server.body = parquet_of([*range(100)])
    with opened(url, "native") as loader:
        assert rows_of(loader) == [*range(100)]
        size = len(server.body)
        server.body = parquet_of([*range(100, 250)])
        with pytest.raises(SourceError, match=f"it has {len(server.body)} bytes, and had {size} when it was listed"):
            rows_of(loader)


@pytest.mark.parametrize("times", [(None, None), (1e9, 1e9 + 1), (4e9, 4e9)])  # 4e9: not old, by any clock
def test_a_local_cache_does_not_hold_the_rows_of_a_replaced_file(
    server: _Server, url: str, tmp_path: Path, times: tuple[float | None, float | None]
) -> None:
    for first, modified_s in zip((0, 100), times, strict=True):
        server.body, server.modified_s = parquet_of([*range(first, first + 100)]), modified_s
        with opened(url, cache=LocalCache(tmp_path / "cache", "10MB")) as loader:
            assert rows_of(loader) == [*range(first, first + 100)]


def test_a_server_that_fails_when_it_is_asked_about_a_file_is_asked_again(server: _Server, url: str) -> None:
    server.body = parquet_of([*range(100)])
    with opened(url, "native") as loader:
        server.failures = 2  # fsspec asks twice, and reports a missing file
        assert rows_of(loader) == [*range(100)]
        assert server.failures == 0
