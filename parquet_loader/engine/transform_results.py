"""Checks what `transform` returns, and turns it into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.engine.media_decoding import BatchArrays, Images
from parquet_loader.errors import ConfigurationError, TransformError
from parquet_loader.schema import Ragged
from parquet_loader.window import Array

_BFLOAT16 = "a transform cannot return bfloat16; return float32, as of value.float(), and convert the batch in the loop"


@dataclass(frozen=True, slots=True)
class RowsOut:
    """How many rows `transform` returns.

    Attributes:
        batch_size: Rows of a full batch before.
        rows: Rows of a full batch afterwards. The last batch of an epoch, if it is not full, has 1 to `rows`.
    """

    batch_size: int
    rows: int

    def check(self, found: int, given: int, where: str) -> None:
        """Check the rows of a batch.

        Raises:
            TransformError: The batch has more or fewer.
        """
        if given == self.batch_size and found != self.rows:
            raise TransformError(f"{where}: expected the {self.rows} rows of rows_out, found {found}")
        if not 1 <= found <= self.rows:
            raise TransformError(
                f"{where}: expected 1 to {self.rows} rows (rows_out) for the last batch, which has {given} of "
                f"{self.batch_size} rows, found {found}"
            )


def checked(returned: Any, rows: int, rows_out: RowsOut | None, where: str, hint: str) -> BatchArrays:
    """Return the columns that `transform` returned, as arrays.

    Args:
        returned: Its result.
        rows: The number of rows that it was given.
        rows_out: As in `BatchProcessor`.
        where: The call, for messages.
        hint: What messages about a changed number of rows add.

    Raises:
        TransformError: The result is not a batch.
    """
    if not isinstance(returned, dict):
        raise TransformError(f"{where}: expected a dict of columns, found {type(returned).__name__}")
    if not returned:
        raise TransformError(f"{where}: expected a dict of columns, found an empty one")
    done: BatchArrays = {}
    of = "the batch's"
    for name, value in returned.items():
        if not isinstance(name, str):
            raise TransformError(f"{where}: expected a str as column name, found {name!r}")
        array = _from_transform(value, f"{where}, column {name!r}")
        if rows_out is not None and not done:
            rows_out.check(len(array), rows, f"{where}, column {name!r}")
            rows, of, hint = len(array), "the other columns'", ""
        elif len(array) != rows:
            raise TransformError(f"{where}, column {name!r}: expected {of} {rows} rows, found {len(array)}{hint}")
        done[name] = array
    return done


def _from_transform(value: Any, where: str) -> Array | Images:
    if isinstance(value, Ragged):
        return _checked_ragged(value, where)
    if isinstance(value, list | tuple):
        return _from_rows(list(value), where)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TransformError(
            f"{where}: a batch does not keep the mask of numpy's masked arrays; "
            "return value.filled(...), and the mask as a column of its own"
        )
    array = _as_array(value, where)
    if array.ndim == 0:
        raise TransformError(f"{where}: expected an array of rows, found the single value {value!r:.60}")
    return _from_rows(array.tolist(), where) if array.dtype.kind in "OUST" else _numbers(array, where)


def _as_array(value: Any, where: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        what = _BFLOAT16 if "BFloat16" in str(error) else f"cannot be converted to an array: {error}"
        raise TransformError(f"{where}: {what}") from error


def _numbers(array: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Return numbers in the form that torch accepts: C order, native byte order, writable."""
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        if array.dtype.name == "bfloat16":
            raise TransformError(f"{where}: {_BFLOAT16}")
        raise TransformError(f"{where}: no tensor can hold the dtype {array.dtype}; return numbers, str or bytes")
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    return array if array.flags.writeable else array.copy()


def _checked_ragged(value: Ragged, where: str) -> Ragged:
    offsets = _as_array(value.offsets, f"{where}, offsets")
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise TransformError(f"{where}: expected integer offsets [rows + 1] of a Ragged, found {value.offsets!r:.60}")
    offsets = _numbers(offsets.astype(np.int64, copy=False), where)
    values: Any
    if isinstance(value.values, Ragged):
        values = _checked_ragged(value.values, where)
    else:
        values = _numbers(_as_array(value.values, where), where)
        if values.ndim == 0 or (value.kind != "list" and (values.ndim != 1 or values.dtype != np.uint8)):
            raise TransformError(
                f"{where}: a Ragged of kind {value.kind!r} has uint8 values [bytes], found {values.dtype} of shape "
                f"{values.shape}"
            )
    if offsets[0] != 0 or offsets[-1] != len(values) or (offsets[1:] < offsets[:-1]).any():
        raise TransformError(
            f"{where}: expected the offsets of a Ragged to increase from 0 to its number of values, {len(values)}"
        )
    return Ragged(values, offsets, value.kind)


def _from_rows(rows: list[Any], where: str) -> Array | Images:
    """Return a list of rows from `transform` as one column, by the type of a row.

    Rows of one value become an array. str, bytes, lists and arrays of one axis become a `Ragged`. Arrays of more axes
    are images: an array if all have one shape, else a list.
    """
    if not rows or all(_is_single(row) for row in rows):
        array = _as_array(rows, where)
        if array.dtype.kind in "OUST":
            found = sorted({type(row).__name__ for row in rows})
            raise TransformError(f"{where}: expected numbers, str or bytes in every row, found {' and '.join(found)}")
        return _numbers(array, where)
    if not any(isinstance(row, str | bytes | Ragged) or _is_single(row) for row in rows):
        arrays = [_row_or_none(row) for row in rows]
        if all(array is not None and array.ndim > 1 for array in arrays):
            images = [_numbers(array, where) for array in arrays if array is not None]
            return np.stack(images) if len({(a.shape, a.dtype) for a in images}) == 1 else images
    try:
        return _checked_ragged(Ragged.from_list(rows), where)
    except (ConfigurationError, UnicodeEncodeError) as error:
        raise TransformError(f"{where}: {str(error).removeprefix('Ragged: ')}") from error


def _is_single(row: Any) -> bool:
    if isinstance(row, str | bytes | list | tuple | Ragged):
        return False
    return not (row.ndim if hasattr(row, "ndim") else hasattr(row, "__array_interface__"))  # Pillow images have no ndim


def _row_or_none(row: Any) -> npt.NDArray[Any] | None:
    """Return a row as an array of numbers, or None if its own rows differ in length."""
    try:
        array = np.asarray(row)
    except (ValueError, TypeError, RuntimeError):
        return None
    return array if array.dtype.kind in "biufc" else None
