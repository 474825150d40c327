"""Decodes source files to stored columns, which keep nulls, times and decimals.

Stored columns have the types of `Schema.arrow_schema`. A loader decodes to canonical columns, which have no nulls.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.decode import Decoder, TableOrigin, ValueProblem, convert
from parquet_loader.errors import DataError, SchemaError
from parquet_loader.schema import (
    Category,
    Field,
    Group,
    Scalar,
    Schema,
    Tensor,
    encode_columns,
    is_list_like,
    lenient,
    null_levels,
    policy_of,
)


@dataclass(frozen=True, slots=True)
class Target:
    """The form of the new files.

    Attributes:
        schema: The schema stored in the new files.
        lenient: Fields inferred from the files, not declared in a schema. Their nulls are kept, although a loader
            refuses these until a schema declares how to deliver them.
        even_lists: Columns of lists that are assumed to have one length in all rows, and are stored as tensors.
    """

    schema: Schema
    lenient: frozenset[str] = frozenset()
    even_lists: frozenset[str] = frozenset()

    def encoding_schema(self) -> Schema:
        """Return the schema with lenient fields changed to accept nulls."""
        fields = dict(self.schema)
        for name in self.lenient:
            changed = lenient(fields[name])
            if changed.null != "mask" or f"{name}_valid" not in fields:  # the name of the mask must be free
                fields[name] = changed
        return Schema(fields)


class StoredDecoder(Decoder):
    """Turns tables of the files of one Arrow schema into tables in stored form. Immutable.

    Args:
        target: The form of the new files.
        file_schema, partition_schema, file_name: As in `Decoder`.
    """

    def __init__(self, target: Target, file_schema: pa.Schema, partition_schema: pa.Schema, file_name: str) -> None:
        super().__init__(target.schema, file_schema, partition_schema, file_name)
        self._target = target
        self._encoding = target.encoding_schema()

    def decode(
        self,
        table: pa.Table,
        partitions: Mapping[str, pa.Scalar],
        origin: TableOrigin,
        deferred: Collection[str] = (),
    ) -> pa.Table:
        """Convert a table of the files' columns to stored columns, all nullable, with the same rows.

        Raises:
            DataError: A value does not fit its field; the message names file, row group, column and row.
            AssumptionError: Lists differ in length, or a packed group has nulls, which it cannot store.
        """
        assert not deferred
        positions = {name: number for number, name in enumerate(table.column_names)}
        columns: dict[str, Any] = {}
        for owner, field, parts in self._parts:
            for name, part in parts:
                array = self._source(table, positions, name, part, partitions)
                is_packed = owner in self._target.lenient and isinstance(field, Group)
                if is_packed and array.null_count and policy_of(part) == "refuse":
                    raise AssumptionError(
                        name, "there are nulls, which a packed group cannot hold", Facts({name: (True,)})
                    )
                if name in self._target.even_lists:
                    _check_even(name, part, array)
                try:
                    columns[name] = self._fitted(array, part, name, origin)
                except ValueProblem as problem:
                    row = "" if problem.row is None else f", row {origin.first_row + problem.row}"
                    raise DataError(f"{origin.name}, column {name!r}{row}: {problem.reason}") from None
        try:
            return nullable(encode_columns(columns, self._encoding, origin.first_row))
        except (DataError, SchemaError) as error:
            raise DataError(f"{origin.name}, {error}") from error

    def _fitted(self, array: pa.ChunkedArray, field: Field, name: str, origin: TableOrigin) -> pa.ChunkedArray:
        """Convert numbers to the type of the field as a loader does, but keep nulls."""
        if isinstance(field, Category):
            return self._words(array, name, field)
        if not isinstance(field, Scalar) or array.type == field.type or pa.types.is_null(array.type):
            return array
        if pa.types.is_decimal(field.type):
            return array
        try:
            numbers = convert(array, Scalar(field.type, fill=0))
        except MemoryError:
            raise  # a lack of memory says nothing about the data
        except pa.ArrowException as error:
            raise DataError(
                f"{origin.name}, column {name!r}: {array.type} cannot be stored as {field!r}: {error}; "
                "declare a field that fits"
            ) from None
        if array.null_count:
            numbers = pc.if_else(array.is_valid(), numbers, pa.scalar(None, numbers.type))
        return numbers


def _check_even(name: str, field: Field, array: pa.ChunkedArray) -> None:
    assert isinstance(field, Tensor)
    if not is_list_like(array.type) or not len(array):
        return
    lengths = pc.unique(pc.list_value_length(array)).to_pylist()
    if lengths != [field.size]:
        what = f"there are lists of {lengths[:3]} elements, but all before had {field.size}"
        raise AssumptionError(name, what, Facts(uneven=frozenset([name])))


# ---- nullability ---------------------------------------------------------------------------------------------------

Levels = tuple[bool, ...]
"""Whether there are nulls among rows, among items of their lists, and so on inwards."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Known facts about the data.

    Attributes:
        nulls: The levels with nulls, by column.
        uneven: Columns of lists that differ in length.
    """

    nulls: Mapping[str, Levels] = dataclasses.field(default_factory=dict)
    uneven: frozenset[str] = frozenset()

    @classmethod
    def from_table(cls, table: pa.Table) -> Facts:
        """Return the facts about nulls in stored columns."""
        return cls({name: null_levels(table.column(name)) for name in table.column_names})

    def merged(self, other: Facts) -> Facts:
        """Return the facts of both; if the form of a column has changed, `other` counts."""
        nulls = dict(self.nulls)
        for name, levels in other.nulls.items():
            known = nulls.get(name, ())
            is_same_form = len(known) == len(levels)
            nulls[name] = tuple(map(operator.or_, known, levels)) if is_same_form else levels
        return Facts(nulls, self.uneven | other.uneven)

    def has_nulls(self, name: str) -> bool:
        """Return whether rows of a column are null."""
        return name in self.nulls and self.nulls[name][0]


class AssumptionError(Exception):
    """A row contradicts a sample or a footer, so the form of the new files is decided again.

    Attributes:
        facts: The corrected facts.
    """

    def __init__(self, column: str, what: str, facts: Facts) -> None:
        super().__init__(f"column {column!r}: {what}")
        self.facts = facts


def with_nullability(schema: pa.Schema, levels: Mapping[str, Levels]) -> pa.Schema:
    """Return a schema of stored columns that are nullable only at these levels."""
    fields = [pa.field(f.name, _type(f.type, levels[f.name][1:]), nullable=levels[f.name][0]) for f in schema]
    return pa.schema(fields, metadata=schema.metadata)


def nullable(table: pa.Table) -> pa.Table:
    """Return the table with all levels declared nullable, so that all tables of a data set agree."""
    depth = {f.name: _depth(f.type) for f in table.schema}
    return table.cast(with_nullability(table.schema, {name: (True,) * n for name, n in depth.items()}))


def _type(type_: pa.DataType, levels: Levels) -> pa.DataType:
    if not pa.types.is_list(type_):
        return type_
    item = type_.value_field
    return pa.list_(pa.field(item.name, _type(item.type, levels[1:]), nullable=levels[0]))


def _depth(type_: pa.DataType) -> int:
    return 1 + (_depth(type_.value_type) if pa.types.is_list(type_) else 0)
