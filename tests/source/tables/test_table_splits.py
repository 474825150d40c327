"""Training and validation rows of tables: by a partition column, by the hash of a key, by position."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DeltaSource,
    IcebergSource,
    OutputOptions,
    ParquetDataset,
    ResumeError,
    Shard,
    SourceError,
    rewrite_dataset,
    split,
    split_rows,
)
from tests.source.tables.iceberg_tables import HandTable

SIDES = [split("id", 0, 0.7), split("id", 0.7, 1)]


def ids(source: Any, **options: Any) -> list[int]:
    with BatchedDataLoader(source, 16, output_options=OutputOptions(format="numpy"), **options) as loader:
        return [x for batch in loader for x in batch["id"].tolist()]


def rows(first: int, stop: int, part: str | None) -> pa.Table:
    numbers = range(first, stop)
    return pa.table(
        {"id": pa.array(numbers, pa.int64()), "split": pa.array([part] * len(numbers), pa.string()), "y": numbers}
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Train 0 to 99 without the multiples of 5, validation 100 to 139, two other splits."""
    made = tmp_path / "t"
    parts = [rows(0, 60, "train"), rows(60, 100, "Training"), rows(100, 140, "val"), rows(140, 150, None)]
    write_deltalake(made, pa.concat_tables(parts), partition_by=["split"])
    DeltaTable(made).delete("id < 100 and id % 5 = 0")
    return made


TRAIN = [x for x in range(100) if x % 5]
VALIDATION = list(range(100, 140))


def test_a_partition_column_named_split_divides_a_table(table: Path, tmp_path: Path) -> None:
    training, validation = (ParquetDataset(table, split=name) for name in ("train", "validation"))
    assert (training.num_rows, validation.num_rows) == (80, 40)
    assert sorted(ids(training)) == TRAIN
    assert sorted(ids(DeltaSource(table), split="training")) == TRAIN
    assert sorted(ids(table, split="dev", filters=pc.field("id") < 120)) == VALIDATION[:20]
    assert len(ids(table, split="all", columns=["id"])) == len(ids(table, columns=["id"])) == 130
    ranks = [ids(table, split="train", shuffle=True, shard=Shard(rank, 3)) for rank in range(3)]
    assert {x for rank in ranks for x in rank} == set(TRAIN)
    rewrite_dataset(table, tmp_path / "new", split="validation")
    assert sorted(ids(tmp_path / "new")) == VALIDATION
    with training.batches(7, shuffle=True) as loader, validation.batches(7, shuffle=True) as other:
        batches = iter(loader)
        seen = [x for _ in range(5) for x in next(batches)["id"].tolist()]
        state = json.loads(json.dumps(loader.state_dict()))
        with pytest.raises(ResumeError, match="files"):
            other.load_state_dict(state)
        with training.batches(7, shuffle=True) as again:
            again.load_state_dict(state)
            assert sorted([*seen, *(x for batch in again for x in batch["id"].tolist())]) == TRAIN


def test_a_table_without_the_column_or_the_split_says_what_there_is(table: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"split='test': no file is of this split\. There are: 'train', 'validation'"):
        ParquetDataset(table, split="test")
    write_deltalake(tmp_path / "plain", rows(0, 4, "train"))
    with pytest.raises(ConfigurationError, match=r"without a partition column 'split' of text.*split\('id', 0, 0\.9\)"):
        ParquetDataset(tmp_path / "plain", split="train")
    write_deltalake(
        tmp_path / "number", rows(0, 4, None).set_column(1, "split", pa.array([1] * 4)), partition_by="split"
    )
    with pytest.raises(ConfigurationError, match="do not belong to splits"):
        ParquetDataset(tmp_path / "number", split="1")


def test_a_split_of_a_followed_table_grows_by_its_own_rows(table: Path) -> None:
    options: dict[str, Any] = {"split": "train", "output_options": OutputOptions(format="numpy")}
    source = DeltaSource(table, follow=True)
    with BatchedDataLoader(source, 8, **options) as loader:
        assert sorted(x for batch in loader for x in batch["id"].tolist()) == TRAIN
        write_deltalake(table, rows(200, 210, "val"), mode="append")
        write_deltalake(table, rows(210, 215, "train"), mode="append")
        DeltaTable(table).optimize.compact()
        batches = iter(loader)
        seen = next(batches)["id"].tolist()
        state = loader.state_dict()
        growth = loader.stats().growth
        assert growth is not None
        assert growth.version == "delta version 4"
        assert growth.new_rows - growth.gone_rows == 5
        rest = [x for batch in batches for x in batch["id"].tolist()]
        assert sorted(seen + rest) == [*TRAIN, *range(210, 215)]
    DeltaTable(table).delete("id = 1")
    with BatchedDataLoader(source, 8, **options) as loader:
        loader.load_state_dict(state)
        assert [x for batch in loader for x in batch["id"].tolist()] == rest
        begin = loader.state_dict()
    with BatchedDataLoader(source, 8, split="validation") as loader:
        for one in (state, begin):
            with pytest.raises(ResumeError, match="split"):
                loader.load_state_dict(one)


def test_a_split_by_key_stays_over_versions_and_a_split_by_position_only_within_one(tmp_path: Path) -> None:
    made = tmp_path / "t"
    for first in range(0, 400, 100):
        write_deltalake(made, rows(first, first + 100, "x"), mode="append")
    of_key = set(ids(made, filters=SIDES[0]))
    moved = []
    changes: list[Callable[[Any], Any]] = [
        lambda t: t.delete("id % 7 = 0"),
        lambda t: t.update({"y": "-y"}, predicate="id % 3 = 0"),
        lambda t: t.optimize.compact(),
        lambda t: t.optimize.z_order(["y"]),
        lambda t: t.restore(3),
    ]
    before = set(ids(made, filters=split_rows(0, 0.7)))
    for change in changes:
        change(DeltaTable(made))
        data = ParquetDataset(made)
        whole = set(ids(data))
        for first, second in (SIDES, [split_rows(0, 0.7), split_rows(0.7, 1)]):
            sides = [ids(data, filters=side) for side in (first, second)]
            assert sorted(sides[0] + sides[1]) == sorted(whole)
        assert set(ids(data, filters=SIDES[0])) == of_key & whole
        moved.append(set(ids(data, filters=split_rows(0, 0.7))) != before & whole)
    assert moved[-1] is False  # the files of version 3 again
    assert any(moved)


def test_rows_by_position_of_a_followed_table_are_refused(table: Path) -> None:
    source = DeltaSource(table, follow=True)
    for filters in (split_rows(0, 0.9), (pc.field("id") > 3) & ~split_rows(0, 0.1, unit="file")):
        with pytest.raises(ConfigurationError, match=r"follow=True, filters=split_rows.*split\('id', 0, 0\.9\)"):
            BatchedDataLoader(source, 8, filters=filters)
    chosen: dict[str, Any] = {"columns": ["id"], "output_options": OutputOptions(format="numpy")}
    with (
        BatchedDataLoader(source, 8, filters=SIDES[0], **chosen) as first,
        BatchedDataLoader(source, 8, filters=SIDES[1], **chosen) as second,
    ):
        sides = [{x for batch in loader for x in batch["id"].tolist()} for loader in (first, second)]
        DeltaTable(table).optimize.compact()
        write_deltalake(table, rows(500, 600, "train"), mode="append")
        later = [{x for batch in loader for x in batch["id"].tolist()} for loader in (first, second)]
        assert not (sides[0] | later[0]) & (sides[1] | later[1])
        assert sides[0] <= later[0]


def test_partition_values_of_iceberg_divide_files_of_one_spec(tmp_path: Path) -> None:
    made = HandTable(tmp_path / "t", [("id", "long"), ("split", "string")], partition_by=[("split", "identity")])
    for part, first in (("train", 0), ("test", 50), ("train", 80)):
        made.insert([{1: number, 2: part} for number in range(first, first + 30)])
    made.insert([{1: 200, 2: None}])
    made.delete({min(made.files): set(range(3))})
    source = IcebergSource(made.root)
    train, test = ids(source, split="train"), ids(source, split="test")
    assert len(train) + len(test) == 87
    assert set(test) <= set(range(50, 80))
    assert not set(train) & set(range(50, 80))
    made.partition_by([])  # from now on, files hold rows of all splits
    made.insert([{1: 300, 2: "train"}, {1: 301, 2: "test"}])
    with pytest.raises(ConfigurationError, match="do not belong to splits"):
        ParquetDataset(source, split="train")
    assert len(ids(source, filters=pc.field("split") == "test", columns=["id"])) == len(test) + 1
