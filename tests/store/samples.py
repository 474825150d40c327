"""Samples for stores. Processes that write them import this module, and so neither pytest nor torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, Scalar, Schema, StoreOptions, Tensor

SCHEMA = Schema({"x": Tensor("uint8", (256,)), "i": Scalar("int64")})
SMALL = StoreOptions(file_bytes=30_000, row_group_bytes=10_000, durable=False)  # three row groups a file
ONE = StoreOptions(file_bytes=10_000, durable=False)  # one


def rows(first: int, count: int) -> dict[str, Any]:
    i = np.arange(first, first + count)
    x = np.random.default_rng(first).integers(0, 256, (count, 256), dtype=np.uint8)
    x[:, 0] = i % 251
    return {"x": x, "i": i}


def published(path: str | Path) -> list[str]:
    return sorted(os.path.join(path, n) for n in os.listdir(path) if n.endswith(".parquet"))


def used_bytes(path: str | Path) -> int:
    """Every byte of samples on the disk, published or under way."""
    return sum(os.stat(f).st_size for f in published(path)) + sum(
        os.stat(e).st_size for e in os.scandir(os.path.join(path, ".store", "unfinished"))
    )


def numbers(path: str | Path) -> list[int]:
    return [i for f in published(path) for i in pq.read_table(f, columns=["i"])["i"].to_pylist()]


def delivered(loader: BatchedDataLoader) -> list[int]:
    out: list[int] = []
    for batch in loader:
        i = batch["i"].tolist()
        assert (batch["x"][:, 0].numpy() == np.array(i) % 251).all()
        out += i
    return out


def yield_some(number: int, batches: int) -> Iterator[dict[str, Any]]:
    for k in range(batches):
        yield rows(1000 * number + 10 * k, 10)


def yield_for_ever(number: int) -> Iterator[dict[str, Any]]:
    k = 0
    while True:
        yield rows(100_000 * number + 10 * k, 10)
        k += 1


def fail_at_first(number: int, folder: str) -> Iterator[dict[str, Any]]:
    yield rows(0, 5)
    marker = Path(folder) / "failed"
    if not marker.exists():
        marker.touch()
        raise ValueError("the archive is away")
    yield rows(5, 5)


def fork_and_be_killed(number: int, folder: str, killer: int) -> Iterator[dict[str, Any]]:
    yield rows(0, 5)
    if not (Path(folder) / "forked").exists():
        (Path(folder) / "forked").touch()
        test_is_over = os.open(Path(folder) / "fifo", os.O_RDONLY)
        if os.fork() == 0:
            os.read(test_is_over, 1)
            os._exit(0)
        os.kill(os.getpid(), killer)
