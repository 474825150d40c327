"""Which rows pass a filter: the columns it needs, the row groups that cannot match, and the rows that do."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.errors import ConfigurationError, SchemaError, nearest
from parquet_loader.snapshot import Snapshot


def _lazily(name: str) -> Any:
    """Return a module of pyarrow that imports pandas where it is installed, which only filters should cost."""
    return importlib.import_module(f"pyarrow.{name}")


class RowFilter:
    """A bound filter expression. Immutable; any thread may use it.

    Args:
        expression: A boolean `pyarrow.compute` expression over the files' columns, as stored, and partition columns.
        snapshot: The files it applies to; every distinct schema among them is checked.

    Raises:
        ConfigurationError: it is no expression.
        SchemaError: it names a column that is not there, or compares what cannot be compared.
    """

    def __init__(self, expression: pc.Expression, snapshot: Snapshot) -> None:
        if not isinstance(expression, pc.Expression):
            raise ConfigurationError(
                f"filters={expression!r:.80}: expected a pyarrow.compute expression, "
                "such as (pc.field('year') >= 2020) & pc.field('label').is_valid()"
            )
        self._expression = expression
        self.columns: tuple[str, ...] = ()
        for number, schema in enumerate(snapshot.schemas):
            file = snapshot.files[int((snapshot.file_schema == number).argmax())].path
            columns = _columns_of(expression, with_partitions(schema, snapshot.partition_schema), file)
            self.columns = tuple(dict.fromkeys((*self.columns, *columns)))

    def __repr__(self) -> str:
        return str(self._expression)

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the rows that pass, in their order."""
        return _passing(table, self._expression)

    def surviving(self, snapshot: Snapshot, file: int) -> set[int]:
        """Return the numbers of the row groups of one file whose statistics and partitions admit a matching row."""
        info = snapshot.files[file]
        schema = with_partitions(snapshot.schema_of(file), snapshot.partition_schema)
        if not _may_prune(self._expression, [schema.field(name).type for name in self.columns]):
            return set(range(snapshot.footers.get(file).num_row_groups))
        pads = _lazily("dataset")
        known = pads.scalar(True)
        for name, value in snapshot.partition_values(file).items():
            if name in snapshot.schema_of(file).names:
                continue
            is_value = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
            known = known & is_value
        fragment = pads.ParquetFileFormat().make_fragment(info.path, snapshot.filesystem, known)
        return {group.id for group in fragment.subset(self._expression, schema=schema).row_groups}


def _passing(table: pa.Table, expression: pc.Expression) -> pa.Table:
    acero = _lazily("acero")
    table = _without_views(table)
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    passing = acero.Declaration("filter", acero.FilterNodeOptions(expression), inputs=[source])
    # One thread: Acero may reorder batches otherwise, and callers run several of these at a time anyway.
    return passing.to_table(use_threads=False)


def _without_views(table: pa.Table) -> pa.Table:
    """Return the table with views as plain text and bytes, which Arrow's comparisons and filters know."""
    for number, column in enumerate(table.schema):
        plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(column.type)
        if plain is not None:
            table = table.set_column(number, column.name, table.column(number).cast(plain))
    return table


def _may_prune(expression: pc.Expression, types: list[pa.DataType]) -> bool:
    """Whether statistics decide about this expression.

    They leave NaN out, so with floats only what is false for a NaN can be ruled out: comparisons joined by and / or.
    """
    if not any(map(_holds_floats, types)):
        return True
    text = re.sub(r'"[^"]*"', "", str(expression))
    if "!=" in text or re.search(r"\bnan\b|nan_is_null=true", text, re.IGNORECASE):
        return False
    return set(re.findall(r"(\w+)\(", text)) <= {"is_in", "is_valid", "is_null"}


def _holds_floats(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _holds_floats(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return _holds_floats(type_.value_type)
    return pa.types.is_floating(type_) or any(_holds_floats(type_.field(i).type) for i in range(type_.num_fields))


def with_partitions(schema: pa.Schema, partition_schema: pa.Schema) -> pa.Schema:
    """Return a file's schema with the partition columns it does not hold itself."""
    for column in partition_schema:
        if column.name not in schema.names:
            schema = schema.append(column)
    return schema


def _columns_of(expression: pc.Expression, schema: pa.Schema, file: str) -> list[str]:
    """Find the columns an expression needs (Arrow does not list them) by binding it without some of them."""
    error = _binding_error(expression, schema)
    if error is not None:
        missing = str(error).split("FieldRef.Name(")[-1].split(")")[0] if "No match for FieldRef" in str(error) else ""
        if missing:
            raise SchemaError(f"{file}: filters name the column {missing!r}. {nearest(missing, schema.names)}")
        reason = str(error).splitlines()[0]
        raise SchemaError(f"{file}: filters={expression} cannot be applied to columns of these types: {reason}")
    needed = list(schema.names)
    size = len(needed)
    while size:
        for start in range(0, len(needed), size):
            rest = needed[:start] + needed[start + size :]
            if len(rest) < len(needed) and _binding_error(expression, _only(schema, rest)) is None:
                needed = rest
                break
        else:
            size //= 2
    return needed


def _only(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema([schema.field(n) for n in names])


def _binding_error(expression: pc.Expression, schema: pa.Schema) -> Exception | None:
    try:
        _passing(schema.empty_table(), expression)
    except (pa.ArrowException, ValueError, TypeError) as error:
        return error
    return None
