"""Small row groups, which are read together, deliver what each delivers alone; a broken one is found by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    Category,
    DataError,
    Group,
    OutputOptions,
    Ragged,
    RaggedList,
    Scalar,
    Schema,
    SourceError,
    Tensor,
    Text,
)
from parquet_loader.common import IS_BUILT
from parquet_loader.decode import StraightTargets
from parquet_loader.engine.read_scheduler import TOGETHER_CHUNKS
from parquet_loader.read import RowGroupReader
from parquet_loader.read.column_chunks import MOST_PATTERNS
from parquet_loader.source import ChunkPattern
from parquet_loader.window.variable_width import _StagedValues

WORDS = [f"word {number}" for number in range(50)]
FIELDS = Schema(
    {
        "id": Scalar("int64"),
        "half": Scalar("float32"),
        "filled": Scalar("float64", fill=-1.0),
        "masked": Scalar("int32", null="mask"),
        "flag": Scalar("bool"),
        "code": Category(WORDS),
        "text": Text(),
        "maybe": Text(null="mask"),
        "price": Scalar("float64"),
        "tokens": RaggedList("int32"),  # stored as int64
        "scores": RaggedList("float32"),
        "point": Tensor("float32", (3,)),
        "pair": Group(["first", "second"], "float32"),
        "wide": Tensor("float32", (70,)),
        "box": Tensor("int16", (2,)),  # stored as fixed-size lists of int32
        "place": Scalar("int32"),  # from the names of directories
        "late": Scalar("int16", missing=-5),  # of some files only
    }
)


def table_of(ids: Sequence[int], rng: np.random.Generator) -> pa.Table:
    """Return rows whose values follow from their numbers; how many distinct texts there are is drawn."""
    numbers = np.array(ids, np.int64)
    few = int(rng.integers(1, 400))
    return pa.table(
        {
            "id": numbers,
            "half": numbers.astype(np.float64) / 2,
            "filled": pa.array(numbers * 1.5, mask=numbers % 7 == 0),
            "masked": pa.array(numbers.astype(np.int32) % 1000, mask=numbers % 5 == 0),
            "flag": numbers % 3 == 0,
            "code": pa.array([WORDS[number % len(WORDS)] for number in ids], pa.string()),
            "text": pa.array([f"{'é' * (number % 11)}{number - number % few}" for number in ids], pa.string()),
            "maybe": pa.array([f"maybe {number}" for number in ids], pa.string(), mask=numbers % 4 == 0),
            "price": pa.array(numbers).cast(pa.decimal128(21, 2)),
            "tokens": pa.array([[number + i for i in range(number % 5)] for number in ids], pa.list_(pa.int64())),
            "point": pa.array([[number, number / 2, -number] for number in ids], pa.list_(pa.float32())),
            "first": numbers * 2,
            "second": pa.array(numbers.astype(np.float32)),
            "wide": pa.array([[number] * 70 for number in ids], pa.list_(pa.float32())),
            "box": pa.array([[number % 9, number % 8] for number in ids], pa.list_(pa.int32(), 2)),
            "scores": pa.array([[number / 2] * (number % 3) for number in ids], pa.large_list(pa.float32())),
        }
    )


def write(folder: Path, seed: int) -> pa.Table:
    """Write files of small row groups that differ in rows, columns, encodings, codecs and nulls; return all rows."""
    rng, first, tables = np.random.default_rng(seed), 0, []
    for number in range(4):
        codec = rng.choice(["snappy", "zstd", "none", "gzip"])
        options: dict[str, Any] = {"compression": codec, "use_dictionary": bool(rng.integers(2))}
        options["data_page_version"] = str(rng.choice(["1.0", "2.0"]))
        (home := folder / f"place={number // 2}").mkdir(exist_ok=True)
        writer: pq.ParquetWriter | None = None
        for _ in range(int(rng.integers(1, 30))):
            rows = int(rng.choice([0, 1, 3, 50, 300]))
            table = table_of(range(first, first + rows), rng)
            if number == 3:
                table = table.append_column("late", pa.array(np.arange(rows, dtype=np.int16)))
            writer = writer or pq.ParquetWriter(home / f"{number}.parquet", table.schema, **options)
            writer.write_table(table)
            late = table["late"] if number == 3 else pa.array(np.full(rows, -5, np.int16))
            place = pa.array(np.full(rows, number // 2, np.int32))
            expected = table.select([name for name in table.column_names if name != "late"])
            tables.append(expected.append_column("late", late).append_column("place", place))
            first += rows
        assert writer is not None
        writer.close()
    return pa.concat_tables(tables)


def epoch_of(loader: BatchedDataLoader) -> dict[str, Any]:
    """Return all rows of an epoch, in order."""
    batches = list(loader)
    return {name: joined([batch[name] for batch in batches]) for name in batches[0]}


def joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Ragged):
        return [row.tolist() if isinstance(row, np.ndarray) else row for part in parts for row in part]
    return np.concatenate(parts)


def check(found: dict[str, Any], expected: pa.Table) -> None:
    """Compare delivered rows with the written ones."""
    rows = expected.take(found["id"]).combine_chunks()
    for name in ("id", "flag", "place", "late"):
        np.testing.assert_array_equal(found[name], rows[name].to_numpy())
    np.testing.assert_array_equal(found["half"], rows["half"].to_numpy().astype(np.float32))
    np.testing.assert_array_equal(found["filled"], rows["filled"].fill_null(-1.0).to_numpy())
    np.testing.assert_array_equal(found["masked_valid"], rows["masked"].is_valid().to_numpy())
    np.testing.assert_array_equal(found["masked"][found["masked_valid"]], rows["masked"].drop_null().to_numpy())
    assert [WORDS[code] for code in found["code"]] == rows["code"].to_pylist()
    assert found["text"] == rows["text"].to_pylist()
    assert found["maybe"] == rows["maybe"].fill_null("").to_pylist()
    np.testing.assert_array_equal(found["maybe_valid"], rows["maybe"].is_valid().to_numpy())
    assert found["tokens"] == rows["tokens"].to_pylist()
    assert found["scores"] == rows["scores"].to_pylist()
    assert found["point"].tolist() == rows["point"].to_pylist()
    np.testing.assert_array_equal(found["pair"], np.stack([found["id"] * 2, found["id"]], axis=1))
    assert (found["wide"] == found["id"][:, None]).all()
    assert found["box"].tolist() == rows["box"].to_pylist()
    np.testing.assert_array_equal(found["price"], rows["price"].cast(pa.float64()).to_numpy())


def loader_of(folder: Path, row_numbers: str | None = None, **options: Any) -> BatchedDataLoader:
    given: dict[str, Any] = {"shuffle": True, "seed": 5, "num_threads": 2, "schema": FIELDS, **options}
    return BatchedDataLoader(folder, 64, output_options=OutputOptions(format="numpy", row_numbers=row_numbers), **given)


@pytest.mark.parametrize(
    "seed",
    [*(pytest.param(n, marks=pytest.mark.slow) for n in range(5)), 5, 6, pytest.param(7, marks=pytest.mark.slow)],
)
def test_each_row_comes_once_with_its_values(tmp_path: Path, seed: int) -> None:
    expected = write(tmp_path, seed)
    with loader_of(tmp_path, "number" if seed % 2 else None, window_rows=1_000, shuffle=seed < 6) as loader:
        for _ in range(3):
            found = epoch_of(loader)
            assert sorted(found["id"].tolist()) == list(range(len(expected)))
            check(found, expected)
            if seed % 2:
                np.testing.assert_array_equal(found["number"], found["id"])


@pytest.mark.parametrize("seed", range(2))
def test_a_filter_of_directories_selects_files(tmp_path: Path, seed: int) -> None:
    expected = write(tmp_path, seed)
    with loader_of(tmp_path, window_rows=1_000, filters=[("place", "==", 1)]) as loader:
        for _ in range(2):
            found = epoch_of(loader)
            assert sorted(found["id"].tolist()) == expected.filter(pc.field("place") == 1)["id"].to_pylist()
            check(found, expected)


def small(folder: Path, row_groups: int = 40) -> pa.Table:
    """Write one file of row groups of 50 rows that have one plan."""
    table = table_of(range(50 * row_groups), np.random.default_rng(0)).select(["id", "half", "text"])
    pq.write_table(table, folder / "a.parquet", row_group_size=50, use_dictionary=False, compression="none")
    return table


def damage(path: Path, row_group: int, column: int = 0) -> None:
    """Overwrite the page header of a column chunk of a row group."""
    at = pq.read_metadata(path).row_group(row_group).column(column).data_page_offset
    kept = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 20)
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))


def test_a_damaged_row_group_is_named_or_skipped_alone(tmp_path: Path) -> None:
    small(tmp_path)
    damage(tmp_path / "a.parquet", 17)
    with loader_of(tmp_path, schema=None) as loader, pytest.raises(DataError, match=r"row group 17"):
        epoch_of(loader)
    with loader_of(tmp_path, schema=None, on_error="skip") as loader:
        for _ in range(2):
            found = epoch_of(loader)
            assert sorted(found["id"].tolist()) == [*range(850), *range(900, 2_000)]
            (skipped,) = loader.stats().skipped_row_groups
            assert "row group 17" in skipped.reason


def test_a_file_that_changes_between_two_epochs_is_refused(tmp_path: Path) -> None:
    small(tmp_path)
    with loader_of(tmp_path, schema=None, window_rows=200) as loader:
        epoch_of(loader)
        small(tmp_path, row_groups=39)
        with pytest.raises(SourceError, match="changed"):
            list(loader), list(loader)


def lists(rows: int, nulls: int = 0) -> pa.Table:
    """Return rows of lists; the last `nulls` of them are null."""
    values = [[number] * (number % 4) if number < rows - nulls else None for number in range(rows)]
    others = [[number / 4] * (number % 3) for number in range(rows)]
    return pa.table({"values": values, "others": others, "id": range(rows)})


def check_lists(folder: Path, table: pa.Table, **options: Any) -> set[int]:
    """Compare two epochs with the rows of a table; return the numbers of the rows that were delivered."""
    delivered = set[int]()
    with loader_of(folder, **options) as loader:
        for _ in range(2):
            found = epoch_of(loader)
            delivered = set(found["id"].tolist())
            rows = table.take(found["id"])
            assert found["values"] == [values or [] for values in rows["values"].to_pylist()]
            assert found["others"] == rows["others"].to_pylist()
    return delivered


def test_lists_alone_are_read_together(tmp_path: Path) -> None:
    table = lists(2_000)
    pq.write_table(table.select(["values", "others"]), tmp_path / "a.parquet", row_group_size=50)
    with loader_of(tmp_path, schema=None, window_rows=700) as loader:
        for _ in range(2):
            found = epoch_of(loader)
            pairs = [str(pair) for pair in zip(found["values"], found["others"], strict=True)]
            expected = zip(table["values"].to_pylist(), table["others"].to_pylist(), strict=True)
            assert sorted(pairs) == sorted(str(pair) for pair in expected)


def test_null_lists_in_one_row_group_are_filled(tmp_path: Path) -> None:
    schema = Schema({"values": RaggedList("int64", fill=()), "others": RaggedList("float64"), "id": Scalar("int64")})
    table = lists(2_000, nulls=60)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    assert check_lists(tmp_path, table, schema=schema) == set(range(2_000))


@pytest.mark.parametrize("column", [0, 1])
def test_damaged_lists_are_skipped_alone(tmp_path: Path, column: int) -> None:
    table = lists(2_000)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50, use_dictionary=False, compression="none")
    damage(tmp_path / "a.parquet", 17, column)
    with loader_of(tmp_path, schema=None) as loader, pytest.raises(DataError, match=r"row group 17"):
        epoch_of(loader)
    assert check_lists(tmp_path, table, schema=None, on_error="skip") == {*range(850), *range(900, 2_000)}


@pytest.mark.skipif(not IS_BUILT, reason="only kernels read row groups together")
def test_row_groups_of_many_kinds_are_compared_to_the_patterns_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, names = np.random.default_rng(0), [f"c{number}" for number in range(6)]
    for number in range(40):
        words = [name for name in names if rng.integers(2)]
        table = pa.table({name: np.arange(80) % 7 for name in names})
        pq.write_table(table, tmp_path / f"{number:02}.parquet", row_group_size=10, use_dictionary=words)
    compared = []
    extents = ChunkPattern.extents

    def counted(self: ChunkPattern, files: Sequence[Any]) -> Any:
        compared.append(sum(len(file.rows) for file in files))
        return extents(self, files)

    monkeypatch.setattr(ChunkPattern, "extents", counted)
    with loader_of(tmp_path, schema=None, num_threads=1) as loader:
        assert len(epoch_of(loader)["c0"]) == 3_200
    assert sum(compared) < 320 * MOST_PATTERNS * 4


@pytest.mark.skipif(not IS_BUILT, reason="only kernels read row groups together")
def test_each_footer_is_read_once_for_row_groups_that_are_read_together(tmp_path: Path) -> None:
    for number in range(10):
        pq.write_table(pa.table({"id": range(100)}), tmp_path / f"{number}.parquet", row_group_size=5)
    with loader_of(tmp_path, schema=None) as loader:
        epoch_of(loader)
        reader, reads = loader._dataset.reader, list[int]()
    # The loader is closed, because it would read the next epoch ahead.
    selection = reader.joint_selection(0)
    assert selection is not None
    footers = reader.snapshot.footers
    footers.limit(0)
    footers.record = lambda file, _: reads.append(file)
    order = np.random.default_rng(0).permutation(200).tolist()
    with reader.joint_rows(order, selection) as found:
        assert found.row_groups == 200
    assert 9 <= len(reads) <= 10


@pytest.mark.skipif(not IS_BUILT, reason="only kernels read row groups together")
def test_an_error_after_space_is_reserved_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = range(2_000)
    table = pa.table({"id": numbers, "one": [f"one {n}" for n in numbers], "two": [f"two {n}" for n in numbers]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    reserve, calls = _StagedValues.reserve_addresses, []

    def failing(self: _StagedValues, values: int, nbytes: int) -> Any:
        if values > 50:
            calls.append(values)
            if len(calls) == 2:  # the second column of the first row groups that are read together
                raise MemoryError
        return reserve(self, values, nbytes)

    monkeypatch.setattr(_StagedValues, "reserve_addresses", failing)
    with (
        loader_of(tmp_path, schema=None, num_threads=1) as loader,
        pytest.raises(MemoryError, match="a window of rows"),
    ):
        epoch_of(loader)
    assert len(calls) == 2


@pytest.mark.skipif(not IS_BUILT, reason="only kernels read row groups together")
def test_few_column_chunks_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = 60
    table = pa.table({f"c{number}": np.arange(500, dtype=np.int8) for number in range(columns)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1, use_dictionary=False)
    counts = []
    read = RowGroupReader.joint_rows

    def counted(self: RowGroupReader, row_groups: Sequence[int], selection: Any) -> Any:
        counts.append(len(row_groups))
        return read(self, row_groups, selection)

    monkeypatch.setattr(RowGroupReader, "joint_rows", counted)
    with loader_of(tmp_path, schema=None, num_threads=1) as loader:
        assert len(epoch_of(loader)["c0"]) == 500
    assert 1 < max(counts) <= TOGETHER_CHUNKS // columns


@pytest.mark.skipif(not IS_BUILT, reason="only kernels read row groups together")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process")
@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_open_row_groups_share_a_decompressor(tmp_path: Path, codec: str) -> None:
    count = 2_000
    texts = [f"text {number % 5}" for number in range(2 * count)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=2, compression=codec)
    with loader_of(tmp_path, schema=None) as loader:
        epoch_of(loader)
        reader = loader._dataset.reader
        selection = reader.joint_selection(0)
        assert selection is not None
        out = np.zeros((2 * count, 2), np.int64)
        with reader.joint_rows(range(count), selection) as found:
            before = resident_bytes()
            assert found.rows is not None
            found.rows.deferred.write(0, 2 * count, StraightTargets(np.array([out.ctypes.data], np.int64)), ())
            assert resident_bytes() - before < 16 * 2**20  # a decompressor for each would take 40 MiB


def resident_bytes() -> int:
    """Return the bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
