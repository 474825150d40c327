"""Measures random resized crops of JPEGs: this package, other loaders, and decoding and resizing alone.

    python -m benchmarks.images [--images 600] [--rounds 5] [--out benchmarks/results/images_crops.json]
    python -m benchmarks.images --systems ours alone tf-data --rounds 20

Half of the images are JPEGs of 500 x 375 pixels, half of 375 x 500, with quality 90 and the spectrum of photographs.
Each system delivers batches of 64 uint8 crops of 224 x 224, flipped with a probability of one half. In one process, the
systems take turns: `ours`, two threads, from Parquet, shuffled; `torch-0` and `torch-2`, a `DataLoader` with 0 and 2
workers over a list of the JPEGs in memory, shuffled, with Pillow's decoder and `torchvision.transforms.v2`; `tensor-0`
and `tensor-2`, the same with `torchvision.io.decode_jpeg` and transforms of tensors; `alone`, what `ours` calls to
decode and resize the JPEGs of a batch, in two threads without a loader; and the peers of `benchmarks.image_peers` that
are installed. Images per second of wall time and of processor time, child processes included: medians, lowest and
highest of epochs that follow an epoch of the same system. Then the rate of `ours` relative to each other system: the
median of the ratios of all rounds, in which a change of the machine's speed counts less. Needs torchvision.
"""

from __future__ import annotations

import argparse
import datetime as dt
import io
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torchvision.io import ImageReadMode, decode_jpeg

from benchmarks.image_peers import PEERS, augmentation, augmented, installed
from parquet_loader import BatchedDataLoader, Image, Ragged, Scalar, Schema, write_dataset
from parquet_loader.decode import EncodedRows, JpegBatch

SIZE = 224
BATCH = 64
FIELD = Image(size=SIZE, crop="random", flip=0.5)
SYSTEMS = ("ours", "torch-0", "torch-2", "alone", "tensor-0", "tensor-2", *PEERS)


def photograph(height: int, width: int, seed: int) -> bytes:
    """Return a JPEG of noise with the spectrum of photographs."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1

    def plane() -> Any:
        noise = rng.normal(size=frequency.shape) + 1j * rng.normal(size=frequency.shape)
        return np.fft.irfft2(noise / frequency**1.2, (height, width))

    grey = plane()
    pixels = np.stack([grey + 0.3 * plane() for _ in range(3)], -1)
    pixels = (pixels - pixels.mean()) / pixels.std() * 50 + 128
    out = io.BytesIO()
    PillowImage.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


class Photographs(torch.utils.data.Dataset[Any]):
    """JPEGs in memory, decoded and augmented by torchvision: images of Pillow, or tensors."""

    def __init__(self, jpegs: list[bytes], *, tensors: bool) -> None:
        self._jpegs = jpegs
        self._tensors = tensors
        self._transform = augmentation(SIZE)

    def __len__(self) -> int:
        return len(self._jpegs)

    def __getitem__(self, index: int) -> Any:
        data = self._jpegs[index]
        if self._tensors:
            raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            return self._transform(decode_jpeg(raw, ImageReadMode.RGB)), index
        return augmented(data, self._transform), index


def processor_s() -> float:
    """Return the processor seconds of this process and of its children that ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def measure(images: int, rounds: int, folder: Path, names: list[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return images per second by system, and how many times as many `ours` delivers: of wall and processor time.

    Without `names`, all systems that are installed are measured.
    """
    jpegs = [photograph(*((375, 500) if n % 2 else (500, 375)), n) for n in range(images)]
    schema = Schema({"image": Image(), "id": Scalar("int64")})
    write_dataset([{"image": data, "id": n} for n, data in enumerate(jpegs)], folder / "data", schema)
    delivered = Schema({"image": FIELD, "id": Scalar("int64")})
    ours = BatchedDataLoader(folder / "data", BATCH, schema=delivered, shuffle=True, num_threads=2)

    def load_ours() -> int:
        return sum(len(batch["image"]) for batch in ours)

    def by_torch(workers: int, *, tensors: bool) -> Callable[[], int]:
        loader = torch.utils.data.DataLoader(
            Photographs(jpegs, tensors=tensors), BATCH, shuffle=True, num_workers=workers
        )
        return lambda: sum(len(batch[0]) for batch in loader)

    arrays = [np.frombuffer(data, np.uint8) for data in jpegs]
    joined = [Ragged.from_list(arrays[first : first + BATCH]) for first in range(0, images, BATCH)]
    batches = [EncodedRows.of_ragged(rows) for rows in joined]

    def alone() -> int:
        def every_second(first: int) -> int:
            out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
            written = 0
            for encoded in batches[first::2]:
                batch = JpegBatch(encoded, range(len(encoded.places)), FIELD, np.random.default_rng, out)
                batch.run()
                written += len(batch.written())
            return written

        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(every_second, range(2)))

    systems: dict[str, Callable[[], int]] = {
        "ours": load_ours,
        "torch-0": by_torch(0, tensors=False),
        "torch-2": by_torch(2, tensors=False),
        "alone": alone,
    }
    try:
        Photographs(jpegs, tensors=True)[0]
        systems |= {"tensor-0": by_torch(0, tensors=True), "tensor-2": by_torch(2, tensors=True)}
    except RuntimeError as error:  # a wheel of torchvision whose image extension does not load
        print(f"tensor-0, tensor-2: {str(error).split('.')[0]}")
    peers, missing = installed(jpegs, SIZE, BATCH, folder)
    systems |= peers
    for name, reason in missing.items():
        print(f"{name}: {reason}")
    names = list(dict.fromkeys(names or systems))
    if absent := set(names) - set(systems):
        raise SystemExit(f"--systems {' '.join(sorted(absent))}: not installed; there are {', '.join(systems)}")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 else reversed(names):
            run = systems[name]
            run()  # a loader that has been waiting has read ahead
            wall, processor = time.perf_counter(), processor_s()
            found = run()
            if found != images:
                raise RuntimeError(f"{name}: {found} of {images} images")
            times[name].append((time.perf_counter() - wall, processor_s() - processor))
    ours.close()
    rates: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for name, pairs in times.items():
        for kind, seconds in zip(("wall", "processor"), zip(*pairs, strict=True), strict=True):
            all_rates = sorted(images / s for s in seconds)
            rates.setdefault(name, {})[kind] = {
                "median": statistics.median(all_rates), "low": all_rates[0], "high": all_rates[-1]
            }  # fmt: skip
        if name != "ours" and "ours" in times:
            ratios[name] = {
                kind: statistics.median(other[at] / own[at] for own, other in zip(times["ours"], pairs, strict=True))
                for at, kind in enumerate(("wall", "processor"))
            }
    return rates, ratios


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rates, ratios = measure(given.images, given.rounds, Path(folder), given.systems)
    for name, kinds in rates.items():
        text = ", ".join(f"{k} {v['median']:,.0f} ({v['low']:,.0f} to {v['high']:,.0f})" for k, v in kinds.items())
        print(f"{name:12} {text}")
    for name, kinds in ratios.items():
        print(f"ours / {name:12} " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in kinds.items()))
    if given.out is not None:
        about = {
            "date": dt.datetime.now(dt.UTC).date().isoformat(), "processors": os.cpu_count(),
            "machine": platform.processor() or platform.machine(), "torch": torch.__version__,
            "images": given.images, "rounds": given.rounds,
        }  # fmt: skip
        found = {"about": about, "images_per_s": rates, "ours_relative_to": ratios}
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
