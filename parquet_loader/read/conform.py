"""Converts the columns of a table's file from their stored types to those of the table.

Columns of equal types are unchanged. Members that a struct of the file lacks become null, and members that the table
lacks are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.decode import ColumnSource, plain
from parquet_loader.schema import heads, is_list_like

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class Conform:
    """Converts the columns of files of one Arrow schema. Immutable; any thread may use it.

    Args:
        stored: The columns with their stored types.
        delivered: The same columns with their delivered types.
    """

    def __init__(self, stored: pa.Schema, delivered: pa.Schema) -> None:
        self._stored = stored
        self._names = frozenset(stored.names)
        self._changed = {
            own.name: (own.type, out.type) for own, out in zip(stored, delivered, strict=True) if own.type != out.type
        }

    def __bool__(self) -> bool:
        return bool(self._changed)

    def readable(self, names: Iterable[str]) -> list[str]:
        """Return the paths to read for these columns; a member that the file lacks is replaced by another member."""
        return list(dict.fromkeys(self._readable(name) for name in names))

    def _readable(self, name: str) -> str:
        column = self._column_of(name)
        return name if column in (None, name) else _readable(column, name[len(column) + 1 :], self._changed[column][0])

    def _column_of(self, name: str) -> str | None:
        """Return the changed column that a dotted name leads into; None if that column is unchanged."""
        column = next((head for head in heads(name) if head in self._names), None)
        return column if column in self._changed else None

    def sources(self, sources: Sequence[ColumnSource]) -> tuple[ColumnSource, ...]:
        """Return the sources of delivered columns, with the types in the file."""
        found = []
        for source in sources:
            changed = None if source.stored is None else self._column_of(source.stored)
            if changed is None or source.stored is None:
                found.append(source)
                continue
            field = None if source.field is None else self._stored.field(changed)
            stored = self._readable(source.stored)
            found.append(replace(source, stored=stored, field=field, column=None, words=0, vocabulary=None))
        return tuple(found)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the delivered types.

        Raises:
            pyarrow.ArrowInvalid: a value does not fit.
        """
        arrays, names = list(batch.columns), batch.schema.names
        for number, name in enumerate(names):
            if name in self._changed:
                arrays[number] = _conformed(arrays[number], *self._changed[name])
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _readable(path: str, rest: str, stored: pa.DataType) -> str:
    """Return the path of a leaf or member that the file has: `path.rest`, or else a sibling of it."""
    while is_list_like(stored):  # as `read_name` does
        stored = stored.value_type
    names = [stored.field(i).name for i in range(stored.num_fields)] if pa.types.is_struct(stored) else []
    head = max((n for n in names if f"{rest}.".startswith(f"{n}.")), key=len, default=None)
    if head is None:
        return path if not names else f"{path}.{names[0]}"
    inner, rest = stored.field(names.index(head)).type, rest[len(head) + 1 :]
    return _readable(f"{path}.{head}", rest, inner) if rest else f"{path}.{head}"


def _conformed(array: pa.Array, stored: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """Return an array in the wanted type; structs have only the members that are read."""
    kinds = pa.types
    if array.type == wanted:
        return array
    if kinds.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if isinstance(array.type, pa.BaseExtensionType) or kinds.is_dictionary(array.type):
        array = pa.concat_arrays(plain(pa.chunked_array([array])).chunks)
        while isinstance(stored, pa.BaseExtensionType) or kinds.is_dictionary(stored):
            stored = stored.storage_type if isinstance(stored, pa.BaseExtensionType) else stored.value_type
        return _conformed(array, stored, wanted)
    if kinds.is_struct(wanted):
        return _struct(array, stored, wanted)
    if kinds.is_map(wanted):
        keys = _conformed(array.keys, stored.key_type, wanted.key_type)
        items = _conformed(array.items, stored.item_type, wanted.item_type)
        type_ = pa.map_(keys.type, items.type)
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
        )
        return pa.Array.from_buffers(
            type_, len(array), array.buffers()[:2], array.null_count, array.offset, children=[entries]
        )
    if kinds.is_list(wanted) or kinds.is_large_list(wanted) or kinds.is_fixed_size_list(wanted):
        values = _conformed(array.values, stored.value_type, wanted.value_type)
        field = array.type.value_field.with_type(values.type)
        if kinds.is_fixed_size_list(array.type):
            type_, buffers = pa.list_(field, array.type.list_size), array.buffers()[:1]
        else:
            type_ = pa.large_list(field) if kinds.is_large_list(array.type) else pa.list_(field)
            buffers = array.buffers()[:2]
        return pa.Array.from_buffers(type_, len(array), buffers, array.null_count, array.offset, children=[values])
    return _cast(array, wanted)


def _struct(array: pa.StructArray, stored: pa.StructType, wanted: pa.StructType) -> pa.StructArray:
    names = array.type.names
    own = {stored.field(i).name: stored.field(i).type for i in range(stored.num_fields)}
    children: list[pa.Array] = []
    fields: list[pa.Field] = []
    for i in range(wanted.num_fields):
        member = wanted.field(i)
        if member.name in names:
            child = _conformed(array.field(names.index(member.name)), own[member.name], member.type)
        elif member.name not in own:
            child = pa.nulls(len(array), member.type)
        else:
            continue  # this member is not read
        children.append(child)
        fields.append(pa.field(member.name, child.type, member.nullable))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast values; times in a finer unit are rounded down, as other readers do."""
    kinds = pa.types
    if kinds.is_timestamp(wanted) and kinds.is_timestamp(array.type):
        have, want = _PER_SECOND[array.type.unit], _PER_SECOND[wanted.unit]
        if have > want:
            ticks = array.view(pa.int64())
            filled = pc.fill_null(ticks, 0).to_numpy(zero_copy_only=False)
            mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
            return pa.array(np.floor_divide(filled, have // want), pa.int64(), mask=mask).view(wanted)
        return array.view(pa.timestamp(array.type.unit)).cast(pa.timestamp(wanted.unit)).view(wanted)
    return array.cast(wanted)
