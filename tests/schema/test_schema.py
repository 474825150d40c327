"""A schema survives a round trip through a footer, and refuses fields that cannot be delivered."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.errors import ConfigurationError, SchemaError
from parquet_loader.schema import (
    METADATA_KEY,
    Audio,
    Bytes,
    Category,
    Encoded,
    Group,
    Image,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    arrow_type_of,
    infer_fields,
    type_name,
)
from tests.support.strategies import DECIMALS, ELEMENTS, PNG, TIMES, fields

NAN = math.nan

EVERYTHING = Schema(
    {
        "price": Scalar("float32", fill=NAN),
        "when": Scalar("timestamp[s, tz=UTC]", missing=-1),
        "image": Image((8, 8, 3), null="mask"),
        "grid": Tensor("float16", (2, 3), fill=math.inf, storage="list"),
        "words": RaggedList(RaggedList(Text(fill="?")), missing=()),
        "blob": Bytes(fill=b"\xff\x00"),
        "color": Category(("red", "green"), dtype="int32", unknown="green"),
        "dense": Group(["a", "b"], "float32"),
        "packed": Group({"c": Scalar("int64", fill=3), "d": Category(("x", "y"))}, storage="packed"),
    }
)


@given(st.lists(fields(), max_size=4))
def test_json_restores_every_schema(drawn: list[Any]) -> None:
    schema = Schema({f"f{i}": f for i, f in enumerate(drawn) if not isinstance(f, Group)})
    again = Schema.from_json(schema.to_json())
    assert again == schema
    assert hash(again) == hash(schema)
    assert again.to_json() == schema.to_json()
    assert repr(again) == repr(schema)
    assert again.arrow_schema().equals(schema.arrow_schema(), check_metadata=True)


@given(fields())
def test_fields_are_equal_to_what_their_repr_makes(field: Any) -> None:
    names = {kind.__name__: kind for kind in (Scalar, Tensor, Text, Bytes, RaggedList, Category, Image, Group)}
    again = eval(repr(field), {**names, "nan": NAN, "inf": math.inf})
    assert again == field
    assert hash(again) == hash(field)


def test_parquet_footers_restore_the_schema() -> None:
    sink = io.BytesIO()
    pq.write_table(EVERYTHING.arrow_schema().empty_table(), sink)
    assert Schema.from_arrow(pq.read_schema(sink)) == EVERYTHING


def test_schemas_pickle_and_copy() -> None:
    assert pickle.loads(pickle.dumps(EVERYTHING)) == EVERYTHING
    assert copy.deepcopy(EVERYTHING) == EVERYTHING


def test_schemas_differ_by_order_and_by_any_argument() -> None:
    a, b = Scalar("int8"), Text()
    assert Schema({"a": a, "b": b}) != Schema({"b": b, "a": a})
    assert Schema({"a": Scalar("float32", fill=NAN)}) == Schema({"a": Scalar("float32", fill=np.float32("nan"))})
    assert Schema({"a": Scalar("float32", fill=0)}) == Schema({"a": Scalar(pa.float32(), fill=0.0)})
    assert Schema({"a": Scalar("float32", fill=0)}) != Schema({"a": Scalar("float32", fill=1)})
    assert Schema({"a": a}) != {"a": a}


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(EVERYTHING).splitlines() == [
        "Schema({",
        "    'price': Scalar('float32', fill=nan),",
        "    'when': Scalar('timestamp[s, tz=UTC]', missing=-1),",
        "    'image': Image(shape=(8, 8, 3), null='mask'),",
        "    'grid': Tensor('float16', (2, 3), fill=inf, storage='list'),",
        "    'words': RaggedList(RaggedList(Text(fill='?')), missing=()),",
        "    'blob': Bytes(fill=b'\\xff\\x00'),",
        "    'color': Category(('red', 'green'), dtype='int32', unknown='green'),",
        "    'dense': Group(['a', 'b'], Scalar('float32')),",
        "    'packed': Group({",
        "        'c': Scalar('int64', fill=3),",
        "        'd': Category(('x', 'y')),",
        "    }, storage='packed'),",
        "})",
    ]


def test_repr_shortens_large_vocabularies() -> None:
    assert "... 1000 words" in repr(Schema({"x": Category(tuple(map(str, range(1000))))}))


def test_stored_columns_are_not_null_where_nulls_are_refused() -> None:
    stored = EVERYTHING.stored_columns()
    assert list(stored) == ["price", "when", "image", "grid", "words", "blob", "color", "a", "b", "packed"]
    assert [n for n, f in stored.items() if f.nullable] == ["price", "image", "grid", "blob"]
    assert stored["packed"].type == pa.binary(16)
    assert stored["when"].type == pa.timestamp("ms", tz="UTC"), "Parquet has no unit of seconds"
    assert stored["color"].type == pa.string()
    assert EVERYTHING.arrow_schema().metadata[METADATA_KEY].decode() == EVERYTHING.to_json()


def test_select_keeps_the_order_asked_for() -> None:
    assert list(EVERYTHING.select(["dense", "price"])) == ["dense", "price"]
    with pytest.raises(SchemaError, match=r"'prize' is not in the schema\. Did you mean 'price'\?"):
        EVERYTHING.select(["prize"])
    with pytest.raises(SchemaError, match="named twice"):
        EVERYTHING.select(["price", "price"])
    with pytest.raises(ConfigurationError, match="several names"):
        EVERYTHING.select("price")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"": Text()}, "non-empty str"),
        ({3: Text()}, "non-empty str, not 3"),
        ({"\ud800": Text()}, "UTF-8"),
        ({"a": Text(), "g": Group(["a", "b"], "int8")}, "'a' is stored by both field 'a' and field 'g'"),
        ({"a": Scalar("int8", null="mask"), "a_valid": Text()}, "delivered as 'a_valid'"),
        ({"g": Group(["g", "h"], "int8", storage="packed")}, "member of its own name"),
    ],
)
def test_names_that_clash_are_refused(made: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema(made)


def test_what_is_no_field_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="field 'x' is 'float32'"):
        Schema({"x": "float32"})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="expected a mapping"):
        Schema([("x", Text())])  # type: ignore[arg-type]


def _any(value: Any) -> Any:
    return value


def _body(**field: Any) -> str:
    return json.dumps({"version": 1, "fields": [{"name": "x", **field}]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not of the form"),
        ('{"version": 1}', "not of the form"),
        ('{"version": 2, "fields": []}', "version 2, this library reads version 1"),
        ('{"version": 1, "fields": [3]}', "without a name"),
        (_body(kind="Skalar", type="int8"), "field 'x': unknown kind 'Skalar'. Did you mean 'Scalar'"),
        (_body(kind="__import__"), "unknown kind '__import__'"),
        (_body(kind="Scalar", type="int8", fil=3), "no argument 'fil'. Did you mean 'fill'"),
        (_body(kind="Scalar", type="integer"), "field 'x': 'integer' names no"),
        (_body(kind="Scalar"), "field 'x':"),
        (_body(kind="Scalar", type="int8", fill={"call": "exit"}), "unknown value"),
        (_body(kind="Bytes", fill={"bytes": "?"}), "unknown value"),
        (_body(kind="Tensor", type="int8", shape=[2**40]), "field 'x': Tensor shape"),
        (_body(kind="Tensor", type="int8", shape=[1.5]), "expected one or more lengths"),
        (_body(kind="RaggedList", item={"kind": "RaggedList", "item": 3}), "unknown kind None"),
        (_body(kind="Group", members=[{"name": "a", "kind": "Text"}]), "members are"),
        (json.dumps({"version": 1, "fields": [{"name": "x", "kind": "Text"}] * 2}), "is defined twice"),
    ],
)
def test_json_that_is_no_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.from_json(text)
    assert message in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_no_json_does_anything_but_make_a_schema_or_a_schema_error(value: Any) -> None:
    for text in (json.dumps(value), json.dumps({"version": 1, "fields": value})):
        with contextlib.suppress(SchemaError):
            Schema.from_json(text)


@pytest.mark.parametrize("name", ELEMENTS + TIMES + DECIMALS)
def test_type_names_are_read_back(name: str) -> None:
    assert type_name(arrow_type_of(name)) == name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scalar("string"), "not a scalar type"),
        (lambda: Scalar("int8", fill=300), "not a int8 number"),
        (lambda: Scalar("int8", fill=1.5), "not a int8 number"),
        (lambda: Scalar("int8", fill="1"), "not a int8 number"),
        (lambda: Scalar("int8", fill=NAN), "not a int8 number"),
        (lambda: Scalar("float16", fill=1e9), "not a float16 number"),
        (lambda: Scalar("float16", missing=2049), "Scalar(missing=2049): the value is not a float16 number"),
        (lambda: Tensor("float32", (2,), fill=2**24 + 1), "not a float32 number"),
        (lambda: Scalar("float64", fill=np.int64(2**53 + 1)), "not a float64 number"),
        (lambda: Scalar("int8", null=_any("drop")), "expected 'refuse' or 'mask'"),
        (lambda: Tensor("int8", ()), "one or more lengths"),
        (lambda: Tensor("date32", (2,)), "bool, integers or floats"),
        (lambda: RaggedList(Scalar("int8", null="mask")), "no mask"),
        (lambda: RaggedList("int8", fill=_any((1,))), "only the empty list"),
        (lambda: Category(()), "one or more str"),
        (lambda: Category(("a", "a")), "more than once"),
        (lambda: Category(("a",), fill="b"), "not in the vocabulary"),
        (lambda: Category(tuple(map(str, range(300))), dtype="int8"), "cannot hold 300 codes"),
        (lambda: Image((2, None, 3)), "expected (height, width, channels)"),
        (lambda: Image(null="mask"), "needs a shape"),
        (lambda: Group({"a": Scalar("int8"), "b": Scalar("int16")}), "different dtypes: int16, int8"),
        (lambda: Group({"a": Scalar("int8", null="mask"), "b": Scalar("int8")}), "all members or none"),
    ],
)
def test_fields_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize("given", [None, Scalar("int8"), Category([10, 20]), Image((2, 2, 3)), np.zeros(2)], ids=str)
def test_a_value_that_has_a_dtype_is_no_type(given: Any) -> None:
    for make in (Scalar, lambda type_: Tensor(type_, (2,)), lambda type_: Encoded(type_, (2,), "npy")):
        with pytest.raises(ConfigurationError, match="names no Arrow or numpy type"):
            make(given)


@pytest.mark.parametrize("item", [Category([10, 20]), Group(["a"], "int8"), Image((2, 2, 3)), Audio(8000)], ids=str)
def test_lists_of_other_fields_are_refused(item: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"the item is {type(item).__name__}\(\.\.\.\); lists hold numbers"):
        RaggedList(item)


def test_decimal_fills_are_floats() -> None:
    assert Scalar("decimal128(10, 2)", fill=Decimal("1.5")).fill == 1.5
    assert Image((1, 1, 1), fill=PNG).is_fixed


LEAF = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.float32()))])


@pytest.mark.parametrize(
    ("arrow", "expected"),
    [
        (pa.int16(), {"c": Scalar("int16")}),
        (pa.float64(), {"c": Scalar("float64", fill=NAN)}),
        (pa.decimal128(5, 2), {"c": Scalar("decimal128(5, 2)")}),
        (pa.timestamp("ns", "UTC"), {"c": Scalar("timestamp[ns, tz=UTC]")}),
        (pa.string_view(), {"c": Text()}),
        (pa.large_binary(), {"c": Bytes()}),
        (pa.binary(4), {"c": Tensor("uint8", (4,))}),
        (pa.list_(pa.int8(), 3), {"c": Tensor("int8", (3,), storage="list")}),
        (pa.list_(pa.list_(pa.float32(), 3), 2), {"c": Tensor("float32", (2, 3), fill=NAN, storage="list")}),
        (pa.list_(pa.string(), 3), {"c": RaggedList(Text())}),
        (pa.large_list(pa.float32()), {"c": RaggedList(Scalar("float32", fill=NAN))}),
        (pa.list_view(pa.list_(pa.int8())), {"c": RaggedList(RaggedList("int8"))}),
        (pa.struct([("p", LEAF)]), {"c.p.x": Scalar("int8"), "c.p.y": RaggedList(Scalar("float32", fill=NAN))}),
        (pa.list_(LEAF), {"c.x": RaggedList("int8"), "c.y": RaggedList(RaggedList(Scalar("float32", fill=NAN)))}),
        (pa.map_(pa.string(), pa.int8()), {"c.key": RaggedList(Text()), "c.value": RaggedList("int8")}),
        (pa.dictionary(pa.int8(), pa.string()), {"c": Text()}),
        (pa.run_end_encoded(pa.int32(), pa.int8()), {"c": Scalar("int8")}),
        (pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[1, 0]), {"c": Tensor("int8", (3, 2), storage="list")}),
        (pa.json_(), {"c": Text()}),
        (pa.uuid(), {"c": Tensor("uint8", (16,))}),
    ],
    ids=str,
)
def test_types_without_a_schema_become_fields(arrow: pa.DataType, expected: dict[str, Any]) -> None:
    assert infer_fields(pa.field("c", arrow)) == expected
    assert dict(Schema.from_arrow(pa.schema([("c", arrow)]))) == expected


@pytest.mark.parametrize(
    "arrow",
    [
        pa.null(),
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.list_(pa.null()),
        pa.dense_union([pa.field("a", pa.int8())]),
    ],
    ids=str,
)
def test_types_that_no_tensor_holds_are_refused_by_name(arrow: pa.DataType) -> None:
    with pytest.raises(
        SchemaError, match=r"column 'p\.c' has the type .*, which no tensor can hold; leave it out with columns="
    ):
        infer_fields(pa.field("p", pa.struct([pa.field("c", arrow)])))


def test_columns_that_would_be_delivered_under_one_name_are_refused() -> None:
    with pytest.raises(SchemaError, match="'a': there are two"):
        Schema.from_arrow(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    with pytest.raises(SchemaError, match=r"'a\.x': there are two"):
        Schema.from_arrow(pa.schema([("a.x", pa.int8()), ("a", pa.struct([("x", pa.int8())]))]))


WITHOUT_PANDAS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
from parquet_loader import BatchedDataLoader, OutputOptions, write_dataset

types = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
write_dataset({name: np.arange(8).astype(name) for name in types} | {"when": np.arange(8).astype("M8[us]")}, "rows")
with BatchedDataLoader("rows", 8, output_options=OutputOptions(format="numpy")) as loader:
    (batch,) = loader
for name in types:
    assert batch[name].dtype == name and batch[name].tolist() == np.arange(8).astype(name).tolist(), name
"""


def test_numbers_are_written_and_read_without_pandas(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


CROP: dict[str, Any] = {"size": 8, "crop": "center"}


@pytest.mark.parametrize(
    ("kind", "given", "plain"),
    [
        (Text, {"fill": np.str_("a"), "aliases": np.array(["b"])}, {"fill": "a", "aliases": ["b"]}),
        (Bytes, {"fill": np.bytes_(b"a")}, {"fill": b"a"}),
        (Scalar, {"type": "int64", "names": np.array(["a", "b"])}, {"type": "int64", "names": ["a", "b"]}),
        (Category, {"vocabulary": pa.array(["a", "b"])}, {"vocabulary": ["a", "b"]}),
        (Category, {"vocabulary": ["a", "b"], "unknown": np.str_("b")}, {"vocabulary": ["a", "b"], "unknown": "b"}),
        (Image, {"shape": tuple(np.array([8, 9, 3]))}, {"shape": (8, 9, 3)}),
        (Image, {**CROP, "resize": np.int64(9)}, {**CROP, "resize": 9}),
    ],
)
def test_values_of_numpy_and_arrow_make_the_field_of_plain_values(
    kind: Any, given: dict[str, Any], plain: dict[str, Any]
) -> None:
    schema = Schema({"x": kind(**given)})
    assert schema == Schema({"x": kind(**plain)})
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("shape", [(8.5, 9, 3), ("8", 9, 3)])
def test_lengths_of_an_image_are_whole_numbers(shape: Any) -> None:
    with pytest.raises(ConfigurationError, match="lengths are whole numbers"):
        Image(shape)
