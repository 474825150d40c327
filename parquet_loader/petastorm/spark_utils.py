"""Reads a data set as a Spark RDD of decoded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parquet_loader.petastorm.etl.dataset_metadata import get_schema_from_dataset_url
from parquet_loader.petastorm.etl.reading.decoding import decode_stored_row
from parquet_loader.petastorm.unischema import UnischemaField


def dataset_as_rdd(
    dataset_url: str,
    spark_session: Any,
    schema_fields: Sequence[UnischemaField] | None = None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
) -> Any:
    """Return an RDD of the rows of a data set, as namedtuples.

    Args:
        dataset_url: The data set.
        spark_session: The Spark session.
        schema_fields: Fields to read; None: all.
    """
    schema = get_schema_from_dataset_url(dataset_url)
    frame = spark_session.read.parquet(dataset_url)
    if schema_fields is not None:
        schema = schema.create_schema_view(schema_fields)
        frame = frame.select(*schema.fields)

    def decoded(row: Any) -> Any:
        return schema.make_namedtuple(**decode_stored_row(row.asDict(), schema))

    return frame.rdd.map(decoded)
