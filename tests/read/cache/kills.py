"""Processes that read through one cache, two at a time, and a parent that kills them at random moments."""

from __future__ import annotations

import contextlib
import os
import random
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.common.storage.file_locks import exclusive
from parquet_loader.read.cache.paths import CachePaths
from tests.read.cache.remote import account, far
from tests.support.doomed import Doomed, doomed, said, say
from tests.support.processes import forkserver

ROWS, GROUP_ROWS, WORDS = 3000, 100, 128
DATA_SETS = ("one", "other")
LIMIT_BYTES = 2**21  # of 3 MiB of one data set, and 6 of both
AT_ONCE = 2
LIFE_S = 0.25  # at most, once at work; half of them live for an epoch first


@dataclass(slots=True)
class Outcome:
    """What came of it; `errors` is empty if all was well."""

    errors: list[str] = field(default_factory=list)
    kills: int = 0
    rows: int = 0
    hits: int = 0
    stored_bytes: int = 0
    damaged: int = 0
    most_bytes: int = 0


def content(i: Any) -> Any:
    """The words of rows by their numbers, uint64 ``[n, WORDS]``: no two rows have one in common."""
    numbers = np.asarray(i, np.uint64)[:, None] * np.uint64(WORDS) + np.arange(WORDS, dtype=np.uint64)
    return numbers * np.uint64(0x9E3779B97F4A7C15)


def write(root: Path) -> None:
    """Write two data sets of 30 row groups each."""
    for place, name in enumerate(DATA_SETS):
        (root / name).mkdir(parents=True)
        i = np.arange(place * ROWS, (place + 1) * ROWS)
        words = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(8 * WORDS), ROWS, [None, pa.py_buffer(content(i).tobytes())]
        )
        fields = [pa.field("i", pa.int64(), nullable=False), pa.field("x", words.type, nullable=False)]
        table = pa.table([pa.array(i), words], schema=pa.schema(fields))
        pq.write_table(table, root / name / "0.parquet", row_group_size=GROUP_ROWS, compression="none")


def read(root: str, cache: str, number: int, log: str) -> None:
    """Read epochs until killed, every row exactly once and as it was written; an error ends it, and is told."""
    from parquet_loader import BatchedDataLoader, LocalCache, OutputOptions

    name = DATA_SETS[number % 2]
    first = ROWS * (number % 2)
    try:
        with BatchedDataLoader(
            name,
            50,
            shuffle=True,
            seed=number // 2 % 3,  # some read the same row groups at the same time
            num_threads=2,
            filesystem=far(Path(root)),
            cache=LocalCache(cache, LIMIT_BYTES),
            output_options=OutputOptions(format="numpy"),
        ) as loader:
            say(log, reading=True)
            while True:
                seen = []
                for batch in loader:
                    words = np.ascontiguousarray(batch["x"]).view(np.uint64).reshape(len(batch["i"]), WORDS)
                    if not np.array_equal(words, content(batch["i"])):
                        say(log, error=f"wrong rows: {batch['i'].tolist()}")
                    seen += batch["i"].tolist()
                if sorted(seen) != list(range(first, first + ROWS)):
                    say(log, error=f"{len(seen)} rows, {len(set(seen))} different")
                figures = loader.stats().cache
                assert figures is not None
                if figures.problem is not None:
                    say(log, error=figures.problem)
                counts = {"rows": len(seen), "hits": figures.hits, "damaged": figures.damaged}
                say(log, **counts, stored=figures.bytes_stored)
    except BaseException:
        say(log, error=traceback.format_exc())
        raise


def kill_at_random(folder: Path, *, kills: int, seed: int) -> Outcome:
    """Keep two processes reading, kill each at a random moment, start the next; look at the cache all the while."""
    draw = random.Random(seed)
    root, cache = folder / "far", folder / "cache"
    write(root)
    start = forkserver().Process
    outcome = Outcome()
    began = 0
    with doomed() as running:
        while began < kills or running:
            while began < kills and len(running) < AT_ONCE:
                log = folder / f"{began}.log"
                log.touch()
                process = start(target=read, args=(str(root), str(cache), began, str(log)))
                process.start()
                running.append(Doomed(process, log, draw.choice(("reading", "rows"))))
                began += 1
            for one in list(running):
                state = one.step(draw, LIFE_S)
                if state == "lives":
                    continue
                running.remove(one)
                if state == "killed":
                    outcome.kills += 1
                    hear(one.log, outcome)
                else:
                    outcome.errors.append(f"ended by itself: {one.log.read_text()[-2000:]}")
            if (cache / "readers").exists() and draw.random() < 0.2:
                look(cache, outcome)
            if draw.random() < 0.02:  # so that there is always something to be written
                forget_some(cache, draw)
    finish(root, cache, outcome)
    return outcome


def hear(log: Path, outcome: Outcome) -> None:
    for line in said(log):
        outcome.rows += line.get("rows", 0)
        outcome.hits += line.get("hits", 0)
        outcome.damaged += line.get("damaged", 0)
        outcome.stored_bytes += line.get("stored", 0)
        if "error" in line:
            outcome.errors.append(f"{log.name}: {line['error']}")
    log.unlink()


def look(cache: Path, outcome: Outcome) -> None:
    """All that lies in the cache is within its limit, at a moment at which nothing appears or leaves."""
    total = 0
    with exclusive(str(cache / "ledger")):
        for at, folders, files in os.walk(cache):
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):  # a lease, which goes without the lock
                    total += os.lstat(os.path.join(at, name)).st_blocks * 512
    outcome.most_bytes = max(outcome.most_bytes, total)
    if total > LIMIT_BYTES:
        outcome.errors.append(f"{total} bytes, limit {LIMIT_BYTES}")


def forget_some(cache: Path, draw: random.Random) -> None:
    """Delete files by hand, as anybody may at any time."""
    for path in sorted(cache.glob("entries-1/*/*")):
        if draw.random() < 0.3:
            path.unlink(missing_ok=True)


def finish(root: Path, cache: Path, outcome: Outcome) -> None:
    """After the next open nothing is left of the dead, the account is right, and what is kept is whole."""
    from parquet_loader import BatchedDataLoader, LocalCache, OutputOptions

    for name in DATA_SETS:
        with BatchedDataLoader(
            name,
            50,
            filesystem=far(root),
            cache=LocalCache(cache, LIMIT_BYTES),
            output_options=OutputOptions(format="numpy"),
        ) as loader:
            for batch in loader:
                words = np.ascontiguousarray(batch["x"]).view(np.uint64).reshape(len(batch["i"]), WORDS)
                if not np.array_equal(words, content(batch["i"])):
                    outcome.errors.append(f"wrong rows at the end: {batch['i'].tolist()}")
            figures = loader.stats().cache
            assert figures is not None
            outcome.damaged += figures.damaged
    places = CachePaths(str(cache))
    left = [name for folder in (places.unfinished, places.readers) for name in os.listdir(folder)]
    if left:
        outcome.errors.append(f"left behind: {left}")
    if account(cache) != places.taken_bytes():
        outcome.errors.append(f"the account is wrong: {account(cache)}, not {places.taken_bytes()}")
