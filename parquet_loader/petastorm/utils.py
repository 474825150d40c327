"""The names of Petastorm's module `utils` that scripts use."""

from __future__ import annotations

from parquet_loader.petastorm.errors import DecodeFieldError
from parquet_loader.petastorm.etl.reading.decoding import decode_stored_row as decode_row

__all__ = ["DecodeFieldError", "decode_row"]
