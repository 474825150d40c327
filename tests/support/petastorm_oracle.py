"""What Petastorm itself read of the data sets in `tests/fixtures/petastorm`, as Python values."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parents[1] / "fixtures" / "petastorm"
EVERYTHING = FIXTURES / "everything"
SERIES = FIXTURES / "series"
PLAIN = FIXTURES / "plain"
ROWS = 24


def value_of(found: Any) -> Any:
    """Return a value as `tests/interop/make_petastorm.py` wrote it down."""
    if isinstance(found, list):
        return [value_of(v) for v in found]
    if not isinstance(found, dict):
        return found
    if found.keys() == {"decimal"}:
        return Decimal(found["decimal"])
    if found.keys() == {"bytes"}:
        return base64.b64decode(found["bytes"])
    if found.keys() == {"date"}:
        return dt.date.fromisoformat(found["date"])
    if "array" not in found:
        return {name: value_of(v) for name, v in found.items()}
    if found["dtype"] == "datetime64[ns]":
        array = np.array(found["values"], "M8[ns]")
    elif found["dtype"] in ("O", "U", "S"):
        values = value_of(found["values"])
        kind: Any = {"O": object, "U": np.str_, "S": np.bytes_}[found["dtype"]]
        array = np.array(values, kind).reshape(found["shape"])
    else:
        array = np.frombuffer(base64.b64decode(found["data"]), found["dtype"]).reshape(found["shape"])
    return array[()] if found["array"] == "scalar" else array


@lru_cache
def expected() -> dict[str, Any]:
    """Return everything that Petastorm read."""
    with gzip.open(FIXTURES / "expected.json.gz") as file:
        found: dict[str, Any] = json.load(file)
    return found


@lru_cache
def rows(name: str = "everything") -> list[dict[str, Any]]:
    """Return the rows of a data set as the row reader returned them, in the order of the files."""
    part = expected()[name]
    return [value_of(row) for row in (part["rows"] if isinstance(part, dict) else part)]


def assert_same(found: Any, wanted: Any, where: str) -> None:
    """Check two values of a row: type, dtype, shape and every element; NaN equals NaN."""
    if wanted is None:
        assert found is None, where
    elif isinstance(wanted, np.ndarray | np.generic):
        a, b = np.asarray(found), np.asarray(wanted)
        assert a.shape == b.shape, f"{where}: {a.shape} {b.shape}"
        if b.dtype.kind == "M":
            assert a.dtype.kind == "M", where
            a, b = a.astype("M8[ns]"), b.astype("M8[ns]")
        elif b.dtype.kind in "US":
            assert a.dtype.kind == b.dtype.kind, f"{where}: {a.dtype} {b.dtype}"
        else:
            assert a.dtype.newbyteorder("=") == b.dtype, f"{where}: {a.dtype} {b.dtype}"
        if b.dtype.kind == "f":
            np.testing.assert_array_equal(a, b, where)
        else:
            assert a.tolist() == b.tolist(), where
    else:
        assert type(found) is type(wanted), f"{where}: {type(found)} {type(wanted)}"
        assert found == wanted, where
