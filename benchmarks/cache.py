"""Measures the local cache: epochs compared with local files, hits if it is too small, and killed processes.

    python -m benchmarks.cache speed            about two minutes
    python -m benchmarks.cache share            the share of hits, compared with a least-recently-used cache
    python -m benchmarks.cache kills --kills 400
    python -m benchmarks.cache speed --out benchmarks/results/cache.json

A directory that is passed as a filesystem stands in for a store. The second epoch is timed, which reads only the cache.
Epochs from the cache and from local files take turns, with the same rows in the same order, all in the page cache.
Figures are medians over the rounds. `ratio` is the median of the ratios of neighbours, `spread` their largest minus
their smallest value, and `ratio_of_fastest` the ratio of the fastest epochs. `ratio_of_first_epochs` is the ratio of
the first epochs of new loaders, in which the bytes that are read from the cache are
compared with its checksums. ``--out`` adds the figures to a file of results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, LocalCache, OutputOptions, Shard

MIB = 2**20
ROUNDS = 9
BATCH = {"tabular": 4096, "tensors": 256}


def write(folder: Path, kind: str, row_groups: int, group_bytes: int) -> None:
    """Write files of eight row groups: 40 numbers with nulls, or rows of 16 KiB as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(-(-row_groups // 8)):
        groups = min(8, row_groups - 8 * number)
        if kind == "tensors":
            rows = groups * (group_bytes // 16384)
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(16384), rows, [None, pa.py_buffer(rng.bytes(rows * 16384))]
            )
            table = pa.table([values], schema=pa.schema([pa.field("x", values.type, nullable=False)]))
            pq.write_table(
                table, folder / f"{number:03}.parquet", group_bytes // 16384, compression="none", use_dictionary=False
            )
        else:
            rows = groups * (group_bytes // 160)
            columns: dict[str, Any] = {f"d{i}": rng.random(rows, dtype=np.float32) for i in range(13)}
            columns |= {f"c{i}": np.minimum(rng.zipf(1.3, rows), 10**6).astype(np.int32) for i in range(26)}
            columns["y"] = rng.integers(0, 2, rows).astype(np.int8)
            pq.write_table(pa.table(columns), folder / f"{number:03}.parquet", group_bytes // 160)


def far(root: Path) -> pafs.FileSystem:
    """Return a filesystem that a loader takes for a remote one."""
    return pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())


def one_epoch(loader: BatchedDataLoader) -> float:
    """Return the seconds that the next epoch takes."""
    began = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began


def speed(root: Path, kind: str, size_bytes: int, rounds: int) -> dict[str, Any]:
    """An epoch from the cache, and one from local files; the first of a loader, and later ones."""
    group_bytes = 8 * MIB if kind == "tensors" else 4 * MIB
    write(root / kind, kind, size_bytes // group_bytes, group_bytes)
    options: dict[str, Any] = {"shuffle": True, "output_options": OutputOptions(format="numpy")}
    cache = LocalCache(root / "cache", 4 * size_bytes)
    with BatchedDataLoader(kind, BATCH[kind], filesystem=far(root), cache=cache, **options) as loader:
        one_epoch(loader)

    def opened() -> tuple[BatchedDataLoader, BatchedDataLoader]:
        return (
            BatchedDataLoader(root / kind, BATCH[kind], **options),
            BatchedDataLoader(kind, BATCH[kind], filesystem=far(root), cache=cache, **options),
        )

    firsts: list[float] = []
    for _ in range(rounds):
        local, cached = opened()
        with local, cached:
            firsts.append(one_epoch(local) / one_epoch(cached))
    local, cached = opened()
    with local, cached:
        one_epoch(local)
        one_epoch(cached)
        stats = cached.stats()
        assert stats.cache is not None
        assert stats.cache.hit_rate == 1.0
        times: list[tuple[float, float]] = []
        for number in range(rounds):  # who is first takes turns
            if number % 2:
                second, first = one_epoch(local), one_epoch(cached)
            else:
                first, second = one_epoch(cached), one_epoch(local)
            times.append((first, second))
    ratios = [of_local / of_cache for of_cache, of_local in times]
    return {
        "read_bytes": stats.bytes_read,
        "rows": stats.rows,
        "local_rows_per_s": round(stats.rows / median(t for _, t in times)),
        "cached_rows_per_s": round(stats.rows / median(t for t, _ in times)),
        "ratio": round(median(ratios), 3),
        "spread": round(max(ratios) - min(ratios), 3),
        "ratio_of_fastest": round(min(t for _, t in times) / min(t for t, _ in times), 3),
        "ratio_of_first_epochs": round(median(firsts), 3),
        "rounds": rounds,
    }


class LeastRecentlyUsed:
    """A least-recently-used cache, which cyclic reading defeats."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._taken_bytes = 0

    def hit_rate(self, reads: Iterable[tuple[int, int]]) -> float:
        """Read row groups, each with its bytes, and return the share of bytes that was there."""
        hits = total = 0
        for row_group, nbytes in reads:
            total += nbytes
            if row_group in self._kept:
                hits += nbytes
                self._kept.move_to_end(row_group)
                continue
            self._kept[row_group] = nbytes
            self._taken_bytes += nbytes
            while self._taken_bytes > self._limit_bytes:
                self._taken_bytes -= self._kept.popitem(last=False)[1]
        return hits / max(total, 1)


def share(root: Path, ranks: int, *, shuffle: bool, row_groups: int = 128, epochs: int = 5) -> dict[str, Any]:
    """The share of bytes found in a cache of a quarter of the data, epoch by epoch, all ranks together."""
    write(root / "share", "tensors", row_groups, MIB)
    size = sum(path.stat().st_size for path in (root / "share").iterdir())
    limit = size // 4
    loaders = [
        BatchedDataLoader(
            "share",
            64,
            filesystem=far(root),
            cache=LocalCache(root / f"cache-{ranks}-{shuffle}", limit),
            shuffle=shuffle,
            shard=Shard(rank, ranks),
            output_options=OutputOptions(format="numpy"),
        )
        for rank in range(ranks)
    ]
    lru, found, theirs = LeastRecentlyUsed(limit), list[float](), list[float]()
    for epoch in range(epochs):
        orders = [loader._plan(epoch).row_group.tolist() for loader in loaders]
        hits = fetched = 0
        for loader in loaders:
            one_epoch(loader)
            figures = loader.stats().cache
            assert figures is not None
            hits, fetched = hits + figures.bytes_from_cache, fetched + figures.bytes_fetched
        found.append(round(hits / (hits + fetched), 4))
        theirs.append(round(lru.hit_rate((group, MIB) for order in orders for group in order), 4))
    for loader in loaders:
        loader.close()
    return {
        "data_bytes": size,
        "cache_bytes": limit,
        "hit_rates": found,
        "least_recently_used": theirs,
        "worst_of_later_epochs_to_cache_over_data": round(min(found[1:]) / (limit / size), 3),
    }


def main() -> None:
    """Run the requested measurement, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "share", "kills"])
    parser.add_argument("--bytes", type=int, default=512 * MIB)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--kills", type=int, default=400)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary directory")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    before = os.getloadavg()[0]
    if given.folder is not None:
        os.makedirs(given.folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        root = Path(folder)
        if given.what == "speed":
            figures: dict[str, Any] = {
                kind: speed(root / kind, kind, given.bytes, given.rounds) for kind in ("tabular", "tensors")
            }
        elif given.what == "share":
            figures = {
                f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {'shuffled' if shuffle else 'in order'}": share(
                    root / f"{ranks}-{shuffle}", ranks, shuffle=shuffle
                )
                for ranks in (1, 4)
                for shuffle in (True, False)
            }
        else:
            from tests.read.cache.kills import kill_at_random  # noqa: PLC0415  (the tests are beside the benchmarks)

            figures = asdict(kill_at_random(root, kills=given.kills, seed=given.seed))
    told = {
        "command": " ".join(["python -m benchmarks.cache", *sys.argv[1:]]).partition(" --out")[0],
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {"pyarrow": pa.__version__, "numpy": np.__version__},
        "load_average": {"before": round(before, 1), "after": round(os.getloadavg()[0], 1)},
        **figures,
    }
    print(json.dumps(told, indent=1))
    if given.out is not None:
        known = json.loads(given.out.read_text()) if given.out.exists() else {}
        given.out.write_text(json.dumps({**known, given.what: told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
