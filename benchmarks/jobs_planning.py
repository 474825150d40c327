"""Measures the planning of a job of 10 TB on 100 workers, in the driver and in the trainer: seconds and bytes.

The 10 TB are not written. The reports, footers, chunks and directories are simulated as for 10 TB in files of 512 MiB
with row groups of 8 MiB and 40 columns. The library's own code on them is timed.

    python benchmarks/jobs_planning.py [--terabytes 10] [--workers 100]
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import Scalar, Schema, WriteOptions
from parquet_loader.write.jobs.job import WriteJob, WrittenFile
from parquet_loader.write.jobs.job_shuffle import Chunk, ShufflePlan
from parquet_loader.write.jobs.task import plan_merges

FILE, GROUP, COLUMNS = 512 * 2**20, 8 * 2**20, 40
SCHEMA = Schema({f"c{n}": Scalar("float32") for n in range(COLUMNS)})
T = TypeVar("T")


def timed(what: str, work: Callable[[], T], note: Callable[[T], str] = lambda _: "") -> T:
    began = time.perf_counter()
    result = work()
    print(f"{what:62} {time.perf_counter() - began:8.2f} s  {note(result)}", flush=True)
    return result


def reports(count: int, size: int) -> list[WrittenFile]:
    return [WrittenFile(n, f".part-{n:06}-{uuid.uuid4().hex}.parquet.tmp", 1000, size, 2 * size) for n in range(count)]


def commit(count: int) -> float:
    """Commit that many empty files on the local disk, as a real job does, and return the seconds."""
    with tempfile.TemporaryDirectory() as root:
        with WriteJob(os.path.join(root, "set"), SCHEMA) as job:
            files = reports(count, 0)
            for file in files:
                with open(os.path.join(job.spec.directory, file.name), "wb"):
                    pass
            began = time.perf_counter()
            job.commit(files)
        return time.perf_counter() - began


def footer() -> tuple[bytes, int]:
    """Return the footer of one such file, and its row groups."""
    groups = FILE // GROUP
    table = pa.table({name: np.arange(groups, dtype="f4") for name in SCHEMA}, schema=SCHEMA.arrow_schema())
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=1, use_dictionary=False, compression="none")
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-8:-4], "little")
    return b"PAR1" + data[-8 - length :], groups


def main() -> None:
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--terabytes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=100)
    options = parser.parse_args()
    total = int(options.terabytes * 1e12)
    files = total // FILE
    print(f"{options.terabytes:g} TB: {files:,} files, {total // GROUP:,} row groups of {COLUMNS} columns; "
          f"{total / options.workers / 1e9:.0f} GB a worker")  # fmt: skip

    full = reports(files, FILE)
    print(f"{'reports of all tasks, pickled':62} {len(pickle.dumps(full)) / 1e6:8.1f} MB")
    timed("plan merges: partitions of 512 MiB, nothing to merge", lambda: plan_merges(full, WriteOptions(), COLUMNS))
    small = reports(total // (16 * 2**20), 8 * 2**20)
    timed(
        f"plan merges: {len(small):,} partitions of 16 MiB",
        lambda: plan_merges(small, WriteOptions(), COLUMNS),
        lambda plan: f"{len(plan[1]):,} merges",
    )
    print(f"{f'commit: {files:,} files renamed, then the directory':62} {commit(files):8.2f} s")

    for bucket in (2**27, 2**30, 2**32):
        chunks = [Chunk(n, 0, f".chunk-{n:06}-{uuid.uuid4().hex}.arrow", 10**6, bucket) for n in range(total // bucket)]
        plan = timed(
            f"shuffle: plan of {total / bucket:,.0f} buckets of {bucket // 2**20} MiB",
            partial(ShufflePlan.from_chunks, chunks, bucket, 0),
            lambda plan: f"pickled {len(pickle.dumps(plan)) / 1e6:.1f} MB",
        )
        timed("shuffle: slices of the first bucket", partial(plan.slices, 0))
        timed("shuffle: slices of another", partial(plan.slices, 1))
        pieces = plan.buckets * len(plan.chunks)
        print(f"{'shuffle: pieces read in all':62} {pieces:8.2g}    of {bucket / plan.buckets / 1024:,.0f} KiB, "
              f"{pieces / options.workers:.2g} a worker")  # fmt: skip

    one, groups = footer()
    print(f"{'footers of all files':62} {len(one) * files / 1e9:8.2f} GB  {len(one) / 1e3:.0f} KB each")
    rounds = 50
    began = time.perf_counter()
    found = [pq.read_metadata(pa.BufferReader(one)).num_row_groups for _ in range(rounds)]
    seconds = (time.perf_counter() - began) / rounds
    assert set(found) == {groups}
    print(f"{'parsing them all, one thread':62} {seconds * files:8.1f} s  {seconds * 1e3:.2f} ms each")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{'most memory of this process':62} {peak / 1024:8.0f} MB")


if __name__ == "__main__":
    main()
