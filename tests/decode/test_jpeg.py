"""Decoding JPEG with libjpeg-turbo gives the same pixels, and the same errors, as Pillow."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from parquet_loader.decode import jpeg
from parquet_loader.decode.array_formats import BlobProblem, image_array
from parquet_loader.decode.encoded_columns import unpack
from parquet_loader.decode.jpeg import Region
from parquet_loader.decode.media import image_pixels, write_image
from parquet_loader.schema import Encoded
from parquet_loader.schema import Image as ImageField
from tests.support.examples import grid
from tests.support.jpeg import DECODERS, decoded_by

FAST = [name for name in DECODERS if name != "Pillow"]


def picture(height: int, width: int, mode: str, seed: int = 0) -> Image.Image:
    """Smooth shapes, which JPEG preserves, with noise, which it does not."""
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


def both(decoder: str, data: bytes, channels: int) -> tuple[Any, Any]:
    """Return the results of a decoder and of Pillow for an image."""
    with decoded_by(decoder):
        found = outcome(data, channels)
    with decoded_by("Pillow"):
        return found, outcome(data, channels)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected), (found, expected)
    if isinstance(found, str):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected)


@grid(
    "progressive, mode, size, channels, decoder",
    [False, True],
    ["L", "RGB", "CMYK"],
    [(1, 1), (7, 5), (16, 16), (33, 17), (224, 224)],
    [1, 3, 4],
    FAST,
    everyday=lambda progressive, mode, size, channels, decoder: (
        size != (224, 224) or (channels == 3 and (mode == "RGB" or not progressive))
    ),
)
def test_pixels_are_those_of_pillow(
    decoder: str, channels: int, size: tuple[int, int], mode: str, progressive: bool
) -> None:
    for quality, subsampling in ((10, 2), (75, 0), (75, 1), (95, 2)):
        data = encoded(picture(*size, mode, quality), quality=quality, subsampling=subsampling, progressive=progressive)
        found, expected = both(decoder, data, channels)
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


@pytest.mark.parametrize("decoder", FAST)
@pytest.mark.parametrize("progressive", [False, True])
def test_cut_images_are_refused_as_by_pillow(decoder: str, progressive: bool) -> None:
    data = encoded(picture(48, 40, "RGB"), progressive=progressive)
    for length in range(0, len(data), 7):
        assert_same(*both(decoder, data[:length], 3))


@pytest.mark.parametrize("data", [b"", b"nothing", b"\xff\xd8\xff"])
def test_bytes_that_are_no_image_are_described_by_their_number_alone(data: bytes) -> None:
    for decode, formats in (
        (lambda: image_pixels(data, 3, None), "JPEG, PNG, WebP, AVIF, GIF or TIFF"),
        (lambda: image_array(data), "JPEG or PNG"),
    ):
        said = f"{len(data)} bytes that are not a readable {formats}: cannot identify image file"
        with pytest.raises(BlobProblem, match=f"^{said}$"):
            decode()


@pytest.mark.parametrize("decoder", FAST)
@given(
    seed=st.integers(0, 20),
    mode=st.sampled_from(["L", "RGB", "CMYK"]),
    progressive=st.booleans(),
    restart=st.sampled_from([0, 2]),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_changed_bytes_give_what_pillow_gives(
    decoder: str, seed: int, mode: str, progressive: bool, restart: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(encoded(picture(32, 24, mode, seed), progressive=progressive, restart_marker_blocks=restart))
    for place, value in changes:
        data[place % len(data)] = value
    for channels in (1, 3):
        assert_same(*both(decoder, bytes(data), channels))


def test_columns_of_encoded_images_are_decoded_without_pillow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes come as views of Arrow's buffers."""
    data = encoded(picture(20, 30, "RGB"))
    expected = np.asarray(Image.open(io.BytesIO(data)))
    monkeypatch.setattr(Image.Image, "load", None)
    found = unpack(pa.array([data, data]), Encoded("uint8", (20, 30, 3), "jpeg"))
    np.testing.assert_array_equal(np.frombuffer(found.buffers()[1], np.uint8), np.tile(expected.ravel(), 2))


@pytest.mark.parametrize("error", [ImportError, ValueError, AttributeError])
def test_without_a_decoder_that_can_be_loaded_pillow_decodes(monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    def fails(name: str) -> Any:
        raise error(f"{name} was made for another numpy")

    data = encoded(picture(20, 30, "RGB"))
    jpeg._decoders.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", fails)
        assert jpeg.jpeg_shape(data, None) is None
    jpeg._decoders.cache_clear()


# ------------------------------------------------------------------ parts of images


@pytest.fixture
def kernels() -> Iterator[None]:
    with decoded_by("kernels"):
        yield


def decoded(data: bytes, factor: int = 1, part: Region | None = None) -> npt.NDArray[np.uint8] | None:
    """Return an image, of which only `part` is decoded; None if it is declined. Pixels that are not decoded are 7."""
    shape = jpeg.jpeg_shape(data, None)
    if shape is None:
        return None
    out = np.full(jpeg.reduced_shape(shape, factor), 7, np.uint8)
    return out if jpeg.decode_jpeg(data, out, factor, part) else None


def random_part(rng: np.random.Generator, height: int, width: int) -> Region:
    (top, bottom), (left, right) = (np.sort(rng.choice(side + 1, 2, replace=False)) for side in (height, width))
    return Region(int(top), int(bottom), int(left), int(right))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("subsampling", [0, 1, 2, None])
def test_a_part_has_the_pixels_of_the_whole(subsampling: int | None, factor: int) -> None:
    rng = np.random.default_rng(factor)
    for seed in range(40):
        height, width = map(int, rng.integers(1, 40 if seed % 2 else 200, 2))
        mode = "L" if subsampling is None else "RGB"
        options = {} if subsampling is None else {"subsampling": subsampling}
        # Pillow 13 cannot write markers for small images.
        restart = 3 if seed % 3 == 0 and min(height, width) > 40 else 0
        data = encoded(picture(height, width, mode, seed), restart_marker_blocks=restart, **options)
        whole = decoded(data, factor)
        assert whole is not None
        for _ in range(5):
            part = random_part(rng, *whole.shape[:2])
            found = decoded(data, factor, part)
            assert found is not None
            at = np.s_[part.top : part.bottom, part.left : part.right]
            np.testing.assert_array_equal(found[at], whole[at], str((height, width, seed, part)))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_rows_and_columns_around_a_part_are_not_decoded(mode: str) -> None:
    found = decoded(encoded(picture(200, 300, mode)), 1, Region(100, 120, 150, 160))
    assert found is not None
    assert (found[:100] == 7).all()
    assert (found[120:] == 7).all()
    assert (found[:, :128] == 7).all()
    assert (found[:, 180:] == 7).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": "4:1:1"}, {"comment": b"\xff\xd9" * 9}])
def test_images_of_any_kind_have_parts(options: dict[str, Any]) -> None:
    """Some of them are decoded as a whole."""
    data = encoded(picture(90, 70, "RGB"), **options)
    whole, found = decoded(data), decoded(data, 1, Region(40, 50, 30, 45))
    assert whole is not None
    assert found is not None
    np.testing.assert_array_equal(found[40:50, 30:45], whole[40:50, 30:45])


@pytest.mark.usefixtures("kernels")
def test_an_image_that_ends_behind_the_part_is_declined() -> None:
    """Pillow refuses it, whichever part is asked for."""
    data = encoded(picture(200, 100, "RGB"))
    end = decoded(data, 1, Region(0, 16, 0, 100))
    assert end is not None
    for length in range(len(data) // 2, len(data), 97):
        assert decoded(data[:length], 1, Region(0, 16, 0, 100)) is None
    assert decoded(data + b"more", 1, Region(0, 16, 0, 100)) is not None


@given(
    seed=st.integers(0, 2**20),
    subsampling=st.integers(0, 2),
    restart=st.sampled_from([0, 2]),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
    crop=st.sampled_from(["center", "random"]),
)
def test_crops_of_changed_bytes_are_those_of_pillow(
    seed: int, subsampling: int, restart: int, changes: list[tuple[int, int]], crop: Any
) -> None:
    """Also of images that are damaged outside of the crop: Pillow reads some of them, and refuses others."""
    image = picture(64, 56, "RGB", seed % 20)
    data = bytearray(encoded(image, subsampling=subsampling, restart_marker_blocks=restart))
    for place, value in changes:
        data[place % len(data)] = value

    def made(name: str) -> Any:
        with decoded_by(name):
            try:
                return write_image(bytes(data), ImageField(size=12, crop=crop), np.random.default_rng(seed), None)
            except BlobProblem as problem:
                return str(problem)

    assert_same(made("kernels"), made("Pillow"))
