"""Errors of this package that scripts catch by the names that Petastorm gave them."""

from __future__ import annotations

from parquet_loader.errors import ParquetLoaderError


class NoDataAvailableError(ParquetLoaderError):
    """There are fewer row groups than shards, so that a shard would be empty."""


class PetastormMetadataError(ParquetLoaderError):
    """The data set does not carry what Petastorm writes beside it."""


class PetastormMetadataGenerationError(ParquetLoaderError):
    """The metadata of a data set could not be written."""


class DecodeFieldError(ParquetLoaderError, RuntimeError):
    """A value that its field's codec cannot decode."""
