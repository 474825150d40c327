"""Decodes recordings by libsndfile: WAV, FLAC, MP3 and Ogg (Vorbis, Opus) to float32, resampled by soxr.

numpy converts WAV of 16-bit PCM, and FFmpeg decodes AAC, always as a whole. libsndfile and soxr release the GIL, except
while libsndfile reads encoded bytes that are not in a `_MemoryFile`. If a row is a part of its recording, only that
part is decoded (MP3 and Ogg also from the beginning up to it, because libsndfile's seek is not exact), with a margin,
so that the resampled part equals the same samples of the whole recording.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import struct
import sys
import threading
import zlib
from contextlib import suppress
from functools import cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.decode.array_formats import BlobProblem
from parquet_loader.decode.media.aac import AacRecording
from parquet_loader.decode.media.mp3 import with_length
from parquet_loader.errors import MissingPackageError
from parquet_loader.schema import Audio

Samples: TypeAlias = npt.NDArray[np.float32]

# Margin around a resampled part, in samples at the lower of both rates; soxr's filters at quality HQ are shorter.
_MARGIN = 256
# libsndfile overestimates the length of an MP3 without a Xing or Info header by up to two frames and the decoder's
# delay.
_MP3_EXCESS = 4 * 1152
_MOST_SAMPLES = 2**31 - 1
# Larger recordings are not copied, because the copy is not counted as memory of the loader.
_MOST_COPIED = 2**20
# Programs that write WAV to a pipe leave about the largest size in the header; no value of a column is that long.
_LEAST_UNKNOWN_SIZE = 0x7FFF0000
_UNKNOWN_FRAMES = 2**63 - 1  # libsndfile's number for a FLAC that does not state it
_PCM = 1
_MOST_CHANNELS = 8
_OGG_HEADER = struct.Struct("<4sBBqIIIB")  # ..., checksum, number of segments
_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))  # each byte with its bits reversed


@cache
def audio_modules() -> tuple[Any, Any]:
    """Return the modules `soundfile` and `soxr`.

    Raises:
        MissingPackageError: one of them is not installed, or cannot be loaded.
    """
    try:
        return importlib.import_module("soundfile"), importlib.import_module("soxr")
    except (ImportError, OSError) as error:  # OSError: libsndfile is absent
        raise MissingPackageError(
            f"audio is decoded by soundfile and resampled by soxr, which cannot be imported ({error}): "
            "pip install 'torch-parquet-loader[audio]'"
        ) from None


def _renew_soundfile_lock() -> None:
    """Release the lock that soundfile holds while it opens a file: a forked process lacks the thread that held it."""
    opener: Any = getattr(sys.modules.get("soundfile"), "SoundFile", None)
    if hasattr(opener, "_sf_error_lock"):  # from release 0.14 on
        opener._sf_error_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_soundfile_lock)


def decode_audio(data: bytes | memoryview, field: Audio, word: int, out: Samples | None = None) -> tuple[Samples, int]:
    """Return the samples of one recording, and their number (in each channel) without padding.

    Args:
        data: The encoded recording.
        field: The field, with rate, length and channels.
        word: 64 random bits, which determine the position of the part with ``at="random"``.
        out: Memory for a row of ``field.shape``; if given, the samples are returned in it.

    Returns:
        float32 ``[samples]`` or ``[samples, channels]`` without `seconds`, else ``field.shape``.

    Raises:
        BlobProblem: the bytes are not a recording, are damaged or truncated, or have other channels.
    """
    soundfile, soxr = audio_modules()
    kind = _kind(data)
    opened: _PlainWav | AacRecording | None = None
    if kind == "wav":
        _refuse_truncated_wav(data)
        opened = _PlainWav.opened(data)
    elif kind == "ogg":
        _refuse_damaged_ogg(data)
    elif kind == "mp3":
        data = with_length(data)
    elif kind == "aac":
        opened = AacRecording(data)
    try:
        if opened is not None:
            samples = _samples(opened, kind, field, word, soxr, out if isinstance(opened, _PlainWav) else None)
        else:
            with soundfile.SoundFile(_file_of(data), closefd=False) as file:
                samples = _samples(file, kind, field, word, soxr, out)
    except (soundfile.SoundFileError, RuntimeError, ValueError, OverflowError, MemoryError, AssertionError) as error:
        if isinstance(error, BlobProblem):
            raise
        reason = getattr(error, "error_string", error)  # without the address of the file object
        raise BlobProblem(f"the {_NAMES[kind]} recording cannot be decoded: {reason}") from error
    length = len(samples)
    if field.samples is None:
        return (samples[:, 0] if field.channels == 1 else samples), length
    if out is None:
        out = np.empty([n or 0 for n in field.shape], np.float32)
    if not np.may_share_memory(samples, out):
        out[..., :length] = samples[:, 0] if field.channels == 1 else samples.T
    out[..., length:] = 0
    return out, length


class _MemoryFile:
    """A file in the system's memory, which holds one recording at a time. Used by one thread of one process.

    libsndfile reads a file of Python in pieces of 8 KiB by callbacks, each of which waits for the GIL. In two threads,
    decoding recordings of 5 s from this file takes 0.8 of that time.

    Raises:
        OSError: the system has no such files, or allows no more open files.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._descriptor = os.memfd_create("recording")

    def descriptor_of(self, data: bytes | memoryview) -> int:
        """Replace the content, and return the file descriptor, at the beginning; it stays open.

        Raises:
            OSError: there is no memory, or the system limits the size of files.
        """
        if os.pwrite(self._descriptor, data, 0) < len(data):
            raise OSError(f"a file in memory cannot hold {len(data)} bytes")
        os.ftruncate(self._descriptor, len(data))
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return self._descriptor

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class _OfThread(threading.local):
    file: _MemoryFile | None = None


_of_thread = _OfThread()


def _file_of(data: bytes | memoryview) -> int | io.BytesIO:
    """Return a file descriptor or a file of Python from which to read the bytes."""
    if len(data) <= _MOST_COPIED and hasattr(os, "memfd_create"):
        with suppress(OSError):
            file = _of_thread.file
            if file is None or file.pid != os.getpid():  # a forked process shares the position with its parent
                file = _of_thread.file = _MemoryFile()
            return file.descriptor_of(data)
    return io.BytesIO(data)


_NAMES = {"wav": "WAV", "flac": "FLAC", "mp3": "MP3", "ogg": "Ogg", "aac": "AAC"}
_EXPECTED = "a WAV, FLAC, MP3, Ogg, M4A or AAC recording"


def _kind(data: bytes | memoryview) -> str:
    """Return the format by the first bytes; libsndfile would open 20 others, which are not tested with damage here."""
    first = bytes(data[:12])
    if first[:4] in (b"RIFF", b"RF64") and first[8:] == b"WAVE":
        return "wav"
    if first[:4] == b"fLaC":
        return "flac"
    if first[:4] == b"OggS":
        return "ogg"
    # MP3 begins with ID3, or with the 11 set bits of a frame with a layer.
    if first[:3] == b"ID3" or (len(first) > 2 and first[0] == 0xFF and first[1] >> 5 == 7 and first[1] & 6):
        return "mp3"
    # AAC begins as M4A, or with the 12 set bits of a frame of ADTS, whose layer is 0.
    if first[4:8] == b"ftyp" or (len(first) > 2 and first[0] == 0xFF and first[1] & 0xF6 == 0xF0):
        return "aac"
    if not first:
        raise BlobProblem(f"the value is empty; expected {_EXPECTED}")
    raise BlobProblem(f"the bytes begin with {first[:8]!r}; expected {_EXPECTED}")


def _refuse_truncated_wav(data: bytes | memoryview) -> None:
    """Refuse a WAV whose samples end before the length in its header, which libsndfile reads as a shorter one."""
    is_rf64 = bytes(data[:4]) == b"RF64"
    file_bytes = struct.unpack_from("<I", data, 4)[0]
    begin, rf64_size = 12, 0
    while begin + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, begin)
        begin += 8
        if name == b"ds64" and is_rf64 and begin + 16 <= len(data):
            file_bytes, rf64_size = struct.unpack_from("<QQ", data, begin)
        if name == b"data":
            if is_rf64 and size == 0xFFFFFFFF:
                size = rf64_size
            is_known = is_rf64 or size < _LEAST_UNKNOWN_SIZE
            if is_known and begin + size > len(data):
                raise BlobProblem(f"the WAV recording is truncated: {len(data) - begin} of its {size} bytes are there")
            if size == 0 and file_bytes + 8 < len(data):
                raise BlobProblem("the header of the WAV recording states no length: its writer did not finish it")
            return
        begin += size + (size & 1)
    raise BlobProblem("the WAV recording has no samples: its chunk 'data' is missing")


def _refuse_damaged_ogg(data: bytes | memoryview) -> None:
    """Check the checksum of each page: libsndfile conceals damaged pages, and leaks memory if it is the first."""
    data = bytes(data)
    begin = 0
    while begin < len(data):
        if len(data) - begin < _OGG_HEADER.size:
            break
        magic, *_, stored, segments = _OGG_HEADER.unpack_from(data, begin)
        content = begin + _OGG_HEADER.size + segments
        end = content + sum(data[begin + _OGG_HEADER.size : content])
        if magic != b"OggS" or end > len(data):
            break
        if ogg_checksum(data[begin : begin + 22] + bytes(4) + data[begin + 26 : end]) != stored:
            raise BlobProblem(f"the Ogg recording is damaged: the page at byte {begin} does not have its checksum")
        begin = end
    if data.find(b"OggS", begin) >= 0:  # other bytes may follow the last page
        raise BlobProblem(f"the Ogg recording is damaged or truncated at byte {begin}")


def ogg_checksum(page: bytes) -> int:
    """Return the CRC of an Ogg page whose field for it is 0: zlib's polynomial, from the highest bit, from 0 on."""
    reversed_checksum = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(reversed_checksum.to_bytes(4, "little").translate(_REVERSED), "big")


class _PlainWav:
    """A WAV of 16-bit PCM, with the part of the interface of `soundfile.SoundFile` that is used here.

    The samples are the same; libsndfile takes five to ten times as long.
    """

    def __init__(self, data: bytes | memoryview, channels: int, rate: int, begin: int, nbytes: int) -> None:
        self.channels = channels
        self.samplerate = rate
        self.frames = nbytes // (2 * channels)
        values = np.frombuffer(data, "<i2", self.frames * channels, begin)
        self._samples = values.reshape(self.frames, channels)
        self._position = 0

    @classmethod
    def opened(cls, data: bytes | memoryview) -> Self | None:
        """Return the recording, or None if libsndfile has to open it."""
        begin, form = 12, None
        while begin + 8 <= len(data):
            name, size = struct.unpack_from("<4sI", data, begin)
            begin += 8
            if name == b"fmt " and size in (16, 18) and begin + size <= len(data) and form is None:
                form = struct.unpack_from("<HHIIHH", data, begin)
            elif name == b"data":
                if form is None or not 0 < size <= len(data) - begin or bytes(data[:4]) != b"RIFF":
                    return None
                tag, channels, rate, bytes_per_s, align, bits = form
                is_plain = tag == _PCM and bits == 16 and 1 <= channels <= _MOST_CHANNELS and align == 2 * channels
                if not is_plain or rate < 1 or bytes_per_s != rate * align:
                    return None
                return cls(data, channels, rate, begin, size)
            begin += size + (size & 1)
        return None

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, frame: int) -> None:
        """Go to a sample."""
        self._position = frame

    def read(self, frames: int = 0, *, out: Samples | None = None, **_: Any) -> Samples:
        """Return the next `frames` samples, or as many as `out` takes, ``[samples, channels]``, from -1 to 1."""
        part = self._samples[self._position : self._position + (frames if out is None else len(out))]
        self._position += len(part)
        into = None if out is None else out[: len(part)]
        samples: Samples = np.multiply(part, np.float32(2**-15), out=into, dtype=np.float32)
        return samples


def _samples(file: Any, kind: str, field: Audio, word: int, soxr: Any, out: Samples | None = None) -> Samples:
    """Return the field's part of an open recording at the field's rate, float32 ``[samples, field.channels]``.

    The samples are in `out`, if it is given and `file` can write them there.
    """
    stored, frames = int(file.samplerate), int(file.frames)
    if file.channels != field.channels and 1 not in (file.channels, field.channels):
        raise BlobProblem(
            f"the recording has {file.channels} channels, not {field.channels}; Audio(channels=1) delivers their mean"
        )
    if frames == _UNKNOWN_FRAMES:
        raise BlobProblem(f"the header of the {_NAMES[kind]} recording states no length, as if written to a pipe")
    if stored < 1 or not 0 <= frames * max(1.0, field.rate / stored) * file.channels <= _MOST_SAMPLES:
        raise BlobProblem(f"the recording claims {frames} samples at {stored} Hz, which is too long for a row")
    common = math.gcd(stored, field.rate)
    block_in, block_out = stored // common, field.rate // common  # blocks of the same duration
    total = -(-frames * block_out // block_in)
    wanted = field.samples
    if wanted is None or wanted >= total:
        begin, count = 0, total
    else:
        begin, count = (word * (total - wanted + 1) >> 64 if field.at == "random" else 0), wanted
    margin = -(-_MARGIN * max(stored, field.rate) // field.rate // block_in) if stored != field.rate else 0
    first_block = max(begin // block_out - margin, 0)
    end_block = -(-(begin + count) // block_out) + margin
    is_direct = out is not None and stored == field.rate and file.channels == field.channels == 1
    read = _read(file, kind, first_block * block_in, min(end_block * block_in, frames), out if is_direct else None)
    mixed = _mixed(read, field.channels)
    if stored != field.rate and len(mixed):
        mixed = soxr.resample(mixed, stored, field.rate)
    skipped = begin - first_block * block_out
    part: Samples = mixed[skipped : skipped + count]
    return part


def _read(file: Any, kind: str, begin: int, end: int, out: Samples | None) -> Samples:
    """Return the samples ``begin`` to ``end`` as stored, ``[samples, channels]``; in `out` if no others are read."""
    origin = begin if kind in ("wav", "flac") and file.seekable() else 0  # not in WAV of GSM or G.721
    if origin:
        file.seek(origin)
    read: Samples
    if out is not None and origin == begin:
        read = file.read(out=out[: end - begin, None])
    else:
        read = file.read(end - origin, dtype="float32", always_2d=True)
    missing = end - origin - len(read)
    if missing > (_MP3_EXCESS if kind == "mp3" else 0):
        raise BlobProblem(
            f"the {_NAMES[kind]} recording is damaged or truncated: it ends {missing} samples before its length, "
            f"{file.frames}"
        )
    return read[begin - origin :]


def _mixed(samples: Samples, channels: int) -> Samples:
    if samples.shape[1] == channels:
        return samples
    mixed: Samples = samples.mean(1, keepdims=True, dtype=np.float32) if channels == 1 else samples.repeat(channels, 1)
    return mixed
