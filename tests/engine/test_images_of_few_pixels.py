"""Images of few pixels are decoded by one thread at a time, because Pillow releases the GIL for each of them."""

from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import BatchedDataLoader, DataError, Image, OutputOptions, ParquetDataset, Schema, write_dataset
from parquet_loader.engine import media_decoding

pillow = pytest.importorskip("PIL.Image", reason="Pillow decodes images")

ROWS = 500


def written(path: Path, size: int, format_: str = "PNG") -> list[np.ndarray[Any, Any]]:
    """Write images, and return their pixels as Pillow decodes them."""
    rng = np.random.default_rng(size)
    images, pixels = [], []
    for _ in range(ROWS):
        out = io.BytesIO()
        pillow.fromarray(rng.integers(0, 256, (size, size, 3), np.uint8)).save(out, format_)
        images.append(out.getvalue())
        pixels.append(np.asarray(pillow.open(out)))
    write_dataset([{"image": image} for image in images], path, Schema({"image": Image((size, size, 3))}))
    return pixels


class CountingLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.entered = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.entered += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize(("format_", "size", "wait"), [("PNG", 32, True), ("PNG", 80, False), ("JPEG", 32, False)])
def test_only_threads_with_small_images_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, size: int, wait: bool
) -> None:
    expected = written(tmp_path / "data", size, format_)
    lock = CountingLock()
    monkeypatch.setattr("parquet_loader.engine.media_decoding._few_pixels_lock", lock)
    numpy_arrays = OutputOptions(format="numpy")
    with BatchedDataLoader(tmp_path / "data", 90, num_threads=4, output_options=numpy_arrays) as loader:
        found = np.concatenate([batch["image"] for batch in loader])
    np.testing.assert_array_equal(found, expected)
    # For each batch at its first row, and again after 64 rows.
    assert lock.entered == (2 * (ROWS // 90) + 1 if wait else 0)


@pytest.mark.parametrize(
    "field",
    [
        Image((32, 32, 3), flip=0.5),
        Image(size=24, crop="random"),
        Image((32, 32, 3), dtype="float32", channels_first=True),
    ],
)
def test_resized_flipped_and_normalised_images_wait_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: Image
) -> None:
    written(tmp_path / "data", 32)
    lock = CountingLock()
    found = []
    for threads in (1, 4):
        with BatchedDataLoader(tmp_path / "data", 90, schema=Schema({"image": field}), num_threads=threads) as loader:
            found.append(torch.cat([batch["image"] for batch in loader]))
        monkeypatch.setattr("parquet_loader.engine.media_decoding._few_pixels_lock", lock)
    assert torch.equal(*found)
    assert lock.entered == 2 * (ROWS // 90) + 1


def test_images_wait_though_the_first_row_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "data", 32)
    table = pq.read_table(tmp_path / "data")
    images = table["image"].to_pylist()
    images[::64] = [None] * len(images[::64])
    pq.write_table(pa.table({"image": pa.array(images, pa.binary())}), tmp_path / "nulls.parquet")
    lock = CountingLock()
    monkeypatch.setattr("parquet_loader.engine.media_decoding._few_pixels_lock", lock)
    schema = Schema({"image": Image((32, 32, 3), null="mask")})
    with BatchedDataLoader(tmp_path / "nulls.parquet", 64, schema=schema, shuffle=False, num_threads=4) as loader:
        for batch in loader:
            assert not batch["image"][0].any()
            assert batch["image_valid"].tolist() == [False] + [True] * (len(batch["image"]) - 1)
    assert lock.entered == len(images[::64])


def test_a_damaged_image_takes_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(
        [{"image": b"\x89PNG\r\n\x1a\n no image"}] * 3, tmp_path / "data", Schema({"image": Image((16, 16, 3))})
    )
    lock = CountingLock()
    monkeypatch.setattr("parquet_loader.engine.media_decoding._few_pixels_lock", lock)
    with BatchedDataLoader(tmp_path / "data", 3) as loader, pytest.raises(DataError, match="row 0"):
        next(iter(loader))
    assert lock.entered == 0


def test_files_that_rows_name_are_read_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.zeros((16, 16, 3), np.uint8)
    schema = Schema({"image": Image(pixels.shape, storage="path")})
    write_dataset([{"image": "0.png"}] * 90, tmp_path / "data", schema)
    pillow.fromarray(pixels).save(tmp_path / "data" / "0.png")
    lock = CountingLock()
    monkeypatch.setattr("parquet_loader.engine.media_decoding._few_pixels_lock", lock)
    with BatchedDataLoader(tmp_path / "data", 90) as loader:
        assert not next(iter(loader))["image"].any()
    assert lock.entered == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(tmp_path: Path) -> None:
    expected = written(tmp_path / "data", 16)
    data = ParquetDataset(tmp_path / "data")
    with media_decoding._few_pixels_lock:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends it if it waits
            same = np.array_equal(data[0:100]["image"], expected[:100])
            os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
