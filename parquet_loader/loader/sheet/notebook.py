"""Batches in notebooks: a table of their columns with the first rows, in place of the numbers of each array.

A batch is a plain dict, which frameworks know how to move and to stack, so it cannot bring its own representation:
``%load_ext parquet_loader`` teaches IPython to show dicts that look like batches. Nothing else changes.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from html import escape
from typing import Any

import numpy as np

from parquet_loader.loader.sheet.cells import Budget, Cell, cell_of, printable
from parquet_loader.loader.sheet.page import wave_of
from parquet_loader.schema import Ragged

_ROWS = 4
_MOST_COLUMNS = 60
_MOST_BYTES = 2 * 2**20
_MOST_SIDE = 192
_NAME = "style='text-align: left; vertical-align: top; white-space: nowrap'"
_VALUE = "style='text-align: left; vertical-align: top; max-width: 220px; overflow-wrap: anywhere'"
_WAVE = "display: block; height: 40px; width: 160px"
_IMAGE = "style='max-height: 96px; max-width: 96px; min-width: 32px; display: inline; margin: 0 2px 2px 0'"


def register(shell: Any) -> None:
    """Let an IPython shell show batches as tables."""
    shell.display_formatter.formatters["text/html"].for_type(dict, batch_table)


def unregister(shell: Any) -> None:
    """Undo `register`."""
    shell.display_formatter.formatters["text/html"].pop(dict, None)


def batch_table(batch: Any) -> str | None:
    """Return a batch as an HTML table; None for other dicts.

    Args:
        batch: A dict of columns with equal numbers of rows: arrays or tensors ``[B, ...]`` of any framework, `Ragged`,
            or lists of arrays.
    """
    rows = _rows_of(batch)
    if rows is None:
        return None
    budget = Budget(_MOST_BYTES, _MOST_SIDE, has_players=False)
    shown = dict(list(batch.items())[:_MOST_COLUMNS])
    titles = ["column", "in this batch", *(f"row {row}" for row in range(min(rows, _ROWS)))]
    head = "".join(f"<th {_NAME}>{title}</th>" for title in titles)
    lines = []
    for name, column in shown.items():
        cells = ""
        with suppress(Exception):  # a tensor may refuse: if it is sparse, or has no memory
            values = _first(column, min(rows, _ROWS))
            valid = _first(batch[f"{name}_valid"], len(values)) if f"{name}_valid" in batch else None
            cells = "".join(
                f"<td {_VALUE}>{_drawn(Cell('text', 'null') if _is_null(valid, row) else cell_of(value, budget))}</td>"
                for row, value in enumerate(values)
            )
        described = escape(printable(_described(column)))
        lines.append(f"<tr><td {_NAME}>{escape(printable(name))}</td><td {_NAME}>{described}</td>{cells}</tr>")
    more = len(batch) - len(shown)
    end = f"<p>and {more:,} more column{'s' if more > 1 else ''}</p>" if more else ""
    return f"<p>{rows:,} row{'s' if rows != 1 else ''}</p><table><tr>{head}</tr>{''.join(lines)}</table>{end}"


def _rows_of(batch: Any) -> int | None:
    """Return the rows of a batch; None for a dict that is none."""
    if type(batch) is not dict or not batch or not all(isinstance(name, str) for name in batch):
        return None
    counts = set()
    for column in batch.values():
        if isinstance(column, list | Ragged):
            counts.add(len(column))
            continue
        try:
            _, rows = column.dtype, column.shape[0]
        except (AttributeError, TypeError, IndexError):  # not an array, or a scalar; modules and classes have them, too
            return None
        if not isinstance(rows, int):  # as of a tensor whose shape is not known
            return None
        counts.add(rows)
    if len(counts) > 1 or all(isinstance(column, list) for column in batch.values()):
        return None
    return counts.pop()


def _first(column: Any, rows: int) -> list[Any]:
    """Return the first rows of a column as values of numpy and Python."""
    if isinstance(column, Ragged):
        return [_host(column[row]) for row in range(rows)]
    part = column[:rows]
    if isinstance(part, list) or hasattr(part, "to_list"):  # the latter are ragged tensors of TensorFlow
        return [_host(value) for value in (part if isinstance(part, list) else part.to_list())]
    return list(_host(part))


def _host(value: Any) -> Any:
    """Return an array or tensor of any framework as a numpy array; other values as they are."""
    if isinstance(value, Ragged) or not hasattr(value, "shape"):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        value = value.float() if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")) else value
    return np.asarray(value)


def _is_null(valid: Any, row: int) -> bool:
    return valid is not None and not np.any(valid[row])


def _described(column: Any) -> str:
    if isinstance(column, Ragged):
        return repr(column)
    if isinstance(column, list):
        return f"list of {len(column):,}"
    dtype = getattr(column.dtype, "name", str(column.dtype).removeprefix("torch."))
    device = str(getattr(column, "device", "cpu"))
    where = f", {device}" if "cpu" not in device.lower() else ""
    return f"{dtype} [{', '.join(map(str, column.shape))}]{where}"


def _drawn(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.kind in ("image", "frames") and cell.media_type:
        urls = (f"data:{cell.media_type};base64,{b64encode(media).decode('ascii')}" for media in cell.media)
        return "".join(f"<img {_IMAGE} src='{url}' alt='{escape(cell.text, quote=True)}'>" for url in urls)
    if cell.points:
        return f"{wave_of(cell, _WAVE)}{text}"
    return text
