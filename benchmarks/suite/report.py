"""Write docs/benchmarks.md and its plots from the results.

python -m benchmarks.suite.report --results DIR --page FILE --images DIR
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.suite import plots
from benchmarks.suite.claims import CLAIMS, faster_peers, ratio
from benchmarks.suite.results import load
from benchmarks.suite.workloads import WORKLOADS

Results = Mapping[str, Any]
HEAD = """# Benchmarks

How fast is the loader, compared with decoding alone and with other loaders?

`python -m benchmarks.suite report` writes this page and its plots from the JSON in [{results}]({results}); no figure is
typed by hand. `make bench` measures everything again. To measure one row, run
`python -m benchmarks.suite run WORKLOAD --system SYSTEM`, with the names in the tables.

## How it was measured

- Each system runs in its own process and environment, with the newest release that can be installed (Petastorm needs
  pyarrow 14), and delivers finished torch tensors. Upper limits, such as decoding alone, deliver no batches: they only
  decode or copy.
- Systems take turns, round after round. Figures are medians; ranges span all rounds. Ratios are taken within rounds.
- An epoch is timed from the request of its iterator to its last batch. A turn is two consecutive epochs, as in
  training. Only the second one counts, because allocators release memory while other systems take their turns. If an
  epoch takes longer than ten seconds, a turn is one epoch. First epochs are timed separately. Before all turns, an
  epoch is checked: *verified* means that its checksum over all values, which does not depend on the order of rows,
  equals that of the rows as plain pyarrow reads them.
- The page cache is warm. No system verifies page checksums. Each system gets the same number of threads, worker
  processes or processors, whichever applies.
- If a system can shuffle, it mixes at least as many rows as the workload's window; the column *shuffles* says what it
  mixes. If an epoch would take a system minutes, it loads fewer rows, made the same way; see the column *rows*.
"""
STAGES = """Processor time of the loader's own threads, from `loader.stats()`: `read` is reading and decoding,
`permute` draws the order, `gather` puts rows into it, `process` decodes images. The rest is spent on making tensors and
on waiting for other threads. The first epoch includes page faults of new memory.
"""
STAGE_NAMES = ("read", "permute", "gather", "process")
STATUS = {"unsupported": "cannot do it", "failed": "failed", "wrong": "delivered something else"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    arguments = parser.parse_args()
    write(arguments.results, arguments.page, arguments.images)


def write(results: Path, page: Path, images: Path) -> None:
    """Write the page and the plots of whatever results there are."""
    workloads = {name: load(results / f"{name}.json") for name in WORKLOADS}
    workloads = {name: found for name, found in workloads.items() if found}
    gil, scale, lake = (load(results / f"{name}.json") for name in ("gil", "scale", "lake"))
    link = os.path.relpath(results, page.parent)
    parts = [HEAD.format(results=link)]
    parts += _ratios(workloads)
    figures = os.path.relpath(images, page.parent)
    for name, found in workloads.items():
        parts += _workload(name, found, images, figures)
    stages = {
        name: found["entries"]["ours"]["figures"]["cpu_s"]
        for name, found in workloads.items()
        if found["entries"].get("ours", {}).get("figures")
    }
    if stages:
        plots.stages(images / "stages.png", stages)
        parts += ["## Time by stage\n", f"![Shares of processor time by stage]({figures}/stages.png)\n"]
        parts.append(STAGES)
        parts += _epochs(workloads)
    parts += _lake(lake) + _gil(gil, images, figures) + _scale(scale, images, figures)
    parts += _machines(workloads, {"gil": gil, "scale": scale, "lake": lake})
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(parts).rstrip("\n") + "\n", encoding="utf-8")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table, with an empty line after it."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def rate_text(found: Results, rate: Mapping[str, float], part: str = "median") -> str:
    """Return a rate in the workload's unit."""
    value = rate[part]
    if found["unit"] == "rows":
        return f"{value / 1e6:.3g} M" if value >= 1e5 else f"{value:,.0f}"
    return f"{value / 1e9:.2f} G" if value >= 1e9 else f"{value / 1e6:.0f} M"


def unit_text(found: Results) -> str:
    """Return the unit of `rate_text`."""
    return "rows/s" if found["unit"] == "rows" else "bytes/s"


def times_text(value: float) -> str:
    """Return a ratio with a useful number of digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def rate_of(found: Results, entry: Results) -> Mapping[str, float]:
    """Return an entry's rates in the workload's unit."""
    rate: Mapping[str, float] = entry["rows_per_s" if found["unit"] == "rows" else "bytes_per_s"]
    return rate


def _ratios(workloads: Mapping[str, Results]) -> list[str]:
    rows = []
    for claim in CLAIMS:
        found = ratio(workloads.get(claim.workload, {}).get("entries", {}), claim.ours, claim.other)
        if found is None:
            continue
        mark = "" if found.paired else ", not in one run"
        range_ = f"{times_text(found.least)} to {times_text(found.most)}{mark}"
        met = "yes" if found.median >= claim.aim else "**no**"
        rows.append((f"*{claim.workload}*", claim.text, times_text(found.median), range_, f"{claim.aim:g}", met))
    if not rows:
        return []
    return ["## Ratios\n", table(("workload", "our rate", "times", "range", "aim", "met"), rows)]


def _epochs(workloads: Mapping[str, Results]) -> list[str]:
    """Return the seconds of first and later epochs of our loader, and its processor seconds by stage."""
    rows = []
    for name, found in workloads.items():
        entry = found["entries"].get("ours", {})
        if "processor_s" in entry:
            stages = [entry["figures"]["cpu_s"][stage] for stage in STAGE_NAMES]
            total = entry["processor_s"]["median"]
            numbers = (entry["first_epoch"]["seconds"], entry["seconds"]["median"], total, *stages)
            cells = [f"{number:.3f}" for number in (*numbers, max(0.0, total - sum(stages)))]
            rows.append((f"*{name}*", *cells))
    head = ("workload", "first epoch, s", "later, s", "processor, s", *STAGE_NAMES, "rest")
    return [table(head, rows)] if rows else []


def _workload(name: str, found: Results, images: Path, figures: str) -> list[str]:
    entries: dict[str, Results] = found["entries"]
    good = {key: entry for key, entry in entries.items() if entry["status"] == "ok" and "seconds" in entry}
    about = f"{found['rows']:,} rows at full size: {found['data']}. Batches of {found['batch_size']:,}"
    parts = [f"## {name}\n", f"{about}; windows of at least {found['window_rows']:,} rows.\n"]
    if good:
        unit, scale = ("M rows/s", 1e6) if found["unit"] == "rows" else ("GB/s", 1e9)
        bars = [
            (e["title"], e["role"], {k: rate_of(found, e)[k] / scale for k in ("median", "min", "max")})
            for e in good.values()
        ]
        plots.throughput(images / f"{name}.png", name, unit, bars)
        parts.append(f"![Throughput by system, {name}]({figures}/{name}.png)\n")
    rows = []
    for key, entry in sorted(good.items(), key=lambda item: -rate_of(found, item[1])["median"]):
        rate = rate_of(found, entry)
        ours = ratio(entries, key, "ours")
        title = f"**{entry['title']}**" if entry["role"] == "ours" else entry["title"]
        share = "all" if entry["rows"] >= found["rows"] else f"{entry['rows']:,}"
        verified = {True: "yes", None: "-"}.get(entry["verified"], "no")
        range_ = f"{rate_text(found, rate, 'min')} to {rate_text(found, rate, 'max')}"
        times = times_text(ours.median) if ours else ""
        rows.append((f"`{key}`", title, rate_text(found, rate), range_, times, entry["shuffles"], share, verified))
    head = ("system", "", unit_text(found), "range", "times `ours`", "shuffles", "rows", "verified")
    if rows:
        parts.append(table(head, rows))
    parts += _peers(entries)
    parts += [
        f"- `{k}`, {e['title']}: {STATUS[e['status']]}: {_one_line(e['reason'])}"
        for k, e in entries.items()
        if e["status"] != "ok"
    ]
    return [*parts, ""]


def _one_line(text: str) -> str:
    lines = text.split(" (output:", 1)[0].strip().splitlines()
    return lines[0][:300].replace("|", "\\|") if lines else "no reason given"


def _peers(entries: Mapping[str, Results]) -> Iterator[str]:
    faster = faster_peers(entries)
    if faster:
        named = "; ".join(
            f"`{name}` is {times_text(times)} times as fast (shuffles {entries[name]['shuffles']})"
            for name, times in faster
        )
        yield f"Ahead of `ours` here: {named}.\n"
    elif any(e["role"] == "peer" and e["status"] == "ok" for e in entries.values()) and "ours" in entries:
        yield "No peer measured is ahead of `ours` here.\n"


def _gil(found: Results, images: Path, figures: str) -> list[str]:
    if not found:
        return []
    rows, bars = [], []
    for name, case in found["cases"].items():
        if case["status"] != "ok":
            rows.append((name, STATUS[case["status"]] + ": " + _one_line(case["reason"]), "", "", "", ""))
            continue
        rows.append(
            (
                name,
                f"{case['epoch_ratio']['median']:.3f}",
                f"{case['epoch_ratio']['min']:.3f} to {case['epoch_ratio']['max']:.3f}",
                f"{case['slowing_ratio']['median']:+.1%}",
                f"{case['waiting_ratio']['median']:+.1%}",
                f"{case['longest_wait_steps']['median']:.2f}",
            )
        )
        bars.append((name, 1.0, case["slowing_ratio"]["median"], case["waiting_ratio"]["median"]))
    plots.steps(images / "gil.png", "A training loop in pure Python: an epoch compared with its steps alone", bars)
    head = ("case", "epoch / steps alone", "range", "steps slowed by", "waiting", "longest wait after the first, steps")
    return [
        "## A training loop that holds the GIL\n",
        f"![Epochs compared with their steps alone]({figures}/gil.png)\n",
        found["about"] + "\n",
        table(head, rows),
    ]


def _scale(found: Results, images: Path, figures: str) -> list[str]:
    studies: dict[str, Results] = found.get("studies", {})
    if not studies:
        return []
    parts = ["## Growth\n"]
    threads = studies.get("threads")
    if threads:
        plots.curves(images / "threads.png", threads["panels"])
        parts += [f"![Throughput against threads]({figures}/threads.png)\n", threads["about"] + "\n"]
    panels = [panel for name, study in studies.items() if name != "threads" for panel in study["panels"]]
    if panels:
        plots.curves(images / "growth.png", panels)
        parts.append(f"![Growth with files, row groups, columns and rows a batch]({figures}/growth.png)\n")
    for name, study in studies.items():
        if name != "threads":
            parts += [f"**{study['title']}.** {study['about']}\n"]
        rows = [tuple(str(cell) for cell in row) for row in study["rows"]]
        parts.append(table(tuple(study["head"]), rows))
    return parts


def _lake(found: Results) -> list[str]:
    """Tell, for each kind of column and each writer, how our loader compares with decoding alone."""
    if not found:
        return []
    cases = list(found["cases"].values())
    writers = list(dict.fromkeys(case["writer"] for case in cases))
    rows = []
    for kind in dict.fromkeys(case["kind"] for case in cases):
        by_writer = {case["writer"]: case for case in cases if case["kind"] == kind}
        rows.append((kind, *(_lake_cell(by_writer.get(writer)) for writer in writers)))
    head = ("columns", *(f"{writer}: processor (wall), first epoch" for writer in writers))
    return ["## lake: files of other programs\n", found["about"] + "\n", table(head, rows), ""]


def _lake_cell(case: Results | None) -> str:
    if case is None or case["status"] != "ok":
        return "" if case is None else STATUS[case["status"]]
    processor, wall = (times_text(case[key]["median"]) for key in ("processor_s_ratio", "seconds_ratio"))
    return f"{processor} ({wall}), {times_text(case['first_epoch_ratio'])}"


def _machines(workloads: Mapping[str, Results], studies: Mapping[str, Results]) -> list[str]:
    """Return the section with dates, commands, machines and versions."""
    runs: dict[tuple[str, ...], list[str]] = {}
    versions: dict[str, str] = {}
    for name, found in workloads.items():
        for entry in found["entries"].values():
            run = entry["run"]
            hardware = run["hardware"]
            machine = (
                f"{hardware['processor']}, {hardware['cores_used']} of {hardware['cores']} processors, "
                f"{hardware['memory_gib']} GiB, {run['threads']} threads, {run['rounds']} rounds"
            )
            runs.setdefault((run["date"], run["command"], machine), []).append(name)
            if "versions" in entry:
                versions[entry["title"].split(",")[0]] = ", ".join(f"{k} {v}" for k, v in entry["versions"].items())
    for name, found in studies.items():
        if found:
            hardware = found["hardware"]
            machine = f"{hardware['processor']}, {hardware['cores']} processors, {hardware['memory_gib']} GiB"
            runs.setdefault((found["date"], found["command"], machine), []).append(name)
    rows = [
        (date, f"`{command}`", ", ".join(dict.fromkeys(names)), where)
        for (date, command, where), names in sorted(runs.items())
    ]
    parts = ["## Machines and versions\n", table(("date", "command", "measured", "machine"), rows)]
    if versions:
        parts.append(table(("system", "versions"), list(versions.items())))
    return parts


if __name__ == "__main__":
    main()
