"""An error about written values says what to give instead: for nulls a schema of all columns that have some."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image as PillowImage

from parquet_loader import (
    BatchedDataLoader,
    Category,
    DataError,
    Encoded,
    Group,
    Image,
    ParquetDataset,
    ParquetLoaderError,
    RaggedList,
    Scalar,
    Schema,
    SchemaError,
    Tensor,
    Text,
    from_pandas,
    write_dataset,
)

FRAME = pd.DataFrame(
    {
        "age": pd.array([31, None, 45, None], "Int16"),
        "name": ["Ann", "Bo", None, "Di"],
        "city": pd.Categorical(["Bonn", None, None, None]),
        "tags": [[1, 2], None, [3], []],
        "id": np.arange(4),
    }
)


def error_of(data: Any, path: Path, schema: Schema | None = None) -> ParquetLoaderError:
    with pytest.raises(ParquetLoaderError) as caught:
        write_dataset(data, path / "data", schema)
    assert not (path / "data").exists()
    return caught.value


def suggested(error: ParquetLoaderError) -> Schema:
    namespace: dict[str, Any] = {}
    exec(str(error).partition("such as\n\n")[2], namespace)
    schema = namespace["schema"]
    assert isinstance(schema, Schema)
    return schema


def test_an_error_about_a_null_lists_all_columns_with_nulls(tmp_path: Path) -> None:
    error = error_of(FRAME, tmp_path)
    assert isinstance(error, DataError)
    assert str(error).startswith("field 'age', row 1: the value is null, and the field refuses nulls")
    assert "nulls in rows 0 to 3: 'age' 2, 'name' 1, 'city' 3, 'tags' 1;" in str(error)


def test_the_schema_in_the_error_writes_and_loads_the_frame(tmp_path: Path) -> None:
    write_dataset(FRAME, tmp_path / "data", suggested(error_of(FRAME, tmp_path)))
    with BatchedDataLoader(tmp_path / "data", 4) as loader:
        batch = next(iter(loader))
    assert batch["age_valid"].tolist() == [True, False, True, False]
    assert batch["name"].to_list() == ["Ann", "Bo", "", "Di"]
    assert batch["id"].tolist() == [0, 1, 2, 3]


def test_from_pandas_names_the_columns_too() -> None:
    with pytest.raises(DataError, match="'age' 2, 'name' 1, 'city' 3, 'tags' 1") as caught:
        from_pandas(FRAME, batch_size=2)
    with from_pandas(FRAME, batch_size=4, schema=suggested(caught.value)) as loader:
        assert len(next(iter(loader))["age"]) == 4


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (
            Schema({"age": Scalar("float32"), "city": Category(["Bonn"])}, extra="infer"),
            "'age': Scalar('float32', null=",
        ),
        (Schema({"age": Scalar("int16"), "name": Text(fill="-")}, extra="drop"), "'name': Text(fill='-'),"),
        (Schema({"all": Group(["age", "id"], Scalar("float32"))}, extra="drop"), "'all': Group("),
    ],
    ids=["infer", "drop", "group"],
)
def test_the_schema_for_nulls_keeps_what_was_declared(schema: Schema, column: str, tmp_path: Path) -> None:
    error = error_of(FRAME, tmp_path, schema)
    assert column in str(error)
    made = suggested(error)
    assert made.extra == schema.extra
    write_dataset(FRAME, tmp_path / "data", made)


def test_nulls_inside_lists_are_counted(tmp_path: Path) -> None:
    rows = [{"x": [1, None]}, {"x": [None]}]
    error = error_of(rows, tmp_path, Schema({"x": RaggedList("int64")}))
    assert "nulls in rows 0 to 1: 'x' 2;" in str(error)
    write_dataset(rows, tmp_path / "data", suggested(error))


def test_unknown_columns_are_told_what_extra_does(tmp_path: Path) -> None:
    message = str(error_of(FRAME, tmp_path, Schema({"id": Scalar("int64")})))
    assert message.startswith("column 'age' is not in the schema (nor are 3 others). There are: 'id'. ")
    assert message.endswith(
        "Schema(fields, extra='drop') leaves such columns out, extra='infer' keeps them by their own types"
    )


def png() -> io.BytesIO:
    out = io.BytesIO()
    PillowImage.new("RGB", (3, 2)).save(out, "PNG")
    return out


@pytest.mark.parametrize("in_list", [True, False])
def test_images_of_pillow_are_written_as_rows(in_list: bool, tmp_path: Path) -> None:
    rows = [{"image": PillowImage.open(png()), "label": 1}]
    schema = Schema({"image": Image(), "label": Scalar("int64")})
    write_dataset(rows if in_list else iter(rows), tmp_path / "data", schema)
    with BatchedDataLoader(tmp_path / "data", 1) as loader:
        assert next(iter(loader))["image"][0].shape == (2, 3, 3)


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (PillowImage.open(png()), None, "an Image() field in schema= takes images"),
        (Path("a.png"), None, "path.read_bytes() what the file holds"),
        (Path("a.png"), Schema({"x": Image()}), "the value is the path 'a.png'; give the file's bytes"),
        ("a.png", Schema({"x": Image()}), "the value is the path 'a.png'; give the file's bytes"),
        ("a\ud800", None, "the text 'a\\ud800' has no form in UTF-8, as it holds a lone surrogate"),
    ],
    ids=["image", "path", "path of an image", "name of an image", "surrogate"],
)
def test_values_of_known_kinds_are_told_what_to_give(
    value: Any, schema: Schema | None, message: str, tmp_path: Path
) -> None:
    error = error_of([{"x": value}], tmp_path, schema)
    assert message in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("kind", ["rows", "frame"])
def test_uuids_are_their_bytes(kind: str, tmp_path: Path) -> None:
    keys = [uuid.UUID(int=1), None, uuid.UUID(int=2**128 - 1)]
    data: Any = [{"key": key} for key in keys] if kind == "rows" else pd.DataFrame({"key": keys})
    write_dataset(data, tmp_path / "data", Schema({"key": Tensor("uint8", (16,), null="mask")}))
    with BatchedDataLoader(tmp_path / "data", 3) as loader:
        batch = next(iter(loader))
    assert bytes(batch["key"][0].tolist()) == keys[0].bytes  # type: ignore[union-attr]
    assert batch["key_valid"].tolist() == [True, False, True]
    write_dataset([{"key": keys[0]}], tmp_path / "inferred")
    with BatchedDataLoader(tmp_path / "inferred", 1) as loader:
        assert next(iter(loader))["key"].shape == (1, 16)


NESTED_UUIDS = pa.list_(pa.list_(pa.uuid()))


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (pa.table({"x": pa.nulls(3, NESTED_UUIDS)}), 3),
        (pa.table({"x": pa.chunked_array([], NESTED_UUIDS)}), 0),
        (pa.RecordBatchReader.from_batches(pa.schema([("x", NESTED_UUIDS)]), []), 0),
    ],
    ids=["nulls", "no chunks", "no batches"],
)
def test_lists_of_lists_of_uuids_may_hold_no_uuid(data: Any, rows: int, tmp_path: Path) -> None:
    schema = Schema({"x": RaggedList(RaggedList(Tensor("uint8", (16,))), fill=())})
    write_dataset(data, tmp_path / "data", schema)
    assert ParquetDataset(tmp_path / "data").num_rows == rows


@pytest.mark.parametrize(
    ("shapes", "field"),
    [
        ([(2, 4), (0, 4), (3, 4)], RaggedList(Tensor("float32", (4,)))),
        ([(0, 4), (2, 4)], RaggedList(Tensor("float32", (4,)))),
        ([(2, 3, 3), (4, 5, 3)], Encoded("float32", (None, None, 3))),
    ],
)
def test_arrays_of_several_shapes_are_told_their_field(shapes: list[Any], field: Any, tmp_path: Path) -> None:
    rows = [np.ones(shape, np.float32) for shape in shapes]
    message = str(error_of({"boxes": rows}, tmp_path))
    assert message.startswith("field 'boxes', row ")
    written = message.partition(" need ")[2].removesuffix(" in schema=")
    assert eval(written, {"RaggedList": RaggedList, "Tensor": Tensor, "Encoded": Encoded}) == field
    write_dataset({"boxes": rows}, tmp_path / "data", Schema({"boxes": field}))
    with BatchedDataLoader(tmp_path / "data", len(rows)) as loader:
        (batch,) = loader
    assert [tuple(row.shape) for row in batch["boxes"]] == shapes


@pytest.mark.parametrize("rows", [np.zeros((2, 0, 3)), [np.zeros((0, 3))] * 2])
def test_arrays_without_values_are_named(rows: Any, tmp_path: Path) -> None:
    message = str(error_of({"x": rows}, tmp_path))
    assert message.startswith("column 'x': its arrays have the shape (0, 3), which holds no values; leave the column")


def test_a_pandas_dtype_without_an_arrow_form_is_told_to_be_converted(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": pd.arrays.SparseArray([0, 0, 1])})
    assert "Sparse[int64, 0] has no Arrow form" in str(error_of(frame, tmp_path))
    assert str(error_of(frame, tmp_path)).endswith("; convert it with astype")
    write_dataset(frame.astype("int64"), tmp_path / "data")


def test_the_pairs_of_a_map_are_told_their_form(tmp_path: Path) -> None:
    message = str(error_of({"tags": [[("a", 1)], []]}, tmp_path))
    assert "field 'tags', row 0: the value [('a', 1)] (list) has no Arrow type; " in message
    pair = eval(message.partition(" are dicts, ")[2])
    write_dataset({"tags": [[pair], []]}, tmp_path / "data")
    with BatchedDataLoader(tmp_path / "data", 2) as loader:
        (batch,) = loader
    assert batch["tags.key"].to_list() == [["a"], []]


@pytest.mark.parametrize(
    ("rows", "part"), [([[], []], "x"), ([{"a": 1, "b": None}], "x.b"), ([[{"a": 1, "b": []}]], "x.b")]
)
def test_the_part_of_a_column_without_values_is_named(rows: list[Any], part: str, tmp_path: Path) -> None:
    message = str(error_of({"x": rows}, tmp_path))
    assert message.startswith(f"column {part!r} has the type null, as it holds no values; leave the column out")


@pytest.mark.parametrize(("values", "what"), [([None, None], "nothing but nulls"), ([], "no values")])
def test_a_column_of_unknown_type_asks_for_a_field(values: list[Any], what: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object), "y": np.arange(len(values))})
    error = error_of(frame, tmp_path)
    assert isinstance(error, SchemaError)
    assert f"column 'x' has the type null, as it holds {what}; leave the column out, or give it a field" in str(error)
    write_dataset(frame, tmp_path / "data", Schema({"x": Scalar("float32", null="mask")}, extra="infer"))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            np.ones((2, 3), np.complex128),
            r"numpy's complex128 with 2 axes.*x\.view\('float64'\)\.reshape\(\*x\.shape, 2\)",
        ),
        (np.ones(2, np.complex64), r"numpy's complex64 has no Arrow type.*x\.view\('float32'\)"),
        ([np.ones(3, np.complex64)] * 2, r"numpy's complex64 has no Arrow type"),
        (np.ones(2, np.longdouble), r"has no Arrow type; convert it with astype"),
        (np.zeros((2, 1), "M8[s]"), r"numpy's datetime64\[s\] with 2 axes has no Arrow type"),
        (np.zeros(2, [("a", "i4")]), r"has no Arrow type.*columns of their own"),
        ([np.array([["a"]])] * 2, r"numpy's <U1 with 2 axes has no Arrow type"),
        (pd.Series(np.ones(2, np.complex128)), r"numpy's complex128 has no Arrow type.*x\.view\('float64'\)"),
    ],
)
def test_arrays_of_types_that_arrow_lacks_are_named(tmp_path: Path, values: Any, says: str) -> None:
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        pytest.skip("this machine has no longer floats")
    with pytest.raises(SchemaError, match=rf"column 'x': .*{says}"):
        write_dataset({"x": values}, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_complex_tensor_is_written_as_its_error_says(tmp_path: Path) -> None:
    x = (np.arange(6).reshape(2, 3) * (1 + 2j)).astype("complex64")
    write_dataset({"x": x.view("float32").reshape(*x.shape, 2)}, tmp_path / "data")
    with BatchedDataLoader(tmp_path / "data", 2) as loader:
        (batch,) = loader
    assert np.array_equal(batch["x"].numpy().view("complex64")[..., 0], x)


def test_python_objects_in_a_frame_of_polars_are_refused_and_not_written_as_addresses(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [1, 2], "name": pl.Series(["Ann", "Bo"], dtype=pl.Object)})
    error = error_of(frame, tmp_path)
    assert isinstance(error, SchemaError)
    assert "'name' holds Python objects (pl.Object)" in str(error)
    for columns in (frame.to_dict(), frame.to_dict() | {"name": list(frame["name"])}):
        write_dataset(columns, tmp_path / "data", mode="overwrite")
        with BatchedDataLoader(tmp_path / "data", 2) as loader:
            (batch,) = loader
        assert batch["name"].to_list() == ["Ann", "Bo"]


def test_a_type_of_polars_that_arrow_lacks_is_named_with_its_column(tmp_path: Path) -> None:
    for dtype in (pl.Int128, pl.List(pl.Int128)):
        frame = pl.DataFrame({"id": [1, 2]}).with_columns(pl.lit(None, dtype).alias("large"))
        error = error_of(frame, tmp_path)
        assert isinstance(error, SchemaError)
        assert f"column 'large' has the Polars type {dtype}, which Arrow lacks" in str(error)


def test_times_of_day_among_the_dates_of_a_struct_are_refused(tmp_path: Path) -> None:
    moment = dt.datetime(2020, 1, 1, 5, tzinfo=dt.UTC)
    rows = [{"at": {"day": moment.date()}}, {"at": {"day": moment}}]
    assert "row 1: the value datetime.datetime(2020, 1, 1, 5" in str(error_of(rows, tmp_path))


MOMENT = dt.datetime(2020, 1, 1, 5, tzinfo=dt.UTC)
DAY = MOMENT.date()


@pytest.mark.parametrize("form", [lambda v: v, lambda v: [v], lambda v: np.array([v], object), lambda v: [{"x": [v]}]])
@pytest.mark.parametrize(
    ("first", "other"),
    [
        (DAY, MOMENT),
        (DAY, 0.5),
        (DAY, pd.NaT),
        (MOMENT, 7),
        (MOMENT, Decimal("1.5")),
        (MOMENT, MOMENT.replace(tzinfo=None)),
        (dt.time(5), 0.5),
        (dt.timedelta(1), 7),
    ],
)
def test_other_values_among_times_are_refused(
    first: Any, other: Any, form: Callable[[Any], Any], tmp_path: Path
) -> None:
    message = str(error_of({"at": [form(first), form(first), form(other)]}, tmp_path))
    assert message.startswith("field 'at', row 2: the value ")


def test_an_error_about_nulls_in_thousands_of_columns_is_short(tmp_path: Path) -> None:
    frame = {"point": [{f"x{i}": i for i in range(3000)}, None]}
    error = error_of(frame, tmp_path)
    assert "'point.x19' 1 and 2980 more" in str(error)
    assert str(error).endswith("such as Schema.from_frame(data, nulls='mask')")
    assert len(str(error)) < 1000
    assert len(str(error_of(frame, tmp_path, Schema.from_frame({"point": frame["point"][:1]})))) < 1000
    write_dataset(frame, tmp_path / "data", Schema.from_frame(frame, nulls="mask"))


@pytest.mark.parametrize("dtype", ["M8[ps]", "m8[fs]", "M8[h]", "M8"])
@pytest.mark.parametrize("form", [lambda a: [{"when": a}], lambda a: {"when": [a, a]}], ids=["rows", "columns"])
def test_arrays_of_times_that_arrow_does_not_have_are_refused_with_their_column(
    dtype: str, form: Any, tmp_path: Path
) -> None:
    error = error_of(form(np.array([1, 2]).astype(dtype)), tmp_path)
    assert isinstance(error, SchemaError)
    assert f"column 'when': numpy's {np.dtype(dtype)} has no Arrow type; convert it with astype" in str(error)
