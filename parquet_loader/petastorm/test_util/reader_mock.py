"""`ReaderMock`: a reader of generated rows."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Self

import numpy as np

from parquet_loader.petastorm.unischema import Unischema


class ReaderMock:
    """An endless reader of generated rows.

    Args:
        schema: The schema.
        schema_data_generator: Takes the schema, and returns the values of a row by name.
        ngram: None; n-grams are not supported.
    """

    def __init__(
        self, schema: Unischema, schema_data_generator: Callable[[Unischema], dict[str, Any]], ngram: Any = None
    ) -> None:
        if ngram is not None:
            raise ValueError("ReaderMock: n-grams are not supported; pass ngram=None")
        self.schema = schema
        self.schema_data_generator = schema_data_generator
        self.ngram = None
        self.batched_output = False
        self.last_row_consumed = False

    def fetch(self) -> Any:
        """Return a row."""
        return self.schema.make_namedtuple(**self.schema_data_generator(self.schema))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.fetch()

    def next(self) -> Any:
        """Return a row."""
        return self.fetch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        """Do nothing."""

    def join(self) -> None:
        """Do nothing."""


def schema_data_generator_example(schema: Unischema) -> dict[str, Any]:
    """Return a row of zeros; lengths that vary are 10."""
    return {
        field.name: Decimal("0.0")
        if field.numpy_dtype is Decimal
        else np.zeros([10 if length is None else length for length in field.shape], field.numpy_dtype)
        for field in schema.fields.values()
    }
