"""Converts Arrow arrays from a file to canonical ones: pure functions, one for each kind of field.

Each takes a chunked array of a plain type (no dictionary, no extension) and returns the canonical array, without nulls.
A value that cannot be delivered raises `ValueProblem` with its row; `decoder` adds the file and row group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import fill_null, from_numpy, join_columns
from parquet_loader.decode.columns import column_of, number_type
from parquet_loader.decode.encoded_columns import ValueProblem, unpack
from parquet_loader.decode.file_references import packed_references
from parquet_loader.schema import (
    Audio,
    Bytes,
    Category,
    Encoded,
    Field,
    Group,
    Image,
    RaggedList,
    Scalar,
    Tensor,
    Text,
    Video,
    are_file_references,
    decimals_to_float64,
    is_bytes,
    is_list_like,
    is_text,
    list_values,
    plain_type,
    policy_of,
    unpacked_field,
)

POLICIES = (
    "say what a null means with a Schema: fill=<value> delivers a value instead, null='mask' delivers a mask next to "
    "the column, and the default refuses nulls"
)


class NullProblem(ValueProblem):
    """A null in a field that refuses nulls."""


def plain(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the array without dictionaries, run-end encoding and extension types."""
    while True:
        type_ = array.type
        if isinstance(type_, pa.BaseExtensionType):
            array = pa.chunked_array([c.storage for c in array.chunks], type_.storage_type)
        elif pa.types.is_dictionary(type_):
            array = array.cast(type_.value_type)
        elif pa.types.is_run_end_encoded(type_):
            array = pc.run_end_decode(array)
        else:
            return array


def without_extensions(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the array without extension types; dictionaries stay."""
    while isinstance(array.type, pa.BaseExtensionType):
        array = pa.chunked_array([c.storage for c in array.chunks], array.type.storage_type)
    return array


def validity(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return 1 for each value and 0 for each null, uint8."""
    return pc.is_valid(array).cast(pa.uint8())


def _refuse_nulls(array: pa.ChunkedArray) -> None:
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        raise NullProblem(row, f"is null ({array.null_count} nulls here)")


def _filled(array: pa.ChunkedArray, field: Any, zero: Any, fill: Any = None) -> pa.ChunkedArray:
    """Replace nulls by the field's fill value (by `zero` if the field has a mask), or refuse them."""
    if not array.null_count:
        return array
    policy = policy_of(field)
    if policy == "refuse":
        _refuse_nulls(array)
    value = (field.fill if fill is None else fill) if field.fill is not None else zero
    value = int(value) if isinstance(value, bool) else value
    return fill_null(array, value)


def _cast(array: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Cast without loss, except from wider to narrower floats if the schema has the narrower type."""
    if array.type == type_:
        return array
    try:
        done = array.cast(type_)
        if pa.types.is_floating(type_) and pa.types.is_floating(array.type):
            _refuse_overflow(array, done)
        return done
    except pa.ArrowInvalid as error:
        row = _first_failing(array, type_)
        raise ValueProblem(row, f"{_shown(array, row)} does not fit {type_}: {str(error).split(chr(10))[0]}") from None


def _refuse_overflow(array: pa.ChunkedArray, narrowed: pa.ChunkedArray) -> None:
    """Refuse finite floats that became infinite when they were narrowed."""
    if array.type.bit_width <= narrowed.type.bit_width:
        return
    grown = pc.and_(pc.is_inf(narrowed), pc.invert(pc.is_inf(array)))
    if pc.any(grown).as_py():
        row = pc.index(grown, True).as_py()
        raise ValueProblem(row, f"{_shown(array, row)} is too large for {narrowed.type}")


def _first_failing(array: pa.ChunkedArray, type_: pa.DataType) -> int | None:
    """Return the first row whose cast fails, by bisection."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(type_)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low if high > low else None


def _shown(array: pa.ChunkedArray, row: int | None) -> str:
    return "a value" if row is None else f"the value {array[row].as_py()!r:.60}"


def scalar(array: pa.ChunkedArray, field: Scalar) -> pa.ChunkedArray:
    """Convert numbers and times."""
    target = number_type(field.dtype)
    if array.type == target and not array.null_count:
        return array
    array = _cast_scalar(array, field.type, target)
    return _filled(array, field, 0)


def _cast_scalar(array: pa.ChunkedArray, stored: pa.DataType, target: pa.DataType) -> pa.ChunkedArray:
    t = pa.types
    if t.is_decimal(array.type) and t.is_floating(target):
        return _cast(decimals_to_float64(array), target)
    if t.is_decimal(array.type) and array.type.bit_width < 128:  # Arrow compares with bounds that do not fit these
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    if t.is_temporal(array.type) and array.type != stored:
        zone = pa.timestamp(stored.unit, tz=array.type.tz) if t.is_timestamp(stored) else stored
        array = _cast(array, zone)
    if t.is_float16(array.type) and not t.is_float16(target):
        array = _cast(array, pa.float32())
    if t.is_float16(target) and t.is_integer(array.type):
        _refuse_inexact(array)
    return _cast(array, target)


def _refuse_inexact(array: pa.ChunkedArray) -> None:
    """Refuse integers beyond those that float16 holds exactly, as Arrow does for wider floats."""
    beyond = pc.greater(pc.abs(array.cast(pa.float64(), safe=False)), 2048)
    if pc.any(beyond).as_py():
        row = pc.index(beyond, True).as_py()
        raise ValueProblem(row, f"{_shown(array, row)} does not fit halffloat: it is not in range: -2048 to 2048")


# The whole seconds in the range of timestamp[ns], before and after 1970; a part of one more second is in it.
_NANOSECONDS_RANGE_S = (2**63 - 1) // 10**9


def first_beyond_nanoseconds(array: pa.Array, wrapped: pa.Array | None = None) -> int | None:
    """Return a time in seconds outside the range of timestamp[ns], at any level of nesting; None if there is none.

    Args:
        array: INT96 timestamps in seconds.
        wrapped: The same timestamps in nanoseconds, which wrap outside the range; None: the first and the last second,
            of which a part is in the range, count as outside.
    """
    array, other = _plain_array(array), None if wrapped is None else _plain_array(wrapped)
    type_ = array.type
    if type_ in (pa.timestamp("s"), pa.timestamp("s", tz="UTC")):
        seconds = array.cast(pa.int64()).drop_null().to_numpy()
        if other is None:
            beyond = seconds[(seconds >= _NANOSECONDS_RANGE_S) | (seconds < -_NANOSECONDS_RANGE_S)]
        else:
            beyond = seconds[seconds != other.cast(pa.int64()).drop_null().to_numpy() // 10**9]
        return int(beyond[0]) if len(beyond) else None
    children = [_children(array)] if other is None else [_children(array), _children(other)]
    found = (first_beyond_nanoseconds(*parts) for parts in zip(*children, strict=True))
    return next((seconds for seconds in found if seconds is not None), None)


def _plain_array(array: pa.Array) -> pa.Array:
    return one_array(plain(pa.chunked_array([array])))


def _children(array: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(array.type):
        found: list[pa.Array] = array.flatten()
        return found
    if pa.types.is_map(array.type):
        return [array.keys, array.items]
    return [list_values(array)] if is_list_like(array.type) else []


def tensor(array: pa.ChunkedArray, field: Tensor) -> pa.ChunkedArray:
    """Convert raw bytes, lists of fixed or varying length and binaries to raw rows of the tensor's width."""
    raw = pa.binary(field.width_bytes)
    if array.type == raw:
        pattern = np.full(field.size, 0 if field.fill is None else field.fill, dtype=field.dtype).tobytes()
        return _filled(array, field, pattern, pattern)
    return _by_chunk(array, raw, lambda chunk: _raw_rows(chunk, field, raw))


def _by_chunk(array: pa.ChunkedArray, type_: pa.DataType, change: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    """Change an array chunk by chunk; rows in problems are counted from the beginning of the array."""
    start, done = 0, []
    for chunk in array.chunks:
        try:
            done.append(change(chunk))
        except ValueProblem as problem:
            raise problem.at(None if problem.row is None else problem.row + start) from None
        start += len(chunk)
    return pa.chunked_array(done, type_)


def _raw_rows(chunk: pa.Array, field: Tensor, raw: pa.DataType) -> pa.Array:
    if chunk.null_count and policy_of(field) == "refuse":
        _refuse_nulls(pa.chunked_array([chunk]))
    rows = len(chunk)
    valid = np.ones(rows, np.bool_)
    if chunk.null_count:
        valid = np.frombuffer(one_array(validity(pa.chunked_array([chunk]))).buffers()[1], np.bool_, rows)
    present = chunk.drop_null() if chunk.null_count else chunk
    try:
        values = _even_values(present, field)
        if not is_bytes(plain_type(chunk.type)):
            element = Scalar(field.type, fill=field.fill)
            values = one_array(scalar(plain(pa.chunked_array([values])), element))
    except ValueProblem as problem:
        row = None if problem.row is None else int(np.flatnonzero(valid)[problem.row // field.size])
        raise problem.at(row, f"in its tensor: {problem.reason}") from None
    width = values.type.bit_width // 8
    data = values.buffers()[1] or pa.py_buffer(b"")
    data = data.slice(values.offset * width, len(values) * width)
    if len(present) < rows:
        filled = np.empty((rows, field.width_bytes), np.uint8)
        filled[:] = np.full(field.size, 0 if field.fill is None else field.fill, dtype=field.dtype).view(np.uint8)
        filled[valid] = np.frombuffer(data, np.uint8).reshape(len(present), field.width_bytes)
        data = pa.py_buffer(filled)
    return pa.Array.from_buffers(raw, rows, [None, data])


def _even_values(array: pa.Array, field: Tensor) -> pa.Array:
    """Return all elements of lists (of lists) or binaries that have the tensor's shape, as one array.

    A problem's row is the number of an element.
    """
    size, dims, rows, from_bytes = field.size, list[int](), len(array), is_bytes(array.type)
    while is_list_like(plain_type(array.type)) or is_bytes(array.type):
        array = one_array(plain(pa.chunked_array([array])))
        lengths = _lengths(array)
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            odd = int(np.argmax(lengths != width))
            parent = odd * size * rows // len(lengths)
            raise ValueProblem(
                parent,
                f"has {lengths[odd]} elements, and others have {width}; "
                "if rows differ in length, declare RaggedList(...) for the column in schema=",
            )
        dims.append(width)
        array = _bytes_values(array) if is_bytes(array.type) else list_values(array)
    flat = [field.width_bytes] if from_bytes else [size]
    if rows and dims not in (flat, list(field.shape)):
        raise ValueProblem(
            0,
            f"has the shape {tuple(dims)}, not the {field.shape} of the schema; "
            "if rows differ in length, declare RaggedList(...) for the column in schema=",
        )
    return array


def _bytes_values(array: pa.Array) -> pa.Array:
    array = _without_views(array)
    offsets = _offsets(array)
    data = array.buffers()[2] or pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.uint8(), int(offsets[-1] - offsets[0]), [None, data], offset=int(offsets[0]))


def _without_views(array: Any) -> Any:
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def _offsets(array: pa.Array) -> npt.NDArray[Any]:
    """Return the offsets of lists or binaries, ``[rows + 1]``, into their values."""
    large = pa.types.is_large_list(array.type) or pa.types.is_large_binary(array.type)
    large = large or pa.types.is_large_string(array.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    buffer = array.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(array) + 1, dtype)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the length of each list or binary, 0 for nulls."""
    measure = pc.binary_length if is_bytes(array.type) else pc.list_value_length
    lengths = fill_null(measure(array).cast(pa.int64()), 0)
    if not len(lengths):
        return np.zeros(0, np.int64)
    # Unlike `to_numpy`, this does not import pandas.
    return np.frombuffer(lengths.buffers()[1], np.int64, len(lengths), lengths.offset * 8)


def one_array(array: pa.ChunkedArray) -> pa.Array:
    """Return the array in one chunk; copies only if there are several."""
    if array.num_chunks == 1:
        return array.chunk(0)
    return pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)


def binary(array: pa.ChunkedArray, field: Text | Bytes | Image | Audio | Video | Encoded) -> pa.ChunkedArray:
    """Convert text, bytes and references to files to large binaries."""
    array = packed_references(array) if pa.types.is_struct(array.type) else _plain_bytes(array)
    if isinstance(field, Text):
        _refuse_other_than_utf8(array)
    array = array.cast(pa.large_binary())
    if not array.null_count:
        return array
    fill = field.fill.encode() if isinstance(field.fill, str) else field.fill
    return _filled(array, field, b"", fill)


def _plain_bytes(array: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _refuse_other_than_utf8(array: pa.ChunkedArray) -> None:
    start = 0
    for chunk in array.chunks:
        try:
            chunk.validate(full=True)
        except pa.ArrowInvalid:
            for row, value in enumerate(chunk.cast(pa.large_binary())):
                try:
                    (value.as_py() or b"").decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueProblem(
                        start + row, f"is not UTF-8 text: {error}; to read its bytes, write the column as binary"
                    ) from None
            raise
        start += len(chunk)


def category(array: pa.ChunkedArray, field: Category) -> pa.ChunkedArray:
    """Convert words to codes, each word of a dictionary once; integers for text words are codes already."""
    target = pa.from_numpy_dtype(field.dtype)
    if pa.types.is_integer(array.type) and not field.is_integer:
        check_codes(array, field)
        codes = array
    elif pa.types.is_dictionary(array.type):
        codes = _by_chunk(array, pa.int32(), lambda chunk: _codes_of_dictionary(chunk, field))
    else:
        codes = _by_chunk(_without_views(array), pa.int32(), lambda chunk: _codes_of_words(chunk, field))
    return _cast(_filled(codes, field, 0, None if field.fill is None else field.code(field.fill)), target)


def check_codes(array: pa.ChunkedArray, field: Category) -> None:
    """Refuse integers that are not positions in the vocabulary."""
    bounds, count = pc.min_max(array), len(field.vocabulary)
    if bounds["min"].is_valid and (bounds["min"].as_py() < 0 or bounds["max"].as_py() >= count):
        bad = pc.or_(pc.less(array, 0), pc.greater_equal(array, count))
        row = pc.index(bad, True).as_py()
        raise ValueProblem(row, f"holds the code {array[row].as_py()}, expected one from 0 to {count - 1}")


def coded_words(array: pa.ChunkedArray, stored: Category) -> pa.ChunkedArray:
    """Return stored codes as a dictionary array of their words."""
    check_codes(array, stored)
    words = stored.words
    index = pa.int64() if array.type in (pa.uint32(), pa.uint64()) else array.type
    type_ = pa.dictionary(index, words.type)
    return _by_chunk(array, type_, lambda chunk: pa.DictionaryArray.from_arrays(chunk.cast(index), words))


def _codes_of_dictionary(chunk: pa.DictionaryArray, field: Category) -> pa.Array:
    """Return int32 codes, null for nulls; each word of the dictionary is looked up once."""
    words = chunk.dictionary
    codes = _looked_up(words, field)
    taken = codes.take(chunk.indices)
    if codes.null_count > words.null_count and taken.null_count > chunk.null_count:
        bad = pc.and_(pc.is_null(taken), pc.is_valid(words.take(chunk.indices)))
        row = pc.index(bad, True).as_py()
        if row >= 0:
            raise _not_a_word(row, words[chunk.indices[row].as_py()], field)
    return taken


def _codes_of_words(words: pa.Array, field: Category) -> pa.Array:
    codes = _looked_up(words, field)
    if codes.null_count > words.null_count:
        row = pc.index(pc.and_(pc.is_null(codes), pc.is_valid(words)), True).as_py()
        raise _not_a_word(row, words[row], field)
    return codes


def _looked_up(words: pa.Array, field: Category) -> pa.Array:
    """Return the int32 codes of words; for words outside the vocabulary, that of `unknown`, or null without one."""
    if pa.types.is_null(words.type):
        return pa.nulls(len(words), pa.int32())
    if not field.is_integer:
        known = field.words.cast(pa.large_string())
    elif words.type == pa.uint64():  # its values may exceed int64
        known = pa.array([word if word >= 0 else None for word in map(int, field.vocabulary)], pa.uint64())
    else:
        known = field.words
    codes = pc.index_in(words.cast(known.type), value_set=known, skip_nulls=True)
    if codes.null_count > words.null_count and field.unknown is not None:
        codes = pc.if_else(pc.is_null(words), codes, fill_null(codes, field.code(field.unknown)))
    return codes


def _not_a_word(row: int, word: pa.Scalar, field: Category) -> ValueProblem:
    return ValueProblem(
        row,
        f"holds {word.as_py()!r:.60}, which is not among the {len(field.vocabulary)} words of the vocabulary; "
        "add the word, or give unknown=<word>, which replaces such values",
    )


def ragged(array: pa.ChunkedArray, field: RaggedList) -> pa.ChunkedArray:
    """Convert lists of any kind to large binaries of their items, or to large lists if the items are ragged."""
    type_ = column_of("", field).arrow_type
    return _by_chunk(array, type_, lambda chunk: _canonical_lists(chunk, field, type_))


def _canonical_lists(chunk: pa.Array, field: RaggedList, type_: pa.DataType) -> pa.Array:
    if chunk.null_count and policy_of(field) == "refuse":
        _refuse_nulls(pa.chunked_array([chunk]))
    values, offsets = _values_and_offsets(chunk)
    try:
        items = convert(plain(pa.chunked_array([values])), field.item)
    except ValueProblem as problem:
        row = None if problem.row is None else int(np.searchsorted(offsets, problem.row, side="right")) - 1
        raise problem.at(row, f"in its list: an element {problem.reason}") from None
    flat = one_array(items)
    if pa.types.is_large_list(type_):
        return pa.LargeListArray.from_arrays(from_numpy(offsets), flat, type=type_)
    width = flat.type.bit_width // 8
    data = (flat.buffers()[1] or pa.py_buffer(b"")).slice(flat.offset * width, len(flat) * width)
    return pa.Array.from_buffers(type_, len(chunk), [None, pa.py_buffer(offsets * width), data])


def _values_and_offsets(lists: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the values of lists without those of nulls, and int64 offsets ``[rows + 1]`` from 0."""
    is_large = pa.types.is_large_list(lists.type)
    buffer = lists.buffers()[1]
    if lists.null_count or buffer is None or not (is_large or pa.types.is_list(lists.type)):
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum(_lengths(lists), out=offsets[1:])
        return list_values(lists), offsets
    dtype = np.dtype(np.int64 if is_large else np.int32)
    found = np.frombuffer(buffer, dtype, len(lists) + 1, lists.offset * dtype.itemsize)
    first, last = int(found[0]), int(found[-1])
    return lists.values.slice(first, last - first), np.subtract(found, first, dtype=np.int64)


def encoded(array: pa.ChunkedArray, field: Encoded) -> pa.ChunkedArray:
    """Convert the bytes of arrays: to rows of values if the field has an unpacked form, else to large binaries."""
    unpacked = unpacked_field(field)
    if unpacked is None:
        return binary(array, field)
    if array.null_count and policy_of(field) == "refuse":
        _refuse_nulls(array)
    type_ = column_of("", field).arrow_type

    def unpacked_chunk(chunk: pa.Array) -> pa.Array:
        return one_array(convert(pa.chunked_array([unpack(chunk, field)]), unpacked))

    return _by_chunk(_plain_bytes(array), type_, unpacked_chunk)


def matrix(arrays: list[pa.ChunkedArray], dtype: np.dtype[Any]) -> pa.ChunkedArray:
    """Return columns of numbers as one column of raw rows, ``[rows, columns]`` in C order."""
    rows, kept = len(arrays[0]), np.dtype(np.uint8) if dtype == np.bool_ else dtype
    # Arrow's pool reuses memory, which saves page faults.
    buffer = pa.allocate_buffer(rows * len(arrays) * kept.itemsize)
    out = np.frombuffer(buffer, kept).reshape(rows, len(arrays))
    join_columns([_numbers(array, out.dtype) for array in arrays], out)
    raw = pa.binary(out.itemsize * len(arrays))
    return pa.chunked_array([pa.Array.from_buffers(raw, rows, [None, buffer])], raw)


def _numbers(array: pa.ChunkedArray, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers without nulls as numpy; copies only booleans, and arrays of several chunks."""
    chunks = [_chunk_numbers(chunk, dtype) for chunk in array.chunks if len(chunk)]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks or [np.empty(0, dtype)])


def _chunk_numbers(chunk: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if pa.types.is_boolean(chunk.type):
        bits: npt.NDArray[Any] = chunk.to_numpy(zero_copy_only=False)
        return bits
    return np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize)


def convert(array: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    """Return the canonical array of a field that is not a group."""
    if pa.types.is_null(array.type) and not isinstance(field, Group):
        array = array.cast(field.word_type if isinstance(field, Category) else field.arrow_type)
    match field:
        case Scalar():
            return scalar(array, field)
        case Tensor():
            return tensor(array, field)
        case Category():
            return category(array, field)
        case RaggedList():
            return ragged(array, field)
        case Text() | Bytes() | Image() | Audio() | Video():
            return binary(array, field)
        case Encoded():
            return encoded(array, field)
    raise TypeError(f"{field!r}: expected a field of one column")


def accepts(type_: pa.DataType, field: Field) -> bool:
    """Whether a column of this Arrow type can be delivered as this field; single values may still be refused."""
    t = pa.types
    type_ = plain_type(type_)
    if t.is_null(type_):
        return True
    match field:
        case Scalar():
            if t.is_temporal(field.type):
                same = type_.id == field.type.id or (t.is_date(type_) and t.is_date(field.type))
                same = same or (t.is_time(type_) and t.is_time(field.type))
                return bool(same or type_ == number_type(field.dtype))
            if t.is_boolean(field.type) or t.is_boolean(type_):
                return bool(type_ == field.type)
            return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_))
        case Tensor():
            if t.is_fixed_size_binary(type_):
                return bool(type_.byte_width == field.width_bytes)
            while is_list_like(type_):
                type_ = plain_type(type_.value_type)
            if is_bytes(type_):
                return True
            return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_boolean(type_)) and accepts(
                type_, Scalar(field.type)
            )
        case Category():
            return bool(t.is_integer(type_)) or (is_text(type_) and not field.is_integer)
        case RaggedList():
            return is_list_like(type_) and accepts(type_.value_type, field.item)
        case Image(storage="path") | Audio(storage="path") | Video(storage="path"):
            return is_text(type_) or are_file_references(type_)
        case Text():
            return is_text(type_)
        case Bytes() | Image() | Audio() | Video() | Encoded():
            return is_bytes(type_) or bool(t.is_fixed_size_binary(type_))
        case _:
            return False
