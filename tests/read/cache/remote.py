"""Data sets that a loader takes for remote ones, and functions that inspect caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, LocalCache, OutputOptions

ROWS, GROUP_ROWS, FILES = 6000, 500, 3
SCHEMA = pa.schema(
    [
        ("a", pa.float64()),
        ("b", pa.int64()),
        ("text", pa.string()),
        pa.field("tensor", pa.binary(2048), nullable=False),
    ]
)


def write_data(root: Path, name: str = "data", *, files: int = FILES, rows: int = ROWS, seed: int = 0) -> Path:
    """Write files of row groups of 500 rows: numbers with nulls, text, and rows of bytes as they lie in pages."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(files):
        tensor = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(2048), rows // files, [None, pa.py_buffer(rng.bytes(2048 * (rows // files)))]
        )
        table = pa.table(
            {
                "a": rng.normal(size=rows // files),
                "b": rng.integers(0, 100, rows // files),
                "text": [f"row {i}" for i in range(rows // files)],
                "tensor": tensor,
            },
            schema=SCHEMA,
        )
        pq.write_table(
            table,
            folder / f"{number}.parquet",
            row_group_size=GROUP_ROWS,
            use_dictionary=["text"],
            compression={"a": "snappy", "b": "snappy", "text": "snappy", "tensor": "none"},
        )
    return folder


def far(root: Path) -> pafs.FileSystem:
    """Return a filesystem whose paths lie below `root`, and which a loader takes for a remote one."""
    return pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())


def open_loader(root: Path, cache: LocalCache | None, name: str = "data", **options: Any) -> BatchedDataLoader:
    """Return a loader that shuffles, and delivers numpy arrays; by default of columns that need no look before."""
    options = {
        "shuffle": True,
        "columns": ["a", "b", "tensor"],
        "seed": 7,
        "num_threads": 2,
        "output_options": OutputOptions(format="numpy"),
        **options,
    }
    return BatchedDataLoader(name, 128, filesystem=far(root), cache=cache, **options)


def read_epoch(loader: BatchedDataLoader) -> list[dict[str, Any]]:
    """Return the next epoch's batches as plain values."""
    return [{n: v.to_list() if hasattr(v, "to_list") else v.tobytes() for n, v in batch.items()} for batch in loader]


def copies(cache: Path) -> list[Path]:
    """Return the files of row groups in a cache."""
    return sorted(path for path in (cache / "entries-1").rglob("*") if path.is_file())


def disk_bytes(folder: Path) -> int:
    """Return the disk space of a directory, including its subdirectories."""
    found = [os.lstat(folder)]
    for at, folders, files in os.walk(folder):
        found += [os.lstat(os.path.join(at, name)) for name in (*folders, *files)]
    return sum(status.st_blocks * 512 for status in found)


def account(cache: Path) -> int:
    """Return the used bytes in a cache's ledger."""
    text = (cache / "ledger").read_bytes()
    assert text[:1] == b"=", "somebody changed the account and did not finish"
    return int(text[9:])
