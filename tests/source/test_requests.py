"""Requests to a fake store: what their deadlines count, and a thread that cannot start."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import selectors
import tarfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions, ReadOptions, RemoteError, RemoteOptions, SourceError
from parquet_loader.errors import OpenFilesError
from parquet_loader.source import SourceFile
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.remote.backoff import Backoff
from parquet_loader.source.remote.blocking_client import CallThreads, forked, fsspec_of
from parquet_loader.source.remote.client import Bytes, TransientError
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.remote_filesystem import store_of
from parquet_loader.source.remote.request_scheduler import RequestScheduler
from tests.support.slow_files import SlowFile

FILE = SourceFile("bucket/a", 10**9, None)
NUMPY = OutputOptions(format="numpy")
UNHEDGED = ReadOptions(remote=RemoteOptions(hedge=False))

Answer = Callable[[ByteRange, Callable[[], None]], Awaitable[None]]


class Scripted:
    """A store that answers by a function; `tells_progress` as in `Client`."""

    def __init__(self, answer: Answer, *, tells_progress: bool = True) -> None:
        self.answer = answer
        self.tells_progress = tells_progress
        self.asked: list[ByteRange] = []
        self.now = self.most = 0

    async def read(self, file: SourceFile, span: ByteRange, into: Bytes, progress: Callable[[], None]) -> None:
        self.asked.append(span)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.answer(span, progress)
        finally:
            self.now -= 1
        into[:] = span.start % 251

    def close(self) -> None:
        pass


class Leaping(selectors.DefaultSelector):
    """Time passes only if there is nothing to do, and then at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(timeout and 0)
        if not ready:
            self.now_s += timeout or 0
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop in which the speed of this machine counts for nothing."""

    def __init__(self) -> None:
        self._leaping = Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s


@contextmanager
def fetching(client: Scripted, **options: Any) -> Iterator[Fetcher]:
    settings = RemoteOptions(**{"hedge": False, **options})
    requests = RequestScheduler(lambda plain: client, settings, backoff_s=0.001)
    with mock.patch.object(asyncio.events, "new_event_loop", LeapingLoop), Fetcher(requests) as fetcher:
        yield fetcher


def fetch(fetcher: Fetcher, file: SourceFile, ranges: list[ByteRange]) -> list[bytes]:
    buffers = [np.empty(span.size, np.uint8) for span in ranges]
    fetcher.run(fetcher.read_all(file, ranges, buffers))
    return [buffer.tobytes() for buffer in buffers]


def spans(count: int, nbytes: int = 10) -> list[ByteRange]:
    return [ByteRange(n * nbytes, (n + 1) * nbytes) for n in range(count)]


def test_waiting_for_others_is_not_counted_by_the_deadline() -> None:
    async def answer(span: ByteRange, progress: Callable[[], None]) -> None:
        for _ in range(3):
            await asyncio.sleep(0.1)
            progress()

    with fetching(Scripted(answer), deadline_s=1.0, stall_s=0.9, max_requests=4) as fetcher:
        assert len(fetch(fetcher, FILE, spans(24))) == 24  # 1.8 s of work for a deadline of 1 s
        assert fetcher.figures.retries == 0


def test_what_failed_is_tried_again_before_what_was_not_tried() -> None:
    failed: list[int] = []

    async def answer(span: ByteRange, progress: Callable[[], None]) -> None:
        await asyncio.sleep(0.01)
        if span.start == 0 and not failed:
            failed.append(0)
            raise TransientError("not yet")

    client = Scripted(answer)
    with fetching(client, max_requests=1) as fetcher:
        fetch(fetcher, FILE, spans(12))
    assert client.asked.index(spans(1)[0]) == 0
    assert client.asked[1:].index(spans(1)[0]) <= 2
    assert len(client.asked) == 13


@pytest.mark.parametrize("tells_progress", [True, False])
def test_a_client_that_tells_nothing_underway_has_time_for_the_whole(tells_progress: bool) -> None:
    async def answer(span: ByteRange, progress: Callable[[], None]) -> None:
        await asyncio.sleep(0.5)

    client = Scripted(answer, tells_progress=tells_progress)
    with fetching(client, stall_s=0.2, deadline_s=1.0 if tells_progress else 10.0) as fetcher:
        if tells_progress:
            with pytest.raises(RemoteError, match=r"\d attempts .* no byte arrived for 0.2 s"):
                fetch(fetcher, FILE, spans(1, 2**20))
        else:
            fetch(fetcher, FILE, spans(1, 2**20))  # 4 s at 256 KiB a second
    assert (len(client.asked) > 1) == tells_progress


def test_fewer_are_asked_for_where_bytes_stop_coming() -> None:
    async def answer(span: ByteRange, progress: Callable[[], None]) -> None:
        if len(client.asked) <= 8:
            await asyncio.sleep(60)

    client = Scripted(answer)
    with fetching(client, stall_s=0.05, max_requests=8) as fetcher:
        fetch(fetcher, FILE, spans(8))
        assert fetcher._requests._limit.requests < 8


def test_second_requests_are_counted_among_those_in_flight() -> None:
    async def answer(span: ByteRange, progress: Callable[[], None]) -> None:
        if len(client.asked) == 11:  # the first time
            await asyncio.sleep(60)

    client = Scripted(answer)
    with fetching(client, hedge=True, max_requests=1) as fetcher:
        fetch(fetcher, FILE, spans(11))
        assert fetcher.figures.hedged == 1
        assert fetcher.figures.most_in_flight == client.most == 2


def test_a_second_request_that_fails_makes_room_for_another() -> None:
    asked = 0

    async def answer(span: ByteRange, progress: Callable[[], None]) -> None:
        nonlocal asked
        if span.start:
            return
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()  # never answered
        if asked == 2:
            raise TransientError("503")

    client = Scripted(answer)
    with fetching(client, hedge=True, stall_s=1000.0, deadline_s=1000.0) as fetcher:
        fetch(fetcher, FILE, spans(12)[1:])  # so that it is known how long one takes
        fetch(fetcher, FILE, spans(1))
        assert asked == 3
        assert fetcher.figures.hedged == 2


def test_a_file_of_fsspec_that_was_replaced_is_found_out_by_its_etag() -> None:
    memory = pytest.importorskip("fsspec.implementations.memory")
    asked: list[str] = []

    class Tagged(memory.MemoryFileSystem):  # type: ignore[misc, name-defined]
        protocol = "tagged"
        store: dict[str, Any] = {}  # noqa: RUF012 (as fsspec has it)

        def info(self, path: str, **options: Any) -> Any:
            asked.append(path)
            return {**super().info(path, **options), "ETag": str(sum(self.store[path].getvalue()))}

    fs = Tagged()
    fs.pipe_file("/a", bytes(range(100)))
    store = store_of(pafs.PyFileSystem(pafs.FSSpecHandler(fs)), RemoteOptions(hedge=False))
    assert store is not None
    file = SourceFile("/a", 100, None, etag=str(sum(range(100))))
    with store.fetcher() as fetcher:
        assert fetch(fetcher, file, [ByteRange(0, 10), ByteRange(20, 30)])[1] == bytes(range(20, 30))
        fetch(fetcher, file, [ByteRange(0, 10)])
        assert 1 <= len(asked) <= 2  # those that begin at the same time
    fs.pipe_file("/a", bytes(100))
    with store.fetcher() as fetcher, pytest.raises(SourceError, match="its ETag was 4950, and is 0"):
        fetch(fetcher, file, [ByteRange(0, 10)])


def test_files_of_a_tar_archive_are_read_one_range_at_a_time() -> None:
    implementation = pytest.importorskip("fsspec.implementations.tar")

    archive, content = io.BytesIO(), np.random.default_rng(0).bytes(4000)
    with tarfile.open(fileobj=archive, mode="w") as made:
        entry = tarfile.TarInfo("a")
        entry.size = len(content)
        made.addfile(entry, io.BytesIO(content))
    fs = implementation.TarFileSystem(SlowFile(archive.getvalue()))
    store = store_of(pafs.PyFileSystem(pafs.FSSpecHandler(fs)), RemoteOptions(hedge=False))
    assert store is not None
    ranges = [ByteRange(start, start + 100) for start in range(0, len(content), 100)]
    with store.fetcher() as fetcher:
        found = fetch(fetcher, SourceFile("a", len(content), None), ranges)
    assert b"".join(found) == content


def test_an_archive_is_opened_again_after_a_fork_or_refused(tmp_path: Path) -> None:
    implementation = pytest.importorskip("fsspec.implementations.tar")
    with tarfile.open(tmp_path / "a.tar", mode="w") as made:
        made.add(__file__, "a")
    with open(tmp_path / "a.tar", "rb") as file:
        for given in (str(tmp_path / "a.tar"), file):
            fs = implementation.TarFileSystem(given)
            wrapped = pafs.PyFileSystem(pafs.FSSpecHandler(fs))
            assert forked(wrapped, os.getpid()) is wrapped
            if given is file:
                with pytest.raises(
                    SourceError, match=r"TarFileSystem was made of an open file, .* make it of the path"
                ):
                    forked(wrapped, os.getppid())
            else:
                assert fsspec_of(forked(wrapped, os.getppid())).find("") == ["a"]


def test_a_pass_begins_without_waiting_for_a_footer(tmp_path: Path) -> None:
    local_files = pytest.importorskip("fsspec.implementations.local")
    answers = threading.Event()
    answers.set()

    class Far(local_files.LocalFileSystem):  # type: ignore[misc, name-defined]
        protocol = "far"

        def cat_file(self, *args: Any, **options: Any) -> Any:
            answers.wait()
            return super().cat_file(*args, **options)

    pq.write_table(pa.table({"x": np.arange(100)}), tmp_path / "a.parquet")
    home = pafs.PyFileSystem(pafs.FSSpecHandler(Far()))
    with BatchedDataLoader(str(tmp_path / "a.parquet"), 10, filesystem=home, output_options=NUMPY) as loader:
        loader._dataset.snapshot.footers.clear()
        answers.clear()
        try:
            batches = iter(loader)
        finally:
            answers.set()
        assert sum(len(batch["x"]) for batch in batches) == 100


def test_a_footer_that_several_want_is_asked_for_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "a.parquet", row_group_size=100)
    home = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    options: dict[str, Any] = {"output_options": NUMPY, "read_options": UNHEDGED}
    with BatchedDataLoader("a.parquet", 10, filesystem=home, **options) as loader:
        for _ in range(3):
            loader._dataset.snapshot.footers.clear()
            assert sum(len(batch["x"]) for batch in loader) == 1000
            figures = loader.stats().remote
            assert figures is not None
            assert figures.requests == 11


def test_an_error_that_nobody_waits_for_any_more_is_not_printed(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(fetcher: Fetcher) -> None:
        may_fail = asyncio.Event()

        async def fail() -> None:
            await may_fail.wait()
            raise RemoteError("no answer")

        caller = asyncio.create_task(fetcher.once("footer", fail))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        may_fail.set()
        await asyncio.sleep(0)

    async def nothing(span: ByteRange, progress: Callable[[], None]) -> None:
        pass

    with fetching(Scripted(nothing)) as fetcher:
        fetcher.run(ask(fetcher))
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_fetching_thread_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"x": np.arange(100)}), tmp_path / "a.parquet")
    home = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    with BatchedDataLoader("a.parquet", 10, filesystem=home, output_options=NUMPY) as loader:

        def no_more_files(*_: object) -> None:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "new_event_loop", no_more_files)
            patch.setattr(asyncio.events, "new_event_loop", no_more_files)
            with pytest.raises(OpenFilesError, match=r"cannot be fetched: no free file descriptor is left"):
                next(iter(loader))
        assert sum(len(batch["x"]) for batch in loader) == 100


def test_calls_share_the_threads_that_the_system_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def once(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    async def answers(threads: CallThreads) -> list[int]:
        return await asyncio.gather(*(threads.call(partial(int, n)) for n in range(3)))

    monkeypatch.setattr(threading.Thread, "start", once)
    threads = CallThreads(3)
    try:
        assert asyncio.run(answers(threads)) == [0, 1, 2]
    finally:
        threads.close()


def test_waits_between_attempts_double_up_to_a_limit_and_add_what_the_server_asks() -> None:
    backoff = Backoff(0.5)
    for longest in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0):
        assert longest / 2 <= backoff.next_s() <= longest
    assert 410 <= backoff.next_s(400.0) <= 420
    assert backoff.next_s(300.0) <= 20, "more than ten minutes in all"
    assert 210 <= backoff.next_s(200.0) <= 220
    assert backoff.asked_s == 600
