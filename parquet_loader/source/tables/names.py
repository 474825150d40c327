"""Renames the columns of a data file to those of its table, by changing the file's footer.

The footer is parsed after that, so later stages do not know the names in the file. Columns that the table lacks, or
finds in another column of the file, get hidden names, which no column of a table has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parquet_loader.errors import SourceError
from parquet_loader.source.file_schema import LENGTH_AND_MARK_BYTES, MARK, SchemaElement, schema_tree
from parquet_loader.source.metadata import footer_numbers

_HIDDEN = "\0"


@dataclass(frozen=True, slots=True)
class ColumnName:
    """The names of a column of a table, or of a part of one, in the table and in files.

    Attributes:
        name: The name in the table.
        stored: Names in files; the first that a file has counts.
        field_id: The Parquet field id in files, or None.
        kind: Whether it has parts.
        members: Its parts: members of a struct, the element of a list, the key and the value of a map.
    """

    name: str
    stored: tuple[str, ...]
    field_id: int | None = None
    kind: Literal["leaf", "struct", "list", "map"] = "leaf"
    members: tuple[ColumnName, ...] = ()

    def to_json(self) -> list[Any]:
        """Return it as plain values."""
        return [self.name, list(self.stored), self.field_id, self.kind, [m.to_json() for m in self.members]]

    @classmethod
    def from_json(cls, found: list[Any]) -> ColumnName:
        """Make one from the result of `to_json`."""
        name, stored, field_id, kind, members = found
        return cls(name, tuple(stored), field_id, kind, tuple(map(cls.from_json, members)))


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a table's columns in its files.

    Attributes:
        columns: The columns.
        by_id: Whether columns are found by their field ids.
        names_without_ids: Whether columns are found by name in a file without field ids. Otherwise such a file is
            refused.
    """

    columns: tuple[ColumnName, ...]
    by_id: bool = False
    names_without_ids: bool = False

    def to_json(self) -> list[Any]:
        """Return it as plain values."""
        return [[column.to_json() for column in self.columns], self.by_id, self.names_without_ids]

    @classmethod
    def from_json(cls, found: list[Any]) -> Names:
        """Undo `to_json`."""
        columns, by_id, names_without_ids = found
        return cls(tuple(map(ColumnName.from_json, columns)), by_id, names_without_ids)


def is_hidden_name(name: str) -> bool:
    """Whether this name hides a column that the table does not have."""
    return name.startswith(_HIDDEN)


class FooterNames:
    """Changes the names in footers. Any thread may use it.

    Args:
        names: The names in the table and in files.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self._known: dict[bytes, bytes] = {}  # renamed schema by the schema in a footer; a table has few

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cached schemas."""
        return FooterNames, (self.names,)

    def renamed(self, raw: bytes, file_name: str) -> bytes:
        """Return a footer, with its length and magic bytes, in which columns have the names of the table.

        Raises:
            MetadataError, ThriftError: the footer is damaged.
            SourceError: columns are ambiguous; the message names the file.
        """
        start, stop = footer_numbers(raw, len(raw) - LENGTH_AND_MARK_BYTES).file[3:5]
        elements = raw[start:stop]
        changed = self._known.get(elements)
        if changed is None:
            changed = self._known[elements] = _renamed(elements, self.names, file_name)
        if changed == elements:
            return raw
        footer = raw[:start] + changed + raw[stop:-LENGTH_AND_MARK_BYTES]
        return footer + len(footer).to_bytes(4, "little") + MARK


def _renamed(elements: bytes, names: Names, file_name: str) -> bytes:
    root = schema_tree(elements)
    by_id = names.by_id
    if by_id and not any(element.field_id is not None for element in _below(root)):
        if not names.names_without_ids:
            raise SourceError(
                f"{file_name}: the table finds columns by field ids, and this file has none; rewrite the file with the "
                "table's own writer"
            )
        by_id = False
    changes: list[tuple[tuple[int, int], str]] = []
    _rename_members(root.children, names.columns, by_id, file_name, changes)
    parts, done = list[bytes](), 0
    for (start, stop), name in sorted(changes):
        encoded = name.encode()
        parts += [elements[done:start], _varint(len(encoded)), encoded]
        done = stop
    return b"".join([*parts, elements[done:]])


def _rename_members(
    found: Sequence[SchemaElement],
    members: Sequence[ColumnName],
    by_id: bool,
    file_name: str,
    changes: list[tuple[tuple[int, int], str]],
) -> None:
    """Rename the elements of one level: each column of the table once, all others to hidden names."""
    matched: dict[int, ColumnName] = {}
    for member in members:
        element = _match(found, member, by_id, file_name)
        if element is None:
            continue
        if element.number in matched:
            other = matched[element.number].name
            raise SourceError(
                f"{file_name}: the table finds the columns {other!r} and {member.name!r} in the same column "
                f"{element.name!r} of this file; repair the table's metadata"
            )
        matched[element.number] = member
    for element in found:
        column = matched.get(element.number)
        if column is None:
            _check_case(element, members, matched, by_id, file_name)
            changes.append((element.name_span, f"{_HIDDEN}{element.number}"))
            continue
        if element.name != column.name:
            changes.append((element.name_span, column.name))
        _rename_parts(element, column, by_id, file_name, changes)


def _rename_parts(
    element: SchemaElement, column: ColumnName, by_id: bool, file_name: str, changes: list[tuple[tuple[int, int], str]]
) -> None:
    if column.kind == "struct":
        _rename_members(element.children, column.members, by_id, file_name, changes)
    elif column.kind == "list" and column.members:
        inner = _list_element(element)
        if inner is not None:
            _rename_parts(inner, column.members[0], by_id, file_name, changes)
    elif column.kind == "map" and len(element.children) == 1 and column.members:
        for part, known in zip(element.children[0].children, column.members, strict=False):
            _rename_parts(part, known, by_id, file_name, changes)


def _list_element(element: SchemaElement) -> SchemaElement | None:
    """Return the element of a list's values, by the format's rules for lists of old and new writers."""
    if len(element.children) != 1:
        return element if element.is_repeated and element.children else None
    repeated = element.children[0]
    if not repeated.is_repeated:
        return element if element.is_repeated else None
    is_struct = repeated.name in ("array", f"{element.name}_tuple")
    return repeated.children[0] if len(repeated.children) == 1 and not is_struct else repeated


def _match(found: Sequence[SchemaElement], member: ColumnName, by_id: bool, file_name: str) -> SchemaElement | None:
    if by_id:
        matches = [e for e in found if e.field_id is not None and e.field_id == member.field_id]
        what = f"the field id {member.field_id}"
    else:
        name = next((name for name in member.stored if any(e.name == name for e in found)), None)
        matches = [e for e in found if e.name == name]
        what = f"the name {name!r}"
    if len(matches) > 1:
        raise SourceError(f"{file_name}: {len(matches)} columns have {what}; rewrite the file")
    return matches[0] if matches else None


def _check_case(
    element: SchemaElement, members: Sequence[ColumnName], matched: dict[int, ColumnName], by_id: bool, file_name: str
) -> None:
    """Refuse a column whose name differs only in case from one that the file lacks, because readers differ about it."""
    if by_id:
        return
    there = {column.name for column in matched.values()}
    for member in members:
        if member.name not in there and element.name.casefold() in (name.casefold() for name in member.stored):
            raise SourceError(
                f"{file_name}: the column {element.name!r} is called {member.stored[0]!r} in the table, and readers "
                "differ about names that differ in case; rewrite the file with the table's name"
            )


def _below(element: SchemaElement) -> Iterator[SchemaElement]:
    left = list(element.children)
    while left:
        one = left.pop()
        yield one
        left.extend(one.children)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
