"""Resized images equal Pillow's bit for bit, with and without kernels."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.common import IS_BUILT
from parquet_loader.decode.media import resizing
from tests.support.examples import examples

pillow = pytest.importorskip("PIL.Image", reason="Pillow's pixels are the expected ones")
import PIL  # noqa: E402 - after it is known to be there

RESAMPLING = {"bilinear": 2, "bicubic": 3}
BEGINS_WITH_ROWS = int(PIL.__version__.split(".")[0]) >= 13

Interpolation = Literal["bilinear", "bicubic"]

needs_kernels = pytest.mark.skipif(not IS_BUILT, reason="without kernels, Pillow resizes")


def by_pillow(pixels: Any, box: tuple[float, ...], size: tuple[int, int], interpolation: Interpolation) -> Any:
    image = pillow.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))
    return np.asarray(image.resize(size[::-1], RESAMPLING[interpolation], box)).reshape(*size, -1)


@needs_kernels
@settings(max_examples=examples(150), deadline=None)
@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    out_height=st.integers(1, 90),
    out_width=st.integers(1, 90),
    channels=st.sampled_from([1, 3]),
    corners=st.tuples(*[st.floats(0, 1)] * 4),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    is_mirrored=st.booleans(),
    is_stark=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_part_of_any_image_is_resized_as_by_pillow(
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    channels: int,
    corners: tuple[float, float, float, float],
    interpolation: Interpolation,
    is_mirrored: bool,
    is_stark: bool,
    seed: int,
) -> None:
    if not BEGINS_WITH_ROWS and height - out_height > max(0, 2 * (width - out_width)):
        return
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
    if is_stark:  # so that bicubic means leave the range of 8 bits
        pixels = np.where(pixels > 127, np.uint8(255), np.uint8(0))
    left, right = sorted((corners[0] * width, corners[1] * width))
    top, bottom = sorted((corners[2] * height, corners[3] * height))
    if right - left < 0.1 or bottom - top < 0.1:
        left, top, right, bottom = 0, 0, width, height
    box, size = (left, top, right, bottom), (out_height, out_width)
    found = resizing.resize(pixels, box, size, interpolation=interpolation, is_mirrored=is_mirrored, out=None)
    np.testing.assert_array_equal(found[:, ::-1] if is_mirrored else found, by_pillow(pixels, box, size, interpolation))


@pytest.mark.parametrize("view", ["cut", "reversed", "turned", "every second"])
@pytest.mark.parametrize("channels", [1, 3])
def test_views_of_images_are_resized_as_their_copies(view: str, channels: int) -> None:
    whole = np.random.default_rng(0).integers(0, 256, (70, 90, channels), np.uint8)
    pixels = {
        "cut": whole[5:60, 7:71],
        "reversed": whole[::-1, ::-1],
        "turned": whole.transpose(1, 0, 2),
        "every second": whole[::2],
    }[view]
    box = (0.5, 0.25, pixels.shape[1] - 0.5, float(pixels.shape[0]))
    found = resizing.resize(pixels, box, (33, 21), interpolation="bilinear", is_mirrored=False, out=None)
    np.testing.assert_array_equal(found, by_pillow(pixels.copy(), box, (33, 21), "bilinear"))


@needs_kernels
def test_the_given_memory_and_no_byte_more_is_written() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (41, 47, 3), np.uint8)
    for size in [(5, 7), (16, 16), (37, 11)]:
        memory = np.full(size[0] * size[1] * 3 + 64, 7, np.uint8)
        out = memory[32:-32].reshape(*size, 3)
        found = resizing.resize(pixels, (0, 0, 47, 41), size, interpolation="bilinear", is_mirrored=False, out=out)
        assert found is out
        np.testing.assert_array_equal(out, by_pillow(pixels, (0, 0, 47, 41), size, "bilinear"))
        assert (memory[:32] == 7).all()
        assert (memory[-32:] == 7).all()


@pytest.mark.parametrize(("channels", "interpolation"), [(1, "bilinear"), (3, "bicubic"), (4, "bilinear")])
def test_pillow_resizes_alike_without_kernels(
    monkeypatch: pytest.MonkeyPatch, channels: int, interpolation: Interpolation
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 60, channels), np.uint8)
    found = []
    for _ in range(2):
        resized = resizing.resize(
            pixels, (3, 4.5, 55, 40), (20, 30), interpolation=interpolation, is_mirrored=True, out=None
        )
        found.append(resized)
        monkeypatch.setattr(resizing, "KERNELS", None)
    assert found[0].shape == (20, 30, channels)
    np.testing.assert_array_equal(found[0], found[1])
