"""Ray Data's `iter_torch_batches` on one machine, with a local shuffle buffer of a window's rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.suite.systems.base import Batch, Job, System
from benchmarks.suite.systems.by_hand import tensors

PACKAGES = ("ray", "pyarrow", "numpy", "torch", "pillow")


class RayData(System):
    """`read_parquet` on the job's number of processors; images are decoded in `map_batches`."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        ray.init(
            num_cpus=job.threads,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=2 * 2**30,
        )
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = False
        self.data = ray.data.read_parquet(list(job.files), shuffle="files")
        if "image" in job.kinds:
            self.data = self.data.map_batches(_decode, batch_size=job.batch_size)

    def epoch(self) -> Iterator[Batch]:
        options: dict[str, Any] = {
            "batch_size": self.job.batch_size,
            "local_shuffle_buffer_size": self.job.window_rows,
        }
        if "image" in self.job.kinds:
            return iter(self.data.iter_torch_batches(**options))
        tables = self.data.iter_batches(batch_format="pyarrow", **options)
        return (tensors(self.job, table) for table in tables)

    def close(self) -> None:
        ray.shutdown()


def _decode(batch: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.suite.systems.pictures import decode_all  # noqa: PLC0415  (runs in Ray's processes)

    return {"image": decode_all(batch["image"]), "y": np.asarray(batch["y"])}


def open_system(job: Job) -> System:
    """Open it."""
    torch.set_num_threads(job.threads)
    return RayData(job)
