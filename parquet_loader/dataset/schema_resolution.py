"""Resolves the schema of files: from their metadata or their columns' types, limited to `columns`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import IntArray
from parquet_loader.decode import ColumnProblems, Decoder, type_at
from parquet_loader.errors import SchemaError, nearest
from parquet_loader.schema import (
    METADATA_KEY,
    Field,
    Group,
    Schema,
    heads,
    hub_features,
    infer_columns,
    infer_fields,
    is_index_column,
    nodes,
)
from parquet_loader.source import Snapshot

# The most columns that one error names, those of them that it explains, and the kinds of files for each.
_COLUMNS_SHOWN = 20
_EXPLAINED = 4
_VARIANTS_SHOWN = 4


def found_schema(
    snapshot: Snapshot, columns: Sequence[str] | None = None, declared: Collection[str] = frozenset()
) -> Schema:
    """Return the schema of the files' metadata, or the one inferred from their columns, with the partition columns.

    Files without rows are ignored, and also columns of type null.

    Args:
        snapshot: The files.
        columns: The columns to include; others may differ, or have types that no tensor can hold. None: all.
        declared: Names of columns that a declared schema has; they are left out and may differ.

    Raises:
        SchemaError: files differ; the message names the columns, example files, and the number of files of each kind.
    """
    is_wanted = _wanting(columns, declared)
    if snapshot.table is not None and snapshot.table.schema is not None:
        try:
            of_table = infer_columns(snapshot.table.schema, is_wanted)
        except SchemaError as error:
            raise SchemaError(f"{snapshot.table.root}: {error}") from error
        return select_inferred(Schema(of_table), columns, declared, snapshot.column_names)
    numbers = np.flatnonzero(files_by_schema(snapshot)).tolist() or [0]
    features = _shared_features([snapshot.schemas[number] for number in numbers])
    known = {number: _fields_of(snapshot, number, is_wanted, features) for number in numbers}
    of_folders = {column.name: infer_fields(column) for column in snapshot.partition_schema if is_wanted(column.name)}
    found: dict[str, dict[Field | None, list[int]]] = {}
    for number in numbers:
        for name, field in known[number].items():
            found.setdefault(name, {}).setdefault(field, []).append(number)
    for number in numbers:
        for name, variants in found.items():
            if name not in known[number] and type_at(snapshot.schemas[number], name) is None:
                variants.setdefault(of_folders.get(name, {}).get(name), []).append(number)
    different = {name: variants for name, variants in found.items() if len(variants) > 1}
    if different:
        raise _differ(snapshot, different)
    first = snapshot.schemas[numbers[0]]
    if not is_carrying(first):
        for column in first:
            for name, type_ in nodes(column.type, column.name):
                if pa.types.is_null(type_) and is_wanted(name) and name not in found:
                    infer_fields(column, is_wanted=is_wanted)  # raises, because no file has a type for it
    fields: dict[str, Field] = {name: field for name, (field,) in found.items() if field is not None}
    for column in snapshot.partition_schema:
        if column.name not in fields and column.name not in first.names and column.name not in declared:
            fields.update(infer_fields(column))
    return select_inferred(Schema(fields), columns, declared, [*first.names, *snapshot.partition_schema.names])


def files_by_schema(snapshot: Snapshot) -> IntArray:
    """Return the number of files with rows for each of the snapshot's schemas, int64 ``[schemas]``."""
    with_rows = np.unique(snapshot.row_group_file[snapshot.row_group_rows > 0])
    return np.bincount(snapshot.file_schema[with_rows], minlength=len(snapshot.schemas))


def _shared_features(schemas: Sequence[pa.Schema]) -> dict[str, Any]:
    """Return the features that `datasets` wrote for columns, except those that differ between files."""
    found: dict[str, Any] = {}
    differing: set[str] = set()
    for schema in schemas:
        for name, feature in hub_features(schema).items():
            if found.setdefault(name, feature) != feature:
                differing.add(name)
    return {name: feature for name, feature in found.items() if name not in differing}


def _fields_of(
    snapshot: Snapshot, number: int, is_wanted: Callable[[str], bool], features: Mapping[str, Any]
) -> dict[str, Field]:
    """Return the wanted fields of one of the snapshot's schemas, without columns of type null.

    Raises:
        SchemaError: no tensor can hold the type of a column; the message names a file.
    """
    schema = snapshot.schemas[number]
    try:
        if is_carrying(schema):
            return {name: field for name, field in Schema.from_arrow(schema).items() if is_wanted(name)}
        of_nulls = {
            name for column in schema for name, type_ in nodes(column.type, column.name) if pa.types.is_null(type_)
        }
        own = {**hub_features(schema), **features}
        return infer_columns(schema, lambda name: name not in of_nulls and is_wanted(name), own)
    except SchemaError as error:
        raise SchemaError(f"{snapshot.example_of(number)}: {error}") from error


def _wanting(columns: Sequence[str] | None, declared: Collection[str] = frozenset()) -> Callable[[str], bool]:
    """Return a predicate of dotted column names: whether the column is wanted."""
    if columns is None:
        return lambda name: not is_index_column(name) and not any(head in declared for head in heads(name))
    asked = set(columns)
    return lambda name: (
        not asked.isdisjoint(heads(name)) and (not declared or not any(head in declared for head in heads(name)))
    )


def is_carrying(schema: pa.Schema) -> bool:
    """Whether the metadata of this Arrow schema holds a `Schema`."""
    return METADATA_KEY in (schema.metadata or {})


def _differ(snapshot: Snapshot, different: Mapping[str, Mapping[Field | None, list[int]]]) -> SchemaError:
    """Return the error about columns that differ between files, with example files of each kind."""
    texts = []
    for name, variants in list(different.items())[:_EXPLAINED]:
        shown = [
            f"{_some_files(snapshot, numbers)} {_has(snapshot, numbers)} {field or 'no such column'}"
            for field, numbers in list(variants.items())[:_VARIANTS_SHOWN]
        ]
        more = len(variants) - len(shown)
        texts.append(f"{name!r} differs: {', '.join(shown)}{f', and {more} more kinds' if more else ''}")
    others = list(different)[_EXPLAINED:_COLUMNS_SHOWN]
    more = len(different) - len(texts) - len(others)
    if others:
        verb = "does" if len(others) == 1 else "do"
        texts.append(f"so {verb} {', '.join(map(repr, others))}{f' and {more} more' if more else ''}")
    what = "column" if len(different) == 1 else f"{len(different)} columns differ between files:"
    return SchemaError(
        f"{what} {'; '.join(texts)}; pass schema= "
        "(missing=<value> reads files that lack a column, aliases=<names> files with other names for it, and "
        "extra='infer' infers the other columns), or columns= without it"
    )


def _some_files(snapshot: Snapshot, numbers: Sequence[int]) -> str:
    count = int(files_by_schema(snapshot)[numbers].sum())
    return snapshot.example_of(numbers[0]) + (f" (and {count - 1} more)" if count > 1 else "")


def _has(snapshot: Snapshot, numbers: Sequence[int]) -> str:
    return "have" if int(files_by_schema(snapshot)[numbers].sum()) > 1 else "has"


def select(schema: Schema, columns: Sequence[str] | None, known: Sequence[str] = ()) -> Schema:
    """Return the named fields; the name of a struct selects all its leaves.

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
                f"columns: {column!r} is in the files, but the schema has no field of this name; if it is a member of "
                "a group, name the group, otherwise pass another schema="
            )
        if not leaves:
            raise SchemaError(
                f"columns: there is no column {column!r}. {nearest(column, dict.fromkeys([*schema, *known]))}"
            )
        names.extend(leaves)
    return schema.select(names)


def select_inferred(
    schema: Schema, columns: Sequence[str] | None, declared: Collection[str], known: Sequence[str] = ()
) -> Schema:
    """Return the named fields that are not declared; errors as in `select`."""
    if columns is not None:
        columns = [name for name in columns if not any(head in declared for head in heads(name))]
    return select(Schema({name: field for name, field in schema.items() if name not in declared}), columns, known)


def _is_in_group(schema: Schema, column: str) -> bool:
    return any(isinstance(field, Group) and column in field.fields for field in schema.values())


def decoders_of(schema: Schema, snapshot: Snapshot, *, finds_ranges: bool = False) -> list[Decoder]:
    """Return one decoder for each of the snapshot's schemas; those of files without rows are not used.

    Raises:
        SchemaError: the schema cannot read some columns; the message names all of them, and the number of files.
    """
    _check_directories(schema, snapshot)
    files = files_by_schema(snapshot)
    decoders: list[Decoder | None] = []
    problems: dict[tuple[str, str], tuple[str, list[int]]] = {}
    for number, file_schema in enumerate(snapshot.schemas):
        decoders.append(None)
        if files[number] or not files.any():
            name = snapshot.example_of(number)
            try:
                decoders[-1] = Decoder(schema, file_schema, snapshot.partition_schema, name, finds_ranges=finds_ranges)
            except ColumnProblems as error:
                for column, reason in error.problems:
                    # The suggested name is not part of the kind, because it depends on the file.
                    kind = reason.partition(". ")[0] if reason.startswith("there is no") else reason
                    problems.setdefault((column, kind), (reason, []))[1].append(number)
    if problems:
        raise _unfit(snapshot, problems)
    _check_codes(snapshot, decoders)
    usable = next(d for d in decoders if d is not None)
    return [d or usable for d in decoders]


def _check_codes(snapshot: Snapshot, decoders: Sequence[Decoder | None]) -> None:
    """Check that codes of a `Category` that are delivered as numbers mean the same in all files.

    Raises:
        SchemaError: they do not.
    """
    first: dict[str, int] = {}
    for number, decoder in enumerate(decoders):
        for column, vocabularies in ({} if decoder is None else decoder.vocabularies).items():
            other = decoders[first.setdefault(column, number)]
            assert other is not None
            if other.vocabularies[column] != vocabularies:
                raise SchemaError(
                    f"column {column!r}: {snapshot.example_of(first[column])} and {snapshot.example_of(number)} store "
                    "codes of different vocabularies, so a number means different words; read the column as a Category "
                    "with the words of all files, or a packed group from one kind of files at a time"
                )


def _check_directories(schema: Schema, snapshot: Snapshot) -> None:
    """Check that `aliases` and `missing` need not replace values of directories, where a file without them has a null.

    Raises:
        SchemaError: A column comes from names of directories, and some files are in none of this name.
    """
    keys = set(snapshot.partition_schema.names)
    if snapshot.constants is not None or not keys:
        return
    members = [pair for field in schema.values() if isinstance(field, Group) for pair in field.members]
    for name, field in (*schema.items(), *members):
        names = (name, *field.aliases)
        if keys.isdisjoint(names) or (not field.aliases and getattr(field, "missing", None) is None):
            continue
        # For each schema of the snapshot: the key whose values are read, or None if the files have a column instead.
        keys_of: list[str | None] = []
        for own in (frozenset(stored.names) for stored in snapshot.schemas):
            found = next((other for other in names if other in own or other in keys), None)
            keys_of.append(None if found in own else found)
        for file, number in zip(snapshot.files, snapshot.file_schema.tolist(), strict=True):
            key = keys_of[number]
            if key is not None and all(key != given for given, _ in file.partitions):
                raise SchemaError(
                    f"{file.name}: column {name!r} comes from names of directories, and this file is in none named "
                    f"{key}=...; aliases= and missing= hold for columns of files only: rename the directories, or "
                    "write the column to the files"
                )


def _unfit(snapshot: Snapshot, problems: Mapping[tuple[str, str], tuple[str, list[int]]]) -> SchemaError:
    """Return the error about columns that cannot be read as a schema says."""
    texts = [
        ColumnProblems.text(_some_files(snapshot, numbers), column, reason)
        for (column, _), (reason, numbers) in list(problems.items())[:_COLUMNS_SHOWN]
    ]
    more = len(problems) - len(texts)
    begin = f"{len(problems)} columns do not fit the schema: " if len(problems) > 1 else ""
    return SchemaError(f"{begin}{'; '.join(texts)}{f'; and {more} more' if more else ''}")
