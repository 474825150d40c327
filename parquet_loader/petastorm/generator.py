"""Generates random rows of a schema, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from parquet_loader.petastorm.unischema import Unischema

LIST_SIZE = 13


def generate_datapoint(schema: Unischema) -> dict[str, Any]:
    """Return a random row; lengths that vary are 13."""
    row = {}
    for name, field in schema.fields.items():
        dtype = np.dtype(field.numpy_dtype)
        shape = tuple(LIST_SIZE if length is None else length for length in field.shape)
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (0, 1)
        row[name] = np.array(np.random.default_rng().random(shape) * (high - low) + low, dtype=dtype)
    return row
