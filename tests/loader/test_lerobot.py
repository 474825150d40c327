"""`LeRobotDataset`: directories as version 3 of LeRobot's format describes them."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    ConfigurationError,
    DataError,
    EpisodeLoader,
    LeRobotDataset,
    OutputOptions,
    ParquetDataset,
    SchemaError,
    SourceError,
    UnsupportedError,
)
from tests.support import media

NUMPY = OutputOptions(format="numpy")
FPS = 30
LENGTHS = [40, 1, 25, 60, 33]
TOP, WRIST = "observation.images.top", "observation.images.wrist"
TASKS = ["put the cube away", "open the drawer"]
# The video file that holds each episode, and its first frame there.
FILES = [0, 0, 0, 1, 1]
FIRST_FRAMES = [0, 40, 41, 0, 60]
STARTS = np.cumsum([0, *LENGTHS])


def features() -> dict[str, Any]:
    camera = {"dtype": "video", "shape": [48, 272, 3], "names": ["height", "width", "channels"]}
    scalar = {name: {"dtype": "int64", "shape": [1], "names": None} for name in (
        "frame_index", "episode_index", "index", "task_index")}  # fmt: skip
    return {
        "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        TOP: camera,
        WRIST: camera,
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        **scalar,
    }


def data_table() -> pa.Table:
    rows = int(STARTS[-1])
    frame = np.concatenate([np.arange(n) for n in LENGTHS])
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    state = np.arange(3 * rows, dtype=np.float32)
    listed = {"_type": "List", "feature": {"dtype": "float32", "_type": "Value"}}
    described = {
        "observation.state": listed | {"length": 3},
        "action": listed | {"length": 2},
        "timestamp": {"dtype": "float32", "_type": "Value"},
        **{n: {"dtype": "int64", "_type": "Value"} for n in ("frame_index", "episode_index", "index", "task_index")},
    }
    table = pa.table(
        {
            "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state), 3),
            "action": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * rows, dtype=np.float32)), 2),
            "timestamp": (frame / FPS).astype(np.float32),
            "frame_index": frame,
            "episode_index": episode,
            "index": np.arange(rows),
            "task_index": episode % 2,
        }
    )
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": described}})})


def write(root: Path, *, version: str = "v3.0", video: bytes = b"", lengths: list[int] | None = None) -> Path:
    """Write the data set; the video files hold `video`."""
    table = data_table()
    (root / "data" / "chunk-000").mkdir(parents=True)
    for number, (first, stop) in enumerate([(0, 66), (66, len(table))]):
        part = table.slice(first, stop - first)
        pq.write_table(part, root / "data" / "chunk-000" / f"file-{number:03d}.parquet", row_group_size=50)
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    count = len(LENGTHS)
    episodes: dict[str, Any] = {
        "episode_index": list(range(count)),
        "tasks": [[TASKS[number % 2]] for number in range(count)],
        "length": lengths or LENGTHS,
        "data/chunk_index": [0] * count,
        "data/file_index": [0, 0, 0, 1, 1],
        "dataset_from_index": STARTS[:-1].tolist(),
        "dataset_to_index": STARTS[1:].tolist(),
    }
    for camera in (TOP, WRIST):
        shift = 0.0 if camera == TOP else 0.5
        episodes |= {
            f"videos/{camera}/chunk_index": [0] * count,
            f"videos/{camera}/file_index": FILES,
            f"videos/{camera}/from_timestamp": [frame / FPS + shift for frame in FIRST_FRAMES],
            f"videos/{camera}/to_timestamp": [
                (frame + n) / FPS + shift for frame, n in zip(FIRST_FRAMES, LENGTHS, strict=True)
            ],
        }
        for number in range(2):
            path = root / "videos" / camera / "chunk-000" / f"file-{number:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(video)
    whole = pa.table(episodes)
    pq.write_table(whole.slice(0, 3), root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    pq.write_table(whole.slice(3), root / "meta" / "episodes" / "chunk-000" / "file-001.parquet")
    pq.write_table(pa.table({"task_index": [1, 0], "__index_level_0__": TASKS[::-1]}), root / "meta" / "tasks.parquet")
    info = {
        "codebase_version": version,
        "fps": FPS,
        "features": features(),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta" / "info.json").write_text(json.dumps(info))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "robot")


def test_the_directory_says_what_there_is(root: Path) -> None:
    data = LeRobotDataset(root)
    assert data.fps == FPS
    assert data.cameras == (TOP, WRIST)
    assert data.tasks == TASKS
    assert list(data.schema) == [name for name in features() if name not in (TOP, WRIST)]
    assert len(data) == STARTS[-1]
    assert data[70]["observation.state"].tolist() == [210.0, 211.0, 212.0]


def test_delta_timestamps_name_columns_and_cameras(root: Path) -> None:
    data = LeRobotDataset(root)
    deltas = {"observation.state": [-1 / FPS, 0], "action": [n / FPS for n in range(8)], TOP: [-2 / FPS, 0.0]}
    seen = []
    with data.batches(16, episodes=data.samples(deltas=deltas), shuffle=True, output_options=NUMPY) as loader:
        for batch in loader:
            rows, frame, episode = batch["index"], batch["frame_index"], batch["episode_index"]
            stop = STARTS[episode + 1] - 1
            wanted = np.minimum(rows[:, None] + np.arange(8), stop[:, None])
            assert np.array_equal(batch["action"][..., 0], 2 * wanted)
            assert np.array_equal(batch["action_is_pad"], rows[:, None] + np.arange(8) > stop[:, None])
            assert np.array_equal(batch["observation.state_is_pad"][:, 0], frame == 0)
            first = np.array(FIRST_FRAMES)[episode]
            past = np.maximum(frame[:, None] + [-2, 0], 0)
            assert np.allclose(batch[f"{TOP}_timestamp"], (first[:, None] + past) / FPS, rtol=0, atol=1e-12)
            assert np.array_equal(batch[f"{TOP}_is_pad"][:, 0], frame < 2)
            assert np.allclose(batch[f"{WRIST}_timestamp"], (first + frame) / FPS + 0.5, rtol=0, atol=1e-12)
            for camera in (TOP, WRIST):
                paths = [str(root / "videos" / camera / "chunk-000" / f"file-{FILES[e]:03d}.mp4") for e in episode]
                assert batch[f"{camera}_path"].to_list() == paths
            seen += rows.tolist()
    assert sorted(seen) == list(range(STARTS[-1]))


def test_history_and_future_have_times_for_each_row(root: Path) -> None:
    data = LeRobotDataset(root, columns=["index", "episode_index", "frame_index"])
    with data.batches(200, episodes=data.samples(1, 1), output_options=NUMPY) as loader:
        (batch,) = loader
    assert batch[f"{TOP}_timestamp"].shape == (STARTS[-1], 3) == batch["mask"].shape
    assert np.allclose(batch[f"{TOP}_timestamp"][3], np.array([2, 3, 4]) / FPS)


def test_episodes_and_columns_can_be_chosen(root: Path) -> None:
    data = LeRobotDataset(root, [1, 3], columns=["index", "action"])
    with data.batches(10, episodes=data.samples(), shuffle=True, output_options=NUMPY) as loader:
        found = [row for batch in loader for row in batch["index"][:, 0].tolist()]
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert next(iter(copy))[f"{TOP}_path"].to_list()[0].endswith(".mp4")
    assert sorted(found) == [*range(40, 41), *range(66, 126)]
    with pytest.raises(ConfigurationError, match="there is no episode 9"):
        LeRobotDataset(root, [9])


def test_tensors_come_with_paths(root: Path) -> None:
    torch = pytest.importorskip("torch")
    data = LeRobotDataset(root)
    with data.batches(32, episodes=data.samples(2, 2), shuffle=True) as loader:
        batch = next(iter(loader))
    assert batch[f"{TOP}_timestamp"].dtype == torch.float64
    assert len(batch[f"{TOP}_path"]) == 32


def test_metadata_that_contradicts_the_data_is_refused(tmp_path: Path) -> None:
    data = LeRobotDataset(write(tmp_path / "robot", lengths=[40, 1, 24, 61, 33]))
    with pytest.raises(DataError, match="episode 2 has 24 rows, in data it has 25"):
        data.batches(1, episodes=data.samples())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"codebase_version": "v2.1"}, UnsupportedError, "has version v2.1, this reads version 3"),
        ({"codebase_version": "v4.0"}, UnsupportedError, "this reads version 3; a newer release may read it"),
        ({"codebase_version": None}, SourceError, "has no codebase_version"),
        ({"fps": 0}, SourceError, "fps is 0"),
        ({"features": []}, SourceError, r"features are \[\]"),
        ({"video_path": "../{video_key}.mp4"}, SourceError, "expected a relative path"),
        ({"video_path": "/{video_key}.mp4"}, SourceError, "expected a relative path"),
        ({"video_path": "{video_key.__class__}"}, SourceError, "expected a relative path"),
        ({"video_path": None}, SourceError, "video_path is None"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(root: Path, change: Any, error: type, message: str) -> None:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(error, match=message):
        LeRobotDataset(root)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("episode_index", ["three", "four"], "does not hold int64"),
        ("length", [60.0, float("nan")], "does not hold int64"),
        (f"videos/{TOP}/chunk_index", ["x", "y"], "does not hold int64"),
        (f"videos/{TOP}/from_timestamp", ["x", "y"], "does not hold double"),
    ],
)
def test_metadata_of_another_type_names_the_file_and_the_column(
    root: Path, column: str, values: list[Any], message: str
) -> None:
    path = root / "meta" / "episodes" / "chunk-000" / "file-001.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(column), column, pa.array(values)), path)
    with pytest.raises(SourceError, match=rf"file-001\.parquet: column '{column}' {message}"):
        LeRobotDataset(root)


def test_files_of_metadata_may_have_numbers_of_different_width(root: Path) -> None:
    def samples() -> list[Any]:
        data = LeRobotDataset(root)
        with data.batches(16, episodes=data.samples(deltas={TOP: [0.0]}), output_options=NUMPY) as loader:
            return [batch[f"{TOP}_timestamp"].tolist() for batch in loader]

    expected = samples()
    path = root / "meta" / "episodes" / "chunk-000" / "file-001.parquet"
    table = pq.read_table(path)
    for name in ("episode_index", "length", f"videos/{TOP}/file_index"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int32()))
    pq.write_table(table, path)
    assert samples() == expected


def test_the_directory_as_plain_parquet_is_refused_with_the_remedy(root: Path) -> None:
    with pytest.raises(SchemaError, match=r"read it with LeRobotDataset\(path\), or pass path/data"):
        ParquetDataset(str(root))
    assert len(ParquetDataset(str(root / "data"))) == STARTS[-1]


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"info\.json: cannot be read .*; pass the local directory"):
        LeRobotDataset(tmp_path)
    with pytest.raises(ConfigurationError, match="episodes=3: expected a list of episode numbers"):
        LeRobotDataset(root, 3)  # type: ignore[arg-type]
    (root / "meta" / "info.json").write_text("{")
    with pytest.raises(SourceError, match="is not JSON"):
        LeRobotDataset(root)


def test_frames_are_those_of_the_rows(tmp_path: Path) -> None:
    if importlib.util.find_spec("av") is None:
        pytest.skip("needs PyAV")
    root = write(tmp_path / "robot", video=media.video(126, rate=FPS))
    data = LeRobotDataset(root)
    episodes = data.samples(deltas={TOP: [-3 / FPS, 0], "action": [0]})
    with data.batches(40, episodes=episodes, shuffle=True, output_options=NUMPY) as loader:
        batch = next(iter(loader))
    frames = data.frames(batch, TOP)
    assert frames.shape == (40, 2, 48, 272, 3)
    first = np.array(FIRST_FRAMES)[batch["episode_index"]][:, None]
    past = np.maximum(batch["frame_index"][:, None] + [-3, 0], 0)
    assert [media.numbers_of(clip) for clip in frames] == (first + past).tolist()
    with pytest.raises(ConfigurationError, match="the batch has none of its timestamps"):
        data.frames(batch, "nothing")


def test_files_stay_open_between_batches_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    av = pytest.importorskip("av", reason="needs PyAV")
    first, second = media.video(126, rate=FPS), media.video(130, rate=FPS, key_every=5)
    root = write(tmp_path / "robot", video=first)
    data = LeRobotDataset(root)
    opened = 0
    known = av.open

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal opened
        opened += 1
        return known(*args, **options)

    monkeypatch.setattr(av, "open", counted)
    with data.batches(40, episodes=data.samples(), output_options=NUMPY) as loader:
        batches = list(loader)

    def shown() -> list[Any]:
        return [media.numbers_of(data.frames(batch, TOP)[:, 0]) for batch in batches]

    whole = shown()
    assert sum(map(len, whole)) == sum(LENGTHS)
    assert opened == 2
    file = root / "videos" / TOP / "chunk-000" / "file-001.mp4"
    file.write_bytes(second)
    assert shown() == whole
    assert opened == 3
    if os.path.isdir("/proc/self/fd"):
        assert any(path.endswith(".mp4") for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()))
        del data, loader
        gc.collect()
        assert not any(path.endswith(".mp4") for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()))


def test_a_transform_decodes_frames_in_the_background(tmp_path: Path) -> None:
    if importlib.util.find_spec("av") is None:
        pytest.skip("needs PyAV")
    data = LeRobotDataset(write(tmp_path / "robot", video=media.video(126, rate=FPS)))
    episodes = data.samples(deltas={TOP: [-3 / FPS, 0], "action": [0]})

    def with_frames(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"frames": data.frames(batch, TOP, num_threads=1), "frame_index": batch["frame_index"]}

    with data.batches(40, episodes=episodes, shuffle=True, output_options=NUMPY) as loader:
        batch = next(iter(loader))
    with data.batches(40, episodes=episodes, shuffle=True, output_options=NUMPY, transform=with_frames) as loader:
        made = next(iter(loader))
    assert np.array_equal(made["frame_index"], batch["frame_index"])
    assert np.array_equal(made["frames"], data.frames(batch, TOP))


def test_a_loader_of_the_directory_is_an_episode_loader(root: Path) -> None:
    data = LeRobotDataset(root)
    with EpisodeLoader(data, 8, episodes=data.samples(4, 4)) as loader:
        assert loader.plan().episodes == len(LENGTHS)
