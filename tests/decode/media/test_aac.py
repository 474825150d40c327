"""M4A and AAC are decoded to samples like other recordings."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from parquet_loader import Audio, BatchedDataLoader, Bytes, MissingPackageError, OutputOptions, Schema, write_dataset
from parquet_loader.decode import BlobProblem
from parquet_loader.decode.media import decode_audio, video_module
from tests.support.media import aac, tones, video

pytest.importorskip("av", reason="the extra `video` is not installed")
pytest.importorskip("soundfile", reason="the extra `audio` is not installed")
soxr = pytest.importorskip("soxr", reason="the extra `audio` is not installed")

RATE = 16000


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("codec", "error"), [("aac", 0.02), ("alac", 1e-4)])
def test_an_m4a_gives_the_samples_that_were_written_and_no_more(channels: int, codec: str, error: float) -> None:
    written = tones(0.7, RATE, channels)
    found, length = decode_audio(aac(written, RATE, codec=codec), Audio(RATE, channels=channels), 0)
    assert length == len(written)
    difference = np.abs(found.reshape(written.shape) - written)
    assert difference[:-1024].mean() < error


def test_aac_without_a_container_has_the_delay_of_its_encoder() -> None:
    written = tones(0.7, RATE)
    found, length = decode_audio(aac(written, RATE, "adts"), Audio(RATE), 0)
    assert length % 1024 == 0
    assert 0 < length - len(written) < 3 * 1024
    assert np.abs(found[1024 : 1024 + 10_000] - written[:10_000, 0]).mean() < 0.02


@pytest.mark.parametrize("rate", [16000, 22050])
def test_a_cut_is_a_part_of_the_whole_recording(rate: int) -> None:
    data = aac(tones(1.5, RATE), RATE)
    whole, total = decode_audio(data, Audio(rate), 0)
    count = rate // 4
    for word in (0, 2**62, 2**64 - 1):
        begin = word * (total - count + 1) >> 64
        cut, length = decode_audio(data, Audio(rate, seconds=0.25, at="random"), word)
        assert length == count
        np.testing.assert_allclose(cut, whole[begin : begin + count], atol=1e-5)


def _with_duration(data: bytes, duration: int) -> bytes:
    """Return an M4A whose track has a header of 64 bits with that duration; its samples come before its headers."""
    at = data.rindex(b"mdhd")
    (size,) = struct.unpack_from(">I", data, at - 4)
    rate_and_rest = data[at + 16 : at - 4 + size]
    header = b"\1\0\0\0" + bytes(16) + rate_and_rest[:4] + struct.pack(">q", duration) + rate_and_rest[8:]
    made = bytearray(data[: at + 4] + header + data[at - 4 + size :])
    for name in (b"mdhd", b"mdia", b"trak", b"moov"):
        box = made.rindex(name, 0, at + 4) - 4
        struct.pack_into(">I", made, box, struct.unpack_from(">I", made, box)[0] + len(made) - len(data))
    return bytes(made)


@pytest.mark.parametrize("duration", [-1, -100, -5000])
def test_a_negative_duration_takes_no_samples_away(duration: int) -> None:
    data = aac(tones(0.4, RATE), RATE)
    assert decode_audio(_with_duration(data, 6000), Audio(RATE), 0)[1] == 6000
    _, length = decode_audio(_with_duration(data, duration), Audio(RATE), 0)
    assert length >= 0.4 * RATE


def test_damage_is_named_or_decoded() -> None:
    data = aac(tones(0.5, RATE), RATE)
    with pytest.raises(BlobProblem, match="AAC recording"):
        decode_audio(data[: len(data) // 2], Audio(RATE), 0)
    with pytest.raises(BlobProblem, match="cannot be decoded"):
        decode_audio(b"\0\0\0\x1cftypM4A " + bytes(64), Audio(RATE), 0)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(120):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 3).tolist():
            damaged[at] = int(rng.integers(256))
        try:
            samples, length = decode_audio(bytes(damaged), Audio(RATE, seconds=0.5), 0)
            assert length <= len(samples) == 8000
        except BlobProblem:
            refused += 1
    assert refused


def test_a_video_without_sound_is_refused() -> None:
    with pytest.raises(BlobProblem, match="no track of sound"):
        decode_audio(video(4), Audio(RATE), 0)


def test_without_pyav_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = aac(tones(0.1, RATE), RATE)
    monkeypatch.setitem(sys.modules, "av", None)
    video_module.cache_clear()
    try:
        with pytest.raises(MissingPackageError, match=r"AAC is decoded by PyAV.*\[video\]"):
            decode_audio(data, Audio(RATE), 0)
    finally:
        video_module.cache_clear()


def test_a_loader_delivers_them(tmp_path: Path) -> None:
    rows = [aac(tones(0.2 + 0.1 * n, RATE, seed=n), RATE) for n in range(3)]
    write_dataset([{"sound": row} for row in rows], tmp_path / "data", Schema({"sound": Bytes()}))
    schema = Schema({"sound": Audio(RATE, seconds=0.5)})
    numpy_arrays = OutputOptions(format="numpy")
    with BatchedDataLoader(tmp_path / "data", 3, schema=schema, output_options=numpy_arrays) as loader:
        (batch,) = loader
    assert batch["sound_length"].tolist() == [3200, 4800, 6400]
    assert batch["sound"].shape == (3, 8000)
