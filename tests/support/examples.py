"""How much an everyday run tests: of many examples a part, and of a grid of parameters some."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings

from tests.support.datasets import BY_NAME

ALL_EXAMPLES = 100

# Columns of all kinds in one data set, and with the slow tests each kind in one of its own.
each_kind = pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(tuple(BY_NAME), id="all"),
        *(pytest.param((name,), id=name, marks=pytest.mark.slow) for name in BY_NAME),
    ],
)


def examples(count: int) -> int:
    """Return how many of ``count`` examples a property gets: all of them, or a fifth in an everyday run."""
    return max(1, count * min(settings().max_examples, ALL_EXAMPLES) // ALL_EXAMPLES)


def grid(names: str, *values: Sequence[Any], everyday: Callable[..., bool]) -> Any:
    """Test all combinations of parameters, but those that ``everyday`` does not choose only among the slow tests.

    Args:
        names: Of the parameters, divided by commas.
        values: Those of each parameter, with `pytest.param` for those that have an id.
        everyday: Is called with the values of one combination.

    Returns:
        What decorates the test.
    """
    found = []
    for combination in itertools.product(*values):
        ids = [one.id if _is_param(one) else None for one in combination]
        plain = [one.values[0] if _is_param(one) else one for one in combination]
        marks = [mark for one in combination if _is_param(one) for mark in one.marks]
        if not everyday(*plain):
            marks.append(pytest.mark.slow)
        name = "-".join(map(str, ids)) if None not in ids else None
        found.append(pytest.param(*plain, marks=marks, id=name))
    return pytest.mark.parametrize(names.replace(" ", "").split(","), found)


def _is_param(value: Any) -> bool:
    return isinstance(value, type(pytest.param()))
