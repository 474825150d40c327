"""Feeds Spark data frames to training; needs pyspark."""

from __future__ import annotations

from parquet_loader.petastorm.spark.spark_dataset_converter import (
    SparkDatasetConverter,
    make_spark_converter,
    register_delete_dir_handler,
)

__all__ = ["SparkDatasetConverter", "make_spark_converter", "register_delete_dir_handler"]
