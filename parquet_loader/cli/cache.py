"""``parquet-loader cache info|clear PATH``: show the contents of a local cache, or clear it."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict

import click

from parquet_loader.cli.console import show_json, show_lines
from parquet_loader.common import format_bytes, format_count
from parquet_loader.read import CacheContents, clear, contents_of


@click.group(epilog="Example: parquet-loader cache info /local/cache")
def cache() -> None:
    """Show or clear a local cache."""


@cache.command(epilog="Example: parquet-loader cache info /local/cache --json")
@click.argument("path", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(path: str, *, as_json: bool) -> None:
    """Show the contents of the local cache in PATH."""
    found = contents_of(path)
    if as_json:
        show_json({"bytes" if name == "nbytes" else name: value for name, value in asdict(found).items()})
        return
    held = f"{format_count(found.row_groups, 'row group')} of {format_count(found.files, 'file')}"
    show_lines(
        f"{held}, {format_bytes(found.nbytes)}",
        *_times(found),
        f"used by {format_count(found.loaders, 'running loader')}; being fetched: "
        f"{format_count(found.unfinished, 'row group')}",
    )


@cache.command(name="clear", epilog="Example: parquet-loader cache clear /local/cache")
@click.argument("path", type=click.Path(file_okay=False))
def clear_command(path: str) -> None:
    """Remove the row groups in the local cache in PATH; loaders that are running fetch them again."""
    row_groups, nbytes = clear(path)
    show_lines(f"removed {format_count(row_groups, 'row group')}, {format_bytes(nbytes)}")


def _times(found: CacheContents) -> list[str]:
    if found.oldest_use_s is None or found.latest_use_s is None:
        return []
    oldest, latest = (
        dt.datetime.fromtimestamp(s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        for s in (found.oldest_use_s, found.latest_use_s)
    )
    return [f"used between {oldest} and {latest}"]
