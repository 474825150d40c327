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
    nodes,
)
from parquet_loader.errors import ConfigurationError, SchemaError
from parquet_loader.read.virtual_columns import PositionHash, TextHash, Unit


def split(column: str, start: float, stop: float, seed: int = 0, *, text: bool = False) -> pc.Expression:
    """Return a filter that keeps the rows whose hash of a column lies from `start` to `stop` (exclusive).

    Rows of equal value go together, and a row's side depends on nothing but its value and the seed: it stays as files
    are added, renamed or rewritten. Splits of one column and seed that do not overlap share no row, and together those
    that cover 0 to 1 hold every row whose value is not null.

    The hash is the finaliser of SplitMix64 (Steele, Lea and Flood 2014) of the value as 64 bits and the seed, method
    ``splitmix-1``, by Arrow's own functions: no Python runs for it, and it works wherever pyarrow takes a filter. Text
    and bytes become 64 bits before, by method ``splitmix-bytes-1`` (`common.splitmix`); such a filter is one for
    this library's `filters=` alone.

    Args:
        column: Name of a column of integers, booleans or timestamps, or with `text` of text or bytes; rows in which
            it is null are on no side.
        start: From 0.
        stop: To 1.
        seed: From 0 to 2**64 - 1; another seed splits otherwise.
        text: The column holds text or bytes, of fixed or varying length, or a dictionary of these. Text counts by its
            UTF-8 bytes.

    Raises:
        ConfigurationError: no such range.
    """
    if not isinstance(column, str) or not column:
        raise ConfigurationError(f"split({column!r:.80}): expected a column's name")
    if not isinstance(text, bool):
        raise ConfigurationError(f"split({column!r}, text={text!r}): expected True or False")
    _check_range(start, stop, f"split({column!r}, {start!r}, {stop!r})")
    check_int("split seed", seed, 0, MASK)
    if text:
        return _between(pc.field(TextHash(column, seed).name), start, stop)
    hashed = pc.add(
        pc.bit_wise_xor(_as_bits(column), _word(mixed(seed))), _word(GOLDEN)
    )  # arithmetic that is not checked wraps
    for shift, factor in STEPS:
        hashed = pc.multiply(pc.bit_wise_xor(hashed, pc.shift_right(hashed, _word(shift))), _word(factor))
    return _between(pc.bit_wise_xor(hashed, pc.shift_right(hashed, _word(LAST_SHIFT))), start, stop)


def split_rows(start: float, stop: float, seed: int = 0, *, unit: Unit = 1) -> pc.Expression:
    """Return a filter that keeps the rows whose hash of their place in the files lies from `start` to `stop`.

    A row's place is the file it is in (by its name without directories, and what its footer says) and its number there.
    So a row's side stays as files are added or removed, and as the whole data set is moved or copied; a file that is
    renamed or written anew divides anew. Splits of one seed and unit that do not overlap share no row, and those that
    cover 0 to 1 hold every row.

    It is a filter for this library's `filters=` alone, where it combines with others by ``&``, ``|`` and ``~``:
    elsewhere rows have no place. The hash is that of `split`.

    Args:
        start: From 0.
        stop: To 1 (exclusive).
        seed: From 0 to 2**64 - 1; another seed splits otherwise.
        unit: Rows that go together: that many neighbours of a file, counted from its beginning; or ``"row_group"`` or
            ``"file"``, of which those left out are not read at all, while shares are only as even as their number
            allows.

    Raises:
        ConfigurationError: no such range or unit.
    """
    if unit not in ("row_group", "file"):
        check_int("split_rows unit", unit, 1, 2**62)
    _check_range(start, stop, f"split_rows({start!r}, {stop!r})")
    check_int("split_rows seed", seed, 0, MASK)
    return _between(pc.field(PositionHash(unit, seed).name), start, stop)


def check_number_keys(tree: Node, schema: pa.Schema, file: str) -> None:
    """Check that splits in a filter hash columns that are 64 bits or fewer, and exact.

    Arrow itself would read numbers from text, and cut off the fraction of others.

    Args:
        tree: The filter.
        schema: The columns it is over.
        file: Whose they are.

    Raises:
        SchemaError: a column is of another kind; says what to write instead.
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
    """Yield the columns that `split` hashes as numbers in a filter."""
    for node in nodes(tree):
        match node:
            case Call(
                "add", (Call("bit_wise_xor", (Call("cast", (Call("cast", (FieldRef((name,)),)),)), _)), Literal(word))
            ):
                if word.as_py() == GOLDEN:
                    yield name


def check_text_keys(columns: Iterable[str], schema: pa.Schema, file: str) -> None:
    """Check that columns that a filter hashes as text or bytes are such; other arguments and errors as above."""
    for column in columns:
        type_ = schema.field(column).type
        if not _is_bytes(type_) and not pa.types.is_null(type_):  # no value speaks against it
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
    kinds = pa.types
    is_text = kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_)
    is_binary = kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_binary_view(type_)
    return bool(is_text or is_binary or kinds.is_fixed_size_binary(type_))


def _as_bits(column: str) -> pc.Expression:
    # Casting int64 to uint64 unchecked keeps the bits.
    return pc.field(column).cast(pa.int64(), safe=False).cast(pa.uint64(), safe=False)


def _check_range(start: float, stop: float, what: str) -> None:
    if not 0 <= start < stop <= 1:
        raise ConfigurationError(f"{what}: expected 0 <= start < stop <= 1")


def _between(hashed: pc.Expression, start: float, stop: float) -> pc.Expression:
    """Compare once: Arrow works an expression out as often as it occurs."""
    low, high = int(start * 2**64), int(stop * 2**64)
    if high > MASK:
        return hashed >= _word(low)
    return pc.subtract(hashed, _word(low)) < _word(high - low)


def _word(value: int) -> Any:
    return pa.scalar(np.uint64(value), pa.uint64())
