"""The kinds of field a `Schema` is made of: small frozen values, validated once, with no behaviour of their own.

Every field answers three questions: what is stored in the file (`arrow_type`), what a null means
(`null` and `fill`), and what stands in for the field in a file that was written before it existed (`missing`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from parquet_loader.errors import ConfigurationError

NullPolicy: TypeAlias = Literal["refuse", "mask"]


def arrow_type_of(spec: str | pa.DataType | np.dtype[Any] | type) -> pa.DataType:
    """Resolve a type given as an Arrow type, a numpy dtype or a string such as ``"timestamp[us, tz=UTC]"``."""
    if isinstance(spec, pa.DataType):
        return spec
    if isinstance(spec, str):
        text = spec.strip()
        if text in {"date32", "date64"}:
            return pa.date32() if text == "date32" else pa.date64()
        if text == "bool":
            return pa.bool_()
        if text.startswith("decimal") and text.endswith(")"):
            name, _, arguments = text[:-1].partition("(")
            make = {"decimal": pa.decimal128, "decimal32": pa.decimal32, "decimal64": pa.decimal64}.get(
                name, {"decimal128": pa.decimal128, "decimal256": pa.decimal256}.get(name)
            )
            try:
                numbers = [int(a) for a in arguments.split(",")]
                if make is not None:
                    return make(*numbers)
            except (ValueError, TypeError) as error:
                raise ConfigurationError(f"{spec!r} is not a decimal type: {error}") from None
        if text.startswith("timestamp[") and text.endswith("]"):
            unit, _, zone = text[len("timestamp[") : -1].partition(",")
            zone = zone.strip().removeprefix("tz=")
            return pa.timestamp(unit.strip(), tz=zone or None)
        try:
            return pa.type_for_alias(text)
        except ValueError:
            pass
    try:
        return pa.from_numpy_dtype(np.dtype(spec))
    except (TypeError, pa.ArrowNotImplementedError):
        raise ConfigurationError(
            f"{spec!r} names no Arrow or numpy type; use a name such as 'float32', 'int64', 'bool', "
            "'timestamp[us]', 'date32' or 'decimal128(10, 2)'"
        ) from None


def is_scalar_type(type_: pa.DataType) -> bool:
    """Whether one value of the type fits one element of a tensor."""
    t = pa.types
    return bool(
        t.is_boolean(type_)
        or t.is_integer(type_)
        or t.is_floating(type_)
        or t.is_decimal(type_)
        or t.is_date(type_)
        or t.is_time(type_)
        or t.is_timestamp(type_)
        or t.is_duration(type_)
    )


def delivered_dtype(type_: pa.DataType) -> np.dtype[Any]:
    """Return the numpy dtype in which a scalar Arrow type is delivered: times as integers, decimals as float64."""
    t = pa.types
    if t.is_boolean(type_):
        return np.dtype(np.bool_)
    if t.is_integer(type_) or t.is_floating(type_):
        return np.dtype(type_.to_pandas_dtype())
    if t.is_decimal(type_):
        return np.dtype(np.float64)
    if t.is_date32(type_) or t.is_time32(type_):
        return np.dtype(np.int32)
    if t.is_date64(type_) or t.is_time64(type_) or t.is_timestamp(type_) or t.is_duration(type_):
        return np.dtype(np.int64)
    raise ConfigurationError(f"{type_} is not a scalar type")


def _check_null(null: str) -> None:
    if null not in ("refuse", "mask"):
        raise ConfigurationError(f"null={null!r}: expected 'refuse' or 'mask'; to fill nulls give fill=<value>")


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number a row: bool, integer, float, decimal (as float64), or a date or time (as an integer in its unit).

    Args:
        type: Arrow type, numpy dtype or name, such as ``"float32"`` or ``"timestamp[us]"``.
        null: ``"refuse"`` raises on a null; ``"mask"`` delivers ``<name>_valid`` (bool, True where a value is) beside
            it, with `fill` or zero in the gaps.
        fill: Value that takes the place of a null; ``float("nan")`` is allowed for floats.
        missing: Value for files that lack the column; None refuses such files.
    """

    type: Any
    null: NullPolicy = "refuse"
    fill: Any = None
    missing: Any = None

    def __post_init__(self) -> None:
        type_ = arrow_type_of(self.type)
        if not is_scalar_type(type_):
            raise ConfigurationError(f"Scalar({self.type!r}): not a scalar type; see Text, Bytes, Tensor, RaggedList")
        object.__setattr__(self, "type", type_)
        _check_null(self.null)
        dtype = delivered_dtype(type_)
        for label, value in (("fill", self.fill), ("missing", self.missing)):
            if value is not None:
                _check_number(f"Scalar({type_}, {label}={value!r})", value, dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the delivered column."""
        return delivered_dtype(self.type)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return self.type  # type: ignore[no-any-return]


def _check_number(where: str, value: Any, dtype: np.dtype[Any]) -> None:
    if isinstance(value, float) and not math.isfinite(value) and dtype.kind == "f":
        return
    try:
        array = np.array(value).astype(dtype)
        exact = array.shape == () and bool(array == np.array(value)) or dtype.kind == "f"
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        raise ConfigurationError(f"{where}: the value is not a {dtype} number")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of fixed shape a row, delivered as ``[batch, *shape]``.

    Args:
        type: Element type: bool, an integer or a float.
        shape: Shape of one row's tensor, each length at least 1.
        null: As in `Scalar`; a whole row's tensor is null or not.
        fill: Number written into every element of a null row.
        missing: Number for every element in files that lack the column.
        storage: ``"raw"`` stores a row's bytes as FIXED_LEN_BYTE_ARRAY (C order, little endian), which decodes 7-16
            times faster; ``"list"`` stores a fixed-size list of numbers that every other engine can compute with.
    """

    type: Any
    shape: tuple[int, ...]
    null: NullPolicy = "refuse"
    fill: Any = None
    missing: Any = None
    storage: Literal["raw", "list"] = "raw"

    def __post_init__(self) -> None:
        type_ = arrow_type_of(self.type)
        if not (pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_)):
            raise ConfigurationError(f"Tensor({self.type!r}): elements are bool, integers or floats")
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(int(n) for n in self.shape)
        if not shape or any(n < 1 for n in shape):
            raise ConfigurationError(f"Tensor shape {self.shape!r}: expected one or more lengths of at least 1")
        object.__setattr__(self, "type", type_)
        object.__setattr__(self, "shape", shape)
        _check_null(self.null)
        if self.storage not in ("raw", "list"):
            raise ConfigurationError(f"Tensor storage={self.storage!r}: expected 'raw' or 'list'")
        for label, value in (("fill", self.fill), ("missing", self.missing)):
            if value is not None:
                _check_number(f"Tensor({type_}, {label}={value!r})", value, self.dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements."""
        return delivered_dtype(self.type)

    @property
    def size(self) -> int:
        """Number of elements in one row's tensor."""
        return math.prod(self.shape)

    @property
    def width_bytes(self) -> int:
        """Bytes of one row's tensor."""
        return self.size * self.dtype.itemsize

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return pa.binary(self.width_bytes) if self.storage == "raw" else pa.list_(self.type, self.size)


@dataclass(frozen=True, slots=True)
class Text:
    """UTF-8 text of any length, delivered as `Ragged` bytes that `to_list()` turns into ``str``.

    Args:
        null: As in `Scalar`; gaps hold `fill` or the empty string.
        fill: Text that takes the place of a null.
        missing: Text for files that lack the column.
    """

    null: NullPolicy = "refuse"
    fill: str | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        _check_null(self.null)
        for label, value in (("fill", self.fill), ("missing", self.missing)):
            if value is not None and not isinstance(value, str):
                raise ConfigurationError(f"Text({label}={value!r}): expected a str")

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return pa.string()


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of any length, delivered as `Ragged` uint8; arguments as in `Text`, with ``bytes`` values."""

    null: NullPolicy = "refuse"
    fill: bytes | None = None
    missing: bytes | None = None

    def __post_init__(self) -> None:
        _check_null(self.null)
        for label, value in (("fill", self.fill), ("missing", self.missing)):
            if value is not None and not isinstance(value, bytes):
                raise ConfigurationError(f"Bytes({label}={value!r}): expected bytes")

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return pa.binary()


@dataclass(frozen=True, slots=True)
class RaggedList:
    """A list of varying length a row, delivered as `Ragged`: all values end to end, and offsets.

    Args:
        item: What the list holds: a scalar type (``"int32"``), or a `Tensor`, `Text`, `Bytes` or `RaggedList`.
        null: As in `Scalar`; gaps are empty lists.
        fill: ``()`` reads null rows as empty lists.
        missing: ``()`` reads files that lack the column as empty lists.
    """

    item: Any
    null: NullPolicy = "refuse"
    fill: tuple[()] | None = None
    missing: tuple[()] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.item, Tensor | Text | Bytes | RaggedList | Scalar):
            object.__setattr__(self, "item", Scalar(self.item))
        _check_null(self.null)
        for label, value in (("fill", self.fill), ("missing", self.missing)):
            if value is not None:
                if len(value) > 0:
                    raise ConfigurationError(f"RaggedList({label}={value!r}): only the empty list () is possible")
                object.__setattr__(self, label, ())

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        nullable = not isinstance(self.item, Scalar) or policy_of(self.item) != "refuse"
        return pa.list_(pa.field("element", self.item.arrow_type, nullable=nullable))


@dataclass(frozen=True, slots=True)
class Category:
    """Text from a known vocabulary, delivered as integer codes: the position in `vocabulary`.

    Args:
        vocabulary: The values, in the order of their codes.
        dtype: Integer dtype of the delivered codes; int64 serves `nn.Embedding` and class targets alike.
        null: As in `Scalar`.
        fill: Entry of the vocabulary that takes the place of a null.
        missing: Entry of the vocabulary for files that lack the column.
        unknown: Entry of the vocabulary that takes the place of a value not in it; None refuses such values.
        storage: ``"codes"`` stores the smallest signed integers that hold the codes; ``"text"`` stores the values.
    """

    vocabulary: tuple[str, ...]
    dtype: Any = "int64"
    null: NullPolicy = "refuse"
    fill: str | None = None
    missing: str | None = None
    unknown: str | None = None
    storage: Literal["codes", "text"] = "codes"

    def __post_init__(self) -> None:
        words = tuple(self.vocabulary)
        if not words or not all(isinstance(w, str) for w in words):
            raise ConfigurationError("Category: the vocabulary is one or more str")
        if len(set(words)) != len(words):
            twice = next(w for w in words if words.count(w) > 1)
            raise ConfigurationError(f"Category: {twice!r} stands in the vocabulary more than once")
        object.__setattr__(self, "vocabulary", words)
        dtype = np.dtype(self.dtype)
        if dtype.kind not in "iu" or len(words) - 1 > np.iinfo(dtype).max:
            raise ConfigurationError(f"Category: {dtype} cannot hold {len(words)} codes")
        object.__setattr__(self, "dtype", dtype)
        _check_null(self.null)
        if self.storage not in ("codes", "text"):
            raise ConfigurationError(f"Category storage={self.storage!r}: expected 'codes' or 'text'")
        for label, value in (("fill", self.fill), ("missing", self.missing), ("unknown", self.unknown)):
            if value is not None and value not in words:
                raise ConfigurationError(f"Category({label}={value!r}): not in the vocabulary")

    def code(self, word: str) -> int:
        """Return the code of `word`."""
        return self.vocabulary.index(word)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        if self.storage == "text":
            return pa.string()
        highest = len(self.vocabulary) - 1
        return next(t for t in (pa.int8(), pa.int16(), pa.int32()) if highest <= np.iinfo(t.to_pandas_dtype()).max)


@dataclass(frozen=True, slots=True)
class Image:
    """A JPEG or PNG, decoded on the reading side to uint8 ``[batch, height, width, channels]``.

    Args:
        shape: ``(height, width, channels)``; with None for height and width images may differ in size, and a batch is
            a list of ``[h, w, c]`` tensors unless `transform` makes them equal. Channels: 1 grey, 3 RGB, 4 RGBA.
        encoding: How the writer encodes arrays: ``"png"`` or ``"jpeg"``; bytes that are encoded already stay as is.
        null, fill, missing: As in `Bytes`, with encoded images as values; gaps are black images, which needs a
            `shape` without None.
    """

    shape: tuple[int | None, int | None, int] = (None, None, 3)
    encoding: Literal["png", "jpeg"] = "png"
    null: NullPolicy = "refuse"
    fill: bytes | None = None
    missing: bytes | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.shape)
        if len(shape) != 3 or shape[2] not in (1, 3, 4) or (shape[0] is None) != (shape[1] is None):
            raise ConfigurationError(f"Image shape {self.shape!r}: expected (height, width, channels), channels 1, 3, 4")
        if any(n is not None and n < 1 for n in shape):
            raise ConfigurationError(f"Image shape {self.shape!r}: lengths are at least 1")
        object.__setattr__(self, "shape", shape)
        if self.encoding not in ("png", "jpeg"):
            raise ConfigurationError(f"Image encoding={self.encoding!r}: expected 'png' or 'jpeg'")
        _check_null(self.null)
        if self.null == "mask" and self.fill is None and shape[0] is None:
            raise ConfigurationError("Image(null='mask') needs a shape without None, or fill=<encoded image>")

    @property
    def is_fixed(self) -> bool:
        """Whether all images have the same height and width."""
        return self.shape[0] is not None

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return pa.binary()


@dataclass(frozen=True, slots=True)
class Group:
    """Columns of one delivered dtype, handed over as one contiguous ``[batch, n]`` matrix.

    Args:
        members: Column names that share `field`, or a mapping from name to `Scalar` or `Category`.
        field: The shared field where `members` is a sequence of names.
        storage: ``"columns"`` stores a column each; ``"packed"`` stores one raw column of ``n`` numbers a row: one
            decode and one gather instead of n. Packed groups hold no nulls: the writer fills them (or refuses).

    With ``null="mask"`` on every member, ``<name>_valid`` is a ``[batch, n]`` bool matrix.
    """

    members: Any
    field: Any = None
    storage: Literal["columns", "packed"] = "columns"

    def __post_init__(self) -> None:
        if isinstance(self.members, Mapping):
            if self.field is not None:
                raise ConfigurationError("Group: give names and one field, or a mapping of names to fields, not both")
            members = dict(self.members)
        elif isinstance(self.members, Sequence) and not isinstance(self.members, str):
            shared = self.field
            if not isinstance(shared, Scalar | Category):
                shared = Scalar(shared)
            members = {str(name): shared for name in self.members}
            if len(members) != len(self.members):
                raise ConfigurationError("Group: a name stands among the members more than once")
        else:
            raise ConfigurationError(f"Group: members are names or a mapping of names to fields, not {self.members!r}")
        if not members or not all(isinstance(f, Scalar | Category) for f in members.values()):
            raise ConfigurationError("Group: members are one or more Scalar or Category fields")
        dtypes = {f.dtype for f in members.values()}
        if len(dtypes) > 1:
            raise ConfigurationError(f"Group: members have different dtypes: {', '.join(sorted(map(str, dtypes)))}")
        masked = {f.null == "mask" for f in members.values()}
        if len(masked) > 1 or (masked == {True} and self.storage == "packed"):
            raise ConfigurationError("Group: null='mask' is for all members or none, and not for packed storage")
        if self.storage not in ("columns", "packed"):
            raise ConfigurationError(f"Group storage={self.storage!r}: expected 'columns' or 'packed'")
        object.__setattr__(self, "members", tuple(members.items()))
        object.__setattr__(self, "field", None)

    @property
    def fields(self) -> dict[str, Scalar | Category]:
        """The member fields by column name, in the order of the matrix's columns."""
        return dict(self.members)

    @property
    def null(self) -> NullPolicy:
        """``"mask"`` where the members have masks."""
        return self.members[0][1].null  # type: ignore[no-any-return]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the matrix."""
        return self.members[0][1].dtype  # type: ignore[no-any-return]

    @property
    def width_bytes(self) -> int:
        """Bytes of one row of the matrix."""
        return len(self.members) * self.dtype.itemsize


Field: TypeAlias = Scalar | Tensor | RaggedList | Text | Bytes | Category | Image | Group


def policy_of(field: Field) -> Literal["refuse", "fill", "mask"]:
    """Say what the field does with a null."""
    if field.null == "mask":
        return "mask"
    if isinstance(field, Group):
        return "refuse" if all(policy_of(f) == "refuse" for f in field.fields.values()) else "fill"
    return "refuse" if field.fill is None else "fill"
