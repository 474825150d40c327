"""Predicates: select the rows that a reader returns.

A predicate takes a row as a dict (`make_reader`) and returns a bool, or takes the columns of a row group as a pandas
DataFrame (`make_batch_reader`) and returns a Series of bools.
"""

from __future__ import annotations

import abc
import hashlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np


class PredicateBase(abc.ABC):
    """Base of all predicates."""

    @abc.abstractmethod
    def get_fields(self) -> set[str]:
        """Return the names of the fields that it needs."""

    @abc.abstractmethod
    def do_include(self, values: Any) -> Any:
        """Return whether to include a row, or which rows of a frame."""


def _each(column: Any, test: Callable[[Any], bool]) -> Any:
    """Apply a test to a value, or to each value of a Series."""
    return column.map(test).astype(bool) if _is_series(column) else test(column)


def _is_series(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "to_numpy")


class _OfField(PredicateBase):
    """Base of the predicates of one field."""

    def __init__(self, predicate_field: str) -> None:
        self._predicate_field = predicate_field

    def get_fields(self) -> set[str]:
        """Return the field."""
        return {self._predicate_field}


class in_set(_OfField):  # noqa: N801  (Petastorm's names)
    """Includes rows whose field is in a set of values."""

    def __init__(self, inclusion_values: Iterable[Any], predicate_field: str) -> None:
        super().__init__(predicate_field)
        self._inclusion_values = set(inclusion_values)

    def do_include(self, values: Any) -> Any:
        """Return whether the value is in the set."""
        return _each(values[self._predicate_field], lambda value: value in self._inclusion_values)


class in_intersection(_OfField):  # noqa: N801
    """Includes rows whose field, a list or array, contains at least one of the values."""

    def __init__(self, inclusion_values: Iterable[Any], _predicate_field: str) -> None:
        super().__init__(_predicate_field)
        self._inclusion_values = list(inclusion_values)

    def do_include(self, values: Any) -> Any:
        """Return whether the array contains one of the values."""
        return _each(values[self._predicate_field], self._intersects)

    def _intersects(self, value: Any) -> bool:
        if not isinstance(value, Iterable):
            raise ValueError(f"in_intersection: the field {self._predicate_field!r} is not a list: {value!r:.60}")
        return bool(np.isin(np.asarray(value), self._inclusion_values).any())


class in_lambda(PredicateBase):  # noqa: N801
    """Includes rows for which a function is true; it takes the fields in order, then `state_arg` unless it is None."""

    def __init__(
        self, predicate_fields: Sequence[str], predicate_func: Callable[..., Any], state_arg: Any = None
    ) -> None:
        if not isinstance(predicate_fields, list):
            raise ValueError(f"in_lambda: predicate_fields={predicate_fields!r:.80}; expected a list")
        self._predicate_fields = predicate_fields
        self._predicate_func = predicate_func
        self._state_arg = state_arg

    def get_fields(self) -> set[str]:
        """Return the fields."""
        return set(self._predicate_fields)

    def do_include(self, values: Any) -> Any:
        """Return the function's result."""
        arguments = [values[field] for field in self._predicate_fields]
        if self._state_arg is not None:
            arguments.append(self._state_arg)
        return self._predicate_func(*arguments)


class in_negate(PredicateBase):  # noqa: N801
    """Includes rows that another predicate excludes."""

    def __init__(self, predicate: PredicateBase) -> None:
        if not isinstance(predicate, PredicateBase):
            raise ValueError(f"in_negate: predicate={predicate!r:.80}; expected a PredicateBase")
        self._predicate = predicate

    def get_fields(self) -> set[str]:
        """Return the fields of the other predicate."""
        return self._predicate.get_fields()

    def do_include(self, values: Any) -> Any:
        """Return the opposite."""
        included = self._predicate.do_include(values)
        return ~included if _is_series(included) else not included


class in_reduce(PredicateBase):  # noqa: N801
    """Combines predicates by ``all`` (and), ``any`` (or), or any function of a list of bools."""

    def __init__(self, predicate_list: Sequence[PredicateBase], reduce_func: Callable[[list[bool]], bool]) -> None:
        if not all(isinstance(predicate, PredicateBase) for predicate in predicate_list):
            raise ValueError("in_reduce: predicate_list holds an object that is not a PredicateBase")
        self._predicate_list = predicate_list
        self._reduce_func = reduce_func

    def get_fields(self) -> set[str]:
        """Return the fields of all predicates."""
        return {field for predicate in self._predicate_list for field in predicate.get_fields()}

    def do_include(self, values: Any) -> Any:
        """Return the function of the predicates' results, row by row."""
        included = [predicate.do_include(values) for predicate in self._predicate_list]
        if not included or not _is_series(included[0]):
            return self._reduce_func(included)
        rows = zip(*(series.tolist() for series in included), strict=True)
        return included[0].__class__([bool(self._reduce_func(list(row))) for row in rows], index=included[0].index)


class in_pseudorandom_split(_OfField):  # noqa: N801
    """Includes the rows of one subset, by the hash of a field: equal values are always in the same subset.

    Args:
        fraction_list: Size of each subset, from 0 to 1.
        subset_index: The index of the subset.
        predicate_field: The field.
    """

    def __init__(self, fraction_list: Sequence[float], subset_index: int, predicate_field: str) -> None:
        if subset_index >= len(fraction_list):
            raise ValueError(f"in_pseudorandom_split: there is no subset {subset_index} of {len(fraction_list)}")
        super().__init__(predicate_field)
        low = sum(fraction_list[:subset_index]) if subset_index else 0
        high = sum(fraction_list[: subset_index + 1])
        self._bucket_low = low * (sys.maxsize - 1)
        self._bucket_high = high * (sys.maxsize - 1)

    def do_include(self, values: Mapping[str, Any] | Any) -> Any:
        """Return whether the hash of the value belongs to the subset."""
        names: Collection[Any] = values.keys()
        if self._predicate_field not in names:
            raise ValueError(f"in_pseudorandom_split: there is no field {self._predicate_field!r}")
        return _each(values[self._predicate_field], self._is_inside)

    def _is_inside(self, value: Any) -> bool:
        digest = hashlib.md5(str(value).encode("utf-8"), usedforsecurity=False).hexdigest()
        return self._bucket_low <= int(digest, 16) % sys.maxsize < self._bucket_high
