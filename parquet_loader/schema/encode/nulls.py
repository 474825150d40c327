"""Completes an error about a null in a caller's columns: names all such columns, and a schema that accepts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parquet_loader.schema.encode.columns import Column, encode_column
from parquet_loader.schema.encode.lossless import Misfit
from parquet_loader.schema.fields import Field, Group, RaggedList
from parquet_loader.schema.nulls import MOST_FIELDS_IN_SOURCE, masked, refuses_nulls, source_of, with_nulls
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
    extra = "infer" if declared is None else declared.extra
    fields = with_nulls(schema, frozenset(counts), "mask")
    if extra == "infer":
        fields = {n: f for n, f in fields.items() if n in counts or n in (declared or ())}
    if len(fields) <= MOST_FIELDS_IN_SOURCE:
        remedy = f"so pass a schema= such as\n\n{source_of(fields, extra=extra)}\n"
    elif declared is None:
        remedy = "so pass a schema= that sets one of them, such as Schema.from_frame(data, nulls='mask')"
    else:
        remedy = "so set one of them in the schema's fields"
    return (
        f"nulls in rows {first_row} to {first_row + rows - 1}: {', '.join(shown[:_NAMES_SHOWN])}{more}; null='mask' "
        f"delivers a mask next to the column, and fill=<value> puts a value in the place of each null, {remedy}"
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
