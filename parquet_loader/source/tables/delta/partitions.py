"""Turns the partition values of a Delta log, which are text, into Arrow columns of the table's types."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import text_array
from parquet_loader.errors import SourceError

_ESCAPED = re.compile(r"\\u[0-9A-Fa-f]{4}")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def partition_column(texts: Sequence[str | None], type_: pa.DataType, name: str, root: str) -> pa.Array:
    """Return the values of one partition column, in the order of the texts; empty text and None are null.

    Raises:
        SourceError: a text is not a value of the type.
    """
    given: list[str | None] = [text or None for text in texts]  # in the format, empty text stands for null
    try:
        return _parsed(given, type_)
    except SourceError as error:
        raise SourceError(
            f"{root}: the log gives the partition column {name!r} {error}; store it as text, or leave it out by "
            "rewriting the table"
        ) from None
    except (pa.ArrowException, ValueError, OverflowError):
        wrong = next(text for text in given if text is not None and not _is_valid(text, type_))
        raise SourceError(
            f"{root}: the log gives the partition column {name!r} the value {wrong!r}, which is not a {type_}"
        ) from None


def _is_valid(text: str, type_: pa.DataType) -> bool:
    try:
        _parsed([text], type_)
    except (pa.ArrowException, ValueError, OverflowError):
        return False
    return True


def _parsed(texts: list[str | None], type_: pa.DataType) -> pa.Array:
    kinds = pa.types
    if kinds.is_string(type_):
        return text_array(texts)
    if kinds.is_binary(type_):
        if any(_ESCAPED.search(text) for text in texts if text is not None):
            raise SourceError("bytes that may be escaped, about which readers differ")
        return pa.array([None if text is None else text.encode() for text in texts], type_)
    if kinds.is_timestamp(type_):
        return pa.array([None if text is None else _microseconds(text) for text in texts], pa.int64()).view(type_)
    if kinds.is_boolean(type_):
        return pa.array([None if text is None else _boolean(text) for text in texts], type_)
    array = text_array(texts)
    if kinds.is_date32(type_):
        return pa.array([None if text is None else dt.date.fromisoformat(text[:10]) for text in texts], type_)
    if kinds.is_null(type_):
        return pa.nulls(len(texts))
    return pc.cast(pc.utf8_trim_whitespace(array), type_)


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _microseconds(text: str) -> int:
    """Return a time as microseconds since 1970: of text without a zone, as of UTC."""
    when = dt.datetime.fromisoformat(text)
    when = when.replace(tzinfo=dt.UTC) if when.tzinfo is None else when
    return (when - _EPOCH) // dt.timedelta(microseconds=1)
