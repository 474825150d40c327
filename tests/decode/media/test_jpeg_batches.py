"""The JPEGs of a batch are decoded in one call of the kernels, and are those that are decoded one by one."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from parquet_loader import BatchedDataLoader, DataError, Image, OutputOptions, Ragged, Schema, write_dataset
from parquet_loader.decode import BlobProblem
from parquet_loader.decode.media import EncodedRows, JpegBatch, write_image
from tests.support.jpeg import decoded_by

pillow = pytest.importorskip("PIL.Image", reason="Pillow decodes images")


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with decoded_by("kernels"):
        yield


def picture(height: int, width: int, mode: str = "RGB", seed: int = 0, format_: str = "JPEG", **options: Any) -> bytes:
    rng = np.random.default_rng(seed)
    channels = len(pillow.new(mode, (1, 1)).getbands())
    y, x = np.mgrid[:height, :width]
    planes = [np.sin(x / (3 + c)) * np.cos(y / (5 + c)) * 90 + 128 + rng.normal(0, 9, x.shape) for c in range(channels)]
    pixels = np.stack(planes, -1).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    pillow.frombytes(mode, (width, height), pixels.tobytes()).save(out, format_, **options)
    return out.getvalue()


def generator(row: int) -> np.random.Generator:
    return np.random.default_rng(row)


def segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The markers of a JPEG and their segments; the last one reaches to the end."""
    at = 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], data[at:end]
        at = end
    yield 0xDA, data[at:]


def without(data: bytes, *markers: int) -> bytes:
    return data[:2] + b"".join(segment for marker, segment in segments(data) if marker not in markers)


Images = npt.NDArray[Any] | list[npt.NDArray[Any]]


def together(images: Sequence[bytes], field: Image, rows: range | None = None) -> tuple[set[int], Images]:
    """Return the rows that are written by one call, and the batch; its other rows are 7."""
    out: Images = [np.full(1, 7, field.delivered_dtype)] * len(images)
    if field.is_fixed:
        out = np.full((len(images), *(n or 0 for n in field.delivered_shape)), 7, field.delivered_dtype)
    encoded = EncodedRows.of_ragged(Ragged.from_list(list(images)))
    batch = JpegBatch(encoded, rows or range(len(images)), field, generator, out)
    batch.run()
    return batch.written(), out


def alone(data: bytes, row: int, field: Image) -> npt.NDArray[Any] | str:
    try:
        return write_image(data, field, generator(row) if field.is_random else None, None)
    except BlobProblem as problem:
        return str(problem)


def assert_same_as_alone(images: Sequence[bytes], field: Image) -> set[int]:
    written, out = together(images, field)
    for row in written:
        np.testing.assert_array_equal(out[row], alone(images[row], row, field), f"row {row}")
    return written


MIXED = [
    picture(48, 64), picture(48, 64, "L"), picture(48, 64, "CMYK"), picture(48, 64, format_="PNG"), b"",
    picture(48, 64, progressive=True), picture(90, 70, seed=3), picture(48, 64, subsampling=0), b"\xff\xd8\xff",
    picture(48, 64)[:-200], picture(300, 410, seed=5, quality=60), picture(48, 64, optimize=True),
]  # fmt: skip
COLOR, GREY, ALL_48 = {0, 5, 6, 7, 10, 11}, {1}, {0, 5, 7, 11}
FLOATS: dict[str, Any] = {"dtype": "float32", "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("form", [{}, {"dtype": "float32"}, FLOATS])
@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    "place",
    [
        {"size": 40}, {"size": (33, 21), "crop": "random"}, {"size": 24, "crop": "center", "resize": 30},
        {"size": 70, "crop": "center", "interpolation": "bicubic"}, {"size": (48, 64)}, {"shape": (48, 64, 3)},
    ],
)  # fmt: skip
def test_rows_are_those_that_are_decoded_one_by_one(
    channels_first: bool, form: dict[str, Any], flip: float, place: dict[str, Any]
) -> None:
    field = Image(channels_first=channels_first, flip=flip, **form, **place)
    assert assert_same_as_alone(MIXED, field) == (ALL_48 if "shape" in place else COLOR)


@pytest.mark.parametrize("form", [{}, {"dtype": "float32"}, FLOATS])
@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
def test_images_of_different_sizes_get_memory_of_their_own(form: dict[str, Any], flip: float) -> None:
    field = Image(flip=flip, **form)
    assert assert_same_as_alone(MIXED, field) == COLOR
    written, out = together(MIXED, field)
    assert all(image.shape == (1,) for row, image in enumerate(out) if row not in written)
    assert not any(np.shares_memory(one, other) for one, other in itertools.combinations([*out][-2:], 2))


def test_grey_images_are_for_grey_fields() -> None:
    for place in ({"size": 40}, {"size": 20, "crop": "random"}):
        assert assert_same_as_alone(MIXED, Image((None, None, 1), **place)) == GREY
    assert assert_same_as_alone(MIXED, Image((48, 64, 1), channels_first=True)) == GREY


@pytest.mark.parametrize("field", [Image(size=20, exif_orientation=True), Image(size=20, interpolation="nearest")])
def test_other_forms_are_left_to_be_decoded_one_by_one(field: Image) -> None:
    assert together(MIXED, field)[0] == set()


def test_only_the_chosen_rows_are_written() -> None:
    written, out = together(MIXED, Image(size=40), range(5, 8))
    assert written == {5, 6, 7}
    assert isinstance(out, np.ndarray)
    assert (out[[*range(5), *range(8, len(MIXED))]] == 7).all()


def test_images_that_pillow_refuses_for_their_size_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 48 * 64)
    assert together(MIXED, Image(size=40))[0] == ALL_48
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 0)  # Pillow refuses all images
    assert together(MIXED, Image(size=40))[0] == set()
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", None)
    assert together(MIXED, Image(size=40))[0] == COLOR


def test_large_images_are_left_to_be_decoded_one_by_one() -> None:
    images = [picture(48, 64, "L"), picture(2049, 2048, "L"), picture(2048, 2048, "L")]
    assert assert_same_as_alone(images, Image((None, None, 1), size=64)) == {0, 2}


def test_an_image_does_not_get_the_tables_of_the_image_before() -> None:
    """An image without Huffman tables, a frame of Motion JPEG, has the standard ones."""
    own_tables = picture(48, 64, seed=1, optimize=True, quality=95)
    standard = picture(48, 64, seed=2)
    bare = [without(standard, 0xC4), without(standard, 0xDB), without(standard, 0xC4, 0xDB)]
    images = [own_tables, bare[0], bare[1], own_tables, bare[2], picture(48, 64, "L", optimize=True), *bare, own_tables]
    for field in (Image(size=24), Image((48, 64, 3)), Image(), Image(size=24, crop="random")):
        written = assert_same_as_alone(images, field)
        assert written == {0, 1, 3, 6, 9}
    np.testing.assert_array_equal(alone(bare[0], 0, Image(size=24)), alone(standard, 0, Image(size=24)))


def test_many_images_follow_each_other_in_any_order() -> None:
    """A decoder has several images; one that fails, or of which a part is decoded, does not affect the next."""
    rng = np.random.default_rng(0)
    kinds = [
        picture(int(height), int(width), mode, seed, **options)
        for seed, (height, width) in enumerate(rng.integers(1, 90, (12, 2)))
        for mode, options in (("RGB", {}), ("RGB", {"progressive": True}), ("L", {}), ("RGB", {"subsampling": 1}))
    ]
    for field, _ in itertools.product((Image(size=9, crop="random"), Image(size=30), Image()), range(4)):
        images = [kinds[n] for n in rng.integers(len(kinds), size=70)]
        for row in rng.integers(len(images), size=10):
            cut = images[row]
            images[row] = cut[: rng.integers(len(cut))]
        assert len(assert_same_as_alone(images, field)) > 25


@pytest.mark.filterwarnings("ignore")
def test_damaged_images_are_as_if_decoded_one_by_one() -> None:
    rng = np.random.default_rng(1)
    sound = [picture(40, 56), picture(40, 56, "L"), picture(40, 56, progressive=True), picture(40, 56, subsampling=0)]
    for field in (
        Image(size=16),
        Image(),
        Image(size=16, crop="random"),
        Image((40, 56, 3), flip=0.5, dtype="float32"),
    ):
        images = []
        for number in range(150):
            data = bytearray(sound[number % len(sound)])
            for _ in range(rng.integers(1, 5)):
                data[rng.integers(len(data))] = rng.integers(256)
            images.append(bytes(data))
        assert 10 < len(assert_same_as_alone(images, field)) < 120


@pytest.mark.parametrize("on_error", ["raise", "skip_row"])
def test_a_damaged_row_in_a_batch_is_named_or_replaced(tmp_path: Path, on_error: Any) -> None:
    images = [picture(48, 64, seed=n) for n in range(100)]
    images[70] = images[70][:600]
    write_dataset({"image": images}, tmp_path / "data", Schema({"image": Image()}))
    field = Image(size=32, crop="random", flip=0.5)
    loader = BatchedDataLoader(
        tmp_path / "data", 100, schema=Schema({"image": field}), shuffle=False, on_error=on_error,
        output_options=OutputOptions(format="numpy"),
    )  # fmt: skip
    with loader:
        if on_error == "raise":
            with pytest.raises(DataError, match="row 70, column 'image': 600 bytes that are not a readable JPEG"):
                list(loader)
            return
        (batch,) = loader
        np.testing.assert_array_equal(batch["image"][70], batch["image"][71])
        assert len({image.tobytes() for image in batch["image"]}) == 99
