"""Measures epochs over a repository of the Hub: this library, `datasets` streaming, and LitData's Parquet streaming.

    python -m benchmarks.hub OUTPUT.json [--datasets-python PYTHON] [--litdata-python PYTHON] [--rounds 3]

PYTHON is the interpreter of an environment with `datasets`, or with `litdata` and `torch`; without them, only this
library is measured. A server process on this machine implements the Hub's API, redirects to a second server as the
content network, delays every answer by 50 ms (`--latency-ms`), and counts requests and bytes. Each client runs in its
own process, and reads two epochs of the same files in batches of 64 rows: an image of 8 to 12 KiB as bytes, a label,
and eight floats. Clients take turns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

FILES, ROW_GROUPS, ROWS = 8, 8, 100
BATCH = 64
BUFFER = 1600
SOURCE = "hf://datasets/bench/images"


def make_files() -> dict[str, bytes]:
    """Return the files of the repository."""
    import io  # noqa: PLC0415

    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    random = np.random.default_rng(0)
    files = {}
    for number in range(FILES):
        rows = ROW_GROUPS * ROWS
        table = pa.table(
            {
                "image": [random.bytes(size) for size in random.integers(8192, 12288, rows).tolist()],
                "label": random.integers(0, 10, rows),
                "features": pa.FixedSizeListArray.from_arrays(random.random(8 * rows, np.float32), 8),
            }
        )
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=ROWS, compression="snappy", write_page_index=False)
        files[f"data/train-{number:05}-of-{FILES:05}.parquet"] = sink.getvalue()
    return files


def serve(latency_s: float) -> None:
    """Serve the repository; each line of standard input is answered with the counts since the last."""
    from tests.support.hub import serving  # noqa: PLC0415

    with serving() as hub:
        hub.repository("bench/images").commit(make_files())
        hub.latency_s = latency_s
        print(hub.url, flush=True)
        for _ in sys.stdin:
            with hub.lock:
                kinds = [request.kind for request in hub.requests]
                found = {kind: kinds.count(kind) for kind in ("revision", "tree", "resolve", "cdn")}
                found |= {"requests": len(kinds), "bytes": hub.sent_bytes, "connections": hub.connections}
                hub.requests.clear()
                hub.sent_bytes = hub.connections = 0
            print(json.dumps(found), flush=True)


# ------------------------------------------------------------------ clients


def ours(_: str) -> Callable[[], Iterator[int]]:
    """This library, shuffled."""
    import parquet_loader as pl  # noqa: PLC0415

    loader = pl.BatchedDataLoader(
        SOURCE, BATCH, shuffle=True, window_rows=BUFFER, output_options=pl.OutputOptions(format="numpy")
    )
    return lambda: (len(batch["label"]) for batch in loader)


def datasets_in_order(_: str) -> Callable[[], Iterator[int]]:
    """`datasets` streaming, in the order of the files."""
    datasets: Any = importlib.import_module("datasets")

    data = datasets.load_dataset("bench/images", split="train", streaming=True).with_format("numpy")
    return lambda: (len(batch["label"]) for batch in data.iter(BATCH))


def datasets_shuffled(_: str) -> Callable[[], Iterator[int]]:
    """`datasets` streaming, with the order of files and a buffer of rows shuffled."""
    datasets: Any = importlib.import_module("datasets")

    data = datasets.load_dataset("bench/images", split="train", streaming=True)
    data = data.shuffle(seed=0, buffer_size=BUFFER).with_format("numpy")
    return lambda: (len(batch["label"]) for batch in data.iter(BATCH))


def litdata(scratch: str) -> Callable[[], Iterator[int]]:
    """LitData's `StreamingDataset` over Parquet files of the Hub, shuffled, with two workers."""
    warnings.simplefilter("ignore")
    ld: Any = importlib.import_module("litdata")
    item_loader = importlib.import_module("litdata.streaming.item_loader").ParquetLoader()

    data = ld.StreamingDataset(f"{SOURCE}/data", item_loader=item_loader, shuffle=True, cache_dir=scratch)
    loader = ld.StreamingDataLoader(
        data, batch_size=BATCH, num_workers=2, collate_fn=len, multiprocessing_context="forkserver"
    )
    return lambda: iter(loader)


CLIENTS = {"ours": ours, "datasets": datasets_in_order, "datasets shuffled": datasets_shuffled, "litdata": litdata}


def run_client(name: str) -> None:
    """Read two epochs, and print how long they took."""
    with tempfile.TemporaryDirectory() as scratch:
        began, used = time.perf_counter(), time.process_time()
        epoch = CLIENTS[name](scratch)
        opened_s, epochs, first_s = time.perf_counter() - began, [], 0.0
        for _ in range(2):
            rows, start = 0, time.perf_counter()
            for count in epoch():
                first_s = first_s or time.perf_counter() - began
                rows += count
            epochs.append({"s": time.perf_counter() - start, "rows": rows})
        print(
            json.dumps(
                {"opened_s": opened_s, "first_s": first_s, "epochs": epochs, "cpu_s": time.process_time() - used}
            )
        )


# ------------------------------------------------------------------ the whole


def measure(python: str, name: str, url: str, server: Any) -> dict[str, Any]:
    """Run a client in an interpreter; return its times and the requests that the server counted."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": home, "HF_HUB_DISABLE_XET": "1"}
        environment |= {
            "PYTHONPATH": os.getcwd(),
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        command = [python, "-m", "benchmarks.hub", "-", "--client", name]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=170)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    server.stdin.write("\n")
    server.stdin.flush()
    return {**found, "server": json.loads(server.stdout.readline())}


def main() -> None:
    """Measure all clients, or be one, or be the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--datasets-python")
    parser.add_argument("--litdata-python")
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", choices=CLIENTS)
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    if given.client:
        run_client(given.client)
        return
    if given.serve:
        serve(given.latency_ms / 1000)
        return
    pythons = {"ours": sys.executable}
    if given.datasets_python:
        pythons |= dict.fromkeys(("datasets", "datasets shuffled"), given.datasets_python)
    if given.litdata_python:
        pythons["litdata"] = given.litdata_python
    command = [sys.executable, "-m", "benchmarks.hub", "-", "--serve", "--latency-ms", str(given.latency_ms)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    try:
        url = server.stdout.readline().strip()
        for _ in range(given.rounds):
            for name, python in pythons.items():
                runs[name].append(measure(python, name, url, server))
    finally:
        server.stdin.close()
        server.wait(10)
    summary = {name: summed_up(found) for name, found in runs.items()}
    for name, line in summary.items():
        print(f"{name:18}", "  ".join(f"{key} {value}" for key, value in line.items()))
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python -m benchmarks.hub", *sys.argv[1:]]),
        "latency_ms": given.latency_ms,
        "rows": FILES * ROW_GROUPS * ROWS,
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "summary": summary,
        "runs": runs,
    }
    Path(given.output).write_text(json.dumps(report, indent=1) + "\n")


def summed_up(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of several runs."""
    rates = [[run["epochs"][n]["rows"] / run["epochs"][n]["s"] for run in runs] for n in range(2)]
    seen = [run["server"] for run in runs]
    return {
        "first epoch rows/s": round(median(rates[0])),
        "second epoch rows/s": round(median(rates[1])),
        "first batch s": round(median(run["first_s"] for run in runs), 2),
        "cpu s": round(median(run["cpu_s"] for run in runs), 2),
        "requests": round(median(one["requests"] for one in seen)),
        "hub requests": round(median(one["requests"] - one["cdn"] for one in seen)),
        "MB": round(median(one["bytes"] for one in seen) / 1e6, 1),
    }


if __name__ == "__main__":
    main()
