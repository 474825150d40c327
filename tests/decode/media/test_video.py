"""Frames of videos at given times, and clips."""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import ConfigurationError, Video
from parquet_loader.decode import BlobProblem
from parquet_loader.decode.media import RangeFile, VideoDecoder, clip_positions, decode_clips
from tests.support.media import CONTAINERS, cut, decode_frames, numbers_of, video

av = pytest.importorskip("av", reason="the extra `video` is not installed")

SIZE = (48, 272)


def ranges(data: bytes) -> RangeFile:
    return RangeFile(lambda begin, count: data[begin : begin + count], len(data))


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_frame_at_each_time_is_the_one_shown_then(container: str) -> None:
    data = video(40, **CONTAINERS[container])
    wanted = [0, 39, 12, 11, 13, 24, 25, 5, 38]
    for source in (data, ranges(data)):
        frames, times = decode_frames(source, [number / 30 for number in wanted])
        assert frames.shape == (len(wanted), *SIZE, 3)
        assert numbers_of(frames) == wanted
        assert np.abs(times - np.array(wanted) / 30).max() < 1.1e-3


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_number_of_frames_is_known(container: str) -> None:
    data = video(40, **CONTAINERS[container])
    for source in (data, ranges(data)):
        with VideoDecoder(source) as decoder:
            assert abs(decoder.count - 40) <= (0 if "mp4" in container else 1)


@pytest.mark.parametrize("container", ["mp4", "mp4 without B-frames", "mp4 with open groups"])
@pytest.mark.parametrize("hidden", [12, 15, 23])
def test_a_film_cut_without_encoding_has_the_frames_that_are_shown(container: str, hidden: int) -> None:
    data = cut(video(60, **CONTAINERS[container]), hidden)
    for source in (data, ranges(data)):
        frames, times = decode_clips(source, Video(60 - hidden, SIZE), 0)
        assert numbers_of(frames) == list(range(hidden, 60))
        assert np.abs(times - np.arange(60 - hidden) / 30).max() < 1.1e-3


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_frame_is_found_alone(container: str) -> None:
    data = video(40, **CONTAINERS[container])
    assert [numbers_of(decode_frames(ranges(data), [number / 30])[0])[0] for number in range(40)] == list(range(40))


def test_clips_hold_the_frames_of_their_positions() -> None:
    data = video(100)
    field = Video(4, SIZE, step=3, clips=3)
    words = [0, 2**63, 2**64 - 1, 12345]
    starts = set()
    for word in words:
        frames, times = decode_clips(data, field, word)
        expected = clip_positions(100, field, word)
        assert frames.shape == (3, 4, *SIZE, 3)
        assert [numbers_of(clip) for clip in frames] == expected.tolist()
        assert np.abs(times - expected / 30).max() < 1e-4
        starts |= set(expected[:, 0].tolist())
    assert len(starts) > 8


def test_one_clip_has_no_axis_of_its_own_and_is_written_to_the_given_memory() -> None:
    out = np.zeros((5, *SIZE, 3), np.uint8)
    frames, times = decode_clips(video(30), Video(5, SIZE, at="regular"), 0, out)
    assert frames is out
    assert numbers_of(out) == [12, 13, 14, 15, 16]
    assert times.shape == (5,)


@pytest.mark.parametrize("format_", ["mp4", "matroska"])
def test_the_nearest_frame_of_a_video_with_a_long_gap_is_found(format_: str) -> None:
    times_ms = [40 * number + (60_000 if number >= 15 else 0) for number in range(30)]
    data = video(30, format_=format_, key_every=10, times_ms=times_ms)
    for source in (data, ranges(data)):
        frames, times = decode_frames(source, [time / 1000 for time in times_ms])
        assert numbers_of(frames) == list(range(30))
        assert np.abs(times * 1000 - times_ms).max() < 1.1


@pytest.mark.parametrize("container", ["mp4", "mkv", "webm"])
def test_a_video_whose_first_frame_is_late_has_no_more_frames(container: str) -> None:
    data = video(60, times_ms=[5000 + round(number * 1000 / 30) for number in range(60)], **CONTAINERS[container])
    pixels, times = decode_clips(data, Video(2, SIZE, clips=5, at="regular"), 0)
    assert numbers_of(pixels.reshape(-1, *SIZE, 3)) == [5, 6, 17, 18, 29, 30, 40, 41, 52, 53]
    assert np.abs(times.ravel()[[0, -1]] - [5 / 30, 53 / 30]).max() < 1.1e-3


@pytest.mark.parametrize("arguments", [{"sound_first": True}, {"times_ms": [5000, 5033]}])
def test_a_matroska_file_of_few_frames_has_no_more_frames(arguments: dict[str, Any]) -> None:
    data = video(2, format_="matroska", **arguments)
    for source in (data, ranges(data)):
        with VideoDecoder(source) as decoder:
            assert decoder.count == 2
            frames, times = decoder.frames([0, 1 / 30], SIZE)
        assert numbers_of(frames) == [0, 1]
        assert np.abs(times - [0, 1 / 30]).max() < 1.1e-3


def test_a_short_video_repeats_its_last_frame() -> None:
    frames, times = decode_clips(video(3), Video(6, SIZE, step=1), 77)
    assert numbers_of(frames) == [0, 1, 2, 2, 2, 2]
    assert np.allclose(times * 30, [0, 1, 2, 2, 2, 2])


def test_frames_are_scaled_to_the_size() -> None:
    data = video(8, noise=40)
    small, _ = decode_frames(data, [0.1], (24, 136))
    whole, _ = decode_frames(data, [0.1])
    averaged = whole.reshape(1, 24, 2, 136, 2, 3).mean((2, 4))
    assert small.shape == (1, 24, 136, 3)
    assert np.abs(small - averaged).mean() < 8


@given(
    count=st.integers(1, 500),
    frames=st.integers(1, 20),
    step=st.integers(1, 20),
    clips=st.one_of(st.none(), st.integers(1, 6)),
    at=st.sampled_from(["random", "regular"]),
    word=st.integers(0, 2**64 - 1),
)
def test_positions_are_a_pure_function_within_the_video(
    count: int, frames: int, step: int, clips: int | None, at: Any, word: int
) -> None:
    field = Video(frames, (8, 8), step=step, clips=clips, at=at)
    found = clip_positions(count, field, word)
    assert (found == clip_positions(count, field, word)).all()
    assert found.shape == (clips or 1, frames)
    assert found.min() >= 0
    assert found.max() < count
    span = (frames - 1) * step + 1
    if count >= span:
        assert (np.diff(found, axis=1) == step).all()
    else:
        assert (found == np.minimum(np.arange(frames) * step, count - 1)).all()
    if at == "regular":
        assert (np.diff(found[:, 0]) >= 0).all()


def test_random_positions_are_uniform() -> None:
    field = Video(4, (8, 8))
    starts = [int(clip_positions(13, field, word * 0x9E3779B97F4A7C15 % 2**64)[0, 0]) for word in range(10_000)]
    counts = np.bincount(starts, minlength=10)
    assert len(counts) == 10
    assert np.abs(counts - 1000).max() < 160  # 5 standard deviations


@pytest.mark.parametrize("first", [pytest.param(False, marks=pytest.mark.slow), True])
def test_only_the_index_and_the_groups_of_the_clip_are_read(first: bool) -> None:
    data = video(
        900, key_every=30, noise=50, size=(144, 272), container_options={"movflags": "faststart"} if first else None
    )
    with av.open(io.BytesIO(data)) as container:
        packets = [(p.pos, p.size, p.is_keyframe) for p in container.demux(video=0) if p.size]
    keys = [number for number, packet in enumerate(packets) if packet[2]]
    assert len(keys) == 30
    field = Video(8, (144, 272), step=2)
    for word in (2**62, 2**63, 3 * 2**62):
        file = ranges(data)
        _, times = decode_clips(file, field, word)
        begin, end = round(times[0] * 30), round(times[-1] * 30)
        groups = slice(max(k for k in keys if k <= begin), min([k for k in keys if k > end], default=len(packets)))
        group_bytes = sum(size for _, size, _ in packets[groups])
        assert file.bytes_read <= 1.3 * group_bytes
        assert file.bytes_read < len(data) / 8


def test_ranges_read_as_the_bytes_do() -> None:
    data = np.random.default_rng(0).bytes(200_000)
    file, plain = ranges(data), io.BytesIO(data)
    rng = np.random.default_rng(1)
    for _ in range(300):
        offset, count = int(rng.integers(0, 210_000)), int(rng.integers(0, 50_000))
        if count % 5 == 0:
            file.load(offset, offset + count)
        assert file.seek(offset) == plain.seek(offset)
        found = file.read(count)
        assert found == data[offset : offset + len(found)]
        assert bool(found) == bool(plain.read(count))
        assert file.tell() == offset + len(found)


def test_playlists_that_name_files_are_not_opened() -> None:
    for text in (b"ffconcat version 1.0\nfile 'a.mp4'\n", b"#EXTM3U\n#EXTINF:1,\nfile:///a.mp4\n#EXT-X-ENDLIST\n"):
        with pytest.raises(BlobProblem, match="cannot be opened"):
            decode_frames(text, [0.0])


GOOD = video(40, noise=20)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the value is empty"),
        (b"not a video at all", "cannot be opened"),
        (GOOD[: len(GOOD) // 2], "cannot be opened"),
        (
            video(40, noise=20, container_options={"movflags": "faststart"})[:30_000],
            "damaged or truncated|cannot be decoded",
        ),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(BlobProblem, match=message):
        decode_frames(data, [39 / 30])


def test_a_truncated_matroska_file_is_an_error() -> None:
    whole = video(60, format_="matroska", noise=20)
    with pytest.raises(BlobProblem, match=r"truncated: its last frame is at .* 1.967 s was expected"):
        decode_frames(whole[: len(whole) // 2], [59 / 30])


def test_release_19_of_pyav_has_no_argument_for_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    data, open_file = video(12), av.open

    def open_as_19(file: Any, *, container_options: dict[str, str]) -> Any:
        return open_file(file, container_options=container_options)

    monkeypatch.setattr(av, "__version__", "19.0.2")
    monkeypatch.setattr(av, "open", open_as_19)
    with VideoDecoder(data) as decoder:
        assert decoder.count == 12


def test_damage_inside_a_picture_is_an_error() -> None:
    data = bytearray(GOOD)
    with av.open(io.BytesIO(GOOD)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    position, size = packets[13]
    data[position + 60 : position + size - 10] = bytes(size - 70)
    with pytest.raises(BlobProblem, match=r"damaged|cannot be decoded"):
        decode_frames(bytes(data), [number / 30 for number in range(12, 24)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"frames": 0, "size": (8, 8)}, "frames=0"),
        ({"frames": 1, "size": 8}, "size=8"),
        ({"frames": 1, "size": (8, 8, 3)}, "expected .height, width."),
        ({"frames": 1, "size": (8, 0)}, "size=0"),
        ({"frames": 1, "size": (8, 8), "step": 0}, "step=0"),
        ({"frames": 1, "size": (8, 8), "clips": 0}, "clips=0"),
        ({"frames": 1, "size": (8, 8), "at": "start"}, "at='start'"),
        ({"frames": 2**20, "size": (1024, 1024)}, "over the limit"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Video(**arguments)


def test_rotation_is_applied() -> None:
    upright = video(4, size=(48, 272))
    out = io.BytesIO()
    with av.open(io.BytesIO(upright)) as source, av.open(out, "w", format="mp4") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        if not hasattr(stream, "set_display_rotation"):
            pytest.skip("this PyAV writes no rotation")
        stream.set_display_rotation(90)
        for packet in itertools.takewhile(lambda packet: packet.size, source.demux(video=0)):
            packet.stream = stream
            target.mux(packet)
    frames, _ = decode_frames(out.getvalue(), [2 / 30])
    assert frames.shape == (1, 272, 48, 3)
    assert numbers_of(np.rot90(frames, -1, (1, 2))) == [2]


@pytest.mark.parametrize(
    ("matrix", "displayed"),
    [
        ((-1, 0, 0, 1), lambda shown: shown[:, :, ::-1]),
        ((1, 0, 0, -1), lambda shown: shown[:, ::-1]),
        ((0, 1, 1, 0), lambda shown: shown.swapaxes(1, 2)),
        ((0, -1, -1, 0), lambda shown: shown[:, ::-1, ::-1].swapaxes(1, 2)),
    ],
)
def test_mirrored_videos_are_mirrored(matrix: tuple[int, ...], displayed: Callable[[Any], Any]) -> None:
    upright = video(4, size=(48, 272), noise=30)
    shown, _ = decode_frames(upright, [2 / 30])
    at = upright.index(b"tkhd") + 44  # the matrix of its header
    a, b, c, d = (number << 16 for number in matrix)
    mirrored = upright[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + upright[at + 36 :]
    frames, _ = decode_frames(mirrored, [2 / 30])
    np.testing.assert_array_equal(frames, displayed(shown))
