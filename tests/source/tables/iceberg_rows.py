"""The rows that a loader delivers of an Iceberg table, in a form that can be compared with those of other readers."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from parquet_loader import BatchedDataLoader, OutputOptions, Schema

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001


def delivered(source: Any, columns: Sequence[str], **options: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a source, None for nulls; all columns are read with a mask."""
    schema = Schema.infer(source, nulls="mask", filesystem=options.get("filesystem"))
    rows: list[tuple[Any, ...]] = []
    output = OutputOptions(format="numpy")
    with BatchedDataLoader(source, 64, schema=schema, output_options=output, **options) as loader:
        for batch in loader:
            values = [_values(batch, name) for name in columns]
            rows += zip(*values, strict=True)
    return rows


def _values(batch: Any, name: str) -> list[Any]:
    found = batch[name]
    values = list(found.to_list() if hasattr(found, "to_list") else found)
    valid = batch.get(f"{name}_valid")
    return [value if valid is None or valid[at] else None for at, value in enumerate(values)]


def counted(rows: Iterable[Sequence[Any]]) -> Counter[str]:
    """Return how often each row is there."""
    return Counter(repr(tuple(map(plain, row))) for row in rows)


def plain(value: Any) -> Any:
    """Return a value as a loader delivers it: NaN for a null float, times as numbers."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float | Decimal):
        value = float(value)
        return None if math.isnan(value) else value
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days
    if isinstance(value, uuid.UUID):
        value = value.bytes
    return value.hex() if isinstance(value, bytes) else value
