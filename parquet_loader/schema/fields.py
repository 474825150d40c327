"""The field kinds of a `Schema`: small frozen values, validated on construction.

Every field has a stored type (`arrow_type`), a null policy (`null` and `fill`), alternative names of its column
(`aliases`), and a value for files that lack the column (`missing`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from parquet_loader.errors import ConfigurationError
from parquet_loader.schema.arrow_types import arrow_type_of, delivered_dtype, is_element, is_scalar_type, stored_type
from parquet_loader.schema.base import FieldBase, NullPolicy, instance_of, number_of, refuse_set
from parquet_loader.schema.encoded import Category, Encoded
from parquet_loader.schema.image import Image
from parquet_loader.schema.media import Audio, Video


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scalar(FieldBase):
    """One number a row: bool, integer, float, decimal (as float64), or a date or time (as an integer in its unit).

    Args:
        type: Arrow type, numpy dtype or name, such as ``"float32"`` or ``"timestamp[us]"``.
        null: ``"refuse"`` raises on a null; ``"mask"`` also delivers ``<name>_valid`` (bool, False for nulls), with
            `fill` or zero in the gaps.
        fill: Value that replaces a null; ``float("nan")`` is allowed for floats.
        missing: Value for files that lack the column; None refuses such files.
        aliases: Other names of the column; each file's column is the first that exists of its name and its aliases.
        names: Names of the integers 0, 1, and so on, such as classes. They are stored with the schema and do not change
            the delivered values; a value without a name, such as -1, is delivered too.
    """

    type: Any
    null: NullPolicy = "refuse"
    fill: Any = None
    missing: Any = None
    aliases: Sequence[str] = ()
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        type_ = arrow_type_of(self.type)
        if not is_scalar_type(type_):
            raise ConfigurationError(f"Scalar({self.type!r}): not a scalar type; see Text, Bytes, Tensor, RaggedList")
        object.__setattr__(self, "type", type_)
        given: Any = self.names
        refuse_set(f"Scalar({type_}): names", given)
        names = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
        if names is None or not all(isinstance(name, str) for name in names):
            raise ConfigurationError(f"Scalar({type_}, names={given!r:.80}): expected a list of str")
        if names and not pa.types.is_integer(type_):
            raise ConfigurationError(f"Scalar({type_}, names=...): only integers have names")
        object.__setattr__(self, "names", tuple(map(str, names)))
        self._settle(lambda where, value: number_of(where, value, self.dtype))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the delivered column."""
        return delivered_dtype(self.type)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored; it differs from `type` for units of seconds and date64."""
        return stored_type(self.type)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor(FieldBase):
    """A tensor of fixed shape a row, delivered as ``[batch, *shape]``.

    Args:
        type: Element type: bool, an integer or a float.
        shape: Shape of one row's tensor, each length at least 1.
        null: As in `Scalar`; a whole row's tensor is null or not.
        fill: Number written into every element of a null row.
        missing: Number for every element in files that lack the column.
        storage: ``"raw"`` stores a row's bytes as FIXED_LEN_BYTE_ARRAY (C order, little endian), which decodes 7-16
            times faster; ``"list"`` stores a fixed-size list of numbers, with which other engines can compute.
        aliases: As in `Scalar`.
    """

    type: Any
    shape: Sequence[int]
    null: NullPolicy = "refuse"
    fill: Any = None
    missing: Any = None
    storage: Literal["raw", "list"] = "raw"
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        type_ = arrow_type_of(self.type)
        if not is_element(type_):
            raise ConfigurationError(f"Tensor({self.type!r}): elements are bool, integers or floats")
        given: Any = self.shape
        try:
            shape = tuple(map(operator.index, given if isinstance(given, Iterable) else (given,)))
        except TypeError:
            shape = ()
        if not shape or any(n < 1 for n in shape):
            raise ConfigurationError(f"Tensor shape {given!r}: expected one or more lengths of at least 1")
        object.__setattr__(self, "type", type_)
        object.__setattr__(self, "shape", shape)
        if self.width_bytes >= 2**31:
            raise ConfigurationError(
                f"Tensor shape {shape}: a row of {self.width_bytes} bytes is over the limit of 2 GiB"
            )
        if self.storage not in ("raw", "list"):
            raise ConfigurationError(f"Tensor storage={self.storage!r}: expected 'raw' or 'list'")
        self._settle(lambda where, value: number_of(where, value, self.dtype))

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
        if self.storage == "raw":
            return pa.binary(self.width_bytes)
        return pa.list_(pa.field("element", self.type, nullable=False), self.size)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Text(FieldBase):
    """UTF-8 text of any length, delivered as `Ragged` bytes that `to_list()` turns into ``str``.

    Args:
        null: As in `Scalar`; gaps hold `fill` or the empty string.
        fill: Text that replaces a null.
        missing: Text for files that lack the column.
        aliases: As in `Scalar`.
    """

    null: NullPolicy = "refuse"
    fill: str | None = None
    missing: str | None = None
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._settle(lambda where, value: instance_of(where, value, str))

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return pa.string()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bytes(FieldBase):
    """Bytes of any length, delivered as `Ragged` uint8; arguments as in `Text`, with ``bytes`` values."""

    null: NullPolicy = "refuse"
    fill: bytes | None = None
    missing: bytes | None = None
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._settle(lambda where, value: instance_of(where, value, bytes))

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return pa.binary()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RaggedList(FieldBase):
    """A list of varying length a row, delivered as `Ragged`: the concatenated values, and offsets.

    Args:
        item: The items of the list: a scalar type (``"int32"``), or a `Scalar`, `Tensor`, `Text`, `Bytes` or
            `RaggedList`. Its nulls are refused or filled, never masked.
        null: As in `Scalar`; gaps are empty lists.
        fill: ``()`` reads null rows as empty lists.
        missing: ``()`` reads files that lack the column as empty lists.
        aliases: As in `Scalar`.
    """

    item: Any
    null: NullPolicy = "refuse"
    fill: tuple[()] | None = None
    missing: tuple[()] | None = None
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.item, Tensor | Text | Bytes | RaggedList | Scalar):
            if isinstance(self.item, FieldBase):
                codes = "; read words as Text() and look up their codes in transform, or write codes to the files"
                raise ConfigurationError(
                    f"RaggedList: the item is {type(self.item).__name__}(...); lists hold numbers, Scalar, Tensor, "
                    f"Text, Bytes or RaggedList{codes if isinstance(self.item, Category) else ''}"
                )
            object.__setattr__(self, "item", Scalar(self.item))
        if self.item.null == "mask":
            raise ConfigurationError("RaggedList: nulls inside a list have no mask; give the item fill=<value>")
        self._settle(_empty)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        nullable = policy_of(self.item) != "refuse"
        return pa.list_(pa.field("element", self.item.arrow_type, nullable=nullable))


def _empty(where: str, value: Any) -> tuple[()]:
    if len(value) > 0:
        raise ConfigurationError(f"{where}: only the empty list () is possible")
    return ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Group(FieldBase):
    """Columns of one delivered dtype, delivered as one contiguous ``[batch, n]`` matrix.

    Args:
        members: Column names that share `field`, or a mapping from name to `Scalar` or `Category`.
        field: The shared field if `members` is a sequence of names.
        storage: ``"columns"`` stores one column per member; ``"packed"`` stores one raw column of ``n`` numbers a row:
            one decode and one gather instead of n. Packed groups hold no nulls: the writer fills or refuses them.

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
                raise ConfigurationError("Group: a name is among the members more than once; remove the others")
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
    def aliases(self) -> tuple[()]:
        """Always empty: each member has its own."""
        return ()

    @property
    def fields(self) -> dict[str, Scalar | Category]:
        """The member fields by column name, in the order of the matrix's columns."""
        return dict(self.members)

    @property
    def null(self) -> NullPolicy:
        """``"mask"`` if the members have masks."""
        return self.members[0][1].null  # type: ignore[no-any-return]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the matrix."""
        return self.members[0][1].dtype  # type: ignore[no-any-return]

    @property
    def width_bytes(self) -> int:
        """Bytes of one row of the matrix."""
        return len(self.members) * self.dtype.itemsize


Field: TypeAlias = Scalar | Tensor | RaggedList | Text | Bytes | Category | Image | Audio | Video | Encoded | Group


def unpacked_field(field: Encoded) -> Scalar | Tensor | RaggedList | None:
    """Return the field that describes an encoded column after decoding; None if that is a list of arrays."""
    shape, policy = field.shape, field.null
    if field.is_image:
        return None
    if field.is_text:
        item: Any = Text() if pa.types.is_string(field.type) else Bytes()
        for _ in shape[1:]:
            item = RaggedList(item)
        return RaggedList(item, null=policy)
    if not shape:
        return Scalar(field.type, null=policy)
    rest = tuple(n for n in shape[1:] if n is not None)
    if len(rest) < len(shape) - 1:
        return None
    if shape[0] is not None:
        return Tensor(field.type, (shape[0], *rest), null=policy)
    return RaggedList(Tensor(field.type, rest) if rest else Scalar(field.type), null=policy)


def policy_of(field: Field) -> Literal["refuse", "fill", "mask"]:
    """Return how the field treats a null."""
    if field.null == "mask":
        return "mask"
    if isinstance(field, Group):
        return "refuse" if all(policy_of(f) == "refuse" for f in field.fields.values()) else "fill"
    return "refuse" if field.fill is None else "fill"


def companion_of(name: str, field: Field) -> str | None:
    """Return the name of a field's additional column: lengths of audio, times of video frames; None without one."""
    if isinstance(field, Audio) and field.is_fixed:
        return f"{name}_length"
    return f"{name}_time" if isinstance(field, Video) else None


def masks_of(fields: Mapping[str, Field]) -> dict[str, str]:
    """Return the name of each mask column, by the name of its field."""
    return {name: f"{name}_valid" for name, field in fields.items() if policy_of(field) == "mask"}
