"""Plots the results, in the colours of Okabe and Ito, which most people can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
GREY, INK, FAINT = "#9AA1A9", "#22272E", "#E4E7EB"
ROLE_COLOURS = {"ours": BLUE, "peer": GREY, "limit": FAINT}
STAGE_COLOURS = {"read": BLUE, "permute": YELLOW, "gather": GREEN, "process": PINK}
SERIES_COLOURS = (BLUE, ORANGE, GREEN, PINK)
STYLE = {
    "font.size": 10.5,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "savefig.bbox": "tight",
    "figure.facecolor": "white",
}


def throughput(path: Path, title: str, unit: str, bars: Sequence[tuple[str, str, Mapping[str, float]]]) -> None:
    """Draw horizontal bars, fastest on top: (label, role, rate with median, min and max) each."""
    bars = sorted(bars, key=lambda bar: bar[2]["median"])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.6, 0.9 + 0.34 * len(bars)))
        for place, (_, role, rate) in enumerate(bars):
            edge = GREY if role == "limit" else "none"
            axes.barh(place, rate["median"], color=ROLE_COLOURS[role], edgecolor=edge, height=0.68)
            axes.plot([rate["min"], rate["max"]], [place, place], color=INK, linewidth=1.4, solid_capstyle="butt")
            axes.annotate(
                f"{rate['median']:,.3g}",
                (max(rate["max"], rate["median"]), place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=9.5,
            )
        axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
        for tick, (_, role, _) in zip(axes.get_yticklabels(), bars, strict=True):
            tick.set_color(BLUE if role == "ours" else INK)
        axes.set_xscale("log")
        axes.set_xlabel(f"{unit} (logarithmic; the line spans all rounds)")
        axes.margins(x=0.12, y=0.02)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        _save(figure, path)


def stages(path: Path, workloads: Mapping[str, Mapping[str, float]]) -> None:
    """Draw each workload's processor time by stage, as shares."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.6, 0.9 + 0.42 * len(workloads)))
        names = list(reversed(list(workloads)))
        for place, name in enumerate(names):
            total, start = sum(workloads[name].values()) or 1.0, 0.0
            for stage, colour in STAGE_COLOURS.items():
                share = workloads[name].get(stage, 0.0) / total
                axes.barh(place, share, left=start, color=colour, height=0.68, label=stage if not place else None)
                if share > 0.06:
                    axes.text(
                        start + share / 2, place, f"{share:.0%}", ha="center", va="center", color="white", fontsize=9.5
                    )
                start += share
        axes.set_yticks(range(len(names)), names)
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, -0.02 - 0.6 / len(names)), fontsize=9.5)
        axes.set_title("Where the loader's threads spend processor time")
        _save(figure, path)


def lines(
    axes: Axes, title: str, x: str, y: str, series: Mapping[str, Sequence[tuple[float, Mapping[str, float]]]]
) -> None:
    """Draw curves with bars from the least to the most: points of (x, median and extremes) by label."""
    for colour, marker, (label, points) in zip(SERIES_COLOURS, "osD^", series.items(), strict=False):
        xs = [point for point, _ in points]
        medians = [value["median"] for _, value in points]
        below = [value["median"] - value["min"] for _, value in points]
        above = [value["max"] - value["median"] for _, value in points]
        axes.errorbar(
            xs, medians, yerr=[below, above], color=colour, marker=marker, markersize=5, capsize=3, label=label
        )
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(series) > 1:
        axes.legend(fontsize=9.5)


def curves(path: Path, panels: Sequence[Mapping[str, Any]]) -> None:
    """Draw panels side by side, two in a row; each has ``title``, ``x``, ``y``, ``series`` and maybe ``log``."""
    with plt.rc_context(STYLE):
        rows = (len(panels) + 1) // 2
        columns = min(2, len(panels))
        figure, grid = plt.subplots(rows, columns, figsize=(5.0 * columns, 3.6 * rows), squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            lines(axes, panel["title"], panel["x"], panel["y"], panel["series"])
            if "x" in panel.get("log", ""):
                axes.set_xscale("log")
            if "y" in panel.get("log", ""):
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        figure.tight_layout(h_pad=2.0, w_pad=2.0)
        _save(figure, path)


def steps(path: Path, title: str, cases: Sequence[tuple[str, float, float, float]]) -> None:
    """Draw epochs relative to the spinning alone, which is 1; each is (label, spinning, slowdown, waiting)."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.6, 0.9 + 0.42 * len(cases)))
        for place, (_, alone, slowing, waiting) in enumerate(reversed(cases)):
            parts = (
                ("the steps alone", alone, GREY),
                ("slowing of the steps", slowing, ORANGE),
                ("waiting", waiting, BLUE),
            )
            start = 0.0
            for label, size, colour in parts:
                axes.barh(
                    place, max(0.0, size), left=start, color=colour, height=0.68, label=label if not place else None
                )
                start += max(0.0, size)
            axes.annotate(
                f"{alone + slowing + waiting:.3f}",
                (start, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_yticks(range(len(cases)), [label for label, *_ in reversed(cases)])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.1)
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=9.5)
        axes.set_title(title, pad=26)
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
