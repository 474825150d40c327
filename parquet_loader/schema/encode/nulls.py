"""Completes an error about a null in a caller's columns: names all such columns, and a schema that accepts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parquet_loader.schema.encode.columns import Column, encode_column
from parquet_loader.schema.encode.lossless import Misfit
from parquet_loader.schema.fields import Field, Group, RaggedList
from parquet_loader.schema.nulls import masked, refuses_nulls, source_of, with_nulls
from parquet_loader.schema.schema import Schema

_NAMES_SHOWN = 20


def null_advice(columns: Mapping[str, Any], schema: Schema, declared: Schema | None, first_row: int, rows: int) -> str:
    """Return advice for an error message: the columns with refused nulls in a slice, and a schema that accepts them.

    Args:
        columns: The columns of the slice, by name.
        schema: Their schema.
        declared: The schema that the caller gave, or None.
        first_row: Number of the first row, for the message.
        rows: Number of rows.
    """
    counts = {name: _count(name, field, columns) for name, field in schema.items() if refuses_nulls(field)}
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        return "fill=<value> on the field puts a value in its place"
    shown = [f"{name!r} {count:,}" for name, count in counts.items()]
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    fields = with_nulls(schema, frozenset(counts), "mask")
    if declared is None or declared.extra == "infer":
        own = () if declared is None else declared
        text = source_of({n: f for n, f in fields.items() if n in counts or n in own}, extra="infer")
    else:
        text = source_of(fields, extra=declared.extra)
    return (
        f"nulls in rows {first_row} to {first_row + rows - 1}: {', '.join(shown[:_NAMES_SHOWN])}{more}; null='mask' "
        "delivers a mask next to the column, and fill=<value> puts a value in the place of each null, so pass a "
        f"schema= such as\n\n{text}\n"
    )


def _count(name: str, field: Field, columns: Mapping[str, Any]) -> int:
    if isinstance(field, Group):
        return sum(_count(member, part, columns) for member, part in field.members)
    given = next((n for n in (name, *field.aliases) if n in columns), None)
    return 0 if given is None else _nulls(masked(field), columns[given])  # type: ignore[arg-type]


def _nulls(field: Column, values: Any) -> int:
    try:
        array = encode_column(field, values)
    except Misfit:  # another error, or a field that takes no mask
        return 0
    return int(array.null_count) + (int(array.flatten().null_count) if isinstance(field, RaggedList) else 0)
