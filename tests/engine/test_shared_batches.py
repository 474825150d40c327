"""Idle threads help to decode the media of a batch; batches, errors and replaced rows do not depend on it."""

from __future__ import annotations

import gc
import io
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, Image, OutputOptions, Ragged, Scalar, Schema, write_dataset
from parquet_loader.decode import columns_of, write_image
from parquet_loader.decode.jpeg import JpegTasks
from parquet_loader.engine.engine import Engine
from parquet_loader.engine.media_decoding import MediaBatch, MediaMemory
from parquet_loader.engine.recordings import BatchRows, RowError
from tests.support.examples import examples

PillowImage = pytest.importorskip("PIL.Image", reason="Pillow decodes images")
NUMPY = OutputOptions(format="numpy")
SIDE = 80  # images of fewer pixels are decoded by one thread
ROWS = 24
FIELD = Image(size=(32, 32), crop="random", flip=0.5)


def picture(number: int, format_: str) -> bytes:
    """Return an image, or bytes that are none."""
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    PillowImage.fromarray(pixels).save(out, "JPEG" if format_ == "cut" else format_)
    return out.getvalue()[:700] if format_ == "cut" else out.getvalue()


def media_batch(files: dict[str, list[bytes]], *, replaces: bool = False) -> MediaBatch:
    """Return a batch of columns of images that are cropped at random."""
    numbers = np.arange(ROWS)
    arrays: dict[str, Any] = {name: Ragged.from_list(column, "bytes") for name, column in files.items()}
    columns = columns_of(Schema(dict.fromkeys(files, FIELD)))
    rows = BatchRows(ROWS, 0, numbers, 7, 0)
    return MediaBatch(columns, {**arrays, "number": numbers}, rows, MediaMemory(None), replaces=replaces)


def decoded(batch: MediaBatch, threads: int) -> Any:
    """Return what threads make together, or the row and the text of their error."""
    finished: list[bool] = []
    barrier = threading.Barrier(threads)

    def work() -> None:
        barrier.wait(60)
        finished.append(batch.decode())

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not batch.are_rows_left
    # A thread that is late may find that the others have decoded everything, and were told so.
    assert finished.count(True) == 1
    try:
        arrays, replaced = batch.finish()
    except RowError as error:
        return error.number, str(error)
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()}, replaced


FORMATS = st.sampled_from(["JPEG", "JPEG", "JPEG", "PNG", "cut", "WEBP"])


@settings(max_examples=examples(40), deadline=None)
@given(
    formats=st.lists(st.lists(FORMATS, min_size=ROWS, max_size=ROWS), min_size=1, max_size=2),
    replaces=st.booleans(),
    threads=st.sampled_from([2, 3, 5]),
)
def test_threads_make_what_one_thread_makes(formats: list[list[str]], replaces: bool, threads: int) -> None:
    files = {
        f"c{number}": [picture(row, format_) for row, format_ in enumerate(column)]
        for number, column in enumerate(formats)
    }
    expected = decoded(media_batch(files, replaces=replaces), 1)
    damaged = [(c, row) for c, column in enumerate(formats) for row, format_ in enumerate(column) if format_ == "cut"]
    if damaged and not replaces:
        column, row = min(damaged)
        assert expected[0] == row
        assert f"'c{column}'" in expected[1]
    assert decoded(media_batch(files, replaces=replaces), threads) == expected


@pytest.mark.parametrize("format_", ["JPEG", "PNG"])
def test_threads_decode_one_batch_at_a_time_together(format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = media_batch({"image": [picture(row, format_) for row in range(ROWS)]})
    both, own = threading.Barrier(2), threading.local()

    def meeting(decode: Callable[..., Any]) -> Callable[..., Any]:
        def decode_together(*given: Any) -> Any:
            if not getattr(own, "has_met", False):
                both.wait(60)  # raises an error if only one thread decodes
                own.has_met = True
            return decode(*given)

        return decode_together

    monkeypatch.setattr("parquet_loader.decode.jpeg.JpegTasks.run", meeting(JpegTasks.run))
    monkeypatch.setattr("parquet_loader.engine.media_decoding.write_image", meeting(write_image))
    arrays, _ = decoded(batch, 2)
    assert len(arrays["image"]) == ROWS * 32 * 32 * 3


def test_an_error_that_is_not_about_a_row_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = media_batch({"image": [picture(row, "PNG") for row in range(ROWS)]})

    def refused(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("parquet_loader.engine.media_decoding.write_image", refused)
    with pytest.raises(MemoryError):
        decoded(batch, 3)


@pytest.mark.parametrize("replaces", [False, True])
def test_the_first_error_of_a_file_is_raised(replaces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures of the system are not damage, and are raised in the order of rows, too."""
    files = [picture(row, "PNG") for row in range(ROWS)]
    batch = media_batch({"image": files}, replaces=replaces)
    first: list[threading.Thread] = []
    both = threading.Barrier(2)

    def refused(data: bytes, *_: Any) -> Any:
        if data == files[2]:
            first.append(threading.current_thread())
            both.wait(60)
            raise OSError("row 2")
        if data == files[9]:
            both.wait(60)
            first[0].join(60)
            raise OSError("row 9")
        return None

    monkeypatch.setattr("parquet_loader.engine.media_decoding.write_image", refused)
    with pytest.raises(OSError, match="row 2"):
        decoded(batch, 3)


def test_a_batch_with_replaced_rows_is_freed_at_once() -> None:
    batch = media_batch({"image": [picture(row, "cut" if row == 3 else "JPEG") for row in range(ROWS)]}, replaces=True)
    gone, is_enabled = weakref.ref(batch), gc.isenabled()
    gc.disable()
    try:
        assert decoded(batch, 2)[1]
        del batch
        assert gone() is None
    finally:
        if is_enabled:
            gc.enable()


def test_a_thread_that_comes_late_does_not_finish_the_batch() -> None:
    batch = media_batch({"image": [picture(row, "JPEG") for row in range(ROWS)]})
    assert batch.decode()
    assert not batch.are_rows_left
    assert not batch.decode()


@pytest.mark.parametrize("format_", ["JPEG", "PNG"])
def test_the_loader_delivers_the_same_batches_with_any_number_of_threads(tmp_path: Path, format_: str) -> None:
    rows = [{"id": row, "image": picture(row, format_)} for row in range(90)]
    write_dataset(rows, tmp_path / "data", Schema({"id": Scalar("int64"), "image": Image()}))
    schema = Schema({"id": Scalar("int64"), "image": FIELD})
    found = []
    for threads in (1, 2, 6):
        with BatchedDataLoader(
            tmp_path / "data", 40, schema=schema, shuffle=True, seed=3, num_threads=threads, output_options=NUMPY
        ) as loader:
            found.append([{k: v.tobytes() for k, v in batch.items()} for _ in range(2) for batch in loader])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 6


def test_as_many_transforms_run_at_once_as_there_are_threads(tmp_path: Path) -> None:
    """Also if batches become larger than the data set's rows let expect."""
    write_dataset([{"id": row} for row in range(130)], tmp_path / "data", Schema({"id": Scalar("int64")}))
    threads, together = 6, threading.Barrier(6)

    def transform(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if batch["id"][0]:  # the first batch shows how many bytes a batch takes
            together.wait(60)
        return {**batch, "pixels": np.zeros((len(batch["id"]), 100), np.float32)}

    with BatchedDataLoader(
        tmp_path / "data", 10, transform=transform, num_threads=threads, output_options=NUMPY
    ) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 130


def test_rows_passed_to_transforms_count_towards_the_limit(tmp_path: Path) -> None:
    """Also if a `transform` returns far fewer bytes than it gets."""
    out = io.BytesIO()
    PillowImage.new("RGB", (1000, 1000)).save(out, "JPEG")
    rows = [{"id": row, "image": out.getvalue()} for row in range(48)]
    write_dataset(rows, tmp_path / "data", Schema({"id": Scalar("int64"), "image": Image()}))
    lock, running, most, late = threading.Lock(), 0, 0, threading.Event()

    def transform(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running > 4:
                late.set()
        late.wait(0.2)  # time for more threads than the limit allows
        with lock:
            running -= 1
        return {"id": batch["id"]}

    with BatchedDataLoader(  # batches of 12 MB
        tmp_path / "data", 4, transform=transform, num_threads=12, memory_limit="128MiB", output_options=NUMPY
    ) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 48
    assert most <= 4


def test_an_epoch_with_media_is_freed_without_a_garbage_collection(tmp_path: Path) -> None:
    rows = [{"image": picture(row, "JPEG")} for row in range(30)]
    write_dataset(rows, tmp_path / "data", Schema({"image": Image()}))
    gc.collect()
    before = {id(thing) for thing in gc.get_objects() if isinstance(thing, Engine)}
    gc.disable()
    try:
        with BatchedDataLoader(tmp_path / "data", 10, schema=Schema({"image": FIELD}), output_options=NUMPY) as loader:
            assert sum(len(batch["image"]) for _ in range(2) for batch in loader) == 60
        left = [thing for thing in gc.get_objects() if isinstance(thing, Engine) and id(thing) not in before]
        assert not left
    finally:
        gc.enable()
