"""Selectors: choose the row groups to read by an index built beforehand."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class RowGroupSelectorBase(abc.ABC):
    """Base of all selectors."""

    @abc.abstractmethod
    def get_index_names(self) -> list[str]:
        """Return the names of the indexes that it needs."""

    @abc.abstractmethod
    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the numbers of the row groups to read."""


class SingleIndexSelector(RowGroupSelectorBase):
    """Chooses the row groups that contain any of the values."""

    def __init__(self, index_name: str, values_list: Iterable[Any]) -> None:
        self._index_name = index_name
        self._values_to_select = list(values_list)

    def get_index_names(self) -> list[str]:
        """Return the name of the index."""
        return [self._index_name]

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the row groups of all values."""
        indexer = index_dict[self._index_name]
        return {number for value in self._values_to_select for number in indexer.get_row_group_indexes(value)}


class _Combined(RowGroupSelectorBase):
    def __init__(self, single_index_selectors: Sequence[RowGroupSelectorBase]) -> None:
        self._single_index_selectors = list(single_index_selectors)

    def get_index_names(self) -> list[str]:
        """Return the names of all indexes."""
        return [name for selector in self._single_index_selectors for name in selector.get_index_names()]

    def _selected(self, index_dict: Mapping[str, Any]) -> list[set[int]]:
        return [selector.select_row_groups(index_dict) for selector in self._single_index_selectors]


class IntersectIndexSelector(_Combined):
    """Chooses the row groups that all selectors choose."""

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the intersection of the selectors' choices."""
        chosen = self._selected(index_dict)
        return set.intersection(*chosen) if chosen else set()


class UnionIndexSelector(_Combined):
    """Chooses the row groups that any selector chooses."""

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the union of the selectors' choices."""
        return set[int]().union(*self._selected(index_dict))
