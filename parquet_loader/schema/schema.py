"""`Schema`: named fields, shared by writing jobs and training scripts, and stored in the footers of files."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.errors import ConfigurationError, SchemaError, nearest
from parquet_loader.schema.base import FieldBase, describe
from parquet_loader.schema.features import class_names
from parquet_loader.schema.fields import Category, Field, Group, Scalar, companion_of, policy_of
from parquet_loader.schema.infer import heads, infer_columns
from parquet_loader.schema.json_form import dump_fields, load_fields

Extra: TypeAlias = Literal["refuse", "drop", "infer"]

METADATA_KEY = b"parquet_loader.schema"
"""Key of the JSON form in the metadata of an Arrow schema, and so in a Parquet footer."""


class Schema(Mapping[str, Field]):
    """Named fields in order; immutable, comparable and hashable (two NaN fills are equal, order counts).

    Args:
        fields: Field by the name under which it is delivered.
        extra: What to do with columns that the schema does not name. ``"refuse"``: writers refuse them, and loaders
            leave them out. ``"drop"``: writers leave them out too. ``"infer"``: loaders and writers infer their fields,
            so the schema needs only those columns whose field differs from the inferred one.

    Raises:
        SchemaError: a name is empty or not a str, two fields are stored under one column name, an alias is the name of
            another field, or the mask of a field (``<name>_valid``) would be delivered under the name of another.

    Example:
        >>> Schema({"image": Tensor("uint8", (28, 28)), "label": Scalar("int64")})
        Schema({
            'image': Tensor('uint8', (28, 28)),
            'label': Scalar('int64'),
        })
    """

    __slots__ = ("_extra", "_fields", "_json", "_stored")

    def __init__(self, fields: Mapping[str, FieldBase], extra: Extra = "refuse") -> None:
        if not isinstance(fields, Mapping):
            raise ConfigurationError(f"Schema: expected a mapping from name to field, not {fields!r:.80}")
        if extra not in ("refuse", "drop", "infer"):
            raise ConfigurationError(f"Schema: extra={extra!r:.80}; expected 'refuse', 'drop' or 'infer'")
        kept: dict[str, Field] = {}
        for name, field in fields.items():
            _check_name(name)
            if not isinstance(field, Field):
                raise ConfigurationError(
                    f"Schema: field {name!r} is {field!r:.80}; expected one of the field kinds, such as "
                    f"Scalar('float32') or Tensor('uint8', (28, 28))"
                )
            kept[name] = field
        self._fields = kept
        self._stored = _stored_columns(self._fields)
        _check_masks(self._fields)
        _check_aliases(self._fields)
        self._extra: Extra = extra
        self._json = dump_fields(self._fields, extra)

    @property
    def extra(self) -> Extra:
        """What to do with columns that the schema does not name."""
        return self._extra

    def __getitem__(self, name: str) -> Field:
        try:
            return self._fields[name]
        except KeyError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return self._json == other._json if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._json)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Schema.from_json, (self._json,)

    def __repr__(self) -> str:
        lines = []
        for name, field in self._fields.items():
            if isinstance(field, Group) and len(field.members) > 1:
                lines += _group_lines(name, field)
            else:
                lines.append(f"    {name!r}: {describe(field, most_words=8)},")
        end = "})" if self._extra == "refuse" else f"}}, extra={self._extra!r})"
        return "\n".join(["Schema({", *lines, end]) if lines else f"Schema({{{end}"

    def _repr_html_(self) -> str:
        """Return an HTML table of the fields for notebooks."""
        rows = "".join(
            f"<tr><td style='text-align: left'>{escape(name)}</td>"
            f"<td style='text-align: left'><code>{escape(describe(field, most_words=8))}</code></td></tr>"
            for name, field in self._fields.items()
        )
        return f"<table><tr><th>column</th><th>field</th></tr>{rows}</table>"

    def to_json(self) -> str:
        """Return the schema as JSON text with a format version; equal schemas give equal text."""
        return self._json

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        """Parse the text of `to_json`.

        Raises:
            SchemaError: the text is not a schema, or has an unknown version or kind of field.
        """
        return cls(*load_fields(text))

    def stored_columns(self) -> dict[str, pa.Field]:
        """Return the Arrow fields of a file by stored column name, in file order.

        A packed group is one column under the group's name; any other group is a column for each member.
        """
        return dict(self._stored)

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema of the files: not nullable if nulls are refused, with the JSON form as metadata."""
        carried = self._json if self._extra == "refuse" else dump_fields(self._fields)
        return pa.schema(self._stored.values(), metadata={METADATA_KEY: carried.encode("ascii")})

    def column_names(self) -> frozenset[str]:
        """Return all column names that belong to a field: names, aliases, and those of members of groups."""
        names: set[str] = set()
        for name, field in self._fields.items():
            names |= {name, *field.aliases}
            if isinstance(field, Group):
                names |= {other for member, part in field.members for other in (member, *part.aliases)}
        return frozenset(names)

    def over(self, inferred: Mapping[str, Field], order: Iterable[str]) -> Schema:
        """Return a schema of this schema's fields and the inferred ones, in the order of the columns.

        Args:
            inferred: Fields of columns that this schema does not name.
            order: Names of columns; the fields of other columns follow.
        """
        positions: dict[str, int] = {}
        for name in order:
            positions.setdefault(name, len(positions))

        def position(name: str) -> int:
            field = self._fields.get(name)
            own = () if field is None else (*field.aliases, *(field.fields if isinstance(field, Group) else ()))
            return min(positions.get(head, len(positions)) for other in (name, *own) for head in heads(other))

        fields: dict[str, Field] = {**inferred, **self._fields}
        return Schema({name: fields[name] for name in sorted(fields, key=position)})

    def as_stored(self, there: Mapping[str, Field]) -> Schema:
        """Return the same schema, with each category stored as in `there`: as words or as codes."""
        fields = {name: _stored_like(field, there.get(name)) for name, field in self._fields.items()}
        return Schema(fields, self._extra)

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """Return the schema in the metadata of an Arrow schema, or infer one by the documented rules.

        Raises:
            SchemaError: a column has a type that no tensor can hold, two columns share a name, or the schema in the
                metadata is not valid.
        """
        carried = (schema.metadata or {}).get(METADATA_KEY)
        if carried is not None:
            return cls.from_json(carried)
        return cls(infer_columns(schema))

    @classmethod
    def infer(
        cls,
        source: Any,
        *,
        nulls: Literal["mask", "fill"] | None = None,
        columns: Sequence[str] | None = None,
        filesystem: pafs.FileSystem | None = None,
    ) -> Schema:
        """Return the schema that a loader without one infers for a source, to be printed, changed and passed on.

        Args:
            source: As in `BatchedDataLoader`.
            nulls: The null policy of columns that have nulls by the files' statistics, or may have some because
                statistics are missing. ``"mask"`` delivers a mask, with 0 in the gaps. ``"fill"`` replaces nulls:
                NaN for floats, 0 for integers, False for bool, the lowest value for times (numpy's NaT), and the empty
                value for text, bytes and lists. None: as without a schema, NaN for floats, and an error for others.
            columns: Names of columns, as in `BatchedDataLoader`.
            filesystem: As in `BatchedDataLoader`.

        Raises:
            SourceError, SchemaError: as in `BatchedDataLoader`.
        """
        return _later().schema_of_source(source, nulls, columns, filesystem)  # type: ignore[no-any-return]

    @classmethod
    def from_frame(cls, frame: Any, *, nulls: Literal["mask", "fill"] | None = None) -> Schema:
        """Return the schema that writers without one infer for a frame, to be printed, changed and passed on.

        Args:
            frame: Any batch that `DatasetWriter.write` takes, except an iterator.
            nulls: The null policy of columns of this frame that have nulls, as in `infer`; NaN in a column of a pandas
                frame is a null. None: as without a schema.

        Raises:
            SchemaError: no field holds values of a column's kind.
        """
        return _later().schema_of_frame(frame, nulls)  # type: ignore[no-any-return]

    def select(self, names: Iterable[str]) -> Schema:
        """Return a schema of the named fields, in the order of `names`.

        Raises:
            SchemaError: a name is unknown or repeated.
        """
        if isinstance(names, str):
            raise ConfigurationError(f"select({names!r}): expected several names; for one give [{names!r}]")
        chosen: dict[str, Field] = {}
        for name in names:
            if name not in self._fields:
                raise SchemaError(f"column {name!r} is not in the schema. {nearest(str(name), self._fields)}")
            if name in chosen:
                raise SchemaError(f"column {name!r} is named twice")
            chosen[name] = self._fields[name]
        return Schema(chosen, self._extra)


def _later() -> Any:
    """Import the module that implements `infer` and `from_frame`, which itself imports this one."""
    return importlib.import_module("parquet_loader.dataset.inference")


def _stored_like(field: Field, there: Field | None) -> Field:
    if isinstance(field, Category) and isinstance(there, Category):
        return replace(field, storage=there.storage)
    if isinstance(field, Group) and isinstance(there, Group):
        members = there.fields
        parts = {name: _stored_like(part, members.get(name)) for name, part in field.members}
        return Group(parts, storage=field.storage)
    return field


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise SchemaError(f"a field's name is a non-empty str, not {name!r}")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise SchemaError(f"the name {name!r} cannot be written as UTF-8") from None


def _stored_columns(fields: Mapping[str, Field]) -> dict[str, pa.Field]:
    stored: dict[str, pa.Field] = {}
    owners: dict[str, str] = {}

    def add(column: str, type_: pa.DataType, nullable: bool, owner: str) -> None:
        if column in stored:
            raise SchemaError(f"column {column!r} is stored by both field {owners[column]!r} and field {owner!r}")
        stored[column] = pa.field(column, type_, nullable=nullable)
        owners[column] = owner

    for name, field in fields.items():
        if not isinstance(field, Group):
            add(name, field.arrow_type, policy_of(field) != "refuse", name)
        elif field.storage == "packed":
            if name in field.fields:
                raise SchemaError(f"group {name!r}: a packed group cannot have a member of its own name")
            add(name, pa.binary(field.width_bytes), False, name)
        else:
            for member, part in field.fields.items():
                _check_name(member)
                add(member, part.arrow_type, policy_of(part) != "refuse", name)
    return stored


def _check_masks(fields: Mapping[str, Field]) -> None:
    for name, field in fields.items():
        if policy_of(field) == "mask" and f"{name}_valid" in fields:
            raise SchemaError(
                f"field {name!r} has null='mask', so its mask is delivered as '{name}_valid', "
                "which is the name of another field; rename one of them"
            )
        companion = companion_of(name, field)
        if companion is not None and companion in fields:
            raise SchemaError(
                f"field {name!r}: {type(field).__name__} also delivers the column {companion!r}, "
                "which is the name of another field; rename one of them"
            )


def check_schema(schema: Any, *, is_optional: bool = True) -> None:
    """Check the `schema` argument of a writer.

    Raises:
        ConfigurationError: It is no `Schema`, nor None if it `is_optional`.
    """
    if isinstance(schema, Schema) or (is_optional and schema is None):
        return
    found, expected = " ".join(repr(schema).split()), "a Schema or None" if is_optional else "a Schema"
    example = "Schema({'x': Scalar('float32')})"
    raise ConfigurationError(f"schema={found:.60}: expected {expected}; make one by {example}")


def named_codes(schema: pa.Schema, name: str) -> dict[str, Category]:
    """Return the names that metadata give to the integers of a column, as its vocabulary; empty if they give none."""
    if METADATA_KEY in (schema.metadata or {}):
        fields = Schema.from_arrow(schema)
        members = [part for field in fields.values() if isinstance(field, Group) for part in field.members]
        stored = {**dict(members), **fields}.get(name)
        if isinstance(stored, Category):
            return {name: stored} if stored.storage == "codes" else {}
        names = tuple(stored.names) if isinstance(stored, Scalar) else ()
    else:
        names = class_names(schema, name)
    return {name: Category(names, storage="codes")} if names and len(set(names)) == len(names) else {}


def _check_aliases(fields: Mapping[str, Field]) -> None:
    owners = {member: name for name, field in fields.items() if isinstance(field, Group) for member in field.fields}
    owners |= {name: name for name in fields}
    parts = [(name, field) for name, field in fields.items() if not isinstance(field, Group)]
    parts += [part for field in fields.values() if isinstance(field, Group) for part in field.members]
    for name, field in parts:
        for alias in field.aliases:
            if owners.setdefault(alias, name) != name or (alias in fields and alias != name):
                raise SchemaError(f"field {name!r}: the alias {alias!r} belongs to field {owners[alias]!r} already")


def _group_lines(name: str, group: Group) -> list[str]:
    end = "" if group.storage == "columns" else f", storage={group.storage!r}"
    parts = [(member, describe(field, most_words=8)) for member, field in group.members]
    if len({text for _, text in parts}) == 1:
        return [f"    {name!r}: Group({[member for member, _ in parts]!r}, {parts[0][1]}{end}),"]
    inner = [f"        {member!r}: {text}," for member, text in parts]
    return [f"    {name!r}: Group({{", *inner, f"    }}{end}),"]
