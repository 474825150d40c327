"""Jobs on real workers that write to an S3 server: each object whole or absent, and all of a job's rows or none."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, DataError, DatasetWriter, OutputOptions, SchemaError, WriteError
from parquet_loader.write.dask import write_dask
from parquet_loader.write.spark import write_spark
from tests.support.job_places import SCHEMA, SMALL, rows

server = pytest.importorskip("moto.server", reason="moto[s3], flask and flask-cors are not installed")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Dask's own sockets at its end
]


class Bucket:
    """A bucket, as its clients see it."""

    def __init__(self, port: int) -> None:
        self.filesystem: Any = pafs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            access_key="key",
            secret_key="secret",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        self.filesystem.create_dir("bucket")

    def ids(self, name: str) -> list[int]:
        """Return the rows that a reader of the store sees, sorted."""
        with BatchedDataLoader(
            f"bucket/{name}", 64, filesystem=self.filesystem, output_options=OutputOptions(format="numpy")
        ) as loader:
            return sorted(int(i) for batch in loader for i in batch["id"])

    def others(self, name: str) -> list[str]:
        """Return what is there beside the data, which are whole."""
        found = self.filesystem.get_file_info(pafs.FileSelector(f"bucket/{name}", recursive=True))
        for info in found:
            if info.base_name.startswith("part-"):
                pq.read_metadata(info.path, filesystem=self.filesystem)
        return [info.path for info in found if not info.base_name.startswith("part-")]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        try:
            yield Bucket(running.get_host_and_port()[1])
        finally:
            running.stop()


def batches(first: int, stop: int, bad: int | None = None) -> Iterator[Any]:
    """Rows in pieces; of a wrong shape from `bad` on."""
    for at in range(first, stop, 50):
        piece = rows(at, min(at + 50, stop))
        if bad is not None and at >= bad:
            piece["vector"] = np.zeros((len(piece["id"]), 3), np.float32)
        yield piece


@pytest.mark.slow
def test_a_dask_job_appears_whole_in_the_store(bucket: Bucket, client: Any) -> None:
    import dask

    def parts(*bounds: tuple[int, int], bad: int | None = None) -> list[Any]:
        return [dask.delayed(batches)(first, stop, bad) for first, stop in bounds]

    options: dict[str, Any] = {"options": SMALL, "filesystem": bucket.filesystem, "scheduler": client}
    summary = write_dask(parts((0, 300), (300, 600)), "bucket/dask", SCHEMA, **options)
    assert summary.rows == 600
    assert bucket.ids("dask") == list(range(600))
    with pytest.raises(SchemaError, match="partition 1"):
        write_dask(parts((600, 700), (700, 900), bad=800), "bucket/dask", SCHEMA, mode="append", **options)
    with pytest.raises(WriteError, match="not empty"):
        write_dask(parts((0, 10)), "bucket/dask", SCHEMA, **options)
    assert bucket.ids("dask") == list(range(600))
    write_dask(parts((600, 800)), "bucket/dask", SCHEMA, mode="append", shuffle=True, **options)
    assert bucket.ids("dask") == list(range(800))
    write_dask(parts((5, 105)), "bucket/dask", SCHEMA, mode="overwrite", **options)
    assert bucket.ids("dask") == list(range(5, 105))
    assert bucket.others("dask") == []


@pytest.mark.spark
@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed")
def test_a_spark_job_appears_whole_in_the_store(bucket: Bucket, spark: Any) -> None:
    from pyspark.sql import functions as f

    def frame(first: int, stop: int, most: int = 10**9) -> Any:
        vector = f.array(*[f.col("id").cast("float")] * 4)
        short = f.array(f.col("id").cast("float"))
        column = f.when(f.col("id") < most, vector).otherwise(short)
        return spark.range(first, stop, 1, 3).select("id", column.alias("vector"))

    options: dict[str, Any] = {"options": SMALL, "filesystem": bucket.filesystem}
    assert write_spark(frame(0, 600), "bucket/spark", SCHEMA, **options).rows == 600
    assert bucket.ids("spark") == list(range(600))
    with pytest.raises(DataError, match="partition 2"):
        write_spark(frame(600, 900, most=850), "bucket/spark", SCHEMA, mode="append", **options)
    assert bucket.ids("spark") == list(range(600))
    write_spark(frame(600, 800), "bucket/spark", SCHEMA, mode="append", **options)
    assert bucket.ids("spark") == list(range(800))
    write_spark(frame(5, 105), "bucket/spark", SCHEMA, mode="overwrite", **options)
    assert bucket.ids("spark") == list(range(5, 105))
    assert bucket.others("spark") == []


def test_a_writer_that_fails_publishes_nothing(bucket: Bucket) -> None:
    def write(mode: Any, first: int, stop: int, *, fails: bool) -> None:
        with DatasetWriter("bucket/one", SCHEMA, mode=mode, options=SMALL, filesystem=bucket.filesystem) as writer:
            for piece in batches(first, stop):
                writer.write(piece)
            if fails:
                raise KeyError("changed my mind")

    write("error", 0, 300, fails=False)
    for mode in ("append", "overwrite"):
        with pytest.raises(KeyError):
            write(mode, 300, 500, fails=True)
        assert bucket.ids("one") == list(range(300))
        assert bucket.others("one") == []
    write("overwrite", 7, 300, fails=False)
    assert bucket.ids("one") == list(range(7, 300))
    assert bucket.others("one") == []
