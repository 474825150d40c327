"""Which schema is delivered: what the files carry or their columns say, and the columns asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from parquet_loader.decode import Decoder, type_at
from parquet_loader.errors import SchemaError, nearest
from parquet_loader.schema import METADATA_KEY, Field, Group, Schema
from parquet_loader.schema.infer import infer_fields
from parquet_loader.snapshot import Snapshot


def found_schema(snapshot: Snapshot, columns: Sequence[str] | None = None) -> Schema:
    """Return the schema that the files carry, or that follows from their columns, with the partition columns.

    With `columns`, only these are looked at: others may differ, or be of types that no tensor holds.

    Files without rows have no say, nor has a file on the type of a column in which it holds nothing but nulls.

    Raises:
        SchemaError: two files differ; names both and the column.
    """
    with_rows = sorted(set(snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]].tolist()))
    numbers = with_rows or [0]
    known = [_fields_of(snapshot, number, columns) for number in numbers]
    found: dict[str, tuple[Field, int]] = {}
    for number, fields in zip(numbers, known, strict=True):
        for name, field in fields.items():
            first_field, first = found.setdefault(name, (field, number))
            if first_field != field:
                raise _differ(snapshot, name, (first, first_field), (number, field))
    for number in numbers:
        schema = snapshot.schemas[number]
        carried = Schema.from_arrow(schema) if is_carrying(schema) else {}
        for name, (field, first) in found.items():
            if type_at(schema, name) is None and name not in carried:
                raise _differ(snapshot, name, (first, field), (number, None))
    if not is_carrying(snapshot.schemas[numbers[0]]):
        known_to_some, is_wanted = {head for name in found for head in heads(name)}, _wanting(columns)
        for column in snapshot.schemas[numbers[0]]:
            if is_wanted(column.name) and column.name not in known_to_some:
                infer_fields(column)  # raises: no file says what it is
    fields = {name: field for name, (field, _) in found.items()}
    for column in snapshot.partition_schema:
        if column.name not in fields and column.name not in snapshot.schemas[numbers[0]].names:
            fields.update(infer_fields(column))
    names = [*snapshot.schemas[numbers[0]].names, *snapshot.partition_schema.names]
    return select(Schema(fields), columns, names)


def _fields_of(snapshot: Snapshot, number: int, columns: Sequence[str] | None) -> dict[str, Field]:
    """Return `_known_fields` of one of the snapshot's schemas; errors name a file."""
    try:
        return _known_fields(snapshot.schemas[number], columns)
    except SchemaError as error:
        raise SchemaError(f"{_file_of(snapshot, number)}: {error}") from error


def _file_of(snapshot: Snapshot, number: int) -> str:
    return snapshot.files[int(np.argmax(snapshot.file_schema == number))].name


def _known_fields(schema: pa.Schema, columns: Sequence[str] | None) -> dict[str, Field]:
    """Return the wanted fields of one file, but for columns in which it holds nothing but nulls."""
    if is_carrying(schema):
        fields = Schema.from_arrow(schema)
    else:
        is_wanted = _wanting(columns)
        known = [c for c in schema if is_wanted(c.name) and not _holds_nulls_only(c.type)]
        fields = Schema.from_arrow(pa.schema(known))
    if columns is None:
        return dict(fields)
    asked = set(columns)
    return {name: field for name, field in fields.items() if not asked.isdisjoint(heads(name))}


def heads(name: str) -> Iterator[str]:
    """Yield a dotted name, and what it begins with: all that stands for it."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _wanting(columns: Sequence[str] | None) -> Callable[[str], bool]:
    """Return what tells whether a file's column holds one of the names asked for."""
    if columns is None:
        return lambda _: True
    exact = set(columns)
    begun = {head for name in exact for head in heads(name)}
    return lambda column: column in begun or not exact.isdisjoint(heads(column))


def is_carrying(schema: pa.Schema) -> bool:
    """Whether a file of this Arrow schema says itself what its columns mean."""
    return METADATA_KEY in (schema.metadata or {})


def _holds_nulls_only(type_: pa.DataType) -> bool:
    if pa.types.is_null(type_):
        return True
    return any(_holds_nulls_only(type_.field(i).type) for i in range(type_.num_fields))


def _differ(snapshot: Snapshot, column: str, one: tuple[int, Field], other: tuple[int, Field | None]) -> SchemaError:
    names = [_file_of(snapshot, number) for number, _ in (one, other)]
    return SchemaError(
        f"column {column!r} differs: {names[0]} has {one[1]}, {names[1]} has {other[1] or 'no such column'}; "
        "pass schema= (missing=<value> reads files that lack a column), or columns= without it"
    )


def select(schema: Schema, columns: Sequence[str] | None, known: Sequence[str] = ()) -> Schema:
    """Return the named fields; the name of a struct stands for all its leaves.

    Raises:
        SchemaError: a name is unknown or repeated.
    """
    if columns is None:
        return schema
    names: list[str] = []
    for column in columns:
        leaves = [column] if column in schema else [name for name in schema if name.startswith(f"{column}.")]
        if not leaves and (column in known or _is_in_group(schema, column)):
            raise SchemaError(
                f"columns: {column!r} is in the files, but the schema delivers it as a part of a group or not at all; "
                "ask for the group, or pass another schema="
            )
        if not leaves:
            raise SchemaError(
                f"columns: there is no column {column!r}. {nearest(column, dict.fromkeys([*schema, *known]))}"
            )
        names.extend(leaves)
    return schema.select(names)


def _is_in_group(schema: Schema, column: str) -> bool:
    return any(isinstance(field, Group) and column in field.fields for field in schema.values())


def decoders_of(schema: Schema, snapshot: Snapshot) -> list[Decoder]:
    """Return one decoder for each of the snapshot's schemas; those of files without rows are never used."""
    with_rows = snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]]
    decoders: list[Decoder | None] = []
    for number, file_schema in enumerate(snapshot.schemas):
        name = snapshot.files[int(np.argmax(snapshot.file_schema == number))].name
        is_read = number in with_rows or not len(with_rows)
        decoders.append(Decoder(schema, file_schema, snapshot.partition_schema, name) if is_read else None)
    usable = next(d for d in decoders if d is not None)
    return [d or usable for d in decoders]
