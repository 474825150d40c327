"""Recognises images, audio and video by the signature at the start of their bytes; decodes nothing."""

from __future__ import annotations

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".avif", ".heic",
     ".heif", ".jp2", ".jxl", ".ppm", ".pgm", ".pbm", ".pnm")
)  # fmt: skip

SIGNATURE_BYTES = 32

_SIGNATURES = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
    (b"\xff\x0a", "jxl"),
)
_AVIF = {b"avif", b"avis"}
_HEIF = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}


def image_kind(head: bytes) -> str | None:
    """Return the kind of an image by its first `SIGNATURE_BYTES` bytes, or None if it is not a known one."""
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp":
        brands = {head[8:12], *(head[at : at + 4] for at in range(16, min(len(head), head[3]), 4))}
        return "avif" if brands & _AVIF else "heif" if brands & _HEIF else None
    if head[:2] == b"BM" and len(head) > 14 and head[6:10] == b"\0\0\0\0":
        return "bmp"
    if len(head) > 2 and head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return "pnm"
    return None


def audio_kind(head: bytes) -> str | None:
    """Return the kind of an audio file by its first bytes, as `image_kind` does."""
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"fLaC":
        return "flac"
    if head[:4] == b"OggS":
        return "ogg"
    # MP3 begins with ID3, or with a frame of MPEG layer III that has a valid bit rate and sample rate.
    is_frame = len(head) > 2 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2 and head[2] >> 4 not in (0, 15)
    return "mp3" if head[:3] == b"ID3" or (is_frame and head[2] & 12 != 12) else None


def video_kind(head: bytes) -> str | None:
    """Return the kind of a video by its first bytes, as `image_kind` does."""
    if head[:4] == b"\x1aE\xdf\xa3":
        return "webm"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    return "mp4" if head[4:8] == b"ftyp" and image_kind(head) is None else None
