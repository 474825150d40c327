"""Measures the cost of a state with 10,000 files: to take it, to store it, and to resume from it.

    python benchmarks/state.py [--files 10000] [--out benchmarks/results/state.json]

A resume reads the window of its batch again. The figure is the number of rows that an epoch from that batch to its end
reads in addition to the rows that it delivers, expressed in windows. If windows take slices of row groups, these are
read from their beginning, and shown separately.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader

CALLS = 20_000
RESUMES = 16


def write(folder: Path, files: int, rows: int, row_group_rows: int) -> None:
    """Write `files` equal files of `rows` rows, of 20 columns of float32."""
    rng = np.random.default_rng(0)
    pq.write_table(
        pa.table({f"column_{n}": rng.random(rows, dtype=np.float32) for n in range(20)}),
        folder / "first",
        row_group_size=row_group_rows,
        use_dictionary=False,
    )
    data = (folder / "first").read_bytes()
    (folder / "first").unlink()
    for number in range(files):
        (folder / f"part-{number:05}.parquet").write_bytes(data)


def cost_of_taking(loader: BatchedDataLoader) -> dict[str, float]:
    """Take many states in the midst of a pass."""
    iterator = iter(loader)
    next(iterator)
    times = []
    for _ in range(CALLS):
        started = time.perf_counter()
        loader.state_dict()
        times.append(time.perf_counter() - started)
    state = loader.state_dict()
    del iterator
    return {
        "median_us": 1e6 * statistics.median(times),
        "p99_us": 1e6 * sorted(times)[int(0.99 * CALLS)],
        "json_bytes": len(json.dumps(state)),
    }


def cost_of_going_on(loader: BatchedDataLoader) -> list[dict[str, Any]]:
    """Go on at some batches of an epoch, each time to its end."""
    draw = random.Random(0)
    batches = sorted({len(loader) - 1, *(draw.randrange(1, len(loader)) for _ in range(RESUMES))})
    rows = len(loader._dataset.counts) * int(loader._dataset.counts[0])
    taken = []
    for batch in batches:
        loader.seek(1, batch)
        state = json.loads(json.dumps(loader.state_dict()))
        loader.load_state_dict(state)
        began = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        first_s = time.perf_counter() - began
        for _ in iterator:
            pass
        stats = loader.stats()
        read = stats.row_groups * int(loader._dataset.counts[0])
        again = read - (rows - batch * loader.batch_size)
        taken.append(
            {
                "batch": batch,
                "first_batch_s": first_s,
                "row_groups_read": stats.row_groups,
                "bytes_read": stats.bytes_read,
                "rows_read_again": again,
                "windows_read_again": again / loader.window_rows,
            }
        )
    return taken


def measure(files: int, rows: int, row_group_rows: int, window_rows: int) -> dict[str, Any]:
    """Return the figures of one data set."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files, rows, row_group_rows)
        began = time.perf_counter()
        with BatchedDataLoader(folder, 1024, shuffle=True, window_rows=window_rows) as loader:
            opened_s = time.perf_counter() - began
            plan = loader.plan()
            going_on = cost_of_going_on(loader)
            return {
                "files": files,
                "row_groups": plan.row_groups,
                "rows": plan.rows,
                "windows": plan.windows,
                "window_rows": plan.window_rows,
                "open_row_groups": plan.open_row_groups,
                "opened_s": opened_s,
                "state": cost_of_taking(loader),
                "most_windows_read_again": max(one["windows_read_again"] for one in going_on),
                "going_on": going_on,
            }


def main() -> None:
    """Measure, print and write."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--files", type=int, default=10_000)
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    found = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, pyarrow {version('pyarrow')}",
        "many small files": measure(chosen.files, 400, 400, 65_536),
        "row groups larger than windows": measure(max(4, chosen.files // 1250), 400_000, 400_000, 65_536),
    }
    for name in ("many small files", "row groups larger than windows"):
        one = found[name]
        assert isinstance(one, dict)
        print(f"{name}: {one['files']} files, {one['row_groups']} row groups, opened in {one['opened_s']:.2f} s")
        state = one["state"]
        print(f"  state_dict(): {state['median_us']:.1f} us (p99 {state['p99_us']:.1f}), {state['json_bytes']} bytes")
        print(f"  read again when going on: at most {one['most_windows_read_again']:.2f} windows")
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
