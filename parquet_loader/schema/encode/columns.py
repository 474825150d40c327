"""Converts a caller's column to the Arrow array in which its field is stored, without loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import fill_null, from_numpy
from parquet_loader.errors import nearest
from parquet_loader.schema.arrow_types import decimals_to_float64, is_bytes, is_list_like, is_text, list_values
from parquet_loader.schema.encode.blobs import encode_arrays
from parquet_loader.schema.encode.images import encode_images
from parquet_loader.schema.encode.inputs import Values, plain, plain_storage, to_arrow
from parquet_loader.schema.encode.lossless import Misfit, NullMisfit, cast, of_kind
from parquet_loader.schema.encode.tensors import encode_tensor, tensor_of
from parquet_loader.schema.fields import (
    Audio,
    Bytes,
    Category,
    Encoded,
    Image,
    RaggedList,
    Scalar,
    Tensor,
    Text,
    Video,
    policy_of,
)
from parquet_loader.schema.ragged import Ragged

Column: TypeAlias = Scalar | Tensor | RaggedList | Text | Bytes | Category | Image | Audio | Video | Encoded


def encode_column(field: Column, values: Any) -> pa.Array:
    """Return the array of `field.arrow_type` for any form of column that `plain` takes; nulls stay null.

    Raises:
        Misfit: a value does not fit the field, or is null and the field refuses nulls.
    """
    keeps_nan = isinstance(field, Scalar) and field.dtype.kind == "f" and policy_of(field) == "refuse"
    array = _ENCODERS[type(field)](field, plain(values, nan_is_null=not keeps_nan))
    refuse_nulls(field, array)
    return array


def refuse_nulls(field: Column, array: pa.Array) -> None:
    """Refuse nulls if the field has no policy for them."""
    if array.null_count and policy_of(field) == "refuse":
        row = pc.index(array.is_null(), True).as_py()
        raise NullMisfit("the value is null, and the field refuses nulls (the default policy)", row)


def numbers(field: Scalar | Category, values: Any) -> np.ndarray[Any, Any]:
    """Return the column as it is delivered, ``[rows]`` of ``field.dtype``, with nulls filled.

    Raises:
        Misfit: as `encode_column`.
    """
    keeps_nan = isinstance(field, Scalar) and field.dtype.kind == "f" and policy_of(field) == "refuse"
    given = plain(values, nan_is_null=not keeps_nan)
    if isinstance(field, Category):
        array = _codes(field, given)
        fill = None if field.fill is None else field.code(field.fill)
    else:
        array = cast(to_arrow(given), field.type)
        if pa.types.is_decimal(field.type):
            array = decimals_to_float64(array)
        elif pa.types.is_temporal(field.type):
            array = array.cast(pa.int32() if field.type.bit_width == 32 else pa.int64())
        fill = field.fill
    refuse_nulls(field, array)
    if array.null_count:
        array = fill_null(array, fill)
    return array.to_numpy(zero_copy_only=False).astype(field.dtype, copy=False)  # type: ignore[no-any-return]


def constant(field: Column, rows: int) -> pa.Array:
    """Return a column filled with the value of `missing`, for data that lack the column."""
    value: Any = field.missing
    if isinstance(field, Tensor):
        return tensor_of(field, rows, value)
    if isinstance(field, RaggedList):
        return encode_column(field, [[]] * rows)
    if isinstance(field, Scalar) and pa.types.is_decimal(field.type):
        value = pa.array([value], pa.float64())
    else:
        value = [value]
    return pa.repeat(encode_column(field, value)[0], rows).cast(field.arrow_type)


def _scalar(field: Scalar, values: Values) -> pa.Array:
    array = cast(to_arrow(values), field.type)
    return cast(array, field.arrow_type)


def _text(_: Text, values: Values) -> pa.Array:
    return of_kind(_flat(values, pa.string()), is_text, pa.string(), ", expected text (str)")


def _flat(values: Values, type_: pa.DataType) -> pa.Array:
    """Return one value a row; those of a `Ragged` as text or bytes, whichever the type says."""
    return _ragged_bytes(values, type_) if isinstance(values, Ragged) else to_arrow(values)


def _bytes(_: Bytes, values: Values) -> pa.Array:
    return of_kind(
        _flat(values, pa.binary()),
        lambda type_: is_bytes(type_) or pa.types.is_fixed_size_binary(type_),
        pa.binary(),
        ", expected bytes",
    )


def _recordings(field: Audio | Video, values: Values) -> pa.Array:
    if field.storage == "path":
        return _paths(values)
    stores = f"; {type(field).__name__} stores the bytes of encoded files, such as Path(path).read_bytes()"
    return of_kind(_flat(values, pa.binary()), is_bytes, pa.binary(), stores)


def _images(field: Image, values: Values) -> pa.Array:
    return _paths(values) if field.storage == "path" else encode_images(field, values)


def _paths(values: Values) -> pa.Array:
    return of_kind(_flat(values, pa.string()), is_text, pa.string(), "; expected paths relative to the data set (text)")


def _ragged_bytes(ragged: Ragged, type_: pa.DataType) -> pa.Array:
    offsets = _offsets32(_checked_offsets(ragged))
    data = ragged.values
    if isinstance(data, Ragged) or data.dtype != np.uint8 or data.ndim != 1:
        raise Misfit("values and offsets of text and bytes have uint8 values [total]")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    array = pa.Array.from_buffers(type_, len(offsets) - 1, buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Misfit(str(error)) from None
    return array


def stored_words(field: Category, codes: pa.Array) -> pa.Array:
    """Return codes as the field stores them."""
    return codes.cast(field.arrow_type) if field.storage == "codes" else field.words.take(codes)


def _codes(field: Category, values: Values) -> pa.Array:
    """Return int32 codes of words; integers for a vocabulary of text are codes already, and are checked."""
    array = _flat(values, pa.string())
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.int32())
    if field.is_integer:
        if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            raise Misfit(f"the values are of type {array.type}, expected integers of the vocabulary")
        array = cast(array, pa.int64())
    elif pa.types.is_integer(array.type):
        return checked_codes(field, array)
    elif not is_text(array.type):
        raise Misfit(f"the values are of type {array.type}, expected words of the vocabulary (str) or their codes")
    array = array.cast(field.word_type)
    codes = pc.index_in(array, value_set=field.words)
    if codes.null_count > array.null_count:
        unknown = pc.and_(codes.is_null(), array.is_valid())
        if field.unknown is None:
            row = pc.index(unknown, True).as_py()
            word = array[row].as_py()
            raise Misfit(
                f"{word!r} is not in the vocabulary. {nearest(str(word), map(str, field.vocabulary))} "
                "unknown=<word> takes the place of words that are not in it",
                row,
            )
        codes = pc.if_else(unknown, pa.scalar(field.code(field.unknown), pa.int32()), codes)
    return codes


def checked_codes(field: Category, array: pa.Array) -> pa.Array:
    """Return codes as int32.

    Raises:
        Misfit: one of them is not a position in the vocabulary.
    """
    count = len(field.vocabulary)
    inside = pc.and_(pc.greater_equal(array, 0), pc.less(array, count))
    wrong = pc.index(inside, False).as_py()
    if wrong >= 0:
        raise Misfit(f"the code {array[wrong]} is not in the vocabulary, whose codes are 0 to {count - 1}", wrong)
    return array.cast(pa.int32())


def _ragged_list(field: RaggedList, values: Values) -> pa.Array:
    offsets, items, valid = _split(values)
    try:
        child = encode_column(field.item, items)
    except Misfit as misfit:
        if misfit.row is None:
            raise
        row = int(np.searchsorted(offsets, misfit.row, side="right")) - 1
        raise type(misfit)(f"item {misfit.row - int(offsets[row])}: {misfit.reason}", row) from None
    if len(child) != offsets[-1]:
        raise Misfit(f"the offsets end at {offsets[-1]}, but there are {len(child)} values")
    mask = None if valid is None else from_numpy(~valid)
    return pa.ListArray.from_arrays(from_numpy(_offsets32(offsets)), child, type=field.arrow_type, mask=mask)


def _split(values: Values) -> tuple[np.ndarray[Any, Any], Any, np.ndarray[Any, Any] | None]:
    """Return offsets, all items end to end, and which rows are not null (None: all)."""
    if isinstance(values, Ragged):
        return _checked_offsets(values), values.values, None
    if isinstance(values, np.ndarray):
        if values.ndim < 2:
            raise Misfit(f"the array has the shape {values.shape}: one value a row, expected a list of values")
        rows, length = values.shape[:2]
        return np.arange(rows + 1) * length, values.reshape(rows * length, *values.shape[2:]), None
    if isinstance(values, pa.Array):
        return split_lists(values)
    rows_ = [_sequence(row, number) for number, row in enumerate(values)]
    valid = np.array([row is not None for row in values], dtype=bool)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows_], dtype=np.int64)]).astype(np.int64)
    filled = [row for row in rows_ if len(row)]
    if filled and all(isinstance(r, np.ndarray) for r in filled) and len({(r.dtype, r.shape[1:]) for r in filled}) == 1:
        return offsets, np.concatenate(filled), None if valid.all() else valid
    return offsets, list(itertools.chain.from_iterable(filled)), None if valid.all() else valid


def _sequence(row: Any, number: int) -> Any:
    if row is None:
        return ()
    if isinstance(row, list | tuple):
        return row
    if hasattr(row, "__array__") or hasattr(row, "__dlpack__"):
        array = plain(row)
        if not isinstance(array, np.ndarray) or array.ndim > 0:
            return array
    if isinstance(row, pa.Array | pa.ListScalar):
        return row.to_pylist() if isinstance(row, pa.Array) else row.as_py()
    raise Misfit(f"the value {row!r:.60} is not a list of values; rows given as dicts belong in a list", number)


def split_lists(array: pa.Array) -> tuple[np.ndarray[Any, Any], Any, np.ndarray[Any, Any] | None]:
    """Return offsets from 0, the items end to end, and which rows are not null (None: all), of Arrow lists."""
    rows = len(array)
    if pa.types.is_null(array.type):
        return np.zeros(rows + 1, np.int64), [], np.zeros(rows, bool)
    if isinstance(array, pa.FixedShapeTensorArray):
        return _split(array.to_numpy_ndarray())
    if not is_list_like(array.type):
        raise Misfit(f"the values are of type {array.type}, expected lists")
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    return offsets, plain_storage(list_values(array)), valid


def _checked_offsets(ragged: Ragged) -> np.ndarray[Any, Any]:
    offsets = np.asarray(ragged.offsets)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) == 0:
        raise Misfit(f"the offsets are {offsets.dtype} of shape {offsets.shape}, expected integers [rows + 1]")
    offsets = offsets.astype(np.int64)
    falling = np.flatnonzero(np.diff(offsets) < 0)
    if offsets[0] != 0 or len(falling):
        at = int(falling[0]) + 1 if len(falling) else 0
        raise Misfit(f"offsets begin at 0 and never fall; offset {at} is {offsets[at]}")
    if offsets[-1] != ragged.total:
        raise Misfit(f"the offsets end at {offsets[-1]}, but there are {ragged.total} values")
    return offsets


def _offsets32(offsets: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise Misfit("a batch holds more than 2**31 values of one column; hand it over in smaller batches")
    return offsets.astype(np.int32)


_ENCODERS: dict[type, Callable[[Any, Values], pa.Array]] = {
    Scalar: _scalar,
    Tensor: encode_tensor,
    Text: _text,
    Bytes: _bytes,
    RaggedList: _ragged_list,
    Category: lambda field, values: stored_words(field, _codes(field, values)),
    Image: _images,
    Audio: _recordings,
    Video: _recordings,
    Encoded: encode_arrays,
}
