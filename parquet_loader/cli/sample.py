"""``parquet-loader sample SOURCE --out sheet.html``: a contact sheet of a few rows."""

from __future__ import annotations

import os
from typing import Any

import click

from parquet_loader.cli.console import show_json, show_lines, working
from parquet_loader.common import ReadOptions, format_bytes, format_count, replace_file
from parquet_loader.loader.sheet import page_of, picture_of, sheet_of

_MOST_ROWS = 1000


@click.command(epilog="Example: parquet-loader sample data/train --out sheet.html --rows 24")
@click.argument("source", nargs=-1, required=True)
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="The file to write: .html or .png.")
@click.option("--rows", type=click.IntRange(1, _MOST_ROWS), default=16, show_default=True, help="Rows to show.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="By which rows are drawn.")
@click.option("--columns", help="Names to show, with commas between them; default: all.")
@click.option("--split", help="The split to look at, or 'all'; default: everything, if it is one split.")
@click.option("--ignore-table-format", is_flag=True, help="Read a table's files as plain Parquet.")
@click.option("--json", "as_json", is_flag=True, help="Print what is shown as JSON, without media.")
def sample(source: tuple[str, ...], *, out: str, rows: int, seed: int, columns: str | None, **options: Any) -> None:
    """Write a contact sheet of SOURCE: images, recordings, clips, text and numbers of random rows.

    The page holds everything it shows, runs no scripts, and loads nothing.
    """
    suffix = os.path.splitext(out)[1].lower()
    if suffix not in (".html", ".htm", ".png"):
        raise click.UsageError(f"--out {out}: expected a name that ends in .html or .png")
    with working("reading rows"):
        sheet = sheet_of(
            source[0] if len(source) == 1 else list(source),
            rows=rows,
            seed=seed,
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            split=options["split"],
            read_options=ReadOptions(ignore_table_format=options["ignore_table_format"]),
        )
        content = picture_of(sheet) if suffix == ".png" else page_of(sheet).encode()
    _replace(out, content)
    if options["as_json"]:
        show_json(
            {
                "out": out,
                "bytes": len(content),
                "rows": sheet.rows,
                "seed": seed,
                "columns": [{"name": name, "field": field, "becomes": batch} for name, field, batch in sheet.columns],
                "shown": [
                    {"row": number, "cells": {name: {"kind": c.kind, "text": c.text} for name, c in cells.items()}}
                    for number, cells in zip(sheet.numbers, sheet.cells, strict=True)
                ],
            }
        )
    else:
        show_lines(f"{out}: {len(sheet.numbers):,} of {format_count(sheet.rows, 'row')}, {format_bytes(len(content))}")


def _replace(path: str, content: bytes) -> None:
    """Write a file atomically."""
    try:
        replace_file(path, content)
    except OSError as error:
        folder = os.path.dirname(os.path.abspath(path))
        raise click.ClickException(f"{path}: cannot be written in {folder} ({error.strerror})") from None
