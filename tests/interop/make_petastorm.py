"""Makes the data sets in `tests/fixtures/petastorm` with Petastorm, and writes down what Petastorm reads of them.

Petastorm 0.13.1 needs an environment of its own, with an old pyarrow, and Java for Spark:

    python3.11 -m venv petastorm && . petastorm/bin/activate
    pip install "pyarrow==14.0.2" "numpy<2" "pandas<2.2" "pyspark==3.5.1" "setuptools<70" \
        dill diskcache fsspec future opencv-python-headless==4.9.0.80 packaging psutil pyzmq six
    pip install --no-deps petastorm==0.13.1
    python tests/interop/make_petastorm.py OUTPUT_DIRECTORY

The script runs there and imports nothing of this library.
"""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
from petastorm import make_batch_reader, make_reader
from petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from petastorm.etl.dataset_metadata import materialize_dataset
from petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from petastorm.etl.rowgroup_indexing import build_rowgroup_index
from petastorm.ngram import NGram
from petastorm.predicates import in_intersection, in_lambda, in_negate, in_pseudorandom_split, in_reduce, in_set
from petastorm.selectors import IntersectIndexSelector, SingleIndexSelector, UnionIndexSelector
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

ROWS = 24

Everything = Unischema(
    "Everything",
    [
        UnischemaField("part", np.str_, ()),
        UnischemaField("id", np.int64, ()),
        UnischemaField("short", np.int32, (), ScalarCodec(spark_types.ShortType()), False),
        UnischemaField("int8", np.int8, (), ScalarCodec(spark_types.ByteType()), False),
        UnischemaField("uint8", np.uint8, ()),
        UnischemaField("uint16", np.uint16, ()),
        UnischemaField("odd", np.bool_, ()),
        UnischemaField("float32", np.float32, (), ScalarCodec(spark_types.FloatType()), False),
        UnischemaField("float64", np.float64, ()),
        UnischemaField("text", np.str_, (), ScalarCodec(spark_types.StringType()), False),
        UnischemaField("decimal", Decimal, (), ScalarCodec(spark_types.DecimalType(12, 4)), False),
        UnischemaField("moment", np.datetime64, (), ScalarCodec(spark_types.TimestampType()), False),
        UnischemaField("day", np.datetime64, (), ScalarCodec(spark_types.DateType()), False),
        UnischemaField("int_null", np.int32, (), None, True),
        UnischemaField("float_null", np.float64, (), None, True),
        UnischemaField("text_null", np.str_, (), None, True),
        UnischemaField("decimal_null", Decimal, (), ScalarCodec(spark_types.DecimalType(6, 2)), True),
        UnischemaField("png", np.uint8, (8, 6, 3), CompressedImageCodec("png"), False),
        UnischemaField("jpeg", np.uint8, (16, 16, 3), CompressedImageCodec("jpeg", 90), False),
        UnischemaField("grey", np.uint8, (8, 6), CompressedImageCodec("png"), False),
        UnischemaField("grey16", np.uint16, (8, 6), CompressedImageCodec("png"), False),
        UnischemaField("colour16", np.uint16, (4, 5, 3), CompressedImageCodec("png"), False),
        UnischemaField("png_any", np.uint8, (None, None, 3), CompressedImageCodec("png"), False),
        UnischemaField("png_null", np.uint8, (3, 2, 3), CompressedImageCodec("png"), True),
        UnischemaField("matrix", np.float32, (3, 4), NdarrayCodec(), False),
        UnischemaField("matrix_null", np.uint16, (2, 2), NdarrayCodec(), True),
        UnischemaField("half", np.float16, (3,), NdarrayCodec(), False),
        UnischemaField("flags", np.bool_, (5,), NdarrayCodec(), False),
        UnischemaField("ragged", np.int32, (None,), NdarrayCodec(), False),
        UnischemaField("points", np.float64, (None, 3), CompressedNdarrayCodec(), False),
        UnischemaField("packed", np.float32, (5,), CompressedNdarrayCodec(), False),
        UnischemaField("wild", np.uint8, (None, 2, None), NdarrayCodec(), False),
        UnischemaField("names", np.str_, (None,), NdarrayCodec(), False),
        UnischemaField("names_null", np.str_, (None,), NdarrayCodec(), True),
        UnischemaField("sensor", np.str_, (1,), NdarrayCodec(), False),
        UnischemaField("words", np.bytes_, (None, None), NdarrayCodec(), False),
    ],
)

Series = Unischema(
    "Series",
    [
        UnischemaField("ts", np.int64, (), ScalarCodec(spark_types.LongType()), False),
        UnischemaField("value", np.float32, (), ScalarCodec(spark_types.FloatType()), False),
        UnischemaField("vector", np.float32, (2,), NdarrayCodec(), False),
    ],
)


def everything_row(i: int) -> dict[str, Any]:
    """Return row `i`, always the same."""
    rng = np.random.default_rng(i)
    matrix = rng.random((3, 4), dtype=np.float32)
    if i % 3 == 1:
        matrix = np.asfortranarray(matrix)
    if i % 3 == 2:
        matrix = matrix.astype(">f4")
    smooth = np.add.outer(np.arange(16), np.arange(16))[..., None] * np.array([3, 5, 7]) + i
    return {
        "part": f"p_{i // 12}",
        "id": np.int64(i),
        "short": np.int32(i - 5),
        "int8": np.int8(-i),
        "uint8": np.uint8(i * 10),
        "uint16": np.uint16(i * 2000),
        "odd": np.bool_(i % 2),
        "float32": np.float32(i / 3),
        "float64": np.float64(i / 7),
        "text": f"row {i} é",
        "decimal": Decimal(i * 12345) / Decimal(10000),
        "moment": dt.datetime(2020, 1, 1 + i, 2, 3, 4, 567000 + i),  # noqa: DTZ001  (Spark reads it in its own zone, UTC)
        "day": dt.date(2021, 2, 1 + i),
        "int_null": None if i % 2 else np.int32(i),
        "float_null": None if i % 3 else np.float64(i),
        "text_null": None if i % 4 == 0 else np.str_(f"t{i}"),
        "decimal_null": None if i % 5 == 0 else Decimal(i) / Decimal(4),
        "png": rng.integers(0, 255, (8, 6, 3), np.uint8),
        "jpeg": smooth.astype(np.uint8),
        "grey": rng.integers(0, 255, (8, 6), np.uint8),
        "grey16": rng.integers(0, 65535, (8, 6), np.uint16),
        "colour16": rng.integers(0, 65535, (4, 5, 3), np.uint16),
        "png_any": rng.integers(0, 255, (1 + i % 4, 2 + i % 3, 3), np.uint8),
        "png_null": None if i % 3 == 0 else rng.integers(0, 255, (3, 2, 3), np.uint8),
        "matrix": matrix,
        "matrix_null": None if i % 2 == 0 else rng.integers(0, 65535, (2, 2), np.uint16),
        "half": rng.random(3).astype(np.float16),
        "flags": rng.random(5) > 0.5,
        "ragged": np.arange(i % 5, dtype=np.int32) * i,
        "points": rng.random((i % 4, 3)),
        "packed": rng.random(5, dtype=np.float32),
        "wild": rng.integers(0, 255, (i % 3, 2, i % 4), np.uint8),
        "names": np.asarray([f"n{k}é" for k in range(i % 3)], dtype=np.str_),
        "names_null": None if i % 5 == 0 else np.asarray(["a", "bcd"][: i % 3], dtype=np.str_),
        "sensor": np.asarray([f"sensor{i % 3}"], dtype=np.str_),
        "words": np.asarray([["x" * (i % 3), "y\0z"], ["", "w"]], dtype=np.bytes_),
    }


def series_row(i: int) -> dict[str, Any]:
    """Return row `i` of a series with a gap behind every seventh row."""
    return {
        "ts": np.int64(i * 10 + (i // 7) * 100),
        "value": np.float32(i),
        "vector": np.array([i, -i], np.float32),
    }


def write(spark: Any, url: str, schema: Any, rows: list[dict[str, Any]], files: int, **options: Any) -> None:
    """Write rows as Petastorm's documentation does."""
    partition = options.pop("partition", None)
    with materialize_dataset(spark, url, schema, **options):
        encoded = [dict_to_spark_row(schema, row) for row in rows]
        parts = spark.sparkContext.parallelize(encoded, files)
        frame = spark.createDataFrame(parts, schema.as_spark_schema())
        writer = frame.write.option("compression", "snappy").mode("overwrite")
        if partition:
            writer = writer.partitionBy(partition)
        writer.parquet(url)


def plain(spark: Any, url: str) -> None:
    """Write a data set that Petastorm knows nothing of."""
    fields = [
        spark_types.StructField("id", spark_types.IntegerType(), False),
        spark_types.StructField("long", spark_types.LongType(), True),
        spark_types.StructField("real", spark_types.DoubleType(), False),
        spark_types.StructField("text", spark_types.StringType(), False),
        spark_types.StructField("flag", spark_types.BooleanType(), False),
        spark_types.StructField("amount", spark_types.DecimalType(8, 3), False),
        spark_types.StructField("day", spark_types.DateType(), False),
        spark_types.StructField("moment", spark_types.TimestampType(), False),
        spark_types.StructField("blob", spark_types.BinaryType(), False),
        spark_types.StructField("list", spark_types.ArrayType(spark_types.FloatType(), False), False),
        spark_types.StructField("half_of", spark_types.IntegerType(), False),
    ]
    rows = [
        (
            i,
            None if i % 4 == 0 else i * 10,
            i / 3,
            f"text {i}",
            i % 2 == 0,
            Decimal(i) / 8,
            dt.date(2020, 1, 1 + i),
            dt.datetime(2020, 1, 1 + i, 3),  # noqa: DTZ001
            bytes([i, 0, 1]),
            [float(i), i / 2, -1.0],
            i // 10,
        )
        for i in range(20)
    ]
    frame = spark.createDataFrame(rows, spark_types.StructType(fields)).coalesce(2)
    frame.write.option("compression", "snappy").mode("overwrite").partitionBy("half_of").parquet(url)


def as_json(value: Any) -> Any:
    """Return any value that Petastorm reads as JSON that says its type too."""
    if type(value).__name__ == "Categorical":  # pandas' form of a partition column
        value = np.asarray(value)
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes) and not isinstance(value, np.generic):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dt.date):
        return {"date": value.isoformat()}
    if isinstance(value, np.generic | np.ndarray):
        array = np.asarray(value)
        kind = {"array": "scalar"} if isinstance(value, np.generic) else {"array": "array"}
        if array.dtype.kind in "OUS" or array.dtype.kind == "M":
            if array.dtype.kind == "M":
                return {**kind, "dtype": "datetime64[ns]", "values": array.astype("M8[ns]").astype("i8").tolist()}
            values = [as_json(v) for v in array.ravel().tolist()]
            return {**kind, "dtype": array.dtype.kind, "shape": array.shape, "values": values}
        native = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return {
            **kind,
            "dtype": array.dtype.newbyteorder("=").name,
            "shape": array.shape,
            "data": base64.b64encode(native.tobytes()).decode(),
        }
    raise TypeError(f"{type(value)}: {value!r}")


def rows_of(url: str, key: str = "id", **options: Any) -> list[Any]:
    """Read with Petastorm, in the order of the files."""
    options = {"shuffle_row_groups": False, "reader_pool_type": "dummy", **options}
    with make_reader(url, **options) as reader:
        return [{name: as_json(value) for name, value in row._asdict().items()} for row in reader]


def ids_of(rows: Iterable[dict[str, Any]]) -> list[int]:
    """Return the ids of rows read."""
    return sorted(int(np.frombuffer(base64.b64decode(r["id"]["data"]), np.int64)[0]) for r in rows)


def expected(url: str) -> dict[str, Any]:
    """Ask Petastorm for everything that the tests compare."""
    found: dict[str, Any] = {"rows": rows_of(url)}
    only: dict[str, Any] = {"schema_fields": ["id"]}
    predicates = {
        "in_set": in_set({np.int64(3), np.int64(17), np.int64(99)}, "id"),
        "in_set_partition": in_set({"p_1"}, "part"),
        "in_intersection": in_intersection(["n1é"], "names"),
        "in_lambda": in_lambda(["id"], lambda number: number % 5 == 2),
        "in_lambda_state": in_lambda(["id"], lambda number, most: number < most, 4),
        "in_negate": in_negate(in_set({np.int64(1)}, "id")),
        "in_reduce": in_reduce([in_set({np.int64(1), np.int64(2)}, "id"), in_set({np.int64(2)}, "id")], all),
        "in_pseudorandom_split_0": in_pseudorandom_split([0.5, 0.3, 0.2], 0, "id"),
        "in_pseudorandom_split_1": in_pseudorandom_split([0.5, 0.3, 0.2], 1, "id"),
        "in_pseudorandom_split_2": in_pseudorandom_split([0.5, 0.3, 0.2], 2, "id"),
    }
    found["predicates"] = {}
    for name, predicate in predicates.items():
        fields: dict[str, Any] = {"schema_fields": ["id", *sorted(predicate.get_fields() - {"id"})]}
        found["predicates"][name] = ids_of(rows_of(url, predicate=predicate, **fields))
    selectors = {
        "id": SingleIndexSelector("by_id", [np.int64(3), np.int64(20)]),
        "sensor": SingleIndexSelector("by_sensor", ["sensor1"]),
        "intersection": IntersectIndexSelector(
            [SingleIndexSelector("by_id", [np.int64(3)]), SingleIndexSelector("by_part", ["p_0"])]
        ),
        "union": UnionIndexSelector(
            [SingleIndexSelector("by_id", [np.int64(3)]), SingleIndexSelector("by_id", [np.int64(23)])]
        ),
        "not_null": SingleIndexSelector("has_decimal", [None]),
    }
    found["selectors"] = {name: ids_of(rows_of(url, rowgroup_selector=s, **only)) for name, s in selectors.items()}
    found["shards"] = [ids_of(rows_of(url, cur_shard=n, shard_count=2, **only)) for n in range(2)]
    return found


def ngrams(url: str) -> list[Any]:
    """Read a series as n-grams of two fields."""
    fields = {-1: [Series.ts, Series.vector], 0: [Series.ts, Series.value], 1: [Series.ts]}
    options = {"shuffle_row_groups": False, "reader_pool_type": "dummy"}
    found = []
    for overlap in (True, False):
        grams = NGram(fields, 10, Series.ts, overlap)
        with make_reader(url, schema_fields=grams, **options) as reader:
            found.append(list(_plain_grams(reader)))
    return found


def _plain_grams(reader: Any) -> Iterable[dict[int, Any]]:
    for gram in reader:
        yield {step: {name: as_json(v) for name, v in row._asdict().items()} for step, row in gram.items()}


def batches(url: str) -> list[Any]:
    """Read a plain data set with the batch reader."""
    with make_batch_reader(url, shuffle_row_groups=False, reader_pool_type="dummy") as reader:
        return [{name: as_json(value) for name, value in batch._asdict().items()} for batch in reader]


def main(output: str) -> None:
    """Write all data sets, and what was read of them."""
    warnings.simplefilter("ignore")
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable, TZ="UTC")
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext._jsc.hadoopConfiguration().set("parquet.page.write-checksum.enabled", "false")
    shutil.rmtree(output, ignore_errors=True)
    os.makedirs(output)
    url = f"file://{os.path.abspath(output)}"

    everything = f"{url}/everything"
    write(spark, everything, Everything, [everything_row(i) for i in range(ROWS)], 4, partition="part")
    indexers = [
        SingleFieldIndexer("by_id", "id"),
        SingleFieldIndexer("by_sensor", "sensor"),
        SingleFieldIndexer("by_part", "part"),
        FieldNotNullIndexer("has_decimal", "decimal_null"),
    ]
    build_rowgroup_index(everything, spark.sparkContext, indexers)

    series = f"{url}/series"
    write(spark, series, Series, [series_row(i) for i in range(30)], 3, use_summary_metadata=True)
    plain_url = f"{url}/plain"
    plain(spark, plain_url)
    spark.stop()

    found = {
        "everything": expected(everything),
        "ngrams": ngrams(series),
        "series": rows_of(series),
        "plain": batches(plain_url),
    }
    for folder, _, names in os.walk(output):
        for name in names:
            if name.endswith(".crc") or name == "_SUCCESS":
                os.remove(os.path.join(folder, name))
    with open(os.path.join(output, "expected.json.gz"), "wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as file:
        file.write(json.dumps(found, separators=(",", ":"), sort_keys=True).encode())


if __name__ == "__main__":
    main(sys.argv[1])
