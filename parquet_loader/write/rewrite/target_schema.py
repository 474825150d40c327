"""The schema of the new files: the source's fields, lists of one length as raw tensors, packed groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from parquet_loader.errors import ConfigurationError, SchemaError, nearest
from parquet_loader.schema import Category, Field, Group, RaggedList, Scalar, Schema, Tensor, lenient, policy_of
from parquet_loader.write.rewrite.stored_columns import Facts, Target

Pack: TypeAlias = Mapping[str, Sequence[str]] | bool | None


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of the source.

    Attributes:
        found: The fields by the files' own types, or the given schema.
        chosen: The same, with lists of one length as tensors.
        declared: Fields of a given schema, or of a schema in the files; they are stored as declared.
        is_given: Whether the schema was given; then fields without a policy for nulls refuse them.
    """

    found: Schema
    chosen: Schema
    declared: frozenset[str]
    is_given: bool

    def readable(self, schema: Schema) -> Schema:
        """Return a schema with which a loader can read the source, even if fields without a policy have nulls."""
        return schema if self.is_given else Schema({name: _readable(kind) for name, kind in schema.items()})


def make_target(given: Fields, pack: Pack, facts: Facts) -> Target:
    """Return the form of the new files.

    Args:
        given: The fields of the source.
        pack: As in `rewrite_dataset`.
        facts: The known facts about the data.
    """
    fields: dict[str, Field] = {}
    even: set[str] = set()
    for name, kind in given.chosen.items():
        fields[name] = kind
        if name in given.declared or not isinstance(kind, Tensor):
            continue
        if name in facts.uneven:
            fields[name] = given.found[name]
            continue
        if isinstance(given.found[name], RaggedList):
            even.add(name)
        fields[name] = replace(kind, storage="raw")
    schema = Schema(_packed(fields, pack, facts))
    return Target(schema, frozenset() if given.is_given else frozenset(schema), frozenset(even))


def _readable(kind: Field) -> Field:
    if isinstance(kind, Tensor) and policy_of(kind) == "refuse":
        return replace(kind, fill=0)
    return lenient(kind)


def _packed(fields: dict[str, Field], pack: Pack, facts: Facts) -> dict[str, Field]:
    if not pack:
        return fields
    groups = _groups_by_kind(fields, facts) if pack is True else _given_groups(fields, pack)
    owner = {member: name for name, members in groups.items() for member in members}
    out: dict[str, Field] = {}
    for name, kind in fields.items():
        group = owner.get(name)
        if group is None:
            if name in out:
                raise SchemaError(f"pack: {name!r} is the name of a column that is not packed; give the group another")
            out[name] = kind
        elif group not in out:
            if group in fields and group not in owner:
                raise SchemaError(f"pack: {group!r} is the name of a column that is not packed; give the group another")
            out[group] = Group({m: fields[m] for m in groups[group]}, storage="packed")
    return out


def _groups_by_kind(fields: Mapping[str, Field], facts: Facts) -> dict[str, list[str]]:
    """Return groups of columns that can share a matrix: at least two columns of plain numbers, or of categories."""
    by_kind: dict[str, list[str]] = {}
    for name, kind in fields.items():
        if not isinstance(kind, Scalar | Category) or policy_of(kind) == "mask":
            continue
        if isinstance(kind, Scalar) and (pa.types.is_temporal(kind.type) or pa.types.is_decimal(kind.type)):
            continue
        if policy_of(kind) == "refuse" and facts.has_nulls(name):
            continue
        by_kind.setdefault(f"{'codes' if isinstance(kind, Category) else 'packed'}_{kind.dtype}", []).append(name)
    groups: dict[str, list[str]] = {}
    for label, members in by_kind.items():
        name = label
        while name in fields:
            name += "_"
        if len(members) > 1:
            groups[name] = members
    return groups


def _given_groups(fields: Mapping[str, Field], pack: Any) -> dict[str, list[str]]:
    if not isinstance(pack, Mapping):
        raise ConfigurationError(f"pack={pack!r:.80}: expected True, or a mapping from a group's name to column names")
    groups: dict[str, list[str]] = {}
    taken: set[str] = set()
    for group, members in pack.items():
        if isinstance(members, str) or not isinstance(members, Sequence) or not members:
            raise ConfigurationError(f"pack[{group!r}]={members!r:.80}: expected a list of column names")
        for member in members:
            if member not in fields:
                raise SchemaError(f"pack[{group!r}]: there is no column {member!r}. {nearest(str(member), fields)}")
            if member in taken:
                raise SchemaError(f"pack[{group!r}]: column {member!r} is packed twice; name it in one group")
            if not isinstance(fields[member], Scalar | Category):
                raise SchemaError(f"pack[{group!r}]: column {member!r} is {fields[member]!r}; only numbers are packed")
            taken.add(member)
        groups[str(group)] = list(members)
    return groups
