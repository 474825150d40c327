"""Decodes AAC, in M4A or raw (ADTS), with FFmpeg (PyAV), because libsndfile does not read it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.decode.array_formats import BlobProblem
from parquet_loader.decode.media.video import lenient, video_module
from parquet_loader.errors import MissingPackageError

# Other formats are refused, because a playlist could make the process open other files.
_OPTIONS = {"format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,aac", "protocol_whitelist": "none"}
_CODECS = ("aac", "alac")
_MOST_SAMPLES = 2**31 - 1
# A track may be this many samples shorter than its header states, because the last frames may be padding.
_PADDING = 2 * 2048


class AacRecording:
    """A decoded recording, with the part of the interface of `soundfile.SoundFile` that `decode_audio` uses.

    Attributes:
        samplerate, channels, frames: As in `SoundFile`; `frames` is the number of samples of a channel.

    Args:
        data: The encoded recording.

    Raises:
        BlobProblem: the bytes are damaged, truncated, or hold no AAC or ALAC.
        MissingPackageError: PyAV is not installed.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        try:
            av = video_module()
        except MissingPackageError as error:
            raise MissingPackageError(str(error).replace("video is", "AAC is", 1)) from None
        errors = (av.FFmpegError, ValueError, OverflowError, MemoryError, EOFError, ArithmeticError)
        try:
            with av.open(io.BytesIO(data), container_options=_OPTIONS, **lenient()) as container:
                self._samples = self._decoded(container)
        except BlobProblem:
            raise
        except errors as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BlobProblem(f"the AAC recording cannot be decoded: {reason}") from error
        self.frames, self.channels = self._samples.shape

    def _decoded(self, container: Any) -> npt.NDArray[np.float32]:
        if not container.streams.audio:
            raise BlobProblem("holds no track of sound")
        stream = container.streams.audio[0]
        if stream.codec_context is None or stream.codec_context.name not in _CODECS:
            raise BlobProblem("holds a track that is neither AAC nor ALAC; expected one of these in an M4A")
        stream.codec_context.thread_count = 1
        parts: list[npt.NDArray[np.float32]] = []
        rate, total = 0, 0
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise BlobProblem(f"the AAC recording is damaged at sample {total}")
            part = _floats(frame)
            total += part.size
            if total > _MOST_SAMPLES:
                raise BlobProblem("the AAC recording is too long for a row")
            if parts and (rate != frame.sample_rate or part.shape[1] != parts[0].shape[1]):
                raise BlobProblem("the AAC recording changes its rate or its channels")
            rate = frame.sample_rate
            parts.append(part)
        if not parts:
            raise BlobProblem("the AAC recording holds no samples")
        samples = np.concatenate(parts)
        # Without a container, the duration is an estimate from the bit rate. A negative duration means unknown.
        duration = 0 if container.format.name == "aac" else max(stream.duration or 0, 0)
        told = round(duration * stream.time_base * rate) if duration else 0
        if len(samples) < told - _PADDING:
            raise BlobProblem(f"the AAC recording is truncated: {len(samples)} of its {told} samples are there")
        self.samplerate = rate
        return samples[:told] if told else samples

    def read(self, frames: int, *, dtype: str, always_2d: bool) -> npt.NDArray[np.float32]:  # noqa: ARG002
        """Return the first samples, float32 ``[frames, channels]``."""
        return self._samples[:frames]


def _floats(frame: Any) -> npt.NDArray[np.float32]:
    """Return a decoded frame as float32 ``[samples, channels]``; integers are divided by full scale."""
    read: npt.NDArray[Any] = frame.to_ndarray()
    values = read.T if frame.format.is_planar else read.reshape(-1, frame.layout.nb_channels)
    if values.dtype.kind == "i":
        values = np.multiply(values, np.float32(2.0 ** (1 - 8 * values.dtype.itemsize)), dtype=np.float32)
    return values.astype(np.float32, copy=False)
