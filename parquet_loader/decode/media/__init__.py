"""Decodes media from the bytes of their files: images to pixels, audio to samples, video to frames."""

from parquet_loader.decode.media.audio import audio_modules, decode_audio
from parquet_loader.decode.media.byte_ranges import RangeFile
from parquet_loader.decode.media.crops import Box, center_box, random_box, uniform
from parquet_loader.decode.media.device_jpegs import JpegPart, has_device_form, jpeg_part, jpeg_parts
from parquet_loader.decode.media.encoded_rows import EncodedRows
from parquet_loader.decode.media.image_parts import scale_and_offset
from parquet_loader.decode.media.images import image_pixels, write_image
from parquet_loader.decode.media.jpeg_batches import JpegBatch
from parquet_loader.decode.media.opened_image import has_few_pixels, image_formats
from parquet_loader.decode.media.video import VideoDecoder, clip_positions, decode_clips, video_module
from parquet_loader.decode.media.video_cache import VideoDecoderCache
