"""Which schema is delivered: what the files carry or their columns say, the columns asked for, lists of one length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.columns import number_type
from parquet_loader.decode import Decoder, read_name, type_at
from parquet_loader.errors import DataError, SchemaError, SourceError, nearest
from parquet_loader.footers import paths_of
from parquet_loader.options import ReadOptions
from parquet_loader.read import Reader
from parquet_loader.schema import METADATA_KEY, Field, Group, RaggedList, Scalar, Schema, Tensor
from parquet_loader.schema.infer import infer_fields
from parquet_loader.sizes import SAMPLE_ROWS
from parquet_loader.snapshot import Snapshot

CONSTANT_LISTS_BYTES = 64 * 2**20


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
        for name, (field, first) in found.items():
            if type_at(snapshot.schemas[number], name) is None and not _is_carried(snapshot.schemas[number], name):
                raise _differ(snapshot, name, (first, field), (number, None))
    for column in snapshot.schemas[numbers[0]]:
        known_to_some = any(_stands_for(column.name, name) for name in found)
        if not known_to_some and _is_wanted(column.name, columns) and not is_carrying(snapshot.schemas[numbers[0]]):
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
        known = [c for c in schema if _is_wanted(c.name, columns) and not _holds_nulls_only(c.type)]
        fields = Schema.from_arrow(pa.schema(known))
    wanted = {name for name in fields if columns is None or any(_stands_for(c, name) for c in columns)}
    return {name: field for name, field in fields.items() if name in wanted}


def _is_wanted(column: str, columns: Sequence[str] | None) -> bool:
    """Whether a file's column holds one of the names asked for."""
    return columns is None or any(_stands_for(column, name) or _stands_for(name, column) for name in columns)


def is_carrying(schema: pa.Schema) -> bool:
    """Whether a file of this Arrow schema says itself what its columns mean."""
    return METADATA_KEY in (schema.metadata or {})


def _is_carried(schema: pa.Schema, name: str) -> bool:
    return is_carrying(schema) and name in Schema.from_arrow(schema)


def _holds_nulls_only(type_: pa.DataType) -> bool:
    if pa.types.is_null(type_):
        return True
    return any(_holds_nulls_only(type_.field(i).type) for i in range(type_.num_fields))


def _stands_for(column: str, name: str) -> bool:
    return name == column or name.startswith(f"{column}.")


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
        in_group = any(isinstance(field, Group) and column in field.fields for field in schema.values())
        if not leaves and (in_group or column in known):
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


def with_constant_lists(schema: Schema, snapshot: Snapshot, options: ReadOptions) -> Schema:
    """Deliver lists that have the same length in every row as tensors, where no file carries a schema for them.

    Footers tell how many values each row group has, which rules out most lists. What is left is looked at: all of it
    up to 64 MiB, row groups spread over the data set beyond that, where a row that differs after all is an error when
    it is read.
    """
    with_rows = set(snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]].tolist())
    carrying = [found for number, found in enumerate(snapshot.schemas) if number in with_rows and is_carrying(found)]
    declared = {name for found in carrying for name in Schema.from_arrow(found)}
    lists = {n: field for n, field in schema.items() if isinstance(field, RaggedList) and n not in declared}
    lengths = {
        name: _constant_length(snapshot, name) for name, field in lists.items() if isinstance(field.item, Scalar)
    }
    candidates = [name for name, length in lengths.items() if length]
    if not candidates:
        return schema
    fields = dict(schema)
    for name in candidates:
        item, length = lists[name].item, lengths[name] or 0
        width = length * number_type(item.dtype).bit_width // 8
        reader = Reader(snapshot, decoders_of(schema.select([name]), snapshot), None, options)
        if _all_have_width(snapshot, reader, name, width):
            fields[name] = Tensor(item.type, (length,), fill=item.fill, storage="list")
    return Schema(fields)


def _all_have_width(snapshot: Snapshot, reader: Reader, name: str, width: int) -> bool:
    """Look at the lists of row groups spread over the data set, at all of them where there are not too many."""
    groups = np.flatnonzero(snapshot.row_group_rows)
    stride = max(1, int(snapshot.row_group_rows[groups].sum()) * width // CONSTANT_LISTS_BYTES)
    for group in groups[::stride].tolist():
        seen_bytes = 0
        stream = reader.stream(group, SAMPLE_ROWS)
        try:
            for table in stream:
                lengths = pc.unique(pc.binary_length(table.column(name)))
                if lengths.to_pylist() != [width]:
                    return False
                seen_bytes += width * len(table)
                if seen_bytes >= CONSTANT_LISTS_BYTES // 4:
                    break
        except (DataError, SourceError):
            return False  # nulls, or damage: reading it will say so
        finally:
            stream.close()  # type: ignore[attr-defined]
    return True


def _constant_length(snapshot: Snapshot, name: str) -> int | None:
    """Return how many values each row of a list column has, if footers admit that all have as many."""
    lengths: set[int] = set()
    file_before, leaves = -1, list[int]()
    for group in np.flatnonzero(snapshot.row_group_rows):
        file = int(snapshot.row_group_file[group])
        footer = snapshot.footers.get(file)
        if file != file_before:
            prefix = read_name(snapshot.schema_of(file), name) + "."
            file_before = file
            leaves = [number for number, path in enumerate(paths_of(footer)) if path.startswith(prefix)]
        if len(leaves) != 1:
            return None
        values = footer.row_group(int(snapshot.row_group_number[group])).column(leaves[0]).num_values
        if values % snapshot.row_group_rows[group]:
            return None
        lengths.add(int(values // snapshot.row_group_rows[group]))
        if len(lengths) > 1:
            return None
    return lengths.pop() if lengths else None
