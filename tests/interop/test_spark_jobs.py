"""Spark writes what training reads, through its Python workers; real PySpark on Java."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from parquet_loader import DataError, RaggedList, Scalar, Schema, SchemaError, Tensor, WriteOptions, write_dataset
from parquet_loader.write.spark import write_spark
from tests.support.field_kinds import KINDS, kind_rows, stored

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TYPES = (
    "id long, score float, small short, flag boolean, price decimal(10,2), stamp timestamp_ntz, day date, "
    "vector array<array<float>>, pixels array<short>, listed array<int>, tags array<int>, words array<string>, "
    "text string, blob binary, kind string, image binary, x float, y float, p float, q float"
)
SMALL = WriteOptions(row_group_bytes="1KiB", file_bytes="8KiB")


def ids(directory: Path) -> list[int]:
    return [
        i for file in sorted(directory.rglob("part-*.parquet")) for i in pq.ParquetFile(file).read()["id"].to_pylist()
    ]


def test_spark_writes_the_values_that_pandas_writes_for_every_kind_of_field(spark: Any, tmp_path: Path) -> None:
    write_dataset(pd.DataFrame(kind_rows(120)), tmp_path / "pandas", KINDS)
    df = spark.createDataFrame([tuple(row.values()) for row in kind_rows(120)], TYPES)
    summary = write_spark(df.repartition(3), tmp_path / "spark", KINDS)
    assert stored(tmp_path / "spark").equals(stored(tmp_path / "pandas"))
    assert summary.rows == 120


def test_vectors_dense_and_sparse_are_tensors(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    dense = [(i, Vectors.dense([i, 0.5, -i])) for i in range(50)]
    sparse = [(i, Vectors.sparse(3, {1: float(i)})) for i in range(50, 100)]
    df = spark.createDataFrame([*dense, *sparse], ["id", "v"])
    for name, schema in (
        ("given", Schema({"id": Scalar("int64"), "v": Tensor("float32", (3,))})),
        ("lists", Schema({"id": Scalar("int64"), "v": RaggedList("float64")})),
        ("inferred", None),
    ):
        write_spark(df, tmp_path / name, schema)
        table = pq.read_table(tmp_path / name).sort_by("id")
        if name == "given":
            assert table["v"][60].as_py() == pd.Series([0, 60, 0], dtype="f4").to_numpy().tobytes()
        elif name == "lists":
            assert table["v"].to_pylist()[49:51] == [[49.0, 0.5, -49.0], [0.0, 50.0, 0.0]]
        else:
            assert Schema.from_arrow(table.schema)["v"] == Tensor("float64", (3,), null="mask")


def test_vectors_may_be_null_and_have_spaces_in_their_names(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    vectors = [Vectors.dense([1.0, 2.0]), None, Vectors.sparse(2, {1: 5.0})]
    df = spark.createDataFrame(list(enumerate(vectors)), ["id", "a vector"])
    schema = Schema({"id": Scalar("int64"), "a vector": Tensor("float64", (2,), null="mask")})
    write_spark(df, tmp_path / "set", schema)
    stored = pq.read_table(tmp_path / "set").sort_by("id")["a vector"].to_pylist()
    assert [None if row is None else np.frombuffer(row).tolist() for row in stored] == [[1.0, 2.0], None, [0.0, 5.0]]


def test_names_of_columns_may_have_dots_and_backticks(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    names = ["id", "a.b", "a`b", "a` vector.`"]
    df = spark.createDataFrame([(n, 2 * n, 3 * n, Vectors.dense([n, 0.5])) for n in range(4)], names)
    write_spark(df, tmp_path / "set")
    table = pq.read_table(tmp_path / "set").sort_by("id")
    assert table.column_names == names
    assert table["a.b"].to_pylist() == [0, 2, 4, 6]
    assert table["a`b"].to_pylist() == [0, 3, 6, 9]
    assert np.frombuffer(table["a` vector.`"][3].as_py()).tolist() == [3.0, 0.5]


def test_files_are_sized_by_bytes_whatever_the_partitions(spark: Any, tmp_path: Path) -> None:
    schema = Schema({"id": Scalar("int64")})
    counts = []
    for partitions in (1, 20):
        summary = write_spark(
            spark.range(0, 2000, 1, partitions), tmp_path / "set", schema, mode="overwrite", options=SMALL
        )
        assert sorted(ids(tmp_path / "set")) == list(range(2000))
        counts.append(len(summary.files))
    assert max(counts) <= 3


def test_a_shuffled_job_is_a_function_of_the_seed(spark: Any, tmp_path: Path) -> None:
    schema = Schema({"id": Scalar("int64")})
    orders = []
    for seed in (1, 1, 2):
        write_spark(
            spark.range(0, 1000, 1, 4),
            tmp_path / "set",
            schema,
            mode="overwrite",
            shuffle=True,
            seed=seed,
            bucket_bytes=3000,
        )
        orders.append(ids(tmp_path / "set"))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(1000))


@pytest.mark.parametrize("version", ["installed", "3.5"])
def test_a_frame_without_rows_publishes_its_columns(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    df = spark.range(10).filter("id < 0").selectExpr("id", "cast(id as float) x")
    if version == "3.5":
        monkeypatch.setattr(type(df), "toArrow", property(lambda df: df.lacking))  # raises AttributeError
    write_spark(df, tmp_path / "set")
    table = pq.read_table(tmp_path / "set")
    assert (table.num_rows, table.schema.names) == (0, ["id", "x"])


def test_an_error_names_partition_field_and_row_and_publishes_nothing(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as sql

    df = spark.range(0, 100, 1, 4).withColumn("x", sql.when(sql.col("id") == 77, None).otherwise(1.0))
    schema = Schema({"id": Scalar("int64"), "x": Scalar("float64")})
    with pytest.raises(DataError, match="partition 3: field 'x', row 2: the value is null"):
        write_spark(df, tmp_path / "set", schema)
    with pytest.raises(SchemaError, match="column 'x' is not in the schema"):
        write_spark(df, tmp_path / "set", schema.select(["id"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_task_that_dies_half_way_is_retried_and_no_row_is_doubled(spark: Any, tmp_path: Path, how: str) -> None:
    marker = str(tmp_path / "marker")

    def breaks(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import time  # noqa: F401

        for batch in batches:
            yield batch
            if 30 in batch.column(0).to_pylist() and not os.path.exists(marker):
                open(marker, "w").close()
                if how == "exits":
                    os._exit(1)
                raise ConnectionError("the line went dead")

    (tmp_path / "sets").mkdir()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    df = spark.range(0, 100, 1, 2).mapInArrow(breaks, "id long")
    write_spark(df, tmp_path / "sets" / "set", Schema({"id": Scalar("int64")}))
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert os.path.exists(marker)
    assert sorted(ids(tmp_path / "sets" / "set")) == list(range(100))
    assert [p.name for p in (tmp_path / "sets").iterdir()] == ["set"]


def test_executors_load_no_torch(spark: Any, tmp_path: Path) -> None:
    def heavy(batches: Iterator[Any]) -> Iterator[Any]:
        import sys

        import pyarrow as pa

        from parquet_loader.write import spark as _  # noqa: F401

        for _batch in batches:
            yield pa.record_batch([pa.array([" ".join({"torch", "dask"} & set(sys.modules))])], ["loaded"])

    assert {row["loaded"] for row in spark.range(2).mapInArrow(heavy, "loaded string").collect()} == {""}
