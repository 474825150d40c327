"""`EpisodeLoader`: samples of consecutive rows against plain Python, over ranks, states and forms of files."""

from __future__ import annotations

import io
import json
import pickle
import re
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    Audio,
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    Encoded,
    EpisodeLoader,
    Episodes,
    Image,
    MemoryLimitError,
    MixedLoader,
    OutputOptions,
    ParquetDataset,
    ParquetIterable,
    ResumeError,
    Scalar,
    Schema,
    SchemaError,
    Shard,
    ShardOptions,
    TransformError,
    UnsupportedError,
    split,
    split_rows,
)
from parquet_loader.engine import WindowMedia
from parquet_loader.loader.episodes.sample_windows import SampleCutter
from parquet_loader.loader.episodes.sample_writer import _take
from tests.support.examples import examples, grid
from tests.support.gloo import on_ranks

NUMPY = OutputOptions(format="numpy")
LENGTHS = [5, 1, 40, 3, 17, 60, 2, 2, 33, 9]


def table_of(lengths: Sequence[int]) -> pa.Table:
    """Rows that tell where they are from: `row` counts them over the data set, `frame` over the episode."""
    rows, frames = np.arange(sum(lengths)), [np.arange(n) for n in lengths]
    state = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * len(rows)), pa.float32()), 2)
    return pa.table(
        {
            "episode": np.repeat(np.arange(len(lengths)) * 7919 % 1009, lengths),
            "row": rows,
            "frame": np.concatenate([*frames, np.zeros(0, np.int64)]).astype(np.int64),
            "state": state,
            "task": [f"t{row}" * (row % 3) for row in rows.tolist()],
            "points": pa.array([list(range(row % 4)) for row in rows.tolist()], pa.list_(pa.int16())),
        }
    )


def write(folder: Path, lengths: Sequence[int], *, files: int = 2, group: int = 16) -> Path:
    folder.mkdir(exist_ok=True)
    table = table_of(lengths)
    for number, some in enumerate(np.array_split(np.arange(len(table)), files)):
        pq.write_table(table.take(some), folder / f"{number}.parquet", row_group_size=group)
    return folder


def bounds(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for length in lengths:
        yield first, first + length
        first += length


def anchors_of(lengths: Sequence[int], before: int, after: int, stride: int, pad: str) -> list[int]:
    """All anchors, in the order of the files."""
    found: list[int] = []
    for first, stop in bounds(lengths):
        found += range(first + before, stop - after, stride) if pad == "drop" else range(first, stop, stride)
    return found


def checked(batches: Any, lengths: Sequence[int], offsets: Sequence[int]) -> list[list[int]]:
    """Return the anchors of each batch; every row, value and mask of every sample is as the offsets say."""
    of_row = {row: pair for pair in bounds(lengths) for row in range(*pair)}
    found = []
    for batch in batches:
        anchors = []
        for number in range(len(batch["row"])):
            rows, mask = batch["row"][number].tolist(), batch["mask"][number].tolist()
            exists = [row - offset for row, offset, is_there in zip(rows, offsets, mask, strict=True) if is_there]
            anchor = exists[0] if exists else int(batch["row"][number][0])
            first, stop = of_row[anchor]
            wanted = [anchor + offset for offset in offsets]
            assert mask == [first <= row < stop for row in wanted]
            assert rows == [min(max(row, first), stop - 1) for row in wanted]
            assert batch["state"][number].tolist() == [[2 * row, 2 * row + 1] for row in rows]
            assert batch["frame"][number].tolist() == [row - first for row in rows]
            assert batch["task"][number].to_list() == [f"t{row}" * (row % 3) for row in rows]
            assert [p.tolist() for p in batch["points"][number]] == [list(range(row % 4)) for row in rows]
            anchors.append(anchor)
        found.append(anchors)
    return found


def test_the_memory_of_batches_is_reused(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="needs the number of page faults")
    rows = np.zeros((4000, 64), np.float32)
    state = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 64)
    pq.write_table(pa.table({"episode": np.arange(4000) // 100, "state": state}), tmp_path / "a.parquet")
    episodes = Episodes(by="episode", history=8, future=8)
    with EpisodeLoader(tmp_path, 128, episodes=episodes, shuffle=True, num_threads=1, output_options=NUMPY) as loader:
        for _ in range(2):
            assert sum(len(batch["state"]) for batch in loader) == 4000
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        nbytes = sum(batch["state"].nbytes for batch in loader)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert nbytes > 2**24
    assert faults < nbytes / 4096 / 2  # new memory takes one for each page


@settings(max_examples=examples(12))
@given(
    lengths=st.lists(st.integers(1, 9) | st.integers(1, 40), min_size=1, max_size=10),
    files=st.integers(1, 3),
    group=st.sampled_from([1, 4, 11, 1000]),
    history=st.integers(0, 6),
    future=st.integers(0, 9),
    stride=st.sampled_from([1, 1, 2, 7]),
    pad=st.sampled_from(["mask", "drop"]),
    batch_size=st.integers(1, 5),
    windows=st.sampled_from([1, 1, 2, 100]),
    ranks=st.integers(1, 3),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_every_sample_comes_exactly_once_over_ranks_and_from_every_state(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], files: int, group: int, history: int, future: int,
    stride: int, pad: Any, batch_size: int, windows: int, ranks: int, shuffle: bool, drop_last: bool,
) -> None:  # fmt: skip
    folder = write(tmp_path_factory.mktemp("data"), lengths, files=files, group=group)
    episodes = Episodes(by="episode", history=history, future=future, stride=stride, pad=pad, order="frame")
    anchors = anchors_of(lengths, history, future, stride, pad)
    offsets = range(-history, future + 1)
    window_rows = windows * stride * (2 * batch_size + history + future) + sum(lengths) * (pad == "drop")
    delivered, steps = [], set()
    for rank in range(ranks):
        with EpisodeLoader(
            str(folder), batch_size, episodes=episodes, shuffle=shuffle, drop_last=drop_last, window_rows=window_rows,
            shard=Shard(rank, ranks), num_threads=2, output_options=NUMPY,
        ) as loader:  # fmt: skip
            states, batches = [loader.state_dict()], []
            for batch in loader:
                batches.append(batch)
                states.append(loader.state_dict())
            found = checked(batches, lengths, offsets)
            assert len(found) == len(loader) == loader.plan().steps
            assert all(len(batch) == batch_size for batch in found[: None if drop_last else -1])
            assert max(len(json.dumps(state)) for state in states) <= 1024
            for number in range(0, len(found), max(1, len(found) // 4)):
                loader.load_state_dict(states[number])
                assert checked(loader, lengths, offsets) == found[number:]
        delivered += [anchor for batch in found for anchor in batch]
        steps.add(len(found))
    assert len(steps) == 1
    if drop_last:
        assert len(set(delivered)) == len(delivered) == len(anchors) // (ranks * batch_size) * ranks * batch_size
    else:
        assert sorted(set(delivered)) == anchors
        assert len(delivered) == -(-len(anchors) // ranks) * ranks
    if not shuffle and ranks == 1:
        assert delivered == anchors[: len(delivered)]


def loader_of(folder: Path, batch_size: int = 4, **arguments: Any) -> EpisodeLoader:
    episodes = arguments.pop("episodes", Episodes(by="episode", history=3, future=4))
    return EpisodeLoader(
        str(folder), batch_size, episodes=episodes, output_options=arguments.pop("output_options", NUMPY), **arguments
    )


def all_of(loader: BatchedDataLoader) -> list[list[int]]:
    return [batch["row"][:, 3].tolist() for batch in loader]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "data", LENGTHS)


def test_deltas_give_each_column_its_rows_and_a_mask(folder: Path) -> None:
    episodes = Episodes(by="episode", deltas={"state": [-2, 0], "row": [0, 1, 2, 5], "task": [0, 1]})
    seen = []
    with loader_of(folder, 8, episodes=episodes, shuffle=True) as loader:
        for batch in loader:
            assert list(batch) == [
                "state_is_pad", "row_is_pad", "task_is_pad", "episode", "row", "frame", "state", "task", "points",
            ]  # fmt: skip
            rows = batch["row"][:, 0]
            assert batch["frame"].shape == rows.shape
            assert [p.tolist() for p in batch["points"]] == [list(range(row % 4)) for row in rows.tolist()]
            assert batch["state"].shape == (len(rows), 2, 2)
            assert np.array_equal(batch["state"][:, 1, 0], 2 * rows)
            for number, row in enumerate(rows.tolist()):
                stop = next(stop for first, stop in bounds(LENGTHS) if first <= row < stop)
                assert batch["row_is_pad"][number].tolist() == [row + offset >= stop for offset in (0, 1, 2, 5)]
                assert batch["row"][number].tolist() == [min(row + offset, stop - 1) for offset in (0, 1, 2, 5)]
            assert batch["state_is_pad"][:, 0].tolist() == (batch["frame"] < 2).tolist()
            seen += rows.tolist()
    assert sorted(seen) == list(range(sum(LENGTHS)))


def test_deltas_may_be_seconds(folder: Path) -> None:
    in_seconds = Episodes(by="episode", deltas={"row": [-0.1, 0.0, 0.0333]}, fps=30)
    assert in_seconds == Episodes(by="episode", deltas={"row": [-3, 0, 1]})
    with pytest.raises(ConfigurationError, match=r"0\.05 s at fps=30 is 1\.5 rows; give multiples of 1 / fps"):
        Episodes(by="episode", deltas={"row": [0.05]}, fps=30)


def test_tensors_are_the_arrays(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    with loader_of(folder, shuffle=True) as one, loader_of(folder, shuffle=True, output_options=None) as other:
        for arrays, tensors in zip(one, other, strict=True):
            assert list(arrays) == list(tensors)
            assert tensors["mask"].dtype == torch.bool
            assert np.array_equal(arrays["state"], tensors["state"].numpy())
            assert arrays["task"].to_list() == tensors["task"].to_list()


def test_a_data_set_makes_the_same_loader(folder: Path) -> None:
    data = ParquetDataset(str(folder))
    with data.batches(4, episodes=Episodes("episode", 3, 4), shuffle=True, output_options=NUMPY) as loader:
        assert isinstance(loader, EpisodeLoader)
        expected = all_of(loader_of(folder, shuffle=True))
        assert all_of(loader) == expected
        assert all_of(loader) != expected
    with pytest.raises(UnsupportedError, match="transform_workers, rows_out: not with episodes"):
        data.batches(4, episodes=Episodes("episode"), transform=lambda columns, rng: columns, transform_workers=2)


def test_a_child_process_delivers_the_same(folder: Path) -> None:
    with loader_of(folder, shuffle=True, window_rows=40, isolation="process") as loader:
        expected = loader_of(folder, shuffle=True, window_rows=40)
        for _ in range(2):
            assert all_of(loader) == all_of(expected)
        loader.seek(1, 5)
        expected.seek(1, 5)
        assert all_of(loader) == all_of(expected)


def test_a_transform_gets_samples_in_the_background(folder: Path) -> None:
    threads = set()

    def noisy(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        threads.add(threading.current_thread().name.rpartition("-")[0])
        assert columns["state"].shape[1:] == (8, 2)
        noise = rng.random(columns["mask"].shape)
        return {"row": columns["row"], "task": columns["task"], "noise": noise, "mask": columns["mask"]}

    def noises(loader: EpisodeLoader) -> list[Any]:
        return [batch["noise"].tolist() for batch in loader]

    with loader_of(folder, shuffle=True, window_rows=40, transform=noisy, num_threads=1) as loader:
        plain = [batch["row"].tolist() for batch in loader_of(folder, shuffle=True, window_rows=40)]
        assert [batch["row"].tolist() for batch in loader] == plain
        expected = noises(loader)
        loader.set_epoch(1)
        iterator = iter(loader)
        first = [next(iterator)["noise"].tolist() for _ in range(3)]
        state = loader.state_dict()
    assert threads == {"parquet_loader-worker"}
    with loader_of(folder, shuffle=True, window_rows=40, transform=noisy, num_threads=3) as loader:
        loader.load_state_dict(state)
        assert first + noises(loader) == expected
        copy = pickle.loads(pickle.dumps(loader_of(folder, transform=shifted)))
        assert next(iter(copy))["row"].min() == 1000
    assert len({str(noise) for noise in expected}) == len(expected)


def shifted(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"row": columns["row"] + 1000}


def with_photos(folder: Path, lengths: Sequence[int] = LENGTHS, *, wrong: int | None = None) -> Path:
    """Write rows with an image each: its red and green are the row's number, its blue that of the pixel's column."""
    folder.mkdir()
    rows = np.arange(sum(lengths))
    photos = []
    for row in rows.tolist():
        file = io.BytesIO()
        pixels = np.full((6, 5, 3), row % 256, np.uint8)
        pixels[..., 2] = np.arange(5)
        PIL.Image.fromarray(pixels).save(file, "PNG")
        photos.append(b"no image" if row == wrong else file.getvalue())
    table = pa.table({"episode": np.repeat(np.arange(len(lengths)), lengths), "row": rows, "photo": photos})
    for number, part in enumerate(np.array_split(rows, 2)):
        pq.write_table(table.take(part), folder / f"{number}.parquet", row_group_size=16)
    return folder


def photos_of(folder: Path, photo: Image | None = None, **arguments: Any) -> EpisodeLoader:
    schema = Schema({"episode": Scalar("int64"), "row": Scalar("int64"), "photo": photo or Image((6, 5, 3))})
    return loader_of(folder, schema=schema, shuffle=True, **arguments)


@grid(
    "device, window_rows",
    [None, "tensors"],
    [None, 40],
    everyday=lambda device, window_rows: (device is None) == (window_rows is not None),
)
def test_images_are_decoded_once_for_all_samples_of_their_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_rows: int | None, device: str | None
) -> None:
    folder = with_photos(tmp_path / "data")
    decoded: list[int] = []
    decode = WindowMedia.decode

    def counted(self: WindowMedia, window: Any, start: int, stop: int, out: Any) -> None:
        decode(self, window, start, stop, out)
        decoded.extend(out["photo"][start:stop, 0, 0, 0].tolist())

    monkeypatch.setattr(WindowMedia, "decode", counted)
    output = NUMPY if device is None else OutputOptions()
    with photos_of(folder, window_rows=window_rows, output_options=output) as loader:
        rows = np.concatenate([batch["row"] for batch in checked_photos(loader)])
        assert np.array_equal(np.unique(rows), np.arange(sum(LENGTHS)))
        # Where an episode continues in a row group of another window, the first rows of that row group are read again.
        assert sorted(set(decoded)) == list(range(sum(LENGTHS)))
        assert len(decoded) <= sum(LENGTHS) * (1 if window_rows is None else 1.5)
        assert loader.plan().predicted_peak_bytes > 0
        loader.seek(1, 9)
        rest = [batch["row"].tolist() for batch in checked_photos(loader)]
        loader.set_epoch(1)
        assert [batch["row"].tolist() for batch in loader][9:] == rest


def checked_photos(loader: EpisodeLoader) -> Iterator[dict[str, Any]]:
    for batch in loader:
        assert batch["photo"].shape == (len(batch["row"]), 8, 6, 5, 3)
        assert (np.asarray(batch["photo"])[..., 2, 3, 1] == np.asarray(batch["row"])).all()
        assert list(batch) == ["mask", "episode", "row", "photo"]
        yield batch


def test_encoded_arrays_are_decoded_into_samples(tmp_path: Path) -> None:
    folder = with_photos(tmp_path / "data")
    schema = Schema({"episode": Scalar("int64"), "row": Scalar("int64"), "photo": Encoded("uint8", (6, 5, 3), "png")})
    with loader_of(folder, schema=schema, shuffle=True) as loader:
        assert sum(len(batch["row"]) for batch in checked_photos(loader)) == sum(LENGTHS)


def test_random_flips_of_a_row_are_the_same_in_all_samples_and_differ_by_epoch(tmp_path: Path) -> None:
    folder = with_photos(tmp_path / "data", [12, 9])
    photo = Image((6, 5, 3), flip=0.5)
    epochs = []
    with photos_of(folder, photo, num_threads=1) as one, photos_of(folder, photo, num_threads=3) as other:
        for _ in range(2):
            flipped: dict[int, set[bool]] = {}
            for batch, same in zip(one, other, strict=True):
                assert np.array_equal(batch["photo"], same["photo"])
                for row, left in zip(batch["row"].flat, batch["photo"][..., 0, 0, 2].flat, strict=True):
                    flipped.setdefault(int(row), set()).add(bool(left))
            epochs.append(flipped)
    assert all(len(found) == 1 for flipped in epochs for found in flipped.values())
    assert len(epochs[0]) == 21
    assert epochs[0] != epochs[1]


def test_an_image_that_is_damaged_is_named(tmp_path: Path) -> None:
    folder = with_photos(tmp_path / "data", wrong=20)
    with photos_of(folder) as loader, pytest.raises(DataError, match=r"0\.parquet, row group 1, row 4, column 'photo'"):
        list(loader)
    data = ParquetDataset(folder, Schema({"episode": Scalar("int64"), "photo": Image((6, 5, 3))}), on_error="skip_row")
    with pytest.raises(UnsupportedError, match="column 'photo' with on_error='skip_row': damaged images in samples"):
        data.batches(4, episodes=Episodes(by="episode", history=1, future=0))


def test_windows_of_images_count_decoded_bytes(tmp_path: Path) -> None:
    folder = with_photos(tmp_path / "data", [30] * 10)
    large = Image((6, 5, 3), size=(256, 256))
    with photos_of(folder, large, memory_limit="64MiB") as loader:
        assert loader.window_rows < 100
        assert sum(len(batch["row"]) for batch in loader) == 300
        stats = loader.stats()
        assert stats.peak_bytes <= stats.memory_limit_bytes
    with pytest.raises(MemoryLimitError, match="memory_limit"):
        photos_of(folder, large, memory_limit="12MiB")
    with pytest.raises(MemoryLimitError, match=r"rows of 19[67]\d{3} bytes and the reads") as refused:
        photos_of(folder, large, memory_limit="26MiB")
    assert str(refused.value).startswith("memory_limit=26.0 MiB cannot hold")
    named = re.search(r"use memory_limit=(\d+MiB) or more$", str(refused.value))
    assert named is not None
    assert len(photos_of(folder, large, memory_limit=named[1]))


def test_a_transform_that_changes_the_number_of_samples_is_not_referred_to_an_argument_that_does_not_exist(
    folder: Path,
) -> None:
    with loader_of(folder, 4, transform=lambda batch, _: {name: array[:1] for name, array in batch.items()}) as loader:
        with pytest.raises(TransformError, match=r"expected the batch's 4 rows, found 1; a transform keeps") as refused:
            next(iter(loader))
        assert "rows_out" not in str(refused.value)


def test_the_limit_that_batches_of_samples_need_is_rounded_up(tmp_path: Path) -> None:
    folder = with_photos(tmp_path / "data", [30] * 10)
    with pytest.raises(MemoryLimitError, match="pass at least 25MiB"):
        photos_of(folder, Image((6, 5, 3), size=(256, 256)), memory_limit="24MiB")


def kept_bytes(monkeypatch: pytest.MonkeyPatch, column: str) -> list[int]:
    """Return a list that gets the bytes of a column's rows that are kept, and of those being joined, by window."""
    join, kept = SampleCutter._bridge, list[int]()

    def counted(self: SampleCutter, arrays: Any, reads: Any) -> Any:
        joined = join(self, arrays, reads)
        held = sum(tail[column].nbytes for tail in self._tails.values())
        kept.append(held + (0 if joined is None else 2 * joined.arrays[column].nbytes))
        return joined

    monkeypatch.setattr(SampleCutter, "_bridge", counted)
    return kept


def test_images_that_later_windows_need_count_within_the_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pq.read_table(with_photos(tmp_path / "small", [128] * 16))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=128)
    kept = kept_bytes(monkeypatch, "photo")
    episodes = Episodes(by="episode", history=31, future=0)
    large = Image((6, 5, 3), size=(128, 128))
    with photos_of(tmp_path / "a.parquet", large, episodes=episodes, memory_limit="64MiB") as loader:
        for _ in zip(range(100), loader, strict=False):
            pass
    assert max(kept) < 32 * 2**20


def test_rows_that_later_windows_need_count_within_the_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, row_groups, width = 4000, 8, 1024
    numbers = np.arange(rows * row_groups)
    values = np.repeat(numbers.astype(np.uint8), width)
    wide = pa.FixedSizeListArray.from_arrays(pa.array(values), width)
    table = pa.table({"episode": numbers // rows, "row": numbers, "x": wide})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows, use_dictionary=False, compression="none")
    kept = kept_bytes(monkeypatch, "x")
    episodes = Episodes(by="episode", deltas={"x": [-1500, 0]})
    options = OutputOptions(format="numpy")
    with ParquetDataset(tmp_path).batches(
        16, episodes=episodes, shuffle=True, memory_limit="64MiB", output_options=options
    ) as loader:
        for batch in loader:
            first = np.maximum(batch["row"] - 1500, batch["episode"] * rows)
            assert (batch["x"][:, :, 0] == np.stack([first, batch["row"]], 1) % 256).all()
    assert 0 < max(kept) < 12 * 2**20


def test_rows_of_earlier_windows_are_copied_some_at_a_time() -> None:
    array = np.arange(100, dtype=np.uint8)[:, None].repeat(2**18, 1)
    numbers = np.arange(40)
    out = np.zeros((40, 2, 2**18), np.uint8)
    tracemalloc.start()
    _take(array[:0], array, np.stack([numbers, numbers + 1], 1), numbers % 2 == 0, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (out[::2, 1, 0] == numbers[::2] + 1).all()
    assert not out[1::2].any()
    assert peak < 2 * 2**20


def test_an_error_of_a_transform_comes_in_the_place_of_its_batch(folder: Path) -> None:
    def fails_at_row_30(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if 30 in columns["row"]:
            raise KeyError("row 30")
        return columns

    wrong = next(number for number, batch in enumerate(loader_of(folder)) if 30 in batch["row"])
    with loader_of(folder, transform=fails_at_row_30, num_threads=3) as loader:
        iterator = iter(loader)
        for number in range(wrong):
            assert next(iterator)["mask"].shape == (4, 8), number
        with pytest.raises(KeyError, match="row 30"):
            next(iterator)
    with pytest.raises(UnsupportedError, match="samples are made in this process"):
        loader_of(folder, transform=fails_at_row_30, isolation="process")


def test_workers_make_the_batches(folder: Path) -> None:
    threads = set()

    def recorded(batch: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        threads.add(threading.current_thread().name.rpartition("-")[0])
        return batch

    with loader_of(folder, shuffle=True, window_rows=40, transform=recorded) as loader:
        for _ in range(2):
            assert len(all_of(loader)) == len(loader)
        assert loader.stats().held_bytes <= loader.stats().peak_bytes
    assert threads == {"parquet_loader-worker"}


def test_threads_and_breaks_do_not_change_the_next_epochs(folder: Path) -> None:
    epochs = []
    for threads in (1, 3):
        with loader_of(folder, shuffle=True, window_rows=40, num_threads=threads) as loader:
            next(iter(loader))
            epochs.append([all_of(loader) for _ in range(3)])
    assert epochs[0] == epochs[1]


def test_logical_shards_deliver_the_same_batches_on_any_number_of_ranks(folder: Path) -> None:
    options = ShardOptions(logical_shards=4, fewest_ranks=1)

    def batches(rank: int, ranks: int, state: Any = None) -> list[list[int]]:
        shard = Shard(rank, ranks)
        with loader_of(folder, 8 // ranks, shuffle=True, window_rows=80, shard=shard, shard_options=options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            return all_of(loader)

    whole = batches(0, 1)
    halves = [batches(rank, 2) for rank in range(2)]
    assert [sorted(batch) for batch in whole] == [sorted(a + b) for a, b in zip(*halves, strict=True)]
    with loader_of(folder, 8, shuffle=True, window_rows=80, shard=Shard(0, 1), shard_options=options) as loader:
        loader.seek(0, 7)
        state = loader.state_dict()
    resumed = [batches(rank, 2, state) for rank in range(2)]
    assert [sorted(a + b) for a, b in zip(*resumed, strict=True)] == [sorted(batch) for batch in whole[7:]]


def test_each_row_group_is_read_once_if_neighbours_share_a_window(folder: Path) -> None:
    groups = len(ParquetDataset(str(folder)).row_groups)
    for arguments in ({"shuffle": True}, {"shuffle": False, "window_rows": 64}):
        with loader_of(folder, **arguments) as loader:
            all_of(loader)
            heads = loader.plan().windows - 1
            assert groups <= loader.stats().row_groups <= groups + heads


def test_large_row_groups_are_read_forward_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", [1000] * 4, files=1, group=4000)
    with loader_of(folder, shuffle=True, window_rows=500) as loader:
        assert sorted(row for batch in all_of(loader) for row in batch) == list(range(4000))
        assert loader.plan().windows >= 8
        assert loader.stats().row_groups == 1
        assert loader.plan().window_rows <= 500 + 8


def test_samples_are_shuffled_over_all_episodes_of_a_window(folder: Path) -> None:
    with loader_of(folder, shuffle=True) as loader:
        order = [row for batch in all_of(loader) for row in batch]
    near = np.abs(np.diff(order)) <= 3
    assert near.mean() < 0.15


def test_pickled_loaders_and_worker_processes_deliver_the_same(folder: Path) -> None:
    with loader_of(folder, shuffle=True) as loader:
        loader.seek(2, 3)
        copy = pickle.loads(pickle.dumps(loader))
        assert all_of(copy) == all_of(loader)
        data = pytest.importorskip("torch.utils.data")
        loader.seek(1, 0)
        rows = [row for batch in all_of(loader) for row in batch]
        iterable = ParquetIterable(loader_of(folder, shuffle=True))
        found = [b["row"][:, 3].tolist() for b in data.DataLoader(iterable, batch_size=None, num_workers=2)]
        assert sorted(row for batch in found for row in batch) == sorted(rows)


def test_a_mixture_takes_samples(folder: Path) -> None:
    with MixedLoader({"a": loader_of(folder, shuffle=True), "b": loader_of(folder)}, {"a": 1, "b": 1}) as loader:
        assert sum(1 for _ in loader) == len(loader)


def test_a_state_belongs_to_its_episodes(folder: Path) -> None:
    with loader_of(folder) as loader:
        state = loader.state_dict()
    for episodes in (Episodes("episode", 3, 5), Episodes("episode", 3, 4, pad="drop"), Episodes("episode", 3, 4, 2)):
        with loader_of(folder, episodes=episodes) as other, pytest.raises(ResumeError, match="episodes"):
            other.load_state_dict(state)


def test_nulls_have_masks_of_their_own(tmp_path: Path) -> None:
    value = [None if row % 5 == 2 else row for row in range(30)]
    pq.write_table(pa.table({"episode": [row // 10 for row in range(30)], "value": value}), tmp_path / "a.parquet")
    schema = Schema({"episode": Scalar("int64"), "value": Scalar("int64", null="mask")})
    with EpisodeLoader(
        str(tmp_path), 30, episodes=Episodes("episode", future=2), schema=schema, output_options=NUMPY
    ) as loader:
        batch = next(iter(loader))
    rows = np.minimum(np.arange(30)[:, None] + np.arange(3), np.arange(30)[:, None] // 10 * 10 + 9)
    assert np.array_equal(batch["value_valid"], rows % 5 != 2)
    assert np.array_equal(batch["value"], np.where(rows % 5 != 2, rows, 0))
    assert batch["mask"][9].tolist() == [True, False, False]


@pytest.mark.parametrize("chosen", [[0, 7919 * 2 % 1009, 7919 * 8 % 1009], [7919 * 5 % 1009]])
def test_filters_choose_episodes(folder: Path, chosen: list[int]) -> None:
    kept = [number for number in range(len(LENGTHS)) if number * 7919 % 1009 in chosen]
    expected = [row for number, pair in enumerate(bounds(LENGTHS)) if number in kept for row in range(*pair)]
    with loader_of(folder, filters=[("episode", "in", chosen)], shuffle=True, window_rows=40) as loader:
        batches = list(loader)
        assert loader.plan().episodes == len(kept)
    assert sorted(row for found in checked(batches, LENGTHS, range(-3, 5)) for row in found) == expected


def test_splits_by_the_episode_share_the_samples(folder: Path) -> None:
    found = []
    for part in ((0, 0.5), (0.5, 1)):
        with loader_of(folder, filters=split("episode", *part)) as loader:
            found += [row for batch in all_of(loader) for row in batch]
    assert sorted(found) == list(range(sum(LENGTHS)))


def test_filters_that_cut_an_episode_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"filters: 3 of the 40 rows of episode \d+ pass"):
        loader_of(folder, filters=[("row", "<", 9)])
    with pytest.raises(ConfigurationError, match="filters may choose episodes, but not rows of one"):
        loader_of(folder, filters=split_rows(0, 0.5))


def test_rows_that_are_not_consecutive_are_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"episode": [0, 0, 1, 1]}), tmp_path / "a.parquet", row_group_size=2)
    pq.write_table(pa.table({"episode": [2, 2, 2, 0]}), tmp_path / "b.parquet", row_group_size=2)
    with pytest.raises(DataError, match=r"b\.parquet, row group 1, row 1: episode is 0 again, whose rows ended in"):
        EpisodeLoader(str(tmp_path), 1, episodes=Episodes("episode"))


def test_rows_that_are_not_in_order_are_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"episode": ["x", "x"], "frame": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"episode": ["x", "y", "y"], "frame": [3, 2, 2]}), tmp_path / "b.parquet")
    episodes = Episodes("episode", order="frame")
    with pytest.raises(DataError, match=r"b\.parquet, row group 0, row 2: column 'frame' is 2, and 2 in the row bef"):
        EpisodeLoader(str(tmp_path), 1, episodes=episodes)
    pq.write_table(pa.table({"episode": ["x", "y", "y"], "frame": [1, 2, 3]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet, row group 0, row 0: column 'frame' is 1, and 1 in .* remove one"):
        EpisodeLoader(str(tmp_path), 1, episodes=episodes)
    pq.write_table(pa.table({"episode": ["x", "y", "y"], "frame": [0, 2, 3]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"row 0: column 'frame' is 0, and 1 in .* sort the files by 'episode' and"):
        EpisodeLoader(str(tmp_path), 1, episodes=episodes)


def test_times_are_an_order_in_which_a_null_is_an_error(tmp_path: Path) -> None:
    episodes = Episodes("episode", order="time")
    times = pa.array([0.0, 0.1, 0.0, 0.5], pa.float32())
    pq.write_table(pa.table({"episode": [0, 0, 1, 1], "time": times}), tmp_path / "a.parquet")
    with EpisodeLoader(str(tmp_path), 1, episodes=episodes) as loader:
        assert loader.plan().episodes == 2
    pq.write_table(pa.table({"episode": [0, 0], "time": [0.0, None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row 1: column 'time' is nan, and 0\.0 in the row before"):
        EpisodeLoader(str(tmp_path), 1, episodes=episodes)


def test_batches_count_within_the_memory_limit(folder: Path) -> None:
    with pytest.raises(MemoryLimitError, match=r"batches of 100000 samples take \d+"):
        loader_of(folder, 100000, memory_limit="64MiB")


def test_batches_are_written_if_only_few_fit(tmp_path: Path) -> None:
    numbers = pa.array(np.zeros(4000 * 256, np.float32))
    table = pa.table({"episode": np.arange(4000) // 100, "state": pa.FixedSizeListArray.from_arrays(numbers, 256)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    episodes = Episodes(by="episode", history=63, future=0)
    with loader_of(tmp_path, 16, episodes=episodes, memory_limit="13MiB") as loader:  # batches of 1 MiB
        assert sum(1 for _ in loader) == len(loader) == 250


def test_batches_of_long_text_count_within_the_memory_limit(tmp_path: Path) -> None:
    """A batch has 21 texts of 800 bytes for each of 64 samples, many times more than is known before one is written."""
    table = pa.table({"episode": np.arange(3000) // 100, "text": ["long" * 200] * 3000})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    with loader_of(tmp_path, 64, episodes=Episodes(by="episode", history=20), memory_limit="16MiB") as loader:
        assert sum(1 for _ in loader) == 47
        assert loader.stats().peak_bytes <= 16 * 2**20


def test_episodes_in_directories_are_told_apart_by_partition(tmp_path: Path) -> None:
    for name in ("run=a", "run=b"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / name / "0.parquet")
    with EpisodeLoader(str(tmp_path), 6, episodes=Episodes("run", future=1), output_options=NUMPY) as loader:
        (batch,) = loader
    assert batch["mask"].tolist() == [[True, True], [True, True], [True, False]] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"episodes": Episodes("nothing")}, SchemaError, "nothing"),
        ({"episodes": Episodes("state")}, SchemaError, "by='state': expected a column of integers, text or cat"),
        ({"episodes": Episodes("episode", order="task")}, SchemaError, "order='task': expected a column of numbers"),
        ({"episodes": Episodes("episode", deltas={"x": [0]})}, ConfigurationError, r"deltas\['x'\]: there is no such"),
        ({"episodes": None}, ConfigurationError, r"expected Episodes\(by=...\)"),
        ({"window_rows": 5}, ConfigurationError, "window_rows=5: two batches of 4 samples span up to 1[0-9] rows"),
        ({"output_options": OutputOptions(format="arrow")}, UnsupportedError, "tensors or numpy arrays"),
        ({"memory_limit": "1KiB"}, Exception, "memory_limit"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(folder: Path, arguments: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        loader_of(folder, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": ""}, "by=''"),
        ({"history": -1}, "history=-1"),
        ({"stride": 0}, "stride=0"),
        ({"pad": "edge"}, "pad='edge'"),
        ({"fps": 10}, "fps: only with deltas"),
        ({"deltas": {"x": []}}, "at least one row"),
        ({"deltas": {"x": [0.5]}}, "0.5 is not a whole number of rows; with seconds, pass fps="),
        ({"deltas": {"x": ["a"]}}, "expected a list of numbers"),
        ({"deltas": {"x": "12"}}, "expected a list of numbers"),
        ({"deltas": {"x": [float("nan")]}}, "more than"),
        ({"deltas": {"x": [0]}, "future": 3}, "deltas= says which rows are delivered"),
    ],
)
def test_rules_that_make_no_sense_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Episodes(**{"by": "episode", **arguments})


def test_numbers_of_numpy_are_kept_as_numbers_of_python() -> None:
    integers: dict[str, Any] = {"history": np.int64(2), "future": np.uint8(1), "stride": np.int32(3)}
    rate: dict[str, Any] = {"fps": np.float32(10)}
    given = Episodes("episode", **integers)
    assert json.loads(json.dumps(asdict(given))) == asdict(Episodes("episode", history=2, future=1, stride=3))
    assert Episodes("episode", deltas={"x": [-0.1]}, **rate).deltas == {"x": (-1,)}


def test_unknown_arguments_are_named_with_similar_ones(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"EpisodeLoader: there is no argument 'shufle'. Did you mean 'shuffle'"):
        EpisodeLoader(folder, 4, episodes=Episodes("episode"), shufle=True)  # type: ignore[call-arg]


def test_nulls_in_the_column_of_episodes_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"episode": [0, None, 1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"'episode', row 1: is null.*; each row needs 'episode' to have") as no:
        EpisodeLoader(str(tmp_path), 1, episodes=Episodes("episode"))
    assert "mask" not in str(no.value)  # which the next error would refuse
    with pytest.raises(SchemaError, match="replaces nulls"):
        EpisodeLoader(
            str(tmp_path), 1, episodes=Episodes("episode"), schema=Schema({"episode": Scalar("int64", fill=0)})
        )


def test_names_of_masks_and_images_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"episode": [0], "photo": [b"x"]}), tmp_path / "a.parquet")
    schema = Schema({"episode": Scalar("int64"), "photo": Image()})
    with pytest.raises(UnsupportedError, match="column 'photo': rows of a sample have one shape"):
        EpisodeLoader(str(tmp_path), 1, episodes=Episodes("episode"), schema=schema)
    schema = Schema({"episode": Scalar("int64"), "photo": Image((8, 8, 3))})
    with pytest.raises(UnsupportedError, match="column 'photo' with isolation='process'"):
        EpisodeLoader(str(tmp_path), 1, episodes=Episodes("episode"), schema=schema, isolation="process")
    schema = Schema({"episode": Scalar("int64"), "photo": Audio(8000)})
    with pytest.raises(UnsupportedError, match="column 'photo' holds Audio values"):
        EpisodeLoader(str(tmp_path), 1, episodes=Episodes("episode"), schema=schema)
    pq.write_table(pa.table({"episode": [0], "mask": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigurationError, match="column 'mask': a batch has something else of this"):
        EpisodeLoader(str(tmp_path), 1, episodes=Episodes("episode"))
    with EpisodeLoader(str(tmp_path), 1, episodes=Episodes("episode"), columns=["episode"]) as loader:
        assert len(loader) == 1


def test_an_epoch_without_samples_is_empty(folder: Path) -> None:
    with loader_of(folder, episodes=Episodes("episode", history=100, pad="drop")) as loader:
        assert len(loader) == 0
        assert list(loader) == []
        assert loader.plan().left_out == len(LENGTHS)


@pytest.mark.parametrize("window_rows", [None, 40])
def test_remote_files_deliver_the_same(folder: Path, window_rows: int | None) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    root = f"/episodes-{window_rows}"
    for path in folder.iterdir():
        memory.pipe(f"{root}/{path.name}", path.read_bytes())
    filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(memory))
    with (
        EpisodeLoader(
            root[1:], 4, episodes=Episodes("episode", 3, 4), shuffle=True, window_rows=window_rows,
            filesystem=filesystem, output_options=NUMPY,
        ) as remote,
        loader_of(folder, shuffle=True, window_rows=window_rows) as local,
    ):  # fmt: skip
        for _ in range(2):
            assert all_of(remote) == all_of(local)
        remote.seek(1, 9)
        local.seek(1, 9)
        assert all_of(remote) == all_of(local)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_of_a_process_group_find_the_episodes_together(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = write(tmp_path / "data", LENGTHS, files=3)
    script = """
        from parquet_loader import Episodes, EpisodeLoader, DataError
        episodes = Episodes("episode", 3, 4, order="frame")
        with EpisodeLoader(root, 4, episodes=episodes, shuffle=True) as loader:
            rows = [batch["row"][:, 3].tolist() for batch in loader]
        try:
            EpisodeLoader(root, 4, episodes=Episodes("frame"))
        except DataError as error:
            message = str(error)
        print(json.dumps([rows, len(loader), message]))
        """
    results = on_ranks(3, str(folder), script, tmp_path)
    found = [row for rows, _, _ in results for batch in rows for row in batch]
    assert set(found) == set(range(sum(LENGTHS)))
    assert len(found) - sum(LENGTHS) < 3
    assert len({steps for _, steps, _ in results}) == 1
    assert all("frame is 0 again" in message for _, _, message in results)
