"""Decoders of videos that stay open after their use."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from parquet_loader import Video
from parquet_loader.decode import BlobProblem
from parquet_loader.decode.media import RangeFile, VideoDecoder, VideoDecoderCache
from tests.support.media import CONTAINERS, decode_frames, numbers_of, video

pytest.importorskip("av", reason="the extra `video` is not installed")

LIMIT = 2**26


class File:
    """A video in memory that counts how often it is read and closed."""

    def __init__(self, data: bytes, identity: Hashable = 1) -> None:
        self.data, self.identity = data, identity
        self.reads: list[tuple[int, int]] = []
        self.closed = 0
        self.ranges = RangeFile(self._read, len(data))

    def _read(self, begin: int, count: int) -> bytes:
        assert not self.closed
        self.reads.append((begin, count))
        return self.data[begin : begin + count]

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("container", CONTAINERS)
def test_frames_do_not_depend_on_what_was_read_before(container: str) -> None:
    data = video(40, **CONTAINERS[container])
    cache, rng = VideoDecoderCache(LIMIT), np.random.default_rng(3)
    for _ in range(30):
        times = rng.choice(40, rng.integers(1, 6)) / 30
        with cache.decoder(File(data)) as decoder:
            pixels, found = decoder.frames(times.tolist(), (24, 136))
        alone, expected = decode_frames(
            RangeFile(lambda at, n: data[at : at + n], len(data)), times.tolist(), (24, 136)
        )
        assert np.array_equal(pixels, alone)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("container", ["mp4", "fragmented mp4", "mkv"])
def test_only_a_file_with_a_complete_index_stays_open(container: str) -> None:
    data = video(40, **CONTAINERS[container])
    cache = VideoDecoderCache(LIMIT)
    first, second = File(data), File(data)
    for file in (first, second):
        with cache.decoder(file) as decoder:
            assert numbers_of(decoder.frames([0.5])[0]) == [15]
    stays = container == "mp4"
    assert (first.closed, second.closed) == ((0, 1) if stays else (1, 1))
    assert bool(second.reads) != stays


def test_clips_are_those_of_a_new_decoder() -> None:
    data, field = video(60), Video(4, (48, 272), clips=3)
    cache = VideoDecoderCache(LIMIT)
    for word in (5, 2**63 + 11, 5):
        with cache.decoder(File(data)) as decoder, VideoDecoder(data) as alone:
            pixels, times = decoder.clips(field, word)
            expected, expected_times = alone.clips(field, word)
            assert np.array_equal(pixels, expected)
            assert np.array_equal(times, expected_times)


def test_the_least_recently_used_is_closed_beyond_the_limit() -> None:
    data = video(20)
    with VideoDecoder(File(data).ranges) as decoder:
        limit = 2 * decoder.held_bytes
    cache = VideoDecoderCache(limit)
    files = [File(data, n) for n in range(3)]

    def use(file: File) -> None:
        with cache.decoder(file) as decoder:
            decoder.frames([0.1])

    use(files[0])
    use(files[1])
    use(File(data, 0))
    use(files[2])
    assert [file.closed for file in files] == [0, 1, 0]
    use(File(data, 2))
    assert [file.closed for file in files] == [0, 1, 0]
    cache.close()
    cache.close()
    assert [file.closed for file in files] == [1, 1, 1]


def test_few_file_descriptors_stay_open() -> None:
    data, cache = video(2), VideoDecoderCache(2**40)
    files = [File(data, n) for n in range(66)]
    for file in files:
        with cache.decoder(file) as decoder:
            decoder.frames([0.0])
    assert [file.closed for file in files] == [1, 1] + [0] * 64


def test_the_estimated_memory_counts_packets_and_bytes_of_pixels() -> None:
    def held(**options: Any) -> int:
        with VideoDecoder(File(video(20, **options)).ranges) as decoder:
            nbytes: int = decoder.held_bytes
            return nbytes

    frame = 48 * 272 * 3 // 2
    assert held() == 2**20 + 48 * 20 + 12 * frame
    packets_of_sound = 3 * 16000 // 1024
    assert held(sound_first=True) >= held() + 48 * packets_of_sound


def test_what_is_not_in_use_is_closed_with_the_cache() -> None:
    file = File(video(20))
    cache = VideoDecoderCache(LIMIT)
    with cache.decoder(file) as decoder:
        decoder.frames([0.1])
    del cache, decoder
    gc.collect()
    assert file.closed == 1


def test_a_video_that_is_read_twice_at_once_has_two_decoders() -> None:
    cache, data = VideoDecoderCache(LIMIT), video(40)
    first, second, third = File(data), File(data), File(data)
    with cache.decoder(first) as one, cache.decoder(second) as other:
        assert one is not other
        assert numbers_of(one.frames([1.0])[0]) == [30]
        assert numbers_of(other.frames([0.2])[0]) == [6]
    with cache.decoder(third) as one, cache.decoder(File(data)) as other:
        assert one is not other
    assert not third.reads
    cache.close()
    assert (first.closed, second.closed, third.closed) == (1, 1, 1)


@pytest.mark.parametrize("damage", ["opened", "decoded"])
def test_a_damaged_video_is_closed_and_not_kept(damage: str) -> None:
    data = video(40)
    file = File(data[:100] if damage == "opened" else data)
    cache = VideoDecoderCache(LIMIT)

    def use() -> None:
        with cache.decoder(file) as decoder:
            decoder.frames([0.1])
            raise BlobProblem("a damaged frame")

    with pytest.raises(BlobProblem, match="cannot be opened" if damage == "opened" else "a damaged frame"):
        use()
    assert file.closed == 1
    again = File(data)
    with cache.decoder(again) as decoder:
        assert numbers_of(decoder.frames([0.1])[0]) == [3]
    assert again.reads


def test_files_of_unknown_content_are_opened_each_time() -> None:
    cache, data = VideoDecoderCache(LIMIT), video(20)
    for _ in range(2):
        file = File(data, None)
        with cache.decoder(file) as decoder:
            decoder.frames([0.1])
        assert file.closed == 1


def test_a_pickled_cache_is_empty() -> None:
    cache, data = VideoDecoderCache(LIMIT), video(20)
    with cache.decoder(File(data)) as decoder:
        decoder.frames([0.1])
    file = File(data)
    with pickle.loads(pickle.dumps(cache)).decoder(file) as decoder:
        assert numbers_of(decoder.frames([0.1])[0]) == [3]
    assert file.reads


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system does not fork")
def test_a_forked_process_goes_on_with_the_open_decoders() -> None:
    cache, data = VideoDecoderCache(LIMIT), video(40)
    with cache.decoder(File(data)) as decoder:
        decoder.frames([0.1])
    context = multiprocessing.get_context("fork")
    found: Any = context.SimpleQueue()

    def child() -> None:
        file = File(data)
        with cache.decoder(file) as decoder:
            found.put((numbers_of(decoder.frames([1.0])[0]), len(file.reads)))

    with cache._locked():  # as by another thread
        process = context.Process(target=child)
        process.start()
    assert found.get() == ([30], 0)
    process.join()
    assert process.exitcode == 0
    with cache.decoder(File(data)) as decoder:
        assert numbers_of(decoder.frames([0.4])[0]) == [12]
