"""Field kinds whose stored form stands for something else: codes for words, compressed bytes for pixels."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from parquet_loader.errors import ConfigurationError
from parquet_loader.schema.arrow_types import arrow_type_of, delivered_dtype
from parquet_loader.schema.base import FieldBase, NullPolicy, check_null


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Category(FieldBase):
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
        check_null(self.null)
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Image(FieldBase):
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
            raise ConfigurationError(
                f"Image shape {self.shape!r}: expected (height, width, channels), channels 1, 3, 4"
            )
        if any(n is not None and n < 1 for n in shape):
            raise ConfigurationError(f"Image shape {self.shape!r}: lengths are at least 1")
        object.__setattr__(self, "shape", shape)
        if self.encoding not in ("png", "jpeg"):
            raise ConfigurationError(f"Image encoding={self.encoding!r}: expected 'png' or 'jpeg'")
        check_null(self.null)
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoded(FieldBase):
    """An array a row, kept as the bytes of a known format; what Petastorm's codecs for arrays and images write.

    How it is delivered follows from `type` and `shape`, never from the values:

    - numbers of a fixed shape: ``[batch, *shape]``;
    - numbers of which only the first length varies, from ``"npy"`` and ``"npz"``: a `Ragged` of ``[*shape[1:]]``;
    - text and bytes: `Ragged`, nested once for each dimension;
    - anything else: a list of tensors, one a row.

    Args:
        type: dtype of the elements: bool, integers or floats (images: uint8 or uint16), or ``"string"``, ``"binary"``.
        shape: Shape of one row's array, None for a length that varies; images are ``(h, w)`` or ``(h, w, channels)``.
        encoding: ``"npy"`` (`np.save`), ``"npz"`` (`np.savez_compressed`, member ``arr``), ``"png"`` or ``"jpeg"``.
        null: As in `Scalar`; gaps are zeros, or empty.
    """

    type: Any
    shape: tuple[int | None, ...]
    encoding: Literal["npy", "npz", "png", "jpeg"] = "npy"
    null: NullPolicy = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", arrow_type_of(self.type))
        if not (self.is_text or pa.types.is_boolean(self.type) or self._is_number):
            raise ConfigurationError(f"Encoded({self.type}): elements are bool, numbers, string or binary")
        try:
            shape = tuple(None if n is None else operator.index(n) for n in self.shape)
        except TypeError:
            raise ConfigurationError(f"Encoded shape {self.shape!r}: expected lengths, or None") from None
        if any(n is not None and n < 1 for n in shape):
            raise ConfigurationError(f"Encoded shape {shape}: lengths are at least 1, or None where they vary")
        object.__setattr__(self, "shape", shape)
        check_null(self.null)
        if self.encoding not in ("npy", "npz", "png", "jpeg"):
            raise ConfigurationError(f"Encoded encoding={self.encoding!r}: expected 'npy', 'npz', 'png' or 'jpeg'")
        if self.is_image and (len(shape) not in (2, 3) or self.type not in (pa.uint8(), pa.uint16())):
            raise ConfigurationError(
                f"Encoded image of {self.type} {shape}: expected uint8 or uint16 of (height, width[, channels])"
            )
        if self.is_fixed and not self.is_text and math.prod(shape) * self.dtype.itemsize >= 2**31:  # type: ignore[arg-type]
            raise ConfigurationError(f"Encoded shape {shape}: a row is over the limit of 2 GiB")

    @property
    def _is_number(self) -> bool:
        return bool(pa.types.is_integer(self.type) or pa.types.is_floating(self.type))

    @property
    def is_text(self) -> bool:
        """Whether the elements are text or bytes."""
        return bool(self.type in (pa.string(), pa.binary()))

    @property
    def is_image(self) -> bool:
        """Whether the bytes are a PNG or JPEG."""
        return self.encoding in ("png", "jpeg")

    @property
    def is_fixed(self) -> bool:
        """Whether all rows have one shape."""
        return None not in self.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements as they are delivered; uint8 for text and bytes."""
        return np.dtype(np.uint8) if self.is_text else delivered_dtype(self.type)

    @property
    def fill(self) -> None:
        """There is none: a null is refused or masked."""
        return

    @property
    def missing(self) -> None:
        """There is none: files without the column are refused."""
        return

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return pa.binary()
