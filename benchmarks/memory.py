"""Measures the peak memory of several epochs over a data set of ten times `memory_limit`, for each kind of column.

    python benchmarks/memory.py [narrow wide ragged text giant ...] [--isolation process] [--cache DIR]
        [--out benchmarks/results/memory.json]

Each kind runs in its own process. Memory is the sum of private and shared anonymous pages (RssAnon + RssShmem), sampled
every 10 ms from outside; mapped file pages are not counted. With ``--isolation process``, it is the sum over both
processes, and shared pages count once (Pss). Memory is compared with the idle process, after all imports and a small
epoch (with its reading process, if there is one), so the loader is measured, not the interpreter. The consumer holds
one batch at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parquet_loader import Group, Scalar, Schema  # before pyarrow: see "Allocator" in docs/tuning.md

# isort: split
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LIMIT_BYTES = 256 * 2**20
DATA_BYTES = 10 * LIMIT_BYTES
ALLOWED = 1.15
EPOCHS = 4


def narrow(rows: int, rng: np.random.Generator) -> pa.Table:
    """40 columns: 13 float32, 26 skewed int32, 1 int8; pyarrow's default encodings."""
    columns: dict[str, np.ndarray] = {f"d{i}": rng.random(rows, dtype=np.float32) for i in range(13)}
    columns |= {f"c{i}": np.minimum(rng.zipf(1.3, rows), 10**6).astype(np.int32) for i in range(26)}
    return pa.table(columns | {"y": rng.integers(0, 2, rows).astype(np.int8)})


def packed(rows: int, rng: np.random.Generator) -> pa.Table:
    """The same numbers as raw rows of 52 and 104 bytes, and a label."""
    columns = {"dense": pa.binary(52), "categories": pa.binary(104), "y": pa.int8()}
    schema = pa.schema([pa.field(name, type_, nullable=False) for name, type_ in columns.items()])
    arrays = [
        pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(rng.bytes(rows * type_.bit_width // 8))])
        for type_ in columns.values()
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def wide(rows: int, rng: np.random.Generator) -> pa.Table:
    """Rows of 4096 float32 as raw bytes."""
    raw = pa.py_buffer(rng.random((rows, 4096), dtype=np.float32))
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16384), rows, [None, raw])
    return pa.Table.from_arrays([array], schema=pa.schema([pa.field("x", pa.binary(16384), nullable=False)]))


def ragged(rows: int, rng: np.random.Generator) -> pa.Table:
    """Lists of 50 to 2,000 int32, and a label."""
    offsets = np.concatenate([[0], np.cumsum(rng.integers(50, 2000, rows))]).astype(np.int32)
    values = rng.integers(0, 50_000, offsets[-1]).astype(np.int32)
    tokens = pa.ListArray.from_arrays(offsets, values)
    return pa.table({"tokens": tokens, "y": rng.integers(0, 2, rows).astype(np.int8)})


def text(rows: int, rng: np.random.Generator) -> pa.Table:
    """Texts of 20 to 2,000 characters."""
    letters = rng.integers(97, 123, rows * 1010 + 2000).astype(np.uint8).tobytes().decode()
    starts = rng.integers(0, len(letters) - 2000, rows)
    lengths = rng.integers(20, 2000, rows)
    return pa.table({"text": [letters[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]})


def nested(rows: int, rng: np.random.Generator) -> pa.Table:
    """0 to 8 lists of 0 to 60 int32 a row."""
    outer = _offsets(rng.integers(0, 9, rows))
    inner = _offsets(rng.integers(0, 61, outer[-1]))
    numbers = rng.integers(0, 50_000, inner[-1]).astype(np.int32)
    return pa.table({"x": pa.ListArray.from_arrays(outer, pa.ListArray.from_arrays(inner, numbers))})


def words(rows: int, rng: np.random.Generator) -> pa.Table:
    """0 to 29 texts of 6 to 51 characters a row, of which there are few distinct ones."""
    outer = _offsets(rng.integers(0, 30, rows))
    distinct = pa.array([3 * word for word in ("alpha", "be", "gammagamma", "delta-delta-delta")])
    return pa.table({"x": pa.ListArray.from_arrays(outer, distinct.take(pa.array(rng.integers(0, 4, outer[-1]))))})


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


KINDS: dict[str, tuple[Callable[[int, np.random.Generator], pa.Table], int, int, int]] = {
    # kind: table, bytes a row, rows a row group, batch size
    "narrow": (narrow, 157, 50_000, 4096),
    "groups": (narrow, 157, 50_000, 4096),
    "wide": (wide, 16384, 1024, 256),
    "ragged": (ragged, 4108, 4096, 256),
    "text": (text, 1018, 16384, 1024),
    "small-text": (text, 1018, 200, 1024),
    "nested": (nested, 560, 8192, 256),
    "words": (words, 440, 8192, 256),
    "rows": (packed, 157, 50_000, 4096),
    "uneven": (narrow, 157, 50_000, 4096),
    "uneven-text": (text, 1018, 16384, 1024),
    "giant": (narrow, 157, 2_000_000, 4096),
    "giant-wide": (wide, 16384, 40_000, 256),
    "giant-one": (narrow, 157, 10**9, 4096),
    "giant-text": (text, 1018, 10**9, 1024),
}

# Schemas of kinds that are not read by the schema of the file.
SCHEMAS = {
    "groups": Schema(
        {
            "dense": Group([f"d{i}" for i in range(13)], "float32"),
            "categories": Group([f"c{i}" for i in range(26)], "int32"),
            "y": Scalar("int8"),
        }
    ),
}


def generate(kind: str, cache: Path) -> Path:
    """Write a data set of about `DATA_BYTES` decoded, unless it is there; "giant" kinds are one file.

    Row groups of "uneven" kinds have a quarter of the rows to all of them, so that each epoch's windows differ.
    """
    folder = cache / kind
    if folder.exists():
        return folder
    make, row_bytes, group_rows, _ = KINDS[kind]
    rng = np.random.default_rng(0)
    partial = cache / f".{kind}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    rows, done, number = DATA_BYTES // row_bytes + 1, 0, 0
    per_file = rows if kind.startswith("giant") else rows // 8 + 1
    piece = min(group_rows, 200_000 if row_bytes < 1000 else 20_000)
    while done < rows:
        size = min(per_file, rows - done)
        tables = (make(min(piece, size - at), rng) for at in range(0, size, piece))
        first = next(tables)
        dictionary = not kind.endswith(("wide", "rows"))
        options = {} if dictionary else {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with pq.ParquetWriter(partial / f"{number}.parquet", first.schema, **options) as writer:
            # Buffered: pieces smaller than a row group are joined in it.
            pieces, held = [first], first.num_rows
            for table in tables:
                if kind.startswith("uneven"):
                    for part in rng.uniform(0.25, 1.0, 2):
                        writer.write_table(table.slice(0, 1 + int(part * table.num_rows)))
                    continue
                if held + table.num_rows > group_rows:
                    writer.write_table(pa.concat_tables(pieces), row_group_size=group_rows)
                    pieces, held = [], 0
                pieces.append(table)
                held += table.num_rows
            writer.write_table(pa.concat_tables(pieces), row_group_size=group_rows)
        done, number = done + size, number + 1
    partial.rename(folder)
    return folder


def consume(folder: str, kind: str, threads: int, isolation: Any) -> None:
    """Run in the measured process: some epochs, saying when it is idle and when it is done."""
    from parquet_loader import BatchedDataLoader  # noqa: PLC0415  (only the measured process loads torch)

    options: dict[str, Any] = {"shuffle": True, "num_threads": threads, "isolation": isolation}
    options["schema"] = SCHEMAS.get(kind)
    with tempfile.TemporaryDirectory() as folder_of_few:
        pq.write_table(KINDS[kind][0](64, np.random.default_rng(0)), f"{folder_of_few}/0.parquet")
        with BatchedDataLoader(folder_of_few, 16, memory_limit="64MiB", **options) as few:
            for _ in few:
                pass
            print("idle", flush=True)  # with the process that reads, if there is one
            sys.stdin.readline()
    loader = BatchedDataLoader(folder, KINDS[kind][3], memory_limit=LIMIT_BYTES, **options)
    plan = loader.plan()
    for _ in range(EPOCHS):
        for _ in loader:
            pass
    stats = loader.stats()
    figures = {
        "rows": stats.rows,
        "seconds": stats.seconds,
        "window_rows": plan.window_rows,
        "windows": plan.windows,
        "open_row_groups": plan.open_row_groups,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "accounted_peak_bytes": stats.peak_bytes,
    }
    print(json.dumps(figures), flush=True)


def anonymous_bytes(pid: int) -> int:
    """Return private and shared anonymous memory of a process and its children; a page that two share counts once."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    if not pids:
        return _kilobytes(Path(f"/proc/{pid}/status"), ("RssAnon:", "RssShmem:"))
    return sum(_kilobytes(Path(f"/proc/{p}/smaps_rollup"), ("Pss_Anon:", "Pss_Shmem:")) for p in (pid, *pids))


def _kilobytes(path: Path, names: tuple[str, ...]) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))


def measure(kind: str, cache: Path, threads: int, isolation: str) -> dict[str, float]:
    """Run one kind and return its figures."""
    folder = generate(kind, cache)
    command = [sys.executable, __file__, "--consume", str(folder), kind, "--threads", str(threads)]
    command += ["--isolation", isolation]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "idle\n"
        idle = peak = anonymous_bytes(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        os.set_blocking(child.stdout.fileno(), False)
        said = ""
        while not said and child.poll() is None:
            peak = max(peak, anonymous_bytes(child.pid))
            time.sleep(0.01)  # the sampling interval
            said = child.stdout.readline()
        said = said or child.stdout.readline()
    if not said:
        raise SystemExit(f"{kind}: the measured process failed")
    figures = json.loads(said)
    return {
        **figures,
        "limit_bytes": LIMIT_BYTES,
        "idle_bytes": idle,
        "peak_above_idle_bytes": peak - idle,
        "share_of_limit": round((peak - idle) / LIMIT_BYTES, 3),
    }


def main() -> None:
    """Measure the kinds named, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "parquet_loader-bench" / "memory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isolation", choices=("thread", "process"), default="thread")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--consume", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.consume:
        folder, kind = arguments.consume
        consume(folder, kind, arguments.threads, arguments.isolation)
        return
    results = {}
    for kind in arguments.kinds:
        figures = results[kind] = measure(kind, arguments.cache, arguments.threads, arguments.isolation)
        verdict = "within" if figures["share_of_limit"] <= ALLOWED else "OVER"
        print(
            f"{kind:12} peak above idle {figures['peak_above_idle_bytes'] / 2**20:6.1f} MiB = "
            f"{figures['share_of_limit']:.2f} of the limit ({verdict} {ALLOWED}), accounted "
            f"{figures['accounted_peak_bytes'] / 2**20:6.1f} MiB, windows of {figures['window_rows']} rows from "
            f"{figures['open_row_groups']} open, {figures['rows'] / figures['seconds']:,.0f} rows/s",
            flush=True,
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
