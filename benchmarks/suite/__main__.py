"""The command line.

    python -m benchmarks.suite run                              every workload and system
    python -m benchmarks.suite run tabular --system ours --system petastorm
    python -m benchmarks.suite gil                              the cost for a training loop in pure Python
    python -m benchmarks.suite scale                            growth with threads, files, row groups, columns, batch
    python -m benchmarks.suite lake                             encodings, codecs, nulls and types, by writer
    python -m benchmarks.suite report                           docs/benchmarks.md and its plots, from the results
    python -m benchmarks.suite all                              all of these
    python -m benchmarks.suite build | data | list              environments, data sets, names

Environments and data are made when they are first needed and kept in .bench/ (`--home`, or $PARQUET_LOADER_BENCH).
Results are merged into benchmarks/results/suite/, entry by entry, so `--missing` can continue an interrupted run. With
`--quick` or `--scale`, results go elsewhere.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.suite.entries import ENTRIES, layout_of, rows_of, select
from benchmarks.suite.environments import PINS_OF, BuildError, Environment
from benchmarks.suite.places import ROOT, Places, default_home
from benchmarks.suite.results import load
from benchmarks.suite.runner import Settings, data_ready, run_workload
from benchmarks.suite.workloads import WORKLOADS

QUICK_SCALE = 1 / 64
STUDIES = ("gil", "scale", "lake")


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main() -> None:
    arguments = _arguments()
    places = _places(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that measured processes are ended too
    try:
        if arguments.command == "list":
            for name, entries in ENTRIES.items():
                print(f"{name}: {' '.join(entry.name for entry in entries)}")
        if arguments.command in ("build", "all") and not arguments.here:
            _build(arguments, places)
        if arguments.command in ("data", "all"):
            _data(arguments, places)
        if arguments.command in ("run", "all"):
            _run(arguments, places)
        for study in STUDIES:
            if arguments.command in (study, "all"):
                _study(study, arguments, places)
        if arguments.command in ("report", "all"):
            _study("report", arguments, places)
    except BuildError as error:
        raise SystemExit(str(error)) from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("all", "run", "gil", "scale", "lake", "report", "build", "data", "list"))
    parser.add_argument("workloads", nargs="*", metavar="workload", help=", ".join(WORKLOADS))
    parser.add_argument("--system", action="append", default=[], help="an entry or a system; may be given again")
    parser.add_argument("--missing", action="store_true", help="only entries without good results")
    parser.add_argument("--rounds", type=int, help="timed rounds; default 5")
    parser.add_argument("--threads", type=int, default=2, help="of each system; default 2")
    parser.add_argument("--cores", type=int, help="processors that each measured process may use; default all")
    parser.add_argument("--scale", type=float, help="size of the data sets; default 1")
    parser.add_argument("--quick", action="store_true", help="small data, one round, results elsewhere")
    parser.add_argument("--epoch-seconds", type=float, default=300, help="an epoch that takes longer has failed")
    parser.add_argument("--here", action="store_true", help="use this interpreter for everything; build nothing")
    parser.add_argument("--home", type=Path, default=default_home())
    parser.add_argument("--environments", type=Path, help="default HOME/environments")
    parser.add_argument("--data", type=Path, help="default HOME/data")
    parser.add_argument("--results", type=Path, help="default benchmarks/results/suite, or below HOME if not full size")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if arguments.scale is None:
        arguments.scale = QUICK_SCALE if arguments.quick else 1.0
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else 5
    if arguments.rounds < 1 or arguments.threads < 1 or not 0 < arguments.scale <= 1:
        parser.error("rounds and threads are at least 1, and scale is above 0 and at most 1")
    try:
        for workload in WORKLOADS.values():
            select(workload, tuple(arguments.system))
    except KeyError as error:
        parser.error(f"no system {error}; `python -m benchmarks.suite list` names them")
    return arguments


def _places(arguments: argparse.Namespace) -> Places:
    home = arguments.home.absolute()
    full = arguments.scale == 1
    results = arguments.results or (ROOT / "benchmarks" / "results" / "suite" if full else home / "small-results")
    return Places(
        environments=(arguments.environments or home / "environments").absolute(),
        data=(arguments.data or home / "data").absolute(),
        logs=home / "logs",
        results=results.absolute(),
        page=arguments.page.absolute(),
        images=arguments.page.absolute().parent / "images" / "benchmarks",
    )


def _chosen(arguments: argparse.Namespace) -> list[str]:
    return arguments.workloads or list(WORKLOADS)


def _build(arguments: argparse.Namespace, places: Places) -> None:
    entries = [e for name in _chosen(arguments) for e in select(WORKLOADS[name], tuple(arguments.system))]
    for name in dict.fromkeys(["ours", *(entry.environment for entry in entries)]):
        environment = Environment(name, places.environments / f"bench-{name}")
        say(f"environment {name}: {'there' if environment.is_built else 'building'}")
        try:
            environment.build()
        except BuildError as error:  # the others are of use without it
            say(str(error))


def _data(arguments: argparse.Namespace, places: Places) -> None:
    for name in _chosen(arguments):
        workload = WORKLOADS[name]
        entries = select(workload, tuple(arguments.system))
        wanted = dict.fromkeys((rows_of(workload, e, arguments.scale), layout_of(workload, e)) for e in entries)
        for rows, layout in wanted:
            say(f"data {workload.data.name}: {rows} rows, layout {layout}")
            data_ready(workload.data, rows, layout, places, here=arguments.here)


def _run(arguments: argparse.Namespace, places: Places) -> None:
    settings = Settings(
        rounds=arguments.rounds,
        threads=arguments.threads,
        cores=arguments.cores,
        scale=arguments.scale,
        open_s=3600,
        epoch_s=arguments.epoch_seconds,
        here=arguments.here,
        command=_typed(arguments),
    )
    for name in _chosen(arguments):
        workload = WORKLOADS[name]
        entries = select(workload, tuple(arguments.system))
        if arguments.missing:
            there = load(places.results / f"{name}.json").get("entries", {})
            entries = tuple(e for e in entries if there.get(e.name, {}).get("status") not in ("ok", "unsupported"))
        if entries:
            run_workload(workload, entries, settings, places, say)


def _study(name: str, arguments: argparse.Namespace, places: Places) -> None:
    """Run a module in its own environment if it has one, else in that of our loader."""
    pins = name if name in PINS_OF else "ours"
    environment = Environment(pins, places.environments / f"bench-{pins}")
    if not arguments.here:
        environment.build()
    python = sys.executable if arguments.here else str(environment.python)
    given = ["--results", str(places.results)]
    if name == "report":
        given += ["--page", str(places.page), "--images", str(places.images)]
    else:
        given += ["--data", str(places.data), "--rounds", str(arguments.rounds), "--threads", str(arguments.threads)]
        given += ["--scale", str(arguments.scale), "--command", _typed(arguments)]
    say(name)
    done = subprocess.run([python, "-m", f"benchmarks.suite.{name}", *given], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def _typed(arguments: argparse.Namespace) -> str:
    """Return the command without what is a matter of this machine."""
    words = ["python", "-m", "benchmarks.suite", arguments.command, *arguments.workloads]
    for system in arguments.system:
        words += ["--system", system]
    for name, default in (("rounds", 5), ("threads", 2), ("cores", None), ("scale", 1.0)):
        if getattr(arguments, name) != default:
            words += [f"--{name}", str(getattr(arguments, name))]
    return shlex.join(words)


if __name__ == "__main__":
    main()
