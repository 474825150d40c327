"""Prepare the flights with a local cluster, then train on the result with DDP: two processes, gloo.

python -m demo.train_ranks dask
python -m demo.train_ranks spark      (needs Java 17 and pyspark)

The trainer and the job share only the schema and the path. On a machine with GPUs, change two things: ``"nccl"``
instead of ``"gloo"``, and ``device="cuda"`` for the loader and the model.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from demo.fetch import TRAIN, VALIDATION
from demo.prepare_job import prepare
from demo.regression import BATCH_SIZE, Errors, moments, report, widths
from demo.task import flights
from demo.train import Regressor, run_epoch, validate
from parquet_loader import BatchedDataLoader, Shard

RANKS = 2


def train(targets: dict[str, Any], epochs: int) -> tuple[dict[str, Errors], list[int]]:
    """Train on `RANKS` processes; return the errors of the last validation, and the rows of an epoch on each rank."""
    task = replace(flights(), train=targets["train"], validation=targets["validation"])
    mean, std = map(torch.from_numpy, moments(task))
    results = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"file://{folder}/meeting", targets, mean, std, epochs, results)
        spawn(_rank, arguments, nprocs=RANKS)
    reports = sorted((results.get() for _ in range(RANKS)), key=lambda found: found[0])
    return reports[0][2], [rows for _, rows, _ in reports]


def _rank(
    rank: int, meeting: str, targets: dict[str, Path], mean: Tensor, std: Tensor, epochs: int, results: Any
) -> None:
    """Train as one of the ranks; its loader reads its part of the rows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    task = replace(flights(), train=targets["train"], validation=targets["validation"])
    model = Regressor(mean, std, widths(task))
    parallel = DistributedDataParallel(model)
    errors: dict[str, Errors] = {}
    seen = Errors()
    with (
        BatchedDataLoader(task.train, BATCH_SIZE // RANKS, schema=task.schema, shuffle=True, seed=0) as loader,
        BatchedDataLoader(task.validation, BATCH_SIZE, schema=task.schema, shard=Shard(0, 1)) as held_out,
    ):
        optimiser = torch.optim.AdamW(parallel.parameters(), lr=3e-3, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=epochs * len(loader))
        for epoch in range(epochs):
            seen = run_epoch(parallel, loader, task, std[-1] ** 2, optimiser, schedule)
            if rank == 0:  # the other ranks wait for it at their next step
                errors = validate(model, held_out, task)
                print(f"epoch {epoch}: train MSE {seen.mse:.4g} on rank 0, validation MSE {errors['model'].mse:.4g}")
    results.put((rank, seen.rows, errors))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Prepare and train as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m demo.train_ranks", description="Prepare and train on a cluster.")
    parser.add_argument("engine", choices=["dask", "spark"])
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    targets = {"train": TRAIN, "validation": VALIDATION}
    prepare(options.engine, targets)
    errors, rows = train(targets, options.epochs)
    print(f"rows of an epoch by rank: {rows}")
    report(errors)


if __name__ == "__main__":
    main()
