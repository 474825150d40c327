"""Images that a device decodes: on a CPU "device" by the same operations, after our own decoder."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    Image,
    MemoryLimitError,
    MissingPackageError,
    OutputOptions,
    Scalar,
    Schema,
    Shard,
    Text,
)
from parquet_loader.collate.device import images as device_images
from parquet_loader.collate.device.images import DeviceImages
from parquet_loader.collate.device.pinned_memory import PinnedMemory
from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.decode import JpegPart
from parquet_loader.decode.media import Box
from parquet_loader.window import Allocation
from tests.support.outputs import leaves

PillowImage = pytest.importorskip("PIL.Image", reason="Pillow decodes images")

ON_DEVICE = OutputOptions(decode_on_device=True)
ROWS = 60
ORIENTATION = 0x0112


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Without it, threads of small operations take turns on a busy machine: ten times the processor time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def picture(number: int, height: int, width: int) -> Any:
    """Return an image with soft edges, as photographs have."""
    coarse = np.random.default_rng(number).integers(0, 256, (-(-height // 12), -(-width // 12), 3), dtype=np.uint8)
    return PillowImage.fromarray(coarse).resize((width, height), 3)


def encoded(image: Any, format_: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format_, **options)
    return out.getvalue()


def written(path: Path, images: list[Any]) -> str:
    """Write rows of four row groups in two files: images, or None, and their numbers."""
    path.mkdir()
    table = pa.table({"image": pa.array(images, pa.binary()), "id": np.arange(len(images)), "text": list("ab") * 30})
    for file in range(2):
        pq.write_table(table.slice(30 * file, 30), path / f"{file}.parquet", row_group_size=15)
    return str(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """JPEGs of different sizes, of which some are progressive, in three kinds of color sampling."""
    rng = np.random.default_rng(0)
    images = [
        encoded(picture(n, *rng.integers(70, 120, 2).tolist()), quality=92, progressive=n % 7 == 0, subsampling=n % 3)
        for n in range(ROWS)
    ]
    return written(tmp_path_factory.mktemp("photos") / "data", images)


@pytest.fixture(scope="module")
def equal_photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """JPEGs of one size."""
    images = [encoded(picture(n, 40, 56)) for n in range(ROWS)]
    return written(tmp_path_factory.mktemp("equal") / "data", images)


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """JPEGs, and images that a device does not decode: four of each kind."""
    whole = encoded(picture(1, 80, 90), quality=90)
    turned = PillowImage.Exif()
    turned[ORIENTATION] = 6
    others = {
        "PNG": encoded(picture(2, 90, 80), "PNG"),
        "grey": encoded(picture(3, 90, 80).convert("L")),
        "CMYK": encoded(picture(4, 90, 80).convert("CMYK")),
        "turned": encoded(picture(5, 90, 80), exif=turned),
        "padded": whole + bytes(8),
        "null": None,
    }
    images = [encoded(picture(n, 80, 90)) for n in range(ROWS)]
    for kind, image in enumerate(others.values()):
        images[10 * kind : 10 * kind + 4] = [image] * 4  # type: ignore[list-item]
    return written(tmp_path / "mixed", images)


def schema_of(field: Image) -> Schema:
    return Schema({"image": field, "id": Scalar("int64")})


def both(path: str, field: Image, batch_size: int = 16, **options: Any) -> tuple[BatchedDataLoader, BatchedDataLoader]:
    """Return loaders with and without decoding on the device."""
    options = {"schema": schema_of(field), "shuffle": True, "seed": 3, "window_rows": 40, "device": "cpu", **options}
    given = {"output_options": ON_DEVICE, **options}
    plain = OutputOptions(row_numbers=given["output_options"].row_numbers)
    options["output_options"] = plain
    return BatchedDataLoader(path, batch_size, **given), BatchedDataLoader(path, batch_size, **options)


def differences(path: str, field: Image, batch_size: int = 16, **options: Any) -> tuple[float, float, Any]:
    """Return the largest difference of values, the mean difference, and the figures of the device.

    All else of the batches is equal: rows, columns, dtypes, shapes.
    """
    loader, plain = both(path, field, batch_size, **options)
    found: list[npt.NDArray[np.float64]] = []
    with loader, plain:
        for batch, expected in zip(loader, plain, strict=True):
            assert type(batch) is dict
            assert list(batch) == list(expected)
            mine, its = batch.pop("image"), expected.pop("image")
            assert (mine.dtype, mine.shape) == (its.dtype, its.shape)
            assert mine.is_contiguous()
            found.append(np.abs(mine.double().numpy() - its.double().numpy()).reshape(-1))
            for name, column in expected.items():
                for one, other in zip(leaves(batch[name]), leaves(column), strict=True):
                    np.testing.assert_array_equal(one, other)
        assert loader.state_dict() == plain.state_dict()
        every = np.concatenate(found)
        return float(every.max()), float(every.mean()), loader.stats().device


FIELDS = [
    Image(size=64),
    Image(size=(48, 100)),
    Image(size=130),
    Image(size=64, crop="center"),
    Image(size=50, crop="center", resize=56, flip=1.0),
    Image(size=(64, 40), crop="random", scale=(0.6, 1.0), flip=0.5),
    Image(size=64, channels_first=True),
]


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_pixels_differ_by_one_level_from_those_of_the_cpu(photos: str, field: Image) -> None:
    largest, mean, figures = differences(photos, field)
    assert largest <= 1
    assert mean < 0.25
    assert (figures.images, figures.cpu_images) == (ROWS, {})


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_bicubic_pixels_differ_by_two_levels(photos: str, field: Image) -> None:
    shape = {name: getattr(field, name) for name in ("size", "crop", "resize", "scale", "flip", "channels_first")}
    largest, mean, _ = differences(photos, Image(**shape, interpolation="bicubic"))
    assert largest <= 2
    assert mean < 0.25


def test_normalised_values_differ_by_one_level(photos: str) -> None:
    std = (0.2, 0.25, 0.5)
    field = Image(size=64, crop="random", scale=(0.6, 1.0), flip=0.5, dtype="float32", mean=(0.4, 0.5, 0.6), std=std)
    largest, _, _ = differences(photos, field)
    assert largest <= 1.001 / 255 / min(std)


def test_images_that_the_cpu_decodes_at_half_size_differ_more(photos: str) -> None:
    largest, mean, _ = differences(photos, Image(size=32))
    assert mean < 3
    assert largest < 40


@pytest.mark.parametrize("crop", [None, "center"])
def test_pixels_are_those_of_pillow_from_the_whole_image(photos: str, crop: Any) -> None:
    """Also if images are reduced to a third, for which the workers decode at a reduced size."""
    field = Image(size=24, crop=crop)
    loader, _ = both(photos, field, shuffle=False)
    files = pq.read_table(photos, columns=["image"])["image"].to_pylist()
    with loader:
        rows = [row for batch in loader for row in batch["image"].numpy()]
    for data, row in zip(files, rows, strict=True):
        whole = PillowImage.open(io.BytesIO(data))
        box = (0.0, 0.0, *map(float, whole.size))
        if crop == "center":
            side = min(whole.size)
            left, top = (whole.width - side) / 2, (whole.height - side) / 2
            box = (left, top, left + side, top + side)
        expected = np.asarray(whole.resize((24, 24), 2, box)).astype(int)
        assert np.abs(row.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "field", [Image((40, 56, 3)), Image((40, 56, 3), flip=0.5, channels_first=True)], ids=["plain", "flipped"]
)
def test_images_that_are_not_resized_are_equal(equal_photos: str, field: Image, isolation: Any) -> None:
    largest, _, figures = differences(equal_photos, field, isolation=isolation)
    assert largest == 0
    assert figures.images == ROWS


@pytest.mark.parametrize(
    "options",
    [
        {"shard": Shard(0, 2)},
        {"shard": Shard(1, 3), "drop_last": True},
        {"batch_size": 7, "num_threads": 1},
        {"isolation": "process"},
        {"schema": Schema({"text": Text(), "image": FIELDS[5]})},
        {"output_options": OutputOptions(decode_on_device=True, row_numbers="number"), "columns": ["image"]},
    ],
    ids=lambda options: "-".join(options),
)
def test_rows_crops_and_flips_are_those_of_the_cpu(photos: str, options: dict[str, Any]) -> None:
    options = dict(options)
    largest, _, figures = differences(photos, FIELDS[5], options.pop("batch_size", 16), **options)
    assert largest <= 1
    assert not figures.reasons


def test_windows_that_a_device_could_permute_are_counted(photos: str) -> None:
    both_options = OutputOptions(decode_on_device=True, shuffle_on_device=True)
    largest, _, figures = differences(photos, FIELDS[5], output_options=both_options)
    assert largest <= 1
    assert figures.reasons == {"transform or media": 4}
    assert figures.images == ROWS


def test_every_batch_can_be_resumed_at_and_kept(photos: str) -> None:
    loader, _ = both(photos, FIELDS[5])
    with loader:
        every = [batch["image"] for batch in loader]
        for number in range(len(every)):
            loader.seek(0, number)
            rest = [batch["image"] for batch in loader]
            assert all(one.equal(other) for one, other in zip(rest, every[number:], strict=True))


def test_images_of_other_formats_and_gaps_are_those_of_the_cpu(mixed: str) -> None:
    field = Image(size=64, crop="random", flip=0.5, scale=(0.8, 1.0), exif_orientation=True, null="mask")
    largest, _, figures = differences(mixed, field)
    assert largest <= 1
    assert (figures.images, figures.cpu_images) == (ROWS - 24, {"not plain JPEGs": 24})
    loader, plain = both(mixed, field, shuffle=False, window_rows=None)
    with loader, plain:
        for batch, expected in zip(loader, plain, strict=True):
            is_other = batch["id"] % 10 < 4
            assert batch["image"][is_other].equal(expected["image"][is_other])


def test_images_of_files_that_rows_name_are_decoded_on_the_device(photos: str, tmp_path: Path) -> None:
    data = tmp_path / "named"
    data.mkdir()
    images = pq.read_table(photos, columns=["image"])["image"].to_pylist()
    names = [f"{number}.jpg" for number in range(ROWS)]
    for name, image in zip(names, images, strict=True):
        (data / name).write_bytes(image)
    pq.write_table(pa.table({"image": names, "id": range(ROWS)}), data / "rows.parquet")
    field = Image(size=64, crop="random", scale=(0.6, 1.0), storage="path")
    largest, _, figures = differences(str(data), field)
    assert largest <= 1
    assert figures.images == ROWS


def test_batches_without_any_jpeg_are_those_of_the_cpu(tmp_path: Path) -> None:
    path = written(tmp_path / "data", [encoded(picture(n, 50, 40), "PNG") for n in range(ROWS)])
    largest, _, figures = differences(path, Image(size=32, dtype="float32", mean=(0.5,) * 3))
    assert largest == 0
    assert (figures.images, figures.cpu_images) == (0, {"not plain JPEGs": ROWS})


def test_an_orientation_that_is_not_applied_does_not_matter(mixed: str) -> None:
    _, _, figures = differences(mixed, Image(size=64, null="mask"))
    assert figures.images == ROWS - 20


@pytest.mark.parametrize(
    "options",
    [
        {"transform": lambda columns, _: columns},
        {"on_error": "skip_row"},
        {"field": Image(size=32, interpolation="nearest")},
        {"field": Image((None, None, 4), size=32)},
    ],
    ids=["transform", "skip_row", "nearest", "four_channels"],
)
def test_other_batches_are_decoded_by_the_workers_and_counted(photos: str, options: dict[str, Any]) -> None:
    options = dict(options)
    largest, _, figures = differences(photos, options.pop("field", Image(size=32)), **options)
    assert largest == 0
    assert figures.reasons == {"no images for the device": 4}
    assert (figures.images, figures.cpu_images) == (0, {})


def test_images_of_different_sizes_are_decoded_by_the_workers(photos: str) -> None:
    loader, plain = both(photos, Image())
    with loader, plain:
        for batch, expected in zip(loader, plain, strict=True):
            assert all(one.equal(other) for one, other in zip(batch["image"], expected["image"], strict=True))
        assert loader.stats().device.reasons == {"no images for the device": 4}  # type: ignore[union-attr]


def test_other_formats_get_the_pixels_of_the_cpu(photos: str) -> None:
    """`to_tf`, `to_keras` and `to_grain` take arrays of an engine that leaves images to a device."""
    loader, plain = both(photos, FIELDS[5])
    with loader, plain:
        for batch, expected in zip(loader._iterate(ArrayOutput(None)), plain, strict=True):
            np.testing.assert_array_equal(batch["image"], expected["image"])
            np.testing.assert_array_equal(batch["id"], expected["id"])


def damaged(data: bytes) -> bytes:
    """Return a JPEG that our decoder refuses, and Pillow decodes: with a marker in the midst of its pixels."""
    scan = data.index(b"\xff\xda")
    at = scan + (len(data) - scan) // 2
    return data[:at] + b"\xff\xd0" + data[at + 2 :]


def unreadable(data: bytes) -> bytes:
    """Return a JPEG whose header names Huffman tables that it lacks."""
    at = data.index(b"\xff\xda")
    return data[: at + 6] + b"\x33" + data[at + 7 :]


def test_an_image_that_the_device_refuses_is_decoded_by_the_cpu(tmp_path: Path) -> None:
    images = [encoded(picture(n, 80, 90)) for n in range(ROWS)]
    images[7], images[33] = damaged(images[7]), damaged(images[33])
    path = written(tmp_path / "data", images)
    largest, _, figures = differences(path, Image(size=64))
    assert largest <= 1
    assert figures.cpu_images == {"refused by the device": 2}
    assert figures.images == ROWS - 2


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize("flip", [0.0, 0.5], ids=["plain", "random"])
def test_a_damaged_image_raises_the_error_of_the_cpu(tmp_path: Path, flip: float, isolation: Any) -> None:
    images = [encoded(picture(n, 80, 90)) for n in range(ROWS)]
    images[40] = unreadable(images[40])
    path = written(tmp_path / "data", images)
    errors, delivered = [], []
    for loader in both(path, Image(size=64, flip=flip), shuffle=False, isolation=isolation):
        batches = []
        with loader, pytest.raises(DataError) as caught:
            batches += list(map(len, (batch["id"] for batch in loader)))
        errors.append(str(caught.value))
        delivered.append(batches)
    assert errors[0] == errors[1]
    assert ("1.parquet, row group 0, row 10, column 'image'" if flip else "row 8 of batch 2") in errors[0]


@pytest.mark.parametrize("images_at_once", [1, 3])
def test_originals_are_decoded_in_portions(photos: str, monkeypatch: pytest.MonkeyPatch, images_at_once: int) -> None:
    largest_image = 120 * 120 * 3
    monkeypatch.setattr(device_images, "ORIGINALS_BYTES", images_at_once * largest_image)
    monkeypatch.setattr(device_images, "WEIGHTS_BYTES", images_at_once * 64 * 120 * 4)
    assert differences(photos, Image(size=64))[0] <= 1


def test_a_batch_that_the_device_has_no_memory_for_is_decoded_by_the_cpu(
    photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, calls = DeviceImages._column, 0

    def failing(self: DeviceImages, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return upload(self, *arguments)

    monkeypatch.setattr(DeviceImages, "_column", failing)
    largest, _, figures = differences(photos, Image(size=64))
    assert largest <= 1
    assert figures.cpu_images == {"out of device memory": 16}
    assert figures.images == ROWS - 16


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_memory_owned_by_tensors_gives_the_same_batches(
    photos: str, monkeypatch: pytest.MonkeyPatch, isolation: Any
) -> None:
    """The path of pinned memory, with tensors that are not pinned."""

    def allocate(_: PinnedMemory, nbytes: int) -> Allocation:
        owner = torch.empty(nbytes + 100, dtype=torch.uint8)[:nbytes]
        return Allocation(owner.numpy(), owner)

    monkeypatch.setattr(PinnedMemory, "allocate", allocate)
    monkeypatch.setattr("parquet_loader.collate.torch_output.TensorOutput.allocator", lambda *_: PinnedMemory())
    assert differences(photos, FIELDS[5], isolation=isolation)[0] <= 1


def test_autocast_of_the_caller_does_not_change_pixels(photos: str) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert differences(photos, FIELDS[5])[0] <= 1


def test_device_memory_limit_is_checked_before_the_first_read(photos: str) -> None:
    limit = OutputOptions(decode_on_device=True, device_memory_limit="100MiB")
    with pytest.raises(MemoryLimitError, match=r"limit=100.0 MiB cannot hold .*; use device_memory_limit=\d+MiB"):
        list(both(photos, Image(size=64), output_options=limit)[0])
    enough = OutputOptions(decode_on_device=True, device_memory_limit="300MiB")
    loader, _ = both(photos, Image(size=64), output_options=enough)
    assert len(list(loader)) == 4


def test_options_that_do_not_fit_are_refused(photos: str) -> None:
    with pytest.raises(ConfigurationError, match="decode_on_device and device_memory_limit are for tensors"):
        OutputOptions(format="numpy", decode_on_device=True)
    with pytest.raises(ConfigurationError, match=r"decode_on_device=True.*: device=None delivers batches on the CPU"):
        BatchedDataLoader(photos, 16, output_options=ON_DEVICE)
    with pytest.raises(ConfigurationError, match="decode_on_device=1"):
        OutputOptions(decode_on_device=1)  # type: ignore[arg-type]


class FakeDecoders(types.ModuleType):
    """Stands for torchcodec or torchvision: decodes a batch only if it can decode all of it.

    Attributes:
        calls: The number of images of each call, and the mode.
    """

    def __init__(self, name: str, *, has_modes: bool) -> None:
        super().__init__(name)
        self.calls: list[tuple[int, Any]] = []
        if has_modes:
            self.ImageReadMode = {"RGB": 3, "GRAY": 1}

    def decode_jpeg(self, files: list[torch.Tensor], *, mode: Any, device: torch.device) -> list[torch.Tensor]:
        self.calls.append((len(files), mode))
        if any(not len(file) for file in files):
            raise RuntimeError("Failed to decode batch: 5")
        return [torch.full((3, len(file), 4), int(file[0]), dtype=torch.uint8, device=device) for file in files]


@pytest.mark.parametrize("name", ["torchcodec.decoders", "torchvision.io"])
def test_a_decoder_of_a_gpu_decodes_one_by_one_if_it_refuses_a_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = FakeDecoders(name, has_modes=name == "torchvision.io")
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setitem(sys.modules, name.partition(".")[0], types.ModuleType(name.partition(".")[0]))
    monkeypatch.setitem(sys.modules, name, module)
    decode = device_images._on_gpu(torch.device("cpu"))
    files = [torch.full((n,), n, dtype=torch.uint8) for n in (2, 3, 0, 5)]
    parts = [JpegPart(n, 4, Box(0, 0, 4, n), None, False) for n in (2, 3, 4, 9)]  # type: ignore[arg-type]
    found = decode(files, parts, 3)
    assert [None if image is None else image.tolist()[0][0][0] for image in found] == [2, 3, None, None]
    mode = 3 if name == "torchvision.io" else "RGB"
    assert module.calls == [(4, mode), (1, mode), (1, mode), (1, mode), (1, mode)]
    module.calls.clear()
    assert all(image is not None for image in decode(files[:2], parts[:2], 3))
    assert module.calls == [(2, mode)]


def test_without_a_decoder_for_the_gpu_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchcodec.decoders", "torchvision.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="pip install torchcodec, or leave decode_on_device out"):
        device_images._on_gpu(torch.device("cpu"))


@pytest.mark.cuda
@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("field", [FIELDS[3], FIELDS[5]], ids=str)
def test_a_gpu_decodes_the_same_rows(photos: str, field: Image, isolation: Any) -> None:
    """The pixels differ by what nvJPEG rounds in another way; all batches are kept until the last one."""
    try:
        loader, _ = both(photos, field, isolation=isolation, device="cuda")
    except MissingPackageError as error:
        pytest.skip(str(error))
    _, plain = both(photos, field)
    with loader, plain:
        batches = list(loader)
        for batch, expected in zip(batches, plain, strict=True):
            assert batch["image"].is_cuda
            assert batch["id"].cpu().equal(expected["id"])
            difference = (batch["image"].cpu().int() - expected["image"].int()).abs()
            assert difference.float().mean() < 2
        assert loader.stats().device.images == ROWS  # type: ignore[union-attr]
