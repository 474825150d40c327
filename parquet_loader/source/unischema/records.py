"""Converts the tree that `pickle_interpreter` returns to plain records of Petastorm's metadata.

Each function converts and checks a part of the tree. None calls a callable that the pickle names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from parquet_loader.source.unischema.allowlist import AllowedName
from parquet_loader.source.unischema.pickle_interpreter import PickledMapping, PickledObject, PickledSequence, run
from parquet_loader.source.unischema.pickle_opcodes import refuse

MAX_TEXT = 10_000
MAX_SAME_HASH = 100


@dataclass(frozen=True, slots=True)
class SparkType:
    """A Spark SQL type.

    Attributes:
        name: Its class, such as ``"DecimalType"``.
        precision, scale: Those of a decimal; else None.
    """

    name: str
    precision: int | None = None
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class Codec:
    """How a field is stored.

    Attributes:
        kind: ``"ScalarCodec"``, ``"NdarrayCodec"``, ``"CompressedNdarrayCodec"`` or ``"CompressedImageCodec"``.
        spark: The type of a scalar, or None.
        image_codec: ``"png"`` or ``"jpeg"`` for images, or None.
        quality: The quality of JPEGs, or None.
    """

    kind: str
    spark: SparkType | None = None
    image_codec: str | None = None
    quality: int | None = None


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """One field of a Unischema.

    Attributes:
        name: Name of the column.
        dtype: numpy's name of the type (``"int32"``, ``"str_"``, ``"bytes_"``, ``"datetime64"``), or ``"Decimal"``.
        shape: Lengths, None for those that vary; ``()`` for scalars.
        codec: How it is stored; None: as Spark stores the type.
        nullable: Whether there may be nulls.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    codec: Codec | None
    nullable: bool


@dataclass(frozen=True, slots=True)
class UnischemaRecord:
    """A Unischema: its name, and its fields in order."""

    name: str
    fields: tuple[FieldRecord, ...]


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """An index of row groups.

    Attributes:
        kind: ``"SingleFieldIndexer"`` or ``"FieldNotNullIndexer"``.
        name: Name of the index.
        column: The indexed column.
        values: For a `SingleFieldIndexer`, the numbers of row groups by value.
        row_groups: For a `FieldNotNullIndexer`, the numbers of the row groups that hold a value.
    """

    kind: str
    name: str
    column: str
    values: Mapping[Any, frozenset[int]] = field(default_factory=dict)
    row_groups: frozenset[int] = frozenset()


def read_unischema(data: bytes) -> UnischemaRecord:
    """Return the Unischema of a pickle.

    Raises:
        DataError: it is not a Unischema, or is refused; see `pickle_interpreter`.
    """
    made = _object(run(data), "unischema", "a Unischema")
    state = _attributes(made, "the Unischema")
    fields = []
    for key, value in _dict(state.get("_fields"), "the fields of the Unischema"):
        found = _field(value)
        if not isinstance(key, str) or found.name != key:
            refuse(f"the field {found.name!r:.80} has another name as key")
        fields.append(found)
    names = [f.name for f in fields]
    if len(set(names)) != len(names):
        refuse("two fields have the same name")
    return UnischemaRecord(_text(state.get("_name"), "the name of the Unischema"), tuple(fields))


def read_indexes(data: bytes) -> dict[str, IndexRecord]:
    """Return the indexes of row groups of a pickle, by name.

    Raises:
        DataError: they are not indexes, or are refused; see `pickle_interpreter`.
    """
    found: dict[str, IndexRecord] = {}
    known: dict[Any, Any] = {}
    for key, value in _dict(run(data), "the indexes"):
        name = _text(key, "the name of an index")
        found[name] = _index(_object(value, "indexer", "an index"), known)
    return found


def _object(value: Any, role: str, what: str) -> PickledObject:
    """Return an object of a role, in either form of pickling."""
    if isinstance(value, PickledObject) and value.name.role == "reconstructor":
        arguments = value.arguments
        if len(arguments) != 3 or not all(isinstance(a, AllowedName) for a in arguments[:2]):
            refuse(f"{what} is reconstructed from {len(arguments)} arguments; expected 3, the first two of them names")
        content = arguments[2].values if isinstance(arguments[2], PickledSequence) else []
        value = PickledObject(arguments[0], content, value.state, value.pairs, value.values)
    if not isinstance(value, PickledObject) or value.name.role != role:
        found = value.name.name if isinstance(value, PickledObject) else type(value).__name__.lower()
        refuse(f"expected {what}, found {found!r}")
    return value


def _attributes(made: PickledObject, what: str) -> dict[str, Any]:
    if made.state is None:
        return {}
    return {_text(k, f"an attribute of {what}"): v for k, v in _dict(made.state, f"the attributes of {what}")}


def _dict(value: Any, what: str) -> list[tuple[Any, Any]]:
    """Return the pairs of a dict, in any form of pickling."""
    if isinstance(value, PickledMapping):
        return value.values
    if not isinstance(value, PickledObject) or value.name.role not in {"ordered dict", "default dict"}:
        refuse(f"{what} are not a dict")
    pairs = list(value.pairs)
    arguments = value.arguments if value.name.role == "ordered dict" else []
    for argument in arguments[:1]:
        if not isinstance(argument, PickledSequence):
            refuse(f"{what} are not pairs")
        for pair in argument.values:
            if not isinstance(pair, PickledSequence) or len(pair.values) != 2:
                refuse(f"{what} are not pairs")
            pairs.append((pair.values[0], pair.values[1]))
    return pairs


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        refuse(f"{what} is {str(type(value).__name__)!r}, expected a str")
    return value


def _field(value: Any) -> FieldRecord:
    if isinstance(value, PickledObject) and value.name.role == "restore":
        values = _restored(value)
    else:
        values = _object(value, "field", "a field").arguments
    if len(values) != 5:
        refuse(f"a field has {len(values)} parts; expected name, dtype, shape, codec and nullable")
    name, dtype, shape, codec, nullable = values
    name = _text(name, "the name of a field")
    if not isinstance(nullable, bool | int | None):
        refuse(f"field {name!r:.80}: nullable is not a bool")
    return FieldRecord(name, _dtype_name(dtype, name), _shape(shape, name), _codec(codec, name), bool(nullable))


def _restored(made: PickledObject) -> list[Any]:
    """Return the parts of a namedtuple that pyspark pickled: name, names of its parts, the parts."""
    if len(made.arguments) != 3 or made.arguments[0] != "UnischemaField":
        refuse("pyspark restores a value that is not a UnischemaField")
    names, values = made.arguments[1:]
    expected = ["name", "numpy_dtype", "shape", "codec", "nullable"]
    if (
        not isinstance(names, PickledSequence)
        or not isinstance(values, PickledSequence)
        or not _are_texts(names.values, expected)
    ):
        refuse("pyspark restores a UnischemaField with other parts")
    if len(values.values) != len(names.values):
        refuse("pyspark restores a UnischemaField with other parts")
    parts = dict(zip(names.values, values.values, strict=True))
    return [parts[name] for name in expected]


def _are_texts(values: list[Any], expected: list[str]) -> bool:
    return all(isinstance(v, str) for v in values) and sorted(values) == sorted(expected)


def _dtype_name(value: Any, field_name: str) -> str:
    if isinstance(value, AllowedName) and value.role == "number type":
        return value.name
    if isinstance(value, AllowedName) and value.role == "decimal":
        return "Decimal"
    if not isinstance(value, PickledObject) or value.name.role != "dtype":
        refuse(f"field {field_name!r:.80}: its dtype is not one of numpy")
    return _dtype(value).type.__name__


def _shape(value: Any, field_name: str) -> tuple[int | None, ...]:
    lengths = value.values if isinstance(value, PickledSequence) and value.kind != "set" else None
    if lengths is None or len(lengths) > 32:
        refuse(f"field {field_name!r:.80}: its shape is not a tuple of lengths")
    found: list[int | None] = []
    for length in lengths:
        if isinstance(length, PickledObject) and length.name.role == "scalar":
            length = _scalar(length)  # noqa: PLW2901  (a length may be one of numpy's ints)
        if length is not None and (isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 0):
            refuse(f"field {field_name!r:.80}: its shape is not a tuple of lengths")
        found.append(None if length is None else int(length))
    return tuple(found)


def _codec(value: Any, field_name: str) -> Codec | None:
    if value is None:
        return None
    made = _object(value, "codec", f"the codec of field {field_name!r:.80}")
    state = _attributes(made, f"the codec of field {field_name!r:.80}")
    if made.name.name == "ScalarCodec":
        return Codec("ScalarCodec", spark=_spark_type(state.get("_spark_type"), field_name))
    if made.name.name == "CompressedImageCodec":
        kind = _text(state.get("_image_codec", ".png"), "the kind of an image").removeprefix(".").lower()
        quality = state.get("_quality", 80)
        return Codec(
            "CompressedImageCodec",
            image_codec="jpeg" if kind == "jpg" else kind,
            quality=quality if isinstance(quality, int) else 80,
        )
    return Codec(made.name.name)


def _spark_type(value: Any, field_name: str) -> SparkType | None:
    if isinstance(value, AllowedName) and value.role == "spark":  # the class instead of an instance
        return SparkType(value.name)
    if value is None:
        return None
    made = _object(value, "spark", f"the Spark type of field {field_name!r:.80}")
    state = _attributes(made, f"the Spark type of field {field_name!r:.80}")
    precision, scale = state.get("precision"), state.get("scale")
    if not isinstance(precision, int | None) or not isinstance(scale, int | None):
        refuse(f"field {field_name!r:.80}: precision and scale are not integers")
    return SparkType(made.name.name, precision, scale)


def _index(made: PickledObject, known: dict[Any, Any]) -> IndexRecord:
    state = _attributes(made, "an index")
    name = _text(state.get("_index_name"), "the name of an index")
    column = _text(state.get("_column_name"), "the column of an index")
    data = state.get("_index_data")
    if not isinstance(data, PickledSequence | PickledMapping | PickledObject):
        refuse(f"index {name!r:.80} has no values")
    if data not in known:  # data that several indexes share are read once
        if made.name.name == "FieldNotNullIndexer":
            known[data] = _numbers(data, name)
        else:
            pairs = _dict(data, f"the values of index {name!r:.80}")
            known[data] = _values(pairs, name, known)
    content = known[data]
    if isinstance(content, frozenset) != (made.name.name == "FieldNotNullIndexer"):
        refuse(f"index {name!r:.80} shares its values with an index of another kind")
    if isinstance(content, frozenset):
        return IndexRecord(made.name.name, name, column, row_groups=content)
    return IndexRecord(made.name.name, name, column, values=content)


def _values(pairs: list[tuple[Any, Any]], name: str, known: dict[Any, Any]) -> dict[Any, frozenset[int]]:
    found: dict[Any, frozenset[int]] = {}
    with_hash: dict[int, int] = {}
    for inner, numbers in pairs:
        key = _key(inner)
        alike = with_hash[hash(key)] = with_hash.get(hash(key), 0) + 1
        if alike > MAX_SAME_HASH:  # a dict compares each with all others of its hash, in quadratic time
            refuse(f"index {name!r:.80} has more than {MAX_SAME_HASH} values with the same hash")
        found[key] = _shared_numbers(numbers, name, known)
    return found


def _shared_numbers(value: Any, name: str, known: dict[Any, Any]) -> frozenset[int]:
    if not isinstance(value, PickledSequence | PickledObject):
        refuse(f"index {name!r:.80}: expected a set of numbers of row groups")
    if value not in known:
        known[value] = _numbers(value, name)
    numbers = known[value]
    if not isinstance(numbers, frozenset):
        refuse(f"index {name!r:.80} contains itself")
    return numbers


def _numbers(value: Any, name: str) -> frozenset[int]:
    if isinstance(value, PickledObject) and value.name.role == "set" and len(value.arguments) <= 1:
        inner = value.arguments[0] if value.arguments else PickledSequence("list", [])
        value = PickledSequence(
            "set", [*(inner.values if isinstance(inner, PickledSequence) else [None]), *value.values]
        )
    if not isinstance(value, PickledSequence):
        refuse(f"index {name!r:.80}: expected a set of numbers of row groups")
    for number in value.values:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**31:
            refuse(f"index {name!r:.80}: expected a set of numbers of row groups")
    return frozenset(value.values)


def _key(value: Any) -> Any:
    """Return an indexed value."""
    if isinstance(value, PickledObject) and value.name.role == "scalar":
        return _scalar(value)
    if isinstance(value, PickledObject) and value.name.role == "decimal":
        return _decimal(value)
    if isinstance(value, int) and not -(2**64) < value < 2**64:
        refuse("an indexed integer exceeds 64 bits")
    if value is not None and not isinstance(value, str | bytes | bool | int | float):
        refuse("an indexed value is not a scalar")
    return value


_DECIMAL = re.compile(r"-?[0-9]{1,80}(\.[0-9]{0,80})?([Ee][+-]?[0-9]{1,4})?")


def _decimal(made: PickledObject) -> Decimal:
    text = made.arguments[0] if len(made.arguments) == 1 else None
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        refuse("a Decimal is not a number")
    return Decimal(text)


_DTYPE = re.compile(r"(b1|[iu][1248]|f[248]|c(8|16)|[US][0-9]{1,7}|[Mm]8)")
_UNITS = re.compile(r"Y|M|W|D|h|m|s|ms|us|ns")


def _dtype(made: PickledObject) -> np.dtype[Any]:
    """Return a dtype that is pickled as its code, and a state with the byte order and the unit of times."""
    code = made.arguments[0] if made.arguments else None
    if not isinstance(code, str) or not _DTYPE.fullmatch(code):
        refuse(f"the dtype {code!r:.40} is not allowed" if isinstance(code, str) else "a dtype has no code")
    state = made.state.values if isinstance(made.state, PickledSequence) else []
    order = state[1] if len(state) > 1 else "|"
    if order not in ("<", ">", "|", "="):
        refuse("a dtype has an unknown byte order")
    unit = ""
    if code[0] in "Mm":
        metadata = state[8] if len(state) > 8 else None
        inner = metadata.values[-1] if isinstance(metadata, PickledSequence) and metadata.values else None
        parts = inner.values if isinstance(inner, PickledSequence) else []
        if len(parts) < 2 or not isinstance(parts[0], str | bytes) or parts[1] != 1:
            refuse("a dtype of times has no unit")
        unit = parts[0] if isinstance(parts[0], str) else parts[0].decode("latin-1")
        if not _UNITS.fullmatch(unit):
            refuse("a dtype of times has an unknown unit")
        unit = f"[{unit}]"
    return np.dtype(f"{'' if order in '|=' else order}{code}{unit}")


def _scalar(made: PickledObject) -> Any:
    """Return a numpy scalar that is pickled as its dtype and its bytes."""
    dtype_made, data = made.arguments if len(made.arguments) == 2 else (None, None)
    if not isinstance(dtype_made, PickledObject) or dtype_made.name.role != "dtype":
        refuse("a scalar has no dtype")
    dtype = _dtype(dtype_made)
    if isinstance(data, str):  # Python 2's bytes
        try:
            data = data.encode("latin-1")
        except UnicodeEncodeError:
            refuse("a scalar is not bytes")
    if not isinstance(data, bytes) or len(data) != dtype.itemsize:
        refuse(f"a scalar of {dtype.char!r} does not have {dtype.itemsize} bytes")
    if not data:
        return np.str_() if dtype.kind == "U" else np.bytes_()
    if dtype.kind == "U" and (np.frombuffer(data, f"{dtype.str[0]}u4") > sys.maxunicode).any():
        refuse("a text scalar holds code points above U+10FFFF")  # numpy would accept them
    return np.frombuffer(data, dtype)[0]
