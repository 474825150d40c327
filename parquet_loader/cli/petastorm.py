"""``parquet-loader petastorm info SOURCE`` and ``parquet-loader petastorm copy SOURCE TARGET``."""

from __future__ import annotations

import sys

import click

from parquet_loader.cli.console import show_lines
from parquet_loader.common import format_bytes, format_count
from parquet_loader.errors import WriteError
from parquet_loader.petastorm.etl.reading.copy_dataset import copy_dataset, print_dataset
from parquet_loader.source import open_snapshot
from parquet_loader.write import WriteOptions


@click.group(epilog="Example: parquet-loader petastorm info digits")
def petastorm() -> None:
    """Show a Petastorm data set, or copy one into this library's layout."""


@petastorm.command(epilog="Example: parquet-loader petastorm info digits")
@click.argument("source")
def info(source: str) -> None:
    """Show the Unischema of SOURCE, the schema that follows from it, its indexes and its row groups."""
    print_dataset(source, sys.stdout)


@petastorm.command(epilog="Example: parquet-loader petastorm copy digits digits-copy --progress")
@click.argument("source")
@click.argument("target")
@click.option("--columns", help="Names to copy, with commas between them; default: all.")
@click.option("--row-group-bytes", help="Decoded size of a row group; default: the writer's.")
@click.option("--file-bytes", help="Size of a file; default: the writer's.")
@click.option("--progress", is_flag=True, help="Show a progress bar (needs tqdm).")
def copy(source: str, target: str, *, columns: str | None, progress: bool, **sizes: str | None) -> None:
    """Copy SOURCE to the directory TARGET: tensors as raw bytes, images as they are, the schema as JSON."""
    try:
        schema = copy_dataset(
            source,
            target,
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            options=WriteOptions(**{name: size for name, size in sizes.items() if size is not None}),
            progress=progress,
        )
    except WriteError as error:
        reason, modes, _ = str(error).partition("; mode=")
        if not modes:
            raise
        raise WriteError(f"{reason}; copy to a new directory") from error
    copied = open_snapshot(target)
    size = format_bytes(sum(file.size_bytes for file in copied.files))
    show_lines(
        f"{target}: {format_count(copied.rows, 'row')} in {format_count(len(copied.files), 'file')}, {size}",
        *repr(schema).splitlines(),
    )
