"""Lance: its own copy of the data. Option ``shuffled``: false scans, true takes a batch of permuted rows at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.suite.systems.base import Batch, Job, System, copy_once
from benchmarks.suite.systems.by_hand import tensors

PACKAGES = ("pylance", "pyarrow", "numpy", "torch", "pillow")


class Lance(System):
    """Options: ``shuffled``."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        torch.set_num_threads(job.threads)
        folder = copy_once(job.copies / "lance", self._write)
        self.data = lance.dataset(str(folder))
        self.passes = 0

    def _write(self, folder: Path) -> None:
        fields = []
        for field in pq.read_schema(self.job.files[0]):
            kind = self.job.column(field.name)
            fields.append(pa.field(field.name, pa.list_(pa.float32(), kind.width)) if kind.kind == "vector" else field)
        schema = pa.schema(fields)

        def batches() -> Iterator[pa.RecordBatch]:
            for path in self.job.files:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(8192):
                        yield from pa.Table.from_batches([batch]).cast(schema).to_batches()

        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), str(folder))

    def epoch(self) -> Iterator[Batch]:
        size = self.job.batch_size
        if not self.job.options["shuffled"]:
            for batch in self.data.to_batches(batch_size=size):
                yield tensors(self.job, batch)
            return
        order = np.random.default_rng(self.passes).permutation(self.job.rows)
        self.passes += 1
        for start in range(0, self.job.rows, size):
            yield tensors(self.job, self.data.take(order[start : start + size]))


def open_system(job: Job) -> System:
    """Open it."""
    os.environ.setdefault("LANCE_CPU_THREADS", str(job.threads))
    return Lance(job)
