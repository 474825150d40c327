"""Damages images and recordings and decodes them. Run as a program in a process of its own, so that a crash is seen.

    python -m tests.support.fuzz_media image|audio|video MUTATIONS SEED

Each mutation ends in pixels, samples or frames, or in a `BlobProblem`. Prints how many of each, in all and of each
format, and by how many MiB the process grew in the second half.
"""

from __future__ import annotations

import importlib
import io
import random
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from parquet_loader import Audio, Image, Video
from parquet_loader.decode import BlobProblem, image_pixels, write_image
from parquet_loader.decode.media import RangeFile, decode_audio, decode_clips
from parquet_loader.decode.media.audio import ogg_checksum
from tests.support.media import aac, sound, tones, video


def images() -> dict[str, bytes]:
    """Return a small image of each format and way of coding that the installed Pillow writes."""
    pillow = importlib.import_module("PIL.Image")
    features = importlib.import_module("PIL.features")
    waves = np.add.outer(np.arange(72), np.arange(90))[..., None] * np.array((1, 2, 3))
    pixels = ((np.sin(waves / 9) + 1) * 120).astype(np.uint8)
    color = pillow.fromarray(pixels)
    exif = pillow.Exif()
    exif[0x0112] = 6
    made: dict[str, tuple[object, str, dict[str, object]]] = {
        "JPEG": (color, "JPEG", {"exif": exif}),
        "JPEG 4:4:4": (color, "JPEG", {"subsampling": 0, "quality": 95}),
        "JPEG progressive": (color, "JPEG", {"progressive": True}),
        "JPEG restarts": (color, "JPEG", {"restart_marker_rows": 1}),
        "JPEG grey": (color.convert("L"), "JPEG", {}),
        "JPEG CMYK": (color.convert("CMYK"), "JPEG", {}),
        "PNG": (color, "PNG", {"exif": exif}),
        "PNG palette": (color.quantize(16), "PNG", {"transparency": 3}),
        "PNG bits": (color.convert("1"), "PNG", {}),
        "GIF": (color, "GIF", {}),
        "GIF frames": (color, "GIF", {"save_all": True, "append_images": [color.rotate(9)], "interlace": 1}),
        "TIFF": (color, "TIFF", {}),
        **{
            f"TIFF {way}": (color, "TIFF", {"compression": way, "exif": exif})
            for way in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
        },
        "TIFF group4": (color.convert("1"), "TIFF", {"compression": "group4"}),
        "WebP": (color, "WEBP", {"exif": exif}),
        "WebP lossless": (color.convert("RGBA"), "WEBP", {"lossless": True}),
    }
    if features.check("avif"):
        made["AVIF"] = (color, "AVIF", {"exif": exif, "speed": 10})
        made["AVIF alpha"] = (color.convert("RGBA"), "AVIF", {"speed": 10})
    found = {}
    for name, (image, format_, options) in made.items():
        out = io.BytesIO()
        image.save(out, format_, **options)  # type: ignore[attr-defined]
        found[name] = out.getvalue()
    return found


def recordings() -> dict[str, bytes]:
    """Return a short recording of each format."""
    formats = [
        ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("WAV", "ALAW"), ("FLAC", "PCM_16"),
        ("FLAC", "PCM_24"), ("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"), ("OGG", "OPUS"),
    ]  # fmt: skip
    made = {f"{f} {s}": sound(tones(0.2, 16000, 2), 16000, f, s) for f, s in formats}
    for name, format_, codec in (("M4A AAC", "ipod", "aac"), ("M4A ALAC", "ipod", "alac"), ("ADTS", "adts", "aac")):
        made[name] = aac(tones(0.2, 16000, 2), 16000, format_, codec)
    return made


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


def sealed(png: bytes) -> bytes:
    """Return a damaged PNG with checksums that fit, so that the damage reaches the decoder."""
    out = bytearray(png)
    at = 8
    while at + 12 <= len(out):
        end = at + 8 + int.from_bytes(out[at : at + 4], "big")
        if end + 4 > len(out):
            break
        out[end : end + 4] = zlib.crc32(out[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(out)


def sealed_ogg(ogg: bytes) -> bytes:
    """Return a damaged Ogg file with checksums that fit, so that the damage reaches the decoder."""
    out = bytearray(ogg)
    at = out.find(b"OggS")
    while at >= 0:
        end = out.find(b"OggS", at + 4)
        page = slice(at, end if end >= 0 else len(out))
        if page.stop - at >= 27:
            out[at + 22 : at + 26] = bytes(4)
            out[at + 22 : at + 26] = ogg_checksum(bytes(out[page])).to_bytes(4, "little")
        at = end
    return bytes(out)


def decoder_of(kind: str) -> Callable[[bytes, int], object]:
    """Return a function that decodes bytes in the ways in which loaders do."""
    plain, grey, alpha = Image(), Image((None, None, 1)), Image((None, None, 4))
    resized = (
        Image(size=16, crop="random", flip=0.5),
        Image(size=(40, 20), crop="center", resize=64, exif_orientation=True, dtype="float32", channels_first=True),
        Image((None, None, 1), size=31, interpolation="bicubic"),
    )
    whole, part = Audio(16000), Audio(8000, seconds=0.1, at="random")
    clips = Video(3, (16, 16), step=2, clips=2)

    def image(data: bytes, word: int) -> object:
        field = (*resized, plain, grey, alpha)[word % 6]
        if field.size is None:
            pixels = image_pixels(data, field.shape[2], None)
            assert pixels.shape[2] == field.shape[2]
            return pixels
        out = np.empty([n or 0 for n in field.delivered_shape], field.delivered_dtype)
        assert (
            write_image(data, field, np.random.default_rng(word) if field.is_random else None, out).shape == out.shape
        )
        return out

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

    return {"image": image, "audio": audio, "video": frames}[kind]


def resident_bytes() -> int:
    """Return the memory that this process holds; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def main(kind: str, mutations: int, seed: int) -> tuple[Counter[str], dict[str, Counter[str]], float]:
    """Decode damaged files.

    Returns:
        How many were decoded, and how many refused; the same of each format; MiB by which the process grew in the
        second half.
    """
    sources = {"image": images, "audio": recordings, "video": videos}[kind]()
    decode = decoder_of(kind)
    for data in sources.values():
        for word in range(seed, seed + 6):
            decode(data, word)
    warnings.simplefilter("ignore")  # Pillow warns of large images and of damaged EXIF data
    rng = random.Random(seed)
    counts: dict[str, Counter[str]] = {name: Counter() for name in sources}
    at_half = 0
    for number in range(mutations):
        if number == mutations // 2:
            at_half = resident_bytes()
        name, data = rng.choice(list(sources.items()))
        bad = damaged(data, rng)
        if name.startswith("PNG") and number % 2:
            bad = sealed(bad)
        if name.startswith("OGG") and number % 2:
            bad = sealed_ogg(bad)
        try:
            decode(bad, rng.getrandbits(64))
            counts[name]["decoded"] += 1
        except BlobProblem:
            counts[name]["refused"] += 1
        except BaseException:
            print(f"mutation {number} of {name}", file=sys.stderr)  # noqa: T201
            raise
    return sum(counts.values(), Counter()), counts, (resident_bytes() - at_half) / 2**20


if __name__ == "__main__":
    for result in main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])):
        print(result)  # noqa: T201
