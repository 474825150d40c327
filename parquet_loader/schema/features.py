"""Derives fields from the features that the `datasets` library of Hugging Face writes into a footer.

The features add information that Arrow types lack: the names of classes, the shape of arrays, and that a struct of
bytes and a path is one image or recording. A feature that is unknown, or does not match its column, is ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from parquet_loader.schema.arrow_types import is_bytes, is_element, is_list_like, is_text, plain_type
from parquet_loader.schema.fields import Bytes, Field, RaggedList, Scalar, Tensor

HUB_KEY = b"huggingface"

Leaves: TypeAlias = Callable[[pa.DataType, str], dict[str, Field]]

# The members that a group of the logical type FILE may have.
_FILE_MEMBERS: Mapping[str, Callable[[pa.DataType], bool]] = {
    "uri": is_text, "offset": pa.types.is_integer, "size": pa.types.is_integer, "content_type": is_text,
    "checksum": is_text, "inline": is_bytes,
}  # fmt: skip
_MOST_NAMES_BYTES = 2**20
_LISTS = ("List", "LargeList", "Sequence")
_ARRAYS = {f"Array{n}D": n for n in range(2, 6)}


def hub_features(schema: pa.Schema) -> Mapping[str, Any]:
    """Return the features of a file's columns, by name; empty if there are none, or they cannot be parsed."""
    text = (schema.metadata or {}).get(HUB_KEY)
    if text is None:
        return {}
    try:
        features = json.loads(text)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def class_names(schema: pa.Schema, name: str) -> tuple[str, ...]:
    """Return the class names that `datasets` stored for a column, by its dotted name; none if it has none."""
    feature: Any = hub_features(schema)
    for step in (name,) if name in feature else name.split("."):
        feature = feature.get(step) if isinstance(feature, dict) else None
    names: Any = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return tuple(names) if _are_names(names) else ()


def is_media(type_: pa.DataType) -> bool:
    """Whether a column is a struct of bytes and path, as which `datasets` stores images, audio and the like."""
    if not pa.types.is_struct(type_) or type_.num_fields != 2:
        return False
    members = {member.name: member.type for member in type_}
    if set(members) != {"bytes", "path"}:
        return False
    return is_bytes(members["bytes"]) and (is_text(members["path"]) or pa.types.is_null(members["path"]))


def is_file_reference(names: Collection[str]) -> bool:
    """Whether a struct with members of these names can have the logical type FILE, a reference to a file."""
    return set(names) <= _FILE_MEMBERS.keys() and not {"uri", "inline"}.isdisjoint(names)


def are_file_references(type_: pa.DataType) -> bool:
    """Whether a column's structs have the member names and types of the logical type FILE."""
    type_ = plain_type(type_)
    if not pa.types.is_struct(type_) or not is_file_reference([member.name for member in type_]):
        return False
    return all(pa.types.is_null(member.type) or _FILE_MEMBERS[member.name](plain_type(member.type)) for member in type_)


def fields_of_feature(type_: pa.DataType, name: str, feature: Any, leaves: Leaves) -> dict[str, Field] | None:
    """Return the fields of a column by its feature; None if the feature adds nothing to the Arrow type.

    Args:
        type_: The column's type.
        name: Its dotted name.
        feature: Its feature, as JSON.
        leaves: Returns the fields that follow from the type only, by dotted name.
    """
    type_ = plain_type(type_)
    if isinstance(feature, list) and len(feature) == 1:
        feature = {"_type": "List", "feature": feature[0]}
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if not isinstance(kind, str):
        return _struct(type_, name, feature, leaves)
    if is_media(type_):
        return {name: Bytes()}
    if kind == "ClassLabel":
        names: Any = feature.get("names")
        if not pa.types.is_integer(type_) or not _are_names(names):
            return None
        return {name: Scalar(type_, names=names)}
    if kind in _ARRAYS:
        return _array(type_, name, feature.get("shape"), _ARRAYS[kind])
    if kind in _LISTS:
        return _list(type_, name, feature, leaves)
    return None


def _struct(type_: pa.DataType, name: str, features: Mapping[str, Any], leaves: Leaves) -> dict[str, Field] | None:
    if not pa.types.is_struct(type_) or not type_.num_fields:
        return None
    found: dict[str, Field] = {}
    for member in type_:
        inner = f"{name}.{member.name}"
        by_feature = fields_of_feature(member.type, inner, features.get(member.name), leaves)
        fields = leaves(member.type, inner) if by_feature is None else by_feature
        if found.keys() & fields.keys():
            return None  # two leaves have the same name, which the caller refuses
        found |= fields
    return found


def _list(type_: pa.DataType, name: str, feature: Mapping[str, Any], leaves: Leaves) -> dict[str, Field] | None:
    item = feature.get("feature")
    if pa.types.is_struct(type_) and isinstance(item, dict):  # a list of structs, which `datasets` stores as lists
        wrapped = {key: {"_type": "List", "feature": inner} for key, inner in item.items()}
        return _struct(type_, name, wrapped, leaves)
    if not is_list_like(type_):
        return None
    by_feature = fields_of_feature(type_.value_type, name, item, leaves)
    fields = leaves(type_.value_type, name) if by_feature is None else by_feature
    length = feature.get("length", -1)
    if isinstance(length, int) and not isinstance(length, bool) and length > 0 and list(fields) == [name]:
        inner = fields[name]
        if isinstance(inner, Tensor):
            return {name: tensor_of_lists(inner.type, (length, *inner.shape))}
        if isinstance(inner, Scalar) and is_element(inner.type):
            return {name: tensor_of_lists(inner.type, (length,))}
    if by_feature is None:
        return None
    return {leaf: RaggedList(field) for leaf, field in fields.items()}


def _array(type_: pa.DataType, name: str, shape: Any, dimensions: int) -> dict[str, Field] | None:
    if not isinstance(shape, list) or len(shape) != dimensions:
        return None
    for _ in shape:
        if not is_list_like(type_):
            return None
        type_ = plain_type(type_.value_type)
    first, *rest = shape
    lengths = rest if first is None else shape
    if not is_element(type_) or not all(isinstance(n, int) and n > 0 for n in lengths):
        return None
    tensor = tensor_of_lists(type_, tuple(lengths))
    return {name: RaggedList(tensor) if first is None else tensor}


def tensor_of_lists(type_: pa.DataType, shape: tuple[int, ...]) -> Tensor:
    """Return the field of a tensor that another engine stored as lists; nulls in floats become NaN."""
    return Tensor(type_, shape, fill=math.nan if pa.types.is_floating(type_) else None, storage="list")


def _are_names(names: Any) -> bool:
    return (
        isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and sum(map(len, names)) <= _MOST_NAMES_BYTES
    )
