"""Petastorm's `make_batch_reader` and `BatchedDataLoader`, on a pool of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from petastorm import TransformSpec, make_batch_reader
from petastorm.pytorch import BatchedDataLoader

from benchmarks.suite.systems.base import Batch, Job, System, Unsupported
from benchmarks.suite.workloads import IMAGE_SIDE

PACKAGES = ("petastorm", "pyarrow", "numpy", "pandas", "pyspark", "torch", "pillow")


class Petastorm(System):
    """Row groups in random order, and a shuffling queue of a window's rows."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        if job.kinds & {"list", "text"}:
            raise Unsupported(
                "BatchedDataLoader takes only numbers and arrays of one shape, not lists of varying length or text"
            )
        transform = _decoding() if "image" in job.kinds else None
        self.reader = make_batch_reader(
            [f"file://{path}" for path in job.files],
            reader_pool_type="thread",
            workers_count=job.threads,
            shuffle_row_groups=True,
            num_epochs=1,
            transform_spec=transform,
        )
        self.loader = BatchedDataLoader(
            self.reader, batch_size=job.batch_size, shuffling_queue_capacity=job.window_rows
        )

    def epoch(self) -> Iterator[Batch]:
        return iter(self.loader)

    def close(self) -> None:
        self.reader.stop()
        self.reader.join()


def _decoding() -> Any:
    from benchmarks.suite.systems.pictures import decode  # noqa: PLC0415  (needs Pillow)

    def rows(frame: Any) -> Any:
        frame["image"] = [decode(encoded) for encoded in frame["image"]]
        return frame

    return TransformSpec(rows, edit_fields=[("image", np.uint8, (IMAGE_SIDE, IMAGE_SIDE, 3), False)])


def open_system(job: Job) -> System:
    """Open it."""
    return Petastorm(job)
