"""Directories of table formats, made by hand as their writers lay them out, with 10 live rows among 20 stored ones."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

UUID = "2a36ed9c-4a8e-4f4c-a5d2-6a3e7a5b7d9f"


def put(path: Path, first: int = 0) -> Path:
    """Write a file of 10 rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": range(first, first + 10)}), path)
    return path


def remove_amid_listing(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Remove a file when its directory has been listed, and before anyone looks at the file."""
    scandir = os.scandir

    def listed(folder: str) -> Any:
        with scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        if Path(folder) == path.parent:
            path.unlink(missing_ok=True)
        return contextlib.nullcontext(found)

    patch.setattr(os, "scandir", listed)


def _text(path: Path, text: str = "{}") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def delta(root: Path) -> None:
    put(root / "part-00000-a-c000.snappy.parquet")
    put(root / "part-00000-b-c000.snappy.parquet", 10)
    _text(root / "_delta_log" / "00000000000000000000.json", json.dumps({"add": {"path": "part-00000-a-c000.parquet"}}))


def partitioned_delta(root: Path) -> None:
    put(root / "day=1" / "part-00000-a.c000.snappy.parquet")
    put(root / "day=2" / "part-00000-b.c000.snappy.parquet", 10)
    _text(root / "_delta_log" / "00000000000000000010.checkpoint.parquet")


def iceberg(root: Path) -> None:
    put(root / "data" / "written_by_trino_a.parquet")
    put(root / "data" / "day=2" / "written_by_trino_b.parquet", 10)
    _text(root / "metadata" / f"00000-{UUID}.metadata.json")


def hadoop_iceberg(root: Path) -> None:
    put(root / "data" / "a.parquet")
    put(root / "data" / "b.parquet", 10)
    _text(root / "metadata" / "version-hint.text", "1")


def hudi(root: Path) -> None:
    for number, folder in enumerate((root / "day=1", root / "day=2")):
        put(folder / f"{UUID}-0_{number}-28-30_20230101120000123.parquet", 10 * number)
        _text(folder / ".hoodie_partition_metadata")
    _text(root / ".hoodie" / "hoodie.properties")


def paimon(root: Path) -> None:
    put(root / "dt=1" / "bucket-0" / f"data-{UUID}-0.parquet")
    put(root / "dt=1" / "bucket-0" / f"data-{UUID}-1.parquet", 10)
    for name in ("schema/schema-0", "snapshot/snapshot-1", "snapshot/LATEST", f"manifest/manifest-{UUID}-0"):
        _text(root / name)


def ducklake(root: Path) -> None:
    _text(root / "lake.ducklake")
    files = root / "lake.ducklake.files" / "main" / "sales"
    put(files / f"ducklake-{UUID}.parquet")
    put(files / f"ducklake-{UUID}-delete.parquet", 10)


def hive(root: Path) -> None:
    put(root / "base_0000002" / "000000_0")
    put(root / "delta_0000001_0000001_0000" / "000000_0", 10)


def spark_sink(root: Path) -> None:
    put(root / "part-00000-a-c000.snappy.parquet")
    put(root / "part-00000-b-c000.snappy.parquet", 10)
    _text(root / "_spark_metadata" / "0", "v1")


READ = ("a Delta table", "an Iceberg table")
"""Formats that are read if their directory is the source; their metadata does not describe a whole table."""

LAYOUTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "delta": (delta, "a Delta table"),
    "partitioned delta": (partitioned_delta, "a Delta table"),
    "iceberg": (iceberg, "an Iceberg table"),
    "hadoop iceberg": (hadoop_iceberg, "an Iceberg table"),
    "hudi": (hudi, "a Hudi table"),
    "paimon": (paimon, "a Paimon table"),
    "ducklake": (ducklake, "a DuckLake table"),
    "hive": (hive, "a transactional Hive table"),
    "spark sink": (spark_sink, "the output of a Spark streaming query"),
}
