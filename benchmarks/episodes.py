"""Compares `EpisodeLoader` with LeRobot's own data set class, and with delivering the same rows one by one.

    python -m benchmarks.episodes
    python -m benchmarks.episodes --systems samples rows --rounds 5 --history 1 --future 2

Needs `pip install pandas lerobot`; without LeRobot, its class is left out. All read one directory in the format of
LeRobot 3: 10,000 episodes of 100 rows on average, with a state and an action of 14 float32 each, and no cameras. First,
LeRobot's class must give the same samples as one shuffled batch of `EpisodeLoader`, with all columns and masks.

Each system runs in its own process, in turns with the others. A turn is a whole epoch, or with LeRobot's class some
random samples, which includes the start of its workers. Processor time is that of the whole process and of its workers
since its last turn, including background threads.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, EpisodeLoader, LeRobotDataset

EPISODES, GROUP, FILES = 10_000, 16_384, 4
WIDTH, ROWS, SAMPLES, FPS = 14, 4096, 256, 30
STATE, ACTION = "observation.state", "action"
TURN = 10
"""The number of batches in a turn of LeRobot's class."""


def write(root: Path) -> None:
    """Write a data set of LeRobot 3."""
    import pandas as pd  # noqa: PLC0415  (LeRobot stores the tasks in the index of a data frame)

    rng = np.random.default_rng(0)
    lengths = rng.integers(50, 151, EPISODES)
    stops = np.cumsum(lengths)
    rows = int(stops[-1])
    episode = np.repeat(np.arange(EPISODES), lengths)
    frame = np.arange(rows) - np.repeat(stops - lengths, lengths)
    scalars = {"frame_index": frame, "episode_index": episode, "index": np.arange(rows), "task_index": 0 * frame}

    def vectors() -> pa.Array:
        values = rng.normal(size=rows * WIDTH).astype(np.float32)
        return pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)

    times = (frame / FPS).astype(np.float32)
    table = pa.table({STATE: vectors(), ACTION: vectors(), "timestamp": times, **scalars})
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    each = EPISODES // FILES
    for number in range(FILES):
        path = root / f"data/chunk-000/file-{number:03d}.parquet"
        pq.write_table(table.filter(pa.array(episode // each == number)), path, row_group_size=GROUP)
    none = np.zeros(EPISODES, np.int64)
    listed = {
        "episode_index": np.arange(EPISODES), "tasks": [["move"]] * EPISODES, "length": lengths,
        "data/chunk_index": none, "data/file_index": np.arange(EPISODES) // each,
        "dataset_from_index": stops - lengths, "dataset_to_index": stops,
        "meta/episodes/chunk_index": none, "meta/episodes/file_index": none,
    }  # fmt: skip
    pq.write_table(pa.table(listed), root / "meta/episodes/chunk-000/file-000.parquet")
    pd.DataFrame({"task_index": [0]}, index=["move"]).to_parquet(root / "meta/tasks.parquet")
    features: dict[str, Any] = {name: {"dtype": "float32", "shape": [WIDTH], "names": None} for name in (STATE, ACTION)}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    features |= {name: {"dtype": "int64", "shape": [1], "names": None} for name in scalars}
    info = {
        "codebase_version": "v3.0", "fps": FPS, "features": features, "video_path": None,
        "total_episodes": EPISODES, "total_frames": rows, "total_tasks": 1, "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    }  # fmt: skip
    (root / "meta/info.json").write_text(json.dumps(info))


def deltas_of(history: int, future: int) -> dict[str, list[float]]:
    seconds = [row / FPS for row in range(-history, future + 1)]
    return {STATE: seconds, ACTION: seconds}


def samples(root: Path, history: int, future: int) -> EpisodeLoader:
    data = LeRobotDataset(root)
    episodes = data.samples(deltas=deltas_of(history, future))
    return EpisodeLoader(data, SAMPLES, episodes=episodes, shuffle=True, num_threads=2)


def rows(root: Path, history: int, future: int) -> BatchedDataLoader:  # noqa: ARG001
    return BatchedDataLoader(LeRobotDataset(root), ROWS, shuffle=True, num_threads=2)


def lerobot(root: Path, history: int, future: int, workers: int) -> Iterable[Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Dataset  # noqa: PLC0415  (an extra)
    from torch.utils.data import DataLoader, RandomSampler  # noqa: PLC0415  (as the class)

    dataset = Dataset("benchmark/episodes", root, delta_timestamps=deltas_of(history, future))
    compare(dataset, samples(root, history, future))
    sampler = RandomSampler(dataset, num_samples=TURN * SAMPLES)
    return DataLoader(dataset, SAMPLES, sampler=sampler, num_workers=workers)


def compare(theirs: Any, ours: EpisodeLoader) -> None:
    """Check that a shuffled batch holds the samples of LeRobot's class."""
    import torch  # noqa: PLC0415  (as the systems)

    assert len(theirs) == ours.plan().samples
    with ours:
        batch = next(iter(ours))
    for number, index in enumerate(batch["index"].tolist()):
        sample = theirs[index]
        assert sample.pop("task") == "move"
        assert sample.keys() == batch.keys()
        for name, expected in sample.items():
            torch.testing.assert_close(batch[name][number], expected, rtol=0, atol=0)


SYSTEMS: dict[str, Callable[[Path, int, int], Iterable[Any]]] = {
    "samples": samples,
    "rows": rows,
    "lerobot": partial(lerobot, workers=0),
    "lerobot, 2 workers": partial(lerobot, workers=2),
}


def processor_time() -> float:
    """Return the seconds of this process and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def serve(system: str, root: Path, history: int, future: int) -> None:
    """Answer each line on stdin with the rows of one turn, and the seconds that they took."""
    import torch  # noqa: PLC0415  (the rows' tensors)

    torch.set_num_threads(1)
    loader = SYSTEMS[system](root, history, future)

    def turn() -> int:
        return sum(batch[STATE].numel() // WIDTH for batch in loader)

    for _ in range(2):
        turn()
    cpu = processor_time()
    print("ready", flush=True)
    for _ in sys.stdin:
        wall = time.perf_counter()
        delivered = turn()
        wall, before, cpu = time.perf_counter() - wall, cpu, processor_time()
        print(json.dumps({"rows": delivered, "wall": wall, "cpu": cpu - before}), flush=True)


def turns(processes: dict[str, Any], rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    for _ in range(rounds):
        for system, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            yield system, json.loads(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--history", type=int, default=7)
    parser.add_argument("--future", type=int, default=8)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.folder, given.history, given.future)
        return
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        root = Path(name) / "robot"
        write(root)
        processes: dict[str, Any] = {}
        for system in given.systems:
            if system.startswith("lerobot") and importlib.util.find_spec("lerobot") is None:
                print(f"{system}: left out; pip install lerobot")
                continue
            command = [sys.executable, "-m", "benchmarks.episodes", "--serve", system, "--folder", str(root)]
            command += [f"--history={given.history}", f"--future={given.future}"]
            environment = {**os.environ, "HF_HOME": name}  # LeRobot's class keeps a copy of the rows there
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            processes[system] = process
        figures: dict[str, list[dict[str, float]]] = {system: [] for system in processes}
        for system, figure in turns(processes, given.rounds):
            figures[system].append(figure)
        for process in processes.values():
            process.stdin.close()
    if not figures:
        return
    first = next(iter(figures))
    base = [figure["rows"] / figure["cpu"] for figure in figures[first]]
    print(f"| | M rows/s | M rows/s of processor time | compared with {first} |\n|---|---|---|---|")
    for system, found in figures.items():
        wall = statistics.median(figure["rows"] / figure["wall"] for figure in found)
        cpu = [figure["rows"] / figure["cpu"] for figure in found]
        ratio = statistics.median(own / other for own, other in zip(cpu, base, strict=True))
        print(f"| {system} | {wall / 1e6:#.3g} | {statistics.median(cpu) / 1e6:#.3g} | {ratio:.3g} |")


if __name__ == "__main__":
    main()
