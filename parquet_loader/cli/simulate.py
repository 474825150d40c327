"""``parquet-loader simulate SOURCE``: predicts an epoch; with ``--run`` reads one and compares it."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import click

from parquet_loader.cli.console import show_json, show_lines, show_table, working
from parquet_loader.cli.finite import FiniteRange
from parquet_loader.cli.setups import loader_options, setup_of
from parquet_loader.common import format_bytes, format_count
from parquet_loader.loader.batched import BatchedDataLoader
from parquet_loader.loader.report.charts import duration
from parquet_loader.loader.simulation.calibration import Calibrated, LoaderSetup, calibrate, loader_of, opened
from parquet_loader.loader.simulation.model import EpochForecast
from parquet_loader.loader.simulation.prices import LISTED_AT_ONCE, PRICES, Prices, provider_of
from parquet_loader.loader.stats import LoaderStats


@click.command(epilog="Example: parquet-loader simulate s3://bucket/train --batch-size 1024 --step-ms 20 --run")
@click.argument("source", nargs=-1, required=True)
@loader_options
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Ranks of the training job.")
@click.option("--step-ms", type=FiniteRange(0), default=0.0, show_default=True,
              help="Milliseconds of a training step, without waiting.")  # fmt: skip
@click.option("--seconds", type=FiniteRange(0, min_open=True), default=2.0, show_default=True,
              help="About how long to read for the calibration.")  # fmt: skip
@click.option("--provider", type=click.Choice(sorted(PRICES)), help="Whose prices to use; default: by the URL, or s3.")
@click.option("--price-reads", type=FiniteRange(0), help="US dollars for 1,000 GET requests.")
@click.option("--price-gib", type=FiniteRange(0), help="US dollars for each GiB fetched; default: 0.")
@click.option("--run", is_flag=True, help="Then read a whole epoch, and show its figures beside the prediction.")
@click.option("--report", type=click.Path(dir_okay=False), help="With --run: write that epoch as an HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(source: tuple[str, ...], **options: Any) -> None:
    """Predict an epoch of SOURCE: first batch, time, waits, memory, requests and cost.

    Reads the beginning of an epoch to measure how fast this machine is.
    """
    if options["report"] and not options["run"]:
        raise click.UsageError("--report shows an epoch that was read: add --run")
    setup = replace(setup_of(source, options), ranks=options["ranks"])
    with working("reading the beginning of an epoch"):
        found = calibrate(setup, seconds=options["seconds"])
    step_s = options["step_ms"] / 1000
    predicted, loader, measured, run_step_s = found.forecast(step_s), None, None, step_s
    if options["run"]:
        with working("reading an epoch"):
            loader, measured, run_step_s = _run(setup, step_s)
    prices = _prices(source[0], options)
    value = _as_json(found, predicted, prices, options, measured, run_step_s)
    if options["as_json"]:
        show_json(value)
    else:
        _show(found, predicted, value, measured)
    if loader is not None and options["report"]:  # last: if it cannot be written, the figures are not lost
        loader.report(options["report"])


def _run(setup: LoaderSetup, step_s: float) -> tuple[BatchedDataLoader, LoaderStats, float]:
    """Read an epoch like a training loop; return its closed loader, its figures, and the seconds of a step."""
    with loader_of(setup, opened(setup)) as loader:
        for _batch in loader:
            if step_s:
                time.sleep(step_s)
        stats = loader.stats()
    return loader, stats, (stats.seconds - stats.wait_s) / max(1, stats.batches)


def _prices(source: str, options: dict[str, Any]) -> Prices:
    prices = PRICES[options["provider"] or provider_of(source)]
    if options["price_reads"] is not None:
        prices = replace(prices, per_1000_reads=options["price_reads"])
    return prices if options["price_gib"] is None else replace(prices, per_gib=options["price_gib"])


def _as_json(
    found: Calibrated,
    predicted: EpochForecast,
    prices: Prices,
    options: dict[str, Any],
    measured: LoaderStats | None,
    run_step_s: float,
) -> dict[str, Any]:
    ranks = found.ranks
    listings = -(-found.files // LISTED_AT_ONCE)
    reads, nbytes = found.row_group_requests * ranks, found.row_group_bytes * ranks
    value: dict[str, Any] = {
        "ranks": ranks,
        "step_s": options["step_ms"] / 1000,
        "opening_s": found.opening_s,
        "predicted": {
            **asdict(predicted),
            "rows_per_s": predicted.rows_per_s,
            "wait_share": predicted.wait_share,
            "ranges": _ranges(found, options["step_ms"] / 1000),
        },
        "object_store": {
            "reads": reads,
            "footers": found.files,
            "listings": listings,
            "bytes": nbytes,
            "cost_usd": prices.cost(reads, 0, nbytes),
            "opening_cost_usd": prices.cost(found.files, listings, 0),
            "prices": asdict(prices),
        },
        "calibration": {
            **asdict(found.rates),
            "seconds": sum(trial.stats.seconds for trial in found.trials),
            "trials": len(found.trials),
            "windows": found.read_windows,
            "threads": found.limits.num_threads,
            "streamed_bytes": found.streamed_bytes,
        },
        "measured": None,
    }
    if measured is not None:
        figures = measured.to_dict()
        names = ("seconds", "first_batch_s", "wait_s", "longest_wait_s", "peak_bytes", "rows_per_s", "wait_share")
        again = found.forecast(run_step_s)
        value["measured"] = {
            **{name: figures[name] for name in names},
            "step_s": run_step_s,
            "requests": 0 if measured.remote is None else measured.remote.requests,
            # `time.sleep` takes longer than requested, so the comparison uses the measured step.
            "predicted_at_this_step": {"seconds": again.seconds, "first_batch_s": again.first_batch_s,
                                       "wait_s": again.wait_s, "longest_wait_s": again.longest_wait_s,
                                       "peak_bytes": again.peak_bytes, "requests": again.requests,
                                       "rows_per_s": again.rows_per_s, "wait_share": again.wait_share,
                                       "ranges": _ranges(found, run_step_s)},
        }  # fmt: skip
    return value


def _ranges(found: Calibrated, step_s: float) -> dict[str, list[float]]:
    """Return the lowest and the highest prediction of the trials for each figure that is also measured."""
    each = found.forecasts(step_s)
    return {
        name: [min(values), max(values)]
        for name in ("first_batch_s", "seconds", "rows_per_s", "wait_share", "longest_wait_s", "peak_bytes")
        if (values := [getattr(one, name) for one in each])
    }


_ROWS = {
    "first_batch_s": ("first batch", duration),
    "seconds": ("epoch", duration),
    "rows_per_s": ("rows per second", lambda value: f"{value:,.0f}"),
    "wait_share": ("of it waiting", lambda value: f"{value:.0%}"),
    "longest_wait_s": ("longest later wait", duration),
    "peak_bytes": ("most memory held", lambda value: format_bytes(int(value))),
    "requests": ("requests", lambda value: f"{value:,}"),
}


def _show(found: Calibrated, predicted: EpochForecast, value: dict[str, Any], measured: LoaderStats | None) -> None:
    rank = f"one of {found.ranks} ranks: " if found.ranks > 1 else ""
    show_lines(
        f"{rank}{format_count(predicted.rows, 'row')} in {format_count(predicted.batches, 'batch')}, "
        f"{format_count(found.limits.num_threads, 'thread')}, steps of {duration(value['step_s'])}",
        f"calibrated in {duration(value['calibration']['seconds'])} by "
        f"{format_count(len(found.trials), 'trial')} of up to {found.read_windows:,} of "
        f"{format_count(_windows(found, predicted), 'window')}",
        f"files opened in {duration(found.opening_s)}",
    )
    network = found.rates.network
    if network is not None:
        show_lines(
            f"store: {duration(network.latency_s)} to the first byte, "
            f"{format_bytes(int(network.connection_bytes_per_s))}/s a connection, "
            f"{format_bytes(int(network.link_bytes_per_s))}/s together"
        )
    if found.streamed_bytes:
        show_lines(
            f"row groups of {format_bytes(found.streamed_bytes)} are streamed, which is not predicted: the epoch takes "
            "longer; a larger --memory fetches them ahead"
        )
    show_lines("")
    given = value["measured"]
    shown = value["predicted"] if given is None else given["predicted_at_this_step"]
    rows = []
    for name, (title, text) in _ROWS.items():
        if name == "requests" and found.is_local:
            continue
        cells = [title, text(shown[name]), ""]
        if name in shown["ranges"] and len(found.trials) > 1:
            cells[2] = " to ".join(text(value) for value in shown["ranges"][name])
        if given is not None:
            far = f"{shown[name] / given[name] - 1:+.0%}" if given[name] and name != "wait_share" else ""
            cells += [text(given[name]), far]
        rows.append(cells)
    heads = ["", "predicted", "range", *(["measured", "off by"] if given is not None else [])]
    show_table(heads, rows, numbers=frozenset(heads[1:]))
    if measured is not None and given is not None and value["step_s"]:
        show_lines("", f"steps took {duration(given['step_s'])}, for which the prediction is shown")
    store = value["object_store"]
    what = "in an object store" if found.is_local else "without a local cache"
    show_lines(
        "",
        f"{what}, all ranks: {format_count(store['reads'], 'request')} and {format_bytes(store['bytes'])} an epoch, "
        f"${store['cost_usd']:.2g}; {format_count(store['footers'] + store['listings'], 'request')} to open, "
        f"${store['opening_cost_usd']:.2g}",
    )


def _windows(found: Calibrated, predicted: EpochForecast) -> int:
    windows = len(found.load.windows)
    return windows if predicted.simulated_share == 1 else round(windows / predicted.simulated_share)
