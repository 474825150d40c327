"""Delta tables in an S3 store: the same rows, credentials by `storage_options`, and few requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable, write_deltalake

from demo.archive import ACCESS_KEY, SECRET_KEY, Server
from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DeltaSource,
    OutputOptions,
    ParquetDataset,
    ReadOptions,
    RemoteOptions,
    SourceError,
)
from tests.source.tables.delta_logs import add, column, commit, metadata, protocol, stored_vectors
from tests.source.test_remote_opening import needs_servers
from tests.support.far import far

pytestmark = needs_servers
NUMPY = OutputOptions(format="numpy")


def numbers(first: int, stop: int) -> pa.Table:
    return pa.table({"x": pa.array(range(first, stop), pa.int64())})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("s3")
    table = root / "bucket" / "a table"
    gone = [[0, 1, 19], [], [5]]
    vectors = stored_vectors(table, gone)
    files = [
        add(table, f"p=a%20b/{n}.parquet", numbers(100 * n, 100 * n + 20), deletionVector=vectors[n]) for n in range(3)
    ]
    for file in files:
        file["add"]["path"] = file["add"]["path"].replace("%", "%25")
    fields = [column("x", "long")]
    commit(table, 0, protocol(3, 7, ["deletionVectors"]), metadata(fields), *files)
    other = add(table, "absolute.parquet", numbers(900, 903))
    other["add"]["path"] = "s3a://bucket/a%20table/absolute.parquet"
    commit(table, 1, other)
    gone_table = root / "bucket" / "gone"
    commit(gone_table, 0, protocol(), metadata(fields), add(gone_table, "0.parquet", numbers(0, 3)))
    (gone_table / "0.parquet").unlink()
    commit(root / "bucket" / "empty", 0, protocol(), metadata(fields))
    with Server(root) as server:
        yield root, server.endpoint


EXPECTED = [100 * n + x for n in range(3) for x in range(20) if x not in ([0, 1, 19], [], [5])[n]]


def home(endpoint: str) -> pafs.FileSystem:
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": "other"}
    return pafs.S3FileSystem(endpoint_override=endpoint, scheme="http", **keys)


def options(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": endpoint if "://" in endpoint else f"http://{endpoint}",
        "AWS_REGION": "other",
        "AWS_ALLOW_HTTP": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }


def load(source: Any, **more: Any) -> list[int]:
    with BatchedDataLoader(source, 7, output_options=NUMPY, **more) as loader:
        return sorted(x for batch in loader for x in batch["x"].tolist())


@pytest.mark.parametrize("connections", ["obstore", "native"])
def test_a_table_in_a_bucket_has_its_current_rows(store: tuple[Path, str], connections: Any) -> None:
    reading = ReadOptions(remote=RemoteOptions(hedge=False, connections=connections))
    here = home(store[1])
    for source in ("bucket/a table", "s3://bucket/a table/", DeltaSource("bucket/a table")):
        assert load(source, filesystem=here, read_options=reading) == [*EXPECTED, 900, 901, 902]
    assert load(DeltaSource("s3://bucket/a table", 0), filesystem=here, read_options=reading, shuffle=True) == EXPECTED


def test_storage_options_are_those_of_deltalake(store: tuple[Path, str]) -> None:
    source = DeltaSource("s3://bucket/a table", 0, storage_options=options(store[1]))
    assert load(source) == EXPECTED
    assert load(DeltaSource("s3://bucket/a%20table", 0, storage_options=options(store[1]))) == EXPECTED
    assert load(DeltaTable("s3://bucket/a table", 0, storage_options=options(store[1]))) == EXPECTED
    assert SECRET_KEY not in repr(source)
    url = "s3://bucket/written"
    write_deltalake(url, numbers(0, 5), storage_options=options(store[1]))
    assert load(DeltaTable(url, storage_options=options(store[1]))) == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigurationError, match="storage_options: 'AWS_PROFILE' is not known here"):
        load(DeltaSource(url, storage_options={"AWS_PROFILE": "x"}))


def test_opening_a_named_table_takes_a_request_a_file_and_follows_with_fewer(store: tuple[Path, str]) -> None:
    with far(store[1]) as proxy:
        source = DeltaSource("bucket/a table", follow=True)
        reading = ReadOptions(remote=RemoteOptions(hedge=False))
        with BatchedDataLoader(
            source, 7, filesystem=home(proxy.endpoint), read_options=reading, output_options=NUMPY
        ) as loader:
            opened = len(proxy.log.requests)
            # a listing, 2 commits, 4 footers, vectors of files with several row groups; some for the probe and retries
            assert opened <= 1 + 2 + 4 + 3 + 4
            assert len([x for batch in loader for x in batch["x"]]) == len(EXPECTED) + 3
            before = len(proxy.log.asked_ranges)
            again = sum(".json" not in target for _, target in proxy.log.asked_ranges)
            assert len([x for batch in loader for x in batch["x"]]) == len(EXPECTED) + 3
            data = sum(".json" not in target for _, target in proxy.log.asked_ranges) - again
            assert data <= before, "footers are not read again"


def test_a_file_that_is_gone_from_the_bucket_is_named_with_the_version(store: tuple[Path, str]) -> None:
    _, endpoint = store
    with pytest.raises(SourceError, match="version 0 of the table s3://bucket/gone needs it; VACUUM removes"):
        ParquetDataset(DeltaSource("s3://bucket/gone"), filesystem=home(endpoint))
    with pytest.raises(SourceError, match="there is no Delta table"):
        ParquetDataset(DeltaSource("s3://bucket/nowhere"), filesystem=home(endpoint))


def test_a_table_without_files_is_recognised_in_a_bucket(store: tuple[Path, str]) -> None:
    assert ParquetDataset("s3://bucket/empty", filesystem=home(store[1])).num_rows == 0
