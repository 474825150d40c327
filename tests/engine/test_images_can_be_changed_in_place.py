"""Decoded images are writable whatever their format, and `transform` may return Pillow's."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image as PillowImage

from parquet_loader import BatchedDataLoader, Image, OutputOptions, Schema, TransformError, write_dataset

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)


def encoded(pixels: npt.NDArray[np.uint8], encoding: str, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    PillowImage.fromarray(pixels).convert(mode).save(out, encoding)
    return out.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    formats = [("PNG", "RGB"), ("JPEG", "RGB"), ("PNG", "L"), ("JPEG", "CMYK"), ("PNG", "P")]
    rows = [{"image": encoded(PIXELS[i:], *kind)} for i, kind in enumerate(formats)]
    write_dataset(rows, tmp_path / "images", Schema({"image": Image()}))
    return tmp_path / "images"


def test_transform_may_change_images_in_place(images: Path) -> None:
    def erased(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        for image in columns["image"]:
            image[:2] = 7
        return columns

    with BatchedDataLoader(images, 5, transform=erased) as loader:
        assert all((image[:2] == 7).all() for image in next(iter(loader))["image"])


def test_images_in_batches_of_arrays_are_writable(images: Path) -> None:
    with BatchedDataLoader(images, 5, output_options=OutputOptions(format="numpy")) as loader:
        assert all(image.flags.writeable for image in next(iter(loader))["image"])


def test_images_become_tensors_in_transform_without_a_warning(images: Path) -> None:
    def to_tensors(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return {"image": [torch.from_numpy(image).permute(2, 0, 1) for image in columns["image"]]}

    with BatchedDataLoader(images, 5, transform=to_tensors) as loader:
        assert [image.shape[0] for image in next(iter(loader))["image"]] == [3] * 5


def test_transform_may_return_images_of_pillow(images: Path) -> None:
    def turned(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        return {"image": [PillowImage.fromarray(image).rotate(90, expand=True) for image in columns["image"]]}

    with BatchedDataLoader(images, 5, transform=turned) as loader:
        assert [tuple(image.shape) for image in next(iter(loader))["image"]] == [(10, 8 - i, 3) for i in range(5)]


def test_a_transform_that_changes_the_number_of_rows_is_told_where_to_do_that(images: Path) -> None:
    with (
        BatchedDataLoader(images, 5, transform=lambda columns, _: {"size": np.zeros(7)}) as loader,
        pytest.raises(TransformError, match="5 rows, found 7; a transform keeps the number of rows"),
    ):
        next(iter(loader))
