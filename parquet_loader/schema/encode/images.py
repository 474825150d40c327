"""Encodes images: encoded bytes stay unchanged, and Pillow encodes arrays of pixels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.schema.arrow_types import is_bytes
from parquet_loader.schema.encode.blobs import PNG, encode_array
from parquet_loader.schema.encode.inputs import Values
from parquet_loader.schema.encode.lossless import Misfit, of_kind
from parquet_loader.schema.fields import Image

_JPEG = b"\xff\xd8\xff"
# Offsets in a PNG's header of the bits per channel and the color type.
_BITS, _COLOR = 24, 25
_SHAPES = {0: "(None, None)", 2: "(None, None, 3)"}


def sixteen_bits(data: bytes) -> str | None:
    """Return advice for a PNG of 16 bits a channel, which an `Image` would cut to 8; None for other images."""
    if data[: len(PNG)] != PNG or data[_BITS : _BITS + 1] != b"\x10":
        return None
    shape = _SHAPES.get(data[_COLOR])
    reader = "Bytes()" if shape is None else f"Encoded('uint16', {shape}, 'png')"
    return f"a PNG of 16 bits a channel, which uint8 cannot hold; {reader} reads it"


def is_image(data: bytes) -> bool:
    """Whether bytes begin with the signature of an image format that `Image` reads."""
    return (
        data.startswith((PNG, _JPEG, b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"))
        or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")
        or (data[4:8] == b"ftyp" and data[8:12] in (b"avif", b"avis", b"mif1"))
    )


def encode_images(field: Image, values: Values) -> pa.Array:
    """Return a binary column of encoded images.

    Args:
        field: The field; arrays must have its `shape` and get its `encoding` (JPEG at quality 95).
        values: Encoded bytes, uint8 arrays ``[h, w, c]`` (``[h, w]`` for one channel), or one array of these.
    """
    if isinstance(values, pa.Array):
        return _checked(values)
    encoded = [None if v is None else _encoded(field, v, row) for row, v in enumerate(values)]
    return _checked(pa.array(encoded, pa.binary()))


def _checked(array: pa.Array) -> pa.Array:
    array = of_kind(array, is_bytes, pa.binary(), ", expected encoded images (bytes) or arrays of uint8")
    is_png = pc.equal(pc.binary_slice(array, 0, len(PNG)), PNG)
    is_jpeg = pc.equal(pc.binary_slice(array, 0, len(_JPEG)), _JPEG)
    deep = pc.index(pc.and_(is_png, pc.equal(pc.binary_slice(array, _BITS, _BITS + 1), b"\x10")), True).as_py()
    if deep >= 0:
        raise Misfit(f"the image is {sixteen_bits(array[deep].as_py())}", deep)
    first = pc.index(pc.or_(is_png, is_jpeg), False).as_py()
    for row in range(first, len(array)) if first >= 0 else ():
        if array[row].is_valid and not is_image(array[row].as_py()[:16]):
            raise Misfit(
                f"the bytes begin with {array[row].as_py()[:8]!r}, as no JPEG, PNG, WebP, AVIF, GIF or TIFF does", row
            )
    return array


def _encoded(field: Image, value: Any, row: int) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str | os.PathLike):
        raise Misfit(f"the value is the path {str(value)!r:.80}; give the file's bytes, Path(path).read_bytes()", row)
    mode = getattr(value, "mode", None)
    if isinstance(mode, str) and mode not in ("L", "RGB", "RGBA"):
        raise Misfit(f"the image has the mode {mode!r}; convert it to 'L', 'RGB' or 'RGBA'", row)
    pixels = np.asarray(value)
    height, width, channels = field.shape
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.size == 0 or pixels.shape[2] != channels:
        problem = f"the image is {pixels.dtype} of shape {pixels.shape}, expected uint8 [h, w, {channels}]"
        if pixels.ndim == 3 and pixels.shape[0] == channels:
            problem += "; transpose(1, 2, 0) puts the channels last"
        elif pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4):
            problem += f"; declare Image((None, None, {pixels.shape[2]}))"
        raise Misfit(problem, row)
    if height is not None and pixels.shape[:2] != (height, width):
        raise Misfit(f"the image has the shape {pixels.shape}, expected {field.shape}", row)
    if field.encoding == "jpeg" and channels == 4:
        raise Misfit("JPEG has no fourth channel; use encoding='png'", row)
    return encode_array(pixels[:, :, 0] if channels == 1 else pixels, field.encoding)
