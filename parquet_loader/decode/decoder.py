"""Decodes a file's Arrow columns to the schema's canonical columns, whatever their names and types in the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.decode.columns import Column, column_of, columns_of
from parquet_loader.decode.converters import (
    POLICIES,
    NullProblem,
    ValueProblem,
    accepts,
    coded_words,
    convert,
    plain,
    validity,
    without_extensions,
)
from parquet_loader.decode.group_matrix import matrix
from parquet_loader.decode.routes import ColumnSource
from parquet_loader.errors import DataError, SchemaError, nearest
from parquet_loader.schema import (
    METADATA_KEY,
    Category,
    Field,
    Group,
    Scalar,
    Schema,
    Tensor,
    is_list_like,
    plain_type,
    policy_of,
)
from parquet_loader.source import RowGroupRef


@dataclass(frozen=True, slots=True)
class TableOrigin:
    """Where a table came from, for messages.

    Attributes:
        row_group: The row group.
        first_row: Row of the row group at which the table begins, or of those that pass the filter.
        is_filtered: Whether rows count those that pass the filter.
    """

    row_group: RowGroupRef
    first_row: int = 0
    is_filtered: bool = False

    @property
    def name(self) -> str:
        """How messages name it: its file and row group."""
        return self.row_group.name + (" (rows that pass the filter)" if self.is_filtered else "")


class NullError(DataError):
    """A null where the field refuses nulls.

    Attributes:
        what: Where it is, without what to do.
        column: The column.
    """

    def __init__(self, what: str, column: str) -> None:
        super().__init__(f"{what}; {POLICIES}")
        self.what = what
        self.column = column


class ColumnProblems(SchemaError):
    """Columns of a file that cannot be read as a schema says.

    Attributes:
        problems: Each with the column, and the reason.
    """

    def __init__(self, file_name: str, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(self.text(file_name, column, reason) for column, reason in problems))
        self.problems = tuple(problems)

    @staticmethod
    def text(where: str, column: str, reason: str) -> str:
        """Return one of these as a sentence."""
        return (
            f"{where}: {reason}" if reason.startswith("there is no column") else f"{where}, column {column!r}: {reason}"
        )


class Decoder:
    """Turns tables of the files of one Arrow schema into canonical tables. Immutable; any thread may use it.

    Args:
        schema: The schema of the delivered columns.
        file_schema: The Arrow schema of the files' own columns.
        partition_schema: Columns that come from directory names; a file's own column of that name goes first.
        file_name: A file of this schema, for messages.

    Raises:
        ColumnProblems: columns are not there, or of types that their fields cannot take.
    """

    def __init__(self, schema: Schema, file_schema: pa.Schema, partition_schema: pa.Schema, file_name: str) -> None:
        self.columns: tuple[Column, ...] = columns_of(schema)
        self._file_schema = file_schema
        self._partition_schema = partition_schema
        self._file_name = file_name
        self._arrow_schema = pa.schema([(c.name, c.arrow_type) for c in self.columns])
        self._paths: dict[str, tuple[str, str] | None] = {}
        reads: dict[str, None] = {}
        self._parts = [(name, field, self._stored_parts(name, field)) for name, field in schema.items()]
        self._masked = {name for name, field in schema.items() if policy_of(field) == "mask"}
        self._carried = _carried_categories(schema, file_schema)
        self._sources: dict[str, str] = {}  # by column, the one of its names that the file has
        sources: list[ColumnSource] = []
        problems: list[tuple[str, str]] = []
        for name, field, parts in self._parts:
            for column, part in parts:
                source = self._sources[column] = self._named(column, part)
                is_there = type_at(file_schema, source) is not None  # a struct may lack this one of its members
                self._paths[column] = _steps(source, file_schema) if is_there else None
                problem = self._problem(column, source, part)
                if problem is not None:
                    problems.append((column, problem))
                    continue
                stored = read_name(file_schema, source) if is_there else None
                if stored is not None:
                    reads[stored] = None
                as_field = field if name == column == source and len(parts) == 1 else None
                sources.append(_column_source(column, part, stored, file_schema, as_field))
        if problems:
            raise ColumnProblems(file_name, problems)
        self.read_columns: tuple[str, ...] = tuple(reads)
        self.sources = tuple(sources)
        # A number or raw tensor of just this type, without nulls, is canonical as it is.
        self._as_is = {
            name: column_of(name, field).arrow_type
            for _, _, parts in self._parts
            for name, field in parts
            if isinstance(field, Scalar | Tensor)
        }
        # Whether that goes for all there is to deliver, and which columns may have nulls all the same.
        self._is_as_is = all(source.is_as_stored for source in self.sources)
        self._nullable = [s.name for s in self.sources if s.field is not None and s.field.nullable]

    def _stored_parts(self, name: str, field: Field) -> tuple[tuple[str, Field], ...]:
        """Return the columns in which the files hold a field: a group as columns or packed, whatever `storage` says."""
        if isinstance(field, Group):
            whole = type_at(self._file_schema, name)
            has_members = any(type_at(self._file_schema, member) is not None for member in field.fields)
            if field.storage == "packed" and whole is None and has_members:
                return tuple(field.fields.items())
            is_packed = whole is not None and plain_type(whole) == pa.binary(field.width_bytes)
            if field.storage == "columns" and is_packed and not has_members:
                return ((name, field),)
        return tuple(parts_of(name, field))

    def _named(self, name: str, field: Field) -> str:
        """Return the first of a column's names that the file has, or else its own."""
        names: tuple[str, ...] = (name, *field.aliases)
        for candidate in names:
            if type_at(self._file_schema, candidate) is not None or candidate in self._partition_schema.names:
                return candidate
        return name

    def _problem(self, name: str, source: str, field: Field) -> str | None:
        """Return why the file cannot give a column; None if it can."""
        type_ = type_at(self._file_schema, source)
        if type_ is None and source in self._partition_schema.names:
            type_ = self._partition_schema.field(source).type
        if type_ is None:
            if getattr(field, "missing", None) is None:
                return (
                    f"there is no column {name!r}. "
                    f"{nearest(name, [*self._file_schema.names, *self._partition_schema.names])} "
                    "A field with missing=<value> reads files that lack it"
                )
            return None
        if isinstance(field, Group):
            if plain_type(type_) != pa.binary(field.width_bytes):
                return (
                    f"expected {pa.binary(field.width_bytes)} for the packed "
                    f"group, found {type_}; was the group written with other members?"
                )
            for member, part in field.members:
                stored = self._carried.get(member)
                if isinstance(part, Category) and stored is not None and stored.vocabulary != part.vocabulary:
                    return (
                        f"the packed group holds codes of member {member!r} in another vocabulary; "
                        "read it with the schema of the file"
                    )
        elif not accepts(type_, field):
            return f"the type {type_} cannot be read as {field!r}{_member_hint(name, type_, field)}"
        return None

    def decode(self, table: pa.Table, partitions: Mapping[str, pa.Scalar], origin: TableOrigin) -> pa.Table:
        """Return the canonical columns of a table of the files' columns, row for row.

        Raises:
            DataError: a value cannot be delivered; names file, row group, column, row and value.
        """
        return self.decode_without((), table, partitions, origin)

    def decode_without(
        self, placed: Collection[str], table: pa.Table, partitions: Mapping[str, pa.Scalar], origin: TableOrigin
    ) -> pa.Table:
        """Return what `decode` does, but for columns that stayed in the file, which the table lacks.

        Raises:
            DataError: a value cannot be delivered; names file, row group, column, row and value.
        """
        if self._is_as_is and not placed and not any(table.column(name).null_count for name in self._nullable):
            names = self._arrow_schema.names
            columns = table.columns if table.column_names == names else [table.column(name) for name in names]
            return pa.Table.from_arrays(columns, schema=self._arrow_schema)
        positions = {name: number for number, name in enumerate(table.column_names)}
        done: list[pa.ChunkedArray] = []
        for own_name, field, parts in self._parts:
            if own_name in placed:
                continue
            masked = own_name in self._masked
            arrays, masks = [], []
            for name, part in parts:
                array = self._source(table, positions, name, part, partitions)
                arrays.append(self._converted(array, name, part, origin))
                if masked:
                    masks.extend([validity(array)] * (len(part.members) if isinstance(part, Group) else 1))
            if isinstance(field, Group) and not isinstance(parts[0][1], Group):
                done.append(matrix(arrays, field.dtype))
                done.extend([matrix(masks, np.dtype(np.uint8))] if masks else [])
            else:
                done.extend(arrays)
                done.extend([matrix(masks, np.dtype(np.uint8))] if isinstance(field, Group) and masks else masks)
        if not placed:
            return pa.Table.from_arrays(done, schema=self._arrow_schema)
        return pa.Table.from_arrays(done, schema=pa.schema([f for f in self._arrow_schema if f.name not in placed]))

    def _converted(self, array: pa.ChunkedArray, name: str, field: Field, origin: TableOrigin) -> pa.ChunkedArray:
        if isinstance(field, Group) and array.null_count:
            row = origin.first_row + pc.index(pc.is_null(array), True).as_py()
            raise DataError(f"{origin.name}, column {name!r}, row {row}: is null; packed groups hold no nulls")
        if isinstance(field, Group) or (array.type == self._as_is.get(name) and not array.null_count):
            return array
        try:
            return convert(self._words(array, name, field), field)
        except NullProblem as problem:
            row = "" if problem.row is None else f", row {origin.first_row + problem.row}"
            raise NullError(f"{origin.name}, column {name!r}{row}: {problem.reason}", name) from None
        except ValueProblem as problem:
            row = "" if problem.row is None else f", row {origin.first_row + problem.row}"
            raise DataError(f"{origin.name}, column {name!r}{row}: {problem.reason}") from None
        except MemoryError:
            raise  # memory that ran out says nothing about the data
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"{origin.name}, column {name!r}: {array.type} cannot be read as {field!r}: {error}"
            ) from error

    def _words(self, array: pa.ChunkedArray, name: str, field: Field) -> pa.ChunkedArray:
        """Return a category's codes as words, unless the codes mean the same words in the file as here."""
        stored = self._carried.get(self._sources[name])
        if not isinstance(field, Category) or stored is None or not pa.types.is_integer(array.type):
            return array
        is_same = stored.vocabulary == field.vocabulary and not field.is_integer
        return array if is_same or stored.storage != "codes" else coded_words(array, stored)

    def _source(
        self,
        table: pa.Table,
        positions: Mapping[str, int],
        name: str,
        field: Field,
        partitions: Mapping[str, pa.Scalar],
    ) -> pa.ChunkedArray:
        path = self._paths[name]
        if path is not None:
            array = table.column(positions[path[0]])
            if isinstance(field, Category) and not path[1]:
                array = without_extensions(array)
                if pa.types.is_dictionary(array.type) and not any(c.dictionary.null_count for c in array.chunks):
                    return array
            array = plain(array)
            return _descend(array, path[1]) if path[1] else array
        value = partitions.get(self._sources[name])
        if value is None:
            value = _missing_value(field)
        return plain(pa.chunked_array([pa.repeat(value, len(table))]))


def _member_hint(name: str, type_: pa.DataType, field: Field) -> str:
    """Return which member of a struct could be meant, such as the bytes of Hugging Face's images."""
    members = {m.name: m.type for m in type_ if not pa.types.is_null(m.type)} if pa.types.is_struct(type_) else {}
    meant = next((member for member, inner in members.items() if accepts(inner, field)), None)
    return "" if meant is None else f"; name its member instead: {f'{name}.{meant}'!r}"


def _missing_value(field: Field) -> pa.Scalar:
    """Return the value that stands in files without the column, in a type that `convert` takes."""
    assert not isinstance(field, Group)
    missing = field.missing
    # Arrow takes every int for an int64, unless told otherwise.
    number = pa.uint64() if isinstance(missing, int) and missing >= 2**63 else None
    if isinstance(field, Category):
        return pa.scalar(missing, field.word_type)
    if isinstance(field, Scalar):
        return (
            pa.scalar(missing, field.arrow_type) if not isinstance(missing, int | float) else pa.scalar(missing, number)
        )
    if hasattr(field, "shape") and hasattr(field, "size"):
        return pa.scalar([missing] * field.size, None if number is None else pa.list_(number))
    return pa.scalar(list(missing) if isinstance(missing, tuple) else missing, field.arrow_type)


def _carried_categories(schema: Schema, file_schema: pa.Schema) -> dict[str, Category]:
    """Return the categories of the schema that a file carries, by stored column, if categories are read at all."""

    def categories(fields: Mapping[str, Field]) -> dict[str, Category]:
        found = {name: field for name, field in fields.items() if isinstance(field, Category)}
        for field in fields.values():
            if isinstance(field, Group):
                found |= {name: part for name, part in field.members if isinstance(part, Category)}
        return found

    if not categories(schema) or METADATA_KEY not in (file_schema.metadata or {}):
        return {}
    return categories(Schema.from_arrow(file_schema))


def _column_source(
    column: str, part: Field, stored: str | None, file_schema: pa.Schema, field: Field | None
) -> ColumnSource:
    """Return where a field's part comes from.

    Args:
        column: The part's name.
        part: What it is.
        stored: The name passed to the Parquet reader, or None.
        file_schema: The Arrow schema of the files.
        field: The field, if it is all in one column of the file that has its name.
    """
    is_top = stored is not None and "." not in stored and len(file_schema.get_all_field_indices(stored)) == 1
    own = file_schema.field(stored) if is_top else None
    if own is None or not isinstance(part, Category):
        is_fixed = isinstance(field, Scalar | Tensor | Group) and policy_of(field) != "mask"
        return ColumnSource(column, stored, own, column_of(column, field) if field is not None and is_fixed else None)
    # Words may arrive as positions in a dictionary, so that each is looked up once.
    is_text = own.type in (pa.string(), pa.large_string())
    return ColumnSource(column, stored, own, words=len(part.vocabulary) if is_text else 0)


def parts_of(name: str, field: Field) -> Iterable[tuple[str, Field]]:
    """Return the stored columns of a field: its own, or those of a group's members."""
    if isinstance(field, Group) and field.storage == "columns":
        members: Iterable[tuple[str, Field]] = field.members
        return members
    return ((name, field),)


def _steps(name: str, parent: pa.Schema | pa.StructType) -> tuple[str, str] | None:
    """Split a dotted name into a column that is there, the one with the longest name, and the rest."""
    first = name
    while not parent.get_all_field_indices(first):
        first, dot, _ = first.rpartition(".")
        if not dot:
            return None
    return first, name[len(first) + 1 :]


def _inner(type_: pa.DataType) -> tuple[pa.DataType, bool]:
    """Return the struct behind lists and maps, and whether there were any."""
    type_, listed = plain_type(type_), False
    while is_list_like(type_) or pa.types.is_map(type_):
        listed = True
        if pa.types.is_map(type_):
            return pa.struct([("key", type_.key_type), ("value", type_.item_type)]), True
        type_ = plain_type(type_.value_type)
    return type_, listed


def type_at(schema: pa.Schema | pa.StructType, name: str) -> pa.DataType | None:
    """Return the type of a column by dotted name, lists of it where it lies in a list; None if it is not there."""
    step = _steps(name, schema)
    if step is None:
        return None
    first, rest = step
    type_ = schema.field(first).type
    if not rest:
        return type_
    inner, listed = _inner(type_)
    if not pa.types.is_struct(inner):
        return None
    found = type_at(inner, rest)
    return pa.list_(found) if listed and found is not None else found


def read_name(schema: pa.Schema, name: str) -> str:
    """Return what to ask the Parquet reader for: the dotted name as far as structs reach."""
    step = _steps(name, schema)
    if step is None:
        return name
    first, rest = step
    type_ = schema.field(first).type
    while rest and pa.types.is_struct(type_):
        inner = _steps(rest, type_)
        if inner is None:
            break
        first, type_, rest = f"{first}.{inner[0]}", type_.field(inner[0]).type, inner[1]
    return first


def _descend(array: pa.ChunkedArray, rest: str) -> pa.ChunkedArray:
    """Return what lies below a column: through structs, and through lists and maps as lists of their values."""
    if pa.types.is_struct(array.type):
        step = _steps(rest, array.type)
        assert step is not None
        inner = plain(_member(array, step[0]))
        return _descend(inner, step[1]) if step[1] else inner
    return _through_lists(array, lambda values: _descend(values, rest))


def _member(structs: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return one field of structs, null where these are."""
    if structs.null_count:
        return pc.struct_field(structs, name)
    # Arrow's own function takes each struct apart as a whole, every time.
    number = structs.type.get_all_field_indices(name)[0]
    return pa.chunked_array([chunk.field(number) for chunk in structs.chunks], structs.type.field(number).type)


def _through_lists(array: pa.ChunkedArray, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.ChunkedArray:
    """Apply a change to the values of lists or maps, keeping which rows are null."""
    chunks: list[pa.Array] = []
    for chunk in array.chunks or [pa.array([], array.type)]:
        lists = chunk
        if pa.types.is_map(chunk.type):
            pairs = pa.struct([("key", chunk.type.key_type), ("value", chunk.type.item_type)])
            lists = chunk.cast(pa.list_(pairs)) if len(chunk) else pa.array([], pa.list_(pairs))
        lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
        changed = change(plain(pa.chunked_array([lists.flatten()])))
        values = pa.concat_arrays(changed.chunks) if changed.num_chunks else pa.array([], changed.type)
        mask = lists.is_null() if lists.null_count else None
        chunks.append(pa.LargeListArray.from_arrays(offsets, values, mask=mask))
    return pa.chunked_array(chunks)
