"""The other loaders of `benchmarks.images`, which make random resized crops of JPEGs, if they are installed.

Each function returns a callable that runs one epoch and returns the number of images, or raises `ImportError`. Crops
are drawn like those of torchvision's `RandomResizedCrop`, and flipped with a probability of one half. `tf-data` decodes
only the crop and resizes it without antialiasing, like TensorFlow's own ImageNet pipelines; `tf-antialias` resizes like
all others. LitData and MosaicML read shards from a local disk with a torch `DataLoader` of two workers, Pillow and
torchvision. SPDL decodes, crops, resizes and flips with FFmpeg in two threads.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torchvision.transforms import v2

Epoch = Callable[[], int]


def with_torch(loader: Any) -> Epoch:
    """Return an epoch of a torch `DataLoader` whose batches are pairs of images and numbers."""
    return lambda: sum(len(batch[0]) for batch in loader)


def augmentation(size: int) -> Any:
    """Return torchvision's transform of Pillow's images."""
    return v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])


def augmented(data: bytes, transform: Any) -> Any:
    """Return a decoded and transformed image, uint8 ``[3, size, size]``."""
    image = PillowImage.open(io.BytesIO(data)).convert("RGB")
    return v2.functional.pil_to_tensor(transform(image))


def tf_data(jpegs: list[bytes], size: int, batch: int, *, antialias: bool) -> Epoch:
    """`tf.data` with two threads."""
    tf = importlib.import_module("tensorflow")

    def one(data: Any) -> Any:
        shape = tf.io.extract_jpeg_shape(data)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([0, 0, 4], tf.float32),
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.resize(image, (size, size), antialias=antialias)
        return tf.cast(tf.clip_by_value(tf.image.random_flip_left_right(image), 0, 255), tf.uint8)

    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    data = tf.data.Dataset.from_tensor_slices(jpegs).shuffle(len(jpegs))
    data = data.map(one, num_parallel_calls=2).batch(batch).prefetch(2).with_options(options)
    return lambda: sum(len(images) for images in data)


def litdata(jpegs: list[bytes], size: int, batch: int, folder: Path) -> Epoch:
    """LitData's `StreamingDataLoader` with two workers."""
    module = importlib.import_module("litdata")
    writer = importlib.import_module("litdata.streaming.writer").BinaryWriter(str(folder), chunk_bytes=2**25)
    for number, data in enumerate(jpegs):
        writer[number] = {"image": data, "id": number}
    writer.done()
    writer.merge(1)
    transform = augmentation(size)

    class Crops(module.StreamingDataset):  # type: ignore[misc, name-defined]
        def __getitem__(self, index: Any) -> Any:
            row = super().__getitem__(index)
            return augmented(row["image"], transform), row["id"]

    return with_torch(module.StreamingDataLoader(Crops(str(folder), shuffle=True), batch_size=batch, num_workers=2))


def mosaicml(jpegs: list[bytes], size: int, batch: int, folder: Path) -> Epoch:
    """MosaicML's `StreamingDataset` with two workers."""
    module = importlib.import_module("streaming")
    with module.MDSWriter(out=str(folder), columns={"image": "bytes", "id": "int"}) as writer:
        for number, data in enumerate(jpegs):
            writer.write({"image": data, "id": number})
    transform = augmentation(size)

    class Crops(module.StreamingDataset):  # type: ignore[misc, name-defined]
        def __getitem__(self, index: Any) -> Any:
            row = super().__getitem__(index)
            return augmented(row["image"], transform), row["id"]

    data = Crops(local=str(folder), shuffle=True, batch_size=batch)
    return with_torch(torch.utils.data.DataLoader(data, batch, num_workers=2))


def spdl(jpegs: list[bytes], size: int, batch: int) -> Epoch:
    """SPDL: a pipeline of FFmpeg with two threads."""
    media, pipeline = importlib.import_module("spdl.io"), importlib.import_module("spdl.pipeline")
    rng = np.random.default_rng(0)

    def decoded(data: bytes) -> Any:
        packets = media.demux_image(data)
        probe = torch.empty(1, packets.codec.height, packets.codec.width)
        top, left, height, width = v2.RandomResizedCrop.get_params(probe, (0.08, 1.0), (3 / 4, 4 / 3))
        flip = ",hflip" if rng.random() < 0.5 else ""
        chain = f"crop={width}:{height}:{left}:{top}:exact=1,scale={size}:{size}:flags=bilinear{flip},format=rgb24"
        return media.decode_packets(packets, filter_desc=chain)

    def batched(frames: list[Any]) -> Any:
        return media.to_torch(media.convert_frames(frames))

    def epoch() -> int:
        order = rng.permutation(len(jpegs))
        builder = pipeline.PipelineBuilder().add_source(jpegs[number] for number in order)
        builder = builder.pipe(decoded, concurrency=2).aggregate(batch).pipe(batched).add_sink(2)
        running = builder.build(num_threads=2)
        with running.auto_stop():
            return sum(len(images) for images in running)

    return epoch


PEERS: dict[str, Callable[[list[bytes], int, int, Path], Epoch]] = {
    "tf-data": lambda jpegs, size, batch, _: tf_data(jpegs, size, batch, antialias=False),
    "tf-antialias": lambda jpegs, size, batch, _: tf_data(jpegs, size, batch, antialias=True),
    "litdata-2": lambda jpegs, size, batch, folder: litdata(jpegs, size, batch, folder / "litdata"),
    "mosaicml-2": lambda jpegs, size, batch, folder: mosaicml(jpegs, size, batch, folder / "mosaicml"),
    "spdl": lambda jpegs, size, batch, _: spdl(jpegs, size, batch),
}


def installed(jpegs: list[bytes], size: int, batch: int, folder: Path) -> tuple[dict[str, Epoch], dict[str, str]]:
    """Return the epochs of the installed peers by name, and why others are missing."""
    (folder / "litdata").mkdir()
    epochs: dict[str, Epoch] = {}
    missing: dict[str, str] = {}
    for name, make in PEERS.items():
        try:
            epoch = make(jpegs, size, batch, folder)
            count = epoch()
        except (ImportError, RuntimeError) as error:  # a wheel whose libraries are missing raises either
            missing[name] = str(error)[:100]
            continue
        if count == len(jpegs):
            epochs[name] = epoch
        else:  # SPDL without FFmpeg delivers nothing, and raises nothing
            missing[name] = f"{count} of {len(jpegs)} images"
    return epochs, missing
