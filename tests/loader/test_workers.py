"""`ParquetIterable` in torch's `DataLoader` and torchdata's `StatefulDataLoader`: worker processes of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from parquet_loader import BatchedDataLoader, MixedLoader, ParquetIterable, ResumeError, Shard, UnsupportedError
from tests.support.datasets import write_numbered

# torchdata 0.11 calls what torch 2.13 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

ROWS = 67
BATCH = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("data"))
    write_numbered(folder, ((30, 11), (25,), (), (1,)), ("double",))
    return folder


def new_loader(root: str, **options: Any) -> BatchedDataLoader:
    return BatchedDataLoader(root, BATCH, shuffle=True, seed=3, window_rows=16, num_threads=1, **options)


def in_turn(root: str, epoch: int, workers: int, **options: Any) -> list[list[int]]:
    """The batches that so many workers deliver in turn, by as many loaders in this process."""
    parts: list[list[list[int]]] = []
    for worker in range(workers):
        with new_loader(root, **options) as loader:
            parts.append([batch["id"].tolist() for batch in loader._begin_part(epoch, 0, worker, workers)])
    return [batch for turn in zip_longest(*parts) for batch in turn if batch is not None]


@pytest.mark.parametrize(
    ("method", "isolation"),
    [
        ("fork", "thread"),
        ("fork", "process"),
        pytest.param("spawn", "thread", marks=pytest.mark.slow),
        ("forkserver", "thread"),
    ],
)
def test_workers_started_in_any_way_read_each_row_once_an_epoch(root: str, method: str, isolation: Any) -> None:
    with new_loader(root, isolation=isolation) as loader:
        dataset = ParquetIterable(loader)
        dataset.set_epoch(5)
        keeps = method != "fork"  # worker processes that live for one pass, and such that live for all
        workers: Any = DataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context=method, persistent_workers=keeps
        )
        epochs = [[batch["id"].tolist() for batch in workers] for _ in range(2)]
        del workers
        for number, batches in enumerate(epochs):
            assert batches == in_turn(root, 5 + number, 2)
            assert len(batches) == len(dataset) == len(loader)
            assert sorted(row for batch in batches for row in batch) == list(range(ROWS))
        assert epochs[0] != epochs[1]


def test_workers_of_a_rank_read_what_the_rank_reads(root: str) -> None:
    seen: list[int] = []
    for rank in range(2):
        with new_loader(root, shard=Shard(rank, 2)) as loader:
            dataset = ParquetIterable(loader)
            batches = [batch["id"].tolist() for batch in DataLoader(dataset, batch_size=None, num_workers=2)]
            assert len(batches) == len(loader) == 9
            assert batches == in_turn(root, 0, 2, shard=Shard(rank, 2))
            seen += [row for batch in batches for row in batch]
    assert set(seen) == set(range(ROWS))
    assert len(seen) == ROWS + 1  # padded by one row, as without workers


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataloader_that_was_left_begins_the_next_epoch(root: str, num_workers: int) -> None:
    with new_loader(root) as loader:
        workers: Any = DataLoader(
            ParquetIterable(loader), batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0
        )
        iterator = iter(workers)
        next(iterator)
        held = iterator  # as a trainer may
        expected = in_turn(root, 1, max(1, num_workers))
        assert [batch["id"].tolist() for batch in workers] == expected
        del iterator, held, workers


def new_mixture(root: str) -> MixedLoader:
    return MixedLoader({"a": new_loader(root), "b": new_loader(root)}, {"a": 2, "b": 1})


def test_a_dataloader_delivers_a_mixture_in_its_own_process_only(root: str) -> None:
    with new_mixture(root) as mixed, new_mixture(root) as alone:
        dataset = ParquetIterable(mixed)
        own: Any = DataLoader(dataset, batch_size=None)
        for _ in range(2):
            assert [batch["id"].tolist() for batch in own] == [batch["id"].tolist() for batch in alone]
        assert len(own) == len(alone)
        workers: Any = DataLoader(dataset, batch_size=None, num_workers=2)
        with pytest.raises(UnsupportedError, match="worker processes cannot divide a MixedLoader; use num_workers=0"):
            next(iter(workers))


# ---- torchdata ----------------------------------------------------------------------------------------------------


@pytest.fixture
def stateful() -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed").StatefulDataLoader


def ids(batches: Any) -> Iterator[list[int]]:
    return (batch["id"].tolist() for batch in batches)


@pytest.mark.parametrize(
    ("isolation", "every"),
    [("thread", 3), *(pytest.param(isolation, 1, marks=pytest.mark.slow) for isolation in ("thread", "process"))],
)
def test_a_stateful_dataloader_goes_on_at_every_batch(root: str, stateful: Any, isolation: Any, every: int) -> None:
    with new_loader(root) as loader:
        epochs = [list(ids(loader)) for _ in range(4)]
    with new_loader(root, isolation=isolation) as loader:
        trainer = stateful(ParquetIterable(loader), batch_size=None)
        states = []
        for _ in range(2):
            states += [json.dumps(trainer.state_dict()) for _ in trainer]
    length = len(epochs[0])
    with new_loader(root) as loader:
        for taken, state in list(enumerate(states, 1))[::every]:
            resumed = stateful(ParquetIterable(loader), batch_size=None)
            resumed.load_state_dict(json.loads(state))
            epoch, batch = divmod(taken, length)
            assert list(ids(resumed)) == epochs[epoch][batch:]
            if taken % 10 == 0:
                assert list(ids(resumed)) == epochs[epoch + 1]


def test_a_stateful_dataloader_may_be_left_and_begun_again(root: str, stateful: Any) -> None:
    with new_loader(root) as loader:
        epochs = [list(ids(loader)) for _ in range(4)]
    with new_loader(root) as loader:
        trainer = stateful(ParquetIterable(loader), batch_size=None)
        before = trainer.state_dict()
        for number, batch in enumerate(ids(trainer)):
            assert batch == epochs[0][number]
            if number == 2:
                break
        assert list(ids(trainer)) == epochs[1]
        behind = trainer.state_dict()
        assert list(ids(trainer)) == epochs[2]
    for state, expected in ((before, epochs[0]), (behind, epochs[2])):
        with new_loader(root) as loader:
            resumed = stateful(ParquetIterable(loader), batch_size=None)
            resumed.load_state_dict(state)
            assert list(ids(resumed)) == expected


@pytest.mark.parametrize(
    "keeps", [pytest.param(False, marks=pytest.mark.slow), True], ids=["workers for one pass", "workers kept"]
)
def test_a_stateful_dataloader_with_workers_goes_on_in_mid_epoch(root: str, stateful: Any, keeps: bool) -> None:
    expected = [in_turn(root, epoch, 2) for epoch in range(3)]

    def new_trainer(loader: BatchedDataLoader) -> Any:
        return stateful(ParquetIterable(loader), batch_size=None, num_workers=2, persistent_workers=keeps)

    with new_loader(root) as loader:
        trainer = new_trainer(loader)
        assert list(ids(trainer)) == expected[0]
        states = []
        for number, batch in enumerate(ids(trainer)):
            assert batch == expected[1][number]
            states.append(json.dumps(trainer.state_dict()))
        del trainer
    assert len(states) == len(expected[1])
    for taken in (1, 2, 8, len(states)):
        with new_loader(root) as loader:
            resumed = new_trainer(loader)
            resumed.load_state_dict(json.loads(states[taken - 1]))
            assert list(ids(resumed)) == expected[1][taken:]
            assert list(ids(resumed)) == expected[2]
            del resumed


def test_a_state_of_other_workers_is_refused(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(worker: int, workers: int) -> None:
        info = SimpleNamespace(id=worker, num_workers=workers)
        monkeypatch.setattr("torch.utils.data._utils.worker._worker_info", info)

    with new_loader(root) as loader:
        dataset = ParquetIterable(loader)
        in_worker(1, 3)
        next(iter(dataset))
        state = dataset.state_dict()
        loader.reset()
        dataset.load_state_dict(state)
        in_worker(1, 2)
        with pytest.raises(ResumeError, match="the state is that of worker 1 of 3, this is worker 1 of 2; resume with"):
            dataset.load_state_dict(state)


def test_a_stateful_dataloader_goes_on_in_a_mixture(root: str, stateful: Any) -> None:
    with new_mixture(root) as mixed:
        trainer = stateful(ParquetIterable(mixed), batch_size=None)
        whole, states = [], []
        for batch in trainer:
            whole.append(batch["id"].tolist())
            states.append(json.dumps(trainer.state_dict()))
    with new_mixture(root) as mixed:
        resumed = stateful(ParquetIterable(mixed), batch_size=None)
        resumed.load_state_dict(json.loads(states[4]))
        assert list(ids(resumed)) == whole[5:]
