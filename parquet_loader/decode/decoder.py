"""Decodes a file's Arrow columns to the schema's canonical columns, whatever their names and types in the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import fill_null, from_numpy, scalar
from parquet_loader.decode.columns import Column, column_of, columns_of, mask_of
from parquet_loader.decode.converters import (
    POLICIES,
    NullProblem,
    accepts,
    coded_words,
    convert,
    matrix,
    one_array,
    plain,
    validity,
    without_extensions,
)
from parquet_loader.decode.encoded_columns import ValueProblem
from parquet_loader.decode.native.decodable import is_known_list, stored_type
from parquet_loader.decode.native.vocabulary import Vocabulary
from parquet_loader.decode.routes import ColumnSource
from parquet_loader.errors import DataError, SchemaError, nearest
from parquet_loader.schema import (
    METADATA_KEY,
    Audio,
    Bytes,
    Category,
    Encoded,
    Field,
    Group,
    Image,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    Video,
    are_file_references,
    is_list_like,
    is_media,
    list_values,
    named_codes,
    plain_type,
    policy_of,
    raw_difference,
)
from parquet_loader.source import RowGroupRef

_ONLY_PATH = (
    " (it holds no bytes: perhaps only a path, because the file was written without them; "
    "Dataset.to_parquet and push_to_hub of `datasets` embed them)"
)


@dataclass(frozen=True, slots=True)
class TableOrigin:
    """The origin of a table, for messages.

    Attributes:
        row_group: The row group.
        first_row: The table's first row in the row group.
        is_filtered: Whether row numbers count only rows that pass the filter.
    """

    row_group: RowGroupRef
    first_row: int = 0
    is_filtered: bool = False

    @property
    def name(self) -> str:
        """The file and row group, for messages."""
        return self.row_group.name + (" (rows that pass the filter)" if self.is_filtered else "")


class NullError(DataError):
    """A null in a column whose field refuses nulls.

    Attributes:
        problem: The message without the remedy.
        column: The column.
    """

    def __init__(self, problem: str, column: str) -> None:
        super().__init__(f"{problem}; {POLICIES}")
        self.problem = problem
        self.column = column


class ColumnProblems(SchemaError):
    """Columns of a file that cannot be read as a schema says.

    Attributes:
        problems: The column and the reason of each.
    """

    def __init__(self, file_name: str, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(self.text(file_name, column, reason) for column, reason in problems))
        self.problems = tuple(problems)

    @staticmethod
    def text(where: str, column: str, reason: str) -> str:
        """Return a problem as a sentence."""
        return (
            f"{where}: {reason}" if reason.startswith("there is no column") else f"{where}, column {column!r}: {reason}"
        )


class Decoder:
    """Turns tables of the files of one Arrow schema into canonical tables. Immutable; any thread may use it.

    Args:
        schema: The schema of the delivered columns.
        file_schema: The Arrow schema of the files' own columns.
        partition_schema: Columns that come from directory names; a file's own column of that name comes first.
        file_name: A file of this schema, for messages.
        finds_ranges: Whether the reader provides the byte ranges of values that stay in the file; if not, the values
            are read.

    Attributes:
        columns: The canonical columns, in the order of delivery.
        ranges: The files' columns whose values stay in the file, by the name that `decode` expects for their ranges.
        vocabularies: The vocabularies of the codes that are delivered as numbers, as stored, by column.

    Raises:
        ColumnProblems: columns are missing, or their fields cannot take their types.
    """

    def __init__(
        self,
        schema: Schema,
        file_schema: pa.Schema,
        partition_schema: pa.Schema,
        file_name: str,
        *,
        finds_ranges: bool = False,
    ) -> None:
        if not finds_ranges:
            schema = _without_ranges(schema)
        self.ranges: dict[str, str] = {}
        self.vocabularies: dict[str, tuple[object, ...]] = {}
        self.columns: tuple[Column, ...] = columns_of(schema)
        self._file_schema = file_schema
        self._partition_schema = partition_schema
        self._arrow_schema = pa.schema([(c.name, c.arrow_type) for c in self.columns])
        self._paths: dict[str, tuple[str, str] | None] = {}
        reads: dict[str, None] = {}
        self._parts = [(name, field, self._stored_parts(name, field)) for name, field in schema.items()]
        self._masked = {name for name, field in schema.items() if policy_of(field) == "mask"}
        self._stored = _stored_schema(schema, file_schema)
        self._carried = _categories(self._stored)
        self._sources: dict[str, str] = {}  # for each column, its name in the file: its own or an alias
        sources: list[ColumnSource] = []
        problems: list[tuple[str, str]] = []
        for name, field, parts in self._parts:
            is_joined = self._is_joined(name, field, parts)
            for column, part in parts:
                source = self._sources[column] = self._named(column, part)
                exists = type_at(file_schema, source) is not None  # a struct may lack this member
                self._paths[column] = _steps(source, file_schema) if exists else None
                problem = self._problem(column, source, part)
                if problem is not None:
                    problems.append((column, problem))
                    continue
                if isinstance(part, Category) and not part.is_integer and source not in self._carried:
                    self._carried |= named_codes(file_schema, source)
                vocabularies = _vocabularies(part, self._stored.get(source, self._carried.get(source)))
                if vocabularies:
                    self.vocabularies[column] = vocabularies
                stored = read_name(file_schema, source) if exists else None
                if stored is not None and isinstance(part, Video) and part.ranges:
                    self.ranges[f"\0ranges {column}"] = stored
                    self._paths[column] = f"\0ranges {column}", ""
                    sources.append(ColumnSource(column, None, None))
                    continue
                if stored is not None:
                    reads[stored] = None
                as_field = field if name == column == source and len(parts) == 1 else None
                if is_joined and column == source:
                    as_field = part
                group = name if is_joined else ""
                sources.append(_column_source(column, part, stored, file_schema, as_field, group))
        if problems:
            raise ColumnProblems(file_name, problems)
        self.read_columns: tuple[str, ...] = tuple(reads)
        self.sources = tuple(sources)
        # The type of each number or raw tensor that is canonical already if it has no nulls.
        self._as_is = {
            name: column_of(name, field).arrow_type
            for _, _, parts in self._parts
            for name, field in parts
            if isinstance(field, Scalar | Tensor)
        }
        # Whether all columns without nulls are canonical already, and which columns may have nulls.
        self._is_as_is = all(source.is_as_stored for source in self.sources)
        self._nullable = [s.name for s in self.sources if s.field is not None and s.field.nullable]

    def _stored_parts(self, name: str, field: Field) -> tuple[tuple[str, Field], ...]:
        """Return the files' columns of a field; a group may be packed or not, whatever its `storage`."""
        if isinstance(field, Group):
            packed = type_at(self._file_schema, name)
            has_members = any(type_at(self._file_schema, member) is not None for member in field.fields)
            if field.storage == "packed" and packed is None and has_members:
                return tuple(field.fields.items())
            is_packed = packed is not None and plain_type(packed) == pa.binary(field.width_bytes)
            if field.storage == "columns" and is_packed and not has_members:
                return ((name, field),)
        return tuple(parts_of(name, field))

    def _is_joined(self, name: str, field: Field, parts: Sequence[tuple[str, Field]]) -> bool:
        """Whether a group's members may be decoded as they are, and interleaved."""
        if not isinstance(field, Group) or name in field.fields or name in self._masked:
            return False
        return all(isinstance(part, Scalar) for _, part in parts)

    def _named(self, name: str, field: Field) -> str:
        """Return the first of a column's names that the file has; its own if it has none of them."""
        names: tuple[str, ...] = (name, *field.aliases)
        for candidate in names:
            type_ = type_at(self._file_schema, candidate)
            if type_ is not None and _holds_bytes(field) and is_media(_inner(type_)[0]):
                return f"{candidate}.{'path' if _is_path(field) else 'bytes'}"
            if type_ is not None and _holds_bytes(field) and not _is_path(field) and are_file_references(type_):
                inline = f"{candidate}.inline"
                return candidate if type_at(self._file_schema, inline) is None else inline
            if type_ is not None or self._partition_type(candidate) is not None:
                return candidate
        return name

    def _partition_type(self, name: str) -> pa.DataType | None:
        """Return the type of a partition column, or of a part of one; None if there is no such column."""
        step = _steps(name, self._partition_schema)
        if step is None or step[0] in self._file_schema.names:
            return None
        return type_at(self._partition_schema, name)

    def _problem(self, name: str, source: str, field: Field) -> str | None:
        """Return why the file cannot provide a column; None if it can."""
        type_ = type_at(self._file_schema, source)
        type_ = self._partition_type(source) if type_ is None else type_
        if type_ is None:
            if getattr(field, "missing", None) is None:
                return (
                    f"there is no column {name!r}. "
                    f"{nearest(name, [*self._file_schema.names, *self._partition_schema.names])} "
                    "A field with missing=<value> reads files that lack it, "
                    "and one with aliases=<names> files with other names for it"
                )
            return None
        difference = raw_difference(self._stored.get(source), field, type_)
        if difference is not None:
            return (
                f"{difference}, and raw values cannot be converted; read the column as the file has it and convert it "
                "in transform=, or write the file again"
            )
        if isinstance(field, Group):
            if plain_type(type_) != pa.binary(field.width_bytes):
                return (
                    f"expected {pa.binary(field.width_bytes)} for the packed "
                    f"group, found {type_}; was the group written with other members?"
                )
        elif not accepts(type_, field):
            return f"the type {type_} cannot be read as {field!r}{_member_hint(name, type_, field)}"
        return None

    def decode(
        self,
        table: pa.Table,
        partitions: Mapping[str, pa.Scalar],
        origin: TableOrigin,
        deferred: Collection[str] = (),
    ) -> pa.Table:
        """Return the canonical columns of a table of the files' columns, row for row.

        Args:
            table: The files' columns, without the deferred ones.
            partitions: The values of the partition columns.
            origin: The origin of the table, for messages.
            deferred: Columns that are still in the file; the result lacks them.

        Raises:
            DataError: a value cannot be delivered; the message names file, row group, column, row and value.
        """
        if self._is_as_is and not deferred and not any(table.column(name).null_count for name in self._nullable):
            names = self._arrow_schema.names
            columns = table.columns if table.column_names == names else [table.column(name) for name in names]
            return pa.Table.from_arrays(columns, schema=self._arrow_schema)
        positions = {name: number for number, name in enumerate(table.column_names)}
        done: list[pa.ChunkedArray] = []
        for own_name, field, parts in self._parts:
            if own_name in deferred:
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
        if not deferred:
            return pa.Table.from_arrays(done, schema=self._arrow_schema)
        return pa.Table.from_arrays(done, schema=pa.schema([f for f in self._arrow_schema if f.name not in deferred]))

    def _converted(self, array: pa.ChunkedArray, name: str, field: Field, origin: TableOrigin) -> pa.ChunkedArray:
        if isinstance(field, Group) and array.null_count:
            row = origin.first_row + pc.index(pc.is_null(array), True).as_py()
            raise DataError(
                f"{origin.name}, column {name!r}, row {row}: is null; packed groups hold no nulls, so fill them when "
                "the file is written"
            )
        if isinstance(field, Group) or (array.type == self._as_is.get(name) and not array.null_count):
            return array
        try:
            return convert(self._words(array, name, field), field)
        except NullProblem as problem:
            row = "" if problem.row is None else f", row {origin.first_row + problem.row}"
            own = self._sources[name]
            only_path = _ONLY_PATH if own.endswith(".bytes") and own != name else ""
            raise NullError(f"{origin.name}, column {name!r}{row}: {problem.reason}{only_path}", name) from None
        except ValueProblem as problem:
            row = "" if problem.row is None else f", row {origin.first_row + problem.row}"
            raise DataError(f"{origin.name}, column {name!r}{row}: {problem.reason}") from None
        except MemoryError:
            raise  # a lack of memory does not mean that the data is wrong
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"{origin.name}, column {name!r}: {array.type} cannot be read as {field!r}: {error}"
            ) from error

    def _words(self, array: pa.ChunkedArray, name: str, field: Field) -> pa.ChunkedArray:
        """Return a category's codes as words, unless file and schema have the same vocabulary."""
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
        source = self._sources[name]
        value = partitions.get(source)
        if value is None:
            type_ = self._partition_type(source)  # a part of a column that is null
            value = _missing_value(field) if type_ is None else scalar(None, type_)
        if not value.is_valid:
            return plain(pa.chunked_array([pa.nulls(len(table), value.type)]))
        return plain(pa.chunked_array([pa.repeat(value, len(table))]))


def _without_ranges(schema: Schema) -> Schema:
    """Return a schema whose values are all read."""
    own = {name: replace(field, ranges=False) for name, field in schema.items() if isinstance(field, Video)}
    return Schema({**schema, **own}) if own else schema


def _holds_bytes(field: Field) -> bool:
    """Whether a field's values are bytes, perhaps in lists; includes media that are stored as paths."""
    while isinstance(field, RaggedList):
        field = field.item
    return isinstance(field, Bytes | Image | Audio | Video | Encoded)


def _is_path(field: Field) -> bool:
    """Whether a field's values are paths of files."""
    return isinstance(field, Image | Audio | Video) and field.storage == "path"


def _member_hint(name: str, type_: pa.DataType, field: Field) -> str:
    """Return the member of a struct that the field could read, such as the bytes of Hugging Face's images."""
    if are_file_references(type_):
        return "; storage='path' reads the files that it names" if isinstance(field, Image | Audio | Video) else ""
    members = {m.name: m.type for m in type_ if not pa.types.is_null(m.type)} if pa.types.is_struct(type_) else {}
    meant = next((member for member, inner in members.items() if accepts(inner, field)), None)
    return "" if meant is None else f"; name its member instead: {f'{name}.{meant}'!r}"


def _missing_value(field: Field) -> pa.Scalar:
    """Return the value for files that lack the column, in a type that `convert` takes."""
    assert not isinstance(field, Group)
    missing = field.missing
    # Arrow infers int64 for every int.
    number = pa.uint64() if isinstance(missing, int) and missing >= 2**63 else None
    if isinstance(field, Category):
        return pa.scalar(missing, field.word_type)
    if isinstance(field, Scalar):
        if isinstance(missing, int | float):
            return scalar(missing, number or {int: pa.int64(), float: pa.float64()}.get(type(missing)))
        return scalar(missing, field.arrow_type)
    if isinstance(field, Tensor):
        return pa.scalar([missing] * field.size, None if number is None else pa.list_(number))
    return scalar(list(missing) if isinstance(missing, tuple) else missing, field.arrow_type)


def _stored_schema(schema: Schema, file_schema: pa.Schema) -> Mapping[str, Field]:
    """Return the schema in a file's metadata if it says what bytes or codes mean that `schema` reads; else nothing."""
    carried = (file_schema.metadata or {}).get(METADATA_KEY, b"")
    is_needed = b'"Category"' in carried or any(
        isinstance(field, Category | Tensor | Group | RaggedList | Encoded) for field in schema.values()
    )
    return Schema.from_arrow(file_schema) if is_needed and carried else {}


def _vocabularies(field: Field, stored: Field | None) -> tuple[object, ...]:
    """Return the vocabularies of stored categories that `field` reads as numbers; None: the numbers are the words."""
    if isinstance(stored, Category) and isinstance(field, Scalar):
        return (stored.vocabulary if stored.storage == "codes" else None,)
    if isinstance(stored, Group) and isinstance(field, Tensor):
        return tuple(part.vocabulary for _, part in stored.members if isinstance(part, Category))
    return ()


def _categories(fields: Mapping[str, Field]) -> dict[str, Category]:
    """Return the categories among fields and members of groups, by stored column."""
    found = {name: field for name, field in fields.items() if isinstance(field, Category)}
    for field in fields.values():
        if isinstance(field, Group):
            found |= {name: part for name, part in field.members if isinstance(part, Category)}
    return found


def _column_source(
    column: str, part: Field, stored: str | None, file_schema: pa.Schema, field: Field | None, group: str
) -> ColumnSource:
    """Return the source of a field's column, or of one member of a group.

    Args:
        column: The name of the column or member.
        part: The field of the column or member.
        stored: The name to read, or None.
        file_schema: The Arrow schema of the files.
        field: The field or member, if one column of the file, of the same name, holds all of it; else None.
        group: See `ColumnSource`.
    """
    own = None if stored is None else _flat_field(file_schema, stored)
    if own is not None:
        own = own.with_type(stored_type(own.type))
    vocabulary, words = None, 0
    if isinstance(part, Category) and own is not None and own.type in (pa.string(), pa.large_string()):
        words = len(part.vocabulary)  # Arrow may deliver words as a dictionary; then each word is looked up once
        if field is not None and not part.is_integer:
            vocabulary = Vocabulary(part.words, -1 if part.unknown is None else part.code(part.unknown))
    is_looked_up = vocabulary is not None
    is_masked = field is not None and policy_of(field) == "mask"
    has_mask = is_masked and (is_looked_up or isinstance(field, Scalar | Text | Bytes))
    known = Scalar | Tensor | Group | Text | Bytes | RaggedList | Image | Audio | Video | Encoded
    is_plain = (is_looked_up or isinstance(field, known)) and is_masked == has_mask
    return ColumnSource(
        column,
        stored,
        own,
        column_of(column, field) if field is not None and is_plain else None,
        words=words,
        fill=_fill_of(field),
        refuses_nulls=field is not None and policy_of(field) == "refuse",
        type=field.type if isinstance(field, Scalar) else None,
        mask=mask_of(column, field).name if field is not None and has_mask else "",
        group=group,
        vocabulary=vocabulary,
    )


def _fill_of(field: Field | None) -> bytes | None:
    """Return the bytes of a row that replaces a null; None if nulls are refused, or rows are too wide."""
    if field is None or policy_of(field) == "refuse":
        return None
    if isinstance(field, Text | Bytes):
        return field.fill.encode() if isinstance(field.fill, str) else field.fill or b""
    if isinstance(field, Scalar | Category):
        value = field.fill if isinstance(field, Scalar) or field.fill is None else field.code(field.fill)
        return np.full(1, value or 0, field.dtype).tobytes()
    if isinstance(field, Tensor) and field.size * field.dtype.itemsize <= 8 and policy_of(field) == "fill":
        return np.full(field.size, field.fill, field.dtype).tobytes()
    return None


def parts_of(name: str, field: Field) -> Iterable[tuple[str, Field]]:
    """Return the stored columns of a field: its own, or those of a group's members."""
    if isinstance(field, Group) and field.storage == "columns":
        members: Iterable[tuple[str, Field]] = field.members
        return members
    return ((name, field),)


def _steps(name: str, parent: pa.Schema | pa.StructType) -> tuple[str, str] | None:
    """Split a dotted name into the existing column with the longest name, and the rest; None without such a column."""
    first = name
    while not parent.get_all_field_indices(first):
        first, dot, _ = first.rpartition(".")
        if not dot:
            return None
    return first, name[len(first) + 1 :]


def _flat_field(schema: pa.Schema, name: str) -> pa.Field | None:
    """Return a top-level column, or a member of structs that is a list of numbers or not nested.

    Returns:
        For a number in a list of structs, a list of numbers. None if `name` leads elsewhere.
    """
    if "." not in name:
        return schema.field(name) if len(schema.get_all_field_indices(name)) == 1 else None
    parent, step, is_in_list = schema, _steps(name, schema), False
    while step is not None and len(parent.get_all_field_indices(step[0])) == 1:
        type_ = parent.field(step[0]).type
        if not step[1]:
            stored = pa.list_(parent.field(step[0])) if is_in_list else stored_type(type_)
            is_nested = pa.types.is_nested(stored) and not is_known_list(stored)
            return None if parent is schema or is_nested else pa.field(name, stored if is_in_list else type_)
        if not is_in_list and (pa.types.is_list(type_) or pa.types.is_large_list(type_)):
            type_, is_in_list = type_.value_type, True
        if not pa.types.is_struct(type_):
            return None
        parent, step = type_, _steps(step[1], type_)
    return None


def _inner(type_: pa.DataType) -> tuple[pa.DataType, int]:
    """Return the first type within nested lists that is not a list, pairs for a map, and the number of lists."""
    type_, lists = plain_type(type_), 0
    while is_list_like(type_):
        type_, lists = plain_type(type_.value_type), lists + 1
    if pa.types.is_map(type_):
        return pa.struct([("key", type_.key_type), ("value", type_.item_type)]), lists + 1
    return type_, lists


def type_at(schema: pa.Schema | pa.StructType, name: str) -> pa.DataType | None:
    """Return the type of a column by dotted name, in the lists around it; None if there is no such column."""
    step = _steps(name, schema)
    if step is None:
        return None
    first, rest = step
    type_ = schema.field(first).type
    if not rest:
        return type_
    inner, lists = _inner(type_)
    if not pa.types.is_struct(inner):
        return None
    found = type_at(inner, rest)
    for _ in range(lists if found is not None else 0):
        found = pa.list_(found)
    return found


def read_name(schema: pa.Schema, name: str, *, enters_lists: bool = True) -> str:
    """Return the name to read for a column: the part of its dotted name that leads through structs, and lists of them.

    Maps are read as a whole, because the members of a part of one have the names that its writer chose.

    Args:
        schema: The Arrow schema of the file.
        name: The dotted name.
        enters_lists: Whether the name may lead through lists.
    """
    step = _steps(name, schema)
    if step is None:
        return name
    first, rest = step
    type_ = schema.field(first).type
    while rest:
        while enters_lists and is_list_like(type_):
            type_ = type_.value_type
        inner = _steps(rest, type_) if pa.types.is_struct(type_) else None
        if inner is None:
            break
        first, type_, rest = f"{first}.{inner[0]}", type_.field(inner[0]).type, inner[1]
    return first


def _descend(array: pa.ChunkedArray, rest: str) -> pa.ChunkedArray:
    """Return a column inside another one: through structs, and through lists and maps as lists of their values."""
    if pa.types.is_struct(array.type):
        step = _steps(rest, array.type)
        assert step is not None
        inner = plain(_member(array, step[0]))
        return _descend(inner, step[1]) if step[1] else inner
    return _through_lists(array, lambda values: _descend(values, rest))


def _member(structs: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return one field of structs, null if the struct is."""
    if structs.null_count:
        return pc.struct_field(structs, name)
    # Arrow's own function flattens all fields of the struct on every call.
    number = structs.type.get_all_field_indices(name)[0]
    return pa.chunked_array([chunk.field(number) for chunk in structs.chunks], structs.type.field(number).type)


def _through_lists(array: pa.ChunkedArray, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.ChunkedArray:
    """Apply a change to the values of lists or maps; null rows stay null."""
    chunks: list[pa.Array] = []
    for chunk in array.chunks or [pa.nulls(0, array.type)]:
        lists = chunk
        if pa.types.is_map(chunk.type):
            pairs = pa.struct([("key", chunk.type.key_type), ("value", chunk.type.item_type)])
            lists = chunk.cast(pa.list_(pairs)) if len(chunk) else pa.nulls(0, pa.list_(pairs))
        lengths = fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
        offsets = pa.concat_arrays([from_numpy(np.zeros(1, np.int64)), pc.cumulative_sum(lengths)])
        values = one_array(change(plain(pa.chunked_array([list_values(lists)]))))
        mask = lists.is_null() if lists.null_count else None
        chunks.append(pa.LargeListArray.from_arrays(offsets, values, mask=mask))
    return pa.chunked_array(chunks)
