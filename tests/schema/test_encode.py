"""Values of any form survive a round trip through a file; lossy values are refused, with field and row."""

from __future__ import annotations

import datetime as dt
import io
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PillowImage

from parquet_loader.errors import DataError, SchemaError
from parquet_loader.schema import (
    Bytes,
    Category,
    Group,
    Image,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    iter_tables,
    policy_of,
    to_table,
)
from parquet_loader.schema.ragged import Ragged
from tests.support.strategies import ELEMENTS, JPEG, PNG, Column, columns, numbers, read_back, same


def through_parquet(table: pa.Table) -> pa.Table:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return pq.read_table(sink)


def encoded(field: Any, values: Any) -> pa.Array:
    """Return the stored column after a round trip through a file."""
    schema = Schema({"x": field})
    table = to_table({"x": values}, schema)
    assert table.schema.equals(schema.arrow_schema(), check_metadata=True)
    table.validate(full=True)
    back = through_parquet(table)
    assert back.schema.equals(table.schema, check_metadata=True)
    assert back.equals(table) or "nan" in str(table["x"])
    return back["x"].combine_chunks()


def error_of(field: Any, values: Any) -> str:
    with pytest.raises((DataError, SchemaError)) as caught:
        to_table({"x": values}, Schema({"x": field}))
    return str(caught.value)


# -- round trips --


@given(columns())
def test_every_kind_of_field_gives_back_its_rows(column: Column) -> None:
    assert same(read_back(column.field, encoded(column.field, column.rows)), column.rows)


@given(columns())
def test_stored_columns_are_encoded_to_themselves(column: Column) -> None:
    stored = encoded(column.field, column.rows)
    again = encoded(column.field, stored)
    assert again.type == stored.type
    assert same(read_back(column.field, again), column.rows)


@given(columns().filter(lambda c: policy_of(c.field) == "refuse" and bool(c.rows)), st.data())
def test_nulls_are_refused_by_row_where_the_field_has_no_policy(column: Column, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(column.rows)))
    message = error_of(column.field, [*column.rows[:row], None, *column.rows[row:]])
    assert message.startswith(f"field 'x', row {row}: the value is null")
    assert all(policy in message for policy in ("refuse", "fill=", "null='mask'"))


@given(columns(), st.integers(1, 5))
def test_rows_cut_into_slices_are_the_same_rows(column: Column, slice_bytes: int) -> None:
    schema = Schema({"x": column.field})
    slices = list(iter_tables({"x": column.rows}, schema, slice_bytes))
    whole = to_table({"x": column.rows}, schema)
    rows = read_back(column.field, pa.concat_tables(slices)["x"])
    assert same(rows, read_back(column.field, whole["x"]))


@given(st.sampled_from(ELEMENTS), st.sampled_from(ELEMENTS), st.data())
def test_numbers_change_type_without_loss_or_not_at_all(source: str, target: str, data: st.DataObject) -> None:
    values = np.array(data.draw(st.lists(numbers(source), min_size=1, max_size=6)), dtype=source)
    try:
        stored = to_table({"x": values}, Schema({"x": Scalar(target)}))["x"].to_numpy()
    except DataError as error:
        row = int(str(error).partition("row ")[2].partition(":")[0])
        with np.errstate(all="ignore"):
            changed = values[row : row + 1].astype(target)
            assert changed[0] != values[row] or changed.astype(source)[0] != values[row]
        return
    except SchemaError:
        assert target == "bool"
        assert np.dtype(source).kind == "f"
        return
    if np.dtype(source).kind == np.dtype(target).kind == "f":
        with np.errstate(over="ignore"):
            assert np.array_equal(stored, values.astype(target), equal_nan=True)  # rounded as the schema says
        assert np.array_equal(np.isinf(stored), np.isinf(values))
    else:
        assert [v.item() for v in stored] == [v.item() for v in values]


# -- forms of a column --


NAIVE = dt.datetime(2020, 1, 1, 1)  # noqa: DTZ001  (a time without zone is what is meant)
FLOATS = [1.5, 2.5, -0.0]
BFLOAT16 = torch.tensor([1.5, -2.25], dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "values",
    [
        FLOATS,
        tuple(FLOATS),
        np.array(FLOATS),
        np.array(FLOATS, dtype=">f8"),
        np.array([*FLOATS, 9.0])[:3],
        np.repeat(FLOATS, 2)[::2],
        np.array(FLOATS, dtype=object),
        torch.tensor(FLOATS),
        [torch.tensor(v) for v in FLOATS],
        pa.array(FLOATS),
        pa.array([7.0, *FLOATS])[1:],
        pa.chunked_array([FLOATS[:1], FLOATS[1:]]),
        pa.array(FLOATS).dictionary_encode(),
        pd.Series(FLOATS),
        pd.Series(FLOATS, dtype="Float64"),
        pd.Series(FLOATS, dtype=object),
        pd.Series(FLOATS, index=[3, 1, 2]),
        pl.Series(FLOATS),
        [Decimal("1.5"), Decimal("2.5"), Decimal(0)],
    ],
    ids=lambda v: f"{type(v).__module__}.{type(v).__name__}",
)
def test_columns_are_taken_in_every_form(values: Any) -> None:
    assert encoded(Scalar("float32"), values).to_pylist() == FLOATS


ARRAY = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


@pytest.mark.parametrize("storage", ["raw", "list"])
@pytest.mark.parametrize(
    "values",
    [
        ARRAY,
        ARRAY.astype(np.int64),
        np.asfortranarray(ARRAY),
        torch.from_numpy(ARRAY),
        list(ARRAY),
        [torch.from_numpy(a) for a in ARRAY],
        [ARRAY[0], ARRAY[1].astype(np.int8)],
        ARRAY.tolist(),
        pd.Series(list(ARRAY)),
        pa.array(ARRAY.tolist()),
        pa.array(ARRAY.reshape(2, 6).tolist()),
        pa.array([list(row) for row in ARRAY.reshape(2, 6).astype(np.float16)], pa.list_(pa.float16(), 6)),
        pa.array([None, *ARRAY.tolist()], pa.list_(pa.list_(pa.float64(), 3), 2))[1:],
        pa.FixedShapeTensorArray.from_numpy_ndarray(ARRAY),
        pl.Series(ARRAY.tolist(), dtype=pl.Array(pl.Float32, (2, 3))),
        pa.array([a.tobytes() for a in ARRAY]),
        pa.array([a.tobytes() for a in ARRAY], pa.binary(24)),
    ],
    ids=lambda v: f"{type(v).__module__}.{type(v).__name__}",
)
def test_tensors_are_taken_in_every_form(values: Any, storage: Any) -> None:
    field = Tensor("float32", (2, 3), storage=storage)
    assert read_back(field, encoded(field, values)) == ARRAY.tolist()


ROWS = [[1, 2], [], [3]]


@pytest.mark.parametrize(
    "values",
    [
        ROWS,
        [np.array(r, dtype=np.int64) for r in ROWS],
        np.array([np.array(r, dtype=np.int64) for r in ROWS], dtype=object),
        [torch.tensor(r, dtype=torch.int64) for r in ROWS],
        [np.array([1, 2]), [], (3,)],
        (np.array([1, 2, 3]), np.array([0, 2, 2, 3])),
        (torch.tensor([1, 2, 3]), torch.tensor([0, 2, 2, 3])),
        Ragged(np.array([1, 2, 3]), np.array([0, 2, 2, 3])),
        pa.array(ROWS),
        pa.array([[9], *ROWS], pa.large_list(pa.int32()))[1:],
        pa.array(ROWS, pa.list_view(pa.int8())),
        pd.Series(ROWS),
        pl.Series(ROWS),
    ],
    ids=lambda v: f"{type(v).__module__}.{type(v).__name__}",
)
def test_ragged_rows_are_taken_in_every_form(values: Any) -> None:
    assert encoded(RaggedList("int16"), values).to_pylist() == ROWS


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        (Scalar("float32"), BFLOAT16, [1.5, -2.25]),
        (Scalar("float16"), BFLOAT16, [1.5, -2.25]),
        (Scalar("float32"), list(BFLOAT16), [1.5, -2.25]),
        (RaggedList("float32"), [BFLOAT16, BFLOAT16[:1]], [[1.5, -2.25], [1.5]]),
        (RaggedList("float32"), (BFLOAT16, torch.tensor([0, 1, 2])), [[1.5], [-2.25]]),
        (RaggedList("float32"), Ragged(BFLOAT16, torch.tensor([0, 2])), [[1.5, -2.25]]),
    ],
)
def test_bfloat16_is_taken_as_the_float32_of_the_same_value(field: Any, values: Any, expected: list[Any]) -> None:
    assert encoded(field, values).to_pylist() == expected


def test_tensors_of_bfloat16_are_taken_as_float32() -> None:
    for values in (BFLOAT16[None], [BFLOAT16]):
        array = encoded(Tensor("float32", (2,)), values)
        assert np.frombuffer(array[0].as_py(), np.float32).tolist() == [1.5, -2.25]
    assert Schema.from_frame({"x": BFLOAT16, "y": BFLOAT16[:, None]}) == Schema(
        {"x": Scalar("float32"), "y": Tensor("float32", (1,))}
    )


def by_runs(ends: list[int], values: pa.Array) -> pa.Array:
    """An array in which each value repeats up to its end."""
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)


@pytest.mark.parametrize(
    "values",
    [
        ["a", "ü", ""],
        np.array(["a", "ü", ""]),
        *([np.array(["a", "ü", ""], np.dtypes.StringDType())] if hasattr(np.dtypes, "StringDType") else []),  # numpy 2
        pd.Series(["a", "ü", ""]),
        pd.Series(["a", "ü", ""], dtype="category"),
        pl.Series(["a", "ü", ""]),
        pl.Series(["a", "ü", ""], dtype=pl.Categorical),
        pl.Series(["a", "ü", ""], dtype=pl.Enum(["ü", "", "a"])),
        pa.array(["a", "ü", ""], pa.string_view()),
        pa.DictionaryArray.from_arrays([1, 0, 2], pa.array(["ü", "a", ""], pa.string_view())),
        by_runs([2, 3, 4, 5], pa.array(["b", "a", "ü", ""], pa.string_view()))[2:],
        by_runs([1, 2, 3], by_runs([1, 2, 3], pa.array(["a", "ü", ""]))),
        by_runs([1, 2, 3], pa.array(["a", "ü", ""]).dictionary_encode()),
        pa.DictionaryArray.from_arrays([1, 0, 2], by_runs([1, 2, 3], pa.array(["ü", "a", ""]))),
        pa.DictionaryArray.from_arrays([1, 0, 2], pa.array(["ü", "a", ""]).dictionary_encode()),
        Ragged(np.frombuffer("aü".encode(), np.uint8), np.array([0, 1, 3, 3]), "text"),
    ],
    ids=lambda v: f"{type(v).__module__}.{type(v).__name__}",
)
def test_text_is_taken_in_every_form(values: Any) -> None:
    assert encoded(Text(), values).to_pylist() == ["a", "ü", ""]
    assert encoded(Category(("", "a", "ü"), storage="codes"), values).to_pylist() == [1, 2, 0] or isinstance(
        values, Ragged
    )


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1), st.integers(0, 12))
def test_decimals_become_the_nearest_float64(digits: list[int], scale: int) -> None:
    decimals = [Decimal(n).scaleb(-scale) for n in digits]
    group = Group({"x": Scalar(f"decimal128(20, {scale})")}, storage="packed")
    packed = to_table({"x": decimals}, Schema({"g": group}))["g"].to_pylist()
    assert np.frombuffer(b"".join(packed)).tolist() == [float(d) for d in decimals]
    assert encoded(Scalar("float64"), decimals).to_pylist() == [float(d) for d in decimals]


def test_times_are_taken_in_every_form() -> None:
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    seconds = int(moment.timestamp())
    utc = Scalar("timestamp[s, tz=UTC]")
    for values in ([moment], [seconds], np.array([seconds], "M8[s]"), pd.Series([moment]), pl.Series([moment])):
        assert read_back(utc, encoded(utc, values)) == [seconds]
    assert read_back(Scalar("date32"), encoded(Scalar("date32"), np.array(["1970-01-03"], "M8[D]"))) == [2]
    assert read_back(Scalar("timestamp[ms]"), encoded(Scalar("timestamp[ms]"), np.array([1], "M8[h]"))) == [3_600_000]
    assert read_back(Scalar("duration[us]"), encoded(Scalar("duration[us]"), [dt.timedelta(seconds=1)])) == [10**6]


def test_masked_arrays_and_missing_values_of_frames_are_nulls() -> None:
    field = Scalar("int8", null="mask")
    assert encoded(field, np.ma.MaskedArray([1, 2], mask=[False, True])).to_pylist() == [1, None]
    assert encoded(field, pd.Series([1.0, np.nan])).to_pylist() == [1, None]
    assert encoded(field, pd.Series([1, None], dtype="Int8")).to_pylist() == [1, None]
    assert encoded(field, pd.Series([1, pd.NA, np.nan, pd.NaT, None], dtype=object)).to_pylist() == [1] + [None] * 4
    assert encoded(Scalar("timestamp[us]", fill=0), pd.Series(pd.to_datetime(["2020-01-01", None]))).null_count == 1


def test_nan_of_pandas_stays_nan_where_a_float_field_refuses_nulls() -> None:
    series = pd.Series([1.0, np.nan])
    assert same(encoded(Scalar("float32"), series).to_pylist(), [1.0, np.nan])
    assert encoded(Scalar("float32", fill=0), series).to_pylist() == [1.0, None]
    assert same(encoded(Scalar("float32", fill=0), np.array([1.0, np.nan])).to_pylist(), [1.0, np.nan])


# -- images, groups, fields that the data lack --


def test_images_are_encoded_from_pixels_and_kept_if_encoded() -> None:
    pixels = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    field = Image((2, 4, 3))
    for values in (pixels[None], [pixels], [PillowImage.fromarray(pixels)], [torch.from_numpy(pixels)]):
        (stored,) = encoded(field, values).to_pylist()
        assert np.array_equal(np.asarray(PillowImage.open(io.BytesIO(stored))), pixels)
    grey = Image((2, 4, 1))
    (stored,) = encoded(grey, pixels[None, :, :, 0]).to_pylist()
    assert np.array_equal(np.asarray(PillowImage.open(io.BytesIO(stored))), pixels[:, :, 0])
    (stored,) = encoded(Image(encoding="jpeg"), [pixels]).to_pylist()
    assert stored.startswith(b"\xff\xd8\xff")
    assert encoded(Image(), [PNG, bytearray(JPEG)]).to_pylist() == [PNG, JPEG]


GROUPS = Schema(
    {
        "dense": Group(["a", "b"], "float32"),
        "packed": Group({"c": Scalar("int64", fill=7), "d": Category(("x", "y"), fill="y")}, storage="packed"),
    }
)


def test_packed_groups_hold_what_their_members_would_deliver() -> None:
    data = {"a": [1, 2, 3], "b": [4.5, 5, 6], "c": [1, None, 2**40], "d": ["y", "x", None]}
    table = through_parquet(to_table(data, GROUPS))
    assert table.column_names == ["a", "b", "packed"]
    matrix = np.frombuffer(b"".join(table["packed"].to_pylist()), np.int64).reshape(3, 2)
    assert matrix.tolist() == [[1, 1], [7, 0], [2**40, 1]]
    assert to_table(table, GROUPS).equals(table), "a stored group is taken as it is"


def test_groups_are_taken_as_matrices() -> None:
    data = {"dense": np.array([[1.0, 2.0]]), "packed": torch.tensor([[3, 1]])}
    columns_ = {"a": [1.0], "b": [2.0], "c": [3], "d": ["y"]}
    assert to_table(data, GROUPS).equals(to_table(columns_, GROUPS))
    with pytest.raises(DataError, match="field 'd', row 1: the code 2 is not in the vocabulary"):
        to_table({"dense": np.zeros((2, 2)), "packed": np.array([[3, 1], [3, 2]])}, GROUPS)
    with pytest.raises(SchemaError, match="as a matrix and its member 'a' as a column"):
        to_table({**data, "a": [1.0]}, GROUPS)


def test_missing_stands_in_for_columns_that_the_data_lack() -> None:
    schema = Schema(
        {
            "have": Scalar("int8"),
            "number": Scalar("decimal128(5, 2)", missing=0.5),
            "time": Scalar("timestamp[s]", missing=5),
            "tensor": Tensor("uint8", (2,), missing=7),
            "list": RaggedList("int8", missing=()),
            "text": Text(missing="?"),
            "word": Category(("a", "b"), missing="b"),
            "image": Image(missing=PNG),
            "group": Group({"m": Scalar("float32", missing=2)}),
            "packed": Group({"p": Scalar("int8"), "q": Scalar("int8", missing=3)}, storage="packed"),
        }
    )
    table = to_table({"have": [1, 2], "p": [1, 2]}, schema)
    rows = {name: table[name].to_pylist()[1] for name in table.column_names[1:]}
    moment = dt.datetime(1970, 1, 1, 0, 0, 5)  # noqa: DTZ001
    expected = {"number": Decimal("0.50"), "time": moment, "tensor": b"\7\7", "list": [], "text": "?", "word": "b"}
    assert rows == {**expected, "image": PNG, "m": 2.0, "packed": b"\2\3"}


# -- forms of a batch --


FRAME = {"a": [1, 2], "b": ["x", "y"]}
SCHEMA = Schema({"a": Scalar("int8"), "b": Text()})


@pytest.mark.parametrize(
    "batch",
    [
        FRAME,
        [{"a": 1, "b": "x"}, {"b": "y", "a": 2}],
        pa.table(FRAME),
        pa.record_batch(FRAME),
        pa.RecordBatchReader.from_batches(pa.table(FRAME).schema, [pa.record_batch(FRAME)]),
        pd.DataFrame(FRAME),
        pd.DataFrame(FRAME, index=[5, 6]),
        pl.DataFrame(FRAME),
        iter([pa.table(FRAME).slice(0, 1), {"a": [2], "b": ["y"]}]),
    ],
    ids=lambda v: f"{type(v).__module__}.{type(v).__name__}",
)
def test_batches_are_taken_in_every_form(batch: Any) -> None:
    assert to_table(batch, SCHEMA).to_pydict() == FRAME


def test_readers_are_never_held_as_a_whole() -> None:
    taken = itertools.count()

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            next(taken)
            yield pa.record_batch(FRAME)

    reader = pa.RecordBatchReader.from_batches(pa.record_batch(FRAME).schema, batches())
    tables = iter_tables(reader, SCHEMA)
    next(tables)
    assert next(taken) == 1


def test_large_batches_are_converted_in_pieces() -> None:
    sizes = [t.num_rows for t in iter_tables({"x": np.zeros((100, 1000))}, slice_bytes=80_000)]
    assert sizes == [10] * 10
    rows = [{"x": np.zeros(1000)} for _ in range(100)]
    assert max(t.num_rows for t in iter_tables(rows, slice_bytes=80_000)) <= 10


def test_rows_in_errors_are_counted_from_the_start_of_the_batch() -> None:
    values = np.zeros((100, 1000))
    values[57, 3] = 0.5
    with pytest.raises(DataError, match=r"field 'x', row 57: element \[3\]: the value 0.5 does not fit int8"):
        list(iter_tables({"x": values}, Schema({"x": Tensor("int8", (1000,))}), slice_bytes=80_000))


def test_without_a_schema_it_is_inferred() -> None:
    data = {
        "i": np.zeros(1, np.int16),
        "f": [1.5],
        "t": np.zeros((1, 2, 3), np.uint8),
        "l": [[1, 2]],
        "v": [np.zeros(3, np.float32)],
        "m": [np.zeros((2, 2), np.float32)],
        "s": ["x"],
        "d": np.array(["2020"], "M8[D]"),
        "r": (np.zeros((2, 3)), np.array([0, 2])),
        "n": [{"x": 1, "y": {"z": "q"}}],
        "k": [[{"u": 1}]],
    }
    nan = float("nan")
    table = to_table(data)
    assert dict(Schema.from_arrow(table.schema)) == {
        "i": Scalar("int16"),
        "f": Scalar("float64", fill=nan),
        "t": Tensor("uint8", (2, 3)),
        "l": RaggedList("int64"),
        "v": RaggedList("float32"),
        "m": Tensor("float32", (2, 2)),
        "s": Text(),
        "d": Scalar("date32"),
        "r": RaggedList(Tensor("float64", (3,))),
        "n.x": Scalar("int64"),
        "n.y.z": Text(),
        "k.u": RaggedList("int64"),
    }
    assert to_table(through_parquet(table)).equals(table), "a table that carries its schema keeps it"


def test_nested_columns_become_dotted_ones() -> None:
    table = pa.table(
        {
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int8())),
            "l": pa.array([[{"u": 1, "v": [1]}], [], None]),
            "s": pa.array([{"z": 1}, None, {"z": 2}]),
        }
    ).slice(0, 3)
    schema = Schema(
        {
            "m.key": RaggedList(Text(), fill=()),
            "m.value": RaggedList("int8", fill=()),
            "l.u": RaggedList("int8", fill=()),
            "l.v": RaggedList(RaggedList("int8"), fill=()),
            "s.z": Scalar("int8", null="mask"),
        }
    )
    assert to_table(table, schema).to_pydict() == {
        "m.key": [["k"], None, []],
        "m.value": [[1], None, []],
        "l.u": [[1], [], None],
        "l.v": [[[1]], [], None],
        "s.z": [1, None, 2],
    }
    assert to_table(table.slice(2), schema).to_pydict()["m.key"] == [[]]


@pytest.mark.parametrize("member", [{"z": 1}, [{"z": 1}], np.array([{"z": 1}])], ids=["struct", "list", "array"])
def test_nested_columns_may_begin_with_many_nulls(member: Any) -> None:
    field = Scalar("int8", null="mask") if isinstance(member, dict) else RaggedList("int8", fill=())
    written = to_table({"s": [None] * 100 + [member]}, Schema({"s.z": field}))
    assert written["s.z"].to_pylist() == [None] * 100 + [1 if isinstance(member, dict) else [1]]


# -- what is refused --


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        (Scalar("int8"), [1, 300], "row 1: the value 300 does not fit int8"),
        (Scalar("int32"), [1.0, 2.5], "row 1: the value 2.5 does not fit int32"),
        (Scalar("int32"), np.array([1.0, np.nan]), "row 1: the value nan does not fit int32"),
        (Scalar("float32"), [2**24 + 1], "row 0: the value 16777217 does not fit float32"),
        (Scalar("float32"), [1e300], "row 0: the value 1e+300 does not fit float32"),
        (Scalar("bool"), [0, 1, 2], "row 2: the value 2 does not fit bool"),
        (Scalar("int8"), ["1"], "the values are of type string, expected int8"),
        (Scalar("int8"), [1, "a"], "row 1: the value 'a' (str) does not go with the int64 before it"),
        (Scalar("int8"), [True, 2], "row 1: the value 2 (int) does not go with the bool before it"),
        (Scalar("date32"), [NAIVE.date(), NAIVE], "has a time of day, and other rows are dates"),
        (Scalar("timestamp[us]"), [NAIVE, NAIVE.replace(tzinfo=dt.UTC)], "a time with and one without a zone"),
        (Scalar("int64"), [2**70], "row 0: the value 1180591620717411303424 (int) has no Arrow type"),
        (Scalar("int64"), np.array([0], "M8[s]"), "a field of that time type delivers integers"),
        (Scalar("date32"), [NAIVE], "row 0: the value datetime.datetime(2020, 1, 1, 1, 0)"),
        (Scalar("date64"), [0, 5], "row 1: the value 5 does not fit date64"),
        (Scalar("timestamp[s]"), np.array([1], "M8[ms]"), "does not fit timestamp[s]"),
        (Scalar("timestamp[us, tz=Europe/Berlin]"), [NAIVE], "with and one without a zone"),
        (Scalar("decimal32(5, 2)"), [0.25, 0.125], "row 1: the value 0.125 does not fit decimal32(5, 2)"),
        (Scalar("decimal128(5, 2)"), [Decimal("1.234")], "row 0: the value Decimal('1.234') does not fit"),
        (Scalar("float32"), np.zeros((2, 3)), "the field would be Tensor('float64', (3,))"),
        (Scalar("float32"), np.zeros(2, complex), "dtype complex128, which Parquet cannot hold"),
        (Scalar("float32"), torch.zeros(1, requires_grad=True), "detach"),
        (Scalar("float32"), torch.zeros(1, dtype=torch.float8_e5m2), "a dtype that numpy knows"),
        (Scalar("float16"), torch.tensor([1e30], dtype=torch.bfloat16), "does not fit float16"),
        (Scalar("int8"), 3, "found int 3; rows given as dicts belong in a list"),
        (Scalar("int8"), "abc", "found str 'abc'"),
        (Tensor("int8", (2,)), np.zeros((2, 3)), "the array has the shape (2, 3), expected (2, 2)"),
        (Tensor("int8", (2,)), [[1, 2], [1]], "row 1: the tensor has the shape (1,), expected (2,)"),
        (Tensor("int8", (2,)), [[1, 2], [1, 300]], "row 1: element [1]: the value 300"),
        (Tensor("int8", (2, 2)), pa.array([[[1, 2], [3, 4]], [[1, 2], [3]]]), "row 1: a list has 1 items, expected 2"),
        (Tensor("int8", (2, 2)), pa.array([None, [[1, 2], [3, 400]]])[1:], "row 0: element [1, 1]: the value 400"),
        (Tensor("int8", (2,)), pa.array([[1, 2], [1, None]]), "row 1: an element of the tensor is null"),
        (Tensor("int8", (2,)), pa.array([b"ab", b"a"]), "row 1: the value has 1 bytes, expected 2"),
        (Text(), [1], "the values are of type int64, expected text"),
        (
            Text(),
            pa.DictionaryArray.from_arrays([0], pa.StructArray.from_arrays([by_runs([1], pa.array([1]))], ["x"])),
            "Arrow cannot decode dictionaries or runs of the type struct<x: run_end_encoded",
        ),
        (Text(), [b"a"], "the values are of type binary, expected text"),
        (Bytes(), ["a"], "the values are of type string, expected bytes"),
        (Text(), Ragged(np.array([255], np.uint8), np.array([0, 1])), "UTF8"),
        (RaggedList("int8"), [[1], [2, 300]], "row 1: item 1: the value 300"),
        (RaggedList(RaggedList("int8")), [[[1]], [[2], [3, None]]], "row 1: item 1: item 1: the value is null"),
        (RaggedList("int8"), [[1], 2], "row 1: the value 2 is not a list"),
        (RaggedList("int8"), ["ab"], "row 0: the value 'ab' is not a list"),
        (RaggedList("int8"), (np.zeros(3), np.array([0, 2])), "the offsets end at 2, but there are 3 values"),
        (RaggedList("int8"), (np.zeros(3), np.array([0, 2, 1, 3])), "offset 2 is 1"),
        (Category(("red", "green")), ["red", "gren"], "row 1: 'gren' is not in the vocabulary. Did you mean 'green'"),
        (Category(("red",)), [0, 1], "row 1: the code 1 is not in the vocabulary"),
        (
            Image(),
            [PNG, b"BM8bits"],
            "row 1: the bytes begin with b'BM8bits', as no JPEG, PNG, WebP, AVIF, GIF or TIFF does",
        ),
        (
            Image((2, 2, 3)),
            [np.zeros((2, 3, 3), np.uint8)],
            "row 0: the image has the shape (2, 3, 3), expected (2, 2, 3)",
        ),
        (Image(), [np.zeros((2, 2, 3))], "row 0: the image is float64 of shape (2, 2, 3), expected uint8"),
        (Image(), [np.zeros((2, 2), np.uint8)], "expected uint8 [h, w, 3]; declare Image((None, None, 1))"),
        (
            Image(),
            [np.zeros((3, 9, 8), np.uint8)],
            "expected uint8 [h, w, 3]; transpose(1, 2, 0) puts the channels last",
        ),
    ],
)
def test_values_that_do_not_fit_are_named(field: Any, values: Any, message: str) -> None:
    text = error_of(field, values)
    assert text.startswith(("field 'x'", "column 'x'"))
    assert message in text


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a": [1], "bb": ["x"]}, "column 'bb' is not in the schema. Did you mean 'b'?"),
        ({"a": [1]}, "the data lack column 'b', which the schema has. There are: 'a'. A field with missing=<value>"),
        ({"a": [1, 2], "b": ["x"]}, "'a' has 2 rows, 'b' has 1"),
        ([{"a": 1, "b": "x"}, 3], "item 1 of the list is int, not a dict"),
        ([{"a": 1}], "the data lack column 'b'"),
        ({3.5: [1]}, "the column name 3.5 is a float, not a str"),
        (5, "int is not a batch"),
        ("file.csv", "str is not a batch"),
        ({"a": 1, "b": "x"}, "rows given as dicts belong in a list"),
        (pa.table([[1], [1]], names=["a", "a"]), "column 'a': there are two"),
        (pd.DataFrame(FRAME).set_index("a"), "the frame's index is named 'a'"),
    ],
)
def test_batches_that_do_not_fit_are_refused(batch: Any, message: str) -> None:
    with pytest.raises((SchemaError, DataError)) as caught:
        to_table(batch, SCHEMA)
    assert message in str(caught.value)


def test_nothing_to_infer_from_is_an_error_and_nothing_to_write_is_not() -> None:
    with pytest.raises(SchemaError, match="no rows to infer a schema from"):
        to_table([])
    assert to_table([], SCHEMA).equals(SCHEMA.arrow_schema().empty_table())
    assert to_table({"a": [], "b": []}, SCHEMA).num_rows == 0
    with pytest.raises(SchemaError, match="column 'n' has the type null"):
        to_table({"n": [None]})
