"""An epoch as one HTML page: no scripts, no requests, light and dark."""

from __future__ import annotations

import json
from html import escape

from parquet_loader.common import format_bytes, format_count
from parquet_loader.engine import STAGES
from parquet_loader.loader.epochs.epoch_figures import EpochRecord
from parquet_loader.loader.report.charts import Series, chart, duration
from parquet_loader.loader.report.timeline import Timeline, timeline_of
from parquet_loader.loader.stats import LoaderStats

_STAGE_NAMES = {"read": "read and decode", "permute": "permute", "gather": "gather", "process": "images and transform"}

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2430; --soft: #55606e; --line: #dde2e8; --card: #f5f7f9;
  --read: #2866d0; --permute: #8e44ad; --gather: #12805c; --process: #b45f06; --blocked: #9aa5b1; --wait: #c0392b;
  --bytes: #2866d0; --ready: #12805c; --limit: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e6eaef; --soft: #a3aebb; --line: #2c343d;
  --card: #1c2228; --read: #6ea3ff; --permute: #c68ae0; --gather: #4fc79b; --process: #f0a04b; --blocked: #6b7783;
  --wait: #ff7b6b; --bytes: #6ea3ff; --ready: #4fc79b; --limit: #ff7b6b; } }
* { box-sizing: border-box; }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 900px; padding: 24px 16px 48px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 8px; }
p { margin: 6px 0; } .soft { color: var(--soft); overflow-wrap: anywhere; }
.verdict { font-weight: 600; margin: 14px 0 6px; }
.tiles { display: grid; gap: 8px; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); margin: 14px 0; }
.tiles div { background: var(--card); border-radius: 8px; padding: 8px 12px; }
.tiles b { display: block; font-size: 18px; } .tiles span { color: var(--soft); font-size: 13px; }
ul { margin: 6px 0; padding-left: 20px; } li { margin: 6px 0; overflow-wrap: anywhere; }
figure { margin: 18px 0 0; overflow-x: auto; } figcaption { font-weight: 600; }
.legend { color: var(--soft); font-weight: 400; font-size: 13px; }
.legend span { margin-left: 14px; white-space: nowrap; }
.legend i { display: inline-block; height: 10px; margin-right: 5px; width: 10px; background: currentColor; }
svg { display: block; height: auto; min-width: 560px; width: 100%; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); } line.limit { stroke: var(--limit); stroke-dasharray: 5 4; }
.tip { fill: transparent; } .tip:hover { fill: var(--text); fill-opacity: .08; }
table { border-collapse: collapse; width: 100%; } td, th { border-bottom: 1px solid var(--line); padding: 4px 8px 4px 0;
  text-align: left; } td:nth-child(n+2), th:nth-child(n+2) { font-variant-numeric: tabular-nums; text-align: right; }
.table { overflow-x: auto; }
""" + "".join(
    f"path.{kind} {{ fill: var(--{kind}); }} i.{kind} {{ color: var(--{kind}); }}\n"
    for kind in (*STAGES, "blocked", "wait", "bytes", "ready", "limit")
)


def page_of(stats: LoaderStats, record: EpochRecord, about: str) -> str:
    """Return the page of an epoch.

    Args:
        stats: Its figures.
        record: Its record.
        about: The loader in one line.
    """
    timeline = timeline_of(record, stats.threads)
    title = f"Epoch {stats.epoch}: {stats.rows_per_s:,.0f} rows/s"
    advice = "".join(f"<li>{_marked(finding.text)}</li>" for finding in stats.findings)
    embedded = json.dumps(stats.to_dict()).replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="soft">{escape(about)}</p>'
        f'<p class="verdict">{escape(stats.verdict)}</p>'
        + (f"<h2>What to change</h2><ul>{advice}</ul>" if advice else "")
        + f'<div class="tiles">{_tiles(stats)}</div>'
        + f"<h2>Over time</h2>{_charts(stats, timeline)}"
        + f"<h2>Stages</h2>{_stages(stats)}"
        + f"<h2>Figures</h2><pre class='soft' style='white-space: pre-wrap'>{escape(str(stats))}</pre>"
        + f'<script type="application/json" id="stats">{embedded}</script></body></html>\n'
    )


def _marked(text: str) -> str:
    """Return text in which words between backticks are code."""
    parts = escape(text).split("`")
    return "".join(part if not number % 2 else f"<code>{part}</code>" for number, part in enumerate(parts))


def _tiles(stats: LoaderStats) -> str:
    held = f"{format_bytes(stats.peak_bytes)}", f"most memory held, of {format_bytes(stats.memory_limit_bytes)}"
    tiles = [
        (f"{stats.rows:,}", f"rows in {stats.batches:,} batches"),
        (duration(stats.seconds), "from begin to end"),
        (f"{stats.wait_share:.0%}", f"of the time waited: {duration(stats.wait_s)}"),
        (duration(stats.first_batch_s), "for the first batch"),
        (duration(stats.longest_wait_s), "longest wait after it"),
        held,
    ]
    score = None if stats.shuffling is None else stats.shuffling.score
    if score is not None:
        tiles.append(
            (f"{score.score:.2f}", f"mixing score: as a shuffle buffer of {format_count(score.buffer_rows, 'row')}")
        )
    if stats.remote is not None:
        tiles.append((f"{stats.remote.requests:,}", f"requests, {format_bytes(stats.remote.fetched_bytes)}"))
    return "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in tiles)


def _charts(stats: LoaderStats, timeline: Timeline) -> str:
    work, deliveries, seconds = timeline.work, timeline.deliveries, timeline.seconds
    spans = [(one.begin, one.end) for one in work]
    delivered = [(one.begin, one.end) for one in deliveries]
    threads = max(1, stats.threads)
    used = [number for number, stage in enumerate(STAGES) if stats.cpu_s[stage] > 0 or stage == "read"]
    stages = [Series(_STAGE_NAMES[STAGES[n]], STAGES[n], [one.cpu[n] for one in work]) for n in used]
    stages.append(Series("in a job without a processor", "blocked", [one.blocked for one in work]))

    def number(value: float) -> str:
        return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"

    def rate(value: float) -> str:
        return f"{format_bytes(value)}/s"

    def percent(value: float) -> str:
        return f"{value:.0%}"

    def size(value: float) -> str:
        return format_bytes(int(value))

    limit = (f"memory_limit {format_bytes(stats.memory_limit_bytes)}", float(stats.memory_limit_bytes))
    ready = "batches" if stats.transforms else "windows"
    charts = [
        chart(f"Workers busy, of {threads}", spans, stages, seconds=seconds, text=number, stacked=True,
              least_top=threads),
        chart("The loop waited", delivered, [Series("share of the time", "wait", [d.wait_share for d in deliveries])],
              seconds=seconds, text=percent, least_top=1.0),
        chart("Rows per second", delivered, [Series("rows", "bytes", [d.rows_per_s for d in deliveries])],
              seconds=seconds, text=number),
        chart("Memory", spans, [Series("held", "bytes", [one.held_bytes for one in work])], seconds=seconds, text=size,
              are_bytes=True, limit=limit),
        chart("Ready ahead of the loop", spans, [Series(ready, "ready", [one.ready for one in work])], seconds=seconds,
              text=number, least_top=4),
        chart("Stored bytes decoded", spans, [Series("bytes", "bytes", [one.bytes_per_s for one in work])],
              seconds=seconds, text=rate, are_bytes=True),
    ]  # fmt: skip
    if stats.remote is not None:
        requests = Series("requests per second", "ready", [one.requests_per_s for one in work])
        fetched = Series("bytes", "bytes", [one.fetched_per_s for one in work])
        charts.append(chart("Remote requests", spans, [requests], seconds=seconds, text=number))
        charts.append(chart("Fetched", spans, [fetched], seconds=seconds, text=rate, are_bytes=True))
    return "".join(charts)


def _stages(stats: LoaderStats) -> str:
    total = max(1e-12, stats.busy_s + stats.idle_s)
    rows = [
        (_STAGE_NAMES[stage], stats.cpu_s[stage], stats.blocked_s[stage])
        for stage in STAGES
        if stats.cpu_s[stage] or stats.blocked_s[stage]
    ]
    cells = "".join(
        f"<tr><td>{escape(name)}</td><td>{cpu:.3g}</td><td>{blocked:.3g}</td>"
        f"<td>{(cpu + blocked) / total:.0%}</td></tr>"
        for name, cpu, blocked in rows
    )
    idle = f"<tr><td>without a job</td><td></td><td></td><td>{stats.idle_s / total:.0%}</td></tr>"
    head = "<tr><th>stage</th><th>processor s</th><th>blocked s</th><th>of the workers' time</th></tr>"
    return f'<div class="table"><table>{head}{cells}{idle}</table></div>'
