"""Converts Arrow's view types to plain text and bytes, because Arrow can neither compare views nor take from them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def without_views(array: Any) -> Any:
    """Return an array or chunked array with plain text and bytes instead of views, at any depth."""
    plain_type = _without_view_types(array.type)
    return array if plain_type.equals(array.type) else array.cast(plain_type)


def table_without_views(table: pa.Table) -> pa.Table:
    """Return a table with plain text and bytes instead of views, at any depth."""
    schema = schema_without_views(table.schema)
    if schema.equals(table.schema):
        return table
    # A cast of the whole table refuses null lists of fixed size whose elements are not nullable, without views too.
    return pa.Table.from_arrays([without_views(column) for column in table.columns], schema=schema)


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """Return a schema with plain text and bytes instead of views, at any depth."""
    return pa.schema([field.with_type(_without_view_types(field.type)) for field in schema])


def _without_view_types(type_: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_string_view(type_):
        return pa.large_string()
    if t.is_binary_view(type_):
        return pa.large_binary()
    if not t.is_nested(type_) or t.is_union(type_):
        return type_
    members = [type_.field(number) for number in range(type_.num_fields)]
    if t.is_map(type_):
        members = [type_.key_field, type_.item_field]
    changed = [member.with_type(_without_view_types(member.type)) for member in members]
    if changed == members:
        return type_
    if t.is_struct(type_):
        return pa.struct(changed)
    if t.is_map(type_):
        return pa.map_(*changed, keys_sorted=type_.keys_sorted)
    if t.is_fixed_size_list(type_):
        return pa.list_(changed[0], type_.list_size)
    # Arrow's cast of list views to lists leaves out the last offset.
    return pa.list_(changed[0]) if t.is_list(type_) else pa.large_list(changed[0])
