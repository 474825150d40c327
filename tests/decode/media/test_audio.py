"""Recordings are decoded to samples of one rate and one length."""

from __future__ import annotations

import io
import os
import signal
import struct
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import Audio, ConfigurationError
from parquet_loader.decode import BlobProblem
from parquet_loader.decode.media import decode_audio
from tests.support.examples import examples
from tests.support.media import sound, tones

soundfile = pytest.importorskip("soundfile", reason="the extra `audio` is not installed")
soxr = pytest.importorskip("soxr", reason="the extra `audio` is not installed")

HALF = 2**63
FORMATS = [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS")]


def test_a_wav_of_the_standard_library_gives_its_samples_over_two_to_the_fifteen(tmp_path: Path) -> None:
    values = np.array([0, 1, -1, 32767, -32768, 1234], np.int16)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(values.tobytes())
    samples, length = decode_audio((tmp_path / "a.wav").read_bytes(), Audio(8000), 0)
    assert samples.dtype == np.float32
    assert samples.tolist() == (values / 32768).tolist()
    assert length == 6


@pytest.mark.parametrize(("format_", "subtype"), FORMATS)
def test_every_format_gives_the_samples_that_were_written(format_: str, subtype: str) -> None:
    written = tones(1.0, 16000, 2)
    samples, length = decode_audio(sound(written, 16000, format_, subtype), Audio(16000, channels=2), 0)
    assert samples.shape == written.shape
    assert length == len(written)
    tolerance = {"FLOAT": 0.0, "PCM_16": 1e-4}.get(subtype, 0.1)
    assert np.abs(samples - written).max() <= tolerance


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no files in memory")
def test_a_forked_process_leaves_its_parent_the_recording_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (sound(tones(1.0, 16000, seed=seed), 16000, "FLAC") for seed in (1, 2))
    expected, _ = decode_audio(one, Audio(16000), 0)
    read, children = soundfile.SoundFile.read, list[int]()

    def forking(self: Any, *arguments: Any, **options: Any) -> Any:
        if not children:
            children.append(os.fork())
            if children == [0]:
                decode_audio(other, Audio(16000), 0)
                os._exit(0)
            assert os.waitpid(children[0], 0)[1] == 0
        return read(self, *arguments, **options)

    monkeypatch.setattr(soundfile.SoundFile, "read", forking)
    samples, _ = decode_audio(one, Audio(16000), 0)
    np.testing.assert_array_equal(samples, expected)
    assert children


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.skipif(not hasattr(soundfile.SoundFile, "_sf_error_lock"), reason="soundfile has no lock")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent_that_opens_a_recording() -> None:
    data = sound(tones(0.1, 16000), 16000, "FLAC")
    with soundfile.SoundFile._sf_error_lock:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends it if it waits
            decode_audio(data, Audio(16000), 0)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_recordings_are_decoded_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sound(tones(1.0, 16000), 16000, "FLAC")
    expected, _ = decode_audio(data, Audio(16000), 0)

    def refused(*_: Any) -> int:
        raise PermissionError("refused")

    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    with ThreadPoolExecutor(1) as pool:  # a new thread has no file yet
        samples, _ = pool.submit(decode_audio, data, Audio(16000), 0).result()
    np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize(("format_", "subtype"), FORMATS)
@pytest.mark.parametrize("rate", [16000, 22050, 48000])
def test_a_cut_is_a_part_of_the_whole_recording_resampled(format_: str, subtype: str, rate: int) -> None:
    data = sound(tones(1.5, 44100), 44100, format_, subtype)
    whole, _ = decode_audio(data, Audio(rate), 0)
    seen = set()
    for word in (0, HALF // 3, HALF, 2**64 - 1):
        part, length = decode_audio(data, Audio(rate, seconds=0.25, at="random"), word)
        begin = word * (-(-round(1.5 * 44100) * rate // 44100) - length + 1) >> 64
        assert part.shape == (round(0.25 * rate),)
        assert np.abs(part[:length] - whole[begin : begin + length]).max() < 1e-4
        assert length >= round(0.25 * rate) - 1
        seen.add(begin)
    assert len(seen) == 4


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("bits", [8, 16, 24, 32])
@pytest.mark.parametrize("form", ["16", "18", "extensible", "list before", "list behind", "odd end"])
def test_every_wav_of_numbers_gives_the_samples_of_libsndfile(channels: int, bits: int, form: str) -> None:
    rng = np.random.default_rng(bits)
    samples = rng.bytes(301 * channels * bits // 8)
    align = channels * bits // 8
    head = struct.pack("<HIIHH", channels, 8000, 8000 * align, align, bits)
    match form:
        case "18":
            head = chunk(b"fmt ", b"\x01\0" + head + bytes(2))
        case "extensible":
            tail = struct.pack("<HHII", 22, bits, 2**channels - 1, 1) + bytes.fromhex("00001000800000aa00389b71")
            head = chunk(b"fmt ", b"\xfe\xff" + head + tail)
        case _:
            head = chunk(b"fmt ", b"\x01\0" + head)
    text = chunk(b"LIST", b"INFOISFT" + struct.pack("<I", 5) + b"made\0\0")
    body = (text if form == "list before" else b"") + chunk(
        b"data", samples + b"\x07" * (form == "odd end" and align > 1)
    )
    body = b"WAVE" + head + body + (text if form == "list behind" else b"")
    data = chunk(b"RIFF", body)
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    assert len(expected) == 301
    for view in (data, memoryview(data)):
        found, length = decode_audio(view, Audio(8000, channels=channels), 0)
        assert length == 301
        np.testing.assert_array_equal(found.reshape(301, channels), expected)
    cut, _ = decode_audio(data, Audio(8000, seconds=0.01, channels=channels, at="random"), 2**63)
    first = 2**63 * (301 - 80 + 1) >> 64
    np.testing.assert_array_equal(cut.reshape(channels, 80).T, expected[first : first + 80])


@pytest.mark.parametrize("subtype", ["GSM610", "G721_32", "NMS_ADPCM_16", "IMA_ADPCM", "ULAW"])
def test_cuts_of_every_kind_of_wav_are_those_of_the_whole(subtype: str) -> None:
    if subtype not in soundfile.available_subtypes("WAV"):
        pytest.skip("this libsndfile does not write it")
    data = sound(tones(1.1, 8000), 8000, subtype=subtype)
    whole, length = decode_audio(data, Audio(8000), 0)
    field = Audio(8000, seconds=0.1, at="random")
    for word in (2**62, 2**64 - 1):
        cut, _ = decode_audio(data, field, word)
        begin = word * (length - 800 + 1) >> 64
        assert np.array_equal(cut, whole[begin : begin + 800])


def test_short_recordings_are_followed_by_zeros_and_tell_their_length() -> None:
    out = np.full((2, 8000), np.nan, np.float32)
    samples, length = decode_audio(sound(tones(0.25, 8000), 8000), Audio(8000, seconds=1, channels=2), 5, out)
    assert samples is out
    assert length == 2000
    assert (samples[0] == samples[1]).all()
    assert np.abs(samples[:, :2000] - tones(0.25, 8000)[:, 0]).max() < 1e-4
    assert not samples[:, 2000:].any()


def test_one_channel_is_the_mean_of_all() -> None:
    written = tones(0.1, 8000, 4)
    samples, _ = decode_audio(sound(written, 8000, subtype="FLOAT"), Audio(8000), 0)
    assert np.allclose(samples, written.mean(1), atol=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(
    length=st.integers(0, 3000),
    stored=st.sampled_from([8000, 11025, 16000, 44100, 7919]),
    rate=st.sampled_from([8000, 16000, 22050, 44100]),
    wanted=st.integers(1, 3000),
    word=st.integers(0, 2**64 - 1),
)
def test_any_cut_at_any_rate_equals_the_slice(length: int, stored: int, rate: int, wanted: int, word: int) -> None:
    written = tones(1.0, stored)[:length]
    data = sound(written, stored, subtype="FLOAT")
    expected = soxr.resample(written[:, 0], stored, rate) if length else np.zeros(0, np.float32)
    samples, valid = decode_audio(data, Audio(rate, seconds=wanted / rate, at="random"), word)
    total = -(-length * rate // stored)
    begin = word * max(total - wanted + 1, 1) >> 64
    part = expected[begin : begin + wanted]
    assert samples.shape == (wanted,)
    assert 0 <= valid <= wanted
    assert abs(valid - len(part)) <= 1
    shared = min(valid, len(part))
    assert np.abs(samples[:shared] - part[:shared]).max(initial=0) < 2e-3
    assert not samples[valid:].any()


WAV = sound(tones(0.5, 8000), 8000)
FLAC = sound(tones(0.5, 8000), 8000, "FLAC")
RF64 = sound(tones(0.5, 8000), 8000, "RF64")
OGG = sound(tones(0.5, 16000), 16000, "OGG")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the value is empty"),
        (b"not a recording", "expected a WAV, FLAC, MP3, Ogg, M4A or AAC recording"),
        (WAV[:1000], "truncated: 956 of its 8000 bytes"),
        (WAV[:20], "has no samples"),
        (RF64[:1000], "truncated: 896 of its 8000 bytes"),
        (RF64[:20] + bytes(16) + RF64[36:], "states no length"),
        (FLAC[:3000], "FLAC recording"),
        (FLAC[:22] + bytes(4) + FLAC[26:], "states no length, as if written to a pipe"),
        (sound(tones(0.5, 16000), 16000, "MP3")[:900], "damaged or truncated|cannot be decoded"),
        (OGG[:-1], "Ogg recording is damaged or truncated at byte"),
        (OGG[:-1] + bytes([OGG[-1] ^ 1]), "does not have its checksum"),
        (OGG[:40] + b"\x07" + OGG[41:], "the page at byte 0 does not have its checksum"),
        (sound(tones(0.5, 8000, 3), 8000), "has 3 channels, not 2"),
        (WAV[:24] + struct.pack("<I", 0) + WAV[28:], "cannot be decoded|claims"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(BlobProblem, match=message) as caught:
        decode_audio(data, Audio(8000, channels=2), 0)
    assert " at 0x" not in str(caught.value)  # the address of a file object


def test_bytes_behind_the_last_page_of_an_ogg_are_ignored() -> None:
    samples, _ = decode_audio(OGG + b"TAG" + bytes(125), Audio(16000), 0)
    assert np.array_equal(samples, decode_audio(OGG, Audio(16000), 0)[0])


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF024, 0xFFFFFFF0])
def test_a_wav_that_was_written_to_a_pipe_is_as_long_as_its_bytes(size: int) -> None:
    at = WAV.index(b"data") + 4
    piped = WAV[:4] + struct.pack("<I", size) + WAV[8:at] + struct.pack("<I", size) + WAV[at + 4 :]
    assert np.array_equal(decode_audio(piped, Audio(8000), 0)[0], decode_audio(WAV, Audio(8000), 0)[0])


def test_a_wav_whose_writer_did_not_finish_is_an_error() -> None:
    at = WAV.index(b"data") + 4
    with pytest.raises(BlobProblem, match="states no length"):
        decode_audio(WAV[:4] + bytes(4) + WAV[8:at] + bytes(4) + WAV[at + 4 :], Audio(8000), 0)


@pytest.mark.parametrize(("rate", "channels"), [(44100, 2), (16000, 1), (8000, 2)])
@pytest.mark.parametrize("is_loud_first", [True, False])
@pytest.mark.parametrize("tag", [b"", b"ID3\x04\0\0\0\0\1\x02" + bytes(130)])
def test_an_mp3_that_does_not_state_its_length_is_delivered_as_a_whole(
    rate: int, channels: int, is_loud_first: bool, tag: bytes
) -> None:
    loud = np.random.default_rng(0).normal(0, 0.2, (2 * rate, channels)).astype(np.float32)
    quiet = tones(1.0, rate, channels) * np.float32(0.01)
    with_header = sound(np.concatenate([loud, quiet] if is_loud_first else [quiet, loud]), rate, "MP3")
    first_frame = with_header.index(with_header[:2], 4)  # it holds the header of Xing instead of samples
    assert b"Xing" in with_header[:first_frame] or b"Info" in with_header[:first_frame]
    without_header = tag + with_header[first_frame:]
    expected, length = decode_audio(with_header, Audio(rate, channels=channels), 0)
    samples, _ = decode_audio(without_header, Audio(rate, channels=channels), 0)
    encoder_delay = 576
    np.testing.assert_array_equal(samples[encoder_delay : encoder_delay + length], expected)
    part, _ = decode_audio(without_header, Audio(rate, seconds=0.1, at="random", channels=channels), 2**64 - 1)
    np.testing.assert_array_equal(part.T, samples[-(rate // 10) :])


def test_damage_inside_a_flac_is_an_error() -> None:
    data = bytearray(sound(tones(1, 16000), 16000, "FLAC"))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(range(40))
    with pytest.raises(BlobProblem, match="FLAC recording"):
        decode_audio(bytes(data), Audio(16000), 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 0}, "rate=0"),
        ({"rate": 16000.5}, "rate=16000.5"),
        ({"rate": 16000, "seconds": 0}, "seconds=0"),
        ({"rate": 16000, "seconds": float("nan")}, "seconds=nan"),
        ({"rate": 16000, "seconds": True}, "seconds=True"),
        ({"rate": 16000, "channels": 0}, "channels=0"),
        ({"rate": 16000, "at": "end", "seconds": 1}, "at='end'"),
        ({"rate": 16000, "at": "random"}, "give seconds="),
        ({"rate": 16000, "fill": "x"}, "fill"),
        ({"rate": 16000, "fill": b"x", "storage": "path"}, "fill"),
        ({"rate": 16000, "storage": "raw"}, "storage='raw'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Audio(**arguments)  # type: ignore[arg-type]
