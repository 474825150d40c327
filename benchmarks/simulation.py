"""Measures the error of `parquet-loader simulate`, with predictions and epochs in turns, on three kinds of sources.

    python -m benchmarks.simulation .bench/simulation results.json

The sources are local files, a store, and a local cache. The store is ``rclone serve s3`` behind a proxy with a latency
of 50 ms, 40 MB/s per connection and 100 MB/s in total.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.remote import far_away, write_tabular
from demo.archive import ACCESS_KEY, SECRET_KEY
from parquet_loader import LocalCache
from parquet_loader.loader.simulation.calibration import LoaderSetup, calibrate, loader_of, opened

FIGURES = ("first_batch_s", "seconds", "peak_bytes")


def compared(setup: LoaderSetup, step_s: float, seconds: float) -> dict[str, Any]:
    """Predict an epoch, read it, and return both."""
    found = calibrate(setup, seconds=seconds)
    with loader_of(setup, opened(setup)) as loader:
        for _ in loader:
            if step_s:
                time.sleep(step_s)
        stats = loader.stats()
    # A sleep takes longer than asked: the step is what the loop took in fact.
    predicted = found.forecast((stats.seconds - stats.wait_s) / stats.batches if step_s else 0.0)
    return {
        "share_read": found.read_windows / len(found.load.windows),
        **{name: (getattr(predicted, name), getattr(stats, name)) for name in FIGURES},
    }


def shown(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Print and return the medians of a case."""
    row: dict[str, Any] = {"case": name, "runs": runs}
    for figure in FIGURES:
        predicted, measured = (median(run[figure][side] for run in runs) for side in (0, 1))
        off = sorted(run[figure][0] / run[figure][1] - 1 for run in runs)
        row[figure] = {
            "predicted": predicted,
            "measured": measured,
            "off": median(off),
            "least": off[0],
            "most": off[-1],
        }
    cells = [f"{f}: {row[f]['predicted']:.4g}/{row[f]['measured']:.4g} {row[f]['off']:+.0%}" for f in FIGURES]
    print(name, *cells, f"load {os.getloadavg()[0]:.1f}", sep=" | ", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--files", type=int, default=16)
    given = parser.parse_args()
    data = given.folder / "bucket" / "tabular"
    if not data.is_dir():
        data.mkdir(parents=True)
        write_tabular(data, given.files)
    local = LoaderSetup(str(data), 1000, memory_limit="256MiB")
    results = []
    for name, setup, step_s in (
        ("local", local, 0.0),
        ("local, steps of 2 ms", local, 0.002),
    ):
        results.append(shown(name, [compared(setup, step_s, given.seconds) for _ in range(given.repeats)]))
    with far_away(given.folder, latency_s=0.05, rate=40e6, link=100e6) as (endpoint, _):
        where = f"endpoint_override={endpoint}&scheme=http&region=other"
        far = replace(local, memory_limit="1GiB", source=f"s3://{ACCESS_KEY}:{SECRET_KEY}@bucket/tabular?{where}")
        opened(far)  # the server reads all files for their ETags when it lists them for the first time
        results.append(shown("store", [compared(far, 0.0, given.seconds) for _ in range(given.repeats)]))
        cache = given.folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        cached = replace(far, cache=LocalCache(cache, "10GB"))
        with loader_of(cached, opened(cached)) as loader:
            for _ in loader:
                pass
        results.append(shown("local cache", [compared(cached, 0.0, given.seconds) for _ in range(given.repeats)]))
        results.append(
            shown("local cache, steps of 2 ms", [compared(cached, 0.002, given.seconds) for _ in range(given.repeats)])
        )
    given.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
