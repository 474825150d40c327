"""Compares `EpisodeLoader` with delivering the same rows one by one, interleaved, each in its own process.

    python -m benchmarks.episodes
    python -m benchmarks.episodes --rounds 5 --history 1 --future 2

The table resembles robot data: 10,000 episodes of 100 rows on average, with a state and an action of 14 float32 each. A
turn is a whole epoch. Processor time is that of the whole process since its last turn, including background threads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, EpisodeLoader, Episodes

EPISODES, GROUP, FILES = 10_000, 16_384, 4
WIDTH, ROWS, SAMPLES = 14, 4096, 256


def write(folder: Path) -> None:
    """Write the table in some files."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(50, 151, EPISODES)
    numbers = np.repeat(np.arange(EPISODES), lengths)
    frames = np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    def vectors() -> pa.Array:
        values = rng.normal(size=len(numbers) * WIDTH).astype(np.float32)
        return pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)

    table = pa.table({"episode_index": numbers, "frame_index": frames, "state": vectors(), "action": vectors()})
    step = -(-len(table) // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet", row_group_size=GROUP)


def samples(folder: Path, history: int, future: int) -> EpisodeLoader:
    episodes = Episodes("episode_index", history, future)
    return EpisodeLoader(str(folder), SAMPLES, episodes=episodes, shuffle=True, num_threads=2)


def rows(folder: Path, history: int, future: int) -> BatchedDataLoader:  # noqa: ARG001
    return BatchedDataLoader(str(folder), ROWS, shuffle=True, num_threads=2)


SYSTEMS: dict[str, Any] = {"samples": samples, "rows": rows}


def serve(system: str, folder: Path, history: int, future: int) -> None:
    """Answer each line on stdin with the rows of one epoch, and the seconds that they took."""
    import torch  # noqa: PLC0415  (the rows' tensors)

    torch.set_num_threads(1)
    loader = SYSTEMS[system](folder, history, future)

    def epoch() -> int:
        return sum(batch["state"].numel() // WIDTH for batch in loader)

    for _ in range(2):
        epoch()
    cpu = time.process_time()
    print("ready", flush=True)
    for _ in sys.stdin:
        wall = time.perf_counter()
        delivered = epoch()
        wall, before, cpu = time.perf_counter() - wall, cpu, time.process_time()
        print(json.dumps({"rows": delivered, "wall": wall, "cpu": cpu - before}), flush=True)


def turns(processes: dict[str, Any], rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    for _ in range(rounds):
        for system, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            yield system, json.loads(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
        write(Path(name))
        processes: dict[str, Any] = {}
        for system in SYSTEMS:
            command = [sys.executable, "-m", "benchmarks.episodes", "--serve", system, "--folder", name]
            command += [f"--history={given.history}", f"--future={given.future}"]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            processes[system] = process
        figures: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
        for system, figure in turns(processes, given.rounds):
            figures[system].append(figure)
        for process in processes.values():
            process.stdin.close()
    print("| | M rows/s | M rows/s of processor time | of the rate of rows |\n|---|---|---|---|")
    plain = [figure["rows"] / figure["cpu"] for figure in figures["rows"]]
    for system, found in figures.items():
        wall = statistics.median(figure["rows"] / figure["wall"] for figure in found)
        cpu = [figure["rows"] / figure["cpu"] for figure in found]
        ratio = statistics.median(own / other for own, other in zip(cpu, plain, strict=True))
        print(f"| {system} | {wall / 1e6:.2f} | {statistics.median(cpu) / 1e6:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
