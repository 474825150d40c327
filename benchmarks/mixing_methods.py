"""Scores how well windows mix sorted rows, compared with a shuffle buffer; reads no data, only plans.

    python -m benchmarks.mixing_methods [--out benchmarks/results/mixing_methods.json] [--svg docs/images/mixing.svg]

Rows are sorted by label over the whole data set, or in each row group (`within`). The figure is the mean chi-square of
the labels of a batch, divided by that of a full shuffle. Buffers are WebDataset's, over row groups in random order, and
have the size of a window.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.mixing import chi_square_ratio, webdataset_order
from parquet_loader.plan import WINDOW_METHOD, Plan, mixing_score, plan_epoch

BATCH = 256
CLASSES = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
SEEDS = 16
# Rows of each row group, of a window, and row groups open side by side (the loader's choice for narrow rows); all a
# tenth of usual sizes, because only their ratios count.
CASES: dict[str, tuple[npt.NDArray[np.int64], int, int]] = {
    "many small row groups": (np.full(1600, 1000), 42_000, 1),
    "many small row groups of uneven sizes": (np.random.default_rng(1).integers(50, 2000, 1600), 42_000, 1),
    "row groups of 8 MiB": (np.full(200, 5300), 42_000, 1),
    "large row groups": (np.full(128, 12_500), 26_200, 16),
    "few huge row groups": (np.full(16, 100_000), 42_000, 10),
    "huge row groups of uneven sizes": (np.random.default_rng(1).integers(100, 100_000, 100), 42_000, 16),
    "one huge row group": (np.full(1, 400_000), 42_000, 1),
}
SHOWN = "many small row groups"


def plan_of(case: str, seed: int) -> Plan:
    """Return the plan of a case."""
    counts, window, lanes = CASES[case]
    return plan_epoch(
        counts,
        window_rows=window,
        open_row_groups=lanes,
        batch_size=BATCH,
        drop_last=False,
        shuffle=True,
        seed=seed,
        epoch=0,
    )


def sorted_over_all(case: str, classes: int) -> float:
    """Return the chi-square of rows that are sorted over all row groups, the mean over seeds."""
    scores = [mixing_score(plan_of(case, seed), CASES[case][0], classes) for seed in range(SEEDS)]
    return float(np.mean([score.chi_square for score in scores if score is not None]))


def sorted_within(case: str, classes: int) -> float:
    """Return the same of rows that are sorted in each row group, which holds all classes."""
    counts, edges, excess = CASES[case][0], np.linspace(0, 1, classes + 1), []
    for seed in range(SEEDS):
        plan, repeats, rows = plan_of(case, seed), 0.0, 0
        for window in plan:
            share = np.zeros(classes)
            for s in window:
                share += np.diff(np.clip(edges * counts[s.row_group], s.start, s.stop))
            repeats += np.square(share).sum() / share.sum()
            rows += int(share.sum())
        excess.append((repeats / rows - 1 / classes) / (1 - 1 / classes))
    return 1 + (BATCH - 1) * float(np.mean(excess))


def buffer(case: str) -> dict[str, float] | None:
    """Return the chi-square of a shuffle buffer, by the number of classes; None for row groups of uneven sizes."""
    counts, window, _ = CASES[case]
    if np.ptp(counts):
        return None
    order = webdataset_order(len(counts), int(counts[0]), window)
    return {str(n): chi_square_ratio(order, n, BATCH) for n in CLASSES}


def measure() -> dict[str, Any]:
    """Work out all figures."""
    found: dict[str, Any] = {}
    for case in CASES:
        found[case] = {
            WINDOW_METHOD: {
                **{str(n): sorted_over_all(case, n) for n in CLASSES},
                "within 10": sorted_within(case, 10),
            }
        }
        found[case]["buffer"] = buffer(case)
        print(case, json.dumps(found[case]), flush=True)
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the case of small row groups: chi-square against the number of classes, both logarithmic."""
    left, right, top, bottom, most = 60, 560, 30, 260, 10.0

    def at(classes: float, ratio: float) -> tuple[float, float]:
        x = left + (right - left) * math.log(classes / 2) / math.log(500)
        return round(x, 1), round(bottom - (bottom - top) * math.log(ratio) / math.log(most), 1)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 310" font-family="sans-serif" font-size="13">',
        '<rect width="760" height="310" fill="white"/>',
    ]
    for ratio in (1, 2, 5, 10):
        _, y = at(2, ratio)
        parts.append(f'<path d="M{left} {y}H{right}" stroke="#ddd"/><text x="{left - 8}" y="{y + 4}" ')
        parts.append(f'text-anchor="end">{ratio}</text>')
    for classes in (2, 10, 100, 1000):
        x, _ = at(classes, 1)
        parts.append(f'<text x="{x}" y="{bottom + 20}" text-anchor="middle">{classes:,}</text>')
    lines = (
        ("lanes-1", "windows, row groups in random order", "#999"),  # of an earlier method, in kept results only
        ("buffer", "shuffle buffer of the same size", "#d95f02"),
        (WINDOW_METHOD, "windows, row groups spread evenly", "#1f78b4"),
    )
    for number, (name, label, colour) in enumerate(line for line in lines if line[0] in found[SHOWN]):
        points = [at(n, max(1.0, found[SHOWN][name][str(n)])) for n in CLASSES]
        path_ = "L".join(f"{x} {y}" for x, y in points)
        parts.append(f'<path d="M{path_}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<path d="M{left + 16} {top + 150 + 20 * number}h24" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{left + 46}" y="{top + 154 + 20 * number}">{label}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 42}" text-anchor="middle">classes by which rows are ')
    parts.append('sorted</text><text x="60" y="18">chi-square of batch labels; 1 is a full shuffle</text></svg>')
    path.write_text("".join(parts).replace("760", "600") + "\n")


def main() -> None:
    """Measure, write, draw."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--svg", type=Path)
    arguments.add_argument("--from", dest="given", type=Path, help="draw results measured before")
    chosen = arguments.parse_args()
    found = json.loads(chosen.given.read_text()) if chosen.given else measure()
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    if chosen.svg:
        draw(found, chosen.svg)


if __name__ == "__main__":
    main()
