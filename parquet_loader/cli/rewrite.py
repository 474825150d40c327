"""``parquet-loader rewrite SOURCE TARGET``."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from parquet_loader.cli.console import show_json, show_lines, show_table
from parquet_loader.common import ReadOptions
from parquet_loader.schema import Schema
from parquet_loader.write.rewrite import RewriteReport, rewrite_dataset
from parquet_loader.write.rewrite.report import COLUMN_HEADS


@click.command(epilog="Example: parquet-loader rewrite data/train data/fast --shuffle --progress")
@click.argument("source", nargs=-1, metavar="SOURCE...")
@click.argument("target")
@click.option("--columns", help="Names to read, with commas between them; default: all.")
@click.option("--schema", type=click.File("r"), help="A schema as JSON (Schema.to_json()); default: the files' own.")
@click.option("--split", help="The split to read, or 'all'; default: everything, if it is one split.")
@click.option("--ignore-table-format", is_flag=True, help="Read a table's files as plain Parquet.")
@click.option("--shuffle", is_flag=True, help="Put all rows into one random order.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the shuffle.")
@click.option("--pack", is_flag=True, help="Store numbers of one type as one column, delivered as one matrix.")
@click.option("--objective", type=click.Choice(["speed", "size"]), default="speed", show_default=True)
@click.option("--memory-limit", default="1GiB", show_default=True)
@click.option("--row-group-bytes", help="Decoded size of a row group; default: 8 MiB or more.")
@click.option("--file-bytes", default="512MiB", show_default=True)
@click.option("--mode", type=click.Choice(["error", "append", "overwrite"]), default="error", show_default=True)
@click.option("--progress", is_flag=True, help="Show a progress bar (needs tqdm).")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def rewrite(source: tuple[str, ...], target: str, *, columns: str | None, as_json: bool, **options: Any) -> None:
    """Rewrite SOURCE (files, directories, globs or URLs) to the directory TARGET in the layout that loads fastest."""
    if not source:
        raise click.UsageError(f"Missing argument: expected SOURCE and TARGET, found {target!r} alone")
    schema = options.pop("schema")
    report = rewrite_dataset(
        source[0] if len(source) == 1 else list(source),
        target,
        schema=None if schema is None else Schema.from_json(schema.read()),
        columns=None if columns is None else [name.strip() for name in columns.split(",")],
        read_options=ReadOptions(ignore_table_format=options.pop("ignore_table_format")),
        pack=options.pop("pack") or None,
        **options,
    )
    if as_json:
        show_json(report.to_dict())
    else:
        _show(report)


def _show(report: RewriteReport) -> None:
    show_lines(*str(dataclasses.replace(report, columns=(), notes=())).splitlines()[:-1], "")
    show_table(COLUMN_HEADS, (column.cells() for column in report.columns), numbers=frozenset({"before", "after"}))
    show_lines(*(f"note: {note}" for note in report.notes))
