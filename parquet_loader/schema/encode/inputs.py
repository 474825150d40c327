"""Normalizes one column of a caller to one of four forms: numpy array, Arrow array, list, `Ragged`."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import from_numpy, referenced_bytes
from parquet_loader.schema.encode.lossless import Misfit, from_python
from parquet_loader.schema.ragged import Ragged

Values: TypeAlias = "np.ndarray[Any, Any] | pa.Array | list[Any] | Ragged"


def plain(values: Any, *, nan_is_null: bool = True) -> Values:
    """Return a caller's column as a numpy array, an Arrow array of a plain type, a list or a `Ragged`.

    Args:
        values: numpy array, masked array, torch or other tensor in host memory (``__array__`` or ``__dlpack__``),
            pandas Series, anything with the Arrow PyCapsule interface (Polars Series, Arrow arrays), a sequence of
            Python objects, or a *tuple* ``(values, offsets)`` of two arrays.
        nan_is_null: Whether NaN in a pandas Series is a missing value, as in pandas.

    Raises:
        Misfit: the column has none of these forms.
    """
    if isinstance(values, Ragged | np.ndarray | pa.Array | pa.ChunkedArray):
        return _known(values)
    if _is_pandas(values):
        return _from_pandas(values, nan_is_null=nan_is_null)
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        if type(values).__module__.partition(".")[0] == "polars" and str(values.dtype) == "Object":
            return _listed(values)  # Polars exports the addresses of the objects
        try:
            return _known(pa.chunked_array(values))
        except MemoryError:
            raise  # memory that ran out says nothing about the data
        except (pa.ArrowException, TypeError) as error:
            raise Misfit(f"{type(values).__name__} cannot be read as an Arrow column: {error}") from None
    if hasattr(values, "__array__") or hasattr(values, "__dlpack__"):
        return _known(host_array(values))
    count_rows(values)
    if is_values_and_offsets(values):
        return Ragged(host_array(values[0]), host_array(values[1]))
    return _listed(values)


def is_values_and_offsets(values: Any) -> bool:
    """Whether the column is a tuple of two arrays, ``(values, offsets)``; a column of rows is a list."""
    return (
        isinstance(values, tuple)
        and len(values) == 2
        and all(hasattr(v, "dtype") and hasattr(v, "shape") for v in values)
    )


def host_array(values: Any) -> np.ndarray[Any, Any]:
    """Return a tensor of any library as a numpy array, which shares its memory if possible."""
    try:
        return numpy_array(values) if hasattr(values, "__array__") else np.from_dlpack(values)
    except (TypeError, RuntimeError, ValueError, BufferError) as error:
        raise Misfit(
            f"{type(values).__name__} has no numpy form ({error}); "
            "hand over tensors in host memory, detached, of a dtype that numpy knows"
        ) from None


def numpy_array(values: Any) -> np.ndarray[Any, Any]:
    """Return `numpy.asarray(values)`; bfloat16 of torch and JAX becomes float32, which holds each value exactly."""
    array = np.asarray(values.float() if str(getattr(values, "dtype", "")) == "torch.bfloat16" else values)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def to_arrow(values: Values) -> pa.Array:
    """Return a column with one plain value per row as an Arrow array."""
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, Ragged):
        raise Misfit("each row has values and offsets, expected one value a row; the field would be a RaggedList")
    if isinstance(values, list):
        first = next((v for v in values if v is not None), None)
        if hasattr(first, "__array__") and not isinstance(first, np.generic):
            values = [v.item() if getattr(v, "ndim", None) == 0 else v for v in values]
        return from_python(values)
    if values.ndim != 1:
        raise Misfit(
            f"the array has the shape {values.shape}, expected ({len(values) if values.ndim else 'rows'},), one value "
            f"a row; for this shape the field would be Tensor({values.dtype.name!r}, {values.shape[1:]})"
        )
    return numbers_to_arrow(values)


def numbers_to_arrow(values: np.ndarray[Any, Any]) -> pa.Array:
    """Return a numpy array ``[n]`` as an Arrow array, without a copy if the layouts agree."""
    kind = values.dtype.kind
    if kind in "Mm":
        unit, step = np.datetime_data(values.dtype)
        if unit == "generic":
            raise Misfit(f"the array has the dtype {values.dtype} without a unit")
        if step != 1 or unit not in {"s", "ms", "us", "ns", *(["D"] if kind == "M" else [])}:
            exact = "ns" if unit in {"ps", "fs", "as"} else "s"
            converted = values.astype(f"{kind}8[{exact}]")
            if not np.array_equal(converted.astype(values.dtype), values, equal_nan=True):
                raise Misfit(f"the array has the dtype {values.dtype}, finer than nanoseconds")
            values = converted
    elif kind == "T" or (kind in "fc" and values.dtype.itemsize > 8):
        if kind != "T":
            raise Misfit(f"the array has the dtype {values.dtype}, which Parquet cannot hold; convert it first")
        return from_python(values.tolist())
    elif not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    try:
        return from_numpy(values)
    except MemoryError:
        raise  # memory that ran out says nothing about the data
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Misfit(f"the array has the dtype {values.dtype}, which Parquet cannot hold ({error})") from None


def _known(values: Any) -> Values:
    if isinstance(values, Ragged):
        inner = values.values if isinstance(values.values, Ragged) else host_array(values.values)
        return Ragged(inner, host_array(values.offsets), values.kind)
    if isinstance(values, np.ma.MaskedArray):
        if values.ndim != 1:
            raise Misfit("masked arrays have one dimension here; give a list with None for rows that are missing")
        mask = np.ma.getmaskarray(values)
        return pa.array(np.asarray(values.data), mask=mask)
    if isinstance(values, np.ndarray):
        if values.ndim == 0:
            raise Misfit(f"expected an array with one value a row, found the single value {values[()]!r:.60}")
        return _listed(values) if values.dtype.kind == "O" else numpy_array(values)
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 1:
            values = values.chunk(0)
        else:
            values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, values.type)
    return plain_storage(values)


def plain_storage(array: pa.Array) -> pa.Array:
    """Return the values behind dictionaries, run-end encoding and extension types (tensor types stay)."""
    while True:
        if isinstance(array, pa.FixedShapeTensorArray):
            return array
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = _looked_up(array.dictionary, array.indices)
        elif pa.types.is_run_end_encoded(array.type):
            runs = pa.array(np.arange(len(array.values)))
            numbers = pa.RunEndEncodedArray.from_arrays(array.run_ends, runs).slice(array.offset, len(array))
            array = _looked_up(array.values, pc.run_end_decode(numbers))
        else:
            return array


def _looked_up(values: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return the values of these numbers; Arrow can look up neither encoded values nor views."""
    try:
        return _without_views(plain_storage(values)).take(numbers)
    except pa.ArrowNotImplementedError:
        raise Misfit(
            f"Arrow cannot decode dictionaries or runs of the type {values.type}; hand over plain values"
        ) from None


def _without_views(array: pa.Array) -> pa.Array:
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


def _is_pandas(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pandas" and hasattr(values, "dtype")


def _from_pandas(series: Any, *, nan_is_null: bool) -> Values:
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "biuc":
        return np.asarray(series)
    if isinstance(dtype, np.dtype) and dtype.kind == "f":
        numbers = np.asarray(series)
        return pa.array(numbers, mask=np.isnan(numbers)) if nan_is_null else numbers
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        return _listed(None if _is_missing(v) else v for v in series)
    try:
        return _known(pa.array(series, from_pandas=True))
    except MemoryError:
        raise  # memory that ran out says nothing about the data
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Misfit(f"the pandas dtype {dtype} has no Arrow form ({error}); convert it with astype") from None


def _listed(values: Iterable[Any]) -> Values:
    """Return Python objects as a list, UUIDs as their 16 bytes."""
    listed = list(values)
    first = next((v for v in listed if v is not None), None)
    return plain_storage(from_python(listed)) if isinstance(first, uuid.UUID) else listed


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return value != value  # noqa: PLR0124  (only NaN differs from itself)
    return value is None or (
        type(value).__module__.startswith("pandas") and type(value).__name__ in {"NAType", "NaTType"}
    )


def row_bytes(values: Any) -> float:
    """Return about how many bytes a row of a caller's column takes, estimated from a few rows if necessary."""
    rows = max(1, count_rows(values))
    if is_values_and_offsets(values):
        return float(values[0].nbytes) / rows
    if isinstance(values, Ragged):
        return row_bytes(values.values) * values.total / rows
    if isinstance(values, list | tuple) or getattr(getattr(values, "dtype", None), "kind", "") == "O":
        items = values.iloc if hasattr(values, "iloc") else values
        seen = [items[i] for i in range(0, count_rows(values), max(1, rows // 16))]
        return sum(map(value_bytes, seen)) / max(1, len(seen))
    size = (
        referenced_bytes(values) if isinstance(values, pa.Array | pa.ChunkedArray) else getattr(values, "nbytes", None)
    )
    return size / rows if isinstance(size, int) else 64.0


def value_bytes(value: Any) -> float:
    """Return about how many bytes one value of a row takes, or a whole row as a dict."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return 8.0 + len(value)
    if isinstance(value, list | tuple):
        return 8.0 + len(value) * (value_bytes(value[0]) if value else 0.0)
    if isinstance(value, Mapping):
        return 8.0 + sum(map(value_bytes, value.values()))
    if value is None or isinstance(value, bool | int | float | dt.date):
        return 8.0
    size = getattr(value, "nbytes", 64)
    return float(size) if isinstance(size, int) else 64.0


def count_rows(values: Any) -> int:
    """Return the number of rows of a caller's column.

    Raises:
        Misfit: it is not a column.
    """
    if is_values_and_offsets(values):
        return max(0, int(values[1].shape[0]) - 1)
    shape = getattr(values, "shape", None)
    if isinstance(shape, Sequence) and len(shape):
        return int(shape[0])
    # Arrow objects of Pillow have no `__len__`.
    is_arrow = hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__")
    is_column = isinstance(values, Ragged | Sequence) or (is_arrow and hasattr(values, "__len__"))
    if not is_column or isinstance(values, str | bytes | bytearray | memoryview):
        raise Misfit(
            f"expected an array or a list with one value a row, found {type(values).__name__} {values!r:.60}; "
            "rows given as dicts belong in a list"
        )
    return len(values)


def slice_rows(values: Any, start: int, stop: int) -> Any:
    """Return rows ``start`` to ``stop`` (exclusive) of a caller's column, without a copy if possible."""
    if is_values_and_offsets(values):
        values = Ragged(host_array(values[0]), host_array(values[1]))
    if isinstance(values, Ragged):
        return values.slice(start, stop)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.slice(start, stop - start)
    return values.iloc[start:stop] if hasattr(values, "iloc") else values[start:stop]
