"""Indexers: record which row groups contain a value, or any value at all."""

from __future__ import annotations

import abc
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np


class RowGroupIndexerBase(abc.ABC):
    """Base of all indexers."""

    @abc.abstractmethod
    def __add__(self, other: Any) -> Self:
        """Add the row groups of another indexer."""

    @property
    @abc.abstractmethod
    def index_name(self) -> str:
        """Name of the index."""

    @property
    @abc.abstractmethod
    def column_names(self) -> list[str]:
        """Columns that it needs."""

    @property
    @abc.abstractmethod
    def indexed_values(self) -> list[Any]:
        """Values of the index."""

    @abc.abstractmethod
    def get_row_group_indexes(self, value_key: Any = None) -> set[int]:
        """Return the numbers of the row groups that contain a value."""

    @abc.abstractmethod
    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> Any:
        """Add the rows of one row group."""


class _OneColumn(RowGroupIndexerBase):
    def __init__(self, index_name: str, index_field: str) -> None:
        self._index_name = index_name
        self._column_name = index_field

    @property
    def index_name(self) -> str:
        """Name of the index."""
        return self._index_name

    @property
    def column_names(self) -> list[str]:
        """The column."""
        return [self._column_name]

    def _column(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        if not rows:
            raise ValueError(f"index {self._index_name!r} of column {self._column_name!r}: there are no rows")
        return [row[self._column_name] for row in rows]

    def _check_same(self, other: Any) -> None:
        if type(other) is not type(self):
            raise TypeError(f"index {self._index_name!r}: cannot add an index of another kind")
        if other._column_name != self._column_name:
            raise ValueError(f"index {self._index_name!r}: cannot add an index of another column")


class SingleFieldIndexer(_OneColumn):
    """Records the row groups of each value in a column of text, integers, or arrays of these."""

    def __init__(self, index_name: str, index_field: str) -> None:
        super().__init__(index_name, index_field)
        self._index_data: dict[Any, set[int]] = defaultdict(set)

    def __add__(self, other: Any) -> Self:
        self._check_same(other)
        for value, numbers in other._index_data.items():
            self._index_data[value] |= numbers
        return self

    @property
    def indexed_values(self) -> list[Any]:
        """The values."""
        return list(self._index_data)

    def get_row_group_indexes(self, value_key: Any = None) -> set[int]:
        """Return the row groups that contain a value."""
        return set(self._index_data.get(value_key, ()))

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> dict[Any, set[int]]:
        """Add the rows of one row group."""
        for value in self._column(decoded_rows):
            if value is not None:
                for one in value if isinstance(value, np.ndarray) else [value]:
                    self._index_data[one].add(piece_index)
        return self._index_data


class FieldNotNullIndexer(_OneColumn):
    """Records the row groups in which a column has a value that is not null."""

    def __init__(self, index_name: str, index_field: str) -> None:
        super().__init__(index_name, index_field)
        self._index_data: set[int] = set()

    def __add__(self, other: Any) -> Self:
        self._check_same(other)
        self._index_data |= other._index_data
        return self

    @property
    def indexed_values(self) -> list[Any]:
        """The one entry of the index."""
        return ["Field is Not Null"]

    def get_row_group_indexes(self, value_key: Any = None) -> set[int]:  # noqa: ARG002
        """Return the row groups."""
        return set(self._index_data)

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> set[int]:
        """Add the rows of one row group."""
        if any(value is not None for value in self._column(decoded_rows)):
            self._index_data.add(piece_index)
        return self._index_data
