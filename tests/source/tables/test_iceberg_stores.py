"""Iceberg tables in an object store, by URL and as objects of pyiceberg with credentials of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from pyiceberg.table import StaticTable

from demo.archive import ACCESS_KEY, SECRET_KEY, Server
from parquet_loader import IcebergSource, ParquetDataset, ReadOptions, RemoteOptions, SourceError
from tests.source.tables.iceberg_rows import delivered
from tests.source.tables.iceberg_tables import HandTable, Version
from tests.source.test_remote_opening import needs_servers
from tests.support.examples import grid

pytestmark = needs_servers

LIVE = [number for number in range(60) if number % 20 != 3]


def table_at(root: Path, scheme: str, version: Version) -> HandTable:
    name = f"{scheme}-{version}"
    location = f"{scheme}://bucket/{name}"
    table = HandTable(root / "bucket" / name, [("id", "long")], version=version, location=location)
    for first in range(0, 60, 20):
        table.insert([{1: number} for number in range(first, first + 20)])
    table.delete({path: {3} for path in table.files}, together=True)
    return table


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("s3")
    table_at(root, "s3", 2)
    table_at(root, "s3a", 3)
    lost = table_at(root, "s3n", 2)
    lost.local(min(lost.files)).unlink()
    with Server(root) as server:
        yield root, server.endpoint


def home(endpoint: str) -> pafs.FileSystem:
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": "other"}
    return pafs.S3FileSystem(endpoint_override=endpoint, scheme="http", **keys)


@grid(
    "name, connections",
    ["s3-2", "s3a-3"],
    ["obstore", "native"],
    everyday=lambda name, connections: (name == "s3-2") == (connections == "obstore"),
)
def test_a_table_is_read_by_its_url(store: tuple[Path, str], name: str, connections: Any) -> None:
    reading = ReadOptions(remote=RemoteOptions(hedge=False, connections=connections))
    for source in (f"bucket/{name}", f"s3://bucket/{name}", IcebergSource(f"s3://bucket/{name}")):
        rows = delivered(source, ["id"], filesystem=home(store[1]), read_options=reading)
        assert sorted(row[0] for row in rows) == LIVE


@pytest.mark.parametrize("name", ["s3-2", "s3a-3"])
def test_the_credentials_of_a_pyiceberg_table_are_used(store: tuple[Path, str], name: str) -> None:
    properties = {
        "s3.endpoint": f"http://{store[1]}",
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "s3.region": "other",
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }
    newest = max((store[0] / "bucket" / name / "metadata").glob("v*.json")).name
    table = StaticTable.from_metadata(f"s3://bucket/{name}/metadata/{newest}", properties)
    assert sorted(row[0] for row in delivered(table, ["id"])) == LIVE
    data = ParquetDataset(table)
    assert data.num_rows == len(LIVE)


def test_files_that_a_store_has_lost_are_named(store: tuple[Path, str]) -> None:
    with pytest.raises(SourceError, match=r"s3n-2/data/.*\.parquet.*expiry of snapshots"):
        ParquetDataset(IcebergSource("s3://bucket/s3n-2"), filesystem=home(store[1]))
