"""Measures what loading costs a training loop in pure Python.

    python -m benchmarks.suite gil

The consumer spins in Python for 10 ms per batch: a fixed number of additions, calibrated once to take 10 ms when
nothing else runs. The interpreter's switch interval is the default. The steps alone and an epoch in each isolation take
turns. An epoch's time is the time of the steps alone, plus their slowdown, plus the waits. The *sleeping* consumer
needs no processor, and is 1.5 times slower than the loader.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.suite.generate import generate
from benchmarks.suite.results import hardware, load, now, save, spread
from benchmarks.suite.workloads import SCIENCE, TABULAR, DataSet
from parquet_loader import BatchedDataLoader, Schema, Tensor, UnsupportedError

STEP_S = 0.01
SCIENCE_SCHEMA = Schema({"x": Tensor("float32", (4096,))})
ABOUT = """The consumer spins in pure Python for 10 ms a batch (a fixed number of additions, so that a step that shares
the GIL takes longer); *tabular* in batches of 8,192 rows, *science* in batches of 366 rows, which is 600 MB/s.
*Sleeping* consumers need no processor and are 1.5 times slower than the loader. `epoch / steps alone` has the time of
the same steps without any loader below the line, taken in the same round."""


@dataclass(frozen=True, slots=True)
class Case:
    """A data set, how it is asked for, and where the engine runs."""

    data: DataSet
    layout: str
    arguments: dict[str, Any]
    isolation: str

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.data.name}, {'threads' if self.isolation == 'thread' else 'process'}"


@dataclass(frozen=True, slots=True)
class Passed:
    """Figures of an epoch: total seconds, seconds in steps, and seconds of each wait."""

    seconds: float
    steps_s: float
    waits_s: tuple[float, ...]


TABULAR_ARGUMENTS = {"batch_size": 8192, "window_rows": 400_000}
SCIENCE_ARGUMENTS = {"batch_size": 366, "window_rows": 8192, "schema": SCIENCE_SCHEMA}
CASES = tuple(
    Case(data, layout, arguments, isolation)
    for data, layout, arguments in (
        (TABULAR, "default", TABULAR_ARGUMENTS),
        (SCIENCE, "raw", SCIENCE_ARGUMENTS),
    )
    for isolation in ("thread", "process")
)


def spin(additions: int) -> int:
    """Hold the GIL."""
    total = 0
    for number in range(additions):
        total += number
    return total


def additions_in(seconds: float) -> int:
    """Return how many additions take so long when nothing else runs."""
    began = time.perf_counter()
    spin(2_000_000)
    rate = 2_000_000 / (time.perf_counter() - began)
    times = []
    for _ in range(50):
        began = time.perf_counter()
        spin(int(rate * seconds))
        times.append(time.perf_counter() - began)
    return max(1, int(rate * seconds * seconds / statistics.median(times)))


def consume(batches: Iterable[Any], step: Callable[[], Any]) -> Passed:
    """Take every batch and step after each."""
    waits, steps_s = [], 0.0
    began = at = time.perf_counter()
    for _ in batches:
        got = time.perf_counter()
        waits.append(got - at)
        step()
        at = time.perf_counter()
        steps_s += at - got
    return Passed(time.perf_counter() - began, steps_s, tuple(waits))


def measure(case: Case, folder: Path, rounds: int, threads: int) -> dict[str, dict[str, Any]]:
    """Return the case's figures, spinning and sleeping."""
    try:
        loader = BatchedDataLoader(
            folder,
            shuffle=True,
            num_threads=threads,
            isolation=case.isolation,  # type: ignore[arg-type]
            **case.arguments,
        )
    except UnsupportedError as error:
        return {f"{case.name}, spinning": {"status": "unsupported", "reason": str(error)}}
    with loader:
        free = [consume(loader, lambda: None).seconds for _ in range(3)][1:]  # the first warms up
        additions = additions_in(STEP_S)
        pause = 1.5 * statistics.median(free) / len(loader)
        steps = {"spinning": lambda: spin(additions), "sleeping": lambda: time.sleep(pause)}
        out = {}
        for kind, step in steps.items():
            pairs = [(consume(range(len(loader)), step), consume(loader, step)) for _ in range(rounds)]
            out[f"{case.name}, {kind}"] = figures(pairs)
    return out


def figures(pairs: list[tuple[Passed, Passed]]) -> dict[str, Any]:
    """Return ratios to the steps alone, round by round."""
    return {
        "status": "ok",
        "batches": len(pairs[0][1].waits_s),
        "alone_s": spread([alone.seconds for alone, _ in pairs]),
        "epoch_s": spread([epoch.seconds for _, epoch in pairs]),
        "epoch_ratio": spread([epoch.seconds / alone.seconds for alone, epoch in pairs]),
        "slowing_ratio": spread([(epoch.steps_s - alone.steps_s) / alone.seconds for alone, epoch in pairs]),
        "waiting_ratio": spread([sum(epoch.waits_s) / alone.seconds for alone, epoch in pairs]),
        "first_wait_s": spread([epoch.waits_s[0] for _, epoch in pairs]),
        "longest_wait_steps": spread(
            [max(epoch.waits_s[1:], default=0.0) / (alone.seconds / len(alone.waits_s)) for alone, epoch in pairs]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--command", default="python -m benchmarks.suite gil")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases: dict[str, Any] = {}
    for case in CASES:
        rows = max(case.data.files * 16, round(case.data.rows * arguments.scale))
        home = arguments.data / f"{case.data.name}-{rows}"
        for layout in dict.fromkeys((case.data.layouts[0], case.layout)):
            generate(case.data, rows, layout, home)
        sized = dataclasses.replace(case, arguments=_fitting(case.arguments, rows))
        for name, found in measure(sized, home / case.layout, arguments.rounds, arguments.threads).items():
            cases[name] = found
            print(name, _said(found), flush=True)
    about = {
        "about": ABOUT,
        "date": now(),
        "command": arguments.command,
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "hardware": hardware(),
        "versions": {"pyarrow": pa.__version__, "torch": torch.__version__, "numpy": np.__version__},
    }
    path = arguments.results / "gil.json"
    save(path, {**about, "cases": {**load(path).get("cases", {}), **cases}})


def _fitting(arguments: dict[str, Any], rows: int) -> dict[str, Any]:
    """Keep several batches and windows where the data set is a small one."""
    batch = min(arguments["batch_size"], max(1, rows // 16))
    return {**arguments, "batch_size": batch, "window_rows": max(batch, min(arguments["window_rows"], rows // 4))}


def _said(found: dict[str, Any]) -> str:
    if found["status"] != "ok":
        return str(found["reason"])
    names = ("epoch_ratio", "slowing_ratio", "waiting_ratio", "longest_wait_steps")
    epoch, slowing, waiting, longest = (found[name]["median"] for name in names)
    return (
        f"epoch {epoch:.3f} of the steps alone: slowed {slowing:+.3f}, waited {waiting:+.3f}; longest wait "
        f"{longest:.2f} steps"
    )


if __name__ == "__main__":
    main()
