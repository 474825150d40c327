"""Field kinds of audio and video, stored as the bytes or paths of encoded files."""

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

_MOST_RATE = 768_000
_MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Audio(FileField):
    """A WAV, FLAC, MP3, Ogg or AAC recording, decoded to float32 and resampled; full scale is -1 to 1.

    - Without `seconds`: a `Ragged` with rows ``[samples]`` for one channel, or ``[samples, channels]`` for several.
    - With `seconds`: ``[batch, samples]`` for one channel, or ``[batch, channels, samples]`` for several, padded with
      zeros, and the column ``<name>_length``, int64 ``[batch]``: the number of samples of each row before the padding.

    Args:
        rate: Sample rate of the delivered recordings in Hz.
        seconds: Length of each row; ``round(seconds * rate)`` samples. None: recordings keep their lengths.
        channels: Channels of the delivered recordings. Several channels are averaged to one; one channel is repeated.
            Other differences are an error.
        at: The part of a recording longer than `seconds` that is delivered: ``"start"``, or ``"random"``, a position
            that depends only on the loader's seed, the epoch and the row.
        null, fill, missing: As in `Bytes`, with encoded recordings (or paths) as values; gaps are silent, of length 0.
        storage: ``"bytes"`` stores the bytes of encoded files; ``"path"`` stores text, the path of a file relative to
            the data set's directory. It also reads structs of Parquet's logical type FILE: a URI below that directory,
            with or without a byte range, or the bytes.
        aliases: As in `Scalar`.
    """

    rate: int
    seconds: float | None = None
    channels: int = 1
    at: Literal["start", "random"] = "start"
    null: NullPolicy = "refuse"
    fill: bytes | str | None = None
    missing: bytes | str | None = None
    storage: Literal["bytes", "path"] = "bytes"
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _count("Audio", "rate", self.rate, _MOST_RATE))
        object.__setattr__(self, "channels", _count("Audio", "channels", self.channels, 1024))
        seconds = self.seconds
        if seconds is not None:
            if not is_number(seconds) or not math.isfinite(seconds):
                raise ConfigurationError(f"Audio(seconds={seconds!r}): expected a number of seconds, or None")
            object.__setattr__(self, "seconds", float(seconds))
            if not 1 <= round(seconds * self.rate) * self.channels <= _MOST_ELEMENTS // 4:
                raise ConfigurationError(
                    f"Audio(seconds={seconds!r}): {round(seconds * self.rate)} samples of {self.channels} channels; "
                    "expected from 1 sample to 2 GiB a row"
                )
        if self.at not in ("start", "random"):
            raise ConfigurationError(f"Audio(at={self.at!r}): expected 'start' or 'random'")
        if self.at == "random" and seconds is None:
            raise ConfigurationError("Audio(at='random') cuts recordings to one length; give seconds=<length> too")
        self._settle_files()

    @property
    def samples(self) -> int | None:
        """Samples of a row; None if recordings keep their lengths."""
        return None if self.seconds is None else round(self.seconds * self.rate)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of one row; None for a length that varies."""
        if self.samples is None:
            return (None,) if self.channels == 1 else (None, self.channels)
        return (self.samples,) if self.channels == 1 else (self.channels, self.samples)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the samples."""
        return np.dtype(np.float32)

    @property
    def is_random(self) -> bool:
        """Whether rows draw random numbers."""
        return self.at == "random"

    @property
    def is_fixed(self) -> bool:
        """Whether all rows have one shape."""
        return self.samples is not None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Video(FileField):
    """Clips of a video, decoded to RGB: uint8 ``[batch, frames, height, width, 3]``.

    With `clips` the shape is ``[batch, clips, frames, height, width, 3]``. The column ``<name>_time``, float64
    ``[batch, frames]`` or ``[batch, clips, frames]``, holds the timestamp of each frame in seconds from the video's
    first frame.

    Args:
        frames: Frames of a clip.
        size: ``(height, width)`` to which frames are scaled.
        step: Distance between two frames of a clip, in frames of the video.
        clips: Clips of each video; None: one clip, without an axis for clips.
        at: Where the clips begin: ``"random"``, at positions that depend only on the loader's seed, the epoch and the
            row; or ``"regular"``, at equal distances (a single clip: in the middle).
        null, fill, missing: As in `Bytes`, with encoded videos (or paths) as values; gaps are black frames at NaN
            seconds.
        storage: As in `Audio`. Of a file named by a path, only the index and the groups of pictures (GOPs) of the clips
            are read.
        ranges: Whether to leave values in the Parquet file until their batch is made. Then only each video's index and
            the GOPs of its clips are read. Needs plain, uncompressed pages without nulls; others are an error.
        aliases: As in `Scalar`.
    """

    frames: int
    size: Sequence[int]
    step: int = 1
    clips: int | None = None
    at: Literal["random", "regular"] = "random"
    null: NullPolicy = "refuse"
    fill: bytes | str | None = None
    missing: bytes | str | None = None
    storage: Literal["bytes", "path"] = "bytes"
    aliases: Sequence[str] = ()
    ranges: bool = False

    def __post_init__(self) -> None:
        for name in ("frames", "step", "clips"):
            value = getattr(self, name)
            if name != "clips" or value is not None:
                object.__setattr__(self, name, _count("Video", name, value, 2**20))
        given: Any = self.size
        try:
            height, width = given
        except (TypeError, ValueError):
            raise ConfigurationError(f"Video(size={given!r}): expected (height, width)") from None
        object.__setattr__(self, "size", tuple(_count("Video", "size", n, 2**14) for n in (height, width)))
        if math.prod(n or 1 for n in self.shape) > _MOST_ELEMENTS:
            raise ConfigurationError(f"Video: a row of shape {self.shape} is over the limit of 2 GiB")
        if self.at not in ("random", "regular"):
            raise ConfigurationError(f"Video(at={self.at!r}): expected 'random' or 'regular'")
        if not isinstance(self.ranges, bool):
            raise ConfigurationError(f"Video(ranges={self.ranges!r}): expected True or False")
        if self.ranges and (self.storage, self.null, self.missing) != ("bytes", "refuse", None):
            raise ConfigurationError(
                "Video(ranges=True) reads parts of values that are stored as bytes and not null; leave out storage, "
                "null and missing, or ranges"
            )
        self._settle_files()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        clips = () if self.clips is None else (self.clips,)
        return (*clips, self.frames, *self.size, 3)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the pixels."""
        return np.dtype(np.uint8)

    @property
    def is_random(self) -> bool:
        """Whether rows draw random numbers."""
        return self.at == "random"

    @property
    def is_fixed(self) -> bool:
        """Always True: all rows have one shape."""
        return True


def _count(kind: str, name: str, value: Any, most: int) -> int:
    """Return `value` after checking that it is a whole number from 1 to `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number <= most:
        raise ConfigurationError(f"{kind}({name}={value!r}): expected a whole number from 1 to {most}")
    return number
