"""Petastorm itself reads what this library writes, value by value, through its own index.

It runs in an environment of its own (make_petastorm.py says how to make it): PETASTORM_PYTHON=PATH/bin/python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader.petastorm import make_reader
from parquet_loader.petastorm.etl.dataset_metadata import (
    get_schema_from_dataset_url,
    materialize_dataset,
    write_metadata,
)
from parquet_loader.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from parquet_loader.petastorm.etl.rowgroup_indexing import build_rowgroup_index
from parquet_loader.petastorm.unischema import dict_to_spark_row
from tests.support import petastorm_oracle as oracle

PYTHON = os.environ.get("PETASTORM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the collector
    pytest.mark.skipif(PYTHON is None, reason="PETASTORM_PYTHON names no Python that has Petastorm 0.13.1"),
]
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import make_petastorm
json.dump(make_petastorm.expected(sys.argv[2]), open(sys.argv[3], "w"))
"""


def read_by_petastorm(url: str, answer: Path) -> dict[str, Any]:
    """Ask Petastorm for the rows, and for those that its predicates, selectors and shards leave."""
    arguments = [str(Path(__file__).parent), url, str(answer)]
    done = subprocess.run([str(PYTHON), "-W", "ignore", "-c", ASK, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def index(url: str) -> None:
    indexers: list[Any] = [
        SingleFieldIndexer("by_id", "id"),
        SingleFieldIndexer("by_sensor", "sensor"),
        SingleFieldIndexer("by_part", "part"),
        FieldNotNullIndexer("has_decimal", "decimal_null"),
    ]
    build_rowgroup_index(url, None, indexers)


def test_petastorm_takes_our_metadata_and_indexes_for_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "everything"
    shutil.copytree(oracle.EVERYTHING, folder)
    schema = get_schema_from_dataset_url(f"file://{folder}")
    (folder / "_common_metadata").unlink()
    write_metadata(f"file://{folder}", schema)
    index(f"file://{folder}")
    assert read_by_petastorm(f"file://{folder}", tmp_path / "answer") == oracle.expected()["everything"]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    builder = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    yield session
    session.stop()


@pytest.mark.spark
def test_petastorm_reads_every_codec_that_we_encoded_and_spark_wrote(spark: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/written"
    schema = get_schema_from_dataset_url(f"file://{oracle.EVERYTHING}")
    given = [
        {**row, "moment": row["moment"].astype("M8[us]").item(), "day": row["day"].astype("M8[D]").item()}
        for row in oracle.rows()
    ]
    with materialize_dataset(spark, url, schema, row_group_size_mb=1):
        rows = spark.sparkContext.parallelize([dict_to_spark_row(schema, row) for row in given], 4)
        frame = spark.createDataFrame(rows, schema.as_spark_schema())
        frame.write.partitionBy("part").parquet(url)
    index(url)
    found = read_by_petastorm(url, tmp_path / "answer")
    wanted = oracle.expected()["everything"]
    for kind in ("predicates", "selectors", "shards"):
        assert found[kind] == wanted[kind], kind
    with make_reader(url, shuffle_row_groups=False, workers_count=2) as reader:
        ours = [row._asdict() for row in reader]
    assert len(ours) == len(found["rows"]) == oracle.ROWS
    for mine, theirs, row in zip(ours, map(oracle.value_of, found["rows"]), oracle.rows(), strict=True):
        for name, value in row.items():
            where = f"row {row['id']}, {name}"
            if name == "jpeg":  # encoded once more, and so not what it was
                for image in (mine[name], theirs[name]):
                    assert np.abs(image.astype(int) - value).max() <= 16, where
            else:
                oracle.assert_same(mine[name], value, where)
                oracle.assert_same(theirs[name], value, where)
