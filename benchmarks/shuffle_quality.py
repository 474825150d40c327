"""Scores how well windows mix sorted data, compared with the buffers of Petastorm and WebDataset and a full shuffle.

    python -m benchmarks.shuffle_quality [--out benchmarks/results/shuffle_quality.json] [--plot PNG]

16 million rows of 40 float32 columns, sorted by a label of 1,000 values, in row groups of 10,000 and of 1,000,000 rows,
in batches of 16, 64, 256 and 1,024. All orders are computed without reading data: ours by the loader's own plan and
division of memory, the others by their documented algorithms (`mixing`). The plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.mixing import (
    Rows,
    chi_square_ratio,
    distance,
    petastorm_order,
    webdataset_order,
    windows_order,
)
from parquet_loader import BatchedDataLoader
from parquet_loader.dataset.memory_budget import WindowNeeds, divide
from parquet_loader.dataset.row_sizes import RowSizes
from parquet_loader.source.opening import open_snapshot
from parquet_loader.source.snapshot import Snapshot

ROWS = 16_000_000
LABELS = 1000
COLUMNS = 40
BATCHES = (16, 64, 256, 1024)
ROW_GROUP_ROWS = (10_000, 1_000_000)
WINDOWS = (16_384, 65_536, 262_144, 1_048_576, 4_194_304, 8_388_608, 12_582_912, 16_000_000)
DEFAULT_WINDOWS_MIB = (32, 64, 128, 256)
WITHIN = 1.05
MOST_WINDOWS = 32


def one_row_group(rows: int) -> tuple[Snapshot, RowSizes]:
    """Return the footer of a row group of `rows` rows, as pyarrow writes it, and the loader's sizes of its rows."""
    with tempfile.TemporaryDirectory() as folder:
        values = np.random.default_rng(0).random(rows, dtype=np.float32)
        pq.write_table(pa.table({f"c{n}": values for n in range(COLUMNS)}), f"{folder}/0.parquet", row_group_size=rows)
        with BatchedDataLoader(folder, 1024, memory_limit="64GiB") as loader:
            return open_snapshot(folder), loader._dataset.sizing.row


def lanes_of(snapshot: Snapshot, row: RowSizes, row_group_rows: int, window_rows: int) -> int:
    """Return how many row groups the loader opens side by side."""
    counts = np.full(ROWS // row_group_rows, row_group_rows, np.int64)
    sizing = divide(2**36, row, snapshot, counts, WindowNeeds(BATCHES[-1], shuffle=True), window_rows=window_rows)
    return sizing.open_row_groups


def figures(order: Rows) -> dict[str, Any]:
    """Return the measures of an order."""
    ratios = {str(batch): chi_square_ratio(order, LABELS, batch) for batch in BATCHES}
    return {"chi_square_ratio": ratios, "distance": distance(order)}


def thresholds(order_of: Callable[[int], Rows]) -> dict[str, int]:
    """Return for each batch size the smallest windows whose chi-square is within 5 % of a full shuffle's.

    Windows are of equal size, so what is tried is one window over everything, two, three and so on.
    """
    found = dict.fromkeys(map(str, BATCHES), ROWS)
    within = list(BATCHES)
    for windows in range(2, MOST_WINDOWS):
        order = order_of(-(-ROWS // windows))
        within = [batch for batch in within if chi_square_ratio(order, LABELS, batch) <= WITHIN]
        if not within:
            break
        found |= {str(batch): -(-ROWS // windows) for batch in within}
    return found


def measure() -> dict[str, Any]:
    """Work out all figures."""
    full = np.random.default_rng(0).permutation(ROWS)
    found: dict[str, Any] = {"rows": ROWS, "labels": LABELS, "full shuffle": figures(full), "row_groups": {}}
    for row_group_rows in ROW_GROUP_ROWS:
        groups = ROWS // row_group_rows
        lanes = partial(lanes_of, *one_row_group(row_group_rows), row_group_rows)

        def ours(
            window: int, groups: int = groups, rows: int = row_group_rows, lanes: Callable[[int], int] = lanes
        ) -> Rows:
            return windows_order(groups, rows, window, lanes(window), BATCHES[-1])

        systems: dict[str, Callable[[int], Rows]] = {
            "windows": ours,
            "petastorm": partial(petastorm_order, groups, row_group_rows, batch_size=BATCHES[-1]),
            "webdataset": partial(webdataset_order, groups, row_group_rows),
        }
        here: dict[str, Any] = {system: {} for system in systems}
        here["row_groups_side_by_side"] = {str(window): lanes(window) for window in WINDOWS}
        here["default"] = {}
        for size in DEFAULT_WINDOWS_MIB:
            window = size * 2**20 // (4 * COLUMNS)
            here["default"][f"{size} MiB"] = {"window_rows": window, **figures(ours(window))}
            print(row_group_rows, f"{size} MiB", here["default"][f"{size} MiB"], flush=True)
        here["window_within_5_percent"] = thresholds(ours)
        print(row_group_rows, here["window_within_5_percent"], flush=True)
        for (system, order_of), window in product(systems.items(), WINDOWS):
            here[system][str(window)] = figures(order_of(window))
            print(row_group_rows, system, window, here[system][str(window)], flush=True)
        found["row_groups"][str(row_group_rows)] = here
    return found


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw the chi-square against the window or buffer."""
    import matplotlib as mpl  # noqa: PLC0415  (only the plot needs it)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, len(ROW_GROUP_ROWS), figsize=(11, 4.2), sharey=True)
    marks = {"windows": "o-", "petastorm": "s--", "webdataset": "^:"}
    for axis, row_group_rows in zip(axes, ROW_GROUP_ROWS, strict=True):
        here = found["row_groups"][str(row_group_rows)]
        for system, mark in marks.items():
            ratios = [here[system][str(window)]["chi_square_ratio"]["1024"] for window in WINDOWS]
            axis.plot(WINDOWS, ratios, mark, label=f"{system} (window or buffer)", markersize=5)
        axis.axhline(1, color="black", linewidth=1, label="full shuffle")
        axis.axhspan(1 / WITHIN, WITHIN, color="black", alpha=0.12)
        axis.set(xscale="log", yscale="log", title=f"row groups of {row_group_rows:,} rows")
        axis.set_xlabel("rows of the window or buffer")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("chi-square of batch labels,\nin units of a full shuffle's")
    axes[0].legend(fontsize=8)
    figure.suptitle("16 million rows sorted by a label of 1,000 values, batches of 1,024", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, write, draw."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--plot", type=Path)
    arguments.add_argument("--from", dest="given", type=Path, help="draw results measured before")
    chosen = arguments.parse_args()
    found = json.loads(chosen.given.read_text()) if chosen.given else measure()
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    if chosen.plot:
        plot(found, chosen.plot)


if __name__ == "__main__":
    main()
