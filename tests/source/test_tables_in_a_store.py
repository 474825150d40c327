"""Tables and splits in an S3 store are refused through its listing, with few requests more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from demo.archive import ACCESS_KEY, SECRET_KEY, Server
from parquet_loader import (
    BatchedDataLoader,
    OutputOptions,
    ReadOptions,
    RemoteOptions,
    SourceError,
    WriteError,
    write_dataset,
)
from tests.source.layouts import LAYOUTS, READ, put
from tests.source.test_remote_opening import needs_servers
from tests.source.test_table_directories import SOURCES
from tests.support.far import far

NUMPY = OutputOptions(format="numpy")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("s3")
    for name, (make, _) in LAYOUTS.items():
        make(root / "bucket" / name.replace(" ", "_") / "sales")
    for number, name in enumerate(("train-0", "test-0", "part-0")):
        put(root / "bucket" / "splits" / f"{name}.parquet", 10 * number)
    (root / "bucket" / "splits" / "extra").write_bytes(put(root / "extra.parquet", 90).read_bytes())
    with Server(root) as server:
        yield root, server.endpoint


def home(endpoint: str) -> pafs.FileSystem:
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": "other"}
    return pafs.S3FileSystem(endpoint_override=endpoint, scheme="http", **keys)


def load(endpoint: str, source: Any, connections: Any = None, **options: Any) -> list[int]:
    reading = ReadOptions(
        remote=RemoteOptions(hedge=False, connections=connections),
        ignore_table_format=options.pop("ignore", False),
    )
    with BatchedDataLoader(
        source, 64, columns=["id"], filesystem=home(endpoint), output_options=NUMPY, read_options=reading, **options
    ) as loader:
        return sorted(int(i) for batch in loader for i in batch["id"])


@needs_servers
@pytest.mark.parametrize("connections", ["native", pytest.param("obstore", marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_a_table_in_a_bucket_is_refused_however_it_is_named(
    store: tuple[Path, str], layout: str, connections: str
) -> None:
    root, endpoint = store
    for name_of in SOURCES.values():
        found = name_of(root / "bucket" / layout.replace(" ", "_") / "sales")
        names = found if isinstance(found, list) else [found]
        inner = [os.path.relpath(name, root) for name in names]
        is_read = found == str(root / "bucket" / layout.replace(" ", "_") / "sales") and LAYOUTS[layout][1] in READ
        refusal = None if is_read else f"this is {LAYOUTS[layout][1]}"
        with pytest.raises(SourceError, match=refusal):
            load(endpoint, inner if isinstance(found, list) else inner[0], connections)


@needs_servers
def test_no_file_is_written_into_a_table_in_a_bucket(store: tuple[Path, str]) -> None:
    for path in ("bucket/delta/sales", "bucket/delta/sales/new", "bucket/iceberg/sales", "bucket/hudi/sales/day=1"):
        with pytest.raises(WriteError, match="write to another directory"):
            write_dataset({"id": [1]}, path, mode="append", filesystem=home(store[1]))


@needs_servers
def test_splits_and_files_without_suffix_are_found_in_a_bucket(store: tuple[Path, str]) -> None:
    with pytest.raises(SourceError, match="mixes the splits"):
        load(store[1], "bucket/splits")
    assert load(store[1], "bucket/splits", split="train") == list(range(10))
    assert load(store[1], "bucket/splits", split="all") == [*range(30), *range(90, 100)]


@needs_servers
def test_plain_lists_of_files_take_few_requests_more(store: tuple[Path, str]) -> None:
    with far(store[1]) as proxy:
        files = [f"bucket/splits/{name}.parquet" for name in ("train-0", "test-0", "part-0")]
        assert load(proxy.endpoint, files, split="all") == list(range(30))
        asked = len(proxy.log.requests)
    with far(store[1]) as proxy:
        assert load(proxy.endpoint, files, split="all", ignore=True) == list(range(30))
        assert asked - len(proxy.log.requests) <= 4


@needs_servers
def test_plain_files_are_read_without_permission_to_list(store: tuple[Path, str]) -> None:
    with far(store[1]) as proxy:
        proxy.line.fault_of = lambda method, target, number: "403" if "list-type" in target else None
        assert load(proxy.endpoint, ["bucket/splits/train-0.parquet"]) == list(range(10))
