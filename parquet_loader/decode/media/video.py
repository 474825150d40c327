"""Decodes frames of videos with FFmpeg (PyAV): frames at given times, and clips at seeded positions.

Decoding starts at the last key frame before a time. For a file with an index (MP4, MOV), only the index and the groups
of pictures (GOPs) of the wanted frames are read. A decoder starts no threads, because rows are decoded in parallel.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.common import mixed
from parquet_loader.decode.array_formats import BlobProblem
from parquet_loader.decode.media.byte_ranges import RangeFile
from parquet_loader.errors import MissingPackageError
from parquet_loader.schema import Video

Pixels: TypeAlias = npt.NDArray[np.uint8]

# Other formats are refused, because a playlist could make the process open other files.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
_CODEC_OPTIONS = {"max_pixels": str(2**25), "threads": "1"}
# Extra packets that are read with those of the wanted frames, because decoders reorder pictures. If a decoder needs
# more, they are read then.
_REORDERED = 4
# Without an index, a frame at most this far ahead is reached by decoding instead of seeking.
_NEAR = 64
# An open decoder holds the entries of the index, measured 40 bytes a packet, and the frames to which others refer:
# measured at 1920 x 1080 pixels, 4 to 11 frames of H.264, HEVC, VP9 and AV1, and 25 of H.264 with 16 reference frames.
_BASE_BYTES = 2**20
_PER_PACKET = 48
_FRAMES = 12


@cache
def video_module() -> Any:
    """Return the module `av`.

    Raises:
        MissingPackageError: it is not installed, or cannot be loaded.
    """
    try:
        module = importlib.import_module("av")
    except (ImportError, OSError) as error:
        raise MissingPackageError(
            f"video is decoded by PyAV, which cannot be imported ({error}): pip install 'torch-parquet-loader[video]'"
        ) from None
    return module


def _release() -> int:
    return int(video_module().__version__.partition(".")[0])


@cache
def _one_thread() -> dict[str, int]:
    """Return the argument with which PyAV scales a frame in one thread: since release 17 it starts others for each."""
    return {"threads": 1} if _release() >= 17 else {}


def lenient() -> dict[str, str]:
    """Return the argument with which PyAV opens files whose metadata are not UTF-8; release 19 always does."""
    return {"metadata_errors": "replace"} if _release() < 19 else {}


def clip_positions(count: int, field: Video, word: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the frames of all clips, int64 ``[clips, frames]``.

    Args:
        count: Frames of the video.
        field: The field, with clips, frames, step and positions.
        word: 64 random bits; equal bits give equal positions.

    Positions beyond the video's end are replaced by its last frame.
    """
    clips = field.clips or 1
    free = max(count - (field.frames - 1) * field.step - 1, 0)  # the last position of a clip's first frame
    if field.at == "random":
        starts = [mixed(word ^ mixed(clip)) * (free + 1) >> 64 for clip in range(clips)]
    else:
        starts = [(2 * clip + 1) * free // (2 * clips) for clip in range(clips)]
    numbers = np.add.outer(np.array(starts, np.int64), np.arange(field.frames, dtype=np.int64) * field.step)
    return np.minimum(numbers, max(count - 1, 0))


def decode_clips(
    source: bytes | memoryview | RangeFile, field: Video, word: int, out: Pixels | None = None
) -> tuple[Pixels, npt.NDArray[np.float64]]:
    """Return the clips of one video, and the times of their frames; see `VideoDecoder.clips`."""
    with VideoDecoder(source) as decoder:
        return decoder.clips(field, word, out)


class _Index:
    """The container's index of a stream: an entry for each packet, in the order of decoding.

    Args:
        entries: PyAV's index entries.
        unit: Seconds of a timestamp's unit.

    The timestamps are those of decoding. A key frame is shown later than it is decoded by as much as the first one, if
    pictures are reordered; so its time is counted from the first timestamp.
    """

    def __init__(self, entries: Any, unit: float) -> None:
        self._entries = entries
        self._origin = entries[0].timestamp
        self._unit = unit

    def _found(self, time: float, *, any_frame: bool) -> int:
        timestamp = self._origin + math.floor(time / self._unit + 1e-6)
        return int(self._entries.search_timestamp(timestamp, backward=True, any_frame=any_frame))

    def key_before(self, time: float) -> tuple[int, float]:
        """Return the number of the last key frame at or before a time, and its time."""
        number = max(self._found(time, any_frame=False), 0)
        return number, (self._entries[number].timestamp - self._origin) * self._unit

    def span(self, first: int, end: float) -> tuple[int, int, int]:
        """Return the byte range of the packets from one to those of the frame at `end`, and the sum of their sizes."""
        last = max(self._found(end, any_frame=True), first)
        following = self._entries.search_timestamp(self._entries[last].timestamp + 1, backward=False, any_frame=False)
        group_end = following if following > last else len(self._entries)
        packets = self._entries[first : min(last + 1 + _REORDERED, group_end)]
        sizes = sum(packet.size for packet in packets)
        return min(p.pos for p in packets), max(p.pos + p.size for p in packets), sizes


class VideoDecoder:
    """Decodes the video stream of a file; for one thread at a time. A context manager that closes it.

    Args:
        source: The encoded video.

    Attributes:
        count: Number of frames, by the container.
        rate: Frames a second.
        size: Height and width of frames as they are shown.
        held_bytes: An estimate of the bytes that the open decoder holds, without those of `source`. Measured, films of
            usual encoders hold less; H.264 with 16 reference frames holds up to twice as much.

    Raises:
        BlobProblem: The bytes are not a video, or are damaged or truncated. All methods raise it.
    """

    def __init__(self, source: bytes | memoryview | RangeFile) -> None:
        self._av = video_module()
        self._file = source if isinstance(source, RangeFile) else None
        if self._file is None and not len(source):  # type: ignore[arg-type]
            raise BlobProblem("the value is empty; expected a video")
        file = self._file or io.BytesIO(source)  # type: ignore[arg-type]
        with self._problems("opened"):
            self._container = self._av.open(file, container_options=_OPTIONS, **lenient())
        try:
            with self._problems("opened"):
                self._open_stream()
        except BaseException:
            self._container.close()
            raise

    def _open_stream(self) -> None:
        streams = self._container.streams.video
        if not streams:
            raise BlobProblem("holds no video stream; Audio() reads recordings")
        self._stream = stream = streams[0]
        for other in self._container.streams:
            if other is not stream and hasattr(other, "discard"):  # PyAV 18; demuxing skips the packets too
                other.discard = self._av.stream.Discard.all
        if stream.codec_context is None:
            raise BlobProblem("holds a video stream of a codec that FFmpeg does not decode")
        stream.codec_context.options = _CODEC_OPTIONS
        self._unit = float(stream.time_base)
        rate = stream.average_rate or stream.guessed_rate
        if not rate or not 0 < float(rate) < 1e5:
            raise BlobProblem("has no frame rate")
        self.rate = float(rate)
        # Timestamps are rounded to units; the frame times of an irregular video may lie much closer than 1 / rate.
        self._slack = min(0.05 / self.rate, self._unit)
        self._index: _Index | None = None
        self._origin = stream.start_time or 0
        # In a Matroska file of few frames, FFmpeg may give the start and duration of the file instead of the stream's.
        is_of_file = self._is_matroska and stream.duration is not None
        if stream.start_time is None or is_of_file or (self._is_avi and stream.codec_context.has_b_frames):
            self._origin = self._first_time()
        seconds, is_of_stream = self._duration()
        self._is_exact = bool(stream.frames) or is_of_stream
        shown = round(seconds * self.rate)
        count = stream.frames or shown
        if self._is_mp4 and is_of_stream and stream.average_rate and abs(shown - count) > 1:
            count = shown  # the stated number includes frames that an edit list hides, or is that of the first fragment
        if count < 1:
            raise BlobProblem("states neither its number of frames nor its duration")
        self.count = int(count)
        if self._file is not None:
            self._index = self._read_index()
        context, packets = stream.codec_context, sum(other.frames for other in self._container.streams)
        pixel_bits = 24 if context.format is None else context.format.padded_bits_per_pixel
        frame_bytes = context.width * context.height * pixel_bits // 8
        self.held_bytes = _BASE_BYTES + _PER_PACKET * packets + _FRAMES * frame_bytes
        self._size: tuple[int, int] | None = None
        self._before: Any = None
        self._after: Any = None
        self._frames: Iterator[Any] = iter(())

    def _first_time(self) -> int:
        """Return the timestamp of the first frame, if the file does not state it."""
        self._seek(0.0, 0.0)
        return int(self._after.pts)

    def _duration(self) -> tuple[float, bool]:
        """Return the duration in seconds, and whether it is the stream's; the file's may be that of another stream."""
        stream = self._stream
        if stream.duration is not None and not self._is_matroska:
            return float(stream.duration) * self._unit, True
        # FFmpeg's durations in Matroska include the time before the first frame; those of other programs do not.
        is_from_zero = self._container.metadata.get("ENCODER", "").startswith("Lavf")
        before = max(self._origin * self._unit, 0.0) if is_from_zero else 0.0
        try:  # Matroska
            hours, minutes, seconds = stream.metadata["DURATION"].split(":")
            return int(hours) * 3600 + int(minutes) * 60 + float(seconds) - before, True
        except (KeyError, ValueError):
            return (self._container.duration or 0) / 1e6 - before, False

    @property
    def _is_mp4(self) -> bool:
        return "mp4" in self._container.format.name

    @property
    def _is_matroska(self) -> bool:
        return "matroska" in self._container.format.name

    @property
    def _is_avi(self) -> bool:
        return bool(self._container.format.name == "avi")

    def _read_index(self) -> _Index | None:
        entries = getattr(self._stream, "index_entries", ())  # PyAV before 17 does not show it
        if len(entries) < max(self._stream.frames, self.count):
            return None  # there is none, or it has only the key frames, or only the first fragment
        return _Index(entries, self._unit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the decoder's memory."""
        self._container.close()

    @property
    def can_be_reused(self) -> bool:
        """Whether the frames of a later call do not depend on what was read before: the file has a complete index."""
        return self._file is not None and self._is_mp4 and self._stream.frames >= self.count

    def rest(self) -> None:
        """Forget the position, and the bytes that were read, until the next call."""
        self._before = self._after = None
        self._frames = iter(())
        if self._file is not None:
            self._file.forget()

    def clips(self, field: Video, word: int, out: Pixels | None = None) -> tuple[Pixels, npt.NDArray[np.float64]]:
        """Return the clips of the video, and the times of their frames.

        Args:
            field: The field.
            word: 64 random bits, which determine the positions of clips with ``at="random"``.
            out: Memory for a row of ``field.shape``; if given, the clips are returned in it.

        Returns:
            uint8 ``field.shape``, and seconds from the first frame, float64 ``field.shape[:-3]``.
        """
        if out is None:
            out = np.empty(field.shape, np.uint8)
        numbers = clip_positions(self.count, field, word).ravel()
        times = self.read(numbers / self.rate, out.reshape(-1, *field.size, 3))
        return out, times.reshape(field.shape[:-3])

    def frames(
        self, times: Sequence[float] | npt.NDArray[np.float64], size: tuple[int, int] | None = None
    ) -> tuple[Pixels, npt.NDArray[np.float64]]:
        """Return the frames that are nearest to given times.

        Args:
            times: Seconds from the first frame, in any order.
            size: ``(height, width)`` to which frames are scaled; None: as they are.

        Returns:
            uint8 ``[times, height, width, 3]``, and the frames' own times, float64 ``[times]``.
        """
        out = np.empty((len(times), *(size or self.size), 3), np.uint8)
        return out, self.read(np.asarray(times, np.float64), out)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the displayed first frame."""
        if self._size is None:
            with self._problems("decoded"):
                self._seek(0.0, 0.0)
                frame = self._after
            is_turned = frame.rotation % 180 != 0
            self._size = (frame.width, frame.height) if is_turned else (frame.height, frame.width)
        return self._size

    def read(self, times: npt.NDArray[np.float64], out: Pixels) -> npt.NDArray[np.float64]:
        """Write the frames nearest to `times` to `out`, ``[times, height, width, 3]``; return their own times."""
        found = np.empty(len(times))
        last: Any = None
        pixels: Any = None
        order = np.argsort(times, kind="stable")
        ends = self._run_ends(times[order])
        with self._problems("decoded"):
            for number, end in zip(order.tolist(), ends, strict=True):
                frame = self._nearest(max(float(times[number]), 0.0), end)
                if frame is not last:
                    last, pixels = frame, self._pixels(frame, out.shape[1:3])
                out[number] = pixels
                found[number] = self._time(frame)
        return found

    @staticmethod
    def _run_ends(times: npt.NDArray[np.float64]) -> list[float]:
        """Return, for each of the ascending times, the last one that follows it without a gap of a second."""
        ends: list[float] = times.tolist()
        for number in range(len(ends) - 2, -1, -1):
            if times[number + 1] - times[number] <= 1.0:
                ends[number] = ends[number + 1]
        return ends

    def _nearest(self, time: float, end: float) -> Any:
        """Return the frame nearest to a time. Times ascend from call to call, without a gap up to `end`."""
        if self._after is None or self._is_far(time):
            self._seek(time, end)
        while self._after is not None and self._time(self._after) < time - self._slack:
            self._before, self._after = self._after, self._next()
        before, after = self._before, self._after
        if after is None:
            missing = time - self._time(before)
            before_first = self._origin * self._unit if self._is_avi else 0.0  # AVI counts empty frames before it
            if self._is_exact and missing > 2.5 / self.rate + before_first + 1e-3:
                raise BlobProblem(
                    f"the video is damaged or truncated: its last frame is at {self._time(before):.3f} s, and "
                    f"one at {time:.3f} s was expected"
                )
            # `_before` stays for later times.
            return before
        if before is not None and time - self._time(before) <= self._time(after) - time:
            return before
        return after

    def _is_far(self, time: float) -> bool:
        """Whether there is a key frame before a time that is not decoded yet."""
        now = self._time(self._after)
        if self._index is not None:
            return self._index.key_before(time)[1] > now
        return time - now > _NEAR / self.rate

    def _seek(self, time: float, end: float) -> None:
        """Seek, so that `_after` is a key frame at or before a time, or the first frame."""
        # A film that was cut without encoding begins with frames that are not shown; the first shown may refer to them.
        back, first = 0.0, -1.0 if self._is_mp4 else 0.0
        while True:
            goal = max(time - back, first)
            if self._index is not None and self._file is not None:
                self._load(goal, end)
            self._container.seek(
                self._origin + math.floor((goal + self._slack) / self._unit), stream=self._stream, backward=True
            )
            self._frames = self._decoded()
            self._before, self._after = None, self._next()
            if goal == first or (self._after is not None and self._time(self._after) <= time + self._slack):
                break
            back = back * 2 or 1.0
        if self._after is None:
            raise BlobProblem("the video has no frame that can be decoded")

    def _load(self, time: float, end: float) -> None:
        """Read, in one request, the packets from the key frame before a time to the frame at `end`."""
        assert self._index is not None
        assert self._file is not None
        begin, stop, sizes = self._index.span(self._index.key_before(time)[0], end)
        # Packets of other streams, such as audio, may lie between these.
        if 0 <= begin < stop <= self._file.size and stop - begin <= 2 * sizes:
            self._file.load(begin, stop)

    def _decoded(self) -> Iterator[Any]:
        """Yield the frames from the position on, beginning with a key frame."""
        first, last = None, 0
        frame: Any
        for packet in self._container.demux(self._stream):
            if first is None and packet.pts is not None:
                first = packet.pts
            if packet.dts is not None:
                last = packet.dts
            # A picture that is stored after the key frame but shown before it refers to earlier pictures: skip it.
            if packet.pts is None or packet.pts >= first:
                for frame in self._stream.decode(packet):
                    if self._is_avi:  # it has no timestamps of display, and those that FFmpeg makes may be out of order
                        last = last + 1 if frame.dts is None else frame.dts
                        frame.pts = last
                    yield frame

    def _next(self) -> Any:
        """Return the next frame in display order, or None at the end."""
        for frame in self._frames:
            if frame.pts is None:
                continue
            if frame.is_corrupt:
                raise BlobProblem(f"the video is damaged at {self._time(frame):.3f} s")
            return frame
        return None

    def _time(self, frame: Any) -> float:
        return float((frame.pts - self._origin) * self._unit)

    def _pixels(self, frame: Any, size: tuple[int, ...]) -> Pixels:
        """Return a frame, rotated and mirrored for display and scaled, uint8 ``[height, width, 3]``."""
        turns = round(frame.rotation / 90) % 4
        height, width = size if turns % 2 == 0 else size[::-1]
        scaled = frame.reformat(width=width, height=height, format="rgb24", interpolation="BILINEAR", **_one_thread())
        pixels: Pixels = scaled.to_ndarray()
        if _is_mirrored(frame):
            pixels = pixels[::-1]
        return np.rot90(pixels, turns) if turns else pixels

    def _problems(self, done: str) -> _Problems:
        return _Problems(self._av, done)


def _is_mirrored(frame: Any) -> bool:
    """Whether a frame is turned upside down before its rotation, as cameras in front of a screen mirror their films."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return False
    a, b, _, c, d, *_ = np.frombuffer(matrix, np.int32).tolist()
    return bool(a * d < b * c)


class _Problems:
    """Turns errors of PyAV into a `BlobProblem`."""

    def __init__(self, av: Any, done: str) -> None:
        self._errors = (av.FFmpegError, ValueError, OverflowError, MemoryError, EOFError, ArithmeticError)
        self._done = done

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, BlobProblem) or not isinstance(error, self._errors):
            return
        reason = getattr(error, "strerror", None) or str(error)
        raise BlobProblem(f"the video cannot be {self._done}: {reason}") from error
