"""Petastorm's interface to Spark on this library: `materialize_dataset`, and readers of data frames."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader import BatchedDataLoader

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the collector
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def test_generate_hello_world_dataset_of_petastorms_readme(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.types import IntegerType

    from parquet_loader.petastorm import make_reader
    from parquet_loader.petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
    from parquet_loader.petastorm.etl.dataset_metadata import materialize_dataset
    from parquet_loader.petastorm.spark_utils import dataset_as_rdd
    from parquet_loader.petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row

    # The schema defines how the dataset schema looks like
    HelloWorldSchema = Unischema(  # noqa: N806
        "HelloWorldSchema",
        [
            UnischemaField("id", np.int32, (), ScalarCodec(IntegerType()), False),
            UnischemaField("image1", np.uint8, (128, 256, 3), CompressedImageCodec("png"), False),
            UnischemaField("array_4d", np.uint8, (None, 128, 30, None), NdarrayCodec(), False),
        ],
    )

    def row_generator(x: int) -> dict[str, Any]:
        """Returns a single entry in the generated dataset."""
        rng = np.random.default_rng(x)
        return {
            "id": x,
            "image1": rng.integers(0, 255, dtype=np.uint8, size=(128, 256, 3)),
            "array_4d": rng.integers(0, 255, dtype=np.uint8, size=(4, 128, 30, 3)),
        }

    output_url = f"file://{tmp_path}/hello_world_dataset"
    rows_count = 4
    with materialize_dataset(spark, output_url, HelloWorldSchema, 256):
        rows = [dict_to_spark_row(HelloWorldSchema, row_generator(x)) for x in range(rows_count)]
        spark.createDataFrame(rows, HelloWorldSchema.as_spark_schema()).coalesce(10).write.mode("overwrite").parquet(
            output_url
        )

    with make_reader(output_url, shuffle_row_groups=False) as reader:
        for sample in reader:
            wanted = row_generator(int(sample.id))
            np.testing.assert_array_equal(sample.image1, wanted["image1"])
            np.testing.assert_array_equal(sample.array_4d, wanted["array_4d"])
    with BatchedDataLoader(tmp_path / "hello_world_dataset", 4) as loader:
        (batch,) = list(loader)
    assert batch["image1"].shape == (4, 128, 256, 3)
    assert dataset_as_rdd(output_url, spark, [HelloWorldSchema.id]).map(lambda row: int(row.id)).sum() == 6


def test_a_data_frame_is_read_by_torch_and_written_once(spark: Any, tmp_path: Path) -> None:
    from parquet_loader.petastorm.spark import SparkDatasetConverter, make_spark_converter

    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}")
    frame = spark.createDataFrame([(n, n / 2, [float(n), 1.0]) for n in range(10)], ["id", "half", "list"])
    converter = make_spark_converter(frame)
    assert len(converter) == 10
    assert make_spark_converter(frame).cache_dir_url == converter.cache_dir_url
    with converter.make_torch_dataloader(batch_size=4, num_epochs=1) as dataloader:
        batches = list(dataloader)
    assert sorted(n for b in batches for n in b["id"].tolist()) == list(range(10))
    assert str(batches[0]["half"].dtype) == "torch.float32"
    assert batches[0]["list"].shape == (4, 2)
    converter.delete()
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_a_block_that_fails_writes_no_metadata_and_spark_is_as_before(spark: Any, tmp_path: Path) -> None:
    from parquet_loader.petastorm.codecs import ScalarCodec
    from parquet_loader.petastorm.errors import PetastormMetadataError, PetastormMetadataGenerationError
    from parquet_loader.petastorm.etl.dataset_metadata import get_schema_from_dataset_url, materialize_dataset
    from parquet_loader.petastorm.unischema import Unischema, UnischemaField
    from parquet_loader.source.unischema.records import SparkType

    schema = Unischema("S", [UnischemaField("id", np.int64, (), ScalarCodec(SparkType("LongType")), False)])
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.setInt("parquet.block.size", 7 * 2**20)
    hadoop.unset("parquet.summary.metadata.level")
    url = f"file://{tmp_path}/ds"

    def fail() -> None:
        with materialize_dataset(spark, url, schema, row_group_size_mb=1, use_summary_metadata=True):
            assert hadoop.get("parquet.block.size") == str(2**20)
            assert hadoop.get("parquet.summary.metadata.level") == "ALL"
            spark.range(3).write.parquet(url)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert hadoop.get("parquet.block.size") == str(7 * 2**20)
    assert hadoop.get("parquet.summary.metadata.level") is None
    assert (tmp_path / "ds/_metadata").exists(), "Spark's own"
    with pytest.raises(PetastormMetadataError, match="no Unischema"):
        get_schema_from_dataset_url(url)
    with (
        pytest.raises(PetastormMetadataGenerationError, match="no metadata were written"),
        materialize_dataset(spark, f"file://{tmp_path}/nothing", schema),
    ):
        pass
    with materialize_dataset(spark, url, schema):
        spark.range(3, 9).write.mode("append").parquet(url)
    with BatchedDataLoader(tmp_path / "ds", 10) as loader:
        assert sorted(next(iter(loader))["id"].tolist()) == list(range(9))


def test_a_converter_casts_floats_and_vectors_and_goes_to_other_processes(spark: Any, tmp_path: Path) -> None:
    import pickle

    from pyspark.ml.linalg import Vectors

    from parquet_loader.errors import ConfigurationError
    from parquet_loader.petastorm.spark import SparkDatasetConverter, make_spark_converter

    spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)
    rows = [(n, Vectors.dense([n, 0.5]) if n % 2 else Vectors.sparse(2, {1: 0.5}), [n / 3]) for n in range(6)]
    frame = spark.createDataFrame(rows, ["id", "vector", "list"])
    with pytest.raises(ConfigurationError, match="parentCacheDirUrl"):
        make_spark_converter(frame)
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}/cache with spaces")
    with pytest.raises(ConfigurationError, match="int8"):
        make_spark_converter(frame, dtype="int8")
    with pytest.raises(ConfigurationError, match="zip or so"):
        make_spark_converter(frame, compression_codec="zip or so")
    made = {
        dtype: make_spark_converter(frame, dtype=dtype, compression_codec="gzip") for dtype in ("float32", "float64")
    }
    assert len({converter.cache_dir_url for converter in made.values()}) == 2
    for dtype, converter in made.items():
        again = pickle.loads(pickle.dumps(converter))
        with again.make_torch_dataloader(batch_size=6, num_epochs=1, shuffle_row_groups=False) as dataloader:
            (batch,) = list(dataloader)
        order = batch["id"].argsort()
        assert str(batch["vector"].dtype) == str(batch["list"].dtype) == f"torch.{dtype}"
        assert batch["vector"][order].tolist() == [[n * (n % 2), 0.5] for n in range(6)]
        np.testing.assert_allclose(batch["list"][order].numpy().ravel(), np.arange(6) / 3, rtol=1e-6)
    there = make_spark_converter(made["float64"].cache_dir_url)
    assert len(there) == 6
    with there.make_torch_dataloader(batch_size=4, num_epochs=2, cur_shard=0, shard_count=1) as dataloader:
        assert sum(len(batch["id"]) for batch in dataloader) == 12
    for converter in made.values():
        converter.delete()
    assert not [path for path in (tmp_path / "cache with spaces").iterdir() if path.is_dir()]
