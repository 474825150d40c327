"""Does the work of `demo.prepare` as a job on Dask or Spark: the same join and the same rows, on workers.

python -m demo.prepare_job dask       (needs dask[distributed])
python -m demo.prepare_job spark      (needs Java 17 and pyspark)
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa

from demo.fetch import TRAIN, VALIDATION, fetch
from demo.prepare import VALIDATION_EVERY_DAYS, join
from parquet_loader import JobSummary, write_dask, write_spark
from schemas.flights import FLIGHTS

PARTS = {"train": False, "validation": True}
_PIECES = 8


def part(flights: pd.DataFrame, weather: pd.DataFrame, planes: pd.DataFrame, *, held_out: bool) -> pd.DataFrame:
    """Return the training or the validation rows of these flights, with the columns of `FLIGHTS`."""
    rows = join(flights, weather, planes)
    chosen = rows.day_of_year % VALIDATION_EVERY_DAYS == 0
    return rows[chosen if held_out else ~chosen][FLIGHTS.arrow_schema().names]


def with_dask(flights: Any, weather: Any, planes: Any, targets: dict[str, Any]) -> None:
    """Write both parts with Dask; the flights are divided, and weather and planes go to every worker.

    Args:
        flights: Frame of the flights, or better a delayed frame, which workers read themselves.
        weather: The same for the weather.
        planes: The same for the planes.
        targets: Target directories, by ``"train"`` and ``"validation"``.
    """
    import dask  # noqa: PLC0415

    whole, *small = map(dask.delayed, (flights, weather, planes))
    pieces = [dask.delayed(_piece)(whole, number) for number in range(_PIECES)]
    for name, held_out in PARTS.items():
        rows = [dask.delayed(part)(piece, *small, held_out=held_out) for piece in pieces]
        _say(name, write_dask(rows, targets[name], FLIGHTS, mode="overwrite"))


def _piece(flights: pd.DataFrame, number: int) -> pd.DataFrame:
    size = -(-len(flights) // _PIECES)
    return flights[number * size : (number + 1) * size]


def with_spark(
    spark: Any, flights: pd.DataFrame, weather: pd.DataFrame, planes: pd.DataFrame, targets: dict[str, Any]
) -> None:
    """Write both parts with Spark."""
    df = spark.createDataFrame(pa.Table.from_pandas(flights, preserve_index=False)).repartition(4)
    sample = pa.Table.from_pandas(part(flights[:1000], weather, planes, held_out=False), preserve_index=False)
    columns = pa.schema([pa.field(f.name, _sent(f.type)) for f in sample.schema])
    types = ", ".join(f"{f.name} {'string' if f.type == pa.string() else 'double'}" for f in columns)

    for name, held_out in PARTS.items():
        rows = df.mapInArrow(_joins(weather, planes, columns, held_out=held_out), types)
        _say(name, write_spark(rows, targets[name], FLIGHTS, mode="overwrite"))


def _joins(
    weather: pd.DataFrame, planes: pd.DataFrame, columns: pa.Schema, *, held_out: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that executors apply to flights; its closure holds weather and planes."""

    def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = part(batch.to_pandas(), weather, planes, held_out=held_out)
            yield from pa.Table.from_pandas(rows, preserve_index=False).cast(columns).to_batches()

    return joined


def _sent(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column in Spark: text, or float64, which holds all numbers of this data."""
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_null(type_)
    return pa.string() if is_text else pa.float64()


def _say(name: str, summary: JobSummary) -> None:
    print(f"{name}: {summary.rows:,} rows, {summary.bytes / 1e6:.1f} MB, {len(summary.files)} files, "
          f"{summary.seconds:.1f} s")  # fmt: skip


def prepare(engine: str, targets: dict[str, Any]) -> None:
    """Fetch the flights and write both parts with a local cluster.

    Args:
        engine: ``"dask"``, for a `LocalCluster` of four workers, or ``"spark"``, for ``local[2]``.
        targets: Target directories, by ``"train"`` and ``"validation"``.
    """
    paths = [str(fetch() / name) for name in ("flights.csv.zip", "weather.csv", "planes.csv")]
    if engine == "dask":
        import dask  # noqa: PLC0415
        from distributed import Client, LocalCluster  # noqa: PLC0415

        flights, weather, planes = map(dask.delayed(pd.read_csv), paths)
        with LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
            with_dask(flights, weather, planes, targets)
        return
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        flights, weather, planes = map(pd.read_csv, paths)
        with_spark(spark, flights, weather, planes, targets)
    finally:
        spark.stop()


def main() -> None:
    """Prepare the flights as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m demo.prepare_job", description="Prepare the flights as a job.")
    parser.add_argument("engine", choices=["dask", "spark"])
    prepare(parser.parse_args().engine, {"train": TRAIN, "validation": VALIDATION})


if __name__ == "__main__":
    main()
