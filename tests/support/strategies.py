"""Hypothesis strategies for fields and for columns that fit them, and the plain reading that tests compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from parquet_loader.schema import (
    Bytes,
    Category,
    Field,
    Group,
    Image,
    RaggedList,
    Scalar,
    Tensor,
    Text,
    policy_of,
)

ELEMENTS = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
ELEMENTS += ["float16", "float32", "float64"]
TIMES = ["date32", "date64", "time32[s]", "time32[ms]", "time64[us]", "time64[ns]"]
TIMES += [f"{kind}[{unit}]" for kind in ("timestamp", "duration") for unit in ("s", "ms", "us", "ns")]
TIMES += ["timestamp[us, tz=UTC]", "timestamp[s, tz=Europe/Berlin]"]
DECIMALS = ["decimal32(5, 2)", "decimal64(12, 3)", "decimal128(20, 4)", "decimal256(40, 0)"]
_WIDTHS: dict[int, Literal[16, 32, 64]] = {2: 16, 4: 32, 8: 64}
WORDS = ("red", "green", "blue", "Ünïcode", "")

PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU\x00\x00\x00\n"
    b"IDATx\x9cc`\x00\x00\x00\x02\x00\x01H\xaf\xa4q\x00\x00\x00\x00IEND\xaeB`\x82"
)
JPEG = b"\xff\xd8\xff\xe0 not decoded here"


@dataclass(frozen=True)
class Column:
    """A field, and rows of it: numbers (times as integers of their unit), nested lists, str, bytes or None."""

    field: Any
    rows: list[Any]


def numbers(type_name: str) -> st.SearchStrategy[Any]:
    dtype = np.dtype(type_name)
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind == "f":
        return st.floats(width=_WIDTHS[dtype.itemsize])
    return st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def times(type_name: str) -> st.SearchStrategy[int]:
    if type_name == "date64":
        return st.integers(-(10**6), 10**6).map(lambda day: day * 86_400_000)
    if type_name.startswith("date"):
        return st.integers(-(10**6), 10**6)
    if type_name.startswith("time") and not type_name.startswith("timestamp"):
        units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_name.partition("[")[2][:-1]]
        return st.integers(0, 86_400 * units - 1)
    return st.integers(-(2**53), 2**53)


def decimals(type_name: str) -> st.SearchStrategy[Decimal]:
    precision, scale = map(int, type_name.partition("(")[2][:-1].split(","))
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    return digits.map(lambda n: Decimal(n).scaleb(-scale) if precision <= 20 else Decimal(n))


def values_of(type_name: str) -> st.SearchStrategy[Any]:
    if type_name in ELEMENTS:
        return numbers(type_name)
    return decimals(type_name) if type_name in DECIMALS else times(type_name)


def policies(draw: st.DrawFn, fill: Any) -> dict[str, Any]:
    kind = draw(st.sampled_from(["refuse", "fill", "mask", "both"]))
    out: dict[str, Any] = {"null": "mask"} if kind in ("mask", "both") else {}
    return out | ({"fill": fill} if kind in ("fill", "both") else {})


def rows_of(draw: st.DrawFn, field: Any, values: st.SearchStrategy[Any]) -> Column:
    if policy_of(field) != "refuse":
        values = st.none() | values
    return Column(field, draw(st.lists(values, max_size=12)))


@st.composite
def scalars(draw: st.DrawFn) -> Column:
    name = draw(st.sampled_from(ELEMENTS + TIMES + DECIMALS))
    fill = 0 if name != "bool" else False
    return rows_of(draw, Scalar(name, **policies(draw, fill)), values_of(name))


@st.composite
def tensors(draw: st.DrawFn) -> Column:
    name = draw(st.sampled_from(ELEMENTS))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    storage: Any = draw(st.sampled_from(["raw", "list"]))
    field = Tensor(name, shape, storage=storage, **policies(draw, 1))
    values = numbers(name)
    for length in reversed(shape):
        values = st.lists(values, min_size=length, max_size=length)
    return rows_of(draw, field, values)


@st.composite
def texts(draw: st.DrawFn) -> Column:
    return rows_of(draw, Text(**policies(draw, "?")), st.text(st.characters(codec="utf-8"), max_size=8))


@st.composite
def blobs(draw: st.DrawFn) -> Column:
    return rows_of(draw, Bytes(**policies(draw, b"\x00")), st.binary(max_size=8))


@st.composite
def categories(draw: st.DrawFn) -> Column:
    field = Category(
        WORDS,
        dtype=draw(st.sampled_from(["int64", "uint8"])),
        storage=draw(st.sampled_from(["codes", "words"])),
        **policies(draw, "blue"),
    )
    return rows_of(draw, field, st.sampled_from(WORDS))


@st.composite
def images(draw: st.DrawFn) -> Column:
    return rows_of(draw, Image((1, 1, 1), **policies(draw, PNG)), st.sampled_from([PNG, JPEG]))


@st.composite
def ragged_lists(draw: st.DrawFn) -> Column:
    item = draw(st.one_of(scalars(), tensors(), texts(), blobs(), st.deferred(ragged_lists)).filter(_is_item))
    field = RaggedList(item.field, **policies(draw, ()))
    items = st.lists(st.sampled_from(item.rows), max_size=4) if item.rows else st.just([])
    return rows_of(draw, field, items)


def _is_item(column: Column) -> bool:
    return str(column.field.null) != "mask"


def columns() -> st.SearchStrategy[Column]:
    return st.one_of(scalars(), tensors(), texts(), blobs(), categories(), images(), ragged_lists())


@st.composite
def groups(draw: st.DrawFn) -> Group:
    name = draw(st.sampled_from(["float32", "int64", "bool"]))
    if draw(st.booleans()):
        return Group(["p", "q"], Scalar(name, **policies(draw, 1)))
    members = {n: Scalar(name, fill=draw(st.sampled_from([None, 1]))) for n in ("p", "q", "r")}
    return Group(members, storage=draw(st.sampled_from(["packed", "columns"])))


def fields() -> st.SearchStrategy[Field]:
    return st.one_of(columns().map(lambda column: column.field), groups())


def read_back(field: Any, stored: pa.Array) -> Any:
    """Return the rows of a stored column in the form in which `Column` has them."""
    stored = stored.combine_chunks() if isinstance(stored, pa.ChunkedArray) else stored
    if isinstance(field, Scalar):
        if pa.types.is_temporal(field.type):
            bits = pa.int32() if field.type.bit_width == 32 else pa.int64()
            stored = stored.cast(field.type).cast(bits)
        return stored.to_pylist()
    if isinstance(field, Tensor):
        return [None if row is None else _tensor(field, row) for row in stored.to_pylist()]
    if isinstance(field, Category) and field.storage == "codes":
        return [None if code is None else field.vocabulary[code] for code in stored.to_pylist()]
    if isinstance(field, RaggedList):
        items = read_back(field.item, stored.flatten())
        lengths = pc.list_value_length(stored).to_pylist()
        starts = np.cumsum([0, *(n or 0 for n in lengths)]).tolist()
        return [None if n is None else items[a : a + n] for n, a in zip(lengths, starts, strict=False)]
    return stored.to_pylist()


def _tensor(field: Tensor, row: Any) -> Any:
    flat = np.frombuffer(row, field.dtype) if isinstance(row, bytes) else np.array(row, field.dtype)
    return flat.reshape(field.shape).tolist()


def same(left: Any, right: Any) -> bool:
    """Whether two rows are equal, NaN to NaN."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right) and (left is None) == (right is None)
