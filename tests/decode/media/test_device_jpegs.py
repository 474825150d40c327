"""The parts of a batch's JPEGs are found in one call of the kernels, and are those that are found one by one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from parquet_loader import Image, Ragged
from parquet_loader.decode import BlobProblem, EncodedRows, jpeg_part, jpeg_parts
from tests.support.jpeg import decoded_by

pillow = pytest.importorskip("PIL.Image", reason="Pillow decodes images")


@pytest.fixture
def kernels() -> Iterator[None]:
    with decoded_by("kernels"):
        yield


def picture(height: int, width: int, mode: str = "RGB", format_: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    pillow.new(mode, (width, height), 9).save(out, format_, **options)
    return out.getvalue()


WHOLE = picture(48, 64)
IMAGES = {
    "whole": WHOLE,
    "tall": picture(90, 40, subsampling=0),
    "progressive": picture(48, 64, progressive=True),
    "truncated": WHOLE[:-2],
    "padded": WHOLE + b"\0",
    "missing": b"",
    "two bytes": b"\xff\xd9",
    "grey": picture(48, 64, "L"),
    "CMYK": picture(48, 64, "CMYK"),
    "PNG": picture(48, 64, format_="PNG"),
    "again": WHOLE,
}


def encoded_rows(*files: bytes) -> EncodedRows:
    """Return files as rows, the last one first in memory."""
    joined = EncodedRows.of_ragged(Ragged.from_list(list(files[::-1])))
    return EncodedRows(joined.values, joined.places[::-1].copy())


def generator(row: int) -> np.random.Generator:
    return np.random.default_rng(row)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "field",
    [
        Image(size=32),
        Image((48, 64, 3)),
        Image((48, 64, 3), flip=1.0),
        Image((None, None, 1), size=(20, 30), crop="center"),
        Image(size=32, crop="random", flip=0.5),
        Image(size=32, interpolation="bicubic", crop="center", resize=40),
    ],
    ids=str,
)
def test_parts_are_those_of_one_image(field: Image) -> None:
    def one(row: int, data: bytes) -> Any:
        try:
            return jpeg_part(data, field, generator(row) if field.is_random else None)
        except BlobProblem:  # its size is not the field's; `jpeg_parts` leaves this error to `jpeg_part`
            return None

    expected = {row: part for row, data in enumerate(IMAGES.values()) if (part := one(row, data)) is not None}
    assert expected
    encoded = encoded_rows(*IMAGES.values())
    assert jpeg_parts(encoded, range(len(IMAGES)), field, generator) == expected
    some = range(2, 11)
    assert jpeg_parts(encoded, some, field, generator) == {row: part for row, part in expected.items() if row in some}


@pytest.mark.usefixtures("kernels")
def test_images_that_may_be_turned_are_left_to_one_by_one() -> None:
    assert not jpeg_parts(encoded_rows(WHOLE), range(1), Image(size=32, exif_orientation=True), generator)


@pytest.mark.usefixtures("kernels")
def test_images_beyond_the_limit_of_pixels_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 48 * 64)
    encoded = encoded_rows(WHOLE, picture(48, 65))
    assert list(jpeg_parts(encoded, range(2), Image(size=32), generator)) == [0]


def test_nothing_is_found_without_kernels() -> None:
    with decoded_by("simplejpeg"):
        assert not jpeg_parts(encoded_rows(WHOLE), range(1), Image(size=32), generator)
