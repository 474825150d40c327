"""Compares decoders of row groups: pyarrow, Polars and the package's own kernels.

    python benchmarks/decoders.py FOLDER [--rounds 5] [--threads 2] [--out benchmarks/results/decoders.json]

FOLDER holds Parquet files. In one process, the following take turns: pyarrow decodes each row group into an Arrow
table, `threads` at a time; the kernels do the same, if they are compiled and support all columns; Polars decodes each
row group (`scan_parquet(...).slice(...)`, to Arrow), `threads` at a time with a pool of `threads` threads; Polars
decodes whole files, one after another. Figures are medians of wall time and processor time. The first round warms the
page cache and does not count. Needs polars.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from parquet_loader.common import IS_BUILT
from parquet_loader.decode import NativeChunks, decodable_chunks
from parquet_loader.source import SourceFile
from parquet_loader.source.footer_reading import read_footer


def measure(folder: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Return seconds by decoder."""
    os.environ["POLARS_MAX_THREADS"] = str(threads)  # read when it is imported
    import polars as pl  # noqa: PLC0415

    paths = sorted(folder.glob("*.parquet"))
    footers = {path: pq.read_metadata(path) for path in paths}
    groups = []
    for path in paths:
        first = 0
        for number in range(footers[path].num_row_groups):
            rows = footers[path].row_group(number).num_rows
            groups.append((path, number, first, rows))
            first += rows
    total = sum(group[3] for group in groups)

    def arrow(group: tuple[Path, int, int, int]) -> int:
        with pq.ParquetFile(group[0], metadata=footers[group[0]], pre_buffer=False) as file:
            return int(file.read_row_group(group[1], use_threads=False).num_rows)

    sources = {path: SourceFile(str(path), path.stat().st_size, None) for path in paths}
    parsed = {path: read_footer(LocalFileSystem(), source).parsed for path, source in sources.items()}
    known = {
        group[:2]: decodable_chunks(footer, group[1], footer.schema.arrow.names, footer.schema.arrow)
        for group in groups
        for footer in [parsed[group[0]]]
    }

    def kernels(group: tuple[Path, int, int, int]) -> int:
        chunks = known[group[:2]]
        with NativeChunks(str(group[0]), chunks) as opened:
            return len(pa.Table.from_arrays(opened.read(group[3]), names=opened.names))

    def polars(group: tuple[Path, int, int, int]) -> int:
        frame = pl.scan_parquet(group[0], cache=False).slice(group[2], group[3]).collect()
        return int(frame.to_arrow().num_rows)

    def polars_file(path: Path) -> int:
        return int(pl.read_parquet(path).to_arrow().num_rows)

    ways: dict[str, tuple[Callable[[Any], int], Sequence[Any], int]] = {
        "pyarrow, row groups": (arrow, groups, threads),
        "kernels, row groups": (kernels, groups, threads),
        "Polars, row groups": (polars, groups, threads),
        "Polars, whole files": (polars_file, paths, 1),
    }
    if not IS_BUILT or any(len(chunks.names) < footers[path].num_columns for (path, _), chunks in known.items()):
        del ways["kernels, row groups"]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (decode, items, at_once) in ways.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            with ThreadPoolExecutor(at_once) as pool:
                decoded = sum(pool.map(decode, items))
            if decoded != total:
                raise SystemExit(f"{name}: {decoded} rows instead of {total}")
            if number:
                found[name].append((time.perf_counter() - began, time.process_time() - began_cpu))
    return {
        name: {
            "rows_per_s": total / statistics.median(wall for wall, _ in times),
            "wall_s": [wall for wall, _ in times],
            "cpu_s": [cpu for _, cpu in times],
        }
        for name, times in found.items()
    } | {"rows": total, "versions": {"pyarrow": pa.__version__, "polars": pl.__version__}}


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = measure(arguments.folder, arguments.rounds, arguments.threads)
    for name, figures in results.items():
        if isinstance(figures, dict) and "wall_s" in figures:
            cpu_s = statistics.median(figures["cpu_s"])
            print(f"{name:20} {figures['rows_per_s'] / 1e6:6.2f} M rows/s, {cpu_s:.2f} processor seconds")
    if arguments.out:
        about = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "threads": arguments.threads}
        about["hardware"] = {"cores": os.cpu_count(), "machine": platform.machine()}
        arguments.out.write_text(json.dumps(about | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
