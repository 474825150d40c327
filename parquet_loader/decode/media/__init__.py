"""Decodes media, of which rows hold the bytes of files: images to pixels, audio to samples, video to frames."""

from parquet_loader.decode.media.audio import audio_modules, decode_audio
from parquet_loader.decode.media.byte_ranges import RangeFile
from parquet_loader.decode.media.images import image_pixels
from parquet_loader.decode.media.video import clip_positions, decode_clips, decode_frames, video_module

__all__ = [
    "RangeFile",
    "audio_modules",
    "clip_positions",
    "decode_audio",
    "decode_clips",
    "decode_frames",
    "image_pixels",
    "video_module",
]
