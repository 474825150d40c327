"""Converts batches of any form to Arrow tables in exactly the schema of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.errors import ConfigurationError, DataError, SchemaError, nearest
from parquet_loader.schema.arrow_types import is_list_like
from parquet_loader.schema.encode.columns import (
    Column,
    checked_codes,
    constant,
    encode_column,
    numbers,
    refuse_nulls,
    stored_words,
)
from parquet_loader.schema.encode.inputs import count_rows, numpy_array, plain, to_arrow
from parquet_loader.schema.encode.leaves import leaf_columns
from parquet_loader.schema.encode.lossless import Misfit, NullMisfit, from_python
from parquet_loader.schema.encode.nulls import null_advice
from parquet_loader.schema.encode.sources import slices_of
from parquet_loader.schema.encode.tensors import encode_tensor, raw_elements
from parquet_loader.schema.fields import Bytes, Category, Field, Group, RaggedList, Scalar, Tensor, Text
from parquet_loader.schema.infer import infer_fields, is_index_column, nodes
from parquet_loader.schema.ragged import Ragged
from parquet_loader.schema.raw_numbers import raw_difference
from parquet_loader.schema.schema import METADATA_KEY, Schema, named_codes

SLICE_BYTES = 32 * 2**20
"""About how many bytes of input are converted at a time."""


def to_table(data: Any, schema: Schema | None = None) -> pa.Table:
    """Return `data` as one Arrow table in exactly ``schema.arrow_schema()``.

    Args:
        data: A dict of columns, a list of row dicts (an absent key is a null), an Arrow table, record batch or reader,
            a pandas or Polars frame, a `datasets.Dataset`, or an iterable of row dicts or of any of these. A dict that
            an iterable yields is a row if any of its values cannot be a column, or by the schema. Names that are
            integers, as of pandas frames without names, become text. A column is an array (numpy, torch in host memory,
            anything with ``__array__``, ``__dlpack__`` or the Arrow PyCapsule interface), a list, a pandas Series, or,
            for rows of varying length, a `Ragged` or a tuple ``(values, offsets)``. A group takes its members'
            columns, or one matrix ``[rows, members]`` under its own name.
        schema: The columns' schema; None infers it from the first slice: numpy arrays ``[rows, *shape]`` become raw
            tensors, everything else follows the rules for files without a schema.

    The conversion is lossless unless the schema asks for a loss: float64 values in a float32 field are rounded, pixels
    in a JPEG field compressed. In pandas columns NaN is a missing value, except in float fields that refuse nulls,
    in which it stays NaN; the frame's index is not written.

    Raises:
        DataError: a value does not fit its field, or is null and the field refuses nulls; the message names field,
            row and value.
        SchemaError: a column is missing, unknown, or of a kind that does not fit its field.
    """
    tables = list(iter_tables(data, schema))
    if tables:
        return pa.concat_tables(tables)
    if schema is None:
        raise SchemaError("there are no rows to infer a schema from; pass schema=")
    return schema.arrow_schema().empty_table()


def iter_tables(data: Any, schema: Schema | None = None, slice_bytes: int = SLICE_BYTES) -> Iterator[pa.Table]:
    """Yield the table of `to_table` in slices of about `slice_bytes`, without ever holding all of it.

    Data without a single row may yield nothing, or one empty table.
    """
    first_row, declared = 0, schema
    named: Mapping[str, Category] = {}
    described: pa.Schema | None = None
    for columns, arrow_schema in slices_of(data, slice_bytes, schema):
        if schema is None:
            schema = declared = _carried_schema(arrow_schema)
        if arrow_schema is not described:
            named, described = _named_codes(arrow_schema, schema or {}), arrow_schema
            _refuse_other_numbers(arrow_schema, schema or {})
        schema = complete_schema(schema, columns)
        table = _encode(columns, schema, first_row, declared, named)
        first_row += table.num_rows
        yield table


def encode_columns(columns: Mapping[str, Any], schema: Schema, first_row: int) -> pa.Table:
    """Return complete columns as a table in exactly ``schema.arrow_schema()``; as `to_table`.

    Args:
        columns: By name.
        schema: Their schema.
        first_row: Number of their first row, for messages.
    """
    return _encode(columns, schema, first_row, schema)


def infer_schema(columns: Mapping[str, Any], known: frozenset[str] = frozenset()) -> Schema:
    """Infer the schema of columns that have none.

    Args:
        columns: The columns.
        known: Names of columns of a schema; structs without values whose members it names have no fields here.

    Raises:
        SchemaError: no field holds values of this kind.
    """
    found: dict[str, Field] = {}
    for name, values in columns.items():
        if is_index_column(name):
            continue
        try:
            if known and _members_without_values(name, _arrow_if_nested(values), known):
                continue
            fields = _infer_column(name, values)
        except Misfit as misfit:
            raise _located(name, misfit, 0) from None
        for leaf, field in fields.items():
            if leaf in found:
                raise SchemaError(f"column {leaf!r}: there are two of this name; rename one of them")
            found[leaf] = field
    return Schema(found)


def complete_schema(schema: Schema | None, columns: Mapping[str, Any]) -> Schema:
    """Return the schema with inferred fields: all if it is None, with ``extra="infer"`` those of columns it lacks.

    Raises:
        SchemaError: no field holds values of this kind.
    """
    if schema is None:
        return infer_schema(columns)
    if schema.extra != "infer":
        return schema
    known = schema.column_names()
    inferred = infer_schema({name: values for name, values in columns.items() if name not in known}, known)
    return schema.over({name: field for name, field in inferred.items() if name not in known}, columns)


def _infer_column(name: str, values: Any) -> dict[str, Field]:
    given = plain(values, nan_is_null=False)
    if isinstance(given, np.ndarray) and _is_number(given.dtype):
        return {name: _tensor(name, given.dtype, given.shape[1:]) if given.ndim > 1 else Scalar(given.dtype)}
    if isinstance(given, Ragged):
        return {name: _infer_ragged(given)}
    if isinstance(given, list):
        first = next((v for v in given if v is not None), None)
        if hasattr(first, "__array__") and getattr(first, "ndim", 0) > 0:
            array = numpy_array(first)
            if array.ndim > 1 and _is_number(array.dtype):
                shapes = (tuple(getattr(row, "shape", (0,))) for row in given)
                return {name: _tensor(name, array.dtype, next((s for s in shapes if 0 not in s), array.shape))}
            if array.ndim == 1 and (_is_number(array.dtype) or array.dtype.kind in "mM"):
                try:
                    return {name: RaggedList(array.dtype)}
                except ConfigurationError:  # a unit that Arrow does not have
                    raise _no_arrow_type(name, array) from None
            if array.ndim > 1 or array.dtype.kind not in "OSTU":
                raise _no_arrow_type(name, array)
        given = to_arrow(given)
    if isinstance(given, np.ndarray):
        try:
            given = pa.array(given)
        except pa.ArrowException:
            raise _no_arrow_type(name, given) from None
    for part, type_ in nodes(given.type, name):
        if pa.types.is_null(type_):
            what = "nothing but nulls" if type_ == given.type and len(given) else "no values"
            raise SchemaError(
                f"column {part!r} has the type null, as it holds {what}; leave the column out, or give it a field in "
                "schema= that says its type"
            )
    return infer_fields(pa.field(name, given.type))


def _tensor(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Tensor:
    if 0 in shape:
        raise SchemaError(
            f"column {name!r}: its arrays have the shape {shape}, which holds no values; leave the column out, or "
            "give it a field in schema="
        )
    return Tensor(dtype, shape)


def _is_number(dtype: np.dtype[Any]) -> bool:
    """Whether an element of a tensor may have this type; `np.longdouble` has more bits than Arrow's floats."""
    return dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8)


def _no_arrow_type(name: str, array: np.ndarray[Any, Any]) -> SchemaError:
    remedy = "convert it with astype, or write its parts as columns of their own"
    if array.dtype.kind == "c":
        view = f"x.view('{array.real.dtype.name}').reshape(*x.shape, 2)"
        remedy = f"write its real and imaginary parts as columns of their own, or as tensors with {view}"
    axes = f" with {array.ndim} axes" if array.ndim > 1 else ""
    return SchemaError(f"column {name!r}: numpy's {array.dtype}{axes} has no Arrow type; {remedy}")


def _infer_ragged(ragged: Ragged) -> Field:
    if ragged.kind != "list":
        return Text() if ragged.kind == "text" else Bytes()
    if isinstance(ragged.values, Ragged):
        return RaggedList(_infer_ragged(ragged.values))
    dtype, shape = ragged.values.dtype, ragged.values.shape[1:]
    return RaggedList(Tensor(dtype, shape) if shape else Scalar(dtype))


def _carried_schema(arrow: pa.Schema | None) -> Schema | None:
    """Return the schema in an Arrow table's metadata, if it still describes the table's columns."""
    if arrow is None or METADATA_KEY not in (arrow.metadata or {}):
        return None
    schema = Schema.from_arrow(arrow)
    stored = {name: field.type for name, field in schema.stored_columns().items()}
    return schema if stored == {field.name: field.type for field in arrow} else None


def _named_codes(arrow: pa.Schema | None, schema: Mapping[str, Field]) -> dict[str, Category]:
    """Return the vocabularies of columns of integers that the data name, if the schema stores words for them."""
    if arrow is None or not arrow.metadata:
        return {}
    found: dict[str, Category] = {}
    members = [pair for field in schema.values() if isinstance(field, Group) for pair in field.members]
    for name, field in (*schema.items(), *members):
        if isinstance(field, Category):
            for own in (name, *field.aliases):
                found |= {n: f for n, f in named_codes(arrow, own).items() if f.is_integer == field.is_integer}
    return found


def _refuse_other_numbers(arrow: pa.Schema | None, schema: Mapping[str, Field]) -> None:
    """Refuse raw bytes that hold other numbers by the metadata of their table than by the schema.

    Raises:
        SchemaError: a tensor has another dtype, or a packed group other members.
    """
    if arrow is None or METADATA_KEY not in (arrow.metadata or {}):
        return
    carried = Schema.from_arrow(arrow)
    for name, field in schema.items():
        own = next((n for n in (name, *getattr(field, "aliases", ())) if n in arrow.names), None)
        if own is not None and (difference := raw_difference(carried.get(own), field, arrow.field(own).type, "table")):
            raise SchemaError(
                f"field {name!r}: {difference}, and raw values cannot be converted; "
                "pass the column as numbers, such as a numpy array [rows, ...]"
            )


def _as_words(
    columns: Mapping[str, Any], schema: Schema, named: Mapping[str, Category], first_row: int
) -> dict[str, Any]:
    """Return columns with the words of named codes in place of the codes.

    Raises:
        SchemaError: The matrix of a group has codes of another vocabulary, which cannot be replaced.
    """
    out = dict(columns)
    for name, field in schema.items():
        if isinstance(field, Group) and named and name in columns and name not in field.fields:
            for member, part in field.members:
                if member in named and isinstance(part, Category) and part.vocabulary != named[member].vocabulary:
                    raise SchemaError(
                        f"field {name!r}: the matrix has codes of {member!r} by another vocabulary than the schema's; "
                        "load the members as fields of their own, or write the vocabulary that they have"
                    )
    for name in named.keys() & columns.keys():
        try:
            codes = to_arrow(plain(columns[name]))
            if pa.types.is_integer(codes.type):
                out[name] = named[name].words.take(checked_codes(named[name], codes))
        except Misfit as misfit:
            raise _located(name, misfit, first_row) from None
    return out


def _encode(
    columns: Mapping[str, Any],
    schema: Schema,
    first_row: int,
    declared: Schema | None,
    named: Mapping[str, Category] = MappingProxyType({}),
) -> pa.Table:
    known = schema.column_names()
    columns = {n: v for n, v in columns.items() if n in known or not is_index_column(n)}
    if schema.extra == "drop":
        columns = {n: v for n, v in columns.items() if n in known or any(k.startswith(f"{n}.") for k in known)}
    columns = _as_words(_flatten_nested(columns, schema, first_row), schema, named, first_row)
    if schema.extra == "drop":
        columns = {n: v for n, v in columns.items() if n in known}
    _refuse_unknown(columns, schema)
    rows = count_rows(next(iter(columns.values()))) if columns else 0
    try:
        stored = _stored(columns, schema, rows, first_row)
    except _NullError as error:
        raise DataError(f"{error}; {null_advice(columns, schema, declared, first_row, rows)}") from None
    for name, array in stored.items():
        if len(array) != rows:
            raise DataError(f"columns of unequal length: {name!r} has {len(array)} rows, others have {rows}")
    return pa.Table.from_arrays(list(stored.values()), schema=schema.arrow_schema())


def _stored(columns: Mapping[str, Any], schema: Schema, rows: int, first_row: int) -> dict[str, pa.Array]:
    stored: dict[str, pa.Array] = {}
    for name, field in schema.items():
        if not isinstance(field, Group):
            stored[name] = _column(name, field, columns, rows, first_row)
        elif name in columns and name not in field.fields:
            stored |= _group_of_matrix(name, field, columns[name], first_row)
        elif field.storage == "columns":
            stored |= {m: _column(m, f, columns, rows, first_row) for m, f in field.fields.items()}
        else:
            stored[name] = _packed(name, field, columns, rows, first_row)
    return stored


def _flatten_nested(columns: Mapping[str, Any], schema: Schema, first_row: int) -> dict[str, Any]:
    """Replace structs, maps and lists of structs, for which a schema has no field, by their leaves."""
    out: dict[str, Any] = {}
    known = schema.column_names()
    for name, values in columns.items():
        if name in known:
            out[name] = values
            continue
        try:
            given = _arrow_if_nested(values)
            leaves = leaf_columns(name, given) if isinstance(given, pa.Array) else {name: values}
        except Misfit as misfit:
            raise _located(name, misfit, first_row) from None
        for leaf, column in leaves.items():
            members = _members_without_values(leaf, column, known)
            if leaf != name and leaf in columns:
                raise SchemaError(f"column {leaf!r} is given by itself and as a part of {name!r}; give one of them")
            out |= dict.fromkeys([m for m in members if m not in columns] if members else [leaf], column)
    return out


def _arrow_if_nested(values: Any) -> Any:
    """Return a column as an Arrow array if it may hold structs, or holds only nulls; else in any form."""
    given = plain(values, nan_is_null=False)
    if isinstance(given, list):
        rows = list(islice((v for v in given if v is not None), 64))
        if not rows or any(map(_may_be_nested, rows)):
            return from_python(given)
    return given


def _members_without_values(name: str, values: Any, known: frozenset[str]) -> list[str]:
    """Return the known columns below one whose rows are all nulls or empty lists, so that its type has no members."""
    if name in known or not isinstance(values, pa.Array) or not _is_untyped(values.type):
        return []
    return sorted(other for other in known if other.startswith(f"{name}."))


def _is_untyped(type_: pa.DataType) -> bool:
    return pa.types.is_null(type_) or (is_list_like(type_) and _is_untyped(type_.value_type))


def _may_be_nested(row: Any) -> bool:
    return isinstance(row, Mapping | list) or (isinstance(row, np.ndarray) and row.dtype.kind == "O")


def _refuse_unknown(columns: Mapping[str, Any], schema: Schema) -> None:
    known = schema.column_names()
    for name, field in schema.items():
        if isinstance(field, Group):
            both = next((m for m in field.fields if m in columns and name in columns and m != name), None)
            if both is not None and name not in field.fields:
                raise SchemaError(f"group {name!r} is given as a matrix and its member {both!r} as a column; give one")
    unknown = [name for name in columns if name not in known]
    if unknown:
        others = f" (nor are {len(unknown) - 1} others)" if len(unknown) > 1 else ""
        raise SchemaError(
            f"column {unknown[0]!r} is not in the schema{others}. {nearest(unknown[0], sorted(known))} "
            "Schema(fields, extra='drop') leaves such columns out, extra='infer' keeps them by their own types"
        )


def _column(name: str, field: Column, columns: Mapping[str, Any], rows: int, first_row: int) -> pa.Array:
    try:
        given = next((n for n in (name, *field.aliases) if n in columns), None)
        if given is not None:
            return encode_column(field, columns[given])
        if field.missing is not None:
            return constant(field, rows)
    except Misfit as misfit:
        raise _located(name, misfit, first_row) from None
    raise _absent(name, columns)


def _absent(name: str, columns: Mapping[str, Any]) -> SchemaError:
    return SchemaError(
        f"the data lack column {name!r}, which the schema has. {nearest(name, columns)} "
        "A field with missing=<value> is written without it, and one with aliases=<names> from a column of another name"
    )


def _packed(name: str, group: Group, columns: Mapping[str, Any], rows: int, first_row: int) -> pa.Array:
    if not any(other in columns for member, field in group.members for other in (member, *field.aliases)):
        raise _absent(name, columns)
    matrix = np.empty((rows, len(group.members)), dtype=group.dtype)
    for number, (member, field) in enumerate(group.fields.items()):
        try:
            given = next((n for n in (member, *field.aliases) if n in columns), None)
            if given is not None:
                matrix[:, number] = numbers(field, columns[given])
            elif field.missing is None:
                raise _absent(member, columns)
            else:
                matrix[:, number] = numbers(field, constant(field, 1))[0]
        except Misfit as misfit:
            raise _located(member, misfit, first_row) from None
    return _raw(matrix, group)


def _raw(matrix: np.ndarray[Any, Any], group: Group) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(group.width_bytes), len(matrix), [None, pa.py_buffer(matrix)])


def _group_of_matrix(name: str, group: Group, values: Any, first_row: int) -> dict[str, pa.Array]:
    """Encode a group given as one matrix ``[rows, members]`` of delivered numbers, or as packed bytes."""
    width = len(group.members)
    try:
        rows = Tensor(group.dtype, (width,))
        array = encode_tensor(rows, plain(values))
        refuse_nulls(rows, array)
    except Misfit as misfit:
        raise _located(name, misfit, first_row) from None
    matrix = raw_elements(rows, array).reshape(-1, width)
    stored: dict[str, pa.Array] = {}
    for number, (member, field) in enumerate(group.fields.items()):
        try:
            column = matrix[:, number]
            if isinstance(field, Category):
                stored[member] = stored_words(field, checked_codes(field, pa.array(np.ascontiguousarray(column))))
            else:
                stored[member] = encode_column(field, column)
        except Misfit as misfit:
            raise _located(member, misfit, first_row) from None
    return stored if group.storage == "columns" else {name: _raw(np.ascontiguousarray(matrix), group)}


def _located(name: str, misfit: Misfit, first_row: int) -> DataError | SchemaError:
    if misfit.row is None:
        return SchemaError(f"field {name!r}: {misfit.reason}")
    kind = _NullError if isinstance(misfit, NullMisfit) else DataError
    return kind(f"field {name!r}, row {first_row + misfit.row}: {misfit.reason}")


class _NullError(DataError):
    """A null whose field refuses nulls; caught by the caller that knows the other columns, for a fuller message."""
