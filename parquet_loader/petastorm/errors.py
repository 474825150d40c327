"""Errors that scripts catch by Petastorm's names."""

from __future__ import annotations

from parquet_loader.errors import ParquetLoaderError


class NoDataAvailableError(ParquetLoaderError):
    """There are fewer row groups than shards, so a shard would be empty."""


class PetastormMetadataError(ParquetLoaderError):
    """The data set lacks metadata that Petastorm writes."""


class PetastormMetadataGenerationError(ParquetLoaderError):
    """The metadata of a data set cannot be written."""


class DecodeFieldError(ParquetLoaderError, RuntimeError):
    """The codec of a field cannot decode a value."""
