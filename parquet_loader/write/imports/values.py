"""Infers the fields of records without declared types, from all of their values; then encodes the values.

A value is bytes, an int, a str, a `ValueList`, or a numpy array. Every value is inspected before the first row is
written, so every value fits, and no type depends on the order of records.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import SIGNATURE_BYTES, image_kind
from parquet_loader.errors import SourceError
from parquet_loader.schema import (
    Bytes,
    Encoded,
    Field,
    Image,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    encode_array,
    encode_columns,
)

# A black pixel, delivered in the place of a missing image.
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
_ARRAYS = {"bool", "float16", "float32", "float64"} | {f"{s}int{bits}" for s in ("", "u") for bits in (8, 16, 32, 64)}
_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1


class Digits(bytes):
    """Bytes that may be a number in decimal digits; a column of these is numeric if all of its values are."""


@dataclass(frozen=True, slots=True)
class ValueList:
    """A non-empty list of values of one type; if all lists of a column have one value, it is a column of values.

    Attributes:
        dtype: ``"bytes"``, or the name of a dtype.
        items: A list of bytes, or an array ``[length]``.
    """

    dtype: str
    items: Any


@dataclass(slots=True)
class ColumnValues:
    """The common properties of all values of a column.

    Attributes:
        count: Number of values.
        kinds: The kinds found: ``"bytes"``, ``"text"``, ``"int"``, ``"list"`` or ``"array"``.
        are_images, are_text, are_numbers: Whether all bytes are images, UTF-8, or integers in decimal digits.
        dtypes, shapes: The dtype of lists or arrays, and the shapes of arrays; at most two shapes are kept.
    """

    count: int = 0
    kinds: set[str] = field(default_factory=set)
    are_images: bool = True
    are_text: bool = True
    are_numbers: bool = True
    dtypes: set[str] = field(default_factory=set)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    tails: set[tuple[int, ...]] = field(default_factory=set)
    lengths: set[int] = field(default_factory=set)

    def add(self, value: Any) -> None:
        """Inspect a value.

        Raises:
            ValueError: Its numbers have another type than those of earlier values.
        """
        self.count += 1
        if isinstance(value, bytes | memoryview):
            self.kinds.add("bytes")
            self.are_numbers = self.are_numbers and isinstance(value, Digits) and whole_number(value) is not None
            self.are_images = self.are_images and image_kind(bytes(value[:SIGNATURE_BYTES])) is not None
            self.are_text = self.are_text and _is_text(value)
        elif isinstance(value, str):
            self.kinds.add("text")
        elif isinstance(value, int):
            self.kinds.add("int")
        elif isinstance(value, ValueList):
            self._add_list(value)
        else:
            self._add_array(value.dtype, value.shape)

    def _add_list(self, value: ValueList) -> None:
        self.kinds.add("list")
        self._add_type(value.dtype)
        if len(self.lengths) < 2:
            self.lengths.add(len(value.items))
        if value.dtype == "bytes":
            for item in value.items:
                self.are_images = self.are_images and image_kind(item[:SIGNATURE_BYTES]) is not None
                self.are_text = self.are_text and _is_text(item)

    def _add_type(self, dtype: str) -> None:
        if others := self.dtypes - {dtype}:
            raise ValueError(f"holds {dtype}, and earlier records hold {others.pop()}; leave it out by --columns")
        self.dtypes.add(dtype)

    def _add_array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.kinds.add("array")
        self._add_type(dtype.name)
        for known, found in ((self.shapes, shape), (self.tails, shape[1:])):
            if len(known) < 2:
                known.add(found)
        self.ranks.add(len(shape))

    def field_of(self, where: str, rows: int) -> Field:
        """Return the field of the column; rows without a value are null.

        Args:
            where: Source and column, for error messages.
            rows: Rows of the source.

        Raises:
            SourceError: No field can hold all values.
        """
        null: Any = "refuse" if self.count == rows else "mask"
        if len(self.kinds) > 1:
            raise SourceError(f"{where}: values are of several kinds ({', '.join(sorted(self.kinds))})")
        (kind,) = self.kinds
        if kind == "bytes":
            if self.are_numbers:
                return Scalar("int64", null=null)
            if self.are_images:
                return Image() if null == "refuse" else Image(null=null, fill=_PIXEL)
            return Text(null=null) if self.are_text else Bytes(null=null)
        if kind == "text":
            return Text(null=null)
        if kind == "int":
            return Scalar("int64", null=null)
        return self._list_field(null) if kind == "list" else self._array_field(where, null)

    def _list_field(self, null: Any) -> Field:
        """Return the field of lists: a scalar if all lists have one value, a tensor if one length, else lists."""
        (dtype,) = self.dtypes
        if dtype == "bytes":
            item = Text if self.are_text else Bytes
            if self.lengths != {1}:
                return RaggedList(item())
            if self.are_images:
                return Image() if null == "refuse" else Image(null=null, fill=_PIXEL)
            return item(null=null)
        if self.lengths == {1}:
            return Scalar(dtype, null=null)
        if len(self.lengths) == 1 and null == "refuse":
            return Tensor(dtype, tuple(self.lengths))
        return RaggedList(dtype)

    def _array_field(self, where: str, null: Any) -> Field:
        (dtype,) = self.dtypes
        if dtype not in _ARRAYS:
            raise SourceError(f"{where}: arrays of {dtype} are not imported; only bool, integers and floats are")
        if len(self.shapes) == 1:
            (shape,) = self.shapes
            if not shape:
                return Scalar(dtype, null=null)
            if 0 not in shape:
                return Tensor(dtype, shape, null=null)
        if self.ranks == {1}:
            return RaggedList(dtype, null=null)
        if len(self.tails) == 1 and len(self.ranks) == 1:
            (tail,) = self.tails
            if 0 not in tail:
                return RaggedList(Tensor(dtype, tail), null=null)
        if len(self.ranks) == 1 and 0 not in self.ranks:
            return Encoded(dtype, (None,) * next(iter(self.ranks)), "npy", null=null)
        raise SourceError(f"{where}: arrays have different numbers of dimensions ({', '.join(map(str, self.ranks))})")


def encode_rows(rows: Sequence[Mapping[str, Any]], schema: Schema, where: str) -> pa.Table:
    """Return rows in the stored form; missing values are null.

    Args:
        rows: Values by column.
        schema: The schema of the columns.
        where: Source and position of the first row, for error messages.

    Raises:
        SourceError: A value does not fit its field.
    """
    try:
        columns = {name: [_encoded(row.get(name), one) for row in rows] for name, one in schema.items()}
        # As bytes, so that the headers of images are not parsed.
        plain = Schema({name: Bytes(null=one.null) if isinstance(one, Image) else one for name, one in schema.items()})
        return encode_columns(columns, plain, 0).cast(schema.arrow_schema())
    except ValueError as error:
        raise SourceError(f"{where}: {error}") from error


def _encoded(value: Any, one: Field) -> Any:
    if isinstance(one, RaggedList) and one.null == "refuse" and value is None:
        return []
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, ValueList):
        if isinstance(one, Tensor | RaggedList):
            is_text = isinstance(one, RaggedList) and isinstance(one.item, Text)
            return [item.decode("utf-8") for item in value.items] if is_text else value.items
        value = value.items[0]
    if isinstance(value, Digits) and isinstance(one, Scalar):
        return whole_number(value)
    if isinstance(value, bytes) and isinstance(one, Text):
        return value.decode("utf-8")
    if isinstance(one, Encoded) and isinstance(value, np.ndarray):
        return encode_array(value, "npy")
    if isinstance(one, Scalar) and isinstance(value, np.ndarray):
        return value[()]
    return value


def is_image_alone(head: bytes) -> bool:
    """Return whether a value that begins with `head` is an image and no text: then only its beginning is inspected."""
    return image_kind(head) is not None and b"\0" in head


def _is_text(value: bytes | memoryview) -> bool:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in bytes(value[:1024])


def whole_number(text: bytes) -> int | None:
    """Return an integer of 64 bits in canonical decimal form; None for anything else, such as ``007``."""
    stripped = text.strip()
    try:
        number = int(stripped)
    except ValueError:
        return None
    return number if _LEAST_INT <= number <= _MOST_INT and str(number).encode() == stripped else None
