"""`from_spark`: which frames are the same, and that one is written once and deleted; progress and modes of jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import Scalar, Schema, SchemaError, WriteError, from_spark
from parquet_loader.loader.frames.fingerprint import spark_key
from parquet_loader.write.spark import write_spark
from tests.support.job_places import Place

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SCHEMA = Schema({"id": Scalar("int64")})


@pytest.fixture
def source(tmp_path: Path) -> str:
    columns = {f"c{n}": np.arange(20) + n for n in range(40)}  # more than Spark shows of a plan by itself
    os.mkdir(tmp_path / "source")
    pq.write_table(pa.table(columns), tmp_path / "source" / "part.parquet")
    return str(tmp_path / "source")


def entries(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.is_dir())


def test_the_same_frame_is_written_once_and_deleted(spark: Any, source: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = from_spark(spark.read.parquet(source).filter("c0 > 4"), 4, cache_dir=cache)
    written = os.stat(first.path).st_ino
    second = from_spark(spark.read.parquet(source).filter("c0 > 4"), 3, cache_dir=cache)
    assert (second.path, os.stat(second.path).st_ino) == (first.path, written)
    assert len(entries(cache)) == 1
    assert sum(len(batch["c0"]) for batch in second) == 15
    other = from_spark(spark.read.parquet(source).filter("c0 > 5"), 3, cache_dir=cache)
    assert len(entries(cache)) == 2
    for loader in (first, second, other):
        loader.close()
    assert second.delete()
    assert other.delete()
    assert entries(cache) == []


def test_frames_differ_by_whatever_changes_their_rows(spark: Any, source: str) -> None:
    from pyspark.sql import functions as sql

    def read() -> Any:
        return spark.read.parquet(source)

    frames = {
        "all": read(),
        "other columns": read().select([f"c{n}" for n in range(39)]),
        "another last column": read().select([f"c{n}" for n in range(38)] + ["c39"]),
        "a filter": read().filter("c0 > 4"),
        "another": read().filter("c0 > 5"),
        "text": read().select(sql.lit("x" * 5000 + "a").alias("t")),
        "other text": read().select(sql.lit("x" * 5000 + "b").alias("t")),
        "a type": read().select(sql.col("c0").cast("float")),
        "another name": read().select(sql.col("c0").cast("float").alias("c1")),
        "python rows": spark.createDataFrame([(1,), (2,)], "a long"),
        "other python rows": spark.createDataFrame([(1,), (3,)], "a long"),
        "a range": spark.range(10),
        "another range": spark.range(11),
    }
    keys = {name: spark_key(frame) for name, frame in frames.items()}
    assert len(set(keys.values())) == len(keys)
    assert spark_key(read().filter("c0 > 4")) == keys["a filter"]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert spark_key(read()) != keys["all"]  # what a time says as text depends on it
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert spark_key(read()) == keys["all"]
    pq.write_table(pa.table({"c0": [1, 2]}), f"{source}/part.parquet")
    assert spark_key(spark.read.parquet(source)) != keys["all"]


KEYS = """
    import sys
    from pyspark.sql import SparkSession
    from parquet_loader.loader.frames.fingerprint import spark_key

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.read.parquet(sys.argv[1])
    print(spark_key(frame.filter("c0 > 4")), spark_key(spark.createDataFrame([(1,), (2,)], "a long")))
"""


@pytest.mark.slow
def test_frames_of_files_are_the_same_in_every_process_and_others_in_none(source: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(KEYS), source]
    done = [
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True).stdout.split()
        for _ in range(2)
    ]
    (files, rows), (files_again, rows_again) = done
    assert files == files_again
    assert rows != rows_again


def test_append_overwrite_and_error(spark: Any, tmp_path: Path) -> None:
    place = Place("local", tmp_path)
    write_spark(spark.range(10), place.path, SCHEMA)
    with pytest.raises(WriteError, match="not empty"):
        write_spark(spark.range(10), place.path, SCHEMA)
    write_spark(spark.range(10, 20), place.path, SCHEMA, mode="append")
    assert place.ids() == list(range(20))
    there = spark.read.option("recursiveFileLookup", "true").parquet(place.path)  # as docs/jobs.md says
    assert sorted(row["id"] for row in there.collect()) == list(range(20))
    with pytest.raises(SchemaError, match="'id'"):
        write_spark(spark.range(5).selectExpr("cast(id as float) id"), place.path, mode="append")
    write_spark(spark.range(100, 110), place.path, SCHEMA, mode="overwrite")
    assert place.ids() == list(range(100, 110))
    assert place.leftovers() == []


def test_a_bar_counts_tasks_to_the_last(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = write_spark(spark.range(0, 100, 1, 3), tmp_path / "set", SCHEMA, progress=True)
    shown = capsys.readouterr().err
    assert "write" in shown
    assert "3/3" in shown
    assert (summary.rows, len(summary.files)) == (100, 1)
    assert summary.bytes == sum(os.path.getsize(file) for file in summary.files)
    assert summary.seconds > 0
