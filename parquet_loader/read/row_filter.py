"""Applies a filter: the columns it needs, the row groups it excludes, and the rows that pass."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import Call, FieldRef, Literal, Node, named_columns, nodes, read_expression
from parquet_loader.decode import ValueProblem, coded_words, type_at
from parquet_loader.errors import ConfigurationError, DataError, SchemaError, nearest
from parquet_loader.read.splits import check_number_keys, check_text_keys
from parquet_loader.read.view_types import schema_without_views, table_without_views
from parquet_loader.read.virtual_columns import Positions, position_hash, text_hash
from parquet_loader.schema import (
    METADATA_KEY,
    Bytes,
    Category,
    Field,
    Group,
    Scalar,
    Schema,
    Text,
    constant,
    empty_table,
    named_codes,
)
from parquet_loader.source import RowGroupRef, Snapshot, guarantees

# Statistics leave out NaN, but these comparisons are false for NaN, so statistics can exclude row groups for them.
_COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal"}
_ORDERINGS = _COMPARISONS - {"equal"}


def _lazily(name: str) -> Any:
    """Return a module of pyarrow; it is imported late because it imports pandas, which only filters need."""
    return importlib.import_module(f"pyarrow.{name}")


_MEMBERSHIPS = ("in", "not in")
_OPERATORS = ("==", "=", "!=", "<", "<=", ">", ">=", *_MEMBERSHIPS)
Filters: TypeAlias = pc.Expression | Sequence[tuple[str, str, Any]] | Sequence[Sequence[tuple[str, str, Any]]]
"""A boolean expression, or pyarrow's list form of one: tuples that all hold, or lists of which one holds."""


def as_expression(filters: Filters | None) -> pc.Expression | None:
    """Return filters as an expression.

    Args:
        filters: An expression, tuples ``(column, operator, value)`` joined by *and*, or lists of tuples joined by *or*.

    Raises:
        ConfigurationError: they are neither.
    """
    if filters is None or isinstance(filters, pc.Expression):
        return filters
    given = _with_tuples(filters)
    for column, operator, value in _terms(given):
        if operator in _MEMBERSHIPS and isinstance(value, str | bytes):
            raise ConfigurationError(
                f"filters={filters!r:.80}: {operator!r} takes a list of values; write ({column!r}, {operator!r}, "
                f"[{value!r}])"
            )
        if operator in _OPERATORS and operator not in _MEMBERSHIPS and value is None:
            raise ConfigurationError(
                f"filters={filters!r:.80}: no row passes a comparison with None; "
                f"pc.field({column!r}).is_null() and .is_valid() select rows by nulls"
            )
    try:
        if isinstance(given, list | tuple):
            return _lazily("parquet").filters_to_expression([given] if isinstance(given, tuple) else given)
    except OverflowError as error:
        raise ConfigurationError(f"filters={filters!r:.80}: a value does not fit 64 bits: {error}") from None
    except (ValueError, TypeError, AttributeError, IndexError, pa.ArrowException):
        for _, operator, _ in _terms(given):
            if operator not in _OPERATORS:
                known = ", ".join(map(repr, _OPERATORS))
                raise ConfigurationError(
                    f"filters={filters!r:.80}: there is no operator {operator!r}; the operators are {known}"
                ) from None
    raise ConfigurationError(
        f"filters={filters!r:.80}: expected a pyarrow.compute expression, such as "
        "(pc.field('year') >= 2020) & pc.field('label').is_valid(), or tuples such as [('year', '>=', 2020)]"
    )


def _with_tuples(filters: Any) -> Any:
    """Return filters whose terms are tuples, in lists; files of settings give lists, or sequences of their own.

    Days of numpy become dates of Python, because pyarrow does not convert them.
    """
    if not isinstance(filters, Sequence) or isinstance(filters, str | bytes):
        return filters
    if len(filters) == 3 and (isinstance(filters[0], str) or isinstance(filters[1], str)):
        column, operator, value = filters  # the column may be a path of names, ("struct", "member")
        is_day = isinstance(value, np.datetime64) and value.dtype == np.dtype("M8[D]")
        return column, operator, value.item() if is_day else value
    return list(map(_with_tuples, filters))


def _terms(filters: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(filters, tuple):
        return [filters]
    return [term for part in filters for term in _terms(part)] if isinstance(filters, list) else []


class RowFilter:
    """A bound filter expression. Immutable; any thread may use it.

    Attributes:
        columns: Names of the files' own and partition columns that it needs.
        positions: The virtual columns of position hashes that it needs.

    Args:
        expression: A boolean `pyarrow.compute` expression over the files' columns, as stored, and partition columns.
        snapshot: The files it applies to; every distinct schema among them is checked.
        declared: The caller's schema, or None. It names the categories that files without a schema hold as codes, and
            the substitutes for columns that a file lacks.

    Columns that hold codes of categories are compared as words, or as codes if only codes fit the filter. If a file
    lacks a column, an alias of the field is compared, or else the field's `missing` value.

    Raises:
        ConfigurationError: it is not an expression.
        SchemaError: it names a column that does not exist, or compares values of incompatible types.
    """

    def __init__(self, expression: pc.Expression, snapshot: Snapshot, declared: Schema | None = None) -> None:
        given = as_expression(expression)
        assert given is not None
        self._expression = expression = given
        tree = read_expression(given)
        named = named_columns(tree)
        self._is_false_for_nan = _is_false_for_nan(tree)
        self.positions = tuple(position for name in named if (position := position_hash(name)) is not None)
        self._hashes = tuple(hashed for name in named if (hashed := text_hash(name)) is not None)
        virtual = [*(column.name for column in self.positions), *(column.name for column in self._hashes)]
        self._virtual = pa.schema([(name, pa.uint64()) for name in virtual])
        own = [name for name in named if name not in self._virtual.names]
        keys = [column.column for column in self._hashes]
        # For each schema of the snapshot: the columns of codes that are compared as words.
        self._words_of: list[dict[str, Category]] = []
        # For each schema of the snapshot: the alias or value that replaces each column that its files lack.
        self._stand_ins: list[dict[str, str | pa.Scalar]] = []
        # For each schema of the snapshot: the columns as read and as stored, with types that Arrow can compare.
        self._comparable = [
            (_comparable(read), _comparable(stored))
            for read, stored in zip(snapshot.schemas, snapshot.stored_schemas, strict=True)
        ]
        self.columns: tuple[str, ...] = ()
        for number, schema in enumerate(snapshot.schemas):
            file = snapshot.example_of(number)
            known = with_partitions(schema, snapshot.partition_schema)
            stand_ins = {name: source for name, source in _stand_ins(known, declared).items() if name in [*own, *keys]}
            check_number_keys(tree, _with_stand_ins(known, stand_ins), file)
            words = columns_of_codes(schema, declared)
            as_words = _with_stand_ins(_with_words(known, words), stand_ins)
            known = _with_stand_ins(known, stand_ins)
            if words and self._binding_error(as_words) is None:
                known = as_words
            else:
                words = {}
            _check_named([*own, *keys], known, file)
            error = self._binding_error(known)
            if error is not None:
                reason = str(error).splitlines()[0]
                if reason.startswith("Precision is not great enough"):  # Arrow takes an integer for 19 digits
                    reason += "; compare a column of decimals with a decimal.Decimal, not with an int"
                elif "no kernel matching input types" in reason:
                    reason += "; compare each column with values of its own type"
                raise SchemaError(f"{file}: filters={expression} cannot be applied to columns of these types: {reason}")
            _check_time_zones(tree, known, file)
            check_text_keys([name for name in known.names if name in keys], known, file)
            own_read, keys_read = (
                [
                    source
                    for name in known.names
                    if name in names and isinstance(source := stand_ins.get(name, name), str)
                ]
                for names in (own, keys)
            )
            self._stand_ins.append(stand_ins)
            self._words_of.append({name: words[name] for name in own_read if name in words})
            self.columns = tuple(dict.fromkeys((*self.columns, *own_read, *keys_read)))

    def _binding_error(self, schema: pa.Schema) -> Exception | None:
        """Return Arrow's error if the filter cannot be applied to these columns; else None."""
        try:
            _passing(empty_table(with_partitions(schema, self._virtual)), self._expression)
        except (pa.ArrowException, ValueError, TypeError) as error:
            return error
        return None

    def __repr__(self) -> str:
        return str(self._expression)

    def apply(self, table: pa.Table, schema: int | None = None, row_group: RowGroupRef | None = None) -> pa.Table:
        """Return the rows that pass, in their order.

        Args:
            table: Rows with the columns that the filter needs.
            schema: The number of their file's schema in the snapshot; None if the table has no columns of a file.
            row_group: The row group, for messages.

        Raises:
            DataError: a code is not in the vocabulary.
        """
        words = {} if schema is None else self._words_of[schema]
        for name, field in words.items():
            column_index = table.schema.get_field_index(name)
            try:
                table = table.set_column(column_index, name, coded_words(table.column(name), field))
            except ValueProblem as problem:
                where = "" if row_group is None else row_group.name
                raise DataError(f"{where}, column {name!r}: {problem.reason}") from None
        for name, source in ({} if schema is None else self._stand_ins[schema]).items():
            column = table.column(source) if isinstance(source, str) else pa.repeat(source, len(table))
            table = table.append_column(name, column)
        for hashed in self._hashes:
            table = hashed.append_to(table)
        try:
            table = _passing(table, self._expression)
        except pa.ArrowInvalid as error:  # such as a division by zero, or a number that does not fit
            where = "" if row_group is None else f"{row_group.name}: "
            hint = "; compare uint64 with pa.scalar(<value>, pa.uint64())" if "Integer value" in str(error) else ""
            raise DataError(f"{where}filters={self} cannot be applied to these rows: {error}{hint}") from error
        for name in words:
            codes = [chunk.indices for chunk in table.column(name).chunks]
            column_index = table.schema.get_field_index(name)
            table = table.set_column(column_index, name, pa.chunked_array(codes, table.column(name).type.index_type))
        return table

    @property
    def has_stand_ins(self) -> bool:
        """Whether the filter names columns that some files lack."""
        return any(self._stand_ins)

    def check_words(self, schema: Schema) -> None:
        """Refuse meaningless comparisons of text categories: by order, or with a word outside the vocabulary.

        Raises:
            SchemaError: there is one; the message names the column and the word.
        """
        fields = {name: field for name, field in categories_of(schema).items() if not field.is_integer}
        for node in nodes(read_expression(self._expression)):
            match node:
                case Call(function, (FieldRef((name,)), Literal(value)) | (Literal(value), FieldRef((name,)))):
                    field = fields.get(name)
                    if field is None or pa.types.is_temporal(value.type):  # Python has no value for some times
                        continue
                    word = value.as_py()
                    if not isinstance(word, str):
                        continue
                    if function in _ORDERINGS:
                        raise SchemaError(
                            f"filters: the words of the Category {name!r} have no order; "
                            "compare them with ==, != or isin"
                        )
                    if function == "equal" and field.unknown is None and word not in field.vocabulary:
                        raise SchemaError(
                            f"filters: column {name!r} is compared with {word!r}, which is not among the "
                            f"{len(field.vocabulary)} words of its vocabulary. "
                            f"{nearest(word, map(str, field.vocabulary))}"
                        )

    def differs_within(self, own_columns: Collection[str]) -> bool:
        """Whether some rows of a row group may pass and others not, if the file has these columns."""
        by_row = any(not position.is_constant for position in self.positions)
        return by_row or any(name in own_columns for name in self.columns)

    def surviving(self, snapshot: Snapshot, file: int, positions: Positions | None = None) -> set[int]:
        """Return the row groups of one file whose statistics, partitions and positions admit a matching row.

        Args:
            snapshot: The snapshot of the file.
            file: The file's number in the snapshot.
            positions: The positions of the snapshot's rows; None if the filter names none.

        Returns:
            Their numbers in the file.
        """
        words = self._words_of[int(snapshot.file_schema[file])]
        stand_ins = self._stand_ins[int(snapshot.file_schema[file])]
        own, stored = self._comparable[int(snapshot.file_schema[file])]
        schema = with_partitions(_with_words(own, words), snapshot.partition_schema)
        schema = _with_stand_ins(schema, stand_ins)
        schema = with_partitions(schema, self._virtual)
        pads = _lazily("dataset")
        known = pads.scalar(True)
        for name, value in snapshot.partition_values(file).items():
            is_nan = value.is_valid and pa.types.is_floating(value.type) and value.as_py() != value.as_py()
            if name in own.names or name not in self.columns or is_nan:
                continue
            is_value = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
            known = known & is_value
        for name, source in stand_ins.items():
            if not isinstance(source, str) and source.as_py() == source.as_py():  # no NaN
                known = known & (pc.field(name) == source)
        first, stop = np.searchsorted(snapshot.row_group_file, [file, file + 1]).tolist()
        numbers: list[int] = snapshot.row_group_number[first:stop].tolist()
        guaranteed = [[known] for _ in numbers]
        constant = [column for column in self.positions if column.is_constant] if positions is not None else []
        for column in constant:
            assert positions is not None
            for parts, value in zip(guaranteed, positions.constants(column, first, stop).tolist(), strict=True):
                parts.append(pc.field(column.name) == pa.scalar(value, pa.uint64()))
        if not self.columns and not constant:
            return set(numbers)
        types = [field.type for field in schema if field.name in {*self.columns, *stand_ins}]
        if self._is_false_for_nan or not any(map(_holds_floats, types)):
            footer = snapshot.footers.get(file)
            names = [
                n
                for n in self.columns
                if n in own.names and n not in words and own.field(n).type == stored.field(n).type
            ]
            for parts, number in zip(guaranteed, numbers, strict=True):
                parts.extend(guarantees(footer, number, names, own))
        # A data set of one fragment for each row group: Arrow excludes those whose guarantees contradict the filter.
        parquet = pads.ParquetFileFormat()
        fragments = [
            parquet.make_fragment(str(number), snapshot.filesystem, reduce(and_, parts))
            for parts, number in zip(guaranteed, numbers, strict=True)
        ]
        each = pads.FileSystemDataset(fragments, schema, parquet, snapshot.filesystem)
        try:
            return {int(fragment.path) for fragment in each.get_fragments(self._expression)}
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # Arrow cannot compare the filter with the guarantees
            return set(numbers)


def stored_fields(fields: Mapping[str, Field]) -> list[tuple[str, Field]]:
    """Return the fields by the names of their columns; groups are replaced by their members."""
    parts: list[tuple[str, Field]] = [(name, f) for name, f in fields.items() if not isinstance(f, Group)]
    return parts + [part for field in fields.values() if isinstance(field, Group) for part in field.members]


def categories_of(fields: Mapping[str, Field]) -> dict[str, Category]:
    """Return the categories of a schema by the names that their columns have in files."""
    found: dict[str, Category] = {}
    for name, field in stored_fields(fields):
        if isinstance(field, Category):
            found |= dict.fromkeys((name, *field.aliases), field)
    return found


def columns_of_codes(file_schema: pa.Schema, declared: Schema | None) -> dict[str, Category]:
    """Return the columns with codes of categories, according to the file's own schema or else the declared one."""
    of_text = {n: f for n, f in categories_of(declared or {}).items() if not f.is_integer}
    if METADATA_KEY in (file_schema.metadata or {}):
        found = {n: f for n, f in categories_of(Schema.from_arrow(file_schema)).items() if f.storage == "codes"}
    else:
        found = dict(of_text)
    for name in of_text:
        found |= named_codes(file_schema, name)
    types = {column.name: column.type for column in file_schema}
    return {n: f for n, f in found.items() if n in types and pa.types.is_integer(types[n])}


def _with_words(schema: pa.Schema, words: Mapping[str, Category]) -> pa.Schema:
    for name, field in words.items():
        column_index = schema.get_field_index(name)
        index = schema.field(name).type
        index = pa.int64() if index in (pa.uint32(), pa.uint64()) else index
        schema = schema.set(column_index, pa.field(name, pa.dictionary(index, field.word_type)))
    return schema


def _stand_ins(known: pa.Schema, declared: Schema | None) -> dict[str, str | pa.Scalar]:
    """Return the substitutes for declared columns that files lack: an alias that they have, or a value."""
    found: dict[str, str | pa.Scalar] = {}
    for name, field in stored_fields(declared or {}):
        if type_at(known, name) is not None:
            continue
        alias = next((alias for alias in field.aliases if alias in known.names), None)
        if alias is not None:
            found[name] = alias
        elif isinstance(field, Category) and field.missing is not None:
            found[name] = pa.scalar(field.missing, field.word_type)
        elif isinstance(field, Scalar | Text | Bytes) and field.missing is not None:
            found[name] = constant(field, 1)[0]
    return found


def _with_stand_ins(schema: pa.Schema, stand_ins: Mapping[str, str | pa.Scalar]) -> pa.Schema:
    for name, source in stand_ins.items():
        schema = schema.append(pa.field(name, schema.field(source).type if isinstance(source, str) else source.type))
    return schema


def _passing(table: pa.Table, expression: pc.Expression) -> pa.Table:
    acero = _lazily("acero")
    table = table_without_views(table)
    extended = {n: field for n, field in enumerate(table.schema) if isinstance(field.type, pa.BaseExtensionType)}
    for number, field in extended.items():
        storage = [chunk.storage for chunk in table.column(number).chunks]
        table = table.set_column(number, field.name, pa.chunked_array(storage, field.type.storage_type))
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    passing = acero.Declaration("filter", acero.FilterNodeOptions(expression), inputs=[source])
    # With more threads Acero may reorder batches; callers run several filters at a time anyway.
    table = passing.to_table(use_threads=False)
    for number, field in extended.items():
        chunks = [field.type.wrap_array(chunk) for chunk in table.column(number).chunks]
        table = table.set_column(number, field, pa.chunked_array(chunks, field.type))
    return table


def _comparable(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types that `_passing` compares: without views and extension types."""
    return pa.schema(
        [
            field.with_type(field.type.storage_type) if isinstance(field.type, pa.BaseExtensionType) else field
            for field in schema_without_views(schema)
        ]
    )


def _is_false_for_nan(tree: Node) -> bool:
    """Whether a filter is false for NaN: comparisons and lists of simple values, joined by and / or.

    Statistics leave out NaN, so they can exclude row groups with floats only for such filters. A comparison of a
    comparison, a nested value, or any other function may be true for NaN.
    """
    left = [tree]
    while left:
        match left.pop():
            case Call("and_kleene" | "or_kleene", operands):
                left.extend(operands)
            case Call(function, operands) if function in _COMPARISONS:
                if not all(map(_is_plain, operands)):
                    return False
            case Call("is_valid", (FieldRef((_,)),)) | FieldRef((_,)) | Literal():
                pass
            case Call("is_null", (FieldRef((_,)),), pa.StructScalar() as options):
                if options["nan_is_null"].as_py():
                    return False
            case Call("is_in", (FieldRef((_,)),), pa.StructScalar() as options):
                values = options["value_set"].values
                if _is_nested(values.type) or (pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()):
                    return False
            case _:
                return False
    return True


def _is_plain(node: Node) -> bool:
    """Whether it is a column, or a simple value that is not NaN."""
    match node:
        case FieldRef((_,)):
            return True
        case Literal(value):
            # Only floats are converted to Python values, which do not exist for some times.
            is_nan = pa.types.is_floating(value.type) and value.as_py() != value.as_py()
            return not _is_nested(value.type) and not is_nan
    return False


def _is_nested(type_: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type_) or pa.types.is_dictionary(type_))


def _holds_floats(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _holds_floats(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return _holds_floats(type_.value_type)
    return pa.types.is_floating(type_) or any(_holds_floats(type_.field(i).type) for i in range(type_.num_fields))


def with_partitions(schema: pa.Schema, partition_schema: pa.Schema) -> pa.Schema:
    """Return a file's schema with the partition (or virtual) columns that the file lacks."""
    for column in partition_schema:
        if column.name not in schema.names:
            schema = schema.append(column)
    return schema


def _check_time_zones(tree: Node, schema: pa.Schema, file: str) -> None:
    """Refuse comparisons of times with and without a time zone, which Arrow finds only when it compares values."""
    for node in nodes(tree):
        match node:
            case Call(function, (one, other)) if function in {*_COMPARISONS, "not_equal"}:
                types = [_type_of(one, schema), _type_of(other, schema)]
                if not all(map(pa.types.is_timestamp, types)) or (types[0].tz is None) == (types[1].tz is None):
                    continue
                column = next((".".join(side.path) for side in (one, other) if isinstance(side, FieldRef)), "")
                raise SchemaError(
                    f"{file}: filters compare column {column!r}, a {types[0]}, with a {types[1]}: one has a time zone, "
                    "the other has none; use datetime values with tzinfo=datetime.UTC for columns with a time zone, "
                    "and without tzinfo for the others"
                )


def _type_of(node: Node, schema: pa.Schema) -> pa.DataType:
    """Return the type of a column or value; null for a call and a virtual column."""
    match node:
        case FieldRef((name, *members)) if name in schema.names:
            type_ = schema.field(name).type
            for member in members:
                type_ = type_.field(member).type if pa.types.is_struct(type_) else pa.null()
            return type_
        case Literal(value):
            return value.type
    return pa.null()


def _check_named(names: Collection[str], schema: pa.Schema, file: str) -> None:
    for name in names:
        if name not in schema.names:
            missing = f"{file}: filters name the column {name!r}, which does not exist"
            if path := _path_in_structs(name, schema):
                raise SchemaError(f"{missing}; the member of the struct is pc.field({', '.join(map(repr, path))})")
            raise SchemaError(
                f"{missing}. {nearest(name, schema.names)} "
                "A field of schema= with missing=<value> or aliases=<names> replaces it in files that lack it"
            )


def _path_in_structs(name: str, schema: pa.Schema) -> list[str] | None:
    """Return the path of the struct member that a dotted name means, such as ``["a", "b"]`` for ``"a.b"``, or None."""
    parent: Any = schema
    path = name.split(".")
    for step in path:
        index = parent.get_field_index(step) if isinstance(parent, pa.Schema | pa.StructType) else -1
        if index < 0:
            return None
        parent = parent.field(index).type
    return path
