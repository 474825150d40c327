"""What the commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNLIMITED_COLUMNS = 240

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def show_error(error: Exception) -> int:
    """Print an error of the library and return the exit status."""
    err.print(Text.assemble(("error: ", "bold red"), str(error)))
    return 1


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    out.out(json.dumps(value, indent=1))


def show_lines(*lines: str) -> None:
    """Print plain text."""
    for line in lines:
        out.print(Text(line))


def show_table(heads: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: frozenset[str] = frozenset()) -> None:
    """Print a table; columns named in `numbers` stand to the right. Into a pipe nothing is cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, justify="right" if head in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table, width=None if out.is_terminal else _UNLIMITED_COLUMNS)
