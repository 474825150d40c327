"""Parses the schema in a footer: its tree, the Arrow schema that pyarrow derives, and the keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.schema import is_file_reference, nodes
from parquet_loader.source.arrow_schema import arrow_schema_of
from parquet_loader.source.thrift import BINARY, I32, STRUCT, CompactReader

# The footer is followed by its length and the format's magic bytes.
LENGTH_AND_MARK_BYTES = 8
MARK = b"PAR1"

_MOST_NESTED = 100
_REQUIRED, _REPEATED = 0, 2
# Field numbers of a schema element.
_REPETITION, _NAME, _CHILDREN, _FIELD_ID, _ANNOTATION = 3, 4, 5, 9, 10
# GEOGRAPHY, the latest annotation that pyarrow knows.
_LAST_KNOWN_ANNOTATION = 18


class MetadataError(ValueError):
    """A footer is damaged, or needs a feature that is not supported."""


class Leaf(NamedTuple):
    """A leaf column of a file's schema.

    Attributes:
        path: Names from the root, joined by dots.
        physical_type: One of `PHYSICAL_TYPES`.
        length: Bytes of a value of the type FIXED_LEN_BYTE_ARRAY.
        max_definition_level, max_repetition_level: As in the format.
        element_level: The definition level from which on a value is an element of the innermost list; 0 without lists.
    """

    path: str
    physical_type: str
    length: int
    max_definition_level: int
    max_repetition_level: int
    element_level: int


@dataclass(slots=True)
class SchemaElement:
    """An element of a file's schema.

    Attributes:
        number: Its number in the list.
        children: The elements below it.
        name: Its name.
        span: Its first and last offset in the bytes of the list.
        name_span: The offsets of its name, with the length before it.
        children_span: The offsets of its number of children.
        field_id: Its field id, or None.
        is_required, is_repeated: Whether its repetition type is REQUIRED, or REPEATED.
        annotation: The format's number of its logical type, or None without one.
        annotation_span: The offsets of the field with the logical type.
        annotation_step: The difference between the number of that field and that of the field before it.
    """

    number: int
    children: list[SchemaElement]
    name: str = ""
    span: tuple[int, int] = (0, 0)
    name_span: tuple[int, int] = (0, 0)
    children_span: tuple[int, int] = (0, 0)
    field_id: int | None = None
    is_required: bool = False
    is_repeated: bool = False
    annotation: int | None = None
    annotation_span: tuple[int, int] = (0, 0)
    annotation_step: int = 0


class FileSchema(NamedTuple):
    """A file's schema.

    Attributes:
        arrow: The Arrow schema, with the footer's keys and values as metadata.
        stored: The Arrow schema by the types of the format alone, without the keys and values.
        parquet: pyarrow's object of the schema.
        leaves: Its leaf columns.
        paths: Their paths.
        names: The dotted names of their values in a batch; they leave out the levels of lists, which writers call
            differently.
        elements: The bytes of the footer's list of schema elements.
        key_values: The footer's keys and values.
    """

    arrow: pa.Schema
    stored: pa.Schema
    parquet: pq.ParquetSchema
    leaves: tuple[Leaf, ...]
    paths: tuple[str, ...]
    names: tuple[str, ...]
    elements: bytes
    key_values: dict[bytes, bytes]


@lru_cache(maxsize=32)
def without_later_annotations(elements: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Remove the logical types of groups that pyarrow refuses; return the schema, and the columns that had one.

    pyarrow cannot open a file in which a group has a logical type that it does not know, although the format says that
    readers ignore such types. Columns of FILE, of release 2.14, are not returned: such a group is read as a struct, and
    the names of its members identify it.

    Args:
        elements: The bytes of a footer's list of schema elements.

    Raises:
        MetadataError, ThriftError: the bytes are not a schema.
    """
    parts, done, refused = list[bytes](), 0, list[str]()
    for column in schema_tree(elements).children:
        for group in _groups(column):
            if group.annotation is None or group.annotation <= _LAST_KNOWN_ANNOTATION:
                continue
            start, stop = group.annotation_span
            parts.append(elements[done:start])
            done = stop
            head = elements[stop]
            if head >> 4:  # the next field states its number as a difference to the removed one
                step = (head >> 4) + group.annotation_step
                # A difference over 15 is replaced by the number itself, doubled, because the lowest bit is the sign.
                number = 2 * (_ANNOTATION + (head >> 4))
                parts.append(bytes([step << 4 | head & 15] if 0 < step < 16 else [head & 15, number]))
                done += 1
            if not is_file_reference({child.name for child in group.children}):
                refused.append(column.name)
    return b"".join([*parts, elements[done:]]), tuple(dict.fromkeys(refused))


def _groups(element: SchemaElement) -> Iterator[SchemaElement]:
    """Yield the elements with children, from this one down, in the order of the list."""
    if element.children:
        yield element
        for child in element.children:
            yield from _groups(child)


@lru_cache(maxsize=32)
def file_schema(elements: bytes, key_values: bytes, refused: tuple[str, ...] = ()) -> FileSchema:
    """Parse a schema. It is cached, because most files of a data set have the same one.

    Args:
        elements: The bytes of a footer's list of schema elements.
        key_values: The bytes of its list of keys and values.
        refused: Columns whose unknown annotations were removed from `elements`.

    Raises:
        MetadataError, ValueError, pyarrow.ArrowException, OSError: the bytes are not a schema.
    """
    root = schema_tree(elements)
    # A footer of no rows with this schema: version 2, the elements, no rows, no row groups, the keys and values.
    footer = b"\x15\x04\x19" + elements + b"\x16\x00\x19\x0c" + (b"\x19" + key_values if key_values else b"") + b"\x00"
    raw = MARK + footer + len(footer).to_bytes(4, "little") + MARK
    parquet = pq.ParquetSchema(pq.read_metadata(pa.BufferReader(raw)))
    columns = [parquet.column(number) for number in range(len(parquet))]
    leaves = tuple(
        Leaf(c.path, c.physical_type, c.length, c.max_definition_level, c.max_repetition_level, level)
        for c, level in zip(columns, _element_levels(root, 0, 0), strict=True)
    )
    arrow = arrow_schema_of(parquet, refused)
    stored = file_schema(elements, b"", refused).arrow if key_values else arrow
    paths = tuple(leaf.path for leaf in leaves)
    named = (name for f in stored for name, type_ in nodes(f.type, f.name) if not pa.types.is_nested(type_))
    names = tuple(name for name, _ in zip(named, paths, strict=True))
    return FileSchema(arrow, stored, parquet, leaves, paths, names, elements, _read_key_values(key_values))


def schema_tree(elements: bytes) -> SchemaElement:
    """Return the root of a schema, after checking that it is a tree, and not too deep for recursive parsers.

    Raises:
        MetadataError, ThriftError: it is not such a tree.
    """
    reader = CompactReader(elements)
    count = reader.count(STRUCT)
    above: list[SchemaElement] = []
    left = [1]  # elements that each level still lacks
    for number in range(count):
        element, children = _element(reader, elements, number)
        if not 0 <= children < count - number:
            raise MetadataError(f"element {number} of the schema claims {children} children, of {count} elements")
        while left and not left[-1]:
            left.pop()
        if not left:
            raise MetadataError(f"the schema ends before element {number} of {count}")
        left[-1] -= 1
        left.append(children)
        if len(left) > _MOST_NESTED:
            raise MetadataError(f"the schema is nested more than {_MOST_NESTED} deep")
        above[len(left) - 2 :] = [element]
        if number:
            above[-2].children.append(element)
    if any(left):
        raise MetadataError("the schema ends early")
    return above[0]


def _element_levels(element: SchemaElement, level: int, of_element: int) -> Iterator[int]:
    """Yield `Leaf.element_level` of each leaf below an element.

    Args:
        element: The element.
        level: Its own definition level.
        of_element: The definition level of elements of the innermost list around it, or 0.
    """
    for child in element.children:
        below = level if child.is_required else level + 1
        inner = below if child.is_repeated else of_element
        if child.children:
            yield from _element_levels(child, below, inner)
        else:
            yield inner


def _element(reader: CompactReader, elements: bytes, number: int) -> tuple[SchemaElement, int]:
    """Return an element, and its stated number of children."""
    element, children, first = SchemaElement(number, []), 0, reader.position
    before, end = 0, first  # the number of the previous field, and the offset of its end
    for field, kind in reader.fields():
        start = reader.position
        if (field, kind) == (_NAME, BINARY):
            begin, size = reader.span()
            element.name_span = start, begin + size
            element.name = elements[begin : begin + size].decode("utf-8", "replace")
        elif (field, kind) == (_ANNOTATION, STRUCT):
            for annotation, inner in reader.fields():
                element.annotation = annotation
                reader.skip(inner)
            element.annotation_span, element.annotation_step = (end, reader.position), field - before
        elif kind == I32 and field in (_REPETITION, _CHILDREN, _FIELD_ID):
            value = reader.number(I32)
            if field == _REPETITION:
                element.is_required, element.is_repeated = value == _REQUIRED, value == _REPEATED
            elif field == _CHILDREN:
                children, element.children_span = value, (start, reader.position)
            else:
                element.field_id = value
        else:
            reader.skip(kind)
        before, end = field, reader.position
    element.span = first, reader.position
    return element, children


def _read_key_values(data: bytes) -> dict[bytes, bytes]:
    found = dict[bytes, bytes]()
    reader = CompactReader(data)
    for _ in range(reader.count(STRUCT) if data else 0):
        texts = {1: b"", 2: b""}
        for field, kind in reader.fields():
            if field in texts and kind == BINARY:
                texts[field] = reader.binary()
            else:
                reader.skip(kind)
        found[texts[1]] = texts[2]
    return found
