"""All ranks of a process group read the same files of a growing store, in equal steps; with two real gloo processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parquet_loader import BatchedDataLoader, SampleStore, Shard, UnsupportedError
from tests.store.samples import ONE, SCHEMA, numbers, rows
from tests.support.gloo import on_ranks


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    store = SampleStore(tmp_path / "store", schema=SCHEMA, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 500))
    return store


@pytest.mark.timeout(600)
def test_ranks_read_one_snapshot_each_epoch_and_resume_in_it(store: SampleStore, tmp_path: Path) -> None:
    results: list[Any] = on_ranks(
        2,
        store.path,
        """
        from parquet_loader import SampleStore
        from tests.store.samples import rows
        store = SampleStore(root)
        loader = BatchedDataLoader(store, 16, shuffle=True, window_rows=64, filters=pc.field("i") != 13)
        epochs, states, lengths = [], [], []
        for epoch in range(4):
            ids = []
            for number, batch in enumerate(loader):
                ids += batch["i"].tolist()
                if number == 2:
                    states.append(loader.state_dict())
                    if rank == 1:
                        store.hold(states[-1]) if epoch < 2 else store.evict(to_bytes=1)
                        with store.writer() as writer:
                            writer.write(rows(1000 * (epoch + 1), 150))
            epochs.append(ids)
            lengths.append(len(loader))
            assert loader.stats().growth.new_rows > 0, loader.stats().growth
            dist.barrier()  # or rank 0 looks before rank 1 has written
        store.recover()
        times = sorted({file.times_sampled for file in store.files() if file.sequence <= 10})
        dist.barrier()
        loader.load_state_dict(states[1])
        resumed = [i for batch in loader for i in batch["i"].tolist()]
        loader.close()
        dist.barrier()
        print(json.dumps([epochs, states, lengths, resumed, times]))
        """,
        tmp_path,
    )
    (_, states, lengths, resumed, times), other = results
    assert states == other[1]
    assert lengths == other[2]
    expected = set(range(500)) - {13}
    for epoch in range(4):
        parts = [result[0][epoch] for result in results]
        assert len(parts[0]) == len(parts[1])  # equal steps, the odd row comes twice
        together = set(parts[0]) | set(parts[1])
        assert together == expected if epoch < 3 else together <= expected
        assert len(parts[0]) == -(-len(together) // 2)
        expected |= set(range(1000 * (epoch + 1), 1000 * (epoch + 1) + 150))
    for result in results:
        assert result[3] == result[0][1][48:]
    assert times == [4]  # whichever rank counted it, once in each epoch
    assert max(numbers(store.path)) == 4149
    assert resumed != other[3]


@pytest.mark.timeout(600)
def test_what_fails_on_one_rank_at_an_epochs_start_is_raised_on_all(store: SampleStore, tmp_path: Path) -> None:
    results = on_ranks(
        2,
        store.path,
        """
        from parquet_loader import SampleStore
        store = SampleStore(root)
        loader = BatchedDataLoader(store, 16, shuffle=True)
        list(loader)
        said = []

        def attempt(work):
            try:
                work()
            except ParquetLoaderError as error:
                said.append(f"{type(error).__name__}: {error}")
            dist.barrier()

        loader.set_epoch(5 + rank)
        attempt(lambda: iter(loader))
        loader.set_epoch(7)
        iterator = iter(loader)
        next(iterator)
        other = iter(loader)
        attempt(lambda: next(iterator))
        del iterator, other
        next(iter(loader))
        state = loader.state_dict()
        loader.reset()
        attempt(lambda: loader.load_state_dict({**state, "batch_size": 3} if rank else state))
        if not rank:
            store.evict(to_bytes=1)
        dist.barrier()
        attempt(lambda: iter(loader))
        attempt(lambda: BatchedDataLoader(store, 16))
        print(json.dumps([said, store.status().readers]))
        """,
        tmp_path,
    )
    for rank, (said, readers) in enumerate(results):
        assert len(said) == 5, said
        assert "rank 0 and rank 1 differ in epoch" in said[0]
        assert "iter(loader) was called again" in said[1]
        assert ("rank 1: " in said[2]) == (rank == 0)
        assert "batch size: 3 in the state, 16 here" in said[2]
        assert all("holds no samples yet" in text and ("rank 0: " in text) == bool(rank) for text in said[3:])
        assert readers == 0


def test_a_shard_without_a_process_group_gets_a_way_out(store: SampleStore) -> None:
    with pytest.raises(UnsupportedError, match=r"store\.snapshot\(\) as files"):
        BatchedDataLoader(store, 16, shard=Shard(0, 2))
    seen: list[int] = []
    with store.snapshot() as files:
        paths = [file.path for file in files]
        store.evict(to_bytes=1)
        for rank in range(2):
            with BatchedDataLoader(paths, 16, shuffle=True, shard=Shard(rank, 2)) as loader:
                assert len(loader) == 16
                seen += [i for batch in loader for i in batch["i"].tolist()]
    assert sorted(seen) == list(range(500))
