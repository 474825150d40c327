"""Nulls: one error names all columns with nulls and prints a schema to paste; schemas are inferred with policies."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    Category,
    ConfigurationError,
    DataError,
    Group,
    Image,
    OutputOptions,
    RaggedList,
    Scalar,
    Schema,
    SchemaError,
    SourceError,
    Tensor,
    Text,
    write_dataset,
)

NUMPY = OutputOptions(format="numpy")
WHEN = dt.datetime(2020, 1, 1)  # noqa: DTZ001
NULLS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "age": pa.array([31, None, 45, None], pa.int16()),
        "score": [0.5, None, 1.5, 2.5],
        "flag": [True, None, False, True],
        "name": ["Ann", "Bo", None, "Cy"],
        "blob": [b"a", None, b"c", b"d"],
        "when": pa.array([WHEN, None, WHEN, WHEN], pa.timestamp("us")),
        "tags": [[1, 2], None, [3, None], []],
        "pair": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
        "point": [{"x": 1, "y": "a"}, None, {"x": 3, "y": None}, {"x": 4, "y": "d"}],
        "it's": [1, 2, None, 4],
    }
)


def load(source: Any, **options: Any) -> dict[str, Any]:
    with BatchedDataLoader(source, 100, output_options=NUMPY, **options) as loader:
        (batch,) = loader
    return batch


def pasted(message: str) -> Schema:
    """Return the schema that an error prints, as if a user pasted it."""
    names: dict[str, Any] = {}
    exec(message.partition("\n\n")[2], names)
    schema = names["schema"]
    assert isinstance(schema, Schema)
    return schema


def null_error(source: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(source, **options)
    return str(caught.value)


# ---- the error -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"isolation": "process"}], ids=str)
def test_one_error_names_all_columns_with_nulls_and_their_share(tmp_path: Path, options: dict[str, Any]) -> None:
    pq.write_table(NULLS, tmp_path / "a.parquet")
    pq.write_table(NULLS.slice(0, 1), tmp_path / "b.parquet")
    message = null_error(tmp_path, **options)
    assert "a.parquet, row group 0, column 'age', row" in message
    for listed in ("'age' 40 % (2 of 5 rows)", "'name' 20 % (1 of 5 rows)", "'point.y' 40 %", "'it\\'s' 20 %"):
        assert listed in message or listed.replace("'it\\'s'", '"it\'s"') in message
    assert "'id'" not in message
    assert "'score'" not in message, "nulls of floats are NaN"


def test_the_share_of_nulls_of_a_group_is_that_of_its_values(tmp_path: Path) -> None:
    columns = {"a": [None, 1.0], "b": [None, 2.0], "c": pa.nulls(2, pa.float64())}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    message = null_error(tmp_path, schema=Schema({"x": Group(["a", "b", "c"], Scalar("float64"))}))
    assert "columns with nulls: 'x' 67 % (4 of 6 values); the default" in message


@pytest.mark.parametrize("statistics", [True, False])
def test_the_schema_that_an_error_prints_can_be_pasted(tmp_path: Path, statistics: bool) -> None:
    pq.write_table(NULLS, tmp_path / "a.parquet", write_statistics=statistics)
    message = null_error(tmp_path)
    schema = pasted(message)
    batch = load(tmp_path, schema=schema)
    assert batch["age_valid"].tolist() == [True, False, True, False]
    assert batch["age"].tolist() == [31, 0, 45, 0]
    assert batch["point.y_valid"].tolist() == [True, False, False, True]
    assert np.isnan(batch["score"]).tolist() == [False, True, False, False]
    assert [row.tolist() for row in batch["tags"]] == [[1, 2], [], [3, 0], []]
    assert ("may have some, as statistics do not say" in message) != statistics or "'tags'" in message


def test_the_schema_that_an_error_prints_completes_the_one_given(tmp_path: Path) -> None:
    pq.write_table(NULLS, tmp_path / "a.parquet")
    given = Schema({"age": Scalar("float32"), "city": Category(["x"], missing="x"), "id": Scalar("int64")})
    schema = pasted(null_error(tmp_path, schema=given))
    assert list(schema) == ["age", "city", "id"]
    assert schema["age"] == Scalar("float32", null="mask")
    assert load(tmp_path, schema=schema)["age_valid"].sum() == 2


@pytest.mark.parametrize("field", [Image(), Image((None, None, 1), flip=0.5), Image((None, None, 4))], ids=str)
def test_the_schema_that_an_error_prints_reads_nulls_among_images_of_any_size(tmp_path: Path, field: Image) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    write_dataset({"image": [np.full((5, 4, 3), 9, np.uint8)]}, tmp_path / "d", Schema({"image": Image()}))
    (stored,) = pq.read_table(tmp_path / "d")["image"].to_pylist()
    pq.write_table(pa.table({"image": [stored, None]}), tmp_path / "a.parquet")
    read = pasted(null_error(tmp_path / "a.parquet", schema=Schema({"image": field})))
    with pytest.raises(DataError) as caught:
        write_dataset([{"image": stored}, {"image": None}], tmp_path / "e", Schema({"image": field}))
    written = pasted(str(caught.value))
    assert read == written
    write_dataset([{"image": stored}, {"image": None}], tmp_path / "e", written)
    assert pq.read_table(tmp_path / "e")["image"].to_pylist() == [stored, None]
    channels = field.shape[2]
    for batch in (load(tmp_path / "a.parquet", schema=read), load(tmp_path / "e")):
        assert batch["image_valid"].tolist() == [True, False]
        assert [image.shape for image in batch["image"]] == [(5, 4, channels), (1, 1, channels)]


def test_a_mask_whose_name_is_taken_is_printed_as_a_fill(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, None], "x_valid": [1, 0]}), tmp_path / "a.parquet")
    assert pasted(null_error(tmp_path))["x"] == Scalar("int64", fill=0)


def test_the_report_of_a_row_group_that_is_left_out_is_one_line(tmp_path: Path) -> None:
    pq.write_table(NULLS, tmp_path / "a.parquet")
    with BatchedDataLoader(tmp_path, 2, on_error="skip", output_options=NUMPY) as loader:
        assert list(loader) == []
        (skipped,) = loader.stats().skipped_row_groups
    assert "\n" not in skipped.reason
    assert "'age' 50 % (2 of 4 rows)" in skipped.reason


# ---- inferred schemas ----------------------------------------------------------------------------------------------


def test_empty_lists_without_nulls_by_the_types_of_the_file_need_no_mask(tmp_path: Path) -> None:
    def lists(item: pa.DataType, *, nullable: bool = False) -> pa.DataType:
        return pa.list_(pa.field("element", item, nullable=nullable))

    types = {
        "never": lists(pa.int64()),
        "nested": lists(lists(pa.string())),
        "items": lists(pa.int64(), nullable=True),
        "rows": lists(pa.int64()),
    }
    fields = [pa.field(name, type_, nullable=name == "rows") for name, type_ in types.items()]
    rows = {"never": [[1], []], "nested": [[["x"], []], []], "items": [[1], []], "rows": [[1], []]}
    pq.write_table(pa.table(rows, schema=pa.schema(fields)), tmp_path / "a.parquet")
    schema = Schema.infer(tmp_path, nulls="mask")
    assert [name for name, field in schema.items() if field.null == "mask"] == ["items", "rows"]


def test_a_schema_is_inferred_with_masks(tmp_path: Path) -> None:
    pq.write_table(NULLS, tmp_path / "a.parquet")
    schema = Schema.infer(tmp_path, nulls="mask")
    assert schema["id"] == Scalar("int64")
    assert schema["age"] == Scalar("int16", null="mask")
    assert schema["score"] == Scalar("float64", null="mask")
    assert schema["tags"] == RaggedList(Scalar("int64", fill=0), null="mask")
    batch = load(tmp_path, schema=schema)
    assert batch["score"].tolist() == [0.5, 0.0, 1.5, 2.5]
    assert batch["score_valid"].tolist() == [True, False, True, True]


@pytest.mark.parametrize("item", [pa.float32(), pa.int32()], ids=str)
def test_a_schema_with_masks_reads_nulls_within_tensors(tmp_path: Path, item: pa.DataType) -> None:
    pairs = pa.array([[1, None], [2, 3], None], pa.list_(item, 2))
    pq.write_table(pa.table({"pair": pairs}), tmp_path / "a.parquet")
    batch = load(tmp_path, schema=Schema.infer(tmp_path, nulls="mask"))
    assert batch["pair_valid"].tolist() == [True, True, False]
    assert batch["pair"][:2].ravel().tolist() == [
        1,
        pytest.approx(math.nan if item == pa.float32() else 0, nan_ok=True),
        2,
        3,
    ]


def test_the_error_about_a_null_within_a_masked_tensor_prints_a_schema_that_reads_it(tmp_path: Path) -> None:
    pq.write_table(pa.table({"pair": pa.array([[1, None], [2, 3]], pa.list_(pa.int32(), 2))}), tmp_path / "a.parquet")
    message = null_error(tmp_path, schema=Schema({"pair": Tensor("int32", (2,), null="mask")}))
    assert "'pair', row 0: in its tensor: is null (1 nulls here); columns that may have some" in message
    assert load(tmp_path, schema=pasted(message))["pair"].tolist() == [[1, 0], [2, 3]]


def test_a_schema_is_inferred_with_fills(tmp_path: Path) -> None:
    pq.write_table(NULLS, tmp_path / "a.parquet")
    schema = Schema.infer(tmp_path, nulls="fill")
    assert schema["age"] == Scalar("int16", fill=0)
    assert schema["score"] == Scalar("float64", fill=math.nan)
    assert schema["flag"] == Scalar("bool", fill=False)
    assert schema["name"] == Text(fill="")
    assert schema["tags"] == RaggedList(Scalar("int64", fill=0), fill=())
    assert schema["pair"] == Tensor("int8", (2,), fill=0, storage="list")
    batch = load(tmp_path, schema=schema)
    assert batch["age"].tolist() == [31, 0, 45, 0]
    assert np.isnat(batch["when"].view("M8[us]")).tolist() == [False, True, False, False]
    assert not any(name.endswith("_valid") for name in batch)


def test_an_inferred_schema_reads_what_no_schema_reads(tmp_path: Path) -> None:
    pq.write_table(NULLS.select(["id", "score"]), tmp_path / "a.parquet")
    with BatchedDataLoader(tmp_path, 4) as loader:
        assert Schema.infer(tmp_path) == loader.schema
    assert list(Schema.infer(tmp_path, columns=["score"])) == ["score"]


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "dict"])
def test_a_schema_is_made_of_a_frame(tmp_path: Path, library: str) -> None:
    columns: dict[str, Any] = {"id": [1, 2], "age": [31.0, None], "name": ["Ann", None]}
    frame: Any = columns
    if library in ("pandas", "polars"):
        frame = pytest.importorskip(library).DataFrame(columns)
    elif library == "arrow":
        frame = pa.table(columns)
    masked = Schema.from_frame(frame, nulls="mask")
    assert dict(masked) == {"id": Scalar("int64"), "age": Scalar("float64", null="mask"), "name": Text(null="mask")}
    filled = Schema.from_frame(frame, nulls="fill")
    assert filled["name"] == Text(fill="")
    assert filled["age"] == Scalar("float64", fill=math.nan)
    write_dataset(frame, tmp_path / "d", masked)
    assert load(tmp_path / "d")["name_valid"].tolist() == [True, False]


def test_an_iterator_has_no_schema_of_a_frame() -> None:
    with pytest.raises(ConfigurationError, match="an iterator can be read only once"):
        Schema.from_frame(iter([{"x": [1]}]), nulls="mask")
    with pytest.raises(ConfigurationError, match="expected 'mask' or 'fill'"):
        Schema.from_frame({"x": [1]}, nulls="drop")  # type: ignore[arg-type]


# ---- partial schemas -----------------------------------------------------------------------------------------------

OLD = pa.table({"id": [1, 2], "weight_kg": [60.0, 70.0], "name": ["Ann", "Bo"]})
NEW = pa.table({"name": ["Cy"], "id": [3], "weight": [80.0], "height": [1.8]})


def test_missing_and_aliases_stand_next_to_inferred_columns(tmp_path: Path) -> None:
    pq.write_table(OLD, tmp_path / "a.parquet")
    pq.write_table(NEW, tmp_path / "b.parquet")
    fields = {"weight": Scalar("float32", aliases=["weight_kg"]), "height": Scalar("float32", missing=-1)}
    batch = load(tmp_path, schema=Schema(fields, extra="infer"))
    assert list(batch) == ["id", "weight", "name", "height"]
    assert batch["weight"].tolist() == [60.0, 70.0, 80.0]
    assert batch["height"].tolist() == [-1.0, -1.0, np.float32(1.8)]
    assert batch["name"].to_list() == ["Ann", "Bo", "Cy"]
    assert load(tmp_path, schema=Schema(fields, extra="infer"), columns=["weight", "id"]).keys() == {"weight", "id"}


def test_a_partial_schema_goes_over_the_one_that_files_carry(tmp_path: Path) -> None:
    write_dataset({"a": [1, 2], "b": [3, 4]}, tmp_path / "d", Schema({"a": Scalar("int8"), "b": Scalar("int16")}))
    with BatchedDataLoader(tmp_path / "d", 2, schema=Schema({"b": Scalar("float32")}, extra="infer")) as loader:
        assert loader.schema == Schema({"a": Scalar("int8"), "b": Scalar("float32")})


def test_a_group_takes_the_place_of_its_inferred_members(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0], "n": [1], "y": [2.0]}), tmp_path / "a.parquet")
    batch = load(tmp_path, schema=Schema({"xy": Group(["x", "y"], "float32")}, extra="infer"))
    assert list(batch) == ["xy", "n"]
    assert batch["xy"].tolist() == [[1.0, 2.0]]


def test_the_alias_of_a_packed_member_and_a_nested_column_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"p": [{"x": 1}], "old": [2]}), tmp_path / "a.parquet")
    group = Group({"new": Scalar("int64", aliases="old")})
    batch = load(tmp_path, schema=Schema({"x": Scalar("int64", aliases=("p.x",)), "g": group}))
    assert batch["x"].tolist() == [1]
    assert batch["g"].tolist() == [[2]]


def test_an_alias_belongs_to_one_field() -> None:
    with pytest.raises(SchemaError, match="the alias 'b' belongs to field 'b' already"):
        Schema({"a": Scalar("int8", aliases="b"), "b": Scalar("int8")})


def test_aliases_and_extra_survive_json(tmp_path: Path) -> None:
    schema = Schema({"a": Scalar("int8", aliases=("b", "c"))}, extra="drop")
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_json(schema.to_json()).extra == "drop"
    assert schema != Schema(dict(schema))
    with pytest.raises(ConfigurationError, match="extra='keep'"):
        Schema({}, extra="keep")  # type: ignore[arg-type]


def test_a_writer_drops_columns_that_the_schema_leaves_out(tmp_path: Path) -> None:
    batch = {"id": [1], "junk": [object()], "nested": [{"a": 1}]}
    with pytest.raises(SchemaError, match="'junk'"):
        write_dataset({"id": [1], "junk": ["x"]}, tmp_path / "a", Schema({"id": Scalar("int8")}))
    write_dataset(batch, tmp_path / "b", Schema({"id": Scalar("int8")}, extra="drop"))
    assert load(tmp_path / "b").keys() == {"id"}


def test_a_writer_infers_columns_that_the_schema_leaves_out(tmp_path: Path) -> None:
    schema = Schema({"city": Category(["Cork", "Bergen"])}, extra="infer")
    write_dataset({"id": [1, 2], "city": ["Bergen", "Cork"], "name": ["a", "b"]}, tmp_path / "d", schema)
    batch = load(tmp_path / "d")
    assert list(batch) == ["id", "city", "name"]
    assert batch["city"].tolist() == [1, 0]
    write_dataset({"id": [3], "city": ["Cork"], "name": ["c"]}, tmp_path / "d", schema, mode="append")
    assert sorted(load(tmp_path / "d")["id"].tolist()) == [1, 2, 3]


def test_jobs_of_dask_infer_columns_that_the_schema_leaves_out(tmp_path: Path) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    from parquet_loader.write.dask import write_dask

    frame = dd.from_pandas(pd.DataFrame({"id": [1, 2], "city": ["Bergen", "Cork"]}), npartitions=2)
    schema = Schema({"city": Category(["Cork", "Bergen"])}, extra="infer")
    write_dask(frame, tmp_path / "d", schema, scheduler="synchronous")
    batch = load(tmp_path / "d")
    assert sorted(zip(batch["id"].tolist(), batch["city"].tolist(), strict=True)) == [(1, 1), (2, 0)]


# ---- files that differ ---------------------------------------------------------------------------------------------


def test_all_differences_between_files_are_listed(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(OLD, tmp_path / f"a{number}.parquet")
    pq.write_table(NEW.set_column(1, "id", pa.array(["x"])), tmp_path / "b.parquet")
    with pytest.raises(SchemaError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert message.startswith("4 columns differ between files: ")
    assert "'id' differs: " in message
    assert "a0.parquet (and 2 more) have Scalar('int64')" in message
    assert "b.parquet has Text()" in message
    for name in ("weight_kg", "weight", "height"):
        assert f"{name!r} differs: " in message
    assert message.count("no such column") == 3


def test_a_single_difference_that_is_not_explained_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({f"c{n}": [1] for n in range(5)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({f"c{n}": ["x"] for n in range(5)}), tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=r"has Text\(\); so does 'c4'; pass schema="):
        load(tmp_path)


def test_the_list_of_differences_is_bounded(tmp_path: Path) -> None:
    pq.write_table(pa.table({f"c{n}": [1] for n in range(500)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({f"c{n}": ["x"] for n in range(500)}), tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=r"500 columns differ between files: .* and 480 more") as caught:
        load(tmp_path)
    assert len(str(caught.value)) < 3_000


def test_all_columns_that_do_not_fit_a_schema_are_listed(tmp_path: Path) -> None:
    pq.write_table(OLD, tmp_path / "a.parquet")
    pq.write_table(NEW, tmp_path / "b.parquet")
    schema = Schema({"id": Text(), "weight": Scalar("float32"), "gone": Scalar("int8")})
    with pytest.raises(SchemaError) as caught:
        load(tmp_path, schema=schema)
    message = str(caught.value)
    assert message.startswith("3 columns do not fit the schema: ")
    assert "(and 1 more), column 'id': the type int64 cannot be read as Text()" in message
    assert "a.parquet: there is no column 'weight'. Did you mean" in message
    assert "one with aliases=<names> files with other names for it" in message
    assert "(and 1 more): there is no column 'gone'" in message


def test_a_partition_that_some_files_store_too_is_one_column(tmp_path: Path) -> None:
    for day, stored in ((1, {"x": [1], "day": ["1"], "k": ["a"]}), (2, {"x": [2], "k": ["a"]})):
        folder = tmp_path / "x" / f"k=a{day}" / f"day=d{day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table(stored), folder / "0.parquet")
    batch = load(tmp_path / "x")
    assert batch["day"].to_list() == ["1", "d2"]
    assert batch["k"].to_list() == ["a", "a"]
    assert load(tmp_path / "x", columns=["day"]).keys() == {"day"}
    pq.write_table(pa.table({"x": [3], "day": [3]}), tmp_path / "x" / "k=a1" / "day=d1" / "1.parquet")
    with pytest.raises(SchemaError, match=r"column 'day' differs: .*0.parquet.* have Text.*1.parquet has Scalar"):
        load(tmp_path / "x")


def test_an_inferred_schema_has_no_split_to_choose(tmp_path: Path) -> None:
    for name in ("train", "test"):
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"{name}.parquet")
    with pytest.raises(SourceError, match=r"mixes the splits .*; pass the directory or files of one of them"):
        Schema.infer(tmp_path)
    assert Schema.infer(tmp_path / "train.parquet") == Schema({"x": Scalar("int64")})


def test_nulls_of_partitions_are_counted(tmp_path: Path) -> None:
    for number, shop in enumerate(("Cork", "Bonn", "__HIVE_DEFAULT_PARTITION__")):
        folder = tmp_path / "sales" / f"year={2020 + number}" / f"shop={shop}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1.0] * (number + 1)}), folder / "0.parquet")
    schema = Schema.infer(tmp_path / "sales", nulls="mask")
    assert schema["year"] == Scalar("int64")
    assert schema["shop"] == Text(null="mask")
    with pytest.raises(DataError, match=r"columns with nulls: 'shop' 50 % \(3 of 6 rows\); the default"):
        list(BatchedDataLoader(tmp_path / "sales", 6))


def test_the_escaped_word_of_hives_null_is_text(tmp_path: Path) -> None:
    """DuckDB 2.0 escapes the text, and not the null."""
    for shop in ("%5F_HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__", "a%20b"):
        (tmp_path / f"shop={shop}").mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"shop={shop}" / "0.parquet")
    batch = load(tmp_path, schema=Schema({"shop": Text(null="mask")}))
    found = zip(batch["shop"].to_list(), batch["shop_valid"].tolist(), strict=True)
    assert sorted(found) == [("", False), ("__HIVE_DEFAULT_PARTITION__", True), ("a b", True)]


@pytest.mark.parametrize("field", [Scalar("int64", aliases=["j"], fill=-1), Scalar("int64", missing=7)])
def test_aliases_and_missing_do_not_replace_names_of_directories(tmp_path: Path, field: Scalar) -> None:
    for folder in ("k=1", "j=2"):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / folder / "a.parquet")
    with pytest.raises(SchemaError, match=r"j=2.a.parquet: column 'k' comes from names of directories.* none named k="):
        load(tmp_path, schema=Schema({"x": Scalar("int64"), "k": field}))
    pq.write_table(pa.table({"x": [1], "k": [3]}), tmp_path / "j=2" / "a.parquet")
    load(tmp_path, schema=Schema({"x": Scalar("int64"), "k": field}))


def test_an_error_about_nulls_in_thousands_of_columns_is_short(tmp_path: Path) -> None:
    pq.write_table(pa.table({"point": [{f"x{i}": i for i in range(3000)}, None]}), tmp_path / "a.parquet")
    message = null_error(tmp_path)
    assert "'point.x19' 50 % (1 of 2 rows) and 2980 more" in message
    assert message.endswith("such as Schema.infer(source, nulls='mask')")
    assert len(message) < 2000
    assert len(null_error(tmp_path, schema=Schema.infer(tmp_path))) < 2000
    assert load(tmp_path, schema=Schema.infer(tmp_path, nulls="mask"))["point.x7_valid"].tolist() == [True, False]
