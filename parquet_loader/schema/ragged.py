"""`Ragged`: rows of varying length as two arrays of numpy or torch; torch is imported only for tensors."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray, take_ragged
from parquet_loader.errors import ConfigurationError
from parquet_loader.schema.ragged_registration import ragged_of, register_where_imported

RaggedKind: TypeAlias = Literal["list", "text", "bytes"]


class Ragged:
    """Rows of varying length: the concatenated values, and the offset of each row.

    It supports operations of a tensor: `to`, `pin_memory`, indexing, `cat`, pickle, `torch.save`. With numpy arrays it
    needs no torch. Two are equal if kind, offsets and values are equal; it is not hashable. The constructor neither
    copies nor checks the arrays; `from_list` and `from_padded` check them.

    Attributes:
        values: Array or tensor ``[total, ...]``, or a `Ragged` for lists of lists and lists of text; uint8 for text
            and bytes.
        offsets: int64 ``[rows + 1]``, from 0 to ``total``; row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
        kind: ``"list"``, ``"text"`` (UTF-8) or ``"bytes"``: the type of a row in `to_list`.
    """

    # Not a dataclass: Lightning searches dataclasses and iterables for the batch size, and would take that of `values`.
    __slots__ = ("kind", "offsets", "values")
    __hash__ = None  # type: ignore[assignment]
    __module__ = "parquet_loader"  # pickles refer to the public name

    values: Any
    offsets: Any
    kind: RaggedKind

    def __init__(self, values: Any, offsets: Any, kind: RaggedKind = "list") -> None:
        if kind not in ("list", "text", "bytes"):
            raise ConfigurationError(f"Ragged kind={kind!r}: expected 'list', 'text' or 'bytes'")
        self.values = np.asarray(values) if isinstance(values, list | tuple) else values
        self.offsets = _index_like(self.values, offsets) if isinstance(offsets, list | tuple) else offsets
        self.kind = kind
        register_where_imported(Ragged)

    @staticmethod
    def from_list(rows: Iterable[Any], dtype: Any = None) -> Ragged:
        """Return a `Ragged` of rows given as a list.

        Args:
            rows: Arrays, tensors or lists of numbers ``[length, ...]`` that differ in the first length only; or all
                `str`; or all `bytes`; or lists of these; or all `Ragged`, each of which becomes one row.
            dtype: A numpy or torch dtype of the numbers; None takes that of the rows. A torch dtype makes tensors.

        Raises:
            ConfigurationError: rows are of different kinds, shapes or devices.
        """
        return _ragged_of(list(rows), dtype)

    @staticmethod
    def from_padded(padded: Any, lengths: Any) -> Ragged:
        """Return the first `lengths` values of each row; the inverse of `to_padded`.

        Args:
            padded: Array or tensor ``[rows, longest, ...]``.
            lengths: Integers ``[rows]``.

        Raises:
            ConfigurationError: the shapes do not fit, or a length is greater than the row.
        """
        lengths = _index_like(padded, lengths)
        rows, width = padded.shape[:2]
        if lengths.ndim != 1 or int(lengths.shape[0]) != rows:
            raise ConfigurationError(f"from_padded: {rows} rows and lengths {list(lengths.shape)}; give one for each")
        if rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= width:
            raise ConfigurationError(
                f"from_padded: lengths go from {int(lengths.min())} to {int(lengths.max())}, "
                f"the rows have {width} values; give lengths from 0 to {width}"
            )
        arange, _ = _array_functions(padded)
        return Ragged(_indexed(padded, arange(width)[None, :] < lengths[:, None]), _offsets_of(lengths))

    @staticmethod
    def cat(parts: Iterable[Ragged]) -> Ragged:
        """Return the rows of all parts in order.

        Raises:
            ConfigurationError: no part is given, or the parts differ in kind.
        """
        parts = list(parts)
        if not parts or not all(isinstance(part, Ragged) for part in parts):
            raise ConfigurationError(f"Ragged.cat: expected a list of Ragged, found {parts!r:.80}")
        if len({(part.kind, isinstance(part.values, Ragged)) for part in parts}) > 1:
            found = ", ".join(sorted({_described(part) for part in parts}))
            raise ConfigurationError(f"Ragged.cat: expected rows of one kind, found {found}; convert them first")
        values = [part.values for part in parts]
        joined = Ragged.cat(values) if isinstance(values[0], Ragged) else _concatenated(values)
        lengths = _concatenated([part.lengths for part in parts])
        return Ragged(joined, _offsets_of(lengths), parts[0].kind)

    def __len__(self) -> int:
        return int(self.offsets.shape[0]) - 1

    def __repr__(self) -> str:
        return f"Ragged(shape={_shape_text(self)}, {_described(self)}, device={self.device}, total={self.total})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return (
            self.kind == other.kind
            and isinstance(self.values, Ragged) == isinstance(other.values, Ragged)
            and _is_equal(self.offsets, other.offsets)
            and bool(
                self.values == other.values if isinstance(self.values, Ragged) else _is_equal(self.values, other.values)
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.values, self.offsets, self.kind)

    def __getitem__(self, index: Any) -> Any:
        """Return a row; for a slice, integers ``[n]`` or bools ``[rows]``, a `Ragged` of the selected rows.

        A row is an array or tensor, a `Ragged`, a str or bytes. Rows and slices of step 1 share the values' memory.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self.slice(start, max(start, stop)) if step == 1 else self._taken(index)
        if isinstance(index, list | np.ndarray) or getattr(index, "ndim", 0) == 1:
            return self._taken(_index_like(self.offsets, index))
        try:
            row = operator.index(index)
        except TypeError:
            raise TypeError(
                f"Ragged[{index!r:.60}]: rows are chosen by an integer, a slice, or integers or bools [rows]; "
                "to_padded() has further axes"
            ) from None
        return self._row(row)

    if TYPE_CHECKING:  # at run time `__getitem__` iterates, because Lightning searches every Iterable for a batch size

        def __iter__(self) -> Iterator[Any]:
            """Iterate over the rows."""

    def _row(self, row: int) -> Any:
        rows = len(self)
        if not -rows <= row < rows:
            raise IndexError(f"row {row} of {rows}")
        row %= rows
        start, stop = int(self.offsets[row]), int(self.offsets[row + 1])
        if isinstance(self.values, Ragged):
            return self.values.slice(start, stop)
        values = self.values[start:stop]
        if self.kind == "list":
            return values
        data = _host(values).tobytes()
        return data.decode("utf-8") if self.kind == "text" else data

    def _taken(self, index: Any) -> Ragged:
        """Return a copy of the rows that a slice, integers or bools select."""
        arange, _ = _array_functions(self.offsets)
        if isinstance(index, slice):  # torch has no negative steps
            index = _index_like(self.offsets, np.arange(len(self))[index])
        rows = arange(len(self))[index]
        lengths = self.lengths[rows]
        offsets = _offsets_of(lengths)
        shifts = self.offsets[:-1][rows] - offsets[:-1]
        if isinstance(self.values, np.ndarray) and isinstance(offsets, np.ndarray):
            return Ragged(_copied_rows(self.values, offsets, shifts), offsets, self.kind)
        positions = arange(int(offsets[-1])) + _repeat(shifts, lengths)
        return Ragged(_indexed(self.values, positions), offsets, self.kind)

    @property
    def total(self) -> int:
        """Number of values in all rows together."""
        return len(self.values) if isinstance(self.values, Ragged) else int(self.values.shape[0])

    @property
    def lengths(self) -> Any:
        """Number of values in each row, int64 ``[rows]``."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def cu_seqlens(self) -> Any:
        """The offsets as variable-length attention expects them, int32 ``[rows + 1]``.

        Raises:
            ConfigurationError: there are 2**31 values or more, which int32 cannot count.
        """
        if self.total >= 2**31:
            raise ConfigurationError(
                f"Ragged.cu_seqlens: {self.total} values are more than int32 can count; take fewer rows"
            )
        offsets = self.offsets
        return offsets.int() if _is_tensor(offsets) else offsets.astype(np.int32)

    @property
    def max_seqlen(self) -> int:
        """The length of the longest row, 0 without rows; synchronises with the GPU if the lengths are there."""
        return int(self.lengths.max()) if len(self) else 0

    @property
    def device(self) -> Any:
        """The device that the values are on; ``"cpu"`` for numpy arrays."""
        return getattr(self.offsets, "device", "cpu")

    def to(self, device: Any = None, dtype: Any = None, non_blocking: bool = False, copy: bool = False) -> Ragged:
        """Return a copy on another device or with another dtype, as `torch.Tensor.to`; `self` if nothing changes.

        Args:
            device: A device or its name; or a dtype; or a tensor to take device and dtype from.
            dtype: The new dtype of numbers; text, bytes and offsets keep theirs.
            non_blocking: Whether copies from pinned memory may continue in the background.
            copy: Whether to copy even if nothing changes.
        """
        if dtype is None and (isinstance(device, np.dtype | type) or type(device).__name__ == "dtype"):
            device, dtype = None, device
        elif dtype is None and hasattr(device, "device") and hasattr(device, "dtype"):
            device, dtype = device.device, device.dtype
        options: dict[str, Any] = {"non_blocking": non_blocking, "copy": copy}
        if isinstance(self.values, Ragged):
            values = self.values.to(device, dtype, **options)
        else:
            values = _moved(self.values, device, dtype if self.kind == "list" else None, options)
        offsets = _moved(self.offsets, device, None, options)
        if values is self.values and offsets is self.offsets:
            return self
        return Ragged(values, offsets, self.kind)

    def to_tensors(self) -> Ragged:
        """Return it with torch tensors that share the arrays' memory; `self` if it has tensors."""
        if _is_tensor(self.offsets):
            return self
        values = self.values.to_tensors() if isinstance(self.values, Ragged) else _as_tensor(self.values)
        return Ragged(values, _as_tensor(self.offsets), self.kind)

    def pin_memory(self) -> Ragged:
        """Return it in page-locked memory, for asynchronous copies to a GPU."""
        return self if not _is_tensor(self.offsets) or self.is_pinned() else self._each(lambda t: t.pin_memory())

    def is_pinned(self) -> bool:
        """Whether the values are in page-locked memory."""
        inner = self.values
        return bool(inner.is_pinned()) if isinstance(inner, Ragged) or _is_tensor(inner) else False

    def record_stream(self, stream: Any) -> None:
        """Mark the memory as used by a CUDA stream, as `torch.Tensor.record_stream` does."""
        self.values.record_stream(stream)
        self.offsets.record_stream(stream)

    def _each(self, change: Callable[[Any], Any]) -> Ragged:
        values = self.values._each(change) if isinstance(self.values, Ragged) else change(self.values)
        return Ragged(values, change(self.offsets), self.kind)

    def slice(self, start: int, stop: int) -> Ragged:
        """Return rows ``start`` to ``stop`` (exclusive), sharing the values' memory."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        values = self.values.slice(first, last) if isinstance(self.values, Ragged) else self.values[first:last]
        register_where_imported(Ragged)
        selected: Ragged = ragged_of(Ragged, values, offsets - first, self.kind)
        return selected

    def to_list(self) -> list[Any]:
        """Return the rows: ``str`` for text, ``bytes`` for bytes, lists for lists of those, else arrays or tensors."""
        if self.kind == "list":
            if isinstance(self.values, Ragged):
                inner = self.values.to_list()
                bounds = self.offsets.tolist()
                return [inner[a:b] for a, b in itertools.pairwise(bounds)]
            return list(self)
        found: list[Any] = row_objects(self).tolist()
        return found

    def to_padded(self, fill: float = 0, length: int | None = None) -> Any:
        """Return ``[rows, longest, ...]``, with each row padded with `fill`.

        Args:
            fill: The padding.
            length: Length of the second axis; longer rows are truncated. None takes that of the longest row.

        Raises:
            ConfigurationError: `fill` is a number that the dtype cannot hold.
        """
        if isinstance(self.values, Ragged):
            raise TypeError("to_padded: the rows hold rows of varying length themselves; pad their values first")
        _check_fill(fill, str(self.values.dtype).removeprefix("torch."))
        rows, lengths = len(self), self.lengths
        width = (int(lengths.max()) if rows else 0) if length is None else length
        shape = (rows, width, *self.values.shape[1:])
        arange, new = _array_functions(self.values)
        padded = new(shape, fill)
        mask = self.to_mask(width)
        taken = _signed(self.values)
        if length is not None and rows and int(lengths.max()) > width:
            position = arange(self.total) - _repeat(self.offsets[:-1], lengths)
            taken = taken[position < width]
        _signed(padded)[mask] = taken
        return padded

    def to_mask(self, length: int | None = None) -> Any:
        """Return an attention mask: bool ``[rows, longest]``, True for the elements of `to_padded` that hold values.

        Args:
            length: As in `to_padded`.
        """
        lengths = self.lengths
        width = (int(lengths.max()) if len(self) else 0) if length is None else length
        arange, _ = _array_functions(self.offsets)
        return arange(width)[None, :] < lengths[:, None]

    def to_nested(self) -> Any:
        """Return a `torch.nested` tensor (jagged layout) that shares the values' memory; needs tensors."""
        if isinstance(self.values, Ragged) or not hasattr(self.values, "new_full"):
            raise TypeError("to_nested: needs torch tensors, and rows of numbers")
        values = self.values[:]  # torch sets an attribute on it, which would be saved with it
        return _torch().nested.nested_tensor_from_jagged(values, self.offsets)


def split_ragged(rows: Ragged, start: int, stop: int, size: int) -> list[Ragged]:
    """Return rows ``start`` to ``stop`` (exclusive) as slices of `size` rows; the last one may have fewer.

    The offsets of `rows` are contiguous. All slices together take a few calls of numpy or torch, because each call may
    wait for the GIL.
    """
    count = (stop - start) // size
    if isinstance(rows.values, Ragged) or count < 2:
        return [rows.slice(at, min(at + size, stop)) for at in range(start, stop, size)]
    rest = start + count * size
    offsets = rows.offsets[start : rest + 1]
    firsts = offsets[::size]
    bounds = firsts.tolist()
    if _is_tensor(offsets):
        repeated = offsets.unfold(0, size + 1, size) - firsts[:-1, None]
        own = _torch().unsafe_split(repeated.view(-1), size + 1)
        lengths = [last - first for first, last in itertools.pairwise(bounds)]
        values = _torch().unsafe_split_with_sizes(rows.values[bounds[0] : bounds[-1]], lengths)
    else:
        stride = offsets.itemsize
        repeated = np.ndarray((count, size + 1), offsets.dtype, offsets, strides=(size * stride, stride))
        own = repeated - firsts[:-1, None]
        values = [rows.values[first:last] for first, last in itertools.pairwise(bounds)]
    register_where_imported(Ragged)
    made = [ragged_of(Ragged, part, row, rows.kind) for part, row in zip(values, own, strict=True)]
    return [*made, rows.slice(rest, stop)] if rest < stop else made


def row_objects(rows: Ragged) -> npt.NDArray[Any]:
    """Return rows of text or bytes as an object array of str or bytes, ``[rows]``.

    Raises:
        UnicodeDecodeError: Text is not UTF-8.
    """
    values = np.ascontiguousarray(_host(rows.values))
    offsets = np.ascontiguousarray(_host(rows.offsets), np.int64)
    # Arrow makes the objects in less than half the time. It does not check offsets; wrong ones would read other memory.
    if offsets[0] >= 0 and offsets[-1] <= len(values) and (offsets[1:] >= offsets[:-1]).all():
        type_ = pa.large_string() if rows.kind == "text" else pa.large_binary()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        with suppress(pa.ArrowException, ValueError):  # text that is not UTF-8: the error below has the bytes
            found: npt.NDArray[Any] = pa.Array.from_buffers(type_, len(offsets) - 1, buffers).to_numpy(
                zero_copy_only=False
            )
            return found
    data = values.tobytes()
    parts = [data[first:last] for first, last in itertools.pairwise(offsets.tolist())]
    return object_array([part.decode("utf-8") for part in parts] if rows.kind == "text" else parts)


def object_array(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return values as an object array, ``[values]``, each an element even if it is a sequence itself."""
    return np.fromiter(values, object, len(values))


def _joined_text(rows: list[str]) -> Ragged | None:
    """Return rows of ASCII as `Ragged`, in a third of the time that encoding each takes; None for other text."""
    text = "".join(rows)
    if not text.isascii():
        return None
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return Ragged(np.frombuffer(bytearray(text.encode()), np.uint8), _offsets_of(lengths), "text")


def _host(values: Any) -> Any:
    """Return the values as a numpy array, copied if they are on a GPU."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def _torch() -> Any:
    """Import and return torch; called only for tensors and torch dtypes."""
    import torch  # noqa: PLC0415

    return torch


def _as_tensor(values: Any, device: Any = None) -> Any:
    """Return a tensor that shares an array's memory if torch can write to it."""
    if isinstance(values, np.ndarray) and (not values.flags.writeable or min(values.strides, default=0) < 0):
        values = values.copy()
    return _torch().as_tensor(values, device=device)


def _check_fill(fill: float, dtype: str) -> None:
    """Refuse a number that torch would wrap or truncate to fit integers."""
    if dtype != "bool" and not dtype.startswith(("int", "uint")):
        return
    least, most = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (least <= fill <= most and fill == int(fill)):
        wider = "int64" if float(fill).is_integer() else "float32"
        raise ConfigurationError(
            f"to_padded: fill={fill!r} does not fit {dtype}; widen the values first, as in "
            f"ragged.to(torch.{wider}).to_padded(fill={fill!r})"
        )


def _indexed(values: Any, index: Any) -> Any:
    """Return ``values[index]``, a copy; also of unsigned tensors on a GPU."""
    taken = _signed(values)[index]
    return taken.view(values.dtype) if _is_tensor(taken) else taken


def _signed(values: Any) -> Any:
    """Return a tensor, viewed as signed if its dtype is unsigned.

    For these, torch lacks indexed assignment, and indexing on a GPU.
    """
    if not _is_tensor(values) or not str(values.dtype).startswith("torch.uint") or values.dtype.itemsize == 1:
        return values
    return values.view(getattr(_torch(), str(values.dtype).removeprefix("torch.u")))


def _is_tensor(values: Any) -> bool:
    return hasattr(values, "new_full")


def _described(ragged: Ragged) -> str:
    """Return the kind of the innermost rows: a dtype, ``text`` or ``bytes``."""
    if isinstance(ragged.values, Ragged):
        return _described(ragged.values)
    return str(ragged.values.dtype).removeprefix("torch.") if ragged.kind == "list" else ragged.kind


def _shape_text(ragged: Ragged) -> str:
    sizes, inner = [str(len(ragged))], ragged
    while isinstance(inner.values, Ragged):
        sizes, inner = [*sizes, "*"], inner.values
    if inner.kind == "list":
        sizes += ["*", *map(str, inner.values.shape[1:])]
    return f"[{', '.join(sizes)}]"


def _is_equal(one: Any, other: Any) -> bool:
    if tuple(one.shape) != tuple(other.shape):
        return False
    if type(one) is not type(other) or getattr(one, "device", None) != getattr(other, "device", None):
        one, other = _host(one), _host(other)
    return bool((one == other).all())


def _moved(values: Any, device: Any, dtype: Any, options: dict[str, Any]) -> Any:
    """Return an array or tensor on another device or with another dtype; arrays that leave the CPU become tensors."""
    if not _is_tensor(values):
        if str(device or "cpu") == "cpu" and type(dtype).__module__ != "torch":
            return values.astype(dtype or values.dtype, copy=options["copy"])
        values = _as_tensor(values)
    return values.to(device=device, dtype=dtype, **options)


def _concatenated(arrays: list[Any]) -> Any:
    """Concatenate arrays; to tensors if any of them is one."""
    if any(map(_is_tensor, arrays)):
        device = next(array.device for array in arrays if _is_tensor(array))
        return _torch().cat([array if _is_tensor(array) else _as_tensor(array, device) for array in arrays])
    return np.concatenate(arrays)


def _index_like(values: Any, index: Any) -> Any:
    """Return integers or bools in any form as an array of the library and on the device of `values`."""
    while isinstance(values, Ragged):
        values = values.offsets
    if _is_tensor(values):
        made = _as_tensor(index, values.device)
        is_whole = not (made.is_floating_point() or made.is_complex())
    else:
        made = _host(index)
        is_whole = made.dtype.kind in "iub"
    if not is_whole and 0 not in made.shape:  # an empty list has numpy's and torch's default dtype
        raise TypeError(f"Ragged: rows, offsets and lengths are integers or bools, found {made.dtype}; convert them")
    if _is_tensor(made):
        return made if made.dtype == _torch().bool else made.to(_torch().int64)
    return made if made.dtype == np.bool_ else made.astype(np.int64, copy=False)


def _offsets_of(lengths: Any) -> Any:
    """Return the offsets of rows of these lengths, int64 ``[rows + 1]``."""
    _, new = _array_functions(lengths)
    offsets = new((int(lengths.shape[0]) + 1,), 0)
    offsets[1:] = lengths.cumsum(0)
    return offsets


def _ragged_of(rows: list[Any], dtype: Any) -> Ragged:
    """See `Ragged.from_list`."""
    types = set(map(type, rows))
    if types == {str} and (made := _joined_text(rows)) is not None:
        return made
    for row_type, kind in ((str, "text"), (bytes, "bytes")):
        if rows and all(issubclass(found, row_type) for found in types):
            data = [row.encode() if kind == "text" else row for row in rows]
            values: Any = np.frombuffer(bytearray(b"".join(data)), np.uint8)
            return Ragged(values, _offsets_of(np.array([len(row) for row in data], np.int64)), kind)  # type: ignore[arg-type]
    if any(issubclass(found, str | bytes) for found in types):
        names = sorted({found.__name__ for found in types})
        raise ConfigurationError(f"Ragged: rows are {' and '.join(names)}; give str or bytes in every row, or in none")
    if rows and all(isinstance(row, Ragged) for row in rows):
        values = Ragged.cat(rows)
        return Ragged(values, _index_like(values, _offsets_of(np.array([len(row) for row in rows], np.int64))))
    if any(map(_holds_rows, rows)) and all(isinstance(row, list | tuple) for row in rows):
        values = _ragged_of([item for row in rows for item in row], dtype)
        return Ragged(values, _index_like(values, _offsets_of(np.array([len(row) for row in rows], np.int64))))
    as_tensors = type(dtype).__module__ == "torch" or any(map(_is_tensor, rows))
    arrays = [_row_array(row, number, dtype, as_tensors=as_tensors) for number, row in enumerate(rows)]
    # An empty list takes the type of the other rows.
    typed = [a for a, row in zip(arrays, rows, strict=True) if len(a) or not isinstance(row, list | tuple)] or arrays
    for number, array in enumerate(typed):
        if tuple(array.shape[1:]) != tuple(typed[0].shape[1:]):
            raise ConfigurationError(
                f"Ragged: rows of shape {list(typed[0].shape)} and {list(array.shape)} (row {number}); rows may differ "
                "in their first length only"
            )
    values = _concatenated(typed) if typed else np.zeros(0, dtype)
    return Ragged(values, _index_like(values, _offsets_of(np.array([len(a) for a in arrays], np.int64))))


def _holds_rows(row: Any) -> bool:
    """Whether a row is a list of rows itself, not of numbers."""
    return isinstance(row, list | tuple) and any(
        isinstance(item, str | bytes | list | tuple | Ragged) or getattr(item, "ndim", 0) for item in row
    )


def _row_array(row: Any, number: int, dtype: Any, *, as_tensors: bool) -> Any:
    try:
        array = _torch().as_tensor(row, dtype=dtype) if as_tensors else np.asarray(row, dtype)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"Ragged: row {number} is not an array of numbers: {error}") from error
    if not array.ndim:
        raise ConfigurationError(f"Ragged: row {number} is the single value {row!r:.60}; give an array or a list")
    if not as_tensors and array.dtype.kind not in "biufc":
        raise ConfigurationError(
            f"Ragged: row {number} has the dtype {array.dtype}; give numbers in every row, or str or bytes in every row"
        )
    return array


def _array_functions(values: Any) -> tuple[Any, Any]:
    """Return ``arange(n)`` and ``full(shape, fill)`` of the array library and on the device of `values`."""
    if _is_tensor(values):
        return (lambda n: values.new_ones(n, dtype=_int64(values)).cumsum(0) - 1), values.new_full
    return np.arange, lambda shape, fill: np.full(shape, fill, dtype=values.dtype)


def _copied_rows(values: npt.NDArray[Any], offsets: IntArray, shifts: IntArray) -> npt.NDArray[Any]:
    """Return the values of rows that end at `offsets`; `shifts` is the distance of each row from its place in `values`.

    Raises:
        ConfigurationError: a row is not in `values`.
    """
    begins = offsets[:-1] + shifts
    if (np.diff(offsets) < 0).any() or (begins < 0).any() or (begins + np.diff(offsets) > len(values)).any():
        raise ConfigurationError(f"Ragged: expected offsets that rise from 0 to the number of values, {len(values)}")
    taken = np.empty((int(offsets[-1]), *values.shape[1:]), values.dtype)
    if taken.nbytes:
        width = values.nbytes // len(values)
        source = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        at, to = np.multiply(begins, width, dtype=np.int64), np.multiply(offsets, width, dtype=np.int64)
        take_ragged(source, at, to, taken.reshape(-1).view(np.uint8))
    return taken


def _int64(values: Any) -> Any:
    return values.new_empty(0).long().dtype


def _repeat(starts: Any, counts: Any) -> Any:
    return starts.repeat_interleave(counts) if hasattr(starts, "repeat_interleave") else np.repeat(starts, counts)


register_where_imported(Ragged)
