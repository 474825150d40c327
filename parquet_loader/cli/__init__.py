"""The command line: ``parquet-loader COMMAND``. Each command is a module of its own, added to `commands` below.

console    errors and tables as people see them
cache      what a local cache holds, and none of it
info       what a data set holds
petastorm  the same of Petastorm's, and a copy of one in this library's layout
rewrite    a data set into the layout that loads fastest
"""

from __future__ import annotations

import click

from parquet_loader.cli.cache import cache
from parquet_loader.cli.console import show_error
from parquet_loader.cli.info import info
from parquet_loader.cli.petastorm import petastorm
from parquet_loader.cli.rewrite import rewrite
from parquet_loader.errors import ParquetLoaderError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def commands() -> None:
    """Feed deep-learning training from Parquet."""


commands.add_command(cache)
commands.add_command(info)
commands.add_command(petastorm)
commands.add_command(rewrite)


def run() -> None:
    """Run a command; what the library raises on purpose is shown as one message, with exit status 1."""
    try:
        commands(prog_name="parquet-loader")
    except ParquetLoaderError as error:
        raise SystemExit(show_error(error)) from None


__all__ = ["commands", "run"]
