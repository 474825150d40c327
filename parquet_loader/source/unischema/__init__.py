"""Reads the metadata that Petastorm writes next to its files, without unpickling it."""

from __future__ import annotations

from parquet_loader.source.unischema.records import SparkType

__all__ = ["SparkType"]
