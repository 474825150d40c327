"""``parquet-loader store status PATH [--watch]``: the contents and rates of a sample store."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import click
from rich.live import Live
from rich.text import Text

from parquet_loader.cli.console import out, printable, show_json, show_json_line, show_lines
from parquet_loader.cli.finite import FiniteRange
from parquet_loader.store import SampleStore


@click.group(epilog="Example: parquet-loader store status samples --watch")
def store() -> None:
    """Show a sample store."""


@store.command(epilog="Example: parquet-loader store status samples --watch")
@click.argument("path", type=click.Path(file_okay=False))
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--every", "every_s", type=FiniteRange(min=0.1), default=2.0, show_default=True, help="Seconds between two."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, an object on each line.")
def status(path: str, *, watch: bool, every_s: float, as_json: bool) -> None:
    """Show files, space, holds, writers, readers and rates of the sample store in PATH."""
    opened = SampleStore(path)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(opened, every_s, as_json=as_json)
    elif as_json:
        show_json(dataclasses.asdict(opened.status()))
    else:
        show_lines(*str(opened.status()).splitlines())


def _watch(opened: SampleStore, every_s: float, *, as_json: bool) -> None:
    never = threading.Event()  # Ctrl-C ends the wait
    is_redrawn = out.is_terminal and not as_json
    with Live(console=out, auto_refresh=False) if is_redrawn else contextlib.nullcontext() as live:
        while True:
            found = opened.status()
            if as_json:
                show_json_line(dataclasses.asdict(found))
            elif live is None:
                show_lines(*str(found).splitlines(), "")
            else:
                live.update(Text("\n".join(map(printable, str(found).splitlines()))), refresh=True)
            out.file.flush()  # so that the reader of a pipe gets it at once
            never.wait(every_s)
