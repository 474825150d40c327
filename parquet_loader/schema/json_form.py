"""Converts fields to plain JSON values and back. A file's footer holds its schema in this form.

Arguments with default values are not written, so a default can only change together with `VERSION`. `Category` always
writes its storage, because files of older versions omit it and mean ``"codes"``. JSON has no NaN, infinity or bytes:
these are objects with one key, ``{"float": "nan"}`` and ``{"bytes": "<base64>"}``.
Nothing is evaluated or unpickled, and every value passes the checks of the field's own constructor.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.errors import ConfigurationError, SchemaError, nearest
from parquet_loader.schema.arrow_types import type_name
from parquet_loader.schema.fields import (
    Audio,
    Bytes,
    Category,
    Encoded,
    Field,
    Group,
    Image,
    RaggedList,
    Scalar,
    Tensor,
    Text,
    Video,
)

VERSION = 1

_KINDS: dict[str, Any] = {
    k.__name__: k for k in (Scalar, Tensor, RaggedList, Text, Bytes, Category, Image, Audio, Video, Encoded, Group)
}


def dump_fields(fields_: Mapping[str, Field], extra: str = "refuse") -> str:
    """Return the JSON text of named fields, equal for equal fields; `extra` as in `Schema`."""
    body: dict[str, Any] = {"version": VERSION}
    body["fields"] = [{"name": name, **_field_to_json(f)} for name, f in fields_.items()]
    if extra != "refuse":
        body["extra"] = extra
    return json.dumps(body, allow_nan=False, separators=(",", ":"))


def load_fields(text: str | bytes) -> tuple[dict[str, Field], Any]:
    """Return the named fields of a JSON text, and its `extra`.

    Raises:
        SchemaError: it is not JSON, has an unknown version or kind of field, or describes an invalid field.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is not JSON text: {error}") from None
    if not isinstance(body, dict) or not isinstance(body.get("fields"), list):
        raise SchemaError('the schema is not of the form {"version": ..., "fields": [...]}')
    if body.get("version") != VERSION:
        raise SchemaError(
            f"the schema has version {body.get('version')!r}, this library reads version {VERSION}; "
            "upgrade the library, or pass the schema that the files should be read with"
        )
    try:
        return _named_fields(body["fields"], "the schema"), body.get("extra", "refuse")
    except RecursionError:
        raise SchemaError("the schema nests lists too deeply") from None


def _field_to_json(field: Field) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": type(field).__name__}
    for f in fields(field):
        value = getattr(field, f.name)
        if f.default is MISSING or repr(value) != repr(f.default) or (f.name == "storage" and type(field) is Category):
            out[f.name] = _to_json(value)
    return out


def _to_json(value: Any) -> Any:
    if isinstance(value, pa.DataType):
        return type_name(value)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, Scalar | Tensor | RaggedList | Text | Bytes):
        return _field_to_json(value)
    if isinstance(value, tuple):
        if value and isinstance(value[0], tuple):  # the members of a group
            return [{"name": name, **_field_to_json(member)} for name, member in value]
        return [_to_json(v) for v in value]
    return value


def _named_fields(items: Any, where: str) -> dict[str, Field]:
    if not isinstance(items, list):
        raise SchemaError(f"{where}: expected a list of fields, found {items!r:.80}")
    out: dict[str, Field] = {}
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise SchemaError(f"{where}: a field without a name: {item!r:.80}")
        if name in out:
            raise SchemaError(f"{where}: field {name!r} is defined twice; remove one")
        out[name] = _field_from_json({k: v for k, v in item.items() if k != "name"}, f"field {name!r}")
    return out


def _field_from_json(item: Any, where: str) -> Field:
    kind = item.get("kind") if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise SchemaError(f"{where}: unknown kind {kind!r}. {nearest(str(kind), _KINDS)} A newer library may read it.")
    known = {f.name for f in fields(_KINDS[kind])}
    arguments: dict[str, Any] = {"storage": "codes"} if kind == "Category" else {}
    for key, value in item.items():
        if key == "kind":
            continue
        if key not in known:
            raise SchemaError(f"{where}: {kind} has no argument {key!r}. {nearest(key, known)}")
        if key == "item":
            arguments[key] = _field_from_json(value, where)
        elif key == "members":
            arguments[key] = _named_fields(value, where)
        else:
            arguments[key] = _from_json(value, where)
    try:
        return _KINDS[kind](**arguments)  # type: ignore[no-any-return]
    except (ConfigurationError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise SchemaError(f"{where}: {error}") from None


def _from_json(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(v, where) for v in value)
    if isinstance(value, dict):
        match value:
            case {"float": "nan" | "inf" | "-inf" as text}:
                return float(text)
            case {"bytes": str(text)}:
                try:
                    return base64.b64decode(text, validate=True)
                except ValueError:
                    pass
        raise SchemaError(f"{where}: unknown value {value!r:.80}")
    return value
