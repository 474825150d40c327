"""Decodes the JPEGs of batches on a device, and crops, resizes, mirrors and normalises them there.

Everything runs in the caller's thread, and on the CPU the same operations follow our own decoder. Invariants:

- A JPEG that the device's decoder refuses is decoded by the CPU, as without a device; so is a batch for which the
  device has no memory.
- Decoders read the encoded bytes from host memory, and write on a stream of their own to memory of the current stream.
  So the side stream is idle when they begin, and the host memory is kept until the side stream has passed the batch.
- Decoded originals take at most `ORIGINALS_BYTES`, or one image. All device memory is allocated, and that of originals
  is freed, while the side stream is current.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from parquet_loader.collate.device.cuda import Upload, UploadedBatch, moved, on_stream
from parquet_loader.collate.device.registered_memory import HeldSources
from parquet_loader.collate.output import Batch, DeviceFigures
from parquet_loader.collate.tensors import batch_tensors, host_tensor
from parquet_loader.decode import JpegPart, decode_jpeg, scale_and_offset
from parquet_loader.engine import EncodedImages, ProcessedBatch
from parquet_loader.errors import MissingPackageError

# Large enough for decoders that work on a batch of images at once.
ORIGINALS_BYTES = 64 << 20
# The weights of the pixels, for a part of the images at a time, and a few copies of them.
WEIGHTS_BYTES = 16 << 20
_WORK_BYTES = ORIGINALS_BYTES + 6 * WEIGHTS_BYTES + (96 << 20)

_Originals: TypeAlias = "list[torch.Tensor | None]"
"""Decoded images, uint8 ``[channels, height, width]``; None for those that are refused."""
_Decoder: TypeAlias = Callable[[list[torch.Tensor], Sequence[JpegPart], int], _Originals]


class DeviceImages:
    """Decodes images on one device.

    Args:
        device: A CUDA device, or the CPU.

    Raises:
        MissingPackageError: No package decodes JPEGs on a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._decode: _Decoder = _on_cpu if device.type == "cpu" else _on_gpu(device)
        self._side: torch.cuda.Stream | None = None
        self._held = HeldSources()

    def upload(self, batch: ProcessedBatch, figures: DeviceFigures) -> Batch:
        """Return a batch on the device, with its images decoded; if the device has no memory, on the CPU.

        Raises:
            DataError: An image cannot be decoded.
        """
        self._held.release(most=1)
        try:
            with self._on_side(), torch.no_grad(), torch.autocast(self._device.type, enabled=False):
                return self._uploaded(batch, figures)
        except torch.cuda.OutOfMemoryError:
            figures.count_images("out of device memory", sum(len(images.parts) for images in batch.encoded.values()))
        return batch_tensors(batch.decoded())

    def release(self) -> None:
        """Release the memory whose images are decoded."""
        self._held.release()

    def _on_side(self) -> AbstractContextManager[Any]:
        if self._device.type == "cpu":
            return nullcontext()
        if self._side is None:  # made at the first use, because it uses the GPU
            self._side = torch.cuda.Stream(self._device)
        return on_stream(self._side, self._device)

    def _uploaded(self, batch: ProcessedBatch, figures: DeviceFigures) -> UploadedBatch:
        columns: Batch = {}
        sources: list[torch.Tensor] = []
        taken, refused, others = 0, 0, 0
        for name, array in batch.arrays.items():
            source = host_tensor(array, batch.owners.get(name))
            images = batch.encoded.get(name)
            if images is None:
                columns[name] = moved(source, self._device)
                continue
            sources.append(source)
            columns[name], failed = self._column(images, source)
            taken, refused, others = taken + len(images.parts), refused + failed, others + len(images.others)
        upload = Upload(self._device, self._side, list(columns.values()))
        self._held.hold(upload.event, sources)
        figures.images += taken - refused
        figures.count_images("refused by the device", refused)
        figures.count_images("not plain JPEGs", others)
        return UploadedBatch(columns.items(), upload)

    def _column(self, images: EncodedImages, files: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return a column of images, and how many of them the device refused."""
        shape = (images.rows.count, *images.pixels.shape[1:])
        column = torch.empty(shape, dtype=torch.from_numpy(images.pixels).dtype, device=self._device)
        refused: list[int] = []
        for jpegs in _portions(images.parts, images.field.shape[2]):
            encoded = [files[images.offsets[n] : images.offsets[n + 1]] for n in jpegs]
            if self._side is not None:
                self._side.synchronize()
            originals = self._decode(encoded, [images.parts[n] for n in jpegs], images.field.shape[2])
            refused += [n for n, original in zip(jpegs, originals, strict=True) if original is None]
            found = [(n, original) for n, original in zip(jpegs, originals, strict=True) if original is not None]
            del originals
            if found:
                done = _delivered(images, [n for n, _ in found], [original for _, original in found])
                self._put(column, images.numbers[[n for n, _ in found]], done)
        pixels = np.empty((len(refused), *shape[1:]), images.pixels.dtype)
        for n, out in zip(refused, pixels, strict=True):
            images.write(files.numpy(), n, out)
        self._put(column, images.numbers[refused], torch.from_numpy(pixels))
        self._put(column, images.others, torch.from_numpy(images.pixels))
        return column, len(refused)

    def _put(self, column: torch.Tensor, rows: npt.NDArray[np.int64], images: torch.Tensor) -> None:
        if len(rows):
            column.index_copy_(0, torch.from_numpy(rows).to(self._device), images.to(self._device))


def image_device_bytes(batch_bytes: float) -> int:
    """Return the most bytes that decoding takes on a device: two batches, one in float32, and the work space.

    Args:
        batch_bytes: Bytes of a delivered batch.
    """
    return int(6 * batch_bytes) + _WORK_BYTES


def _portions(parts: Sequence[JpegPart], channels: int) -> Iterator[list[int]]:
    """Divide JPEGs into consecutive portions of `ORIGINALS_BYTES` decoded; yield their numbers."""
    portion: list[int] = []
    nbytes = 0
    for number, part in enumerate(parts):
        size = part.height * part.width * channels
        if portion and nbytes + size > ORIGINALS_BYTES:
            yield portion
            portion, nbytes = [], 0
        portion.append(number)
        nbytes += size
    if portion:
        yield portion


def _delivered(images: EncodedImages, jpegs: list[int], originals: list[torch.Tensor]) -> torch.Tensor:
    """Return decoded images in the form that the field delivers, ``[jpegs, *delivered_shape]``."""
    field = images.field
    parts = [images.parts[n] for n in jpegs]
    if field.size is None and not any(part.is_flipped for part in parts):
        pixels = torch.stack(originals)
    else:
        size = field.shape[:2] if field.size is None else field.size
        pixels = _resized(originals, parts, size, is_cubic=field.interpolation == "bicubic")  # type: ignore[arg-type]
    if field.delivered_dtype == np.float32:
        factors = [scale_and_offset(field, channel) for channel in range(field.shape[2])]
        scale, offset = torch.from_numpy(np.array(factors, np.float32).T.reshape(2, -1, 1, 1).copy()).to(pixels.device)
        pixels = pixels.float().mul_(scale).add_(offset)
    else:
        pixels = pixels.to(torch.uint8)
    return pixels if field.channels_first else pixels.permute(0, 2, 3, 1)


def _resized(
    originals: Sequence[torch.Tensor], parts: Sequence[JpegPart], size: tuple[int, int], *, is_cubic: bool
) -> torch.Tensor:
    """Return the parts of images, resized and mirrored: whole numbers as float32 ``[images, channels, *size]``.

    Each delivered row and column is a weighted mean of stored ones, as in `resize`: two products of matrices.
    """
    device = originals[0].device
    done = torch.empty((len(parts), len(originals[0]), *size), dtype=torch.float32, device=device)
    heights = [part.region.bottom - part.region.top for part in parts]
    widths = [part.region.right - part.region.left for part in parts]
    at_once = max(1, WEIGHTS_BYTES // (4 * max(size[0] * max(heights), size[1] * max(widths))))
    for first in range(0, len(parts), at_once):
        some = slice(first, first + at_once)
        rows = np.array([(p.box.top - p.region.top, p.box.height) for p in parts[some]])
        columns = np.array([(p.box.left - p.region.left, p.box.width) for p in parts[some]])
        is_flipped = np.array([p.is_flipped for p in parts[some]])
        of_rows = _weights(rows, np.zeros_like(is_flipped), heights[some], size[0], device, is_cubic=is_cubic)
        of_columns = _weights(columns, is_flipped, widths[some], size[1], device, is_cubic=is_cubic)
        for number, part in enumerate(parts[some]):
            region = part.region
            pixels = originals[first + number][:, region.top : region.bottom, region.left : region.right].float()
            across = of_columns[number, :, : pixels.shape[2]].T
            torch.matmul(torch.matmul(of_rows[number, :, : pixels.shape[1]], pixels), across, out=done[first + number])
    return done.round_().clamp_(0, 255)


def _weights(
    boxes: npt.NDArray[np.float64],
    is_flipped: npt.NDArray[np.bool_],
    lengths: Sequence[int],
    size: int,
    device: torch.device,
    *,
    is_cubic: bool,
) -> torch.Tensor:
    """Return the weight of each stored pixel in each delivered one along an axis, float32 ``[images, size, longest]``.

    Args:
        boxes: ``[images, 2]``: where the part that is resized begins, and its length, in stored pixels.
        is_flipped: bool ``[images]``: whether the axis is mirrored.
        lengths: The number of stored pixels; later ones get no weight.
        size: The number of delivered pixels.
        device: Where to compute.
        is_cubic: Whether the filter is bicubic, as Pillow's; else bilinear.
    """
    steps = boxes[:, 1] / size
    begins = boxes[:, 0] + steps * np.where(is_flipped, size - 0.5, 0.5)
    numbers = np.stack([begins, np.where(is_flipped, -steps, steps), np.maximum(steps, 1), lengths]).astype(np.float32)
    begin, step, scale, length = torch.from_numpy(numbers[:, :, None, None]).to(device)
    centers = begin + step * torch.arange(size, dtype=torch.float32, device=device)[:, None]
    stored = torch.arange(max(lengths), dtype=torch.float32, device=device)
    distance = ((stored + 0.5 - centers) / scale).abs_()
    if is_cubic:
        near = ((1.5 * distance - 2.5) * distance).mul_(distance).add_(1)
        far = ((-0.5 * distance + 2.5) * distance - 4).mul_(distance).add_(2)
        weights = torch.where(distance < 1, near, far).masked_fill_(distance >= 2, 0)
    else:
        weights = (1 - distance).clamp_(min=0)
    weights.masked_fill_(stored >= length, 0)
    return weights.div_(weights.sum(2, keepdim=True))


def _on_cpu(files: list[torch.Tensor], parts: Sequence[JpegPart], channels: int) -> _Originals:
    """Decode JPEGs on the CPU."""
    found: _Originals = []
    for encoded, part in zip(files, parts, strict=True):
        pixels = np.empty((part.height, part.width, channels), np.uint8)
        is_decoded = decode_jpeg(encoded.numpy().data, pixels)
        found.append(torch.from_numpy(pixels).permute(2, 0, 1) if is_decoded else None)
    return found


def _on_gpu(device: torch.device) -> _Decoder:
    """Return the function that decodes JPEGs on a CUDA device: of torchcodec, or of torchvision before its removal."""
    problems: list[str] = []
    for name in ("torchcodec.decoders", "torchvision.io"):
        try:
            module = importlib.import_module(name)
            decode, modes = module.decode_jpeg, getattr(module, "ImageReadMode", None)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:  # not there, not loadable, or too old
            problems.append(f"{name}: {str(error).partition(chr(10))[0]}")
            continue
        break
    else:
        raise MissingPackageError(
            "OutputOptions(decode_on_device=True) decodes JPEGs with torchcodec 0.16 or later, or torchvision, built "
            f"for CUDA ({'; '.join(problems)}): pip install torchcodec, or leave decode_on_device out"
        )

    def decoded(files: list[torch.Tensor], channels: int) -> list[torch.Tensor]:
        mode = "RGB" if channels == 3 else "GRAY"
        found: list[torch.Tensor] = decode(files, mode=mode if modes is None else modes[mode], device=device)
        return found

    def each(files: list[torch.Tensor], parts: Sequence[JpegPart], channels: int) -> _Originals:
        found: _Originals = []
        try:
            found += decoded(files, channels)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # without saying of which image
            found = []
            for one in files:
                try:
                    found += decoded([one], channels)
                except torch.cuda.OutOfMemoryError:
                    raise
                except RuntimeError:
                    found.append(None)
        shapes = [(channels, part.height, part.width) for part in parts]
        return [p if p is not None and p.shape == shape else None for p, shape in zip(found, shapes, strict=True)]

    return each
