"""A table that is followed: each epoch reads the newest version, and a state names the version that it needs."""

from __future__ import annotations

import json
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
    OutputOptions,
    ParquetDataset,
    ResumeError,
    UnsupportedError,
)
from tests.source.tables.delta_logs import add, commit, mapped, metadata, protocol

NUMPY = OutputOptions(format="numpy")


def numbers(first: int, stop: int) -> pa.Table:
    return pa.table({"x": pa.array(range(first, stop), pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "t", numbers(0, 10))
    return tmp_path / "t"


def loader_of(table: Path, **options: Any) -> BatchedDataLoader:
    return BatchedDataLoader(DeltaSource(table, follow=True), 4, output_options=NUMPY, **options)


def epoch(loader: BatchedDataLoader) -> list[int]:
    return [x for batch in loader for x in batch["x"].tolist()]


def test_each_epoch_reads_the_newest_version_and_says_what_changed(table: Path) -> None:
    with loader_of(table) as loader:
        assert sorted(epoch(loader)) == list(range(10))
        growth = loader.stats().growth
        assert growth is not None
        assert (growth.version, growth.new_rows, growth.gone_rows) == ("delta version 0", 10, 0)
        write_deltalake(table, numbers(10, 15), mode="append")
        assert sorted(epoch(loader)) == list(range(15))
        assert str(loader.stats().growth) == "delta version 1: +5 rows in 1 file, -0 rows in 0 files"
        DeltaTable(table).delete("x < 3")
        assert sorted(epoch(loader)) == list(range(3, 15))
        growth = loader.stats().growth
        assert growth is not None
        assert (growth.version, growth.new_rows, growth.gone_files, growth.gone_rows) == ("delta version 2", 7, 1, 10)
        assert sorted(epoch(loader)) == list(range(3, 15))
        assert str(loader.stats().growth) == "delta version 2: +0 rows in 0 files, -0 rows in 0 files"


def test_a_table_that_grows_during_an_epoch_does_not_change_it(table: Path) -> None:
    with loader_of(table, shuffle=True) as loader:
        iterator = iter(loader)
        found = next(iterator)["x"].tolist()
        write_deltalake(table, numbers(10, 20), mode="append")
        assert sorted(found + [x for batch in iterator for x in batch["x"].tolist()]) == list(range(10))


@pytest.mark.parametrize("filtered", [False, True])
def test_a_state_goes_on_with_the_version_it_names(table: Path, filtered: bool) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "filters": pc.field("x") != 7 if filtered else None}
    with loader_of(table, **options) as loader:
        whole = epoch(loader)
    with loader_of(table, **options) as loader:
        iterator = iter(loader)
        first = next(iterator)["x"].tolist()
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["snapshot"] == state["table"] == "delta version 0"
    assert len(json.dumps(state)) <= 1024
    write_deltalake(table, numbers(10, 20), mode="append")
    DeltaTable(table).delete("x = 5")
    with loader_of(table, **options) as loader:
        loader.load_state_dict(state)
        assert first + epoch(loader) == whole
        assert sorted(epoch(loader)) == [x for x in range(20) if x != 5 and not (filtered and x == 7)]


def test_a_state_of_a_vacuumed_version_is_refused_or_skipped(table: Path) -> None:
    with loader_of(table) as loader:
        next(iter(loader))
        state = loader.state_dict()
    DeltaTable(table).delete("x = 5")
    DeltaTable(table).vacuum(0, enforce_retention_duration=False, dry_run=False)
    with loader_of(table) as loader:
        with pytest.raises(ResumeError, match="if_gone='next_epoch'") as raised:
            loader.load_state_dict(state)
        assert "the table no longer has 'delta version 0'" in str(raised.value)
        assert "store" not in str(raised.value).split("; load_state_dict")[1]
        loader.load_state_dict(state, if_gone="next_epoch")
        assert loader.state_dict()["epoch"] == 1
        assert sorted(epoch(loader)) == [x for x in range(10) if x != 5]


def test_a_followed_table_is_for_loaders_in_one_process(table: Path) -> None:
    with pytest.raises(ConfigurationError, match="pass the table to BatchedDataLoader"):
        ParquetDataset(DeltaSource(table, follow=True))
    with pytest.raises(ConfigurationError, match="files do not belong to splits"):
        loader_of(table, split="train")
    with loader_of(table) as loader, pytest.raises(UnsupportedError, match="a table with follow=True, cannot be"):
        loader.__reduce__()


def test_counts_of_a_column_do_not_stay_with_its_name(tmp_path: Path) -> None:
    """Columns that exchange their names leave the schema and the files as they were."""

    def columns(a: str, b: str) -> dict[str, Any]:
        fields = [mapped("a", "long", int(a[-1]), a), mapped("b", "long", int(b[-1]), b)]
        return metadata(fields, **{"delta.columnMapping.mode": "name"})

    rows = pa.table({"c-1": pa.array(range(20), pa.int64()), "c-2": pa.array(range(100, 120), pa.int64())})
    table = tmp_path / "t"
    commit(table, 0, protocol(2, 5), columns("c-1", "c-2"), add(table, "0.parquet", rows))
    with loader_of(table, filters=pc.field("a") < 50) as loader:
        assert [x for batch in loader for x in batch["a"].tolist()] == list(range(20))
        commit(table, 1, columns("c-2", "c-1"))
        assert [x for batch in loader for x in batch["a"].tolist()] == []
        commit(table, 2, columns("c-1", "c-2"))
        assert [x for batch in loader for x in batch["a"].tolist()] == list(range(20))
