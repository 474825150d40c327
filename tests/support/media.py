"""Recordings for tests, made by the encoders of libsndfile and FFmpeg."""

from __future__ import annotations

import importlib
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CODED_BITS = 16
CONTAINERS: dict[str, dict[str, Any]] = {
    "mp4": {},
    "mp4 without B-frames": {"options": {"bf": "0", "preset": "ultrafast"}},
    "mp4 with open groups": {"options": {"bf": "3", "x264-params": "open-gop=1", "preset": "veryfast"}},
    "mp4 with its index first": {"container_options": {"movflags": "faststart"}},
    "mp4 with sound": {"sound_first": True},
    "mkv with sound": {"sound_first": True, "format_": "matroska"},
    "fragmented mp4": {"container_options": {"movflags": "frag_keyframe+empty_moov"}},
    "mp4 with an index of its first fragment": {"container_options": {"movflags": "frag_keyframe"}},
    "mov of HEVC": {
        "format_": "mov",
        "codec": "libx265",
        "options": {"x265-params": "log-level=none", "preset": "ultrafast"},
    },
    "mkv": {"format_": "matroska"},
    "webm": {"format_": "webm", "codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8"}},
    "mp4 of AV1": {"codec": "libsvtav1", "options": {"preset": "12", "svtav1-params": "enable-overlays=0"}},
    "avi of MPEG-4": {"format_": "avi", "codec": "mpeg4", "options": {"bf": "0"}},
    "avi of MPEG-4 with B-frames": {"format_": "avi", "codec": "mpeg4", "options": {"bf": "2"}},
    "avi of H.264": {"format_": "avi"},
}
"""Arguments of `video`, by what they make."""


def tones(seconds: float, rate: int, channels: int = 1, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return sweeps, a different one in each channel, float32 ``[samples, channels]``."""
    time = np.arange(round(seconds * rate)) / rate
    low = 200 + 30 * (seed % 7) + 100 * np.arange(channels)
    return (0.4 * np.sin(2 * np.pi * (low + 150 * time[:, None]) * time[:, None])).astype(np.float32)


def sound(samples: npt.NDArray[np.float32], rate: int, format_: str = "WAV", subtype: str | None = None) -> bytes:
    """Return samples, ``[samples, channels]``, as a file."""
    out = io.BytesIO()
    importlib.import_module("soundfile").write(out, samples, rate, format=format_, subtype=subtype)
    return out.getvalue()


def aac(samples: npt.NDArray[np.float32], rate: int, format_: str = "ipod", codec: str = "aac") -> bytes:
    """Return samples, ``[samples, 1 or 2]``, as an M4A (``"ipod"``) or as AAC without a container (``"adts"``)."""
    av = importlib.import_module("av")
    layout = "mono" if samples.shape[1] == 1 else "stereo"
    planes, kind = samples.T, "fltp"
    if codec == "alac":
        planes, kind = (planes * 32767).round().astype(np.int16), "s16p"
    with tempfile.NamedTemporaryFile(suffix=".m4a") as out, av.open(out.name, "w", format=format_) as container:
        track = container.add_stream(codec, rate=rate, layout=layout)
        whole = av.AudioFrame.from_ndarray(np.ascontiguousarray(planes), format=kind, layout=layout)
        whole.sample_rate, whole.pts, whole.time_base = rate, 0, Fraction(1, rate)  # so that it tells its beginning
        for frame in (whole, None):
            for packet in track.encode(frame):
                container.mux(packet)
        container.close()
        return Path(out.name).read_bytes()


@contextmanager
def _same_scheduling() -> Iterator[None]:
    """Restore the thread's scheduling policy: if root encodes AV1, SVT-AV1 gives the calling thread a real-time one."""
    policy = (os.sched_getscheduler(0), os.sched_getparam(0)) if hasattr(os, "sched_getscheduler") else None
    try:
        yield
    finally:
        if policy is not None:
            os.sched_setscheduler(0, *policy)


@_same_scheduling()
def video(
    frames: int = 60,
    *,
    rate: int = 30,
    size: tuple[int, int] = (48, 272),
    key_every: int = 12,
    format_: str = "mp4",
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    noise: float = 0.0,
    sound_first: bool = False,
    times_ms: Sequence[int] | None = None,
) -> bytes:
    """Return a video whose frames show their numbers, in black and white squares of 16 x 16 in the first rows.

    Args:
        frames, rate, size, key_every: Number, frames a second, height and width, frames of a group of pictures.
        format_, codec, options, container_options: As FFmpeg calls them.
        noise: Strength of noise below the first rows, which makes files large.
        sound_first: Whether there is a track of sound before, of 3 s, whose packets lie between those of the video.
        times_ms: The time of each frame; None for frames at `rate` from 0 on.
    """
    av = importlib.import_module("av")
    height, width = size
    rng = np.random.default_rng(0)
    with (
        tempfile.NamedTemporaryFile(suffix=".video") as out,  # FFmpeg reads it again to move its index to the front
        av.open(out.name, "w", format=format_, options=container_options or {}) as container,
    ):
        given = {
            "g": str(key_every),
            **({"preset": "ultrafast", "bf": "2"} if codec == "libx264" else {}),
            **(options or {}),
        }
        track = container.add_stream("aac", rate=16000, layout="mono") if sound_first else None
        stream = container.add_stream(codec, rate=rate, options=given)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(frames):
            pixels = np.full((height, width, 3), 128, np.uint8)
            if noise:
                pixels[16:] = np.clip(128 + noise * rng.standard_normal((height - 16, width, 1)), 0, 255)
            for bit in range(min(CODED_BITS, width // 16)):
                pixels[:16, 16 * bit : 16 * bit + 16] = 255 if number >> bit & 1 else 0
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[number], Fraction(1, 1000)
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
        if track is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 48_000), np.float32), format="fltp", layout="mono")
            silence.sample_rate = 16000
            for sound in (silence, None):
                for packet in track.encode(sound):
                    container.mux(packet)
        container.close()
        return Path(out.name).read_bytes()


def numbers_of(pixels: npt.NDArray[np.uint8]) -> list[int]:
    """Return the numbers that frames of `video` show, of its size: uint8 ``[frames, height, width, 3]``."""
    bits = min(CODED_BITS, pixels.shape[2] // 16)
    shown: Any = pixels[:, 4:12, : 16 * bits].reshape(len(pixels), 8, bits, 16, 3)[:, :, :, 4:12].mean((1, 3, 4)) > 128
    return (shown * (1 << np.arange(bits))).sum(1).tolist()  # type: ignore[no-any-return]


def decode_frames(
    source: Any, times: Sequence[float], size: tuple[int, int] | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
    """Return the frames of a video nearest to some times, and their own times, by a decoder of their own."""
    with importlib.import_module("parquet_loader.decode.media").VideoDecoder(source) as decoder:
        frames: tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]] = decoder.frames(times, size)
        return frames


def cut(data: bytes, frames: int) -> bytes:
    """Return an MP4 without its first frames, from a key frame on and with an edit list, as `ffmpeg -ss -c copy` cuts.

    Args:
        data: A video with 30 frames a second.
        frames: Number of frames to hide. Those from the last key frame on stay in the file, because shown frames may
            refer to them.
    """
    av = importlib.import_module("av")
    out = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(out, "w", format="mp4") as target:
        stream = source.streams.video[0]
        begin = round(frames / 30 / stream.time_base)
        packets = [packet for packet in source.demux(stream) if packet.dts is not None]
        keys = [n for n, packet in enumerate(packets) if packet.is_keyframe and packet.pts <= begin]
        copy = target.add_stream_from_template(stream)
        for packet in packets[keys[-1] :]:
            packet.pts, packet.dts, packet.stream = packet.pts - begin, packet.dts - begin, copy
            target.mux(packet)
    return out.getvalue()
