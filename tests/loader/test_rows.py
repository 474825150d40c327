"""Rows by index are the rows of an unshuffled epoch."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import io
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset, random_split

from parquet_loader import (
    ConfigurationError,
    DataError,
    Image,
    LoaderStateError,
    OutputOptions,
    ParquetDataset,
    ParquetRows,
    Ragged,
    ReadOptions,
    Scalar,
    Schema,
    SchemaError,
    SourceError,
    split,
)
from tests.support.examples import examples

NUMPY = OutputOptions(format="numpy")


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Ragged):
        return bool(one == other)
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def epoch(data: ParquetDataset, rows: int) -> dict[str, Any]:
    with data.batches(max(rows, 1), output_options=NUMPY, memory_limit="4GiB") as loader:
        (batch,) = loader
    return batch


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int8(), st.integers(0, 3)),
    "float": (pa.float32(), st.floats(width=32)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(st.characters(codec="utf-8"), max_size=6)),
    "words": (pa.string(), st.sampled_from(["red", "green"])),
    "time": (pa.timestamp("us"), st.integers(-(2**50), 2**50)),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(0, 99), max_size=5)),
    "vector": (pa.list_(pa.float64(), 3), st.lists(st.floats(), min_size=3, max_size=3)),
    "equal": (pa.list_(pa.int16()), st.lists(st.integers(0, 99), min_size=4, max_size=4)),
    "texts": (pa.list_(pa.string()), st.lists(st.text("ab", max_size=3), max_size=3)),
    "nested": (pa.list_(pa.list_(pa.int8())), st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2)),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string()), ("d", pa.int64())]))]),
        st.fixed_dictionaries(
            {
                "a": st.integers(0, 9),
                "b": st.fixed_dictionaries({"c": st.text("xy", max_size=2), "d": st.integers(0, 9)}),
            }
        ),
    ),
    "structs": (
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])),
        st.lists(st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text("xy", max_size=2)}), max_size=2),
    ),
}


@st.composite
def files(draw: st.DrawFn) -> tuple[pa.Table, dict[str, Any]]:
    """A table, and how it is written."""
    rows = draw(st.integers(1, 60))
    columns = {"id": pa.array(range(rows))}
    for number, kind in enumerate(draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))):
        type_, values = KINDS[kind]
        few = draw(st.lists(values, min_size=1, max_size=6))
        chosen = draw(st.lists(st.integers(0, len(few) - 1), min_size=rows, max_size=rows))
        has_nulls = kind in ("float", "text") and draw(st.booleans())
        mixed = [None if has_nulls and c == 0 else few[c] for c in chosen]
        columns[f"{kind}{number}"] = pa.array(mixed, type_)
    options = {
        "row_group_size": draw(st.sampled_from([5, 17, 1000])),
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4", "brotli"])),
        "use_dictionary": draw(st.booleans()),
        "data_page_size": draw(st.sampled_from([1, 40, 2**20])),
        "write_batch_size": draw(st.sampled_from([1, 7, 1024])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "dictionary_pagesize_limit": draw(st.sampled_from([16, 2**20])),
        "write_page_index": draw(st.booleans()),
        "store_schema": draw(st.booleans()),
    }
    return pa.table(columns), options


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files(), st.data())
def test_take_is_the_unshuffled_epoch_at_these_rows(
    tmp_path: Path, written: tuple[pa.Table, dict[str, Any]], data: st.DataObject
) -> None:
    table, options = written
    path = tmp_path / "file.parquet"
    pq.write_table(table, path, **options)
    found = ParquetDataset(path).schema
    fields: dict[str, Any] = dict(found)
    for name in [name for name in fields if name[:4] in ("floa", "text")]:
        fields[name] = dataclasses.replace(fields[name], null="mask")
    source = ParquetDataset(
        path,
        schema=Schema(fields),
        filters=data.draw(st.sampled_from([None, (pc.field("id") > 4) & (pc.field("id") != 9), split("id", 0, 0.5)])),
        read_options=ReadOptions(verify_checksums=data.draw(st.booleans())),
    )
    with source.rows(output_options=NUMPY, cache_bytes=data.draw(st.sampled_from([400, 2**20]))) as rows:
        whole = epoch(source, len(rows)) if len(rows) else rows.take([])
        for _ in range(2):
            highest = max(len(rows) - 1, 0)
            indices = data.draw(st.lists(st.integers(-len(rows), highest), max_size=20)) if len(rows) else []
            taken = rows.take(indices)
            assert list(taken) == list(whole)
            for name, column in taken.items():
                assert is_same(column, whole[name][np.array(indices, np.int64)]), name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """1,000 rows in row groups of 300 and pages of 50."""
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "id": np.arange(1000),
            "x": pa.FixedSizeListArray.from_arrays(rng.random(4000, dtype=np.float32), 4),
            "name": [f"row {n}" for n in range(1000)],
            "tags": [[n] * (n % 4) for n in range(1000)],
        }
    )
    pq.write_table(table, tmp_path / "file.parquet", row_group_size=300, write_batch_size=50, data_page_size=1)
    return tmp_path / "file.parquet"


def test_a_row_is_the_batch_without_its_first_axis(path: Path) -> None:
    row = ParquetDataset(path)[7]
    assert isinstance(row["id"], torch.Tensor)
    assert row["id"].shape == ()
    assert row["id"] == 7
    assert row["x"].shape == (4,)
    assert row["name"] == "row 7"
    assert row["tags"].tolist() == [7, 7, 7]
    row = ParquetDataset(path).rows(output_options=NUMPY)[-1]
    assert isinstance(row["id"], np.int64)
    assert row["id"] == 999
    assert row["tags"].tolist() == [999, 999, 999]


def test_indices_keep_their_order_and_may_repeat(path: Path) -> None:
    data = ParquetDataset(path)
    assert data.take([5, 999, 5, -2, 0])["id"].tolist() == [5, 999, 5, 998, 0]
    assert data.take(torch.tensor([3, 3]))["name"].to_list() == ["row 3", "row 3"]
    assert data[np.array([4, 2], np.uint8)]["id"].tolist() == [4, 2]
    assert data[990:2000:4]["id"].tolist() == [990, 994, 998]
    assert data[5:2]["id"].shape == (0,)
    assert len(data) == 1000


def test_no_indices_give_a_batch_without_rows(path: Path) -> None:
    batch = ParquetDataset(path).take([])
    assert batch["x"].shape == (0, 4)
    assert batch["x"].dtype == torch.float32
    assert batch["name"].to_list() == []
    assert ParquetDataset(path, filters=[("id", "<", 0)]).take([])["id"].shape == (0,)


def test_a_data_set_without_rows_says_so(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    data = ParquetDataset(tmp_path)
    for ask in (data.__getitem__, lambda number: data.locate([number])):
        with pytest.raises(IndexError, match="0 does not exist; the data set has no rows"):
            ask(0)


@pytest.mark.parametrize("index", [1000, -1001, 2**40])
def test_a_row_that_does_not_exist_is_an_index_error(path: Path, index: int) -> None:
    data = ParquetDataset(path)
    with pytest.raises(IndexError, match=f"row {index} does not exist; the data set has rows 0 to 999"):
        data[index]
    with pytest.raises(IndexError, match=f"row {index} "):
        data.take([0, index])
    with pytest.raises(IndexError, match="has no rows"):
        ParquetDataset(path, filters=[("id", "<", 0)])[0]


@pytest.mark.parametrize("index", [1.0, "id", None, True, [[1]], [1.5], [True, False], {"a": 1}, np.ones(3)])
def test_what_is_no_index_is_a_type_error(path: Path, index: Any) -> None:
    data = ParquetDataset(path)
    with pytest.raises(TypeError, match="rows are chosen by an integer"):
        data[index]
    with pytest.raises(TypeError, match="rows are chosen by an integer"):
        data.take(index)


def test_iterating_a_data_set_ends_behind_the_last_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(5)}), tmp_path / "few.parquet")
    assert [int(row["id"]) for row in ParquetDataset(tmp_path)] == list(range(5))


def test_batches_own_their_memory(path: Path) -> None:
    rows = ParquetDataset(path).rows(output_options=NUMPY)
    for _ in range(2):
        batch = rows.take([1, 2])
        assert batch["id"].tolist() == [1, 2]
        assert batch["name"].to_list() == ["row 1", "row 2"]
        batch["id"][:] = batch["x"][:] = 0
        batch["name"].values[:] = 0


def test_row_numbers_count_before_filters(path: Path) -> None:
    data = ParquetDataset(path, filters=[("id", ">=", 350)])
    batch = data.take([0, 1, -1], output_options=OutputOptions(row_numbers="n", format="numpy"))
    assert batch["n"].tolist() == batch["id"].tolist() == [350, 351, 999]
    assert data.locate(batch["n"])[0] == (str(path), 1, 50)
    with pytest.raises(SchemaError, match="a column has this name already"):
        data.take([0], output_options=OutputOptions(row_numbers="id"))


def test_partition_columns_and_files_of_other_columns(tmp_path: Path) -> None:
    for year in (1, 2):
        (tmp_path / f"year={year}").mkdir()
        table = pa.table({"id": np.arange(3) + 10 * year} | ({"z": [1.0] * 3} if year == 2 else {}))
        pq.write_table(table, tmp_path / f"year={year}" / "a.parquet")
    schema = Schema({"z": Scalar("float32", missing=-1.0), "id": Scalar("int64"), "year": Scalar("int64")})
    batch = ParquetDataset(tmp_path, schema=schema).take([4, 0, 5])
    assert [batch[name].tolist() for name in schema] == [[1.0, -1.0, 1.0], [21, 10, 22], [2, 1, 2]]


def test_an_error_names_the_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1, 2, None, 4])}), tmp_path / "a.parquet", row_group_size=2)
    data = ParquetDataset(tmp_path)
    assert data.take([3, 0])["a"].tolist() == [4, 1]
    with pytest.raises(DataError, match=r"a.parquet, row group 1, column 'a', row 0: .*null"):
        data.take([0, 2])


def test_images_are_decoded_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    files = []
    for shade in (10, 20, 30):
        out = io.BytesIO()
        pillow.new("RGB", (4, 3), (shade, 0, 0)).save(out, "PNG")
        files.append(out.getvalue())
    pq.write_table(pa.table({"image": [*files, b"none"]}), tmp_path / "a.parquet")
    data = ParquetDataset(tmp_path, schema=Schema({"image": Image((3, 4, 3))}))
    assert data.take([2, 0])["image"][:, 0, 0, 0].tolist() == [30, 10]
    assert data[1]["image"].shape == (3, 4, 3)
    with pytest.raises(DataError, match=r"a.parquet, row group 0, row 3, column 'image'"):
        data.take([0, 3, 1])


def test_a_file_that_was_replaced_is_an_error(path: Path) -> None:
    data = ParquetDataset(path)
    assert data[0]["id"] == 0
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path, row_group_size=300)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=r"file\.parquet"):
        data[900]


def test_threads_share_a_reader(path: Path) -> None:
    with ParquetDataset(path).rows(output_options=NUMPY, cache_bytes=20_000) as rows:

        def read(seed: int) -> bool:
            indices = np.random.default_rng(seed).integers(0, 1000, (2, 30))
            return all(rows.take(some)["id"].tolist() == some.tolist() for some in indices)

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(read, range(8)))
        assert rows.held_bytes <= 20_000


def test_nothing_is_held_between_calls(path: Path) -> None:
    threads = set(threading.enumerate())
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    rows = ParquetDataset(path).rows()
    rows.take(range(0, 1000, 7))
    assert set(threading.enumerate()) <= threads
    assert not files or len(os.listdir("/proc/self/fd")) <= files
    assert rows.held_bytes > 0
    rows.close()
    assert rows.held_bytes == 0
    with pytest.raises(LoaderStateError, match="closed"):
        rows.take([0])


def test_pages_are_released_with_the_data_set(path: Path) -> None:
    data = ParquetDataset(path)
    data.take(range(1000))
    before = pa.total_allocated_bytes()
    del data
    gc.collect()
    assert pa.total_allocated_bytes() < before


def test_a_copy_for_another_process_knows_the_counts_and_holds_no_pages(path: Path) -> None:
    data = ParquetDataset(path, filters=[("id", ">=", 350)])
    assert data[0]["id"] == 350
    for one in (pickle.loads(pickle.dumps(data)), pickle.loads(pickle.dumps(data._rows()))):
        assert len(one) == 650
        assert one[1]["id"] == 351


@pytest.mark.parametrize(
    "start",
    ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)],
)
def test_workers_of_a_data_loader_read_rows(path: Path, start: str) -> None:
    data = ParquetDataset(path, filters=[("id", ">=", 100)])
    assert data[0]["id"] == 100  # pages are kept, and a forked worker has them too
    sampler = BatchSampler(RandomSampler(range(900)), 64, drop_last=False)
    loader = DataLoader(
        ParquetRows(data), sampler=sampler, batch_size=None, num_workers=2, multiprocessing_context=start
    )
    batches = list(loader)
    assert sorted(torch.cat([batch["id"] for batch in batches]).tolist()) == list(range(100, 1000))
    assert all(batch["name"].to_list() == [f"row {n}" for n in batch["id"].tolist()] for batch in batches)


def test_a_data_loader_collates_rows(path: Path) -> None:
    data = ParquetRows(ParquetDataset(path, columns=["id", "x", "name"]))
    batch = next(iter(DataLoader(data, batch_size=10, shuffle=True)))
    assert batch["x"].shape == (10, 4)
    assert batch["name"] == [f"row {n}" for n in batch["id"].tolist()]
    assert isinstance(data, torch.utils.data.Dataset)


def test_torch_divides_and_joins_rows(path: Path) -> None:
    data = ParquetRows(ParquetDataset(path, columns=["id"]))
    first, second = random_split(data, [600, 400], generator=torch.Generator().manual_seed(0))
    assert {int(first[n]["id"]) for n in range(600)}.isdisjoint(int(second[n]["id"]) for n in range(400))
    assert int(Subset(data, [5, 6])[1]["id"]) == 6
    assert int(ConcatDataset([data, data])[1003]["id"]) == 3


def test_arguments_are_checked(path: Path) -> None:
    data = ParquetDataset(path)
    with pytest.raises(ConfigurationError, match="cache_bytes"):
        data.rows(cache_bytes="much")
    with pytest.raises(TypeError, match="output_options"):
        data.take([0], output_options="numpy")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="num_threads"):
        data.rows(num_threads=0)
    with pytest.raises(ConfigurationError, match="ParquetRows: expected a data set"):
        ParquetRows(path)  # type: ignore[arg-type]


def test_rows_need_no_torch(path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from parquet_loader import OutputOptions, ParquetDataset\n"
        f"data = ParquetDataset({str(path)!r})\n"
        "rows = data.rows(output_options=OutputOptions(format='numpy'))\n"
        "assert rows[3]['id'] == 3 and rows.take([1])['name'].to_list() == ['row 1']\n"
        "try: data[0]\n"
        "except ImportError as error: assert 'output_options' in str(error), error\n"
        "else: raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", None] * 3, pa.string_view()),
        pa.array([b"a", b"", b"c"] * 3, pa.binary_view()),
        pa.array([["a", "b"], [], ["c"]] * 3, pa.list_(pa.string_view())),
        pa.array([["a", "b"], ["", "c"], ["d", "e"]] * 3, pa.list_(pa.string_view(), 2)),
        pa.array([["a", "b"], [], ["c"]] * 3, pa.list_view(pa.string_view())),
        pa.array([[("k", b"1")], [], [("l", b"2"), ("m", b"")]] * 3, pa.map_(pa.string_view(), pa.binary_view())),
    ],
    ids=lambda column: str(column.type),
)
def test_rows_of_views_are_read_by_index_and_pass_filters(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"id": range(9), "column": column}), tmp_path / "a.parquet", row_group_size=5)
    schema = Schema.infer(tmp_path, nulls="fill")
    whole = epoch(ParquetDataset(tmp_path, schema=schema), 9)
    chosen = np.array([7, 0, 4, 8])
    taken = ParquetDataset(tmp_path, schema=schema).take(chosen, output_options=NUMPY)
    filters = pc.field("id").isin([2, 4, 8]) & (pc.field("column").is_valid() | pc.field("column").is_null())
    passing = epoch(ParquetDataset(tmp_path, schema=schema, filters=filters), 3)
    for name, values in whole.items():
        assert is_same(taken[name], values[chosen]), name
        assert is_same(passing[name], values[np.array([2, 4, 8])]), name


def test_an_integer_of_any_size_or_kind_is_an_index(path: Path) -> None:
    data = ParquetDataset(path)
    assert data[np.array(5)]["id"] == data[torch.tensor(5)]["id"] == 5
    for index in (2**70, -(2**70), 2**63):
        for wrong in (lambda index=index: data[index], lambda index=index: data.take([-1, index])):
            with pytest.raises(IndexError, match=f"row {index} does not exist"):
                wrong()
    for mask in (torch.tensor(True), np.array(True), torch.tensor([[1]])):
        with pytest.raises(TypeError, match="rows are chosen by an integer"):
            data[mask]


@pytest.mark.skipif(
    "max_rows_per_page" not in inspect.signature(pq.write_table).parameters, reason="needs pages of few rows"
)
def test_a_short_slice_of_many_rows_takes_little_memory(tmp_path: Path) -> None:
    rows = 20_000_000
    pq.write_table(pa.table({"b": pa.array(np.zeros(rows, np.bool_))}), tmp_path / "a.parquet", max_rows_per_page=2**16)
    with ParquetDataset(tmp_path).rows(output_options=NUMPY) as reader:
        assert len(reader) == rows
        reader[-1]
        tracemalloc.start()
        try:
            assert len(reader[rows - 3 :]["b"]) == 3
            assert tracemalloc.get_traced_memory()[1] < rows
        finally:
            tracemalloc.stop()
