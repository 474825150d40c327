"""`Video(ranges=True)`: values stay in the Parquet file until their batch, and the batches are the same."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    MemoryLimitError,
    OutputOptions,
    ParquetDataset,
    Scalar,
    Schema,
    SourceError,
    Video,
    write_dataset,
)
from tests.support.media import video

pytest.importorskip("av", reason="the extra `video` is not installed")

SIZE = (48, 272)
ROWS = 10
NUMPY = OutputOptions(format="numpy")
WHOLE = Schema({"v": Video(3, SIZE), "id": Scalar("int64")})
IN_PLACE = Schema({"v": Video(3, SIZE, ranges=True), "id": Scalar("int64")})
ALONE = Schema({"v": Video(3, SIZE, ranges=True)})


@cache
def values() -> list[bytes]:
    return [video(30 + number, noise=20) for number in range(ROWS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of Arrow's writer: row groups of 4 and 2 rows, and of 4."""
    folder = tmp_path_factory.mktemp("videos")
    for begin, end in ((0, 6), (6, ROWS)):
        table = pa.table({"id": range(begin, end), "v": pa.array(values()[begin:end], pa.binary())})
        path = folder / f"{begin}.parquet"
        pq.write_table(table, path, row_group_size=4, compression="NONE", use_dictionary=False)
    return folder


def unchanged(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return columns


def batches(source: Any, schema: Schema, **options: Any) -> list[dict[str, npt.NDArray[Any]]]:
    given: dict[str, Any] = {"output_options": NUMPY} | options
    with BatchedDataLoader(source, 3, schema=schema, **given) as loader:
        return [{name: np.array(column) for name, column in batch.items()} for batch in loader]


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"isolation": "process"},
        {"filters": ~pc.field("id").isin([1, 4, 7])},
        {"output_options": OutputOptions(format="numpy", row_numbers="row")},
        pytest.param({"transform_workers": 1, "transform": unchanged}, marks=pytest.mark.slow),
    ],
    ids=["threads", "isolation", "filter", "row numbers", "transform_workers"],
)
def test_batches_are_those_of_whole_values(folder: Path, options: dict[str, Any]) -> None:
    options |= {"shuffle": True, "window_rows": 6, "seed": 3}
    assert_same(batches(folder, IN_PLACE, **options), batches(folder, WHOLE, **options))


def test_a_column_may_be_delivered_alone(folder: Path) -> None:
    expected = [{n: column for n, column in batch.items() if n != "id"} for batch in batches(folder, WHOLE)]
    assert_same(batches(folder, ALONE), expected)


def test_files_of_the_own_writer_can_be_read_in_place(tmp_path: Path) -> None:
    """Also if the values would shrink, or repeat."""
    columns = {"v": [value + bytes(10**5) for value in values()[:3] * 2], "id": np.arange(6)}
    write_dataset(columns, tmp_path / "own", IN_PLACE)
    assert_same(batches(tmp_path / "own", IN_PLACE), batches(tmp_path / "own", WHOLE))
    write_dataset(columns, tmp_path / "shrunk", WHOLE)
    with pytest.raises(DataError, match="ranges=True"):
        batches(tmp_path / "shrunk", IN_PLACE)


def test_values_of_partitioned_files_and_links_are_found(folder: Path, tmp_path: Path) -> None:
    """As the Hub's cache has them: links to files elsewhere."""
    (tmp_path / "day=1").mkdir()
    os.symlink(folder / "0.parquet", tmp_path / "day=1" / "a.parquet")
    schema = Schema({**IN_PLACE, "day": Scalar("int64")})
    found = batches(tmp_path, schema)
    assert [n for batch in found for n in batch["id"].tolist()] == list(range(6))
    assert all((batch.pop("day") == 1).all() for batch in found)
    assert_same(found, batches(folder / "0.parquet", WHOLE))


def test_rows_by_index_read_whole_values(folder: Path) -> None:
    found = ParquetDataset(folder, schema=IN_PLACE).rows(output_options=NUMPY).take([7, 0, 5])
    expected = ParquetDataset(folder, schema=WHOLE).rows(output_options=NUMPY).take([7, 0, 5])
    assert_same([found], [expected])


def test_a_window_holds_positions_and_not_values(folder: Path) -> None:
    """The limit is smaller than one value."""
    data = Schema({"v": Video(1, (16, 16), ranges=True)})
    large = [values()[0] + np.random.default_rng(0).bytes(2**22)] * 4  # FFmpeg passes over what follows a video
    write_dataset({"v": large}, folder.parent / "large", Schema({"v": Video(1, SIZE)}))
    with pytest.raises(MemoryLimitError):
        batches(folder.parent / "large", Schema({"v": Video(1, (16, 16))}), memory_limit="4MiB")
    with BatchedDataLoader(folder.parent / "large", 2, schema=data, memory_limit="4MiB") as loader:
        assert sum(len(batch["v"]) for batch in loader) == 4


def test_a_store_gives_the_same(folder: Path) -> None:
    store = pafs.SubTreeFileSystem(str(folder.parent), pafs.LocalFileSystem())
    assert_same(batches(folder.name, IN_PLACE, filesystem=store), batches(folder, WHOLE))


def test_columns_that_cannot_be_read_in_place_are_refused(tmp_path: Path) -> None:
    table = pa.table({"id": range(4), "v": pa.array(values()[:4], pa.binary())})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    with pytest.raises(DataError, match=r"row group 0, column 'v': ranges=True .* it is compressed with zstd"):
        batches(tmp_path, IN_PLACE)


def test_a_file_that_changes_before_a_batch_is_an_error(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes((folder / "0.parquet").read_bytes())
    with BatchedDataLoader(path, 1, schema=IN_PLACE, num_threads=1, memory_limit="64MiB") as loader:
        batch = iter(loader)
        next(batch)
        os.utime(path, ns=(1, 1))
        with pytest.raises(SourceError, match=r"a\.parquet.* changed since its footer was read"):
            for _ in batch:
                pass


def test_a_damaged_value_is_the_problem_of_its_row(tmp_path: Path) -> None:
    damaged = [values()[0], values()[1][:3000], *values()[2:6]]
    write_dataset({"v": damaged, "id": np.arange(6)}, tmp_path / "a", WHOLE)
    with pytest.raises(DataError, match=r"row 1, column 'v'"):
        batches(tmp_path / "a", IN_PLACE)
    options = {"on_error": "skip_row"}
    assert_same(batches(tmp_path / "a", IN_PLACE, **options), batches(tmp_path / "a", WHOLE, **options))


@pytest.mark.parametrize(
    "arguments", [{"storage": "path"}, {"null": "mask"}, {"null": "fill", "fill": b"1"}, {"missing": b"1"}]
)
def test_ranges_are_of_values_that_are_there(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"Video\(ranges=True\) reads parts of values"):
        Video(3, SIZE, ranges=True, **arguments)
    with pytest.raises(ConfigurationError, match=r"Video\(ranges=1\): expected True or False"):
        Video(3, SIZE, ranges=1)  # type: ignore[arg-type]
