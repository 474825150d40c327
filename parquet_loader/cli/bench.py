"""``parquet-loader bench SOURCE``: compares values of the loader's arguments on the user's own data."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from statistics import median
from typing import Any

import click

from parquet_loader.cli.console import show_json, show_lines, show_table, working
from parquet_loader.cli.finite import FiniteRange
from parquet_loader.cli.setups import loader_options, setup_of
from parquet_loader.common import available_processors, format_bytes, format_count, write_report
from parquet_loader.loader.report.bars import Bar, bars, bars_page
from parquet_loader.loader.simulation.comparison import Outcome, compare

_TITLES = {"threads": "num_threads", "isolation": "isolation", "window_rows": "window_rows", "batch_size": "batch_size"}


@click.command(epilog="Example: parquet-loader bench data/train --batch-size 1024 --plot bench.html")
@click.argument("source", nargs=-1, required=True)
@loader_options
@click.option("--repeats", type=click.IntRange(2), default=5, show_default=True, help="Runs of each case.")
@click.option("--seconds", type=FiniteRange(0, min_open=True), default=1.0, show_default=True,
              help="Seconds of a run, after its first batch.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the rates: a file .html or .svg.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(source: tuple[str, ...], **options: Any) -> None:
    """Compare threads, isolation, windows and batches on SOURCE; each case differs in one argument."""
    plot = options["plot"]
    if plot is not None and Path(plot).suffix not in (".html", ".svg"):
        raise click.UsageError(f"--plot {plot}: expected a file whose name ends in .html or .svg")
    setup = setup_of(source, options)
    with working("reading") as show:
        outcomes = compare(
            setup,
            repeats=options["repeats"],
            seconds=options["seconds"],
            progress=lambda done, of: show(f"reading: {done} of {format_count(of, 'run')}"),
        )
    if options["as_json"]:
        show_json(_as_json(options, outcomes))
    else:
        _show(outcomes, options["repeats"])
    if plot is not None:  # last: if it cannot be written, the figures are not lost
        _draw(plot, " ".join(source), outcomes)


def _as_json(options: dict[str, Any], outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "repeats": options["repeats"],
        "seconds": options["seconds"],
        "processors": available_processors(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "cases": [
            {
                "argument": outcome.case.group,
                "value": outcome.case.value.replace(",", ""),
                "rows_per_s": outcome.rows_per_s,
                "median_rows_per_s": outcome.median,
                "low_rows_per_s": outcome.spread[0],
                "high_rows_per_s": outcome.spread[1],
                "first_batch_s": outcome.first_batch_s,
                "peak_bytes": outcome.peak_bytes,
                "problem": outcome.problem,
            }
            for outcome in outcomes
        ],
    }


def _show(outcomes: list[Outcome], repeats: int) -> None:
    ends = "from quartile to quartile" if repeats >= 4 else "from the lowest to the highest"
    show_lines(f"{format_count(repeats, 'run')} of each case in turns; the spread is {ends}")
    rows = []
    for outcome in outcomes:
        low, high = outcome.spread
        cells = [_TITLES[outcome.case.group], outcome.case.value]
        if outcome.problem:
            rows.append([*cells, "-", "does not fit", "-", "-"])
            continue
        first = f"{median(outcome.first_batch_s) * 1e3:,.0f} ms"
        rows.append(
            [*cells, f"{outcome.median:,.0f}", f"{low:,.0f} to {high:,.0f}", first, format_bytes(outcome.peak_bytes)]
        )
    heads = ["", "value", "rows/s", "spread", "first batch", "held at most"]
    show_table(heads, rows, numbers=frozenset(heads[1:]))
    show_lines("", *_verdicts(outcomes))


def _verdicts(outcomes: list[Outcome]) -> list[str]:
    """Return a line for each argument: which value is faster than all others by more than the spread, if one is."""
    lines = []
    for group, title in _TITLES.items():
        some = [outcome for outcome in outcomes if outcome.case.group == group and outcome.rows_per_s]
        if len(some) < 2:
            continue
        best = max(some, key=lambda outcome: outcome.median)
        close = [o for o in some if o is not best and o.spread[1] >= best.spread[0]]
        if close:
            *others, last = (o.case.value for o in some if o is best or o in close)
            lines.append(f"{title}: no clear difference between {', '.join(others)} and {last}")
        else:
            lines.append(f"{title}: {best.case.value} is the fastest")
    return lines


def _draw(path: str, source: str, outcomes: list[Outcome]) -> None:
    groups = []
    for group, title in _TITLES.items():
        some = [
            Bar(o.case.value, o.median, *o.spread, f"{o.median:,.0f}")
            for o in outcomes
            if o.case.group == group and o.rows_per_s
        ]
        groups += [(title, some)] if some else []
    title = f"Rows per second: {source}"
    svg = bars(title, groups)
    about = f"{platform.machine()}, {available_processors()} processors. Bars: medians. Lines: the spread of the runs."
    text = bars_page(title, svg, about) if path.endswith(".html") else svg
    write_report(path, text)
