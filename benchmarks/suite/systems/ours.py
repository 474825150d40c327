"""parquet_loader, as a user calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.suite.systems.base import Batch, Job, System, Unsupported
from benchmarks.suite.workloads import CATEGORIES, DENSE, IMAGE_SIDE
from parquet_loader import (
    BatchedDataLoader,
    Group,
    Image,
    OutputOptions,
    Scalar,
    Schema,
    Tensor,
    UnsupportedError,
)

PACKAGES = ("pyarrow", "numpy", "torch", "pillow", "simplejpeg")
GROUPED = Schema(
    {
        "dense": Group(DENSE, Scalar("float32")),
        "categories": Group(CATEGORIES, Scalar("int32")),
        "y": Scalar("int8"),
    }
)


class Ours(System):
    """Options: ``layout``, ``isolation``, ``grouped``, ``window_rows``, and any argument under ``arguments``.

    ``numpy`` asks for numpy arrays, and ``schema`` is the JSON form of a schema.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        torch.set_num_threads(1)
        try:
            self.loader = BatchedDataLoader(
                job.folder,
                job.batch_size,
                schema=_schema(job),
                shuffle=True,
                window_rows=max(job.window_rows, job.options.get("window_rows", 0)),
                num_threads=job.threads,
                isolation=job.options.get("isolation", "thread"),
                output_options=OutputOptions(format="numpy" if job.options.get("numpy") else "torch"),
                **job.options.get("arguments", {}),
            )
        except UnsupportedError as error:
            raise Unsupported(str(error)) from error

    def epoch(self) -> Iterator[Batch]:
        return iter(self.loader)

    def checked_epoch(self) -> Iterator[Batch]:
        """Split matrices into columns again."""
        groups = {"dense": DENSE, "categories": CATEGORIES}
        for batch in self.loader:
            out: dict[str, Any] = {}
            for name, value in batch.items():
                if name in groups:
                    out |= {member: value[:, place] for place, member in enumerate(groups[name])}
                else:
                    out[name] = value
            yield out

    def figures(self) -> dict[str, Any]:
        stats = self.loader.stats()
        return {
            "cpu_s": dict(stats.cpu_s),
            "blocked_s": dict(stats.blocked_s),
            "wait_s": stats.wait_s,
            "first_batch_s": stats.first_batch_s,
            "longest_wait_s": stats.longest_wait_s,
            "peak_bytes": stats.peak_bytes,
            "window_rows": self.loader.window_rows,
            "bound_by": stats.bound_by,
        }

    def close(self) -> None:
        self.loader.close()


def _schema(job: Job) -> Schema | None:
    if job.options.get("grouped"):
        return GROUPED
    if job.options.get("schema"):
        return Schema.from_json(job.options["schema"])
    fields: dict[str, Any] = {}
    for column in job.columns:
        if column.kind == "image":
            fields[column.name] = Image((IMAGE_SIDE, IMAGE_SIDE, 3))
        elif column.kind == "vector":
            fields[column.name] = Tensor(column.dtype, (column.width,))
        else:
            fields[column.name] = Scalar(column.dtype)
    return Schema(fields) if job.kinds & {"image", "vector"} else None  # else what the files say


def open_system(job: Job) -> System:
    """Open it."""
    return Ours(job)
