"""Parses arrays stored as bytes: `np.save`, `np.savez_compressed`, PNG and JPEG. Nothing is unpickled.

The header of an array is matched as text, never evaluated. An array is made only if all its bytes are present.
"""

from __future__ import annotations

import io
import math
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.common import needs_package
from parquet_loader.decode.jpeg import decode_jpeg, jpeg_shape

MAX_HEADER_BYTES = 1 << 16
MAX_ARRAY_BYTES = 2**31 - 1
MAX_DIMENSIONS = 32
_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\{'descr': '(?P<descr>[<>|=]?[?biufcSUMm][0-9]{0,9}(?:\[[0-9]{0,9}[a-zA-Z]{1,7}\])?)', "
    r"'fortran_order': (?P<fortran>True|False), "
    r"'shape': \((?P<shape>[0-9L, ]{0,400})\), ?\}\s*"
)
_MEMBER = "arr.npy"
_IMAGE_FORMATS = ("JPEG", "PNG")
# ValueError: offsets before the beginning of the file, and names that are not UTF-8.
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, struct.error)


class BlobProblem(ValueError):
    """Bytes that are not an array in the expected format, or that claim too large an array."""


@lru_cache(maxsize=1024)
def _parsed(header: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Return the dtype, whether the order is Fortran's, the shape, and the bytes of the array of a header."""
    text = header.decode("latin-1")
    match = _HEADER.fullmatch(text)
    if match is None:
        raise BlobProblem(f"the array's header is {text[:120]!r}; expected one of an array of numbers or text")
    lengths = [part.strip().removesuffix("L") for part in match["shape"].split(",")]
    if lengths and not lengths[-1]:
        lengths.pop()
    if not all(part.isdigit() for part in lengths) or len(lengths) > MAX_DIMENSIONS:
        raise BlobProblem(f"the array's shape is ({match['shape'][:60]}); expected at most {MAX_DIMENSIONS} lengths")
    try:
        dtype = np.dtype(match["descr"])
    except TypeError:
        raise BlobProblem(f"the array's dtype {match['descr']!r} is unknown to numpy") from None
    shape = tuple(map(int, lengths))
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > MAX_ARRAY_BYTES or max(shape, default=0) > MAX_ARRAY_BYTES:
        raise BlobProblem(f"the array claims the shape {shape} of {dtype}; expected at most {MAX_ARRAY_BYTES} bytes")
    return dtype, match["fortran"] == "True", shape, nbytes


def header_length(data: Any) -> int:
    """Return the offset of the values in the bytes that `np.save` wrote.

    Raises:
        BlobProblem: the bytes do not begin with a header of `np.save`.
    """
    start = bytes(data[:12])
    if len(start) < 12 or not start.startswith(_MAGIC):
        raise BlobProblem(f"the bytes begin with {start[:8]!r}; expected {_MAGIC!r}, as np.save writes")
    if start[6] not in {1, 2, 3} or start[7] != 0:
        raise BlobProblem(f"the np.save format {start[6]}.{start[7]} is unknown; expected 1.0, 2.0 or 3.0")
    before, size = (10, 2) if start[6] == 1 else (12, 4)
    length = int.from_bytes(start[8 : 8 + size], "little")
    if length > MAX_HEADER_BYTES:
        raise BlobProblem(f"the array's header claims {length} bytes; expected at most {MAX_HEADER_BYTES}")
    return before + length


def npy_array(data: bytes | memoryview) -> npt.NDArray[Any]:
    """Return the array that `np.save` wrote: a read-only view of `data`.

    Raises:
        BlobProblem: the bytes are not such an array, hold Python objects or records, or are too short.
    """
    begin = header_length(data)
    dtype, fortran, shape, nbytes = npy_header(data, begin)
    if len(data) - begin < nbytes:
        raise BlobProblem(f"the array of {dtype} {shape} takes {nbytes} bytes, found {len(data) - begin}")
    if not nbytes:
        return np.zeros(shape, dtype)
    if dtype.kind == "U" and (np.frombuffer(data, f"{dtype.str[0]}u4", nbytes // 4, begin) > sys.maxunicode).any():
        raise BlobProblem("the text array holds code points above U+10FFFF")  # numpy would accept them
    array: npt.NDArray[Any] = np.frombuffer(data, dtype, math.prod(shape), begin)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def npy_header(data: Any, length: int) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Return the dtype, whether the order is Fortran's, the shape, and the bytes of an array.

    Args:
        data: The array as `np.save` wrote it, or its beginning.
        length: From `header_length`.
    """
    if len(data) < length:
        raise BlobProblem(f"the array's header takes {length} bytes, found {len(data)}")
    before = 10 if data[6] == 1 else 12
    return _parsed(bytes(data[before:length]))


def npz_array(data: bytes | memoryview) -> npt.NDArray[Any]:
    """Return the array ``arr`` of an archive that `np.savez_compressed` wrote.

    Raises:
        BlobProblem: the bytes are not such an archive; or as `npy_array`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            content = _member(archive)
    except BlobProblem:
        raise
    except KeyError:
        raise BlobProblem(f"the archive holds no {_MEMBER!r}") from None
    except _ARCHIVE_ERRORS as error:
        raise BlobProblem(f"the bytes are not an archive of np.savez_compressed: {error}") from None
    return npy_array(content)


def _member(archive: zipfile.ZipFile) -> bytes:
    """Return the bytes of the array in an archive, at most as many as its header states."""
    info = archive.getinfo(_MEMBER)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BlobProblem(f"the archive's compression (number {info.compress_type}) is not one that numpy writes")
    if info.file_size > MAX_ARRAY_BYTES + MAX_HEADER_BYTES:
        raise BlobProblem(f"the archive claims an array of {info.file_size} bytes")
    with archive.open(info) as member:
        start = member.read(MAX_HEADER_BYTES)
        begin = header_length(start)
        *_, nbytes = npy_header(start, begin)
        if begin + nbytes > info.file_size:
            raise BlobProblem(f"the array takes {nbytes} bytes, found {info.file_size - begin}")
        return start + member.read(max(0, begin + nbytes - len(start)))


def image_array(data: bytes | memoryview) -> npt.NDArray[Any]:
    """Return the pixels of a PNG or JPEG: ``[h, w]`` grey, ``[h, w, 3]`` RGB or ``[h, w, 4]`` RGBA.

    uint8, or uint16 for a PNG of 16 bits a channel. Palettes become RGB.

    Raises:
        BlobProblem: the bytes are not an image, or the image is too large.
        ConfigurationError: Pillow is not installed.
    """
    pillow = pillow_image()
    shape = jpeg_shape(data, pillow.MAX_IMAGE_PIXELS)
    if shape is not None:
        decoded = np.empty(shape, np.uint8)
        if decode_jpeg(data, decoded):
            return decoded.reshape(shape if shape[2] == 3 else shape[:2])
    try:
        with pillow.open(io.BytesIO(data), formats=_IMAGE_FORMATS) as image:
            rawmode = image.tile[0][3] if image.tile else ""
            rawmode = rawmode if isinstance(rawmode, str) else rawmode[0]
            if image.mode == "RGB" and rawmode == "RGB;16B":
                return _sixteen_bits(data, image, pillow)
            if image.mode in {"1", "P", "PA", "LA", "CMYK", "YCbCr"}:
                has_alpha = image.mode in {"PA", "LA"} or "transparency" in image.info
                converted = image.convert("L" if image.mode == "1" else "RGBA" if has_alpha else "RGB")
                return np.asarray(converted)
            pixels: npt.NDArray[Any] = np.asarray(image)
    except (OSError, ValueError, SyntaxError, IndexError, pillow.DecompressionBombError) as error:
        raise unreadable_image(data, error) from error
    return pixels.astype(np.uint16) if pixels.dtype not in (np.uint8, np.uint16) else pixels


def _sixteen_bits(data: bytes | memoryview, image: Any, pillow: Any) -> npt.NDArray[np.uint16]:
    """Return RGB of 16 bits a channel.

    Pillow keeps the high byte of each value. Read a second time with the byte order swapped, it keeps the low byte.
    """
    high = np.asarray(image).astype(np.uint16)
    with pillow.open(io.BytesIO(data), formats=_IMAGE_FORMATS) as again:
        tile = again.tile[0]
        changed = (*tile[:3], "RGB;16L")
        again.tile = [type(tile)(*changed) if hasattr(tile, "_fields") else changed]
        low = np.asarray(again).astype(np.uint16)
    pixels: npt.NDArray[np.uint16] = (high << np.uint16(8)) | low
    return pixels


def unreadable_image(data: bytes | memoryview, error: Exception, formats: str = "JPEG or PNG") -> BlobProblem:
    """Return the problem that Pillow has with an image.

    One of Pillow's messages contains the address of its file object, which would make equal problems differ, so it is
    replaced.
    """
    said = re.sub(r" <[^<>]* object at 0x[0-9a-fA-F]+>", "", str(error))
    return BlobProblem(f"{len(data)} bytes that are not a readable {formats}: {said}")


def pillow_image() -> Any:
    """Return Pillow's `Image` module.

    Raises:
        ConfigurationError: it is not installed.
    """
    message = "images are decoded by Pillow, which is not installed: pip install 'torch-parquet-loader[images]'"
    with needs_package("PIL", message):
        from PIL import Image as pil_image  # noqa: N813, PLC0415
    return pil_image


READERS: dict[str, Callable[[bytes | memoryview], npt.NDArray[Any]]] = {
    "npy": npy_array,
    "npz": npz_array,
    "png": image_array,
    "jpeg": image_array,
}
"""The parser of each encoding, by name."""
