"""`ParquetDataset` lists files and reads footers once for all its loaders, which are those of `BatchedDataLoader`."""

from __future__ import annotations

import gc
import importlib.util
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from demo.archive import ACCESS_KEY, SECRET_KEY, Server, find_rclone
from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    LocalCache,
    MixedLoader,
    OutputOptions,
    ParquetDataset,
    ParquetIterable,
    ReadOptions,
    RemoteOptions,
    RowGroup,
    SampleStore,
    Scalar,
    Schema,
    SchemaError,
    Shard,
    SourceError,
    split,
    split_rows,
)
from tests.support.far import Proxy, far
from tests.support.gloo import on_ranks, run_on_ranks
from tests.support.processes import forkserver

FILES, ROWS, GROUP = 6, 60, 20
NUMPY = OutputOptions(format="numpy")


def _has_rclone() -> bool:
    try:
        find_rclone()
    except RuntimeError:
        return False
    return True


needs_servers = pytest.mark.skipif(
    not _has_rclone() or importlib.util.find_spec("obstore") is None, reason="rclone or obstore is not installed"
)


def write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number in range(FILES):
        first = number * ROWS
        table = pa.table({"id": np.arange(first, first + ROWS), "x": np.arange(ROWS, dtype=np.float32)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=GROUP)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("local") / "data")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("s3")
    write(root / "bucket" / "rows")
    with Server(root) as server:
        yield server.endpoint


def on_s3(proxy: Proxy, **options: Any) -> ParquetDataset:
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": "other"}
    home = pafs.S3FileSystem(endpoint_override=proxy.endpoint, scheme="http", **keys)
    remote = RemoteOptions(hedge=False, **options.pop("remote", {}))
    return ParquetDataset("bucket/rows", filesystem=home, read_options=ReadOptions(remote=remote), **options)


def ids(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch["id"]]


def all_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("parquet_loader")}


@needs_servers
def test_two_loaders_list_once_and_read_each_footer_once(endpoint: str) -> None:
    with far(endpoint) as proxy:
        dataset = on_s3(proxy)
        opening = len(proxy.log.requests)
        assert opening == 1 + FILES  # a listing, and the end of each file
        loaders = [dataset.batches(20, output_options=NUMPY, shuffle=shuffle) for shuffle in (True, False)]
        assert len(proxy.log.requests) == opening, "making a loader asks the store for nothing"
        for loader in loaders:
            assert sorted(ids(loader)) == list(range(FILES * ROWS))
            loader.close()
        row_groups = FILES * ROWS // GROUP
        assert len(proxy.log.requests) == opening + 2 * row_groups


@needs_servers
@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_loaders_over_a_store_iterate_at_the_same_time(endpoint: str, isolation: Any) -> None:
    with far(endpoint) as proxy:
        dataset = on_s3(proxy)
        training = dataset.batches(20, output_options=NUMPY, filters=pc.field("id") >= 100, isolation=isolation)
        first = next(iterator := iter(training))["id"].tolist()
        with dataset.batches(20, output_options=NUMPY, filters=pc.field("id") < 100) as validation:
            next(iter(validation))  # ends in the middle of its epoch, which closes its requests and no others
        with dataset.batches(20, output_options=NUMPY, filters=pc.field("id") < 100) as validation:
            assert ids(validation) == list(range(100))
        assert first + [int(i) for batch in iterator for i in batch["id"]] == list(range(100, FILES * ROWS))
        training.close()
    gc.collect()
    assert all_threads() == set()


@needs_servers
def test_loaders_share_a_local_cache_and_the_snapshot_cache(endpoint: str, tmp_path: Path) -> None:
    with far(endpoint) as proxy:
        kept = {"remote": {"snapshot_cache": tmp_path / "snapshots"}, "cache": LocalCache(tmp_path / "cache", "1GB")}
        with on_s3(proxy, **kept).batches(20, output_options=NUMPY) as loader:
            order = ids(loader)
        asked = len(proxy.log.requests)
        dataset = on_s3(proxy, **kept)
        for _ in range(2):
            with dataset.batches(20, output_options=NUMPY) as loader:
                assert ids(loader) == order
        assert len(proxy.log.requests) == asked + 1, "a listing: footers and row groups lie on the local disk"


@needs_servers
@pytest.mark.timeout(300)
def test_rank_0_lists_for_all_and_loaders_list_nothing(endpoint: str, tmp_path: Path) -> None:
    script = f"""
    import pyarrow.fs as pafs
    from parquet_loader import ParquetDataset, split_rows
    home = pafs.S3FileSystem(
        endpoint_override=root, scheme="http", region="other", access_key="{ACCESS_KEY}", secret_key="{SECRET_KEY}"
    )
    data = ParquetDataset("bucket/rows", filesystem=home)
    found = []
    for filters in (split_rows(0, 0.5), split_rows(0.5, 1)):
        with data.batches(10, filters=filters, shard_options=ShardOptions(remainder="uneven")) as loader:
            found.append([int(i) for batch in loader for i in batch["id"]])
    print(json.dumps(found))
    """
    with far(endpoint) as proxy:
        ranks = on_ranks(2, proxy.endpoint, script, tmp_path)
        listings = [target for _, target in proxy.log.requests if "list-type" in target]
        assert len(listings) == 1
        footers = [r for r, target in proxy.log.asked_ranges if target.endswith(".parquet") and r.endswith("-")]
        assert len(footers) <= 2 * FILES
    parts = [set(part) for rank in ranks for part in rank]
    assert sum(map(len, parts)) == FILES * ROWS
    assert set.union(*parts) == set(range(FILES * ROWS))


def test_an_error_of_one_rank_reaches_the_others_while_the_data_set_is_made(data: Path, tmp_path: Path) -> None:
    script = """
    from parquet_loader import ParquetDataset
    ParquetDataset(root, columns=["id"] if rank else ["none"])
    """
    ended = run_on_ranks(2, str(data), script, tmp_path, timeout_s=60)
    assert [rank.returncode for rank in ended] == [1, 1]
    assert "SchemaError" in ended[0].stderr
    assert "SchemaError: rank 0" in ended[1].stderr


def test_ranks_with_other_columns_are_refused(data: Path, tmp_path: Path) -> None:
    script = """
    from parquet_loader import ConfigurationError, ParquetDataset
    try:
        ParquetDataset(root, columns=["id"] if rank else ["x"])
    except ConfigurationError as error:
        print(json.dumps(str(error)))
    """
    for said in on_ranks(2, str(data), script, tmp_path):
        assert "rank 0 and rank 1 differ in columns" in said


def test_a_shard_of_ones_own_needs_no_other_rank(data: Path, tmp_path: Path) -> None:
    script = """
    from parquet_loader import ParquetDataset, Shard
    rows = -1
    if rank == 0:
        with ParquetDataset(root, shard=Shard(0, 1)).batches(10) as loader:
            rows = sum(len(batch["id"]) for batch in loader)
    print(json.dumps(rows))
    """
    assert on_ranks(2, str(data), script, tmp_path) == [FILES * ROWS, -1]


def test_it_knows_rows_row_groups_schema_and_places(data: Path) -> None:
    dataset = ParquetDataset(data, filters=pc.field("id") < 50)
    assert dataset.num_rows == FILES * ROWS
    assert list(dataset.schema) == ["id", "x"]
    groups = dataset.row_groups
    assert len(groups) == FILES * ROWS // GROUP
    assert groups[4] == RowGroup(str(data / "1.parquet"), 1, GROUP, groups[4].encoded_bytes)
    assert groups[4].encoded_bytes > GROUP * 12
    assert list(groups)[-1] == groups[-1] == groups[17:][0]
    with pytest.raises(IndexError, match="there are 18 row groups"):
        groups[18]
    assert dataset.locate(np.array([0, ROWS + GROUP + 3])) == [
        (str(data / "0.parquet"), 0, 0),
        (str(data / "1.parquet"), 1, 3),
    ]
    assert repr(dataset) == "ParquetDataset(360 rows in 6 files and 18 row groups, 2 columns)"


def test_filters_of_the_data_set_and_of_a_loader_hold_together(data: Path) -> None:
    dataset = ParquetDataset(data, filters=[("id", "<", 100)])
    with (
        dataset.batches(10, filters=split("id", 0, 0.7)) as training,
        dataset.batches(10, filters=split("id", 0.7, 1)) as validation,
        dataset.batches(10) as both,
    ):
        ones, others = ids(training), ids(validation)
        assert len(training.dataset) == len(ones)
        assert sorted(ones + others) == ids(both) == list(range(100))
        assert ones
        assert others


@pytest.mark.parametrize("filters", [pytest.param(None, marks=pytest.mark.slow), split_rows(0, 0.6)])
def test_a_state_of_a_loader_made_either_way_resumes_the_other(data: Path, filters: Any) -> None:
    keywords: dict[str, Any] = {"shuffle": True, "seed": 5, "window_rows": 100}
    below = pc.field("id") < 300
    whole = below if filters is None else below & filters
    makers: list[Callable[[], BatchedDataLoader]] = [
        lambda: BatchedDataLoader(data, 7, columns=["id"], filters=whole, **keywords),
        lambda: ParquetDataset(data, columns=["id"], filters=below).batches(7, filters=filters, **keywords),
        lambda: BatchedDataLoader(ParquetDataset(data, columns=["id"]), 7, filters=whole, **keywords),
    ]
    for make in makers:
        with make() as loader:
            iterator = iter(loader)
            for _ in range(9):
                next(iterator)
            state = loader.state_dict()
            rest = ids(iterator)
        assert rest
        for other in makers:
            with other() as loader:
                assert loader.state_dict().keys() == state.keys()
                loader.load_state_dict(state)
                assert ids(loader) == rest


def test_a_loader_outlives_its_data_set_and_the_data_set_a_closed_loader(data: Path) -> None:
    dataset = ParquetDataset(data)
    with dataset.batches(20, shuffle=True) as first:
        next(iter(first))
    second = dataset.batches(20)
    del dataset, first
    gc.collect()
    assert ids(second) == list(range(FILES * ROWS))
    second.close()


def test_it_holds_no_thread_and_no_open_file(data: Path) -> None:
    opened = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    threads = all_threads()
    dataset = ParquetDataset(data)
    if opened:
        assert len(os.listdir("/proc/self/fd")) <= len(opened)
    assert all_threads() == threads
    assert dataset.num_rows


def test_a_memory_limit_is_that_of_one_loader(data: Path) -> None:
    dataset = ParquetDataset(data)
    with dataset.batches(10, memory_limit="1GiB") as large, dataset.batches(10, memory_limit="16MiB") as small:
        assert large.plan().windows == small.plan().windows == 1
        with BatchedDataLoader(data, 10, memory_limit="1GiB") as alone:
            assert str(large.plan()) == str(alone.plan())
        assert ids(large) == ids(small)


def rows_of(dataset: ParquetDataset, isolation: Any) -> int:
    with dataset.batches(16, isolation=isolation, filters=pc.field("id") < 100) as loader:
        return len(ids(loader))


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_it_travels_to_other_processes(data: Path, isolation: Any) -> None:
    dataset = ParquetDataset(data, columns=["id"], filters=split("id", 0, 1))
    again = pickle.loads(pickle.dumps(dataset))
    assert (again.num_rows, again.schema) == (dataset.num_rows, dataset.schema)
    assert rows_of(again, isolation) == 100
    with forkserver().Pool(1) as pool:
        assert pool.apply(rows_of, (dataset, isolation)) == 100


def test_a_loader_of_a_data_set_travels_with_its_place(data: Path) -> None:
    dataset = ParquetDataset(data, filters=pc.field("id") < 200, on_error="skip")
    with dataset.batches(10, filters=pc.field("id") >= 100, shuffle=True) as loader:
        loader.seek(1, 3)
        with pickle.loads(pickle.dumps(loader)) as again:
            assert again.state_dict() == loader.state_dict()
            assert ids(again) == ids(loader)


def test_mixtures_and_iterables_take_its_loaders(data: Path) -> None:
    from torch.utils.data import DataLoader

    dataset = ParquetDataset(data)
    with MixedLoader({"a": dataset.batches(10), "b": dataset.batches(20)}, {"a": 1, "b": 1}, stop="all_exhausted") as m:
        assert sorted(ids(m)) == sorted(2 * list(range(FILES * ROWS)))
    with dataset.batches(10) as loader:
        for workers in (0, 2):
            found = ids(DataLoader(ParquetIterable(loader), batch_size=None, num_workers=workers))
            assert sorted(found) == list(range(FILES * ROWS))


def test_files_that_come_later_do_not_belong_to_it_and_changed_files_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    dataset = ParquetDataset(folder)
    pq.write_table(pa.table({"id": [-1], "x": pa.array([0.0], pa.float32())}), folder / "9.parquet")
    with dataset.batches(10) as loader:
        assert ids(loader) == list(range(FILES * ROWS))
    pq.write_table(pa.table({"id": np.arange(7), "x": np.zeros(7, np.float32)}), folder / "0.parquet")
    with dataset.batches(10) as loader, pytest.raises(SourceError, match="changed"):
        ids(loader)


def test_unreadable_row_groups_are_skipped_by_its_loaders(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    with open(folder / "1.parquet", "r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 200)
    with ParquetDataset(folder, on_error="skip").batches(10) as loader:
        found = ids(loader)
        assert loader.stats().skipped_row_groups
    assert set(range(ROWS)) < set(found) < set(range(FILES * ROWS))


def test_a_schema_that_does_not_fit_is_refused_at_once(data: Path) -> None:
    with pytest.raises(SchemaError, match="none"):
        ParquetDataset(data, columns=["none"])
    with ParquetDataset(data, Schema({"id": Scalar("int32")})).batches(360, output_options=NUMPY) as loader:
        assert next(iter(loader))["id"].dtype == np.int32


def test_a_loader_reads_the_data_sets_shard_or_its_own(data: Path) -> None:
    dataset = ParquetDataset(data, shard=Shard(1, 2))
    with dataset.batches(10) as second, dataset.batches(10, shard=Shard(0, 2)) as first:
        assert (first.shard, second.shard) == (Shard(0, 2), Shard(1, 2))
        assert sorted(ids(first) + ids(second)) == list(range(FILES * ROWS))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schema": Schema({"id": Scalar("int64")})}, "schema="),
        ({"columns": ["id"]}, r"columns=\['id'\]: the source is a ParquetDataset"),
        ({"split": "train"}, "pass split to ParquetDataset"),
        ({"filesystem": pafs.LocalFileSystem()}, "filesystem="),
        ({"on_error": "skip"}, "on_error='skip'"),
        ({"read_options": ReadOptions()}, "read_options="),
    ],
)
def test_a_loader_leaves_to_the_data_set_what_it_decides(data: Path, given: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        BatchedDataLoader(ParquetDataset(data), 10, **given)


def test_unknown_keywords_name_where_they_belong(data: Path) -> None:
    dataset = ParquetDataset(data)
    with pytest.raises(TypeError, match=r"ParquetDataset: .*'shuffle'; ParquetDataset\(source\).batches"):
        ParquetDataset(data, shuffle=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"ParquetDataset.batches: .*'columns'; .*pass it to ParquetDataset"):
        dataset.batches(10, columns=["id"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="num_threads"):
        dataset.batches(10, num_workers=2)  # type: ignore[call-arg]


def test_sources_that_are_no_files_are_refused_with_what_reads_them(data: Path, tmp_path: Path) -> None:
    store: Any = SampleStore(tmp_path / "store", schema=Schema({"x": Scalar("int64")}))
    with pytest.raises(ConfigurationError, match=r"BatchedDataLoader\(store, batch_size\) reads it; .*store.snapshot"):
        ParquetDataset(store)
    with store.writer() as writer:
        writer.write({"x": np.arange(5)})
    with store.snapshot() as files, ParquetDataset([file.path for file in files]).batches(5) as loader:
        assert next(iter(loader))["x"].tolist() == list(range(5))
    wrong: Any = ParquetDataset(data)
    with pytest.raises(ConfigurationError, match=r"data.batches\(batch_size"):
        ParquetDataset(wrong)
