"""The first start requests a listing and each footer once, the second start only the listing."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from demo.archive import ACCESS_KEY, SECRET_KEY, Server, find_rclone
from parquet_loader import BatchedDataLoader, OutputOptions, ReadOptions, RemoteError, RemoteOptions, SourceError
from parquet_loader.common.storage.redaction import without_secrets
from parquet_loader.source.remote.client import words_of
from parquet_loader.source.remote.concurrency import PATIENCE, ConcurrencyLimit, Hedging
from parquet_loader.source.remote.listers import _Pages, lister_for
from parquet_loader.source.snapshot import Snapshot
from parquet_loader.source.snapshot_cache import _loaded, open_remembered
from tests.support.examples import grid
from tests.support.far import Fault, Line, Proxy, far
from tests.support.processes import passes_on_both_sides_of_a_fork

NUMPY = OutputOptions(format="numpy")


def _has_rclone() -> bool:
    try:
        find_rclone()
    except RuntimeError:
        return False
    return True


class HttpServer(Server):
    """``rclone serve http`` over a folder."""

    protocol = "http"


needs_servers = pytest.mark.skipif(
    not _has_rclone() or importlib.util.find_spec("obstore") is None, reason="rclone or obstore is not installed"
)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("s3")
    folder = root / "bucket"
    for number in range(12):
        part = folder / "many" / f"day={number % 3}"
        part.mkdir(parents=True, exist_ok=True)
        write(part / f"{number:02} (ü%20).parquet", number)
    (folder / "many" / "_SUCCESS").touch()
    (folder / "odd.txt").write_text("no Parquet")
    with Server(root) as server:
        yield folder, server.endpoint


def write(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pq.write_table(pa.table({"id": np.arange(50) + 100 * seed, "x": rng.normal(size=50)}), path, row_group_size=20)


def loader_of(
    proxy: Proxy,
    source: Any = "bucket/many",
    *,
    filters: pc.Expression | None = None,
    num_threads: int | None = None,
    **options: Any,
) -> BatchedDataLoader:
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": "other"}
    home = pafs.S3FileSystem(endpoint_override=proxy.endpoint, scheme="http", **keys)
    reading = ReadOptions(remote=RemoteOptions(hedge=False, **options))
    more: dict[str, Any] = {"filters": filters, "num_threads": num_threads}
    return BatchedDataLoader(source, 64, filesystem=home, output_options=NUMPY, read_options=reading, **more)


def put(endpoint: str, key: str, path: Path) -> None:
    from obstore.store import S3Store

    bucket: Any = S3Store(
        "bucket",
        endpoint=f"http://{endpoint}",
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region="other",
        client_options={"allow_http": True},
    )
    bucket.put(key, path.read_bytes())


def ids(loader: BatchedDataLoader) -> list[int]:
    return sorted(int(i) for batch in loader for i in batch["id"])


EXPECTED = sorted(100 * seed + i for seed in range(12) for i in range(50))


@needs_servers
@pytest.mark.parametrize("connections", ["obstore", "native"])
def test_hive_partitions_and_odd_names_are_found(bucket: tuple[Path, str], connections: str) -> None:
    with far(bucket[1]) as proxy, loader_of(proxy, connections=connections) as loader:
        assert ids(loader) == EXPECTED
        assert set(loader.schema) == {"id", "x", "day"}
        files = loader._dataset.snapshot.files
        assert [file.path for file in files] == sorted(file.path for file in files)
        assert all((file.etag is not None) == (connections == "obstore") for file in files)


@needs_servers
@pytest.mark.parametrize("source", ["bucket/many/day=[12]/*.parquet", ["bucket/many/day=1", "bucket/many/day=2"]])
def test_globs_and_lists_are_found(bucket: tuple[Path, str], source: Any) -> None:
    with far(bucket[1]) as proxy, loader_of(proxy, source) as loader:
        assert len(loader._dataset.snapshot.files) == 8


@needs_servers
def test_a_start_is_a_listing_and_the_footers(bucket: tuple[Path, str], tmp_path: Path) -> None:
    with far(bucket[1]) as proxy:
        loader_of(proxy).close()
        assert len(proxy.log.requests) == 1 + 12
        pq.write_metadata(pa.schema([("id", pa.int64())]), tmp_path / "_common_metadata")
        put(bucket[1], "odd/_common_metadata", tmp_path / "_common_metadata")
        put(bucket[1], "odd/part.parquet", bucket[0] / "many" / "day=0" / "00 (ü%20).parquet")
    with far(bucket[1]) as proxy:
        loader_of(proxy, "bucket/odd").close()
        assert proxy.log.count("GET", "odd/_common_metadata") > 0


@needs_servers
def test_what_is_not_there_is_named(bucket: tuple[Path, str]) -> None:
    with far(bucket[1]) as proxy:
        with pytest.raises(SourceError, match="bucket/none: no such file or directory"):
            loader_of(proxy, "bucket/none")
        with pytest.raises(SourceError, match="matches nothing"):
            loader_of(proxy, "bucket/none/*.parquet")
        with pytest.raises(SourceError, match=r"no-bucket/data: cannot be listed: .*NoSuchBucket"):
            loader_of(proxy, "no-bucket/data")


@needs_servers
def test_a_listing_is_divided_where_its_pages_ended(bucket: tuple[Path, str]) -> None:
    with far(bucket[1]) as proxy:
        with loader_of(proxy) as loader:
            found = [file.path for file in loader._dataset.snapshot.files]
            store = loader._dataset.snapshot.remote
            assert store is not None
        for known in ([], found, found[::2], [*found, "bucket/many/day=9/behind"], ["bucket/many/before"] * 11):
            with store.fetcher() as fetcher:
                lister = lister_for(store, fetcher, known, page_keys=5)
                paths = [entry.path for entry in lister.below("bucket/many")]
            assert sorted(paths) == sorted([*found, "bucket/many/_SUCCESS"])
            assert len(paths) == len(set(paths))


@needs_servers
def test_the_second_start_reads_no_footer(bucket: tuple[Path, str], tmp_path: Path) -> None:
    with far(bucket[1]) as proxy:
        with loader_of(proxy, snapshot_cache=tmp_path) as loader:
            assert proxy.log.count("GET", ".parquet") == 12
            order = [batch["id"].tolist() for batch in loader]
        for _ in range(2):
            asked = proxy.log.count("GET", ".parquet")
            with loader_of(proxy, snapshot_cache=tmp_path) as loader:
                assert proxy.log.count("GET", ".parquet") == asked
                assert [batch["id"].tolist() for batch in loader] == order
                assert proxy.log.count("GET", ".parquet") == asked + 36  # a request for each row group, no footer


@needs_servers
def test_files_that_changed_or_came_are_read_and_what_is_damaged_too(bucket: tuple[Path, str], tmp_path: Path) -> None:
    kept, other = tmp_path / "kept", bucket[0] / "changing"
    write(tmp_path / "a", 1)
    write(tmp_path / "b", 2)
    for name in "xy":
        put(bucket[1], f"changing/{name}.parquet", tmp_path / "a")
    with far(bucket[1]) as proxy:
        with loader_of(proxy, "bucket/changing", snapshot_cache=kept) as loader:
            assert len(ids(loader)) == 100
        put(bucket[1], "changing/y.parquet", tmp_path / "b")
        put(bucket[1], "changing/z.parquet", tmp_path / "b")
        asked = proxy.log.count("GET", ".parquet")
        with loader_of(proxy, "bucket/changing", snapshot_cache=kept) as loader:
            assert proxy.log.count("GET", ".parquet") == asked + 2
            assert ids(loader) == sorted([*range(100, 150), *range(200, 250), *range(200, 250)])
        assert proxy.log.count("GET", "changing/x") == 1 + 2 * 3
        for damage in (b"", b"no archive", None):
            for path in kept.iterdir():
                data = path.read_bytes()
                path.write_bytes(bytes(reversed(data)) if damage is None else damage)
            with loader_of(proxy, "bucket/changing", snapshot_cache=kept) as loader:
                assert len(ids(loader)) == 150
        for path in kept.iterdir():
            os.utime(path, (0, 0))
        (kept / "other.footers").touch()
        killed = kept / f".{next(kept.glob('*.snapshot')).stem}-killed"
        killed.touch()
        os.utime(killed, (0, 0))
        put(bucket[1], "changing/z.parquet", tmp_path / "a")
        loader_of(proxy, "bucket/changing", snapshot_cache=kept).close()
        left = sorted(path.suffix for path in kept.iterdir())
        assert left == [".footers", ".footers", ".footers", ".snapshot"]  # another's, the one read from, and the newest
    shutil.rmtree(other)


def remembered(tmp_path: Path) -> tuple[Path, Callable[[], Snapshot]]:
    """Write a remote source; return its snapshot cache, and a function that opens the source with it."""
    (tmp_path / "data").mkdir()
    for number in range(3):
        write(tmp_path / "data" / f"{number}.parquet", number)
    home = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    return tmp_path / "kept", lambda: open_remembered("data", home, RemoteOptions(snapshot_cache=tmp_path / "kept"))


def rows_without_the_store(snapshot: Snapshot, data: Path) -> list[int]:
    """Return the rows of each file from cached footers; the files have been removed."""
    snapshot.footers.clear()
    away = data.rename(data.with_name("away"))
    try:
        return [snapshot.footers.get(number).num_rows for number in range(3)]
    finally:
        away.rename(data)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_kept_footers_that_are_lost_are_made_again(tmp_path: Path, damage: str) -> None:
    kept, start = remembered(tmp_path)
    start()
    assert rows_without_the_store(start(), tmp_path / "data") == [50] * 3
    (footers,) = kept.glob("*.footers")
    raw = footers.read_bytes()
    if damage == "gone":
        footers.unlink()
    else:
        footers.write_bytes(raw[:-1] if damage == "cut" else bytes(255 - b for b in raw))
    if damage == "flipped":
        found = start().footers
        found.clear()
        assert [found.get(number).num_rows for number in range(3)] == [50] * 3  # the damage is found out
    start()
    assert rows_without_the_store(start(), tmp_path / "data") == [50] * 3


def test_a_directory_that_is_read_only_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, start = remembered(tmp_path)
    start()
    before = set(kept.iterdir())

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    assert rows_without_the_store(start(), tmp_path / "data") == [50] * 3
    assert set(kept.iterdir()) == before


def test_a_full_disk_does_not_hide_why_a_source_cannot_be_opened(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="needs limits of file sizes")
    _, start = remembered(tmp_path)
    (tmp_path / "data" / "3.parquet").write_bytes(b"PAR1 damaged PAR1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(SourceError, match=r"3\.parquet"):
            start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def without(archive: bytes, name: str) -> bytes:
    """Return an archive of arrays without one of them."""
    stream = io.BytesIO()
    with np.load(io.BytesIO(archive)) as stored:
        np.savez(stream, **{other: stored[other] for other in stored.files if other != name})
    return stream.getvalue()


def test_a_listing_of_a_version_that_kept_no_sizes_without_dictionaries_is_made_again(tmp_path: Path) -> None:
    kept, start = remembered(tmp_path)
    expected = start().row_group_unencoded_bytes.tolist()
    (path,) = kept.glob("*.snapshot")
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    manifest = without(arrays["manifest"].tobytes(), "row_group_unencoded_bytes")
    np.savez(path.with_suffix(".npz"), **(arrays | {"manifest": np.frombuffer(manifest, np.uint8)}))
    path.with_suffix(".npz").rename(path)
    found = start()
    assert found.row_group_unencoded_bytes.tolist() == expected
    assert rows_without_the_store(start(), tmp_path / "data") == [50] * 3


def test_sources_of_the_same_name_in_different_stores_are_kept_apart(tmp_path: Path) -> None:
    homes = [pafs.SubTreeFileSystem(str(tmp_path / name), pafs.LocalFileSystem()) for name in "ab"]
    for number, name in enumerate("ab"):
        (tmp_path / name / "data").mkdir(parents=True)
        for part in range(3):
            write(tmp_path / name / "data" / f"{part}.parquet", 10 * number + part)
    options = RemoteOptions(snapshot_cache=tmp_path / "kept")
    for home in homes:
        open_remembered("data", home, options)
    for home, name in zip(homes, "ab", strict=True):
        found = open_remembered("data", home, options)
        assert rows_without_the_store(found, tmp_path / name / "data") == [50] * 3
    assert len(list((tmp_path / "kept").glob("*.snapshot"))) == 2


def test_files_of_one_schema_share_it_while_they_are_opened(tmp_path: Path) -> None:
    _, start = remembered(tmp_path)
    footers = start().footers
    first, *others = [footers.get(number).schema.arrow for number in range(3)]
    assert all(schema is first for schema in others)


def test_two_starts_at_once_leave_each_other_their_footers(tmp_path: Path) -> None:
    kept, start = remembered(tmp_path)
    start()
    write(tmp_path / "data" / "1.parquet", 9)
    one = start()
    write(tmp_path / "data" / "1.parquet", 8)
    start()
    assert len(list(kept.glob("*.footers"))) == 3
    assert one.footers.stored is not None
    assert all(one.footers.stored.read(number) for number in range(3))


def test_a_damaged_listing_is_made_again_whatever_it_ends_in(tmp_path: Path) -> None:
    kept, start = remembered(tmp_path)
    home = start().filesystem
    (path,) = kept.glob("*.snapshot")
    raw, rng = path.read_bytes(), np.random.default_rng(1)
    for at in range(0, len(raw), 7):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        snapshot = _loaded(str(path), home, RemoteOptions())
        assert snapshot is None or snapshot.rows == 150


# A line of input delivers SIGINT to another thread. The main thread is not woken, as if the signal came just before it
# began to wait.
INTERRUPTED = """
import faulthandler, signal, sys, threading
faulthandler.register(signal.SIGUSR1)
import pyarrow.compute as pc
import pyarrow.fs as pafs
from parquet_loader import BatchedDataLoader, OutputOptions, ReadOptions, RemoteOptions
endpoint, key, secret, connections = sys.argv[1:5]
def interrupt():
    if sys.stdin.readline():
        threading.Event().wait(0.3)  # now the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
fs = pafs.S3FileSystem(endpoint_override=endpoint, scheme="http", access_key=key, secret_key=secret, region="other")
options = ReadOptions(remote=RemoteOptions(stall_s=500.0, deadline_s=1000.0, connections=connections))
numpy = OutputOptions(format="numpy")  # imports no torch
BatchedDataLoader(
    "bucket/many", 10, filesystem=fs, read_options=options, filters=pc.field("x") > 0, output_options=numpy
)
"""


@needs_servers
@grid(
    "wakes, connections, answered",
    [pytest.param(True, id="at once"), pytest.param(False, id="though it does not wake the main thread")],
    [pytest.param("obstore", id="obstore"), pytest.param("native", id="native")],
    [pytest.param(0, id="listing"), pytest.param(1, id="footers"), pytest.param(13, id="counting")],
    everyday=lambda wakes, connections, answered: (
        connections == "obstore" and answered < 2 and wakes == (answered == 1)
    ),
)
def test_an_opening_that_is_never_answered_is_left_by_ctrl_c(
    bucket: tuple[Path, str], connections: str, answered: int, *, wakes: bool
) -> None:
    with far(bucket[1]) as proxy:
        proxy.line.fault_of = lambda method, target, number: "stall" if number > answered else None
        command = [sys.executable, "-c", INTERRUPTED, proxy.endpoint, ACCESS_KEY, SECRET_KEY, connections]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            proxy.wait_for(lambda: len(proxy.log.requests) > answered)
            if wakes:
                process.send_signal(signal.SIGINT)
            try:
                _, said = process.communicate("" if wakes else "interrupt\n", timeout=60)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)  # prints the stacks
                with suppress(subprocess.TimeoutExpired):
                    process.wait(2)
                process.kill()
                _, said = process.communicate()
    assert process.returncode == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said
    assert "panicked" not in said


@needs_servers
def test_files_that_are_named_need_no_listing(bucket: tuple[Path, str]) -> None:
    files = [f"bucket/many/day={n}/{n:02} (ü%20).parquet" for n in range(3)]
    with far(bucket[1]) as proxy:
        proxy.line.fault_of = lambda method, target, number: "403" if "list-type" in target else None
        with loader_of(proxy, files) as loader:
            assert len(ids(loader)) == 150
        assert proxy.log.count("HEAD", ".parquet") == 3


@needs_servers
@pytest.mark.parametrize("faults", [1, 10**9], ids=["once", "for good"])
def test_a_listing_that_breaks_off_is_requested_again(bucket: tuple[Path, str], faults: int) -> None:
    with far(bucket[1]) as proxy:

        def fault_of(method: str, target: str, number: int) -> Fault | None:
            return "truncate" if "list-type" in target and proxy.log.faults["truncate"] < faults else None

        proxy.line.fault_of = fault_of
        if faults == 1:
            with loader_of(proxy) as loader:
                assert ids(loader) == EXPECTED
            assert proxy.log.faults["truncate"] == 1
        else:
            with pytest.raises(RemoteError, match=r"^s3://bucket/many: cannot be listed: .* does not answer"):
                loader_of(proxy, deadline_s=0.5)
            assert proxy.log.faults["truncate"] > 1


def test_a_listing_goes_on_after_the_last_page_that_came() -> None:
    keys, begun = [f"{n:02}" for n in range(10)], list[str | None]()

    async def listed(after: str | None) -> AsyncIterator[list[dict[str, str]]]:
        begun.append(after)
        left = [key for key in keys if after is None or key > after]
        for first in range(0, len(left), 3):
            if first and len(begun) < 3:
                raise OSError("Generic S3 error: Error getting list response body: HTTP error")
            yield [{"path": key} for key in left[first : first + 3]]

    async def found() -> list[str]:
        pages, found = _Pages(listed, None, 60.0), list[str]()
        while page := await pages.next():
            found += [entry["path"] for entry in page]
        return found

    assert asyncio.run(found()) == keys
    assert begun == [None, "02", "05"]


@needs_servers
def test_what_is_no_parquet_is_found_out_by_its_end_alone(bucket: tuple[Path, str]) -> None:
    with far(bucket[1]) as proxy:
        with pytest.raises(SourceError, match=r"odd.txt: not a readable Parquet file of 10 bytes: .*magic bytes"):
            loader_of(proxy, "bucket/odd.txt")
        assert len(proxy.log.requests) == 3  # a listing, which finds nothing below it, its size, and its end


@needs_servers
def test_rows_that_pass_are_counted_with_one_request_a_file_many_at_a_time(bucket: tuple[Path, str]) -> None:
    with far(bucket[1], Line(latency_s=0.05)) as proxy, loader_of(proxy):
        to_open = proxy.log.count("GET", ".parquet")
    with far(bucket[1], Line(latency_s=0.05)) as proxy, loader_of(proxy, filters=pc.field("x") > 0, num_threads=2):
        assert proxy.log.count("GET", ".parquet") == to_open + 36
        assert proxy.log.most_open > 4


BY_HTTP = """
from parquet_loader import BatchedDataLoader, OutputOptions, ReadOptions, RemoteOptions
url, connections = sys.argv[1:]
options = ReadOptions(remote=RemoteOptions(connections=connections or None, deadline_s=60.0))
loader = BatchedDataLoader(url, 64, output_options=OutputOptions(format="numpy"), read_options=options)
"""


@needs_servers
# By itself, obstore before the fork, and fsspec behind it.
@pytest.mark.parametrize("connections", ["", pytest.param("native", marks=pytest.mark.slow)])
def test_a_fork_reads_http_through_connections_of_its_own(bucket: tuple[Path, str], connections: str) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    with HttpServer(bucket[0]) as server:
        url = f"http://{server.endpoint}/many/day=0/00 (ü%2520).parquet"
        passes_on_both_sides_of_a_fork(BY_HTTP, url, connections)


@needs_servers
@pytest.mark.parametrize("connections", ["obstore", "native"])
def test_http_urls_are_read_by_ranges(bucket: tuple[Path, str], connections: Any) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    with HttpServer(bucket[0]) as server, far(server.endpoint) as proxy:
        base = f"http://{proxy.endpoint}/many"
        urls = [f"{base}/day={n % 3}/{n:02} (ü%2520).parquet" for n in range(12)]
        reading = ReadOptions(remote=RemoteOptions(connections=connections, hedge=False))
        with BatchedDataLoader(urls, 64, output_options=NUMPY, read_options=reading) as loader:
            assert ids(loader) == EXPECTED
        assert len(proxy.log.ranges) == 12 + 36
        with pytest.raises(SourceError, match="an HTTP server, which has no listings"):
            BatchedDataLoader(f"{base}/", 64)
        with pytest.raises(SourceError, match=r"none.parquet\?\.\.\.: no such file"):
            BatchedDataLoader(f"{base}/none.parquet?token=secret", 64)


def test_no_secret_is_shown() -> None:
    assert without_secrets("s3://KEY:SECRET@b/x?endpoint_override=h: no") == "s3://...@b/x?... no"
    assert (
        without_secrets("GET https://h/x.parquet?X-Amz-Signature=abc&y=1 (404)") == "GET https://h/x.parquet?... (404)"
    )
    assert without_secrets("s3://bucket/a?.parquet and user@host") == "s3://bucket/a?.parquet and user@host"
    for secret, shown in {
        "s3://AKIAKEY:abc/DEF+x@bucket/x": "s3://...@bucket/x",
        "s3://AKIAKEY:12/DEF@bucket/a?y=1": "s3://...@bucket/a?...",
        "ftp://user:p@ss@host/x": "ftp://...@host/x",
        "https://h/x?sv=1&sig=a)b'c is": "https://h/x?... is",
        "https://h/x.parquet?TOKEN: no": "https://h/x.parquet?... no",
        "url='https://h/x?sig=a'), and": "url='https://h/x?...'), and",
        "http://h:9000/a@b.parquet": "http://h:9000/a@b.parquet",
        "s3://bucket/day=1/a@b:c": "s3://bucket/day=1/a@b:c",
    }.items():
        assert without_secrets(secret) == shown
    xml = (
        "503 Slow Down: <Error><Code>SlowDown</Code><AWSAccessKeyId>AK</AWSAccessKeyId><Message>less</Message></Error>"
    )
    assert words_of(RuntimeError(f"server: {xml}")) == "server: 503 Slow Down: SlowDown: less"


@needs_servers
def test_a_signature_is_in_no_message_and_no_file(bucket: tuple[Path, str], tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    remote = RemoteOptions(hedge=False, snapshot_cache=tmp_path / "kept")
    with HttpServer(bucket[0]) as server:
        url = f"http://{server.endpoint}/many/day=0/00 (ü%2520).parquet?X-Amz-Signature=SECRET"
        with BatchedDataLoader(url, 64, output_options=NUMPY, read_options=ReadOptions(remote=remote)) as loader:
            assert len(ids(loader)) == 50
            snapshot = loader._dataset.snapshot
            assert "SECRET" in snapshot.files[0].path
            assert "SECRET" not in snapshot.row_group(0).name
        with pytest.raises(SourceError, match="names this file twice") as caught:
            BatchedDataLoader([url, url], 64)
        assert "SECRET" not in str(caught.value)
        with pytest.raises(SourceError, match="not a readable Parquet file") as caught:
            BatchedDataLoader(url.replace("many/day=0/00 (ü%2520).parquet", "odd.txt"), 64)
        assert "SECRET" not in str(caught.value)
    assert not list((tmp_path / "kept").iterdir())


def test_more_requests_are_made_as_long_as_they_bring_more() -> None:
    limit, now = ConcurrencyLimit(200, 0.0), 0.0

    def round_of(rate: float) -> None:
        nonlocal now
        limit.full()
        for _ in range(max(limit.requests, int(0.25 * rate) + 2)):
            now += 1 / rate
            limit.arrived(1, now)

    def line(requests: int) -> float:
        return min(requests, 60) / 0.1

    for _ in range(10):
        round_of(line(limit.requests))
    assert 60 <= limit.requests <= 60 * 1.6
    reached = limit.requests
    for _ in range(PATIENCE - 2):
        round_of(line(60))
    assert limit.requests <= reached * 1.3
    most = limit.requests
    for _ in range(20 * PATIENCE):
        round_of(line(60))
        most = max(most, limit.requests)
    assert most > limit.requests  # more were tried, in vain
    assert most <= reached * 1.3 * 1.3
    reached = limit.requests
    limit.busy(now)
    limit.busy(now)
    assert reached * 0.7 - 1 <= limit.requests < reached


def test_no_more_than_the_most_and_no_fewer_than_one() -> None:
    limit = ConcurrencyLimit(4, 0.0)
    assert limit.requests == 4
    for second in range(20):
        limit.busy(float(second))
    assert limit.requests == 1


def test_a_second_request_waits_for_what_others_took() -> None:
    hedging = Hedging(least_s=0.1)
    assert hedging.after_s(1000) is None
    for _ in range(20):
        hedging.took(1000, 0.2)
    assert hedging.after_s(1000) == pytest.approx(0.6)
    assert hedging.after_s(2000) == pytest.approx(0.6)
    assert hedging.after_s(10**6) is None  # of such none is known yet
    assert [hedging.may() for _ in range(9)] == [True] * 8 + [False]
    for _ in range(180):
        hedging.took(1000, 0.2)
    assert [hedging.may() for _ in range(3)] == [True, True, False]
    hedging.ended(10)
    assert [hedging.may() for _ in range(2)] == [True, False]
