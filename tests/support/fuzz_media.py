"""Damages recordings and decodes them. Run as a program in a process of its own, so that a crash is seen.

    python -m tests.support.fuzz_media audio|video MUTATIONS SEED

Each mutation ends in samples or frames, or in a `BlobProblem`. Prints how many of each.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np

from parquet_loader import Audio, Video
from parquet_loader.decode import BlobProblem
from parquet_loader.decode.media import RangeFile, decode_audio, decode_clips
from tests.support.media import sound, tones, video


def recordings() -> dict[str, bytes]:
    """Return a short recording of each format."""
    formats = [
        ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("WAV", "ALAW"), ("FLAC", "PCM_16"),
        ("FLAC", "PCM_24"), ("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"), ("OGG", "OPUS"),
    ]  # fmt: skip
    return {f"{f} {s}": sound(tones(0.2, 16000, 2), 16000, f, s) for f, s in formats}


def videos() -> dict[str, bytes]:
    """Return a short video of each container and codec."""
    size = {"size": (32, 64), "key_every": 4, "noise": 20.0}
    return {
        "mp4": video(10, **size),  # type: ignore[arg-type]
        "fragments": video(10, container_options={"movflags": "frag_keyframe+empty_moov"}, **size),  # type: ignore[arg-type]
        "mov": video(10, format_="mov", codec="mpeg4", **size),  # type: ignore[arg-type]
        "mkv": video(10, format_="matroska", **size),  # type: ignore[arg-type]
        "webm": video(10, format_="webm", codec="libvpx-vp9", options={"cpu-used": "8"}, **size),  # type: ignore[arg-type]
        "avi": video(10, format_="avi", codec="mpeg4", **size),  # type: ignore[arg-type]
    }


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to eight changes; most of them in the first 600 and the last 1200 bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        place = rng.random()
        limit = max(len(out), 1)
        if place < 0.4:
            at = rng.randrange(min(600, limit))
        elif place < 0.7:
            at = rng.randrange(max(0, limit - 1200), limit)
        else:
            at = rng.randrange(limit)
        match rng.randrange(6):
            case 0:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                out[at : at + 4] = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1)).to_bytes(
                    4, rng.choice(("big", "little"))
                )
            case 2:
                del out[at : at + rng.choice((1, 4, 100))]
            case 3:
                out[at:at] = rng.randbytes(rng.choice((1, 8, 100)))
            case 4:
                out[at : at + 16] = bytes(16)
            case 5:
                del out[at:]
    return bytes(out)


def decoder_of(kind: str) -> Callable[[bytes, int], object]:
    """Return a function that decodes bytes in the ways in which loaders do."""
    whole, part = Audio(16000), Audio(8000, seconds=0.1, at="random")
    clips = Video(3, (16, 16), step=2, clips=2)

    def audio(data: bytes, word: int) -> object:
        decode_audio(data, part, word)
        samples, length = decode_audio(data, whole, word)
        assert len(samples) == length
        return samples

    def frames(data: bytes, word: int) -> object:
        source = RangeFile(lambda begin, count: data[begin : begin + count], len(data)) if word % 2 else data
        pixels, times = decode_clips(source, clips, word)
        assert not np.isnan(times).any()
        return pixels

    return audio if kind == "audio" else frames


def main(kind: str, mutations: int, seed: int) -> Counter[str]:
    """Decode damaged recordings; return how many were decoded, and how many refused."""
    sources = recordings() if kind == "audio" else videos()
    decode = decoder_of(kind)
    for data in sources.values():
        decode(data, seed)
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for number in range(mutations):
        name, data = rng.choice(list(sources.items()))
        bad = damaged(data, rng)
        try:
            decode(bad, rng.getrandbits(64))
            counts["decoded"] += 1
        except BlobProblem:
            counts["refused"] += 1
        except BaseException:
            print(f"mutation {number} of {name}", file=sys.stderr)  # noqa: T201
            raise
    return counts


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))  # noqa: T201
