"""Loaders under the real `torch.distributed`: steps, one snapshot, errors shared, a rank that dies."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from parquet_loader import BatchedDataLoader, Shard, ShardOptions
from tests.support.datasets import write_numbered
from tests.support.gloo import on_ranks, run_on_ranks

UNEVEN = ((30, 11), (25,), (), (1,))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("remainder", ["pad", pytest.param("drop", marks=pytest.mark.slow)])
def test_ddp_on_four_ranks_trains_three_epochs_of_uneven_files_in_step(tmp_path: Path, remainder: str) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, UNEVEN, ("double",))
    results = on_ranks(
        4,
        root,
        f"""
        options = ShardOptions({remainder!r})
        loader = BatchedDataLoader(root, 4, shuffle=True, filters=pc.field("id") != 13, shard_options=options)
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        epochs = []
        for epoch in range(3):
            batches = []
            for batch in loader:
                optimizer.zero_grad()
                model(batch["id"].float()[:, None] / 67).mean().backward()
                optimizer.step()
                batches.append(batch["id"].tolist())
            epochs.append(batches)
        loader.close()
        print(json.dumps([epochs, loader.state_dict(), [p.tolist() for p in model.parameters()]]))
        """,
        tmp_path,
    )
    assert all(state == results[0][1] for _, state, _ in results)
    assert all(weights == results[0][2] for _, _, weights in results)
    wanted = set(range(67)) - {13}
    for epoch in range(3):
        parts = [epochs[epoch] for epochs, _, _ in results]
        assert len({tuple(map(len, part)) for part in parts}) == 1
        seen = [row for part in parts for batch in part for row in batch]
        if remainder == "pad":
            assert set(seen) == wanted
            assert len(seen) - len(wanted) < 4
        else:
            assert len(set(seen)) == len(seen)
            assert set(seen) <= wanted
            assert len(wanted) - len(seen) < 16
    assert results[0][0][0] != results[0][0][1]


@pytest.mark.timeout(600)
def test_with_one_rank_killed_the_others_fail_in_their_collective_and_end(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, UNEVEN, ("double",))
    ended = run_on_ranks(
        4,
        root,
        """
        import signal
        loader = BatchedDataLoader(root, 4, shuffle=True)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        for step, batch in enumerate(loader):
            if step == 2 and rank == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            model(batch["id"].float()[:, None]).mean().backward()
        """,
        tmp_path,
    )
    assert ended[3].returncode == -signal.SIGKILL
    for one in ended[:3]:
        assert one.returncode == 1, one
        assert "RuntimeError" in one.stderr
        assert "gloo" in one.stderr
        assert "parquet_loader.errors" not in one.stderr


@pytest.mark.timeout(600)
def test_a_state_of_four_ranks_goes_on_on_one_two_and_eight(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, UNEVEN, ("double", "text"))
    results = on_ranks(
        4,
        root,
        """
        loader = BatchedDataLoader(root, 4, shuffle=True, window_rows=32, shard_options=ShardOptions(logical_shards=8))
        epochs, states = [], []
        for epoch in range(2):
            epochs.append([])
            for batch in loader:
                epochs[-1].append([batch["id"].tolist(), batch["text"].to_list()])
                states.append(loader.state_dict())
        loader.close()
        print(json.dumps([epochs, states]))
        """,
        tmp_path,
    )
    epochs, states = [result[0] for result in results], results[0][1]
    assert all(result[1] == states for result in results)
    length = len(epochs[0][0])

    def together(batches: list[Any]) -> list[tuple[int, str]]:
        return sorted(row for ids, texts in batches for row in zip(ids, texts, strict=True))

    for taken in (1, length - 1, length, length + 2):
        epoch, batch = divmod(taken, length)
        expected = [together(list(parts)) for parts in zip(*(one[epoch] for one in epochs), strict=True)][batch:]
        for ranks in (1, 2, 8):
            found: list[list[Any]] = []
            for rank in range(ranks):
                options = ShardOptions(logical_shards=8)
                with BatchedDataLoader(
                    root, 16 // ranks, shuffle=True, window_rows=32, shard=Shard(rank, ranks), shard_options=options
                ) as loader:
                    loader.load_state_dict(json.loads(json.dumps(states[taken - 1])))
                    found.append([[batch["id"].tolist(), batch["text"].to_list()] for batch in loader])
            assert [together(list(parts)) for parts in zip(*found, strict=True)] == expected


@pytest.mark.timeout(600)
def test_what_fails_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, ((30, 11), (25,)), ("double",))
    results = on_ranks(
        2,
        root,
        """
        said = []
        for arguments in (
            {"source": root if rank else root + "/nowhere", "batch_size": 4},
            {"source": root, "batch_size": 4 + rank},
            {"source": root, "batch_size": 4, "filters": pc.field("id") < 50 + rank},
            {"source": root, "batch_size": 4, "columns": ["id"] if rank else ["no such"]},
        ):
            try:
                BatchedDataLoader(**arguments)
            except ParquetLoaderError as error:
                said.append(f"{type(error).__name__}: {error}")
        print(json.dumps(said))
        """,
        tmp_path,
    )
    for rank, said in enumerate(results):
        assert len(said) == 4, said
        assert said[0].startswith("SourceError: rank 0: " if rank else "SourceError: ")
        assert "rank 0 and rank 1 differ in batch_size" in said[1]
        assert "rank 0 and rank 1 differ in filters" in said[2]
        assert said[3].startswith("SchemaError: rank 0: " if rank else "SchemaError: ")


@pytest.mark.timeout(600)
def test_ranks_that_divide_the_files_themselves_are_told_before_rows_are_lost(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, ((30,), (25,)), ("double",))
    results = on_ranks(
        2,
        root,
        """
        from pathlib import Path
        from parquet_loader import ParquetDataset, Shard
        files = sorted(map(str, Path(root).rglob("*.parquet")))
        assert len(files) == 2
        said = []
        for make in (lambda: BatchedDataLoader(files[rank::2], 4), lambda: ParquetDataset(files[rank])):
            try:
                make()
            except ParquetLoaderError as error:
                said.append(f"{type(error).__name__}: {error}")
        with BatchedDataLoader(files[:: -1 if rank else 1], 4) as loader:  # the order is that of rank 0
            said.append(sum(len(batch["id"]) for batch in loader))
        with BatchedDataLoader([Path(root)] if rank else root, 4) as loader:
            said.append(sum(len(batch["id"]) for batch in loader))
        with BatchedDataLoader(files[rank], 4, shard=Shard(0, 1)) as loader:
            said.append(sum(len(batch["id"]) for batch in loader))
        print(json.dumps(said))
        """,
        tmp_path,
    )
    for rank, said in enumerate(results):
        assert said[0] == said[1]
        assert said[0].startswith(
            "ConfigurationError: rank 0 and rank 1 were given different sources; pass the same files"
        )
        assert said[2:] == [28, 28, (30, 25)[rank]]


@pytest.mark.timeout(600)
def test_a_loader_made_before_the_process_group_does_not_read_all_rows_on_every_rank(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, ((30,),), ("double",))
    results = on_ranks(
        2,
        root,
        """
        from parquet_loader import Shard
        import pickle
        dist.destroy_process_group()
        early, chosen = BatchedDataLoader(root, 4), BatchedDataLoader(root, 4, shard=Shard(0, 1))
        copies = pickle.dumps([early, chosen])  # as for a process that is spawned for the rank
        assert next(iter(early))["id"].tolist() == [0, 1, 2, 3]
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
        said, rows = [], []
        for one, other in ((early, chosen), pickle.loads(copies)):
            try:
                next(iter(one))
            except ParquetLoaderError as error:
                said.append(f"{type(error).__name__}: {error}")
            rows.append(sum(len(batch["id"]) for batch in other))
        print(json.dumps([said, rows]))
        """,
        tmp_path,
    )
    for rank, (said, rows) in enumerate(results):
        assert len(said) == 2
        for one in said:
            assert one.startswith(f"LoaderStateError: this is rank {rank} of 2, but the loader was made before torch")
        assert rows == [30, 30]
