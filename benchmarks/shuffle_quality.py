"""How well windows mix sorted data, beside the buffers of Petastorm and WebDataset and a full shuffle.

    python -m benchmarks.shuffle_quality [--out benchmarks/results/shuffle_quality.json] [--plot PNG]

16 million rows sorted by a label of 1,000 values, in row groups of 10,000 and of 1,000,000 rows, in batches of 256 and
1,024. All orders are worked out, none is read: ours by the loader's own plan, the others by their documented algorithms
(`mixing`). The plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mixing import (
    Rows,
    chi_square_ratio,
    distance,
    petastorm_order,
    webdataset_order,
    windows_order,
)
from parquet_loader.sizes import MOST_OPEN_ROW_GROUPS

ROWS = 16_000_000
LABELS = 1000
BATCHES = (256, 1024)
ROW_GROUP_ROWS = (10_000, 1_000_000)
WINDOWS = (16_384, 65_536, 262_144, 1_048_576, 4_194_304, 8_388_608, 12_582_912, 16_000_000)
WITHIN = 1.05


def lanes_of(row_group_rows: int, window_rows: int) -> int:
    """Return how many row groups the loader opens side by side, as `sizes.divide` has it."""
    return MOST_OPEN_ROW_GROUPS if window_rows // row_group_rows < MOST_OPEN_ROW_GROUPS else 1


def figures(order: Rows) -> dict[str, Any]:
    """Return the measures of an order."""
    ratios = {str(batch): chi_square_ratio(order, LABELS, batch) for batch in BATCHES}
    return {"chi_square_ratio": ratios, "distance": distance(order)}


def threshold(order_of: Callable[[int], Rows], batch_size: int, most: int) -> int | None:
    """Return the smallest window, to one part in 32, whose chi-square is within 5 % of a full shuffle's."""
    low, high = 0, most
    if chi_square_ratio(order_of(high), LABELS, batch_size) > WITHIN:
        return None
    while high - low > most // 32:
        middle = (low + high) // 2
        if chi_square_ratio(order_of(middle), LABELS, batch_size) <= WITHIN:
            high = middle
        else:
            low = middle
    return high


def measure() -> dict[str, Any]:
    """Work out all figures."""
    full = np.random.default_rng(0).permutation(ROWS)
    found: dict[str, Any] = {"rows": ROWS, "labels": LABELS, "full shuffle": figures(full), "row_groups": {}}
    for row_group_rows in ROW_GROUP_ROWS:
        groups = ROWS // row_group_rows

        def ours(window: int, groups: int = groups, rows: int = row_group_rows) -> Rows:
            return windows_order(groups, rows, window, lanes_of(rows, window), BATCHES[-1])

        systems: dict[str, Callable[[int], Rows]] = {
            "windows": ours,
            "petastorm": partial(petastorm_order, groups, row_group_rows, batch_size=BATCHES[-1]),
            "webdataset": partial(webdataset_order, groups, row_group_rows),
        }
        here: dict[str, Any] = {system: {} for system in systems}
        for (system, order_of), window in product(systems.items(), WINDOWS):
            here[system][str(window)] = figures(order_of(window))
            print(row_group_rows, system, window, here[system][str(window)], flush=True)
        here["window_within_5_percent"] = {str(batch): threshold(ours, batch, ROWS) for batch in BATCHES}
        print(row_group_rows, here["window_within_5_percent"], flush=True)
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
