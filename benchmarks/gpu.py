"""The loader and a GPU: bandwidth beside a bare pinned copy, and a training step beside one batch kept on the device.

    python benchmarks/gpu.py [--cache DIR] [--rounds 5] [--out benchmarks/results/gpu.json]

*Bandwidth*: epochs of rows of 4,096 float32 delivered by ``device="cuda"``, beside ``non_blocking`` copies of one
pinned batch of the same size. *Step*: a multilayer perceptron trained on those batches, beside the same loop on one
batch that stays on the device. *Tabular*: epochs of 40 columns of numbers in batches of 4,096, by two threads, whose
windows the GPU permutes, beside windows that the CPU permutes, in rows a second of time and of processor time. In
turns; every timing ends with `torch.cuda.synchronize`. Needs CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
import torch

from benchmarks.suite.generate import generate
from benchmarks.suite.results import hardware, now, save, spread
from benchmarks.suite.workloads import SCIENCE, TABULAR
from parquet_loader import BatchedDataLoader, OutputOptions

WINDOW_ROWS = 8192
WIDTH = 4096
BATCH_SIZE = 1024


def epoch_seconds(loader: BatchedDataLoader) -> float:
    """Time an epoch until its last byte is on the device."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in loader:
        pass
    torch.cuda.synchronize()
    return time.perf_counter() - began


def copy_seconds(batches: int, batch: torch.Tensor) -> float:
    """Time as many copies of a pinned batch, queued without waiting."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(batches):
        batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def network() -> torch.nn.Module:
    """Return a model heavy enough to be the bottleneck of its own loop."""
    layers: list[torch.nn.Module] = []
    for _ in range(8):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)).cuda()


class Training:
    """A model, its optimiser, and one step."""

    def __init__(self) -> None:
        self.model = network()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def step(self, batch: torch.Tensor) -> None:
        loss = self.model(batch).square().mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()

    def seconds(self, batches: Any) -> float:
        """Return seconds a step."""
        torch.cuda.synchronize()
        began, count = time.perf_counter(), 0
        for batch in batches:
            self.step(batch["x"])
            count += 1
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count


def measure(folder: Path, rounds: int, threads: int | None, isolation: str) -> dict[str, Any]:
    """Return bandwidths and step times, round by round."""
    arguments: dict[str, Any] = {"shuffle": True, "window_rows": WINDOW_ROWS, "drop_last": True, "device": "cuda"}
    with BatchedDataLoader(
        folder,
        BATCH_SIZE,
        num_threads=threads,
        isolation=isolation,  # type: ignore[arg-type]
        memory_limit="4GiB",
        **arguments,
    ) as loader:
        kept = next(iter(loader))
        loader.reset()
        nbytes = kept["x"].nbytes * len(loader)
        pinned = torch.empty_like(kept["x"], device="cpu").pin_memory()
        training = Training()
        training.seconds([kept] * 10)
        epoch_seconds(loader)
        copy_seconds(len(loader), pinned)
        loaded, copied, fed, cached = [], [], [], []
        for _ in range(rounds):
            copied.append(copy_seconds(len(loader), pinned))
            loaded.append(epoch_seconds(loader))
            cached.append(training.seconds([kept] * len(loader)))
            fed.append(training.seconds(loader))
    return {
        "batch_size": BATCH_SIZE,
        "batches": nbytes // kept["x"].nbytes,
        "copy_bytes_per_s": spread([nbytes / s for s in copied]),
        "loader_bytes_per_s": spread([nbytes / s for s in loaded]),
        "share_of_copy": spread([c / s for c, s in zip(copied, loaded, strict=True)]),
        "cached_step_s": spread(cached),
        "loader_step_s": spread(fed),
        "step_ratio": spread([f / c for f, c in zip(fed, cached, strict=True)]),
    }


def measure_tabular(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the rows a second of time and of processor time, permuted by the GPU and by the CPU."""
    arguments: dict[str, Any] = {"shuffle": True, "window_rows": 200_000, "device": "cuda", "num_threads": 2}
    loaders = {
        name: BatchedDataLoader(
            folder, 4096, output_options=OutputOptions(shuffle_on_device=permutes), memory_limit="4GiB", **arguments
        )
        for name, permutes in (("gpu", True), ("cpu", False))
    }
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, loader in loaders.items():
            cpu_s = time.process_time()
            seconds = epoch_seconds(loader)
            cpu_s = time.process_time() - cpu_s
            if number:  # the first epoch allocates memory
                stats = loader.stats()
                found.setdefault(f"{name}_rows_per_s", []).append(stats.rows / seconds)
                found.setdefault(f"{name}_rows_per_cpu_s", []).append(stats.rows / cpu_s)
                found.setdefault(f"{name}_cpu_of_decoding", []).append(cpu_s / stats.cpu_s["read"])
    for loader in loaders.values():
        loader.close()
    return {name: spread(values) for name, values in found.items()}


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "parquet_loader-bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=SCIENCE.rows)
    parser.add_argument("--table-rows", type=int, default=TABULAR.rows)
    parser.add_argument("--threads", type=int, help="default: the loader's own")
    parser.add_argument("--isolation", choices=("thread", "process"), default="thread")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a CUDA GPU and a build of torch that sees it; there is none here")
    home = arguments.cache / f"{SCIENCE.name}-{arguments.rows}"
    for layout in SCIENCE.layouts:
        generate(SCIENCE, arguments.rows, layout, home)
    found = measure(home / "raw", arguments.rounds, arguments.threads, arguments.isolation)
    tables = arguments.cache / f"{TABULAR.name}-{arguments.table_rows}"
    generate(TABULAR, arguments.table_rows, "default", tables)
    found["tabular"] = measure_tabular(tables / "default", arguments.rounds)
    results = {
        "date": now(),
        "command": "python benchmarks/gpu.py",
        "rounds": arguments.rounds,
        "threads": arguments.threads or min(8, os.cpu_count() or 1),
        "isolation": arguments.isolation,
        "hardware": {**hardware(), "gpu": torch.cuda.get_device_name()},
        "versions": {"pyarrow": pa.__version__, "torch": torch.__version__, "numpy": np.__version__},
        **found,
    }
    print(json.dumps({name: value for name, value in results.items() if name != "hardware"}, indent=1))
    print(
        f"{found['loader_bytes_per_s']['median'] / 1e9:.1f} GB/s = {found['share_of_copy']['median']:.2f} of a bare "
        f"pinned copy; a step takes {found['step_ratio']['median']:.3f} of one on a cached batch; "
        f"tabular {found['tabular']['gpu_rows_per_s']['median'] / 1e6:.1f} M rows/s"
    )
    if arguments.out:
        save(arguments.out, results)


if __name__ == "__main__":
    main()
