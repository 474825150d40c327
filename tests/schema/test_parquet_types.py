"""Every type that common writers use is delivered as docs/types.md says, or refused by name."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    DataError,
    OutputOptions,
    ParquetDataset,
    Ragged,
    Schema,
    SchemaError,
    Tensor,
    write_dataset,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The inplace keyword:DeprecationWarning"  # Dask calls pandas in a way that pandas deprecates
)

NUMPY = OutputOptions(format="numpy")


def arrow(array: pa.Array, **options: Any) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table({"c": array}), path, **options)


def duckdb(expression: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        engine = pytest.importorskip("duckdb")
        with engine.connect() as connection:
            connection.execute(f"copy (select {expression} as c) to '{path}' (format parquet)")

    return write


def polars(make: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        pl = pytest.importorskip("polars")
        pl.DataFrame({"c": make(pl)}).write_parquet(path)

    return write


def pandas(make: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        pd = pytest.importorskip("pandas")
        pd.DataFrame({"c": make(pd)}).to_parquet(path)

    return write


def annotated(annotation: str) -> Callable[[Path], None]:
    """Write bytes, under a converted and logical type that pyarrow cannot write itself."""

    def write(path: Path) -> None:
        stream = io.BytesIO()
        pq.write_table(pa.table({"c": pa.array(["ab", "c"])}), stream, store_schema=False)
        whole = stream.getvalue()
        length = int.from_bytes(whole[-8:-4], "little")
        footer = whole[-8 - length : -8]
        changed = footer.replace(bytes.fromhex("25004c1c000000"), bytes.fromhex(annotation), 1)
        assert changed != footer
        path.write_bytes(whole[: -8 - length] + changed + len(changed).to_bytes(4, "little") + b"PAR1")

    return write


def spark_variant(path: Path) -> None:
    """Write what Spark 4.0 does for a VARIANT: no annotation, but its own metadata."""
    struct = pa.array([{"value": b"\x0c\x05", "metadata": b"\x01\x00\x00"}])
    said = {"type": "struct", "fields": [{"name": "c", "type": "variant", "nullable": True, "metadata": {}}]}
    table = pa.table({"c": struct}).replace_schema_metadata(
        {"org.apache.spark.sql.parquet.row.metadata": json.dumps(said, separators=(",", ":"))}
    )
    pq.write_table(table, path)


@dataclass(frozen=True)
class Case:
    """A column of one writer, and the columns of a batch: name, kind and the first row's value."""

    name: str
    write: Callable[[Path], None]
    expected: dict[str, tuple[str, Any]]


WHEN = dt.datetime(2020, 1, 1, 12)  # noqa: DTZ001
US = 1_577_880_000_000_000

DELIVERED = [
    Case("uint8", arrow(pa.array([1], pa.uint8())), {"c": ("uint8", 1)}),
    Case("uint16", arrow(pa.array([1], pa.uint16())), {"c": ("uint16", 1)}),
    Case("uint32", arrow(pa.array([2**32 - 1], pa.uint32())), {"c": ("uint32", 2**32 - 1)}),
    Case("uint64", arrow(pa.array([2**64 - 1], pa.uint64())), {"c": ("uint64", 2**64 - 1)}),
    Case("float16", arrow(pa.array([np.float16(1.5)], pa.float16())), {"c": ("float16", 1.5)}),
    Case("decimal in int32", arrow(pa.array([Decimal("1.5")], pa.decimal128(4, 1)), store_decimal_as_integer=True),
         {"c": ("float64", 1.5)}),
    Case("decimal in int64", arrow(pa.array([Decimal("1.5")], pa.decimal128(15, 1)), store_decimal_as_integer=True),
         {"c": ("float64", 1.5)}),
    Case("decimal in bytes", arrow(pa.array([Decimal("1.5")], pa.decimal128(4, 1))), {"c": ("float64", 1.5)}),
    Case("decimal256", arrow(pa.array([Decimal("1.5")], pa.decimal256(60, 1))), {"c": ("float64", 1.5)}),
    Case("int96", arrow(pa.array([WHEN], pa.timestamp("us")), use_deprecated_int96_timestamps=True),
         {"c": ("int64", US * 1000)}),
    Case("time ms", arrow(pa.array([1000], pa.time32("ms"))), {"c": ("int32", 1000)}),
    Case("time us", arrow(pa.array([1000], pa.time64("us"))), {"c": ("int64", 1000)}),
    Case("time ns", arrow(pa.array([1000], pa.time64("ns"))), {"c": ("int64", 1000)}),
    Case("timestamp s", arrow(pa.array([WHEN], pa.timestamp("s"))), {"c": ("int64", US // 1000)}),
    Case("timestamp ns", arrow(pa.array([WHEN], pa.timestamp("ns"))), {"c": ("int64", US * 1000)}),
    Case("timestamp with zone", arrow(pa.array([WHEN], pa.timestamp("us", "Europe/Berlin"))), {"c": ("int64", US)}),
    Case("date64", arrow(pa.array([WHEN.date()], pa.date64())), {"c": ("int32", 18262)}),
    Case("duration", arrow(pa.array([5], pa.duration("ms"))), {"c": ("int64", 5)}),
    Case("large string", arrow(pa.array(["a"], pa.large_string())), {"c": ("text", "a")}),
    Case("string view", arrow(pa.array(["a"], pa.string_view())), {"c": ("text", "a")}),
    Case("binary view", arrow(pa.array([b"a"], pa.binary_view())), {"c": ("bytes", b"a")}),
    Case("fixed-size binary", arrow(pa.array([b"ab"], pa.binary(2))), {"c": ("uint8", [97, 98])}),
    Case("bytes of 12 without annotation", arrow(pa.array([b"a" * 12], pa.binary(12))), {"c": ("uint8", [97] * 12)}),
    Case("uuid", arrow(pa.array([b"a" * 16], pa.uuid())), {"c": ("uint8", [97] * 16)}),
    Case("json", arrow(pa.array(['{"a":1}'], pa.json_())), {"c": ("text", '{"a":1}')}),
    Case("bool8", arrow(pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8()))), {"c": ("int8", 1)}),
    Case("bson", annotated("25284cdc000000"), {"c": ("bytes", b"ab")}),
    Case("enum", annotated("25084c4c000000"), {"c": ("bytes", b"ab")}),
    Case("geometry", annotated("6c0c22000000"), {"c": ("bytes", b"ab")}),
    Case("geography", annotated("6c0c24000000"), {"c": ("bytes", b"ab")}),
    Case("dictionary of int", arrow(pa.array([7, 7]).dictionary_encode()), {"c": ("int64", 7)}),
    Case("list", arrow(pa.array([[1, 2], [3]])), {"c": ("list of int64", [1, 2])}),
    Case("large list", arrow(pa.array([[1, 2], [3]], pa.large_list(pa.int8()))), {"c": ("list of int8", [1, 2])}),
    Case("list of lists", arrow(pa.array([[[1], []], [[3]]])), {"c": ("list of list of int64", [[1], []])}),
    Case("fixed-size list", arrow(pa.array([[1, 2]], pa.list_(pa.int8(), 2))), {"c": ("int8", [1, 2])}),
    Case("struct", arrow(pa.array([{"a": 1, "b": "x"}])), {"c.a": ("int64", 1), "c.b": ("text", "x")}),
    Case("map", arrow(pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))),
         {"c.key": ("list of text", ["k"]), "c.value": ("list of int8", [1])}),
    Case("list of lists of structs", arrow(pa.array([[[{"a": 1, "b": "x"}], []], []])),
         {"c.a": ("list of list of int64", [[1], []]), "c.b": ("list of list of text", [["x"], []])}),
    Case("list of maps", arrow(pa.array([[[("k", 1)], []], []], pa.list_(pa.map_(pa.string(), pa.int8())))),
         {"c.key": ("list of list of text", [["k"], []]), "c.value": ("list of list of int8", [[1], []])}),
    Case("fixed-shape tensor",
         arrow(pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((1, 2, 2), "f4"))),
         {"c": ("float32", [[1, 1], [1, 1]])}),
    Case("a plain struct like a variant", arrow(pa.array([{"metadata": b"m", "value": b"v"}])),
         {"c.metadata": ("bytes", b"m"), "c.value": ("bytes", b"v")}),
    Case("duckdb uuid", duckdb("'61616161-6161-6161-6161-616161616161'::UUID"), {"c": ("uint8", [97] * 16)}),
    Case("duckdb hugeint", duckdb("5::HUGEINT"), {"c": ("float64", 5.0)}),
    Case("duckdb bit", duckdb("'101'::BIT"), {"c": ("text", "101")}),
    Case("duckdb json", duckdb("""'{"a":1}'::JSON"""), {"c": ("text", '{"a":1}')}),
    Case("duckdb enum", duckdb("'a'::ENUM('a', 'b')"), {"c": ("text", "a")}),
    Case("duckdb timetz", duckdb("'12:00:00+02'::TIMETZ"), {"c": ("int64", 36_000_000_000)}),
    Case("duckdb timestamptz", duckdb("'2020-01-01 12:00:00+00'::TIMESTAMPTZ"), {"c": ("int64", US)}),
    Case("duckdb decimal", duckdb("1.5::DECIMAL(38, 1)"), {"c": ("float64", 1.5)}),
    Case("duckdb geometry", duckdb("'\\x01'::BLOB"), {"c": ("bytes", b"\x01")}),
    Case("polars categorical", polars(lambda pl: pl.Series(["a"], dtype=pl.Categorical)), {"c": ("text", "a")}),
    Case("polars enum", polars(lambda pl: pl.Series(["a"], dtype=pl.Enum(["a"]))), {"c": ("text", "a")}),
    Case("polars duration", polars(lambda pl: pl.Series([dt.timedelta(seconds=1)])), {"c": ("int64", 10**6)}),
    Case("polars array", polars(lambda pl: pl.Series([[1, 2]], dtype=pl.Array(pl.Int8, 2))), {"c": ("int8", [1, 2])}),
    Case("pandas categorical of int", pandas(lambda pd: pd.Categorical([7, 7])), {"c": ("int64", 7)}),
    Case("pandas Int64", pandas(lambda pd: pd.array([7], dtype="Int64")), {"c": ("int64", 7)}),
    Case("pandas boolean", pandas(lambda pd: pd.array([True], dtype="boolean")), {"c": ("bool", True)}),
    Case("pandas string", pandas(lambda pd: pd.array(["a"], dtype="string")), {"c": ("text", "a")}),
    Case("pandas period", pandas(lambda pd: pd.period_range("1970-02", periods=1, freq="M")), {"c": ("int64", 1)}),
    Case("pandas interval", pandas(lambda pd: pd.IntervalIndex.from_tuples([(1, 2)])),
         {"c.left": ("int64", 1), "c.right": ("int64", 2)}),
]  # fmt: skip

REFUSED = [
    ("interval", duckdb("INTERVAL 3 DAY"), "column 'c' has the Parquet type INTERVAL"),
    ("interval in a list", duckdb("[INTERVAL 3 DAY]"), "column 'c' has the Parquet type INTERVAL"),
    ("interval in a struct", duckdb("{'a': 1, 'i': INTERVAL 3 DAY}"), "column 'c.i' has the Parquet type INTERVAL"),
    ("interval in a map", duckdb("MAP {'k': INTERVAL 3 DAY}"), "column 'c.value' has the Parquet type INTERVAL"),
    ("variant", duckdb("5::VARIANT"), "column 'c' has the Parquet type VARIANT"),
    ("variant of Spark 4.0", spark_variant, "column 'c' has the Parquet type VARIANT"),
    ("an annotation of the future", annotated("6c0c32000000"), "column 'c' has the Parquet type an annotation that"),
    ("null", arrow(pa.nulls(2)), "column 'c' has the type null"),
]


def kind_of(value: Any) -> str:
    if not isinstance(value, Ragged):
        return str(value.dtype)
    if value.kind != "list":
        return value.kind
    return f"list of {kind_of(value.values)}"


def plain(value: Any) -> Any:
    if isinstance(value, Ragged):
        return [plain(row) for row in value.to_list()]
    if isinstance(value, list):
        return [plain(row) for row in value]
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("case", DELIVERED, ids=lambda case: case.name)
def test_a_type_is_delivered_as_documented(tmp_path: Path, case: Case) -> None:
    case.write(tmp_path / "c.parquet")
    with BatchedDataLoader(tmp_path / "c.parquet", 10, output_options=NUMPY) as loader:
        (batch,) = loader
    assert {name: kind_of(value) for name, value in batch.items()} == {n: k for n, (k, _) in case.expected.items()}
    assert {name: plain(value)[0] for name, value in batch.items()} == {n: v for n, (_, v) in case.expected.items()}


@pytest.mark.parametrize(("write", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_type_that_is_not_understood_is_refused_by_name(
    tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    write(tmp_path / "c.parquet")
    with pytest.raises(SchemaError, match=r"leave it out with columns=\[") as caught:
        BatchedDataLoader(tmp_path / "c.parquet", 10)
    assert message in str(caught.value)


def test_a_declared_schema_reads_the_bytes_of_an_interval(tmp_path: Path) -> None:
    duckdb("INTERVAL 3 DAY")(tmp_path / "c.parquet")
    schema = Schema({"c": Tensor("uint8", (12,))})
    with BatchedDataLoader(tmp_path / "c.parquet", 10, schema=schema, output_options=NUMPY) as loader:
        (batch,) = loader
    assert batch["c"].tolist() == [[0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]]


def test_a_member_of_a_struct_is_read_next_to_one_that_is_not_understood(tmp_path: Path) -> None:
    duckdb("{'a': 1, 'i': INTERVAL 3 DAY}")(tmp_path / "c.parquet")
    with BatchedDataLoader(tmp_path / "c.parquet", 10, columns=["c.a"], output_options=NUMPY) as loader:
        (batch,) = loader
    assert batch["c.a"].tolist() == [1]


def test_of_two_files_of_one_arrow_type_only_the_annotated_one_is_refused(tmp_path: Path) -> None:
    arrow(pa.array([b"a" * 12], pa.binary(12)), store_schema=False)(tmp_path / "a.parquet")
    duckdb("INTERVAL 3 DAY")(tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=r"b\.parquet: column 'c' has the Parquet type INTERVAL"):
        BatchedDataLoader(tmp_path, 10)


# ---- index columns -------------------------------------------------------------------------------------------------


def columns_of(path: Path, **options: Any) -> list[str]:
    with BatchedDataLoader(path, 10, **options) as loader:
        return list(loader.schema)


def test_an_index_without_a_name_is_left_out(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": [1, 2, 3]})
    frame[frame.x > 1].to_parquet(tmp_path / "a.parquet")
    frame.set_index([frame.x, frame.x]).rename_axis([None, None]).to_parquet(tmp_path / "b.parquet")
    assert "__index_level_1__" in pq.read_schema(tmp_path / "b.parquet").names
    assert columns_of(tmp_path) == ["x"]


def test_the_index_column_of_dask_is_left_out(tmp_path: Path) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    dd.from_pandas(pd.DataFrame({"x": [1, 2, 3]}), npartitions=2).to_parquet(str(tmp_path))
    assert "__null_dask_index__" in pq.read_schema(tmp_path / "part.0.parquet").names
    assert columns_of(tmp_path) == ["x"]


def test_files_with_and_without_an_index_column_load_together(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pd.DataFrame({"x": [1, 2, 3]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": [1, 2, 3]}, index=[5, 9, 6]).to_parquet(tmp_path / "b.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "b.parquet").names
    assert columns_of(tmp_path) == ["x"]


def test_an_index_column_is_delivered_to_whoever_names_it(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pd.DataFrame({"x": [1, 2]}, index=[8, 9]).to_parquet(tmp_path / "a.parquet")
    name = "__index_level_0__"
    assert columns_of(tmp_path, columns=[name, "x"]) == [name, "x"]
    with BatchedDataLoader(tmp_path, 10, filters=pc.field(name) == 9, output_options=NUMPY) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[2]]


def test_an_index_with_a_name_is_a_column(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pd.DataFrame({"x": [1, 2, 3], "user": [9, 4, 7]}).set_index("user").to_parquet(tmp_path / "a.parquet")
    assert columns_of(tmp_path) == ["x", "user"]


def test_an_arrow_table_of_a_frame_is_written_without_its_index(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    table = pa.Table.from_pandas(pd.DataFrame({"x": [1, 2]}, index=[8, 9]))
    write_dataset(table, tmp_path / "out")
    assert columns_of(tmp_path / "out") == ["x"]


# ---- INT96 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("year", [1, 1677, 2263, 9999])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"filters": pc.field("t").is_valid()}], ids=str)
def test_an_int96_timestamp_beyond_nanoseconds_is_an_error(tmp_path: Path, year: int, options: dict[str, Any]) -> None:
    times = [dt.datetime(2020, 1, 1), dt.datetime(year, 1, 1)]  # noqa: DTZ001
    table = pa.table({"t": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(DataError, match=f"column 't'.*the INT96 timestamp {year:04}-01-01 00:00:00 does not fit"):
        list(BatchedDataLoader(tmp_path / "t.parquet", 10, **options))


def test_an_int96_timestamp_in_a_list_is_looked_at_too(tmp_path: Path) -> None:
    times = [[dt.datetime(2020, 1, 1)], [dt.datetime(9999, 12, 31)]]  # noqa: DTZ001
    table = pa.table({"t": pa.array(times, pa.list_(pa.timestamp("us")))})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(DataError, match="9999-12-31"), BatchedDataLoader(tmp_path / "t.parquet", 10) as loader:
        list(loader)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_int96_timestamp_in_the_first_or_last_second_is_exact_or_an_error(
    tmp_path: Path, sign: int, nested: bool
) -> None:
    path, last = tmp_path / "t.parquet", sign * ((2**63 - 1) // 1000)

    def write(microseconds: int) -> None:
        times = pa.array([0, microseconds], pa.timestamp("us"))
        array = pa.ListArray.from_arrays([0, 1, 2], times) if nested else times
        pq.write_table(pa.table({"t": array}), path, use_deprecated_int96_timestamps=True)

    write(last)
    with ParquetDataset(path).rows(output_options=NUMPY) as rows:
        first = np.ravel(rows[1]["t"])
        if sign < 0 and first[0] > 0:
            pytest.skip("pyarrow 20 writes INT96 timestamps before 1970 as such of the year 2554")
        assert first.tolist() == [last * 1000]
    with BatchedDataLoader(path, 2, output_options=NUMPY) as loader:
        (batch,) = loader
        assert [np.ravel(row).tolist() for row in batch["t"]] == [[0], [last * 1000]]

    write(last + sign)
    problem = r"column 't'.* the INT96 timestamp (2262-04-11 23:47:16|1677-09-21 00:12:43) does not fit"
    with pytest.raises(DataError, match=problem), BatchedDataLoader(path, 2) as loader:
        list(loader)
    with pytest.raises(DataError, match=problem), ParquetDataset(path).rows() as rows:
        rows[1]
