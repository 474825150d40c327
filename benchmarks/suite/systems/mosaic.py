"""MosaicML Streaming: its own copy of the data in MDS shards, and torch's `DataLoader` with worker processes."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

from benchmarks.suite.systems.base import Batch, Job, System, copy_once
from benchmarks.suite.systems.by_hand import end_to_end, text_bytes
from benchmarks.suite.systems.pictures import decode
from benchmarks.suite.workloads import Column

_TORCHVISION = importlib.util.find_spec("torchvision")
try:
    ctypes.CDLL(str(Path(_TORCHVISION.origin or "").with_name("_C.so")) if _TORCHVISION else None)
except OSError:
    # `streaming` imports torchvision, whose operators, which nothing here uses, load only beside the build of torch
    # that they were made for. The names that are looked up on import will do.
    _OPERATORS = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from streaming import MDSWriter, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402

PACKAGES = ("mosaicml-streaming", "numpy", "torch", "pillow")


class Mosaic(System):
    """Options: ``workers``."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        clean_stale_shared_memory()
        folder = copy_once(job.copies / "mds", self._write)
        data = StreamingDataset(
            local=str(folder),
            shuffle=True,
            shuffle_algo="py1e",
            shuffle_block_size=max(job.window_rows, 2),
            batch_size=job.batch_size,
            num_canonical_nodes=1,
        )
        workers = job.options["workers"]
        self.loader = DataLoader(data, batch_size=job.batch_size, num_workers=workers, collate_fn=self.collate)
        torch.set_num_threads(1 if workers else job.threads)

    def _write(self, folder: Path) -> None:
        encodings = {column.name: _encoding(column) for column in self.job.columns}
        with MDSWriter(out=str(folder), columns=encodings) as writer:
            for path in self.job.files:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(4096):
                        names = batch.schema.names
                        columns = [_samples(self.job.column(name), batch.column(name)) for name in names]
                        for row in zip(*columns, strict=True):
                            writer.write(dict(zip(names, row, strict=True)))

    def epoch(self) -> Iterator[Batch]:
        return iter(self.loader)

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for column in self.job.columns:
            values = [row[column.name] for row in rows]
            if column.kind == "scalar":
                out[column.name] = torch.from_numpy(np.array(values, column.dtype))
            elif column.kind == "text":
                out[column.name] = text_bytes(values)
            elif column.kind == "list":
                out[column.name] = end_to_end(torch.from_numpy(value) for value in values)
            else:
                arrays = [decode(value) for value in values] if column.kind == "image" else values
                out[column.name] = torch.from_numpy(np.stack(arrays))
        return out


def _encoding(column: Column) -> str:
    if column.kind == "image":
        return "bytes"
    if column.kind == "text":
        return "str"
    if column.kind == "vector":
        return f"ndarray:{column.dtype}:{column.width}"
    return f"ndarray:{column.dtype}" if column.kind == "list" else column.dtype


def _samples(column: Column, array: Any) -> Any:
    if column.kind in ("list", "vector"):
        values, offsets = array.flatten().to_numpy(), np.asarray(array.offsets)
        return np.split(values, offsets[1:-1] - offsets[0])
    return array.to_numpy(zero_copy_only=False) if column.kind == "scalar" else array.to_pylist()


def open_system(job: Job) -> System:
    """Open it."""
    return Mosaic(job)
