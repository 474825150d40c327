"""A local cache: the same batches, less fetched, within its limit, whatever happens to its directory."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    CacheStats,
    ConfigurationError,
    LocalCache,
    RemoteOptions,
    Shard,
)
from parquet_loader.common.storage.filesystem import identity_of
from parquet_loader.read.cache.directory import CacheDirectory, RequestedRowGroup
from parquet_loader.read.cache.entry_file import index_bytes, read_index
from parquet_loader.read.cache.paths import CachePaths
from parquet_loader.read.cache.row_group_cache import RowGroupCache, parts_of
from parquet_loader.source import open_snapshot
from tests.read.cache.remote import (
    GROUP_ROWS,
    ROWS,
    account,
    copies,
    disk_bytes,
    far,
    open_loader,
    read_epoch,
    write_data,
)
from tests.support.examples import grid

GROUPS = ROWS // GROUP_ROWS
ONE_GROUP = GROUP_ROWS * 2048
ROOMY = 100 * 2**20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("far")).parent


@pytest.fixture
def root(data: Path, tmp_path: Path) -> Path:
    """A copy of the data that a test may change."""
    shutil.copytree(data / "data", tmp_path / "far" / "data", copy_function=os.link)
    return tmp_path / "far"


def expected(data: Path, epochs: int, **options: Any) -> list[list[dict[str, Any]]]:
    with open_loader(data, None, **options) as loader:
        return [read_epoch(loader) for _ in range(epochs)]


@pytest.mark.parametrize(
    ("options", "isolation"),
    [
        ({"columns": None}, "thread"),
        pytest.param({"columns": None}, "process", marks=pytest.mark.slow),
        pytest.param({"columns": ["tensor"]}, "thread", marks=pytest.mark.slow),
        ({"columns": ["text", "b"]}, "thread"),
        ({"filters": pc.field("b") < 50}, "process"),
        ({"window_rows": 256, "memory_limit": "48MiB"}, "thread"),
    ],
    ids=["all", "all-process", "tensor", "text", "filter-process", "slices"],
)
def test_batches_are_the_same_with_a_cache_and_come_from_it_alone(
    data: Path, root: Path, tmp_path: Path, options: dict[str, Any], isolation: str
) -> None:
    first, second = expected(data, 2, **options)
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY), isolation=isolation, **options) as loader:
        assert read_epoch(loader) == first
        assert loader.stats().cache is not None
        shutil.rmtree(root / "data")
        assert read_epoch(loader) == second
        figures = loader.stats().cache
    assert figures is not None
    assert figures.hit_rate == 1.0
    assert figures.misses == figures.bytes_fetched == figures.damaged == 0
    assert figures.problem is None
    assert figures.hits >= GROUPS


def test_what_is_fetched_is_counted_and_shown(root: Path, tmp_path: Path) -> None:
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY)) as loader:
        read_epoch(loader)
        stats = loader.stats()
        assert stats.cache is not None
        assert (stats.cache.hits, stats.cache.misses) == (0, GROUPS)
        assert stats.cache.bytes_fetched == stats.cache.bytes_stored >= GROUPS * ONE_GROUP
        assert "0% from the local cache" in str(stats)
        read_epoch(loader)
        assert "100% from the local cache" in str(loader.stats())
        assert loader.stats().bytes_from_disk < stats.bytes_from_disk


def test_a_cache_smaller_than_the_data_keeps_a_fixed_part_and_its_limit(data: Path, root: Path, tmp_path: Path) -> None:
    limit = 4 * 2**20
    before = expected(data, 4)
    with open_loader(root, LocalCache(tmp_path / "cache", limit)) as loader:
        for epoch in range(4):
            assert read_epoch(loader) == before[epoch]
            figures = loader.stats().cache
            assert figures is not None
            assert disk_bytes(tmp_path / "cache") <= limit
            assert account(tmp_path / "cache") == sum(
                int(path.name.rpartition("-")[2]) for path in copies(tmp_path / "cache")
            )
            if epoch:
                assert figures.bytes_stored == 0
                assert figures.hits == len(copies(tmp_path / "cache")) == 3


def test_names_say_what_a_row_group_takes_of_the_disk(root: Path, tmp_path: Path) -> None:
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY)) as loader:
        read_epoch(loader)
    found = copies(tmp_path / "cache")
    assert len(found) == GROUPS
    for path in found:
        os.sync()
        assert 0 <= int(path.name.rpartition("-")[2]) - path.stat().st_blocks * 512 <= 4096
        assert path.stat().st_size > path.stat().st_blocks * 512 or path.stat().st_size < 3 * ONE_GROUP


def test_fewer_columns_come_from_the_cache_and_more_are_fetched(data: Path, root: Path, tmp_path: Path) -> None:
    cache = LocalCache(tmp_path / "cache", ROOMY)
    for columns, misses in ((["a", "b"], GROUPS), (["b"], 0), (["b", "tensor"], GROUPS), (["tensor"], 0), (["a"], 0)):
        with open_loader(root, cache, columns=columns) as loader:
            assert [read_epoch(loader)] == expected(data, 1, columns=columns)
            figures = loader.stats().cache
            assert figures is not None
            assert figures.misses == misses


def test_columns_that_are_read_no_more_make_way(root: Path, tmp_path: Path) -> None:
    cache = LocalCache(tmp_path / "cache", 8 * ONE_GROUP)
    with open_loader(root, cache, columns=["tensor", "a", "b", "text"]) as loader:
        read_epoch(loader)
    for columns in (["tensor"], ["tensor", "a"]):
        with open_loader(root, cache, columns=columns, shuffle=False) as loader:
            for _ in range(3):
                read_epoch(loader)
            figures = loader.stats().cache
            assert figures is not None
            assert figures.hits >= 6


def test_a_file_that_was_written_again_is_fetched_again(root: Path, tmp_path: Path) -> None:
    cache = LocalCache(tmp_path / "cache", ROOMY)
    with open_loader(root, cache) as loader:
        read_epoch(loader)
    shutil.rmtree(root / "data")
    write_data(root, seed=1)
    with open_loader(root, None) as plain, open_loader(root, cache) as loader:
        assert read_epoch(loader) == read_epoch(plain)
        figures = loader.stats().cache
        assert figures is not None
        assert figures.hits == 0


def test_another_data_set_makes_way_once_nobody_reads_it(root: Path, tmp_path: Path) -> None:
    write_data(root, "other", seed=2)
    cache = LocalCache(tmp_path / "cache", 8 * ONE_GROUP)

    def hits(loader: BatchedDataLoader) -> int:
        read_epoch(loader)
        figures = loader.stats().cache
        assert figures is not None
        return figures.hits

    with open_loader(root, cache) as one, open_loader(root, cache, "other") as other:
        assert (hits(one), hits(other)) == (0, 0)
        kept = hits(one)
        assert kept >= 6
        assert (hits(other), hits(one), hits(other)) == (0, kept, 0)
        one.close()
        assert hits(other) == 0  # now they come in
        assert hits(other) >= 6
    assert disk_bytes(tmp_path / "cache") <= 8 * ONE_GROUP


def test_a_smaller_limit_is_kept_from_the_start(root: Path, tmp_path: Path) -> None:
    for limit in (ROOMY, 5 * 2**20):
        with open_loader(root, LocalCache(tmp_path / "cache", limit)) as loader:
            read_epoch(loader)
        assert 2 * 2**20 < disk_bytes(tmp_path / "cache") <= limit


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        at = os.lseek(file.fileno(), 0, os.SEEK_DATA) + 300_000
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 0x10]), at)


def flip_everywhere(path: Path) -> None:
    """Flip a bit in every 4096 bytes that are not a hole, behind the very first."""
    with path.open("r+b") as file:
        for at in range(4096, path.stat().st_size, 4096):
            byte = os.pread(file.fileno(), 1, at)[0]
            if byte:
                os.pwrite(file.fileno(), bytes([byte ^ 1]), at)


def lose_block(path: Path) -> None:
    with path.open("r+b") as file:
        begin = os.lseek(file.fileno(), 0, os.SEEK_DATA) // 4096 * 4096
        os.pwrite(file.fileno(), bytes(4096), begin + 8 * 4096)


def cut_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def cut_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def spoil_index(path: Path) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", path.stat().st_size - index_bytes(1) + 3)


def exchange(path: Path) -> None:
    paths = copies(path.parents[2])
    if paths.index(path) % 2:
        before = paths[paths.index(path) - 1]
        content = path.read_bytes()
        shutil.copyfile(before, path)
        before.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        pytest.param(flip_everywhere, marks=pytest.mark.slow),
        lose_block,
        pytest.param(cut_end, marks=pytest.mark.slow),
        cut_half,
        pytest.param(empty, marks=pytest.mark.slow),
        pytest.param(spoil_index, marks=pytest.mark.slow),
        exchange,
    ],
    ids=lambda f: f.__name__,
)
def test_damage_is_found_and_fetched_again(
    data: Path, root: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    first, second = expected(data, 2)
    cache = LocalCache(tmp_path / "cache", ROOMY)
    with open_loader(root, cache) as loader:
        assert read_epoch(loader) == first
    for path in copies(tmp_path / "cache"):
        damage(path)
    with open_loader(root, cache) as loader:
        assert read_epoch(loader) == first
        figures = loader.stats().cache
        assert figures is not None
        assert figures.damaged == figures.misses == GROUPS
        assert read_epoch(loader) == second
        again = loader.stats().cache
        assert again is not None
        assert (again.hits, again.damaged) == (GROUPS, 0)
    assert disk_bytes(tmp_path / "cache") < 1.2 * GROUPS * ONE_GROUP


@grid(
    "options, harm",
    [pytest.param({}, id="whole"), pytest.param({"window_rows": 256, "memory_limit": "48MiB"}, id="slices")],
    [pytest.param(f, id=f.__name__) for f in (cut_end, cut_half, empty, os.unlink)],
    everyday=lambda options, harm: harm is (cut_half if options else os.unlink),
)
def test_a_copy_that_is_lost_while_it_is_used_is_fetched_again(
    data: Path, root: Path, tmp_path: Path, harm: Callable[[Path], None], options: dict[str, Any]
) -> None:
    before = expected(data, 3, **options)
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY), **options) as loader:
        assert read_epoch(loader) == before[0]
        for path in copies(tmp_path / "cache"):
            harm(path)
        assert read_epoch(loader) == before[1]
        shutil.rmtree(tmp_path / "cache")
        assert read_epoch(loader) == before[2]


def test_a_copy_that_is_cut_while_its_row_group_is_open_is_fetched_again(
    data: Path, root: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"shuffle": False, "window_rows": 256, "memory_limit": "48MiB", "num_threads": 1}
    (before,) = expected(data, 1, **options)
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY), **options) as loader:
        assert read_epoch(loader) == before

    def cut(columns: dict[str, Any], _: Any) -> dict[str, Any]:  # after the first window, which holds half a row group
        for path in copies(tmp_path / "cache"):
            with contextlib.suppress(FileNotFoundError):  # a copy that was cut before is being removed
                os.truncate(path, 0)
        return columns

    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY), transform=cut, **options) as loader:
        assert read_epoch(loader) == before
        figures = loader.stats().cache
        assert figures is not None
        assert figures.damaged


def test_a_cache_in_the_place_of_a_file_says_so_once_and_nothing_fails(data: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY)) as loader:
        with pytest.warns(RuntimeWarning, match="nothing is stored for a while") as told:
            assert [read_epoch(loader), read_epoch(loader)] == expected(data, 2)
        figures = loader.stats().cache
    assert len(told) == 1
    assert figures is not None
    assert figures.problem is not None
    assert "cache" in figures.problem
    assert figures.misses == GROUPS


@pytest.mark.parametrize("call", ["pwrite", "rename"])
def test_a_full_disk_costs_no_epoch_and_leaves_nothing(
    data: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)
    calls = 0

    def full(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        is_data = call == "rename" or len(arguments[1]) > 4096
        calls += is_data
        if is_data and calls > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, full)
    with warnings.catch_warnings(), open_loader(root, LocalCache(tmp_path / "cache", ROOMY)) as loader:
        warnings.simplefilter("error")  # not even then
        assert [read_epoch(loader), read_epoch(loader)] == expected(data, 2)
        figures = loader.stats().cache
    assert figures is not None
    assert figures.problem is not None
    assert os.strerror(errno.ENOSPC) in figures.problem
    assert figures.hits == len(copies(tmp_path / "cache")) > 0  # what came in before is of use all the same
    assert not os.listdir(tmp_path / "cache" / "unfinished-1")
    monkeypatch.undo()
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY)) as loader:
        read_epoch(loader)
        assert len(copies(tmp_path / "cache")) == GROUPS


@pytest.mark.parametrize("deleted", ["before", "after"])
def test_a_file_that_is_deleted_as_it_gets_its_name_stops_nothing(
    data: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    real, renamed = os.rename, list[str]()

    def rename(source: str, target: str) -> None:
        renamed.append(target)
        if len(renamed) == 1 and deleted == "before":
            os.unlink(source)
        real(source, target)
        if len(renamed) == 1:
            os.unlink(target)

    monkeypatch.setattr(os, "rename", rename)
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY)) as loader:
        assert [read_epoch(loader), read_epoch(loader)] == expected(data, 2)
        figures = loader.stats().cache
    assert figures is not None
    assert figures.problem is None
    assert len(copies(tmp_path / "cache")) == GROUPS
    assert account(tmp_path / "cache") == CachePaths(str(tmp_path / "cache")).taken_bytes()


def test_what_has_come_by_the_time_it_is_to_be_fetched_is_found(
    data: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LocalCache(tmp_path / "cache", ROOMY)
    with open_loader(root, cache) as loader:
        read_epoch(loader)
    aside = {path: tmp_path / path.name for path in copies(tmp_path / "cache")}
    for path, elsewhere in aside.items():
        path.rename(elsewhere)

    def begin(_: CacheDirectory, wanted: RequestedRowGroup) -> None:
        """Another process has just ended its fetch when this one looks for its lock."""
        for path, elsewhere in aside.items():
            if elsewhere.exists() and path.name.startswith(f"{wanted.file}-{wanted.row_group}-"):
                elsewhere.rename(path)

    monkeypatch.setattr(CacheDirectory, "begin", begin)
    with open_loader(root, cache) as loader:
        assert [read_epoch(loader)] == expected(data, 1)
        figures = loader.stats().cache
    assert figures is not None
    assert (figures.hits, figures.misses) == (GROUPS, 0)


def test_no_more_is_fetched_at_once_than_is_counted_however_large_requests_are(root: Path, tmp_path: Path) -> None:
    options = RemoteOptions(request_bytes="64MiB")
    snapshot = open_snapshot("data", far(root), remote=options)
    cache = RowGroupCache(LocalCache(tmp_path / "cache", ROOMY), snapshot, [["tensor"]], at_once_bytes=2**18)
    path = cache.local_path(snapshot.row_group(0), ["tensor"])
    cache.close()
    assert path is not None
    with open(path, "rb") as opened:
        sizes = [end - begin for begin, end in read_index(opened.fileno(), os.path.basename(path)).ranges]
    assert sum(sizes) >= ONE_GROUP
    assert max(sizes) <= 2**18


@given(sizes=st.lists(st.integers(1, 40), max_size=20), most=st.integers(1, 100))
def test_ranges_are_fetched_in_parts_of_a_bounded_size(sizes: list[int], most: int) -> None:
    ranges = [(100 * number, 100 * number + size) for number, size in enumerate(sizes)]
    parts = parts_of(ranges, most)
    assert [(span.start, span.stop) for _, some in parts for span in some] == ranges
    assert [number for number, _ in parts] == [ranges.index((some[0].start, some[0].stop)) for _, some in parts]
    assert all(sum(span.size for span in some) <= most or len(some) == 1 for _, some in parts)


def test_local_files_on_the_disk_of_the_cache_are_not_kept_twice(data: Path, tmp_path: Path) -> None:
    with BatchedDataLoader(data / "data", 128, cache=LocalCache(tmp_path / "cache", ROOMY)) as loader:
        for _ in loader:
            pass
        assert loader.stats().cache is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no second local file system")
def test_local_files_on_another_disk_are_kept(data: Path, tmp_path: Path) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("no second local file system")
    folder = Path("/dev/shm") / f"parquet_loader-test-{os.getpid()}"
    try:
        with BatchedDataLoader(data / "data", 128, cache=LocalCache(folder, ROOMY)) as loader:
            for _ in range(2):
                for _ in loader:
                    pass
            figures = loader.stats().cache
            assert figures is not None
            assert figures.hits == GROUPS
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_ranks_find_what_others_have_fetched(root: Path, tmp_path: Path) -> None:
    cache = LocalCache(tmp_path / "cache", ROOMY)
    shards = [Shard(rank, 3) for rank in range(3)]
    loaders = [open_loader(root, cache, shard=shard, columns=["a", "tensor"]) for shard in shards]
    plain = [open_loader(root, None, shard=shard, columns=["a", "tensor"]) for shard in shards]
    for epoch in range(3):
        hits = misses = 0
        for loader, same in zip(loaders, plain, strict=True):
            assert read_epoch(loader) == read_epoch(same)
            figures = loader.stats().cache
            assert figures is not None
            hits, misses = hits + figures.hits, misses + figures.misses
        assert misses == (0 if epoch else GROUPS)
        assert hits >= (GROUPS if epoch else 0)
    for loader in (*loaders, *plain):
        loader.close()
    assert os.listdir(tmp_path / "cache" / "readers") == []


def test_a_forked_process_begins_its_own_account(root: Path, tmp_path: Path) -> None:
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY)) as loader:
        first = read_epoch(loader)
        cache = loader._dataset.reader.chunks.cache
        assert cache is not None
        assert cache.figures.misses == GROUPS
        lease = cache._lease
        cache._pid -= 1  # as in a child, where the parent's lease stays the parent's
        assert cache.figures == CacheStats()
        loader.set_epoch(0)
        assert read_epoch(loader) == first
        figures = loader.stats().cache
        assert figures is not None
        assert (figures.hits, figures.misses) == (GROUPS, 0)
        assert len(os.listdir(tmp_path / "cache" / "readers")) == 2
        lease.release()


def test_settings_are_checked_and_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = LocalCache("cache", "2 GiB")
    assert settings == LocalCache(tmp_path / "cache", 2**31) == pickle.loads(pickle.dumps(settings))
    for path, limit in (("", 1), (3, 1), ("cache", "much"), ("cache", 0), ("cache", True)):
        with pytest.raises(ConfigurationError):
            LocalCache(path, limit)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="LocalCache"):
        BatchedDataLoader("nothing", 1, cache="/tmp")  # type: ignore[arg-type]


def test_a_loader_travels_with_its_cache(data: Path, root: Path, tmp_path: Path) -> None:
    first, second = expected(data, 2)
    with open_loader(root, LocalCache(tmp_path / "cache", ROOMY)) as loader:
        assert read_epoch(loader) == first
        with pickle.loads(pickle.dumps(loader)) as there:
            assert read_epoch(there) == second
            assert there.stats().cache.hits == GROUPS


def test_a_store_is_known_by_where_it_is_and_not_by_who_asks() -> None:
    def s3(**options: str) -> pafs.FileSystem:
        return pafs.S3FileSystem(
            **{"endpoint_override": "localhost:1", "access_key": "me", "secret_key": "hidden", "region": "r", **options}
        )

    assert "hidden" not in identity_of(s3())
    assert identity_of(s3()) == identity_of(s3(access_key="you", secret_key="other"))
    assert identity_of(s3()) != identity_of(s3(endpoint_override="localhost:2"))
    assert identity_of(far(Path("/a"))) != identity_of(far(Path("/b")))
    assert identity_of(pafs.LocalFileSystem()) == identity_of(pafs.LocalFileSystem())
