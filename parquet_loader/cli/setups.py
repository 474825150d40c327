"""The options that describe a loader, for commands that read through one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from parquet_loader.common import ReadOptions, parse_bytes
from parquet_loader.loader.simulation.calibration import LoaderSetup
from parquet_loader.read import LocalCache

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True, help="Rows of a batch."),
    click.option("--threads", type=click.IntRange(1, 256), help="num_threads; default: the processors, at most 8."),
    click.option("--memory", default="1GiB", show_default=True, help="memory_limit of the loader."),
    click.option("--columns", help="Names to read, with commas between them; default: all."),
    click.option("--split", help="The split to read, or 'all'; default: everything, if it is one split."),
    click.option("--isolation", type=click.Choice(["thread", "process"]), default="thread", show_default=True),
    click.option("--window-rows", type=click.IntRange(1), help="Rows shuffled together; default: as in a loader."),
    click.option("--in-order", is_flag=True, help="Read without shuffling."),
    click.option("--cache", type=click.Path(file_okay=False), help="Read through a local cache in this directory."),
    click.option("--cache-bytes", default="100GB", show_default=True, help="Most bytes of the local cache."),
    click.option("--ignore-table-format", is_flag=True, help="Read a table's files as plain Parquet."),
)


def loader_options(command: F) -> F:
    """Add the options of a loader to a command; `setup_of` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def setup_of(source: tuple[str, ...], options: dict[str, Any]) -> LoaderSetup:
    """Return the loader that options describe."""
    cache = options["cache"]
    return LoaderSetup(
        source[0] if len(source) == 1 else list(source),
        options["batch_size"],
        num_threads=options["threads"],
        memory_limit=parse_bytes(options["memory"]),
        columns=options["columns"].split(",") if options["columns"] else None,
        split=options["split"],
        shuffle=not options["in_order"],
        isolation=options["isolation"],
        window_rows=options["window_rows"],
        cache=None if cache is None else LocalCache(cache, options["cache_bytes"]),
        read_options=ReadOptions(ignore_table_format=options["ignore_table_format"]),
    )
