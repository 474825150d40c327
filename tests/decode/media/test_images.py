"""Images are delivered in their field's size and form: pixels equal Pillow's, and crops torchvision's."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    Image,
    MemoryLimitError,
    OutputOptions,
    ParquetDataset,
    Scalar,
    Schema,
    Shard,
    write_dataset,
)
from parquet_loader.decode import BlobProblem, scale_and_offset
from parquet_loader.decode.media import (
    center_box,
    has_few_pixels,
    image_formats,
    image_pixels,
    random_box,
    uniform,
    write_image,
)
from tests.support.jpeg import decoded_by

pillow = pytest.importorskip("PIL.Image", reason="Pillow decodes images")
features = pytest.importorskip("PIL.features")

NUMPY = OutputOptions(format="numpy")
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def smooth(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A picture with edges, gradients and some noise, like a photograph."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [np.sin(x / (9 + c) + seed) * np.cos(y / (7 + c)) * 100 + 128 + 30 * (x > width / 2) for c in range(3)]
    return (np.stack(planes, -1) + rng.normal(0, 4, (height, width, 1))).clip(0, 255).astype(np.uint8)


def encoded(pixels: npt.NDArray[np.uint8], format_: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    pillow.fromarray(pixels).save(out, format_, **options)
    return out.getvalue()


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def psnr(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    return float(10 * np.log10(255**2 / max(1e-9, np.mean((one.astype(float) - other.astype(float)) ** 2))))


# ------------------------------------------------------------------ which part


@given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    least=st.floats(0.01, 1),
    share=st.floats(0, 1),
    narrow=st.floats(0.1, 4),
    wider=st.floats(1, 4),
    seed=st.integers(0, 2**32),
)
def test_random_parts_are_inside_and_as_the_field_says(
    height: int, width: int, least: float, share: float, narrow: float, wider: float, seed: int
) -> None:
    scale, ratio = (least, least + (1 - least) * share), (narrow, narrow * wider)
    rng, again = generator(seed), generator(seed)
    box = random_box(height, width, scale, ratio, rng)
    assert all(n == int(n) for n in box)
    assert box.left >= 0
    assert box.top >= 0
    assert box.width >= 1
    assert box.height >= 1
    assert box.left + box.width <= width
    assert box.top + box.height <= height
    assert random_box(height, width, scale, ratio, again) == box
    random_box(7, 5, SCALE, RATIO, fresh := generator(seed))
    assert rng.random() == fresh.random()  # the same number of random numbers is drawn for all sizes
    is_fallback = box.left == (width - box.width) // 2 and box.top == (height - box.height) // 2
    if not is_fallback:  # whole pixels: the share of the area is off by half a pixel on each side
        slack = (box.width + 0.5) * (box.height + 0.5) - (box.width - 0.5) * (box.height - 0.5)
        assert scale[0] * height * width - slack <= box.width * box.height <= scale[1] * height * width + slack
        assert (box.width - 0.5) / (box.height + 0.5) <= ratio[1]
        assert (box.width + 0.5) / (box.height - 0.5) >= ratio[0]


def test_random_parts_are_spread_as_torchvisions() -> None:
    """Areas are uniform, proportions log-uniform, positions uniform."""
    rng = generator()
    boxes = np.array([random_box(1000, 1000, (0.1, 0.5), (0.5, 2.0), rng) for _ in range(4000)])
    left, top, width, height = boxes.T
    area, proportion = width * height / 1e6, np.log2(width / height)
    assert np.quantile(area, [0.25, 0.5, 0.75]) == pytest.approx([0.2, 0.3, 0.4], abs=0.02)
    assert np.quantile(proportion, [0.25, 0.5, 0.75]) == pytest.approx([-0.5, 0, 0.5], abs=0.08)
    for begin, length in ((left, width), (top, height)):
        assert np.quantile(begin / (1000 - length), [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.05)


@given(
    height=st.integers(1, 2000), width=st.integers(1, 2000), size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    more=st.none() | st.integers(0, 200),
)  # fmt: skip
def test_middle_parts_are_inside_and_of_the_proportions(
    height: int, width: int, size: tuple[int, int], more: int | None
) -> None:
    box = center_box(height, width, size, None if more is None else max(size) + more)
    assert box.left >= 0
    assert box.top >= 0
    assert box.left + box.width <= width + 1e-6
    assert box.top + box.height <= height + 1e-6
    if more is None:
        assert box.width / box.height == pytest.approx(size[1] / size[0])
        assert box.width == pytest.approx(width) or box.height == pytest.approx(height)


# ------------------------------------------------------------------ pixels

PICTURE = smooth(150, 200)
PNG = encoded(PICTURE, "PNG")


def test_size_alone_resizes_the_whole_image_as_pillow() -> None:
    found = write_image(PNG, Image(size=(60, 90)), None, None)
    np.testing.assert_array_equal(found, pillow.fromarray(PICTURE).resize((90, 60), 2))
    for name, number in (("bicubic", 3), ("nearest", 0)):
        found = write_image(PNG, Image(size=(60, 90), interpolation=name), None, None)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, pillow.fromarray(PICTURE).resize((90, 60), number))


def test_resize_and_center_crop_are_torchvisions() -> None:
    """`Resize(80)`, then `CenterCrop(64)`."""
    whole = np.asarray(pillow.fromarray(PICTURE).resize((106, 80), 2))
    found = write_image(PNG, Image(size=64, crop="center", resize=80), None, None)
    np.testing.assert_allclose(found.astype(int), whole[8:72, 21:85].astype(int), atol=1)


def test_random_resized_crops_are_pillows_of_the_part() -> None:
    field = Image(size=(64, 48), crop="random", flip=0.5)
    seen = set()
    for seed in range(8):
        rng = generator(seed)
        is_flipped = rng.random() < 0.5
        left, top, width, height = map(int, random_box(150, 200, SCALE, RATIO, rng))
        part = PICTURE[top : top + height, left : left + width]
        expected = np.asarray(pillow.fromarray(part).resize((48, 64), 2))
        found = write_image(PNG, field, generator(seed), None)
        np.testing.assert_array_equal(found, expected[:, ::-1] if is_flipped else expected)
        seen.add(is_flipped)
    assert seen == {True, False}


@pytest.mark.parametrize("side", [415, 801, 1603])
def test_large_jpegs_are_decoded_reduced_and_look_the_same(side: int) -> None:
    pixels = smooth(side, side + 30)
    data = encoded(pixels, quality=95)
    whole = np.asarray(pillow.open(io.BytesIO(data)).resize((96, 96), 2))
    assert psnr(write_image(data, Image(size=96), None, None), whole) > 32
    center = Image(size=96, crop="center", resize=110)
    expected = np.asarray(pillow.open(io.BytesIO(data)).resize((int(110 * (side + 30) / side), 110), 2))
    left = round((expected.shape[1] - 96) / 2)
    assert psnr(write_image(data, center, None, None), expected[7:103, left : left + 96]) > 32


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("decoder", ["simplejpeg and kernels", "kernels", "simplejpeg"])
def test_pixels_are_the_same_by_all_decoders_of_jpeg(decoder: str, channels: int) -> None:
    pixels = smooth(611, 803)
    data = encoded(pixels if channels == 3 else pixels[..., 0])
    fields = [
        Image((None, None, channels), size=70),
        Image((None, None, channels), size=(140, 90), crop="center"),
        Image((None, None, channels), size=64, crop="random"),
    ]
    with decoded_by(decoder):
        found = [write_image(data, field, generator(), None) for field in fields]
    with decoded_by("Pillow"):
        for field, pixels in zip(fields, found, strict=True):
            np.testing.assert_array_equal(write_image(data, field, generator(), None), pixels)


def with_marker(data: bytes) -> bytes:
    at = data.index(b"\xff\xda") + 3000  # in the coded pixels
    return data[:at] + b"\xff\xd3" + data[at + 2 :]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_jpeg_that_is_followed_by_others_is_decoded_as_one_that_is_not(is_damaged: bool) -> None:
    first, second = smooth(233, 311), smooth(233, 311, seed=1)
    data = encoded(first, "MPO", save_all=True, append_images=[pillow.fromarray(second)])
    alone = encoded(first)
    if is_damaged:  # libjpeg warns, so that the kernels leave the image to Pillow, which ignores the warning
        data, alone = with_marker(data), with_marker(alone)
    for field in (Image(size=40), Image(size=40, crop="random")):
        expected = write_image(alone, field, generator(), None)
        for decoder in ("simplejpeg and kernels", "Pillow"):
            with decoded_by(decoder):
                np.testing.assert_array_equal(write_image(data, field, generator(), None), expected)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "resize"), [((20, 30), None), ((20, 30), 33), ((90, 40), 130), ((300, 280), 310)])
def test_centers_are_the_same_if_only_they_are_decoded(
    interpolation: Any, size: tuple[int, int], resize: int | None
) -> None:
    """Pixels around the center also affect the result."""
    field = Image(size=size, crop="center", resize=resize, interpolation=interpolation)
    for shape in ((150, 220), (151, 133), (90, 417)):
        data = encoded(smooth(*shape), subsampling=2)
        with decoded_by("kernels"):
            found = write_image(data, field, None, None)
        with decoded_by("Pillow"):
            np.testing.assert_array_equal(write_image(data, field, None, None), found)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_floats_are_normalised_in_either_layout(first: bool, flip: float) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    plain = PICTURE[:, ::-1] if flip else PICTURE
    expected = (plain / 255 - np.array(mean)) / np.array(std)
    field = Image((150, 200, 3), dtype="float32", mean=mean, std=std, channels_first=first, flip=flip)
    found = write_image(PNG, field, None, None)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.transpose(1, 2, 0) if first else found, expected, atol=2e-6)
    ones = write_image(PNG, Image((150, 200, 3), dtype="float32"), None, None)
    np.testing.assert_allclose(ones, PICTURE / 255, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("is_contiguous", [False, True])
def test_floats_are_rounded_after_each_step(channels: int, first: bool, is_contiguous: bool) -> None:
    """The result equals numpy's, without a processor's fused instructions."""
    mean, std = (0.485, 0.456, 0.406, 0.1)[:channels], (0.229, 0.224, 0.225, 0.3)[:channels]
    field = Image((None, None, channels), size=(9, 21), dtype="float32", mean=mean, std=std, channels_first=first)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 21, channels), np.uint8)
    data = encoded(pixels if channels > 1 else pixels[..., 0], "PNG")
    scaled = [scale_and_offset(field, channel) for channel in range(channels)]
    expected = pixels * np.array([scale for scale, _ in scaled]) + np.array([offset for _, offset in scaled])
    assert expected.dtype == np.float32
    shape = (channels, 9, 21) if first else (9, 21, channels)
    out = np.zeros((2, *shape), np.float32)[0] if is_contiguous else np.zeros((*shape, 2), np.float32)[..., 0]
    found = write_image(data, field, None, out)
    np.testing.assert_array_equal(found.transpose(1, 2, 0) if first else found, expected)


@pytest.mark.parametrize("size", [None, 40])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "TIFF"])
def test_images_are_turned_upright_on_request(size: int | None, orientation: int, format_: str) -> None:
    image_ops = pytest.importorskip("PIL.ImageOps")
    exif = pillow.Exif()
    exif[0x0112] = orientation
    data = encoded(smooth(90, 60), format_, exif=exif)
    upright = image_ops.exif_transpose(pillow.open(io.BytesIO(data)))
    stored = pillow.open(io.BytesIO(data))
    if size is not None:
        upright, stored = upright.resize((size, size), 2), stored.resize((size, size), 2)
    found = write_image(data, Image(size=size, exif_orientation=True, flip=1.0), None, None)[:, ::-1]
    if size is None or format_ != "JPEG":
        np.testing.assert_array_equal(found, upright)
    assert psnr(found, np.asarray(upright)) > 35
    assert psnr(write_image(data, Image(size=size, flip=1.0), None, None)[:, ::-1], np.asarray(stored)) > 35


# ------------------------------------------------------------------ formats


@pytest.mark.parametrize(("configured", "expected"), [(0, 1), (3, 3)])
def test_an_avif_is_decoded_in_one_thread_unless_pillow_is_configured(
    monkeypatch: pytest.MonkeyPatch, configured: int, expected: int
) -> None:
    if "AVIF" not in image_formats() or not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    plugin = importlib.import_module("PIL.AvifImagePlugin")
    data, opening, threads = encoded(smooth(40, 60), "AVIF"), pillow.open, []

    def opened(*arguments: Any, **options: Any) -> Any:
        threads.append(plugin.DEFAULT_MAX_THREADS)
        return opening(*arguments, **options)

    monkeypatch.setattr(plugin, "DEFAULT_MAX_THREADS", configured)
    monkeypatch.setattr(pillow, "open", opened)
    assert has_few_pixels(data, 64 * 64)
    assert image_pixels(data, 3, None).shape == (40, 60, 3)
    assert threads == [expected, expected]
    assert configured == plugin.DEFAULT_MAX_THREADS


def test_few_pixels_are_counted_in_supported_formats_only() -> None:
    small = smooth(30, 40)
    assert has_few_pixels(encoded(small, "PNG"), 30 * 40)
    assert has_few_pixels(encoded(small, "GIF"), 30 * 40)
    assert not has_few_pixels(encoded(small, "PNG"), 30 * 40 - 1)
    for others in (encoded(small), encoded(small, "BMP"), encoded(small, "PNG")[:20], b""):
        assert not has_few_pixels(others, 64 * 64)


@pytest.mark.parametrize("format_", ["PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_formats_are_read_as_by_pillow(format_: str) -> None:
    if format_ not in image_formats() or (format_ in ("WEBP", "AVIF") and not features.check(format_.lower())):
        pytest.skip(f"this Pillow has no {format_}")
    data = encoded(PICTURE, format_)
    expected = np.asarray(pillow.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(image_pixels(data, 3, None), expected)
    np.testing.assert_array_equal(
        write_image(data, Image(size=33), None, None), pillow.fromarray(expected).resize((33, 33), 2)
    )


def test_the_first_frame_of_an_animation_is_read() -> None:
    frames = [pillow.fromarray(np.full((6, 8), n, np.uint8)) for n in (10, 200)]
    for format_ in ("GIF", "TIFF"):
        out = io.BytesIO()
        frames[0].save(out, format_, save_all=True, append_images=frames[1:])
        assert (image_pixels(out.getvalue(), 1, None) == 10).all()


@pytest.mark.parametrize("mode", ["I;16", "F", "I"])
def test_tiffs_of_more_than_8_bits_are_refused(mode: str) -> None:
    dtype = {"I;16": np.uint16, "F": np.float32, "I": np.int32}[mode]
    data = encoded(np.full((4, 4), 300, dtype), "TIFF")
    with pytest.raises(BlobProblem, match=r"a TIFF of (16|32) bits a channel, which uint8 cannot hold"):
        image_pixels(data, 1, None)


def test_other_formats_are_refused() -> None:
    with pytest.raises(BlobProblem, match="not a readable JPEG, PNG, WebP, AVIF, GIF or TIFF"):
        image_pixels(encoded(PICTURE, "BMP"), 3, None)


# ------------------------------------------------------------------ loaders


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of several sizes and formats."""
    root = tmp_path_factory.mktemp("photos") / "data"
    formats = ["JPEG", "PNG", "GIF", "JPEG"]
    rows = [{"id": row, "image": encoded(smooth(50 + row, 90 - row // 2, row), formats[row % 4])} for row in range(60)]
    write_dataset(rows, root, Schema({"id": Scalar("int64"), "image": Image()}))
    return root


FIELD = Image(size=(24, 20), crop="random", flip=0.5)


def by_id(source: Any, batch_size: int = 7, epoch: int = 0, **options: Any) -> dict[int, npt.NDArray[Any]]:
    options = {"schema": Schema({"id": Scalar("int64"), "image": FIELD}), "output_options": NUMPY, **options}
    found: dict[int, npt.NDArray[Any]] = {}
    with BatchedDataLoader(source, batch_size, **options) as loader:
        loader.set_epoch(epoch)
        for batch in loader:
            assert list(batch) == ["id", "image"]
            found.update(zip(batch["id"].tolist(), batch["image"], strict=True))
    return found


def as_given(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return columns


def test_a_crop_is_a_function_of_seed_epoch_and_row_alone(photos: Path) -> None:
    expected = by_id(photos)
    assert len(expected) == 60
    for options in (
        {"shuffle": True},
        {"batch_size": 16, "num_threads": 3},
        {"shuffle": True, "window_rows": 14},
        {"isolation": "process"},
        {"transform": as_given, "transform_workers": 1},
        {"filters": [("id", ">=", 30)]},
        {"on_error": "skip_row"},
    ):
        for row, image in by_id(photos, **options).items():
            np.testing.assert_array_equal(image, expected[row])
    ranks = [by_id(photos, shard=Shard(rank, 2)) for rank in range(2)]
    assert len(ranks[0]) + len(ranks[1]) >= 56
    for row, image in (ranks[0] | ranks[1]).items():
        np.testing.assert_array_equal(image, expected[row])
    other_seed, other_epoch = by_id(photos, seed=1), by_id(photos, epoch=1)
    assert sum((other_seed[row] == expected[row]).all() for row in expected) < 3
    assert sum((other_epoch[row] == expected[row]).all() for row in expected) < 3


def test_resumed_crops_are_those_of_the_whole_epoch(photos: Path) -> None:
    options: Any = {"schema": Schema({"image": FIELD}), "output_options": NUMPY, "shuffle": True}
    with BatchedDataLoader(photos, 8, **options) as loader:
        whole = [batch["image"] for batch in loader]
    with BatchedDataLoader(photos, 8, **options) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
    with BatchedDataLoader(photos, 8, **options) as loader:
        loader.load_state_dict(state)
        np.testing.assert_array_equal(np.concatenate([b["image"] for b in loader]), np.concatenate(whole[2:]))


def test_rows_by_index_are_those_of_the_first_epoch_of_seed_0(photos: Path) -> None:
    expected = by_id(photos)
    with ParquetDataset(photos, Schema({"id": Scalar("int64"), "image": FIELD})).rows(output_options=NUMPY) as rows:
        batch = rows.take([40, 3, 3])
    assert list(batch) == ["id", "image"]
    for row, image in zip(batch["id"].tolist(), batch["image"], strict=True):
        np.testing.assert_array_equal(image, expected[row])


def test_columns_of_a_row_are_cropped_alike(tmp_path: Path) -> None:
    image, mask = smooth(60, 80), (np.arange(60 * 80).reshape(60, 80) % 5).astype(np.uint8)
    stored = Schema({"image": Image(), "mask": Image((None, None, 1))})
    write_dataset([{"image": encoded(image, "PNG"), "mask": encoded(mask, "PNG")}] * 6, tmp_path / "data", stored)
    crop: Any = {"size": 16, "crop": "random", "flip": 0.5, "interpolation": "nearest"}
    schema = Schema({"image": Image(**crop), "mask": Image((None, None, 1), **crop)})
    pairs = {tuple(pixel): value for pixel, value in zip(image.reshape(-1, 3).tolist(), mask.ravel(), strict=True)}
    with BatchedDataLoader(tmp_path / "data", 6, schema=schema, output_options=NUMPY) as loader:
        (batch,) = loader
    where = (image[:, :, None, None] == batch["image"][0][None, None, :4, :4]).all(-1)
    assert where.any()
    wrong = sum(
        pairs[tuple(pixel)] != value
        for pixel, value in zip(batch["image"].reshape(-1, 3).tolist(), batch["mask"].ravel().tolist(), strict=True)
    )
    assert wrong < 0.02 * batch["mask"].size  # pixels of one color may have several values


def test_batches_are_tensors_of_the_declared_form(photos: Path) -> None:
    torch = pytest.importorskip("torch", reason="batches of tensors")
    field = Image(size=(24, 20), crop="center", dtype="float32", channels_first=True)
    for isolation in ("thread", "process"):
        with BatchedDataLoader(photos, 6, schema=Schema({"image": field}), isolation=isolation) as loader:
            for batch in loader:
                assert batch["image"].shape == (6, 3, 24, 20)
                assert batch["image"].dtype == torch.float32
                assert 0 <= float(batch["image"].min()) <= float(batch["image"].max()) <= 1


def test_gaps_are_black(tmp_path: Path) -> None:
    write_dataset([{"image": PNG}, {"image": None}], tmp_path / "data", Schema({"image": Image(null="mask", fill=PNG)}))
    field = Image(size=4, dtype="float32", mean=(0.5, 0.25, 0), std=(0.5, 0.5, 1), null="mask", channels_first=True)
    with BatchedDataLoader(tmp_path / "data", 2, schema=Schema({"image": field}), output_options=NUMPY) as loader:
        (batch,) = loader
    assert batch["image_valid"].tolist() == [True, False]
    assert batch["image"][1, :, 0, 0].tolist() == [-1, -0.5, 0]


def test_damage_names_the_row_of_a_random_field(tmp_path: Path) -> None:
    rows = [{"id": row, "image": PNG if row != 4 else PNG[:200]} for row in range(6)]
    write_dataset(rows, tmp_path / "data", Schema({"id": Scalar("int64"), "image": Image()}))
    with pytest.raises(DataError, match=r"row group 0, row 4, column 'image': 200 bytes that are not a readable"):
        by_id(tmp_path / "data", 3, shuffle=True)
    with (
        ParquetDataset(tmp_path / "data", Schema({"image": FIELD})).rows(output_options=NUMPY) as found,
        pytest.raises(DataError, match=r"row group 0, row 4, column 'image': 200 bytes that are not a readable"),
    ):
        found.take([3, 4])


# ------------------------------------------------------------------ files that rows name


@pytest.fixture
def named(tmp_path: Path) -> Path:
    rows = [{"id": row, "image": f"media/{row}.png"} for row in range(4)]
    write_dataset(rows, tmp_path / "data", Schema({"id": Scalar("int64"), "image": Image(storage="path")}))
    (tmp_path / "data" / "media").mkdir()
    for row in range(4):
        (tmp_path / "data" / "media" / f"{row}.png").write_bytes(encoded(np.full((6, 5, 3), row, np.uint8), "PNG"))
    return tmp_path / "data"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_rows_may_name_files_below_the_data_set(named: Path, isolation: str) -> None:
    schema = Schema({"id": Scalar("int64"), "image": Image(storage="path", size=3, crop="random")})
    for row, image in by_id(named, 2, schema=schema, isolation=isolation).items():
        assert (image == row).all()
    with ParquetDataset(named, schema).rows(output_options=NUMPY) as rows:
        assert (rows.take([2])["image"] == 2).all()


def test_structs_of_bytes_and_path_are_read_by_either(named: Path) -> None:
    type_ = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    both = encoded(np.full((6, 5, 3), 9, np.uint8), "PNG")
    pq.write_table(pa.table({"image": pa.array([{"bytes": both, "path": "media/1.png"}], type_)}), named / "s.parquet")
    for storage, value in (("bytes", 9), ("path", 1)):
        schema = Schema({"image": Image((6, 5, 3), storage=storage)})  # type: ignore[arg-type]
        with BatchedDataLoader(named / "s.parquet", 1, schema=schema, output_options=NUMPY) as loader:
            assert (next(iter(loader))["image"] == value).all()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/etc/hostname", "expected a relative path"),
        ("media/../../secret.png", "expected a relative path"),
        ("https://example.com/a.png", "expected a relative path"),
        ("media/link.png", "leads out of the data set"),
        ("media/none.png", "cannot be opened"),
    ],
)
def test_paths_lead_nowhere_else(named: Path, path: str, problem: str) -> None:
    secret = named.parent / "secret.png"
    secret.write_bytes(PNG)
    (named / "media" / "link.png").symlink_to(secret)
    pq.write_table(pa.table({"id": [9, 10], "image": [path, "media/1.png"]}), named / "more.parquet")
    schema = Schema({"id": Scalar("int64"), "image": Image((6, 5, 3), storage="path")})
    with pytest.raises(DataError, match=rf"column 'image', row 0 of batch 0: .*{problem}"):
        by_id(named, 2, schema=schema)
    found = by_id(named, 2, schema=schema, on_error="skip_row")
    assert sorted(found) == [0, 1, 2, 3, 10]


# ------------------------------------------------------------------ fields


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "expected lengths from 1"),
        ({"size": (1, 2, 3)}, r"expected \(height, width\), or one number"),
        ({"size": True}, "expected lengths from 1"),
        ({"size": 2.5}, r"expected \(height, width\), or one number"),
        ({"crop": "random"}, r"needs size="),
        ({"crop": "middle", "size": 4}, "expected 'center', 'random' or None"),
        ({"size": 8, "resize": 9}, "only with crop='center'"),
        ({"size": 8, "crop": "center", "resize": 7}, r"expected a whole number from 8"),
        ({"size": 8, "scale": (0.5, 1)}, "only with crop='random'"),
        ({"size": 8, "crop": "random", "scale": (0.5, 1.5)}, "at most 1"),
        ({"size": 8, "crop": "random", "ratio": (2, 1)}, r"expected \(least, largest\)"),
        ({"flip": True}, "expected a probability"),
        ({"flip": 1.5}, "expected a probability"),
        ({"dtype": "float64"}, "expected 'uint8' or 'float32'"),
        ({"mean": (0, 0, 0)}, "only with dtype='float32'"),
        ({"dtype": "float32", "std": (1, 0, 1)}, "none of them 0"),
        ({"dtype": "float32", "mean": (0.5,)}, "expected 3 numbers"),
        ({"channels_first": True}, "needs a shape without None, or size="),
        ({"null": "mask"}, "needs a shape without None, size="),
        ({"size": 8, "interpolation": "lanczos"}, "expected 'bilinear', 'bicubic' or 'nearest'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Image(**arguments)


def test_fields_survive_json() -> None:
    field = Image(
        (None, None, 3), size=(8, 9), crop="random", scale=(0.2, 0.9), ratio=(1, 2), flip=0.25, dtype="float32",
        mean=(0.1, 0.2, 0.3), std=(1, 2, 3), channels_first=True, exif_orientation=True, interpolation="bicubic",
    )  # fmt: skip
    schema = Schema({"image": field, "other": Image(size=224, storage="path", fill="none.png")})
    assert Schema.from_json(schema.to_json()) == schema
    assert '"size":[224,224]' in schema.to_json()


# ------------------------------------------------------------------ damage


def damaged(count: int) -> list[bytes]:
    """Images of all formats with changed, removed and repeated bytes."""
    rng = generator(7)
    picture = smooth(40, 56)
    sound = [encoded(picture, format_) for format_ in ("JPEG", "PNG", "GIF", "TIFF")]
    sound += [encoded(picture, format_) for format_ in ("WEBP", "AVIF") if features.check(format_.lower())]
    sound += [encoded(picture, progressive=True), encoded(picture, "TIFF", compression="tiff_lzw")]
    found = []
    for number in range(count):
        data = bytearray(sound[number % len(sound)])
        for _ in range(rng.integers(1, 8)):
            data[rng.integers(len(data))] = rng.integers(256)
        if rng.random() < 0.3:
            data = data[: rng.integers(len(data) + 1)]
        elif rng.random() < 0.1:
            data += data[rng.integers(len(data)) :]
        found.append(bytes(data))
    return found


def check_damaged(count: int) -> None:
    fields = [Image(size=16), Image(size=16, crop="random"), Image(size=12, crop="center", exif_orientation=True)]
    refused = 0
    for number, data in enumerate(damaged(count)):
        try:
            found = write_image(data, fields[number % 3], generator(number), None)
        except BlobProblem:
            refused += 1
        else:
            assert found.shape[2] == 3
    assert 0 < refused < count


@pytest.mark.filterwarnings("ignore")
def test_damaged_images_are_refused_or_read() -> None:
    check_damaged(1500)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_damaged_images_are_refused_or_read() -> None:
    check_damaged(20_000)


def test_a_limit_that_decoded_batches_exceed_is_refused_with_their_size(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b"any"] * 100}), tmp_path / "a.parquet")
    schema = Schema({"image": Image(size=224, dtype="float32")})
    with pytest.raises(MemoryLimitError, match=r"4 batches of 36\.\d MiB and the reads .* use memory_limit=\d+MiB"):
        BatchedDataLoader(tmp_path / "a.parquet", 64, schema=schema, memory_limit="100MiB").plan()


def test_random_numbers_are_those_of_the_raw_stream() -> None:
    """Crops and flips must stay the same if numpy changes the results of its own methods."""
    words = np.random.Philox(key=[1, 2]).random_raw(3).tolist()
    drawn = uniform(np.random.Generator(np.random.Philox(key=[1, 2])), 3)
    assert drawn.tolist() == [(word >> 11) / 2**53 for word in words]
