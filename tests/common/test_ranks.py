"""Several ranks: rows divided, steps equal, one snapshot, errors shared; with the real `torch.distributed` on gloo."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, ConfigurationError, Shard, ShardOptions
from parquet_loader.loader.state import files_identity
from parquet_loader.plan.epoch import plan_epoch
from parquet_loader.plan.sharding import Sharding, split_over_workers
from parquet_loader.source.manifest import dump_snapshot, load_snapshot
from parquet_loader.source.opening import open_snapshot
from tests.support.datasets import write_numbered
from tests.support.examples import examples

Remainder = Literal["drop", "pad", "uneven"]


def delivered_rows(rows: list[int], batch_size: int, ranks: int, options: ShardOptions, **plan: Any) -> list[list[int]]:
    """Return the numbers of the rows that each rank delivers, by the plan alone."""
    counts = np.array(rows, np.int64)
    numbers = np.concatenate([[0], np.cumsum(counts)])
    found: list[list[int]] = []
    for rank in range(ranks):
        sharding = Sharding(Shard(rank, ranks), options)
        division = sharding.divide(int(counts.sum()), batch_size, drop_last=plan["drop_last"])
        made = plan_epoch(counts, batch_size=batch_size, division=division, open_row_groups=3, epoch=1, seed=7, **plan)
        own: list[int] = []
        for window in range(made.windows):
            pieces = [np.arange(s.start, s.stop) + numbers[s.row_group] for s in made.slices(window)]
            lying = np.concatenate([np.zeros(0, np.int64), *pieces])
            order = made.order(window)
            ordered = lying if order is None else lying[order]
            own += ordered[: len(ordered) - made.left_out(window)].tolist()
        own = own[: made.batches * batch_size]
        assert len(own) == made.delivered_rows or plan["drop_last"]
        assert -(-len(own) // batch_size) == made.batches
        found.append(own)
    return found


@settings(max_examples=examples(80))
@given(
    rows=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 120)), max_size=12),
    batch_size=st.integers(1, 20),
    ranks=st.integers(1, 8),
    remainder=st.sampled_from(["drop", "pad", "uneven"]),
    windows=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_all_ranks_together_deliver_every_row_once_up_to_the_remainder_in_equal_steps(
    rows: list[int], batch_size: int, ranks: int, remainder: Remainder, windows: int, shuffle: bool, drop_last: bool
) -> None:
    options = ShardOptions(remainder)
    plan = {"window_rows": windows * batch_size, "shuffle": shuffle, "drop_last": drop_last}
    parts = delivered_rows(rows, batch_size, ranks, options, **plan)
    times = Counter(row for part in parts for row in part)
    assert set(times) <= set(range(sum(rows)))
    lost, extra = sum(rows) - len(times), times.total() - len(times)
    if remainder == "uneven" or ranks == 1:
        assert extra == 0
        assert lost < (batch_size * ranks if drop_last or remainder == "drop" else 1)
        return
    assert len({len(part) for part in parts}) == 1
    assert extra == 0 if remainder == "drop" else extra < ranks
    assert lost < batch_size * ranks if remainder == "drop" or drop_last else lost == 0


@settings(max_examples=examples(40))
@given(
    rows=st.lists(st.integers(0, 120), max_size=10),
    ranks=st.sampled_from([1, 2, 4, 8]),
    remainder=st.sampled_from(["drop", "pad"]),
    share=st.integers(1, 4),
    windows=st.integers(2, 5),
    shuffle=st.booleans(),
)
def test_with_logical_shards_global_batches_are_the_same_on_any_number_of_ranks(
    rows: list[int], ranks: int, remainder: Remainder, share: int, windows: int, shuffle: bool
) -> None:
    options = ShardOptions(remainder, logical_shards=8)
    plan = {"window_rows": windows * 8 * share, "shuffle": shuffle, "drop_last": False}

    def batches(ranks: int) -> list[list[int]]:
        size = 8 * share // ranks
        parts = delivered_rows(rows, size, ranks, options, **plan)
        cut = [[part[n : n + size] for n in range(0, len(part), size)] for part in parts]
        return [sorted(row for own in together for row in own) for together in zip(*cut, strict=True)]

    one = batches(1)
    assert batches(ranks) == one
    times = Counter(row for batch in one for row in batch)
    assert times.total() - len(times) < 8 if remainder == "pad" else times.total() == len(times)
    assert sum(rows) - len(times) < (8 * share if remainder == "drop" else 1)


@given(rows=st.integers(0, 500), batch_size=st.integers(1, 30), ranks=st.integers(1, 4), workers=st.integers(1, 5))
def test_workers_in_turn_deliver_what_their_rank_would(rows: int, batch_size: int, ranks: int, workers: int) -> None:
    for remainder in ("drop", "pad", "uneven"):
        for rank in range(ranks):
            sharding = Sharding(Shard(rank, ranks), ShardOptions(remainder))
            whole = sharding.divide(rows, batch_size, drop_last=False)
            parts = [split_over_workers(whole, batch_size, worker, workers) for worker in range(workers)]
            sizes = [[min(batch_size, p.delivered_rows - n * batch_size) for n in range(p.batches)] for p in parts]
            turns = [sizes[n % workers].pop(0) for n in range(whole.batches)]
            assert not any(sizes)
            assert sum(turns) == whole.delivered_rows
            assert all(size == batch_size for size in turns[:-1])
            assert sum(part.parts[0].rows for part in parts) == whole.parts[0].rows


def test_a_rank_reads_its_own_part_of_the_files(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((30, 11), (25,), (), (1,)), ("double",))
    seen: list[int] = []
    for rank in range(4):
        with BatchedDataLoader(str(tmp_path), 4, shuffle=True, shard=Shard(rank, 4)) as loader:
            batches = [batch["id"].tolist() for batch in loader]
            assert len(batches) == len(loader) == 5
            assert "rank " + str(rank) + " of 4" in repr(loader)
            assert loader.stats().row_groups <= 3
            seen += [row for batch in batches for row in batch]
    assert set(seen) == set(range(67))
    assert len(seen) == 68


def test_uneven_ranks_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="some of the 2 ranks get 3 batches, the others 2; collectives"):
        Sharding(Shard(0, 2), ShardOptions("uneven")).warn_if_uneven(9, 2, drop_last=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sharding(Shard(0, 2), ShardOptions("uneven")).warn_if_uneven(8, 2, drop_last=False)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_error": "skip", "shard": Shard(0, 2)}, "with more than one rank"),
        ({"shard": Shard(0, 3), "shard_options": ShardOptions(logical_shards=8)}, "cannot be divided evenly over 3"),
        ({"shard_options": ShardOptions(logical_shards=8, fewest_ranks=2)}, "fewest_ranks=2: there are only 1 ranks"),
        ({"batch_size": 6, "shard_options": ShardOptions(logical_shards=4)}, "choose a multiple of 4"),
        ({"shard": 3}, "expected a Shard"),
        ({"shard_options": "drop"}, "expected a ShardOptions"),
    ],
)
def test_what_cannot_be_divided_is_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    write_numbered(str(tmp_path), ((30,),))
    with pytest.raises(ConfigurationError, match=reason):
        BatchedDataLoader(str(tmp_path), **{"batch_size": 8, **options})


def test_a_snapshot_survives_as_bytes(tmp_path: Path) -> None:
    for year in (2020, 2021):
        write_numbered(str(tmp_path / f"year={year}"), ((3, 4), (5,)), ("text", "struct"))
    snapshot = open_snapshot(str(tmp_path))
    copy = load_snapshot(dump_snapshot(snapshot), snapshot.filesystem)
    assert copy.files == snapshot.files
    assert copy.schemas == snapshot.schemas
    assert copy.partition_schema == snapshot.partition_schema
    assert files_identity(copy) == files_identity(snapshot)
    assert copy.partition_values(2) == snapshot.partition_values(2)
