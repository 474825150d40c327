"""Compares the types of a file's columns with those of its table, and decides in which type each column is delivered.

A column is delivered in the file's type if only the encoding differs, as between text and large text. It is promoted to
the table's type if the format allows that. Every other difference is an error.
"""

from __future__ import annotations

import pyarrow as pa

from parquet_loader.errors import SchemaError
from parquet_loader.schema import is_bytes, is_list_like, is_text
from parquet_loader.source.tables.names import is_hidden_name
from parquet_loader.source.tables.table_version import Promotes


def delivered_columns(
    stored: pa.Schema, wanted: pa.Schema, promotes: Promotes, file_name: str
) -> tuple[pa.Schema, pa.Schema]:
    """Return the columns that table and file have in common, twice: with delivered types, and with stored types.

    Args:
        stored: The file's Arrow schema, with the names of the table.
        wanted: The table's schema.
        promotes: See `Promotes`.
        file_name: The file, for messages.

    Raises:
        SchemaError: a type in the file cannot be delivered as the type of the table.
    """
    _check_case(stored, wanted, file_name)
    delivered: list[pa.Field] = []
    own: list[pa.Field] = []
    for field in stored:
        if is_hidden_name(field.name) or field.name not in wanted.names:
            continue
        column = wanted.field(field.name)
        type_ = _delivered(field.type, column.type, promotes, f"{file_name}, column {field.name!r}")
        delivered.append(pa.field(field.name, type_, field.nullable, metadata=column.metadata))
        own.append(field)
    return pa.schema(delivered), pa.schema(own)


def _check_case(stored: pa.Schema, wanted: pa.Schema, file_name: str) -> None:
    """Refuse a column whose name differs only in case from one that the file lacks, because readers differ about it."""
    lacking = {name.casefold(): name for name in wanted.names if name not in stored.names}
    for name in stored.names:
        if lacking and name not in wanted.names and name.casefold() in lacking:
            raise SchemaError(
                f"{file_name}: the column {name!r} is called {lacking[name.casefold()]!r} in the table, and readers "
                "differ about names that differ in case; rewrite the file with the table's name"
            )


def _delivered(stored: pa.DataType, wanted: pa.DataType, promotes: Promotes, where: str) -> pa.DataType:
    kinds = pa.types
    if stored == wanted or kinds.is_null(stored):
        return wanted
    if kinds.is_struct(wanted) and kinds.is_struct(stored):
        names = {stored.field(i).name: stored.field(i) for i in range(stored.num_fields)}
        members = []
        for i in range(wanted.num_fields):
            member, own = wanted.field(i), names.get(wanted.field(i).name)
            type_ = member.type
            if own is not None:
                type_ = _delivered(own.type, member.type, promotes, f"{where}, member {member.name!r}")
            members.append(pa.field(member.name, type_, True if own is None else own.nullable))
        return pa.struct(members)
    if kinds.is_map(wanted) and kinds.is_map(stored):
        key = _delivered(stored.key_type, wanted.key_type, promotes, f"{where}, key")
        item = _delivered(stored.item_type, wanted.item_type, promotes, f"{where}, value")
        return stored if (key, item) == (stored.key_type, stored.item_type) else pa.map_(key, item)
    if is_list_like(wanted) and is_list_like(stored):
        inner = _delivered(stored.value_type, wanted.value_type, promotes, f"{where}, element")
        if inner == stored.value_type:
            return stored
        value = stored.value_field.with_type(inner)
        if kinds.is_fixed_size_list(stored):
            return pa.list_(value, stored.list_size)
        return pa.large_list(value) if kinds.is_large_list(stored) else pa.list_(value)
    if isinstance(stored, pa.BaseExtensionType) and not isinstance(wanted, pa.BaseExtensionType):
        plain = _delivered(stored.storage_type, wanted, promotes, where)
        return stored if plain == stored.storage_type else plain
    if kinds.is_dictionary(stored):
        plain = _delivered(stored.value_type, wanted, promotes, where)
        return stored if plain == stored.value_type else plain
    is_fixed = kinds.is_fixed_size_binary(stored)
    if (is_text(stored) and is_text(wanted)) or ((is_bytes(stored) or is_fixed) and is_bytes(wanted)):
        return stored
    if not kinds.is_nested(stored) and not kinds.is_nested(wanted) and promotes(stored, wanted):
        return wanted
    raise SchemaError(
        f"{where}: the file holds {stored}, which cannot be read as the table's {wanted}; rewrite the file, or leave "
        "the column out with columns=[...]"
    )
