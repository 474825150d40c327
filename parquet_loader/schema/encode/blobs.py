"""Encodes arrays as bytes in the formats of `np.save` and `np.savez_compressed`, or as PNG or JPEG."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import needs_package
from parquet_loader.schema.arrow_types import is_bytes
from parquet_loader.schema.encode.inputs import Values
from parquet_loader.schema.encode.lossless import Misfit, of_kind
from parquet_loader.schema.fields import Encoded

_JPEG_QUALITY = 95
PNG = b"\x89PNG\r\n\x1a\n"


def pillow() -> Any:
    """Import and return `PIL.Image`, which encodes images given as arrays.

    Raises:
        ConfigurationError: Pillow is not installed.
    """
    with needs_package(
        "PIL",
        "images given as arrays are encoded by Pillow, which is not installed: "
        "pip install 'torch-parquet-loader[images]', or hand over encoded bytes",
    ):
        from PIL import Image as pil_image  # noqa: N813, PLC0415
    return pil_image


def encode_arrays(field: Encoded, values: Values) -> pa.Array:
    """Return a binary column of encoded arrays.

    Args:
        field: The field; arrays must have its `type` and `shape`, and get its `encoding`.
        values: Encoded bytes, which are stored unchanged, or one array per row.
    """
    if isinstance(values, pa.Array):
        return of_kind(values, is_bytes, pa.binary(), ", expected encoded arrays (bytes) or arrays")
    rows: Any = values
    return pa.array([None if v is None else _encoded(field, v, row) for row, v in enumerate(rows)], pa.binary())


def _encoded(field: Encoded, value: Any, row: int) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    array = np.asarray(value)
    if field.is_text:
        fits = array.dtype.kind == ("U" if pa.types.is_string(field.type) else "S") and array.ndim == len(field.shape)
    else:
        lengths = zip(array.shape, field.shape, strict=False)
        fits = array.dtype.newbyteorder("=") == field.dtype and array.ndim == len(field.shape)
        fits = fits and all(b is None or a == b for a, b in lengths)
    if not fits:
        raise Misfit(f"the array is {array.dtype} of shape {array.shape}, expected {field.type} of {field.shape}", row)
    return encode_array(array, field.encoding)


def encode_array(array: np.ndarray[Any, Any], encoding: str, quality: int = _JPEG_QUALITY) -> bytes:
    """Return an array as bytes.

    Args:
        array: Numbers or text; for images uint8 or uint16 ``[h, w]`` or ``[h, w, channels]``.
        encoding: ``"npy"``, ``"npz"``, ``"png"`` or ``"jpeg"``.
        quality: Of JPEG, from 1 to 95.
    """
    out = io.BytesIO()
    if encoding == "npy":
        np.save(out, array, allow_pickle=False)
    elif encoding == "npz":
        np.savez_compressed(out, arr=array, allow_pickle=False)
    elif array.dtype == np.uint16:
        if encoding != "png":
            raise Misfit("JPEG holds 8 bits a channel; use PNG for uint16")
        return encode_png(array)
    else:
        options = {"quality": quality} if encoding == "jpeg" else {}
        pillow().fromarray(np.ascontiguousarray(array)).save(out, format=encoding, **options)
    return out.getvalue()


def encode_png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return uint8 or uint16 ``[h, w]`` or ``[h, w, channels]`` as PNG; Pillow writes 16 bits for grey images only.

    Each row is stored as its difference from the row above.
    """
    height, width = pixels.shape[:2]
    colour_type = {2: 0, 3: {1: 0, 3: 2, 4: 6}.get(pixels.shape[-1], -1)}.get(pixels.ndim, -1)
    if colour_type < 0 or not pixels.size:
        raise Misfit(f"no PNG has the shape {pixels.shape}")
    rows = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">")).reshape(height, -1).view(np.uint8)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = 2
    filtered[0, 1:] = rows[0]
    filtered[1:, 1:] = rows[1:] - rows[:-1]
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, colour_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes())), (b"IEND", b""))
    parts = [PNG]
    for kind, body in chunks:
        parts += [struct.pack(">I", len(body)), kind, body, struct.pack(">I", zlib.crc32(kind + body))]
    return b"".join(parts)
