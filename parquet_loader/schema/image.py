"""The field kind of images: their storage, and the size and form in which they are delivered."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from parquet_loader.common import is_number
from parquet_loader.errors import ConfigurationError
from parquet_loader.schema.base import FileField, NullPolicy

_MOST_PIXELS = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Image(FileField):
    """An image, decoded by the loader to uint8 ``[batch, height, width, channels]``.

    Supports JPEG, PNG, WebP, GIF (its first frame), TIFF (its first page) and, with Pillow 11.3 or later, AVIF.

    Args:
        shape: ``(height, width, channels)`` of the stored images; None for height and width allows different sizes.
            Without `size`, a batch of these is a list of ``[h, w, c]`` tensors, unless `transform` makes them equal.
            Channels: 1 grey, 3 RGB, 4 RGBA.
        encoding: How the writer encodes arrays: ``"png"`` or ``"jpeg"``; encoded bytes are stored unchanged.
        null, fill, missing: As in `Bytes`, with encoded images (or paths) as values; gaps are black images, which need
            a `shape` without None, or a `size`.
        aliases: As in `Scalar`.
        size: Delivered ``(height, width)``; one number for both. None: as stored.
        crop: Which part of the image is resized to `size`. None: all of it, whatever its proportions. ``"center"``: the
            middle part. ``"random"``: a part of random size, proportions and position, as torchvision's
            `RandomResizedCrop` chooses it.
        resize: With ``crop="center"``, the length to which the shorter side is resized before `size` is cut out, as by
            torchvision's `Resize` and `CenterCrop`; at least `size`. None: the largest part of the proportions of
            `size`.
        scale: With ``crop="random"``, the least and largest share of the image's area.
        ratio: With ``crop="random"``, the least and largest width divided by height.
        flip: Probability that an image is mirrored left to right.
        interpolation: The filter of resizing, always with antialiasing; ``"nearest"`` copies pixels, for masks.
        dtype: ``"uint8"``, or ``"float32"``: values divided by 255, from 0 to 1.
        mean, std: With float32, a mean to subtract from each channel, and then a std to divide by.
        channels_first: Whether to deliver ``[batch, channels, height, width]``; needs `size` or a `shape` without None.
        exif_orientation: Whether to rotate images as their EXIF orientation says, as `datasets` of Hugging Face does.
            By default pixels stay as they are stored, as with Pillow and torchvision.
        storage: ``"bytes"`` stores the bytes of encoded images; ``"path"`` stores text, the path of a file relative to
            the data set's directory. It also reads structs of Parquet's logical type FILE: a URI below that directory,
            with or without a byte range, or the bytes.

    Crops and flips depend only on the loader's seed, the epoch and the row's number in the data set. All columns of a
    row draw the same numbers, so an image and its mask of the same size get the same crop.
    """

    shape: tuple[int | None, int | None, int] = (None, None, 3)
    encoding: Literal["png", "jpeg"] = "png"
    null: NullPolicy = "refuse"
    fill: bytes | str | None = None
    missing: bytes | str | None = None
    aliases: Sequence[str] = ()
    size: int | tuple[int, int] | None = None
    crop: Literal["center", "random"] | None = None
    resize: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    interpolation: Literal["bilinear", "bicubic", "nearest"] = "bilinear"
    dtype: Literal["uint8", "float32"] = "uint8"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    channels_first: bool = False
    exif_orientation: bool = False
    storage: Literal["bytes", "path"] = "bytes"

    def __post_init__(self) -> None:
        shape = tuple(self.shape)
        if len(shape) != 3 or shape[2] not in (1, 3, 4) or (shape[0] is None) != (shape[1] is None):
            raise ConfigurationError(
                f"Image shape {self.shape!r}: expected (height, width, channels), channels 1, 3, 4"
            )
        try:
            shape = tuple(None if n is None else operator.index(n) for n in shape)
        except TypeError:
            raise ConfigurationError(f"Image shape {self.shape!r}: lengths are whole numbers") from None
        if any(n is not None and n < 1 for n in shape):
            raise ConfigurationError(f"Image shape {self.shape!r}: lengths are at least 1")
        object.__setattr__(self, "shape", shape)
        if self.encoding not in ("png", "jpeg"):
            raise ConfigurationError(f"Image encoding={self.encoding!r}: expected 'png' or 'jpeg'")
        self._settle_files()
        self._settle_size()
        self._settle_values()
        if self.null == "mask" and self.fill is None and not self.is_fixed:
            raise ConfigurationError(
                "Image(null='mask') needs a shape without None, size=<delivered size>, or fill=<encoded image>"
            )
        if self.channels_first and not self.is_fixed:
            raise ConfigurationError("Image(channels_first=True) needs a shape without None, or size=<delivered size>")

    def _settle_size(self) -> None:
        """Check the arguments of resizing, cropping and flipping."""
        size = self.size
        if size is not None:
            pair = (size, size) if isinstance(size, int | np.integer) else size
            try:
                height, width = (operator.index(n) for n in pair)
            except (TypeError, ValueError):
                raise ConfigurationError(f"Image(size={size!r}): expected (height, width), or one number") from None
            if isinstance(size, bool) or min(height, width) < 1 or height * width * self.shape[2] * 4 > _MOST_PIXELS:
                raise ConfigurationError(f"Image(size={size!r}): expected lengths from 1, and less than 2 GiB a row")
            object.__setattr__(self, "size", (height, width))
        if self.crop not in (None, "center", "random"):
            raise ConfigurationError(f"Image(crop={self.crop!r}): expected 'center', 'random' or None")
        if self.crop is not None and size is None:
            raise ConfigurationError(f"Image(crop={self.crop!r}): needs size=(height, width)")
        if self.resize is not None:
            if self.crop != "center":
                raise ConfigurationError("Image(resize=...): only with crop='center'; size= resizes by itself")
            least = max(self._size)
            if not isinstance(self.resize, int | np.integer) or isinstance(self.resize, bool) or self.resize < least:
                raise ConfigurationError(f"Image(resize={self.resize!r}): expected a whole number from {least} (size)")
            object.__setattr__(self, "resize", int(self.resize))
        for name, low in (("scale", 0.0), ("ratio", 0.0)):
            given = getattr(self, name)
            try:
                first, last = (float(n) for n in given)
            except (TypeError, ValueError):
                raise ConfigurationError(f"Image({name}={given!r}): expected (least, largest)") from None
            most = 1.0 if name == "scale" else math.inf
            if not low < first <= last <= most or math.isinf(last):
                raise ConfigurationError(
                    f"Image({name}={given!r}): expected (least, largest), above 0" + (", at most 1" * (most == 1.0))
                )
            object.__setattr__(self, name, (first, last))
            default = type(self).__dataclass_fields__[name].default
            if self.crop != "random" and (first, last) != default:
                raise ConfigurationError(f"Image({name}=...): only with crop='random'")
        if not is_number(self.flip) or not 0 <= self.flip <= 1:
            raise ConfigurationError(f"Image(flip={self.flip!r}): expected a probability from 0 to 1, such as 0.5")
        object.__setattr__(self, "flip", float(self.flip))
        if self.interpolation not in ("bilinear", "bicubic", "nearest"):
            raise ConfigurationError(
                f"Image(interpolation={self.interpolation!r}): expected 'bilinear', 'bicubic' or 'nearest'"
            )

    def _settle_values(self) -> None:
        """Check the arguments of the delivered numbers and their layout."""
        if self.dtype not in ("uint8", "float32"):
            raise ConfigurationError(f"Image(dtype={self.dtype!r}): expected 'uint8' or 'float32'")
        for name in ("mean", "std"):
            given = getattr(self, name)
            if given is None:
                continue
            if self.dtype != "float32":
                raise ConfigurationError(f"Image({name}=...): only with dtype='float32'")
            try:
                values = tuple(float(n) for n in given)
            except (TypeError, ValueError):
                values = ()
            if len(values) != self.shape[2] or not all(map(math.isfinite, values)) or (name == "std" and 0 in values):
                raise ConfigurationError(
                    f"Image({name}={given!r}): expected {self.shape[2]} numbers, one for each channel"
                    + (", none of them 0" if name == "std" else "")
                )
            object.__setattr__(self, name, values)
        for name in ("channels_first", "exif_orientation"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"Image({name}={getattr(self, name)!r}): expected True or False")

    @property
    def is_fixed(self) -> bool:
        """Whether all delivered images have the same height and width."""
        return self.size is not None or self.shape[0] is not None

    @property
    def is_random(self) -> bool:
        """Whether images are cropped or flipped at random."""
        return self.crop == "random" or 0 < self.flip < 1

    @property
    def is_plain(self) -> bool:
        """Whether pixels are delivered as they are stored."""
        return (
            self.size is None
            and not self.flip
            and self.dtype == "uint8"
            and not self.channels_first
            and not self.exif_orientation
        )

    @property
    def delivered_shape(self) -> tuple[int | None, ...]:
        """The shape of a delivered image, None for lengths that vary."""
        height, width = self.shape[:2] if self.size is None else self._size
        channels = self.shape[2]
        return (channels, height, width) if self.channels_first else (height, width, channels)

    @property
    def _size(self) -> tuple[int, int]:
        assert isinstance(self.size, tuple)
        return self.size

    @property
    def delivered_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of a delivered image."""
        return np.dtype(self.dtype)
