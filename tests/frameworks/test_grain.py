"""Batches and rows in Grain's pipelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader import BatchedDataLoader, MixedLoader, OutputOptions, ParquetDataset, Shard, ShardOptions
from tests.support.datasets import write_numbered

grain = pytest.importorskip("grain", reason="grain is not installed: pip install '.[frameworks]'")
pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]
NUMPY = OutputOptions(format="numpy")


def test_states_of_a_pipeline_with_prefetch_name_delivered_batches(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((30, 11), (25,)))

    def begin(loader: BatchedDataLoader) -> Any:
        batches = loader.to_grain().map(lambda batch: batch["id"].tolist())
        return iter(grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=3))

    with BatchedDataLoader(str(tmp_path), 8, shuffle=True, output_options=NUMPY) as loader:
        whole = [batch["id"].tolist() for batch in loader]
        loader.set_epoch(0)
        batches = begin(loader)
        for _ in range(3):
            next(batches)
        state = json.loads(json.dumps(batches.get_state()))
        batches.close()
    with BatchedDataLoader(str(tmp_path), 8, shuffle=True, output_options=NUMPY) as loader:
        batches = begin(loader)
        batches.set_state(state)
        assert [next(batches) for _ in range(6)] == whole[3:]
        batches.close()


def test_a_state_resumes_on_other_ranks(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((30, 11), (25, 30)))

    def batches_of(ranks: int, state: Any = None, steps: int | None = None) -> tuple[list[list[int]], Any]:
        found: list[list[int]] = []
        taken: Any = None
        for rank in range(ranks):
            with BatchedDataLoader(
                str(tmp_path), 8 // ranks, shuffle=True, drop_last=True, shard=Shard(rank, ranks),
                shard_options=ShardOptions(logical_shards=4), output_options=NUMPY,
            ) as loader:  # fmt: skip
                iterator = iter(loader.to_grain())
                if state is not None:
                    iterator.set_state(state)
                for number, batch in enumerate(iterator):
                    if rank == 0:
                        found.append([])
                    found[number] += batch["id"].tolist()
                    if number + 1 == steps:
                        break
                taken = iterator.get_state()
        return [sorted(batch) for batch in found], taken

    whole, _ = batches_of(1)
    first, state = batches_of(2, steps=4)
    rest, _ = batches_of(4, state)
    assert first + rest == whole


def test_rows_are_a_random_access_source(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((30, 11), (25,)), ("wide",))
    with ParquetDataset(str(tmp_path)).rows(output_options=NUMPY) as rows:
        assert isinstance(rows, grain.sources.RandomAccessDataSource)
        assert rows[40]["id"] == 40
        assert rows[40]["wide"].shape == (80,)
        source = grain.MapDataset.source(rows).shuffle(seed=3).batch(6)
        assert sorted(np.concatenate([batch["id"] for batch in source])) == list(range(66))


def test_a_mixture_resumes_in_a_pipeline_with_prefetch(tmp_path: Path) -> None:
    for name, sizes in (("a", (30, 11)), ("b", (25,))):
        write_numbered(str(tmp_path / name), (sizes,))

    def mixture() -> MixedLoader:
        loaders = {name: BatchedDataLoader(str(tmp_path / name), 4, shuffle=True) for name in "ab"}
        return MixedLoader(loaders, {"a": 2, "b": 1}, stop="all_exhausted", named=True)

    def begin(loader: MixedLoader) -> Any:
        batches = loader.to_grain().map(lambda pair: [pair[0], pair[1]["id"].tolist()])
        return iter(grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=3))

    with mixture() as loader:
        whole = [[name, batch["id"].tolist()] for name, batch in loader]
        loader.set_epoch(0)
        batches = begin(loader)
        for number in range(7):
            assert next(batches) == whole[number]
        state = json.loads(json.dumps(batches.get_state()))
        batches.close()
    assert len(whole) == 18
    with mixture() as loader:
        batches = begin(loader)
        batches.set_state(state)
        assert [next(batches) for _ in range(11)] == whole[7:]
        batches.close()


def test_batches_of_a_mixture_are_arrays_whatever_its_loaders_deliver(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((10,),))
    with MixedLoader({"a": BatchedDataLoader(str(tmp_path), 4)}, {"a": 1}) as loader:
        assert all(isinstance(batch["id"], np.ndarray) for batch in loader.to_grain())
