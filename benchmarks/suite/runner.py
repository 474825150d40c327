"""Runs interleaved rounds of one workload over many systems.

Each entry has its own process, which lives through the workload. Its first epoch is timed separately, because page
faults and imports make it slower. The next one is for the checksum. Then, round after round, every entry in turn
delivers an epoch that is not timed and then a timed one; the order of entries alternates. An epoch is timed from the
request of its iterator to its last batch. Opening (listing files, reading footers) is timed separately.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.suite.entries import Entry, layout_of, rows_of
from benchmarks.suite.environments import BuildError, Environment
from benchmarks.suite.places import ROOT, Places
from benchmarks.suite.processes import Worker, WorkerError, WorkerUnsupported
from benchmarks.suite.results import hardware, merge, now, spread
from benchmarks.suite.workloads import DataSet, Workload

Say = Callable[[str], None]

# Allocators give memory back while the other systems take their turns; epochs in training follow one another. So a turn
# is two epochs of which the second counts, where that is affordable.
WARMED_BELOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is done.

    Attributes:
        rounds: Timed epochs of each entry.
        threads: Each system's.
        cores: Processors that each measured process may use; None: all.
        scale: Size of the data sets, 1 being full.
        open_s: Seconds that opening may take, converting into another format included.
        epoch_s: Seconds that an epoch may take.
        here: Use this interpreter for every system, and build nothing.
        command: What to type to repeat it.
    """

    rounds: int
    threads: int
    cores: int | None
    scale: float
    open_s: float
    epoch_s: float
    here: bool
    command: str


@dataclass(slots=True)
class Running:
    """An entry under way."""

    entry: Entry
    rows: int
    checksum: str
    delivered_bytes: int
    worker: Worker | None = None
    status: str = "ok"
    reason: str = ""
    verified: bool | None = None
    opened: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)

    def end(self, status: str, reason: str) -> None:
        """Take no more part in the rounds."""
        self.status, self.reason = status, reason
        if self.worker is not None:
            self.worker.close(0.5)
            self.worker = None


def run_workload(workload: Workload, entries: Sequence[Entry], settings: Settings, places: Places, say: Say) -> None:
    """Measure the entries of a workload, and merge them into its results."""
    run = {
        "date": now(),
        "command": settings.command,
        "rounds": settings.rounds,
        "threads": settings.threads,
        "hardware": {**hardware(), "cores_used": settings.cores or hardware()["cores"]},
        "commit": _commit(),
    }
    runnings = []
    with contextlib.ExitStack() as stack:
        for entry in entries:
            say(f"{workload.name}: {entry.name}: opening")
            running = _open(workload, entry, settings, places)
            runnings.append(running)
            if running.worker is not None:
                stack.callback(running.worker.close)
            outcome = "verified" if running.verified else "nothing to verify"
            say(f"{workload.name}: {entry.name}: {outcome if running.status == 'ok' else running.reason}")
        for number in range(settings.rounds):
            for running in runnings if number % 2 == 0 else reversed(runnings):
                if running.worker is not None:
                    _epoch(running, settings, say, f"{workload.name}: round {number + 1}: {running.entry.name}")
        for running in runnings:
            if running.epochs:
                say(f"{workload.name}: {running.entry.name}: {_summary(running)}")
    about = {
        "workload": workload.name,
        "rows": max(1, round(workload.data.rows * settings.scale)),
        "batch_size": workload.batch_size,
        "window_rows": workload.window_rows,
        "unit": workload.unit,
        "data": workload.data.about,
        "page_cache": "warm",
        "page_checksums_verified": False,
    }
    merge(
        places.results / f"{workload.name}.json",
        about,
        {running.entry.name: _result(workload, running, run) for running in runnings},
    )


def data_ready(data: DataSet, rows: int, layout: str, places: Places, *, here: bool) -> dict[str, Any]:
    """Generate a layout of a data set if need be, and return its marker.

    Raises:
        BuildError: it cannot be generated.
    """
    home = places.data_set(data, rows)
    for wanted in dict.fromkeys((data.layouts[0], layout)):
        if not (home / f"{wanted}.json").exists():
            python = sys.executable if here else str(_environment("ours", places).python)
            command = [python, "-m", "benchmarks.suite.generate", data.name, str(rows), wanted, str(home)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError(f"generating {data.name} ({wanted}) failed:\n{done.stderr[-2000:]}")
    marker: dict[str, Any] = json.loads((home / f"{layout}.json").read_text(encoding="utf-8"))
    return marker


def _environment(name: str, places: Places) -> Environment:
    environment = Environment(name, places.environments / f"bench-{name}")
    environment.build()
    return environment


def _open(workload: Workload, entry: Entry, settings: Settings, places: Places) -> Running:
    rows, layout = rows_of(workload, entry, settings.scale), layout_of(workload, entry)
    home = places.data_set(workload.data, rows)
    running = Running(entry, rows, "", 0)
    try:
        marker = data_ready(workload.data, rows, layout, places, here=settings.here)
        running.checksum, running.delivered_bytes = marker["checksum"], marker["delivered_bytes"]
        python = Path(sys.executable) if settings.here else _environment(entry.environment, places).python
        running.worker = Worker(python, places.logs / f"{workload.name}-{entry.name}.log")
        job = {
            "folder": str(home / layout),
            "rows": rows,
            "columns": [dataclasses.asdict(column) for column in workload.data.columns],
            "batch_size": workload.batch_size,
            "window_rows": workload.window_rows,
            "threads": settings.threads,
            "copies": str(home),
            "options": dict(entry.options),
        }
        request = {"do": "open", "system": entry.system, "job": job, "cores": settings.cores}
        running.opened = running.worker.ask(request, settings.open_s)
        _read_all(home / layout)  # the page cache is warm in first epochs, too
        running.first = running.worker.ask({"do": "epoch"}, settings.epoch_s)
        summed = running.worker.ask({"do": "checksum"}, settings.epoch_s * 3)
        if summed["checksum"] is not None:
            running.verified = (summed["checksum"], summed["rows"]) == (running.checksum, rows)
            if not running.verified:
                found = f"{summed['rows']} rows, checksum {summed['checksum']}"
                running.end("wrong", f"expected {rows} rows, checksum {running.checksum}; delivered {found}")
    except WorkerUnsupported as reason:
        running.end("unsupported", str(reason))
    except (WorkerError, BuildError) as error:
        running.end("failed", str(error))
    return running


def _epoch(running: Running, settings: Settings, say: Say, label: str) -> None:
    assert running.worker is not None
    try:
        warms = not running.epochs or running.epochs[-1]["seconds"] < WARMED_BELOW_S
        epoch = running.worker.ask({"do": "epoch", "warms": warms}, settings.epoch_s * (1 + warms))
    except WorkerError as error:
        running.end("failed", str(error))
        say(f"{label}: {error}")
        return
    if epoch["rows"] != running.rows:
        running.end("wrong", f"a timed epoch delivered {epoch['rows']} of {running.rows} rows")
        return
    running.epochs.append(epoch)
    rate = running.rows / epoch["seconds"]
    say(f"{label}: {epoch['seconds']:.3f} s ({epoch['processor_s']:.3f} s of processor time), {rate:,.0f} rows/s")


def _read_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 24):
                    pass


def _summary(running: Running) -> str:
    """Return the times of the first and of later epochs, and processor seconds by stage."""
    first, seconds = running.first["seconds"], median(epoch["seconds"] for epoch in running.epochs)
    processor = median(epoch["processor_s"] for epoch in running.epochs)
    stages = running.epochs[-1]["figures"].get("cpu_s", {})
    by_stage = "".join(f", {stage} {used:.3f}" for stage, used in stages.items() if used)
    return f"first epoch {first:.3f} s, later {seconds:.3f} s; processor time {processor:.3f} s{by_stage}"


def _result(workload: Workload, running: Running, run: Mapping[str, Any]) -> dict[str, Any]:
    entry = running.entry
    out: dict[str, Any] = {
        "title": entry.title,
        "role": entry.role,
        "layout": layout_of(workload, entry),
        "shuffles": entry.shuffles,
        "rows": running.rows,
        "share_of_rows": round(
            running.rows / max(1, rows_of(workload, dataclasses.replace(entry, share_rows=None), 1)), 6
        ),
        "delivered_bytes": running.delivered_bytes,
        "options": dict(entry.options),
        "status": running.status,
        "reason": running.reason,
        "verified": running.verified,
        "run": dict(run),
    }
    if running.opened:
        out |= {"versions": running.opened["versions"], "open_s": running.opened["open_s"]}
    if running.epochs:
        out["seconds"] = spread([epoch["seconds"] for epoch in running.epochs])
        out["processor_s"] = spread([epoch["processor_s"] for epoch in running.epochs])
        out["first_epoch"] = {name: running.first[name] for name in ("seconds", "processor_s")}
        out["first_batch_s"] = spread([epoch["first_batch_s"] for epoch in running.epochs])
        out["rows_per_s"] = spread([running.rows / epoch["seconds"] for epoch in running.epochs])
        out["bytes_per_s"] = spread([running.delivered_bytes / epoch["seconds"] for epoch in running.epochs])
        out["batches"] = running.epochs[-1]["batches"]
        out["figures"] = running.epochs[-1]["figures"]
    return out


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
