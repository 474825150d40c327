"""Hugging Face `datasets`, streaming.

With the option ``shuffled`` true, it uses `IterableDataset.shuffle` with a buffer of a window's rows, then torch's
`DataLoader`, as its documentation shows; with false, `iter(batch_size=...)`, which is faster and does not shuffle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

import torch
from datasets import Image, load_dataset
from torch.utils.data import DataLoader

from benchmarks.suite.systems.base import Batch, Job, System
from benchmarks.suite.systems.by_hand import end_to_end, text_bytes

PACKAGES = ("datasets", "pyarrow", "numpy", "torch", "pillow")


class HuggingFace(System):
    """Options: ``shuffled``."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        torch.set_num_threads(job.threads)
        data = load_dataset(
            "parquet",
            data_files={"train": list(job.files)},
            split="train",
            streaming=True,
            cache_dir=str(job.copies / "huggingface-cache"),
        )
        if "image" in job.kinds:
            data = data.cast_column("image", Image())
        if job.options["shuffled"]:
            data = data.shuffle(seed=0, buffer_size=job.window_rows)
        self.data = data.with_format("torch")
        self.passes = 0

    def epoch(self) -> Iterator[Batch]:
        self.data.set_epoch(self.passes)
        self.passes += 1
        if self.job.options["shuffled"]:
            return iter(DataLoader(self.data, batch_size=self.job.batch_size, collate_fn=self.collate))
        return (self.finished(batch) for batch in self.data.iter(batch_size=self.job.batch_size))

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return self.finished({name: [row[name] for row in rows] for name in rows[0]})

    def finished(self, batch: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for column in self.job.columns:
            value = batch[column.name]
            if column.kind == "text":
                out[column.name] = text_bytes(value)
            elif column.kind == "list":
                out[column.name] = end_to_end(value)
            else:
                value = value if isinstance(value, torch.Tensor) else torch.stack(value)
                out[column.name] = value.permute(0, 2, 3, 1).contiguous() if column.kind == "image" else value
        return out


def open_system(job: Job) -> System:
    """Open it."""
    return HuggingFace(job)
