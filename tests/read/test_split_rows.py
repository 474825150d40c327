"""Splits by row position are as documented, disjoint, complete, cheap, and stable if files come, go or move."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    OutputOptions,
    ResumeError,
    SampleStore,
    Scalar,
    Schema,
    Shard,
    StoreOptions,
    rewrite_dataset,
    split,
    split_rows,
)
from parquet_loader.common.splitmix import GOLDEN, MASK, mixed
from tests.common.test_hashing import plain
from tests.support.examples import examples, grid

UNITS: list[Any] = [1, 7, 1000, "row_group", "file"]
each_unit = pytest.mark.parametrize("unit", UNITS)


def write(root: Path, name: str, first: int, rows: int, row_group: int = 20, width: int = 1) -> None:
    """Rows numbered from `first`; with `width` as many bytes a row, which are the number's last digit."""
    root.mkdir(exist_ok=True)
    ids = np.arange(first, first + rows)
    wide = pa.array([bytes([row % 251]) * width for row in ids.tolist()], pa.binary(width))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("wide", wide.type, nullable=False)])
    table = pa.Table.from_arrays([pa.array(ids), wide], schema=schema)
    pq.write_table(table, root / name, row_group_size=row_group, compression="none", use_dictionary=False)


def ids_of(source: Any, chosen: pc.Expression, **more: Any) -> list[int]:
    with BatchedDataLoader(str(source), 8, filters=chosen, **more) as loader:
        found = [row for batch in loader for row in batch["id"].tolist()]
        assert len(found) == loader.plan().rows
        return found


def hash_of(file: Path, unit: Any, row_group: int, row: int, seed: int) -> int:
    """A model that follows only the docstring."""
    raw = file.read_bytes()
    footer = raw[-8 - int.from_bytes(raw[-8:-4], "little") :]
    digest = int.from_bytes(hashlib.blake2b(footer, digest_size=8).digest(), "little")
    place = mixed(plain(file.name.encode()) ^ digest)
    if unit != "file":
        number = row_group if unit == "row_group" else row // unit
        place = mixed((place + (1 + number) * GOLDEN) & MASK)
    return mixed(place ^ mixed(seed))


@each_unit
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_rows_are_on_the_side_that_the_documented_hash_says(tmp_path: Path, unit: Any, seed: int) -> None:
    for number in range(4):
        write(tmp_path, f"{number}.parquet", 100 * number, 50 + number)
    low, high = int(0.2 * 2**64), int(0.7 * 2**64)
    expected = [
        100 * number + row
        for number in range(4)
        for row in range(50 + number)
        if low <= hash_of(tmp_path / f"{number}.parquet", unit, row // 20, row, seed) < high
    ]
    assert ids_of(tmp_path, split_rows(0.2, 0.7, seed, unit=unit)) == expected


@settings(max_examples=examples(25), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=5),
    row_group=st.integers(1, 40),
    unit=st.sampled_from(UNITS),
    cut=st.floats(0.05, 0.95),
    shuffle=st.booleans(),
)
def test_sides_share_no_row_and_are_all_rows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], row_group: int, unit: Any, cut: float, shuffle: bool
) -> None:
    root = tmp_path_factory.mktemp("data")
    for number, rows in enumerate(sizes):
        write(root, f"{number}.parquet", 100 * number, rows, row_group)
    sides = [ids_of(root, split_rows(*ends, unit=unit), shuffle=shuffle) for ends in ((0, cut), (cut, 1))]
    assert sorted(sides[0] + sides[1]) == [100 * n + row for n, rows in enumerate(sizes) for row in range(rows)]


@each_unit
def test_sides_stay_as_files_come_go_and_move(tmp_path: Path, unit: Any) -> None:
    data = tmp_path / "data"
    for number in range(6):
        write(data, f"{number}.parquet", 100 * number, 60)
    before = set(ids_of(data, split_rows(0, 0.5, unit=unit)))
    write(data, "0a.parquet", 1000, 60)
    (data / "deeper").mkdir()
    write(data / "deeper", "9.parquet", 2000, 60)
    (data / "3.parquet").unlink()
    after = ids_of(data, split_rows(0, 0.5, unit=unit))
    assert {row for row in after if row < 1000} == {row for row in before if not 300 <= row < 400}
    shutil.move(data, tmp_path / "elsewhere")
    files = [str(tmp_path / "elsewhere" / "deeper" / "9.parquet"), str(tmp_path / "elsewhere" / "0.parquet")]
    with BatchedDataLoader(files, 8, filters=split_rows(0, 0.5, unit=unit)) as loader:  # named otherwise
        found = {row for batch in loader for row in batch["id"].tolist()}
    assert found == {row for row in after if row >= 2000 or row < 100}


def test_shares_are_even_and_seeds_independent(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", 0, 40_000, 5_000)
    first = [set(ids_of(tmp_path, split_rows(0.2, 0.5, seed))) for seed in (0, 1)]
    for rows in first:
        assert abs(len(rows) - 12_000) < 400
    assert abs(len(first[0] & first[1]) - 3_600) < 300
    neighbours = ids_of(tmp_path, split_rows(0, 0.5, unit=100))
    assert all(rows in (0, 100) for rows in np.bincount(np.array(neighbours) // 100, minlength=400).tolist())


@grid(
    "more, isolation, unit",
    [pytest.param(None, id="alone"), pytest.param(pc.field("id") >= 0, id="with another filter")],
    [pytest.param("thread", id="thread"), pytest.param("process", id="process")],
    [pytest.param("row_group", id="row_group"), pytest.param("file", id="file")],
    everyday=lambda more, isolation, unit: isolation == "thread",
)
def test_of_what_is_left_out_whole_nothing_is_read(tmp_path: Path, unit: Any, isolation: Any, more: Any) -> None:
    for number in range(8):
        write(tmp_path, f"{number}.parquet", 100 * number, 60)
    chosen = split_rows(0, 0.5, unit=unit)
    chosen = chosen if more is None else chosen & more
    with BatchedDataLoader(str(tmp_path), 8, filters=chosen, output_options=OutputOptions(row_numbers="n")) as loader:
        expected = [row for batch in loader for row in batch["id"].tolist()]
        kept = {(os.path.basename(f), g) for batch in loader for f, g, _ in loader.locate(batch["n"])}
        assert loader.stats().row_groups == len(kept) == loader.plan().row_groups
    assert 0 < len(kept) < 24
    for number in range(8):  # what else there is, is no Parquet any more
        file = tmp_path / f"{number}.parquet"
        info, raw = pq.read_metadata(file), bytearray(file.read_bytes())
        changed = file.stat().st_mtime_ns
        for group in range(info.num_row_groups):
            for column in (0, 1) if (file.name, group) not in kept else ():
                chunk = info.row_group(group).column(column)
                raw[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = (
                    b"\xff" * chunk.total_compressed_size
                )
        file.write_bytes(raw)
        os.utime(file, ns=(changed, changed))
    assert ids_of(tmp_path, chosen, isolation=isolation) == expected


@pytest.mark.parametrize(
    ("unit", "isolation"),
    [*((unit, "thread") for unit in UNITS), pytest.param("row_group", "process", marks=pytest.mark.slow)],
)
def test_wide_rows_and_states_and_ranks(tmp_path: Path, unit: Any, isolation: Any) -> None:
    for number in range(6):
        write(tmp_path, f"{number}.parquet", 1000 * number, 900, 450, width=1024)
    train, validation = split_rows(0, 0.6, 3, unit=unit), split_rows(0.6, 1, 3, unit=unit)

    def loader(chosen: pc.Expression, **more: Any) -> BatchedDataLoader:
        given = {"isolation": isolation, **more}
        return BatchedDataLoader(str(tmp_path), 32, filters=chosen, shuffle=True, window_rows=700, **given)

    with loader(train) as alone:
        iterator = iter(alone)
        for _ in range(5):
            next(iterator)
        state = alone.state_dict()
        rest = [batch["id"].tolist() for batch in iterator]
    with loader(train) as again:
        again.load_state_dict(state)
        batches = list(again)
        assert [batch["id"].tolist() for batch in batches] == rest
        for batch in batches:
            assert (batch["wide"].numpy() == (batch["id"].numpy() % 251)[:, None]).all()
    with loader(validation) as other, pytest.raises(ResumeError, match=r"filters: .*in the state"):
        other.load_state_dict(state)
    whole = set(ids_of(tmp_path, train))
    parts = []
    for rank, isolation_of_rank in enumerate(("thread", isolation, "thread")):
        with loader(train, shard=Shard(rank, 3), isolation=isolation_of_rank) as part:
            parts.append([row for batch in part for row in batch["id"].tolist()])
    found = [row for part in parts for row in part]
    assert len({len(part) for part in parts}) == 1
    assert set(found) == whole
    assert len(found) - len(whole) < 3  # repeated, so that steps are equal


def test_positions_combine_with_any_other_filter(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"day={number}").mkdir()
        write(tmp_path / f"day={number}", "part-0.parquet", 100 * number, 60)  # the same name everywhere
    half = split_rows(0, 0.5)
    first, other = set(ids_of(tmp_path, half)), set(ids_of(tmp_path, ~half))
    assert first | other == {100 * n + row for n in range(3) for row in range(60)}
    assert not first & other
    by_id, on_day = split("id", 0, 0.5), pc.field("day") == 1
    chosen = set(ids_of(tmp_path, by_id))
    assert set(ids_of(tmp_path, half & by_id)) == first & chosen
    assert set(ids_of(tmp_path, half | by_id)) == first | chosen
    assert set(ids_of(tmp_path, half & on_day)) == {row for row in first if 100 <= row < 200}
    files, groups = split_rows(0, 0.5, unit="file"), split_rows(0, 0.5, unit="row_group")
    of_files, of_groups = set(ids_of(tmp_path, files)), set(ids_of(tmp_path, groups))
    assert set(ids_of(tmp_path, files | (half & ~groups))) == of_files | (first - of_groups)
    assert set(ids_of(tmp_path, ~files & (pc.field("id") > 30))) == {
        row for row in (first | other) - of_files if row > 30
    }


def test_in_a_store_a_row_keeps_its_side_as_files_come_and_go(tmp_path: Path) -> None:
    options = StoreOptions(file_bytes=2_000, durable=False)
    store = SampleStore(tmp_path / "store", schema=Schema({"id": Scalar("int64")}), max_bytes=60_000, options=options)
    sides: dict[int, int] = {}
    loaders: list[BatchedDataLoader] = []
    seen: list[set[int]] = []
    for epoch in range(4):
        with store.writer() as writer:
            for part in range(6):
                first = 10_000 * epoch + 500 * part
                writer.write({"id": np.random.default_rng(epoch).permutation(np.arange(first, first + 500))})
        loaders = loaders or [
            BatchedDataLoader(store, 16, filters=split_rows(*ends), shuffle=True) for ends in ((0, 0.5), (0.5, 1))
        ]
        seen.append(set())
        for side, loader in enumerate(loaders):
            for batch in loader:
                for row in batch["id"].tolist():
                    assert sides.setdefault(row, side) == side
                    assert row not in seen[-1]
                    seen[-1].add(row)
    assert seen[0] - seen[-1], "files have left"
    assert seen[-2] & seen[-1], "files have stayed"
    for loader in loaders:
        loader.close()


def test_parts_are_written_as_data_sets_of_their_own(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "data", f"{number}.parquet", 100 * number, 60)
    chosen = split_rows(0.5, 1)
    rewrite_dataset(str(tmp_path / "data"), str(tmp_path / "part"), filters=chosen)
    assert sorted(ids_of(tmp_path / "part", pc.scalar(True))) == ids_of(tmp_path / "data", chosen)


def test_units_and_ranges_that_are_none_are_refused() -> None:
    for unit in (0, -1, "rows", 1.5):
        with pytest.raises(ConfigurationError, match="split_rows unit="):
            split_rows(0, 0.5, unit=unit)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expected 0 <= start < stop <= 1"):
        split_rows(0.5, 0.5)
    with pytest.raises(ConfigurationError, match="seed"):
        split_rows(0, 0.5, -1)


def test_whole_row_groups_and_directories_are_known_without_a_look_at_any_row(tmp_path: Path) -> None:
    """Directories with nulls, text split by its hash, empty files: one row for each row group decides."""
    for city, first in (("Rome", 0), ("Oslo", 100), ("__HIVE_DEFAULT_PARTITION__", 200)):
        (tmp_path / f"city={city}").mkdir()
        write(tmp_path / f"city={city}", "a.parquet", first, 60)
        write(tmp_path / f"city={city}", "b.parquet", first, 0)
    groups, named = split_rows(0, 0.5, unit="row_group"), pc.field("city") == "Rome"
    cities = [ids_of(tmp_path, split("city", *ends, text=True), columns=["id"]) for ends in ((0, 0.5), (0.5, 1))]
    assert sorted(cities[0] + cities[1]) == [*range(60), *range(100, 160)]  # null is on no side
    of_groups = set(ids_of(tmp_path, groups, columns=["id"]))
    assert set(ids_of(tmp_path, groups & named, columns=["id"])) == {row for row in of_groups if row < 60}
    assert set(ids_of(tmp_path, ~groups | named, columns=["id"])) == {
        first + row for first in (0, 100, 200) for row in range(60) if first == 0 or first + row not in of_groups
    }
    assert ids_of(tmp_path, groups & (pc.field("city").is_null()), columns=["id"]) == sorted(
        row for row in of_groups if row >= 200
    )
