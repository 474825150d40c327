"""``parquet-loader doctor SOURCE``: finds what slows a source down or spoils its shuffle, and the command to fix it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from parquet_loader.cli.console import show_json, show_lines, working
from parquet_loader.cli.finite import FiniteRange
from parquet_loader.common import ReadOptions, format_bytes, format_count, parse_bytes
from parquet_loader.loader.epoch_plan import EpochPlan
from parquet_loader.loader.layout.facts import LayoutFacts, examine
from parquet_loader.loader.layout.rules import LayoutFinding, decode_s, layout_findings

# Exit status if there are errors or warnings.
_FOUND = 1


@click.command(epilog="Example: parquet-loader doctor data/train --ranks 8 --batch-size 512 --memory 2GiB")
@click.argument("source", nargs=-1, required=True)
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Ranks of the training job.")
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True, help="Rows of a batch.")
@click.option("--memory", default="1GiB", show_default=True, help="memory_limit of the loader.")
@click.option("--seconds", type=FiniteRange(0), default=2.0, show_default=True,
              help="Read local files for this long to measure; 0: read footers only.")  # fmt: skip
@click.option("--split", help="The split to look at, or 'all'; default: everything, if it is one split.")
@click.option("--ignore-table-format", is_flag=True, help="Read a table's files as plain Parquet.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(source: tuple[str, ...], *, ranks: int, batch_size: int, memory: str, **options: Any) -> int:
    """Find what slows SOURCE down or spoils its shuffle, and the command that mends it.

    The exit status is 1 if there are errors or warnings, and 0 if there are only notes, or none.
    """
    limit = parse_bytes(memory)
    with working("reading footers, then a part of an epoch"):
        facts = examine(
            source[0] if len(source) == 1 else list(source),
            split=options["split"],
            ranks=ranks,
            batch_size=batch_size,
            memory_limit_bytes=limit,
            read_options=ReadOptions(ignore_table_format=options["ignore_table_format"]),
            trial_s=options["seconds"],
        )
        findings = layout_findings(facts)
    is_healthy = all(finding.level == "note" for finding in findings)
    if options["as_json"]:
        show_json(_as_json(facts, findings, is_healthy=is_healthy))
    else:
        _show(facts, findings)
    return 0 if is_healthy else _FOUND


def _as_json(facts: LayoutFacts, findings: tuple[LayoutFinding, ...], *, is_healthy: bool) -> dict[str, Any]:
    score = None if facts.plan is None or facts.plan.mixing is None else facts.plan.mixing
    return {
        "healthy": is_healthy,
        "rows": facts.rows,
        "files": len(facts.file_bytes),
        "row_groups": len(facts.group_rows),
        "ranks": facts.ranks,
        "batch_size": facts.batch_size,
        "memory_limit_bytes": facts.memory_limit_bytes,
        "opening_s": facts.opening_s,
        "decode_s": decode_s(facts),
        "is_measured": facts.trial is not None,
        "mixing_score": None if score is None else score.score,
        "steps": None if facts.plan is None else facts.plan.steps,
        "window_rows": None if facts.plan is None else facts.plan.window_rows,
        "findings": [asdict(finding) for finding in findings],
    }


def _show(facts: LayoutFacts, findings: tuple[LayoutFinding, ...]) -> None:
    plan = facts.plan
    how = "measured" if facts.trial is not None else "estimated"
    show_lines(
        f"{format_count(facts.rows, 'row')} in {format_count(len(facts.file_bytes), 'file')} and "
        f"{format_count(len(facts.group_rows), 'row group')}, "
        f"{format_bytes(int(facts.file_bytes.sum()))}; {format_count(facts.ranks, 'rank')}, batches of "
        f"{facts.batch_size:,}, {format_bytes(facts.memory_limit_bytes)}",
        *([_steps(plan)] if plan is not None else []),
        *([str(plan.mixing)] if plan is not None and plan.mixing is not None else []),
        f"decoding an epoch takes about {decode_s(facts):.3g} s of processor time ({how})",
    )
    if not any(finding.level != "note" for finding in findings):
        show_lines("", "nothing to mend")
    for finding in findings:
        lines = [f"  {finding.remedy}"]
        lines += [f"  $ {finding.command}"] if finding.command else []
        lines += [f"  gain: {finding.gain}"] if finding.gain else []
        show_lines("", f"{finding.level}: {finding.cause}: {finding.text}", *lines)


def _steps(plan: EpochPlan) -> str:
    windows, rows = format_count(plan.windows, "window"), format_count(plan.window_rows, "row")
    return f"{format_count(plan.steps, 'step')} in {windows} of {rows}"
