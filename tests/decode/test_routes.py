"""The route of each column depends only on the schema, the file's schema and the options."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import Bytes, Category, Group, Image, RaggedList, ReadOptions, Scalar, Schema, Tensor, Text
from parquet_loader.decode import Arrangement, Column, ColumnRoute, Decoder, arrangement_of, holds_rows, routes_of
from parquet_loader.decode.columns import columns_of
from parquet_loader.schema import Field


def routes(
    schema: Schema,
    file_schema: pa.Schema,
    filtered: Collection[str] = (),
    options: ReadOptions | None = None,
    **system: bool,
) -> dict[str, ColumnRoute]:
    decoder = Decoder(schema, file_schema, pa.schema([("folder", pa.int32())]), "a.parquet")
    columns = dict.fromkeys([*decoder.read_columns, *filtered])
    system = {"kernels": True, "pages": True} | system
    found = routes_of(decoder.sources, columns, filtered, file_schema, options or ReadOptions(), **system)
    assert len({route.source.name for route in found}) == len(found)
    return {route.source.name: route for route in found}


def route(field: Field, type_: pa.DataType, *, nullable: bool = True, name: str = "x", **more: Any) -> ColumnRoute:
    return routes(Schema({"x": field}), pa.schema([pa.field(name, type_, nullable=nullable)]), **more)["x"]


RAW = Tensor("float32", (13,))
WIDE = Tensor("float32", (1000,))


@pytest.mark.parametrize(
    ("field", "type_", "nullable", "word", "reason"),
    [
        (Scalar("int32"), pa.int32(), True, "kernel to window", ""),
        (Scalar("float64"), pa.float64(), False, "kernel to window", ""),
        (Scalar("uint8"), pa.uint8(), True, "kernel to window", ""),
        (Scalar("float32"), pa.float64(), True, "kernel to window", ""),
        (Scalar("int64", fill=-1), pa.uint16(), True, "kernel to window", ""),
        (Scalar("date32"), pa.int32(), True, "kernel to window", ""),
        (Scalar("float32"), pa.float16(), True, "kernel", "its values are converted"),
        (Scalar("int32", null="mask"), pa.int32(), True, "kernel to window", ""),
        (Scalar("float32", null="mask", fill=-1.0), pa.float64(), True, "kernel to window", ""),
        (Scalar("bool", null="mask"), pa.bool_(), True, "kernel to window", ""),
        (Scalar("float16"), pa.float16(), True, "kernel to window", ""),
        (Scalar("timestamp[us]"), pa.timestamp("us", tz="UTC"), True, "kernel to window", ""),
        (Scalar("timestamp[ms]"), pa.timestamp("us"), True, "kernel", "its values are converted"),
        (Scalar("date64"), pa.date32(), True, "kernel", "its values are converted"),
        (Scalar("date32"), pa.date32(), True, "kernel to window", ""),
        (Scalar("decimal128(9, 2)"), pa.decimal128(9, 2), True, "kernel to window", ""),
        (Scalar("float64"), pa.decimal128(38, 10), True, "kernel to window", ""),
        (Scalar("float32"), pa.decimal128(9, 2), True, "kernel to window", ""),
        (Scalar("decimal128(9, 2)"), pa.float32(), True, "kernel", "its values are converted"),
        (Scalar("decimal128(9, 2)", null="mask"), pa.decimal128(9, 2), True, "kernel to window", ""),
        (Scalar("bool"), pa.bool_(), True, "kernel to window", ""),
        (RAW, pa.binary(52), False, "pages to window", ""),
        (RAW, pa.binary(52), True, "kernel to window", ""),
        (WIDE, pa.binary(4000), False, "pages to window", ""),
        (Tensor("float32", (2,)), pa.binary(8), True, "kernel to window", ""),
        (RAW, pa.list_(pa.float32(), 13), False, "kernel to window", ""),
        (RAW, pa.list_(pa.float32()), True, "kernel to window", ""),
        (WIDE, pa.large_list(pa.float32()), True, "kernel to window", ""),
        (WIDE, pa.list_(pa.float64()), True, "kernel to window", ""),
        (WIDE, pa.list_(pa.list_(pa.float32())), True, "arrow", None),
        (Tensor("float32", (5,), null="mask"), pa.list_(pa.float32()), True, "kernel", "its values are converted"),
        (Text(), pa.string(), True, "kernel to window", ""),
        (Text(), pa.large_string(), False, "kernel to window", ""),
        (Text(fill=""), pa.string(), True, "kernel to window", ""),
        (Text(null="mask"), pa.string(), True, "kernel to window", ""),
        (Bytes(null="mask"), pa.large_binary(), True, "kernel to window", ""),
        (Image((8, 8, 3), null="mask"), pa.binary(), True, "arrow", "its values are converted"),
        (Text(), pa.dictionary(pa.int32(), pa.string()), True, "kernel to window", ""),
        (Bytes(fill=b""), pa.dictionary(pa.int8(), pa.large_binary()), True, "kernel to window", ""),
        (Scalar("int64"), pa.dictionary(pa.int32(), pa.int64()), True, "arrow", None),
        (Text(), pa.string_view(), True, "kernel to window", ""),
        (Bytes(), pa.binary_view(), True, "kernel to window", ""),
        (Category(["a"]), pa.dictionary(pa.int8(), pa.string()), True, "kernel to window", ""),
        (Tensor("float32", (2, 3)), pa.fixed_shape_tensor(pa.float32(), [2, 3]), True, "kernel to window", ""),
        (Tensor("float32", (8,)), pa.fixed_shape_tensor(pa.float64(), [8]), True, "kernel to window", ""),
        (Text(), pa.json_(), True, "kernel to window", ""),
        (Bytes(), pa.uuid(), True, "kernel", "its values are converted"),
        (Bytes(), pa.binary(), True, "kernel to window", ""),
        (Image((8, 8, 3)), pa.binary(), True, "kernel to window", ""),
        (Bytes(), pa.binary(5), True, "kernel", "its values are converted"),
        (RaggedList("int32"), pa.list_(pa.int32()), True, "kernel to window", ""),
        (RaggedList("int64"), pa.list_(pa.int32()), True, "kernel to window", ""),
        (RaggedList("float16"), pa.list_(pa.int32()), True, "kernel", "its values are converted"),
        (RaggedList("int32", null="mask"), pa.list_(pa.int32()), True, "kernel", "its values are converted"),
        (Category(["a", "b"]), pa.string(), True, "kernel to window", ""),
        (Category(["a", "b"], null="mask"), pa.large_string(), True, "kernel to window", ""),
        (Category([1, 2]), pa.int64(), True, "kernel", "its values are converted"),
        (Category(["a", "b"]), pa.int8(), True, "kernel", None),
    ],
)
def test_a_column_takes_the_fastest_route_that_its_type_allows(
    field: Field, type_: pa.DataType, nullable: bool, word: str, reason: str | None
) -> None:
    found = route(field, type_, nullable=nullable)
    assert found.word == word
    assert reason is None or found.reason == reason


@pytest.mark.parametrize(
    ("options", "system", "number", "rows"),
    [
        (ReadOptions(), {}, "kernel to window", "pages to window"),
        (ReadOptions(), {"pages": False}, "kernel to window", "kernel to window"),
        (ReadOptions(), {"kernels": False}, "arrow", "pages to window"),
        (ReadOptions(), {"kernels": False, "pages": False}, "arrow", "arrow"),
        (ReadOptions(verify_checksums=True), {}, "arrow", "arrow"),
    ],
)
def test_what_the_system_or_the_options_lack_leaves_columns_to_the_next_route(
    options: ReadOptions, system: dict[str, bool], number: str, rows: str
) -> None:
    more: dict[str, Any] = {"options": options, **system}
    assert route(Scalar("int32"), pa.int32(), **more).word == number
    found = route(RAW, pa.binary(52), nullable=False, **more)
    assert found.word == rows
    if rows == "pages to window":  # for chunks that turn out not to be plain
        assert found.decoder == ("kernel" if system.get("kernels", True) else "arrow")
    assert options == ReadOptions() or found.reason == "verify_checksums=True"


def test_members_of_a_group_are_decoded_each_on_a_route_of_its_own() -> None:
    members = {"a": Scalar("float32"), "b": Scalar("float32")}
    file_schema = pa.schema([("a", pa.float32()), ("b", pa.float64())])
    found = routes(Schema({"g": Group(members)}), file_schema)
    assert {name: route.word for name, route in found.items()} == dict.fromkeys(members, "kernel to window")
    file_schema = pa.schema([("a", pa.float32()), ("b", pa.float16())])
    found = routes(Schema({"g": Group(members)}), file_schema)
    assert {name: route.word for name, route in found.items()} == {"a": "kernel", "b": "kernel"}
    packed = Group({f"m{n}": Scalar("float32") for n in range(13)}, storage="packed")
    found = routes(Schema({"g": packed}), pa.schema([pa.field("g", pa.binary(52), nullable=False)]))
    assert {name: route.word for name, route in found.items()} == {"g": "pages to window"}


def test_renamed_and_missing_columns_and_nested_lists_in_structs_are_not_left_in_the_file() -> None:
    members = [("x", pa.int32()), ("list", pa.list_(pa.int32())), ("old", pa.int32())]
    members.append(("lists", pa.list_(pa.list_(pa.int32()))))
    struct = pa.struct([*members, ("s", pa.struct(members)), ("text", pa.string())])
    file_schema = pa.schema(
        [("s", pa.struct(members)), ("old", pa.int32()), ("a.b", pa.int32()), ("m", pa.list_(struct))]
    )
    schema = Schema(
        {
            "s.x": Scalar("int32"),
            "s.list": RaggedList("int32"),
            "s.lists": RaggedList(RaggedList("int32")),
            "s.new": Scalar("int32", aliases=("s.old",)),
            "new": Scalar("int32", aliases=("old",)),
            "a.b": Scalar("int32"),
            "gone": Scalar("int32", missing=0),
            "folder": Scalar("int32"),
            "m.x": RaggedList("int32"),
            "m.s.x": RaggedList("float32"),
            "m.text": RaggedList(Text()),
            "m.list": RaggedList(RaggedList("int32")),
        }
    )
    found = routes(schema, file_schema)
    words = {name: (route.word, route.stored) for name, route in found.items()}
    assert words == {
        "s.x": ("kernel to window", "s.x"),
        "s.list": ("kernel to window", "s.list"),
        "s.lists": ("arrow", "s.lists"),
        "s.new": ("kernel", "s.old"),
        "new": ("kernel", "old"),
        "a.b": ("arrow", "a.b"),
        "gone": ("constant", ""),
        "folder": ("constant", ""),
        "m.x": ("kernel to window", "m.x"),
        "m.s.x": ("kernel to window", "m.s.x"),
        "m.text": ("arrow", "m.text"),
        "m.list": ("arrow", "m.list"),
    }


def test_columns_that_only_a_filter_compares_have_a_route_too() -> None:
    file_schema = pa.schema([("a", pa.int32()), ("b", pa.int64()), ("t", pa.string())])
    found = routes(Schema({"a": Scalar("int32")}), file_schema, ["a", "b", "t"])
    assert {name: route.word for name, route in found.items()} == {"a": "kernel to window", "b": "kernel", "t": "arrow"}


def test_words_are_read_as_a_dictionary_in_large_batches_unless_a_filter_compares_them() -> None:
    schema, file_schema = Schema({"c": Category(["a", "b", "c"])}), pa.schema([("c", pa.string())])
    assert routes(schema, file_schema)["c"].dictionary_rows == 24
    assert routes(schema, file_schema, ["c"])["c"].dictionary_rows == 0
    assert route(Category(["a"]), pa.int8()).dictionary_rows == 0
    assert route(Text(), pa.string()).dictionary_rows == 0


NUMBERS = [np.dtype(name) for name in ("int8", "uint16", "int32", "float32", "int64", "float64")]


@given(
    dtype=st.sampled_from(NUMBERS),
    stored=st.sampled_from(NUMBERS),
    shape=st.lists(st.integers(1, 40), max_size=2),
    nullable=st.booleans(),
    is_masked=st.booleans(),
    is_filtered=st.booleans(),
    kernels=st.booleans(),
    pages=st.booleans(),
    is_checked=st.booleans(),
)
def test_only_rows_without_masks_and_numbers_stay_in_the_file(
    dtype: np.dtype[Any],
    stored: np.dtype[Any],
    shape: list[int],
    nullable: bool,
    is_masked: bool,
    is_filtered: bool,
    kernels: bool,
    pages: bool,
    is_checked: bool,
) -> None:
    null: Any = "mask" if is_masked else "refuse"
    field: Field = Tensor(dtype.name, tuple(shape), null=null) if shape else Scalar(dtype.name, null=null)
    type_ = pa.binary(dtype.itemsize * int(np.prod(shape))) if shape else pa.from_numpy_dtype(stored)
    found = route(
        field,
        type_,
        nullable=nullable,
        filtered=["x"] if is_filtered else [],
        options=ReadOptions(verify_checksums=is_checked),
        kernels=kernels,
        pages=pages,
    )
    assert (found.reason == "") == (found.window is not None)
    assert found.decoder == ("kernel" if kernels and not is_checked else "arrow")
    if found.window is not None:
        assert not is_masked or not shape
        assert not is_checked
    if found.window == "kernel":
        assert kernels
        assert nullable or not holds_rows(Column("x", "fixed", type_, dtype, tuple(shape))) or not pages
    if found.window == "pages":
        assert pages
        assert shape
        assert not nullable


def test_windows_arrange_rows_by_their_width() -> None:
    schema = {
        "number": (Scalar("float32"), Arrangement.NARROW),
        "eight": (Tensor("float32", (2,)), Arrangement.NARROW),
        "short": (RAW, Arrangement.NARROW),
        "wide": (WIDE, Arrangement.DIRECT),
        "text": (Text(), Arrangement.RAGGED),
        "list": (RaggedList("int32"), Arrangement.RAGGED),
        "lists": (RaggedList(RaggedList("int32")), Arrangement.RAGGED),
    }
    for column in columns_of(Schema({name: field for name, (field, _) in schema.items()})):
        assert arrangement_of(column) is schema[column.name][1]
