"""Prints results to standard output, and everything else to standard error.

Output to a pipe or a file is not wrapped, shortened or coloured. On a terminal, lines are wrapped between words, and
each row of a table that is too wide becomes a block of lines.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_NARROWEST = 20


def show_error(error: Exception | str) -> int:
    """Print an error as one line, and the statements that it proposes below; return the exit status."""
    message, _, statements = str(error).partition("\n\nfrom ")
    text = " ".join(line.strip() for line in message.splitlines() if line.strip())
    if not text:
        text = type(error).__name__
    err.print(Text.assemble(("error: ", "bold red"), printable(text)))
    for line in f"\nfrom {statements}".splitlines() if statements else ():
        err.print(Text(printable(line)))
    return 1


def with_options(message: str) -> str:
    """Replace names of arguments in an error message by command-line options."""
    message = message.replace("ReadOptions(ignore_table_format=True)", "--ignore-table-format")
    message = re.sub(r"\bmode='(\w+)'", r"--mode \1", message)
    return re.sub(r"\bsplit='([^']*)'", lambda match: f"--split {shlex.quote(match[1])}", message)


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    out.out(json.dumps(value, indent=1))


def show_json_line(value: Any) -> None:
    """Print a value as JSON, on one line."""
    out.out(json.dumps(value))


def show_lines(*lines: str) -> None:
    """Print plain text."""
    for line in lines:
        for part in _wrapped(printable(line), len(line) - len(line.lstrip()) + 2):
            out.print(Text(part))


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show the current activity on standard error if that is a terminal; yield a function that changes the text."""
    with err.status(what) if err.is_terminal else contextlib.nullcontext() as status:
        yield (lambda _: None) if status is None else status.update


def show_table(heads: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: frozenset[str] = frozenset()) -> None:
    """Print a table; columns named in `numbers` are right-aligned."""
    heads, cells = list(heads), [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    if out.is_terminal and sum(widths) + 2 * (len(widths) - 1) > out.width:
        for title, *others in cells:
            parts = ", ".join(f"{head} {cell}" for head, cell in zip(heads[1:], others, strict=True) if cell)
            show_lines(title, f"  {parts}")
        return
    for number, row in enumerate([heads, *cells]):
        aligned = (
            cell.rjust(width) if head in numbers else cell.ljust(width)
            for head, cell, width in zip(heads, row, widths, strict=True)
        )
        out.print(Text("  ".join(aligned).rstrip(), style="" if number else "bold"))


def printable(text: str) -> str:
    """Return text with control characters escaped: names in files may hold any character."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _wrapped(line: str, indent: int) -> list[str]:
    if not out.is_terminal or len(line) <= out.width:
        return [line]
    width = max(out.width, _NARROWEST)
    wrapped = textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return wrapped or [line]
