"""Decoders of videos that stay open after their use, for the next frames of the same video."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from typing import Any, Protocol

from parquet_loader.decode.media.byte_ranges import RangeFile
from parquet_loader.decode.media.video import VideoDecoder

# Each holds a file descriptor, of which processes often have 1024.
_MOST_IDLE = 64


class VideoFile(Protocol):
    """An open file that holds one video.

    Attributes:
        ranges: The file, for decoders.
    """

    ranges: RangeFile

    @property
    def identity(self) -> Hashable:
        """Equal for files with the same content; None if that is not known."""

    def close(self) -> None:
        """Close the file."""


class VideoDecoderCache:
    """Open decoders, at most 64 and `most_bytes`; those used least recently are closed. Any thread may use it.

    Measured, opening a decoder takes a fifth to a quarter of the time of reading one frame of a film. A decoder that is
    in use is not in the table, so no two threads share one: threads that read the same video at once have one each.

    The lock guards the table only. A forked child keeps the decoders, whose files have no common position, and makes
    its own lock. A pickled cache arrives empty.

    Args:
        most_bytes: The most bytes of all decoders that are not in use, as `VideoDecoder.held_bytes` estimates them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        # By the file's identity; the file that was used last is the last one.
        self._idle: dict[Hashable, list[tuple[VideoDecoder, VideoFile]]] = {}
        # Not at exit, when other threads may still use the cache.
        weakref.finalize(self, _close_all, self._idle).atexit = False
        self._renew_lock()

    def _renew_lock(self) -> None:
        self._lock = os.getpid(), threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without decoders."""
        return VideoDecoderCache, (self._most_bytes,)

    def _locked(self) -> threading.Lock:
        if self._lock[0] != os.getpid():  # a thread of the parent may have held the lock during the fork
            self._renew_lock()
        return self._lock[1]

    @contextmanager
    def decoder(self, file: VideoFile) -> Generator[VideoDecoder]:
        """Lend a decoder of a file: an idle one, or a new one. The file is closed at the latest with the cache.

        Raises:
            BlobProblem: The file is not a video, or is damaged.
        """
        found = self._take(file.identity)
        if found is not None:
            file.close()
            decoder, file = found
        else:
            try:
                decoder = VideoDecoder(file.ranges)
            except BaseException:
                file.close()
                raise
        is_kept = False
        try:
            yield decoder
            decoder.rest()
            is_kept = file.identity is not None and decoder.can_be_reused
        finally:
            if not is_kept:
                _close(decoder, file)
        if is_kept:
            self._keep(decoder, file)

    def _take(self, identity: Hashable) -> tuple[VideoDecoder, VideoFile] | None:
        with self._locked():
            of_file = self._idle.pop(identity, None)
            if of_file is None:
                return None
            found = of_file.pop()
            if of_file:
                self._idle[identity] = of_file
            return found

    def _keep(self, decoder: VideoDecoder, file: VideoFile) -> None:
        dropped: list[tuple[VideoDecoder, VideoFile]] = []
        with self._locked():
            self._idle[file.identity] = [*self._idle.pop(file.identity, ()), (decoder, file)]
            held = [kept.held_bytes for of_file in self._idle.values() for kept, _ in of_file]
            while sum(held[len(dropped) :]) > self._most_bytes or len(held) - len(dropped) > _MOST_IDLE:
                oldest = next(iter(self._idle))
                dropped.append(self._idle[oldest].pop(0))
                if not self._idle[oldest]:
                    del self._idle[oldest]
        for gone in dropped:
            _close(*gone)

    def close(self) -> None:
        """Close the decoders that are not in use; idempotent."""
        with self._locked():
            dropped = self._idle.copy()
            self._idle.clear()
        _close_all(dropped)


def _close_all(idle: dict[Hashable, list[tuple[VideoDecoder, VideoFile]]]) -> None:
    for of_file in idle.values():
        for decoder, file in of_file:
            _close(decoder, file)


def _close(decoder: VideoDecoder, file: VideoFile) -> None:
    try:
        decoder.close()
    finally:
        file.close()
