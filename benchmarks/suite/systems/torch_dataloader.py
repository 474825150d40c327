"""An `IterableDataset` over row groups, as users write it by hand.

Row groups are shuffled and divided over workers. Each worker reads the row groups of a window, shuffles the rows of the
window, and slices them into batches. A window's last batch is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.suite.systems.base import Batch, Job, System
from benchmarks.suite.systems.by_hand import tensor, tensors

PACKAGES = ("torch", "pyarrow", "numpy", "pillow")


class RowGroups(IterableDataset[dict[str, Any]]):
    """Batches from shuffled row groups."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.groups = [(path, g) for path in job.files for g in range(pq.read_metadata(path).num_row_groups)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        seed = torch.initial_seed() if worker is None else worker.seed - worker.id
        order = torch.randperm(len(self.groups), generator=torch.Generator().manual_seed(seed)).tolist()
        mine = order if worker is None else order[worker.id :: worker.num_workers]
        tables: list[pa.Table] = []
        for number in mine:
            path, group = self.groups[number]
            with pq.ParquetFile(path) as file:
                tables.append(file.read_row_group(group))
            if sum(table.num_rows for table in tables) >= self.job.window_rows:
                yield from self.shuffled(pa.concat_tables(tables))
                tables = []
        if tables:
            yield from self.shuffled(pa.concat_tables(tables))

    def shuffled(self, table: pa.Table) -> Iterator[dict[str, Any]]:
        order, size = torch.randperm(table.num_rows), self.job.batch_size
        fixed = not self.job.kinds & {"list", "text", "image"}
        window = {column.name: tensor(column, table[column.name]) for column in self.job.columns if fixed}
        if not fixed:
            table = table.take(order.numpy())
        for start in range(0, table.num_rows, size):
            if fixed:
                rows = order[start : start + size]
                yield {name: values[rows] for name, values in window.items()}
            else:
                yield tensors(self.job, table.slice(start, size))


class TorchDataLoader(System):
    """Options: ``workers``."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.loader = DataLoader(RowGroups(job), batch_size=None, num_workers=job.options["workers"])
        if not job.options["workers"]:
            torch.set_num_threads(job.threads)
            pa.set_cpu_count(job.threads)

    def epoch(self) -> Iterator[Batch]:
        return iter(self.loader)


def open_system(job: Job) -> System:
    """Open it."""
    return TorchDataLoader(job)
