"""Field kinds whose stored form stands for something else: codes for words, compressed bytes for pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from parquet_loader.errors import ConfigurationError
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
