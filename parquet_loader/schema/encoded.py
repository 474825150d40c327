"""Field kinds whose stored form is an encoding: codes of words, compressed images, arrays as bytes."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from parquet_loader.common import from_numpy, text_array
from parquet_loader.errors import ConfigurationError
from parquet_loader.schema.arrow_types import arrow_type_of, delivered_dtype, is_element
from parquet_loader.schema.base import FieldBase, NullPolicy, refuse_set


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Category(FieldBase):
    """A word or whole number from a known vocabulary, delivered as an integer code: its position in `vocabulary`.

    Codes are not ordered: filters compare words with ``==``, ``!=`` and ``isin``, never with ``<``.

    Args:
        vocabulary: The words, all text or all integers, in the order of their codes.
        dtype: Integer dtype of the delivered codes; int64 serves `nn.Embedding` and class targets alike.
        null: As in `Scalar`; under a mask the gaps hold code 0, or that of `fill`.
        fill: Entry of the vocabulary that replaces a null.
        missing: Entry of the vocabulary for files that lack the column.
        unknown: Entry of the vocabulary that replaces values outside it; None refuses such values.
        storage: ``"words"`` stores the words, readable by other tools, with Parquet's dictionary encoding; ``"codes"``
            stores the codes as the smallest signed integers that hold them.
        aliases: As in `Scalar`.
    """

    vocabulary: Sequence[str] | Sequence[int]
    dtype: Any = "int64"
    null: NullPolicy = "refuse"
    fill: str | int | None = None
    missing: str | int | None = None
    unknown: str | int | None = None
    storage: Literal["words", "codes"] = "words"
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        words = _words(self.vocabulary)
        object.__setattr__(self, "vocabulary", words)
        dtype = np.dtype(self.dtype)
        if dtype.kind not in "iu" or len(words) - 1 > np.iinfo(dtype).max:
            raise ConfigurationError(f"Category: {dtype} cannot hold {len(words)} codes")
        object.__setattr__(self, "dtype", dtype)
        if self.storage == "text":  # type: ignore[comparison-overlap]  # the older name of "words"
            object.__setattr__(self, "storage", "words")
        if self.storage not in ("words", "codes"):
            raise ConfigurationError(f"Category storage={self.storage!r}: expected 'words' or 'codes'")
        self._settle(self._entry)
        if self.unknown is not None:
            object.__setattr__(self, "unknown", self._entry(f"Category(unknown={self.unknown!r})", self.unknown))

    def _entry(self, where: str, value: Any) -> str | int:
        entry: Any = operator.index(value) if self.is_integer and _is_integer(value) else value
        entry = str(entry) if isinstance(entry, str) else entry
        if type(entry) is not type(self.vocabulary[0]) or entry not in self.vocabulary:
            raise ConfigurationError(f"{where}: not in the vocabulary")
        return entry

    @property
    def is_integer(self) -> bool:
        """Whether the words are integers."""
        return isinstance(self.vocabulary[0], int)

    def code(self, word: str | int) -> int:
        """Return the code of `word`."""
        words: Sequence[str | int] = self.vocabulary
        return words.index(word)

    @property
    def words(self) -> pa.Array:
        """The vocabulary as an Arrow array, of strings or int64."""
        words: Any = self.vocabulary
        return from_numpy(np.array(words, np.int64)) if self.is_integer else text_array(words)

    @property
    def word_type(self) -> pa.DataType:
        """The Arrow type of the words: string or int64."""
        return pa.int64() if self.is_integer else pa.string()

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        if self.storage == "words":
            return self.word_type
        highest = len(self.vocabulary) - 1
        return next(t for t in (pa.int8(), pa.int16(), pa.int32()) if highest <= np.iinfo(delivered_dtype(t)).max)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _words(vocabulary: object) -> tuple[str, ...] | tuple[int, ...]:
    """Return a vocabulary as a tuple of str or of int."""
    if isinstance(vocabulary, str) or not isinstance(vocabulary, Iterable):
        raise ConfigurationError(f"Category: the vocabulary is {vocabulary!r:.80}; expected a list of words")
    refuse_set("Category: the vocabulary", vocabulary)
    entries = tuple(vocabulary.to_pylist() if isinstance(vocabulary, pa.Array | pa.ChunkedArray) else vocabulary)
    words: tuple[Any, ...]
    if entries and all(isinstance(entry, str) for entry in entries):
        words = tuple(map(str, entries))
    elif entries and all(map(_is_integer, entries)) and all(-(2**63) <= entry < 2**63 for entry in entries):
        words = tuple(map(operator.index, entries))
    else:
        raise ConfigurationError("Category: the vocabulary is one or more str, or one or more integers of 64 bits")
    if len(set(words)) != len(words):
        twice = next(word for word, count in Counter(words).items() if count > 1)
        raise ConfigurationError(f"Category: {twice!r} is in the vocabulary more than once; remove the others")
    return words


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoded(FieldBase):
    """One array per row, stored as bytes of a known format, such as those of Petastorm's codecs for arrays and images.

    Only `type` and `shape` decide how it is delivered:

    - numbers of a fixed shape: ``[batch, *shape]``;
    - numbers of which only the first length varies, from ``"npy"`` and ``"npz"``: a `Ragged` of ``[*shape[1:]]``;
    - text and bytes: `Ragged`, nested once for each dimension;
    - anything else: a list of tensors, one a row.

    Args:
        type: dtype of the elements: bool, integers or floats (images: uint8 or uint16), or ``"string"``, ``"binary"``.
        shape: Shape of one row's array, with None for a length that varies; images are ``(h, w)`` or
            ``(h, w, channels)``.
        encoding: ``"npy"`` (`np.save`), ``"npz"`` (`np.savez_compressed`, member ``arr``), ``"png"`` or ``"jpeg"``.
        null: As in `Scalar`; gaps are zeros, or empty.
        aliases: As in `Scalar`.
    """

    type: Any
    shape: Sequence[int | None]
    encoding: Literal["npy", "npz", "png", "jpeg"] = "npy"
    null: NullPolicy = "refuse"
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", arrow_type_of(self.type))
        if not (self.is_text or is_element(self.type)):
            raise ConfigurationError(f"Encoded({self.type}): elements are bool, numbers, string or binary")
        try:
            shape = tuple(None if n is None else operator.index(n) for n in self.shape)
        except TypeError:
            raise ConfigurationError(f"Encoded shape {self.shape!r}: expected lengths, or None") from None
        if any(n is not None and n < 1 for n in shape):
            raise ConfigurationError(f"Encoded shape {shape}: lengths are at least 1, or None if they vary")
        object.__setattr__(self, "shape", shape)
        self._settle()
        if self.encoding not in ("npy", "npz", "png", "jpeg"):
            raise ConfigurationError(f"Encoded encoding={self.encoding!r}: expected 'npy', 'npz', 'png' or 'jpeg'")
        if self.is_image and (len(shape) not in (2, 3) or self.type not in (pa.uint8(), pa.uint16())):
            raise ConfigurationError(
                f"Encoded image of {self.type} {shape}: expected uint8 or uint16 of (height, width[, channels])"
            )
        if self.is_fixed and not self.is_text and math.prod(shape) * self.dtype.itemsize >= 2**31:  # type: ignore[arg-type]
            raise ConfigurationError(f"Encoded shape {shape}: a row is over the limit of 2 GiB")

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
        """Always None: a null is refused or masked."""
        return

    @property
    def missing(self) -> None:
        """Always None: files without the column are refused."""
        return

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        return pa.binary()
