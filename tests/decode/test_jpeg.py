"""JPEG by libjpeg-turbo gives what Pillow gives, to the last pixel and the last word of an error."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from parquet_loader.decode import jpeg
from parquet_loader.decode.array_formats import BlobProblem, image_array
from parquet_loader.decode.encoded_columns import unpack
from parquet_loader.decode.media import image_pixels
from parquet_loader.schema import Encoded

pytest.importorskip("simplejpeg", reason="no simplejpeg: Pillow decodes all")


def picture(height: int, width: int, mode: str, seed: int = 0) -> Image.Image:
    """Smooth shapes with noise: what JPEG keeps, and what it does not."""
    rng = np.random.default_rng(seed)
    channels = len(Image.new(mode, (1, 1)).getbands())
    y, x = np.mgrid[:height, :width]
    planes = [
        (np.sin(x / (3 + c)) * np.cos(y / (5 + c)) * 100 + 128 + rng.normal(0, 12, x.shape)) for c in range(channels)
    ]
    pixels = np.stack(planes, axis=-1).clip(0, 255).astype(np.uint8)
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def outcome(data: bytes, channels: int) -> Any:
    try:
        return image_pixels(data, channels, None)
    except BlobProblem as problem:
        return str(problem)


def both(monkeypatch: pytest.MonkeyPatch, data: bytes, channels: int) -> tuple[Any, Any]:
    """What is made of an image with libjpeg-turbo and without."""
    found = outcome(data, channels)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "simplejpeg", None)  # as if it were not installed
        jpeg._turbo.cache_clear()
        try:
            return found, outcome(data, channels)
        finally:
            jpeg._turbo.cache_clear()


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected), (found, expected)
    if isinstance(found, str):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (33, 17), (224, 224)])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_are_those_of_pillow(
    monkeypatch: pytest.MonkeyPatch, channels: int, size: tuple[int, int], mode: str, progressive: bool
) -> None:
    for quality in (10, 75, 95):
        for subsampling in (0, 1, 2):
            data = encoded(
                picture(*size, mode, quality), quality=quality, subsampling=subsampling, progressive=progressive
            )
            found, expected = both(monkeypatch, data, channels)
            assert_same(found, expected)
            assert found.shape == (*size, channels)


@pytest.mark.parametrize(("mode", "stored"), [("RGB", 3), ("L", 1)])
def test_plain_images_do_not_need_pillow_to_decode(monkeypatch: pytest.MonkeyPatch, mode: str, stored: int) -> None:
    data = encoded(picture(20, 30, mode))
    expected = np.asarray(Image.open(io.BytesIO(data))).reshape(20, 30, stored)
    monkeypatch.setattr(Image.Image, "load", None)
    np.testing.assert_array_equal(image_pixels(data, stored, None), expected)
    np.testing.assert_array_equal(image_array(data), expected if stored == 3 else expected[..., 0])


def test_pixels_are_put_where_they_belong() -> None:
    data = encoded(picture(20, 30, "RGB"))
    batch = np.full((3, 20, 30, 3), 7, np.uint8)
    assert np.shares_memory(image_pixels(data, 3, batch[1]), batch[1])
    np.testing.assert_array_equal(batch[1], np.asarray(Image.open(io.BytesIO(data))))
    assert (batch[[0, 2]] == 7).all()


def test_an_image_of_another_size_than_expected_is_not_written_anywhere() -> None:
    batch = np.full((3, 20, 31, 3), 7, np.uint8)
    assert image_pixels(encoded(picture(20, 30, "RGB")), 3, batch[1]).shape == (20, 30, 3)
    assert (batch == 7).all()


def test_images_that_pillow_refuses_for_their_size_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(40, 50, "RGB"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 50 // 3)
    with pytest.raises(BlobProblem, match="exceeds limit"):
        image_pixels(data, 3, None)
    with pytest.raises(BlobProblem, match="exceeds limit"):
        image_array(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert image_pixels(data, 3, None).shape == (40, 50, 3)


@pytest.mark.parametrize("progressive", [False, True])
def test_cut_images_are_refused_as_by_pillow(monkeypatch: pytest.MonkeyPatch, progressive: bool) -> None:
    data = encoded(picture(48, 40, "RGB"), progressive=progressive)
    for length in range(0, len(data), 7):
        assert_same(*both(monkeypatch, data[:length], 3))


@pytest.mark.parametrize("data", [b"", b"nothing", b"\xff\xd8\xff"])
def test_bytes_that_are_no_image_are_described_by_their_number_alone(data: bytes) -> None:
    for decode, formats in (
        (lambda: image_pixels(data, 3, None), "JPEG, PNG, WebP, AVIF, GIF or TIFF"),
        (lambda: image_array(data), "JPEG or PNG"),
    ):
        said = f"{len(data)} bytes that are not a readable {formats}: cannot identify image file"
        with pytest.raises(BlobProblem, match=f"^{said}$"):
            decode()


@given(
    seed=st.integers(0, 20),
    mode=st.sampled_from(["L", "RGB", "CMYK"]),
    progressive=st.booleans(),
    restart=st.sampled_from([0, 2]),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_changed_bytes_give_what_pillow_gives(
    seed: int, mode: str, progressive: bool, restart: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(encoded(picture(32, 24, mode, seed), progressive=progressive, restart_marker_blocks=restart))
    for place, value in changes:
        data[place % len(data)] = value
    with pytest.MonkeyPatch.context() as monkeypatch:
        for channels in (1, 3):
            assert_same(*both(monkeypatch, bytes(data), channels))


def test_columns_of_encoded_images_are_decoded_without_pillow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes come as views of Arrow's buffers."""
    data = encoded(picture(20, 30, "RGB"))
    expected = np.asarray(Image.open(io.BytesIO(data)))
    monkeypatch.setattr(Image.Image, "load", None)
    found = unpack(pa.array([data, data]), Encoded("uint8", (20, 30, 3), "jpeg"))
    np.testing.assert_array_equal(np.frombuffer(found.buffers()[1], np.uint8), np.tile(expected.ravel(), 2))


@pytest.mark.parametrize("error", [ImportError, ValueError, AttributeError])
def test_without_a_simplejpeg_that_can_be_loaded_pillow_decodes(monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    def fails(name: str) -> Any:
        raise error(f"{name} was made for another numpy")

    data = encoded(picture(20, 30, "RGB"))
    monkeypatch.setattr(importlib, "import_module", fails)
    jpeg._turbo.cache_clear()
    try:
        assert jpeg.jpeg_shape(data, None) is None
    finally:
        jpeg._turbo.cache_clear()
