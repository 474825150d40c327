"""Splits rows into training and validation sets by a hash, as exact filters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import (
    GOLDEN,
    LAST_SHIFT,
    MASK,
    STEPS,
    Call,
    FieldRef,
    Literal,
    Node,
    check_int,
    mixed,
    named_columns,
    nodes,
    read_expression,
)
from parquet_loader.errors import ConfigurationError, SchemaError
from parquet_loader.read.virtual_columns import PositionHash, TextHash, Unit, position_hash
from parquet_loader.schema import is_bytes, is_text


def split(column: str, start: float, stop: float, seed: int = 0, *, text: bool = False) -> pc.Expression:
    """Return a filter that keeps the rows whose hash of a column is from `start` to `stop` (exclusive).

    Rows of equal value are in the same split. A row's split depends only on its value and the seed, so it does not
    change when files are added, renamed or rewritten. Splits of one column and seed whose ranges do not overlap share
    no row. Splits that cover 0 to 1 together hold every row whose value is not null.

    The hash is the finaliser of SplitMix64 (Steele, Lea and Flood 2014) of the value as 64 bits and the seed, method
    ``splitmix-1``, built from Arrow's own functions: no Python code runs for it, and pyarrow accepts the filter too.
    Text and bytes are first hashed to 64 bits by method ``splitmix-bytes-1`` (`common.splitmix`); such a filter works
    only in this library's `filters=`.

    Args:
        column: Name of a column of integers, booleans or timestamps, or with `text` of text or bytes; rows in which
            it is null are in no split.
        start: Beginning of the range, at least 0.
        stop: End of the range (exclusive), at most 1.
        seed: From 0 to 2**64 - 1; another seed gives other splits.
        text: Whether the column holds text or bytes, of fixed or varying length, or a dictionary of these. Text is
            hashed as UTF-8.

    Raises:
        ConfigurationError: the range is invalid.
    """
    if not isinstance(column, str) or not column:
        raise ConfigurationError(f"split({column!r:.80}): expected a column's name")
    if not isinstance(text, bool):
        raise ConfigurationError(f"split({column!r}, text={text!r}): expected True or False")
    _check_range(start, stop, f"split({column!r}, {start!r}, {stop!r})")
    seed = check_int("split seed", seed, 0, MASK)
    if text:
        return _between(pc.field(TextHash(column, seed).name), start, stop)
    hashed = pc.add(
        pc.bit_wise_xor(_as_bits(column), _word(mixed(seed))), _word(GOLDEN)
    )  # arithmetic that is not checked wraps
    for shift, factor in STEPS:
        hashed = pc.multiply(pc.bit_wise_xor(hashed, pc.shift_right(hashed, _word(shift))), _word(factor))
    return _between(pc.bit_wise_xor(hashed, pc.shift_right(hashed, _word(LAST_SHIFT))), start, stop)


def split_rows(start: float, stop: float, seed: int = 0, *, unit: Unit = 1) -> pc.Expression:
    """Return a filter that keeps the rows whose hash of their position is from `start` to `stop` (exclusive).

    A row's position is its number in its file; the file is identified by its name without directories, and a digest of
    its footer. So a row's split does not change when files are added or removed, or when the data set is moved or
    copied. It does change when its file is renamed or rewritten. Splits of one seed and unit whose ranges do not
    overlap share no row. Splits that cover 0 to 1 together hold every row.

    The filter works only in this library's `filters=`, combined with others by ``&``, ``|`` and ``~``; other readers do
    not know rows' positions. The hash is that of `split`.

    Args:
        start: Beginning of the range, at least 0.
        stop: End of the range (exclusive), at most 1.
        seed: From 0 to 2**64 - 1; another seed gives other splits.
        unit: Rows that share a hash: that many consecutive rows of a file, counted from its beginning; or
            ``"row_group"`` or ``"file"``. Row groups and files outside the split are not read at all, but with few of
            them the shares are uneven.

    Raises:
        ConfigurationError: the range or unit is invalid.
    """
    if unit not in ("row_group", "file"):
        unit = check_int("split_rows unit", unit, 1, 2**62)
    _check_range(start, stop, f"split_rows({start!r}, {stop!r})")
    seed = check_int("split_rows seed", seed, 0, MASK)
    return _between(pc.field(PositionHash(unit, seed).name), start, stop)


def splits_by_position(filters: pc.Expression) -> bool:
    """Whether a filter uses `split_rows`."""
    return any(position_hash(name) is not None for name in named_columns(read_expression(filters)))


def check_number_keys(tree: Node, schema: pa.Schema, file: str) -> None:
    """Check that splits in a filter hash only integers, booleans and timestamps.

    Without this check Arrow would parse text to numbers, and truncate floats.

    Args:
        tree: The filter.
        schema: The columns that it compares.
        file: The file of the schema, for messages.

    Raises:
        SchemaError: a column has another type; the message says what to write instead.
    """
    for name in _number_keys(tree):
        type_ = schema.field(name).type if name in schema.names else pa.null()
        if _is_number(type_) or pa.types.is_null(type_):
            continue
        cure = (
            f"split({name!r}, ..., text=True) hashes text and bytes"
            if _is_bytes(type_)
            else "split hashes integers, booleans and timestamps, and with text=True text and bytes"
        )
        raise SchemaError(f"{file}: filters: split({name!r}): the column is {type_}; {cure}")


def _number_keys(tree: Node) -> Iterator[str]:
    """Yield the columns that a filter of `split` hashes as numbers."""
    for node in nodes(tree):
        match node:
            case Call(
                "add", (Call("bit_wise_xor", (Call("cast", (Call("cast", (FieldRef((name,)),)),)), _)), Literal(word))
            ):
                if word.as_py() == GOLDEN:
                    yield name


def check_text_keys(columns: Iterable[str], schema: pa.Schema, file: str) -> None:
    """Check that columns hashed as text or bytes have these types; arguments and errors as in `check_number_keys`."""
    for column in columns:
        type_ = schema.field(column).type
        if not _is_bytes(type_) and not pa.types.is_null(type_):
            raise SchemaError(
                f"{file}: filters: split({column!r}, text=True): the column is {type_}, neither text nor bytes; "
                "leave text=True out for integers, booleans and timestamps"
            )


def _is_number(type_: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_dictionary(type_):
        return _is_number(type_.value_type)
    is_time = kinds.is_timestamp(type_) or kinds.is_duration(type_) or kinds.is_date64(type_) or kinds.is_time64(type_)
    return bool(kinds.is_integer(type_) or kinds.is_boolean(type_) or is_time)


def _is_bytes(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return _is_bytes(type_.value_type)
    return is_text(type_) or is_bytes(type_) or bool(pa.types.is_fixed_size_binary(type_))


def _as_bits(column: str) -> pc.Expression:
    # Casting int64 to uint64 unchecked keeps the bits.
    return pc.field(column).cast(pa.int64(), safe=False).cast(pa.uint64(), safe=False)


def _check_range(start: float, stop: float, what: str) -> None:
    if not 0 <= start < stop <= 1:
        raise ConfigurationError(f"{what}: expected 0 <= start < stop <= 1")


def _between(hashed: pc.Expression, start: float, stop: float) -> pc.Expression:
    """Return the filter ``start <= hash < stop`` with one occurrence of the hash, which Arrow evaluates each time."""
    low, high = int(start * 2**64), int(stop * 2**64)
    if high > MASK:
        return hashed >= _word(low)
    return pc.subtract(hashed, _word(low)) < _word(high - low)


def _word(value: int) -> Any:
    return pa.scalar(np.uint64(value), pa.uint64())
