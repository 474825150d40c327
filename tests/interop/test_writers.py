"""Data sets as other programs write them load as they are, with values equal to what plain pyarrow reads."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, ParquetDataset, Schema, SchemaError, Tensor
from tests.support import oracle
from tests.support.datasets import KINDS, Layout, make_table, write_layout
from tests.support.examples import grid

pytestmark = pytest.mark.filterwarnings(
    "ignore:The inplace keyword:DeprecationWarning"  # Dask calls pandas in a way that pandas deprecates
)

ROWS = 101
EVERYTHING = tuple(kind.name for kind in KINDS)


def assert_loads(root: Path | str) -> None:
    """The rows come once each, unshuffled and shuffled, in batches that do not divide the row groups."""
    for shuffle in (False, True):
        with BatchedDataLoader(str(root), 7, shuffle=shuffle, num_threads=2) as loader:
            batches = oracle.assert_epoch_equals(loader, str(root))
            assert sum(map(oracle.batch_rows, batches)) > 0
            assert len(loader) == len(batches)


def plain_columns(rows: int = ROWS) -> dict[str, Any]:
    """Columns that every data frame library knows."""
    rng = np.random.default_rng(5)
    score = rng.standard_normal(rows)
    score[::7] = np.nan
    return {
        "id": np.arange(rows),
        "count": rng.integers(-(2**31), 2**31, rows, dtype=np.int32),
        "score": score,
        "small": rng.standard_normal(rows).astype("f4"),
        "flag": rng.random(rows) < 0.5,
        "word": [("", "Ünï", "日本", "word")[i % 4] + str(i % 9) for i in range(rows)],
        "stamp": [dt.datetime(2013, 1, 1) + dt.timedelta(hours=i, microseconds=i) for i in range(rows)],  # noqa: DTZ001
        "kind": [("a", "b c", "ä/?")[i % 3] for i in range(rows)],
        "year": [2020 + i % 3 for i in range(rows)],
    }


# ---- pyarrow -------------------------------------------------------------------------------------------------------


@grid(
    "dictionary, compression, page_version",
    [True, False],
    ["none", "snappy", "gzip", "brotli", "zstd", "lz4"],
    ["1.0", "2.0"],
    everyday=lambda dictionary, compression, page_version: (
        dictionary == (compression in ("none", "snappy", "zstd"))
        and (page_version == "2.0") == (compression in ("snappy", "brotli", "zstd"))
    ),
)
def test_pyarrow_with_each_compression_and_page_version_loads(
    tmp_path: Path, compression: str, page_version: str, dictionary: bool
) -> None:
    layout = Layout(
        ((50, 3), (17,)), EVERYTHING, compression=compression, page_version=page_version, dictionary=dictionary
    )
    write_layout(layout, str(tmp_path))
    assert_loads(tmp_path)


@grid(
    "store_schema, version",
    [pytest.param(True, id="arrow schema"), pytest.param(False, id="bare")],
    [pytest.param(version, id=version) for version in ("1.0", "2.4", "2.6")],
    everyday=lambda store_schema, version: store_schema == (version != "1.0"),
)
def test_pyarrow_in_each_version_of_the_format_loads(tmp_path: Path, version: str, store_schema: bool) -> None:
    table = make_table(ROWS, EVERYTHING, np.random.default_rng(1))
    for start in (0, 40):
        pq.write_table(
            table.slice(start, 61 if start else 40),
            tmp_path / f"{start}.parquet",
            version=version,
            store_schema=store_schema,
            row_group_size=25,
            coerce_timestamps=None if version == "2.6" else "us",
            allow_truncated_timestamps=True,
        )
    assert_loads(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "kinds"),
    [
        ("DELTA_BINARY_PACKED", ("int32", "int64")),
        ("BYTE_STREAM_SPLIT", ("float", "double", "half", "int32", "int64", "fixed_blob")),
        ("DELTA_LENGTH_BYTE_ARRAY", ("text", "blob")),
        ("DELTA_BYTE_ARRAY", ("text", "blob", "fixed_blob")),
        ("RLE", ("flag",)),
        ("PLAIN", ("int32", "text", "flag", "double", "fixed_blob")),
    ],
)
@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
def test_each_encoding_loads(tmp_path: Path, encoding: str, kinds: tuple[str, ...], page_version: str) -> None:
    table = make_table(ROWS, kinds, np.random.default_rng(2))
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        use_dictionary=False,
        column_encoding=dict.fromkeys(kinds, encoding),
        data_page_version=page_version,
        data_page_size=128,
        row_group_size=40,
    )
    assert_loads(tmp_path)


def test_int96_timestamps_load_as_nanoseconds(tmp_path: Path) -> None:
    stamps = [dt.datetime(1970, 1, 1), dt.datetime(2262, 4, 1), dt.datetime(1700, 1, 1, 1, 2, 3, 4)]  # noqa: DTZ001
    table = pa.table({"stamp": pa.array(stamps, pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert_loads(tmp_path)
    with BatchedDataLoader(str(tmp_path), 3) as loader:
        (batch,) = loader
    assert batch["stamp"].tolist() == table["stamp"].cast(pa.int64()).to_pylist()


@pytest.mark.parametrize("nullable", [True, False], ids=["nullable", "not null"])
def test_nullable_and_required_columns_load_alike(tmp_path: Path, nullable: bool) -> None:
    table = make_table(ROWS, EVERYTHING, np.random.default_rng(3))
    if not nullable:
        keep = [f.name for f in table.schema if not table[f.name].null_count]
        table = table.select(keep)
        table = table.cast(pa.schema([f.with_nullable(False) for f in table.schema]))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    assert_loads(tmp_path)


def test_files_with_page_indexes_and_checksums_load(tmp_path: Path) -> None:
    table = make_table(ROWS, EVERYTHING, np.random.default_rng(4))
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        write_page_index=True,
        write_page_checksum=True,
        data_page_size=100,
        sorting_columns=[pq.SortingColumn(0)],
    )
    assert_loads(tmp_path)


def test_a_hive_partitioned_pyarrow_data_set_loads_with_its_partitions(tmp_path: Path) -> None:
    table = pa.table(plain_columns())
    pq.write_to_dataset(table, tmp_path, partition_cols=["year", "kind"])
    assert_loads(tmp_path)
    with BatchedDataLoader(str(tmp_path), ROWS) as loader:
        (batch,) = loader
    assert sorted(batch["year"].tolist()) == sorted(table["year"].to_pylist())
    assert sorted(batch["kind"].to_list()) == sorted(table["kind"].to_pylist())


def test_sidecar_files_and_hidden_folders_are_no_data(tmp_path: Path) -> None:
    write_layout(Layout(((20,),), ("float",)), str(tmp_path))
    table = pa.table({"id": [1]})
    pq.write_metadata(table.schema, tmp_path / "_metadata")
    pq.write_metadata(table.schema, tmp_path / "_common_metadata")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").write_bytes(b"crc")
    for folder in ("_temporary", ".ipynb_checkpoints", "_metadata_of_another_tool"):
        (tmp_path / folder).mkdir()
        pq.write_table(table, tmp_path / folder / "part.parquet")
    assert_loads(tmp_path)


def test_partitions_of_a_column_whose_name_begins_with_an_underscore_are_read(tmp_path: Path) -> None:
    pq.write_to_dataset(pa.table({"id": [1, 2], "_day": [3, 4]}), tmp_path, partition_cols=["_day"])
    assert_loads(tmp_path)
    with BatchedDataLoader(str(tmp_path / "*"), 2) as loader:
        (batch,) = loader
    assert sorted(batch["_day"].tolist()) == [3, 4]
    for name in (".half", "_old"):
        pq.write_table(pa.table({"id": [9]}), tmp_path / "_day=3" / f"{name}.parquet")
    for filesystem in (None, pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("file")))):
        assert ParquetDataset(str(tmp_path / "_day=*" / "*.parquet"), filesystem=filesystem).num_rows == 2


# ---- data frames ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "snappy", "gzip", "zstd"])
def test_pandas_files_load(tmp_path: Path, compression: str | None) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(plain_columns())
    frame["category"] = frame["word"].astype("category")
    frame["whole"] = frame["count"].astype("Int64")
    frame["berlin"] = frame["stamp"].dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    frame["embedding"] = [np.full(4, i, "f4") for i in range(ROWS)]
    frame["tags"] = [list(range(i % 4)) for i in range(ROWS)]
    frame["lag"] = pd.to_timedelta(np.arange(ROWS), unit="ms")
    frame.iloc[:60].to_parquet(tmp_path / "a.parquet", compression=compression, row_group_size=11)
    frame.iloc[60:].to_parquet(tmp_path / "b.parquet", compression=compression)
    assert_loads(tmp_path)


def test_a_pandas_index_is_a_column(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(plain_columns()).set_index("word")
    frame.to_parquet(tmp_path / "a.parquet")
    assert_loads(tmp_path)


def test_a_partitioned_pandas_data_set_loads(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pd.DataFrame(plain_columns()).to_parquet(tmp_path, partition_cols=["kind"], index=False)
    assert_loads(tmp_path)


def polars_frame() -> Any:
    pl = pytest.importorskip("polars")
    return pl.DataFrame(plain_columns()).with_columns(
        pl.col("word").cast(pl.Categorical).alias("category"),
        pl.col("kind").cast(pl.Enum(["a", "b c", "ä/?"])).alias("enum"),
        pl.Series("array", np.arange(ROWS * 3, dtype="i4").reshape(ROWS, 3), dtype=pl.Array(pl.Int32, 3)),
        pl.Series("tags", [list(range(i % 4)) for i in range(ROWS)], dtype=pl.List(pl.UInt16)),
        pl.Series("words", [["x"] * (i % 3) for i in range(ROWS)]),
        pl.Series("price", [Decimal(i) / 4 for i in range(ROWS)], dtype=pl.Decimal(12, 2)),
        pl.Series("raw", [bytes([i]) * (i % 5) for i in range(ROWS)]),
        pl.Series("day", [dt.date(2000, 1, 1) + dt.timedelta(days=i) for i in range(ROWS)]),
        pl.Series("clock", [dt.time(i % 24, 1, 2, 3) for i in range(ROWS)]),
        pl.struct(pl.col("id"), pl.struct(pl.col("score"), pl.col("word")).alias("inner")).alias("nested"),
    )


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_polars_files_load(tmp_path: Path, compression: Any) -> None:
    polars_frame().write_parquet(tmp_path / "a.parquet", compression=compression, row_group_size=30, data_page_size=200)
    assert_loads(tmp_path)


def test_a_partitioned_polars_data_set_loads(tmp_path: Path) -> None:
    """Polars keeps the partitions' columns in the files too."""
    polars_frame().write_parquet(tmp_path, partition_by=["year", "kind"])
    assert_loads(tmp_path)


def test_a_polars_data_set_with_its_partitions_in_the_paths_alone_loads(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    polars_frame().lazy().sink_parquet(pl.PartitionBy(tmp_path, key=["year", "kind"], include_key=False), mkdir=True)
    assert_loads(tmp_path)


def test_integers_of_polars_that_pyarrow_lacks_are_refused_by_name_and_other_columns_load(tmp_path: Path) -> None:
    """pyarrow opens no column of such a file, because it reads the Arrow schema that Polars stores."""
    pl = pytest.importorskip("polars")
    big = pl.Series(
        [{"i": n, "day": dt.date(2000, 1, 1)} for n in (1, -2)], dtype=pl.Struct({"i": pl.Int128, "day": pl.Date})
    )
    pl.DataFrame({"id": [1, 2], "raw": [b"a", b"b"], "big": big}).write_parquet(tmp_path / "a.parquet")

    with pytest.raises(SchemaError, match=r"column 'big\.i' has the Parquet type FIXED_LEN_BYTE_ARRAY"):
        _ = ParquetDataset(tmp_path).schema

    data = ParquetDataset(tmp_path, columns=["id", "raw", "big.day"])
    (batch,) = data.batches(2)
    assert batch["id"].tolist() == data.take([0, 1])["id"].tolist() == [1, 2]
    assert batch["raw"].to_list() == [b"a", b"b"]
    assert batch["big.day"].tolist() == [10957, 10957]
    (batch,) = BatchedDataLoader(tmp_path, 2, schema=Schema({"big.i": Tensor("uint8", (16,))}))
    assert batch["big.i"].tolist() == [[1] + [0] * 15, [254] + [255] * 15]


DUCKDB_ROWS = """
    select i as id, i * 1.5::double as score, case when i % 5 = 0 then null else i / 3.0::float end as maybe,
        'wörd ' || (i % 7) as word, [j for j in range(i % 4)] as tags, [i, i + 1, i + 2]::float[3] as vector,
        {'a': i::integer, 'b': {'c': 'x' || i}} as nested, map {'k' || i: i} as pairs,
        (i / 8)::decimal(10, 3) as price, (i % 200)::utinyint as tiny, i::usmallint as short, i::ubigint as large,
        i::hugeint as huge, timestamp '2013-01-01' + interval (i) hour as stamp,
        timestamptz '2013-01-01 00:00:00+00' + interval (i) minute as zoned, date '2013-01-01' + i::integer as day,
        time '01:02:03' as clock, ('b' || i)::blob as raw, i % 2 = 0 as flag, ('x')::enum('x', 'y') as enum,
        '00000000-0000-0000-0000-000000000001'::uuid as uuid, 2020 + i % 3 as year, 'k ' || (i % 2) as kind
    from range(101) r(i)
"""


@grid(
    "compression, version",
    ["uncompressed", "snappy", "gzip", "brotli", "lz4_raw", "zstd"],
    ["V1", "V2"],
    everyday=lambda compression, version: (version == "V1") == (compression in ("snappy", "brotli", "zstd")),
)
def test_duckdb_files_load(tmp_path: Path, compression: str, version: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.execute(
            f"copy ({DUCKDB_ROWS}) to '{tmp_path}/a.parquet' "
            f"(format parquet, compression {compression}, parquet_version {version}, row_group_size 40)"
        )
    assert_loads(tmp_path)


def test_a_partitioned_duckdb_data_set_loads(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.execute(f"copy ({DUCKDB_ROWS}) to '{tmp_path}/d' (format parquet, partition_by (year, kind))")
    assert_loads(tmp_path / "d")


def test_dask_data_sets_load(tmp_path: Path) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(pd.DataFrame(plain_columns()), npartitions=12)
    frame.to_parquet(str(tmp_path / "plain"), write_metadata_file=True)
    frame.to_parquet(str(tmp_path / "no index"), write_index=False, compression="zstd")
    frame.to_parquet(str(tmp_path / "partitioned"), partition_on=["year", "kind"])
    for name in ("plain", "no index", "partitioned"):
        assert_loads(tmp_path / name)


# ---- Spark ---------------------------------------------------------------------------------------------------------


def spark_frame(spark: Any) -> Any:
    from pyspark.sql import functions as sql

    return (
        spark.range(ROWS)
        .withColumn("score", sql.when(sql.col("id") % 5 == 0, None).otherwise(sql.col("id") / 3))
        .withColumn("small", (sql.col("id") * 0.25).cast("float"))
        .withColumn("short", (sql.col("id") % 100).cast("short"))
        .withColumn("byte", (sql.col("id") % 100).cast("byte"))
        .withColumn("flag", sql.col("id") % 2 == 0)
        .withColumn("word", sql.concat(sql.lit("wörd "), sql.col("id") % 7))
        .withColumn("raw", sql.encode(sql.col("word"), "UTF-8"))
        .withColumn("price", (sql.col("id") / 8).cast("decimal(10,3)"))
        .withColumn("big_price", (sql.col("id") / 8).cast("decimal(30,3)"))
        .withColumn("stamp", sql.timestamp_seconds(sql.col("id") * 3600 - 10**9))
        .withColumn("local", sql.col("stamp").cast("timestamp_ntz"))
        .withColumn("day", sql.to_date("stamp"))
        .withColumn("tags", sql.sequence(sql.lit(0), (sql.col("id") % 4).cast("int")))
        .withColumn("nested", sql.struct("id", sql.struct("word", "score").alias("inner")))
        .withColumn("records", sql.array(sql.struct("id", "word"), sql.struct("id", "word")))
        .withColumn("pairs", sql.create_map("word", "id"))
        .withColumn("year", (2020 + sql.col("id") % 3).cast("int"))
        .withColumn("kind", sql.concat(sql.lit("k "), sql.col("id") % 2))
    )


@pytest.mark.spark
@pytest.mark.parametrize("timestamps", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
@pytest.mark.parametrize("legacy", ["true", "false"], ids=["legacy", "standard"])
def test_spark_data_sets_load(spark: Any, tmp_path: Path, timestamps: str, legacy: str) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", timestamps)
    spark.conf.set("spark.sql.parquet.writeLegacyFormat", legacy)
    try:
        spark_frame(spark).repartition(3).write.parquet(str(tmp_path / "d"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
        spark.conf.unset("spark.sql.parquet.writeLegacyFormat")
    assert (tmp_path / "d" / "_SUCCESS").exists()
    assert_loads(tmp_path / "d")


@pytest.mark.spark
@pytest.mark.parametrize("compression", ["uncompressed", "gzip", "zstd", "lz4_raw"])
@pytest.mark.parametrize("version", ["PARQUET_1_0", "PARQUET_2_0"])
def test_spark_with_each_compression_and_writer_version_loads(
    spark: Any, tmp_path: Path, compression: str, version: str
) -> None:
    writer = spark_frame(spark).coalesce(1).write.option("parquet.writer.version", version)
    writer.option("parquet.page.size", 256).parquet(str(tmp_path / "d"), compression=compression)
    assert_loads(tmp_path / "d")


@pytest.mark.spark
def test_spark_partitions_and_many_small_files_load(spark: Any, tmp_path: Path) -> None:
    writer = spark_frame(spark).coalesce(1).write.option("maxRecordsPerFile", 10)
    writer.partitionBy("year", "kind").parquet(str(tmp_path / "d"))
    assert len(oracle.files_under(str(tmp_path / "d"))) >= 12
    assert_loads(tmp_path / "d")


@pytest.mark.spark
def test_spark_vectors_written_as_arrays_load_as_matrices(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import Vectors

    rows = [(i, Vectors.dense([float(i), i + 0.5, -i])) for i in range(ROWS)]
    frame = spark.createDataFrame(rows, ["id", "features"]).select("id", vector_to_array("features").alias("features"))
    frame.write.parquet(str(tmp_path / "d"))
    assert_loads(tmp_path / "d")
    with BatchedDataLoader(str(tmp_path / "d"), 10) as loader:
        assert {tuple(batch["features"].shape) for batch in loader} == {(10, 3), (1, 3)}
