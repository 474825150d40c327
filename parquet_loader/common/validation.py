"""Validates arguments: each check returns the value, or raises an error that says what is expected."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from parquet_loader.errors import ArgumentTypeError, ConfigurationError

_EXAMPLES = {
    "Schema": "Schema({'x': Scalar('float32')}), or Schema.from_arrow(...) of a pyarrow.Schema",
    "Shard": "Shard(rank=0, world_size=2)",
    "LocalCache": "LocalCache('/local/cache', '500GB')",
    "ReadOptions": "ReadOptions(verify_checksums=True)",
    "ShardOptions": "ShardOptions(remainder='drop')",
    "OutputOptions": "OutputOptions(format='numpy')",
}


def check_bool(name: str, value: Any) -> bool:
    """Return a boolean argument."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"{name}={value!r}: expected True or False")
    return bool(value)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that a value is one of `choices`."""
    if value not in choices:
        raise ConfigurationError(f"{name}={value!r}: expected {' or '.join(map(repr, choices))}")


def check_kind(name: str, value: Any, kind: type) -> None:
    """Check that a value is None or an instance of one of the package's classes."""
    if value is not None and not isinstance(value, kind):
        example = _EXAMPLES.get(kind.__name__, f"{kind.__name__}(...)")
        found = " ".join(repr(value).split())
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ArgumentTypeError(f"{name}={found:.80}: expected {article} {kind.__name__}, such as {example}")


def check_transform(transform: Any) -> None:
    """Check that `transform` is None or can be called with (columns, rng)."""
    if transform is None:
        return
    if not callable(transform):
        raise ArgumentTypeError(f"transform={transform!r:.80}: expected a function of (columns, rng)")
    if (error := unfit_call(transform, {}, None)) is not None:
        raise ConfigurationError(
            f"transform={transform!r:.80}: is called with (columns, rng), and {error}; take both arguments"
        )


def unfit_call(function: Any, *arguments: Any) -> TypeError | None:
    """Return why a function's signature refuses these arguments; None if it takes them, or is not known."""
    try:
        parameters = inspect.signature(function)
    except Exception:  # some functions in C have none; Python 3.14 evaluates annotations, which may raise any error
        return None
    try:
        parameters.bind(*arguments)
    except TypeError as error:
        return error
    return None


def check_window(window_rows: Any, batch_size: int) -> int | None:
    """Return the rows of a window, which holds at least one batch."""
    if window_rows is None:
        return None
    rows = check_int("window_rows", window_rows, 1, 2**40)
    if rows < batch_size:
        raise ConfigurationError(f"window_rows={rows}: a window holds at least one batch of {batch_size} rows")
    return rows


def check_columns(columns: Any, argument: str = "columns") -> list[str] | None:
    """Return the names of `columns`, at least one: of a sequence, or of an array or index of numpy or pandas; or None.

    Raises:
        ConfigurationError: it is something else, or empty.
    """
    if columns is None:
        return None
    names = columns.tolist() if hasattr(columns, "tolist") else columns
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"{argument}={columns!r:.80}: expected a list of names")
    if not names:
        raise ConfigurationError(f"{argument}=[]: expected at least one name; None reads all columns")
    return list(names)


def check_split(split: Any) -> None:
    """Check that `split` is None or a name."""
    if split is not None and (not isinstance(split, str) or not split):
        raise ConfigurationError(f"split={split!r:.80}: expected a split's name, 'all', or None")


def is_number(value: object) -> bool:
    """Whether a value is a number of Python or numpy; a bool is none."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def check_int(name: str, value: Any, lowest: int, highest: int) -> int:
    """Return an integer argument as an `int`, which JSON can store, also if it is one of numpy.

    Raises:
        ConfigurationError: it is not an integer, or out of range (both ends included).
    """
    message = f"{name}={value!r}: expected an integer from {lowest} to {highest}"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(message)
    if not lowest <= value <= highest:
        raise ConfigurationError(message)
    return int(value)
