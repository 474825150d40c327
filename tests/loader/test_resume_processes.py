"""Stopping and going on, at every batch of an epoch and at random points of three, in new processes too.

Every day: a fresh loader at every batch, and a new process at the first, a middle and the last one. `make test-all`: a
new process at every batch, in both isolation modes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, Literal

import pytest

from parquet_loader import BatchedDataLoader
from tests.support import oracle
from tests.support.datasets import Layout, write_layout
from tests.support.processes import forkserver

KINDS = ("float_null", "int8", "text", "wide", "ragged")
Isolation = Literal["thread", "process"]
ISOLATIONS: list[Isolation] = ["thread", "process"]
each_isolation = pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
Exact = dict[str, oracle.Column]


def new_loader(root: str, isolation: Isolation, num_threads: int) -> BatchedDataLoader:
    return BatchedDataLoader(
        root, 8, shuffle=True, seed=9, window_rows=24, isolation=isolation, num_threads=num_threads
    )


def exact(batch: dict[str, Any]) -> Exact:
    return {name: oracle.column_of(value) for name, value in batch.items()}


def deliver(loader: BatchedDataLoader) -> Iterator[Exact]:
    """Batches, epoch after epoch."""
    while True:
        for batch in loader:
            yield exact(batch)


def go_on(root: str, isolation: Isolation, state: str | None, count: int, num_threads: int, send: Connection) -> None:
    """What a new process does: so many batches from a state on, and the state behind them."""
    with new_loader(root, isolation, num_threads) as loader:
        if state is not None:
            loader.load_state_dict(json.loads(state))
        delivering = deliver(loader)
        batches = [next(delivering) for _ in range(count)]
        taken = json.dumps(loader.state_dict())
        delivering.close()  # type: ignore[attr-defined]
    send.send((batches, taken))
    send.close()


def in_new_process(root: str, isolation: Isolation, state: str | None, count: int, num_threads: int) -> Any:
    """Do that in a process that has imported the library and torch, and done nothing yet."""
    context = forkserver()
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=go_on, args=(root, isolation, state, count, num_threads, send))
    process.start()
    send.close()
    try:
        return receive.recv()
    finally:
        process.join()
        assert process.exitcode == 0


@pytest.fixture(scope="module", params=["small row groups", "row groups larger than windows"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("data"))
    shapes = {"small row groups": ((20, 7), (10, 1), (), (3, 0, 16))}
    write_layout(Layout(shapes.get(request.param, ((75,),)), KINDS, seed=4), folder)
    return folder


def run_and_states(root: str, isolation: Isolation) -> tuple[list[Exact], list[str]]:
    """Two epochs without interruption, and the states of the first: at its start, and behind each batch."""
    with new_loader(root, "thread", 2) as loader:
        uninterrupted = [exact(batch) for _ in range(2) for batch in loader]
        length = len(loader)
    with new_loader(root, isolation, 2) as loader:
        states = [json.dumps(loader.state_dict())]
        for batch, expected in zip(loader, uninterrupted, strict=False):
            assert exact(batch) == expected
            states.append(json.dumps(loader.state_dict()))
    assert len(states) == length + 1
    return uninterrupted, states


def test_a_fresh_loader_goes_on_at_every_batch_of_an_epoch(root: str) -> None:
    uninterrupted, states = run_and_states(root, "thread")
    length = len(states) - 1
    for taken, state in enumerate(states):
        with new_loader(root, "thread", 1 + taken % 2) as loader:
            loader.load_state_dict(json.loads(state))
            delivering = deliver(loader)
            for expected in uninterrupted[taken : length + 1]:
                assert next(delivering) == expected
            delivering.close()  # type: ignore[attr-defined]


@pytest.mark.timeout(600)
@each_isolation
@pytest.mark.parametrize("at", ["three batches", pytest.param("every batch", marks=pytest.mark.slow)])
def test_a_new_process_goes_on_at_any_batch_of_an_epoch(root: str, isolation: Isolation, at: str) -> None:
    uninterrupted, states = run_and_states(root, isolation)
    length = len(states) - 1
    for taken in range(length + 1) if at == "every batch" else (1, length // 2 + 1, length):
        state = states[taken]
        other = ISOLATIONS[(ISOLATIONS.index(isolation) + taken // 5) % 2]  # a state does not know of isolation
        batches, behind = in_new_process(root, other, state, length - taken or length, 1 + taken % 2)
        assert batches == uninterrupted[taken : length if taken < length else 2 * length]
        assert json.loads(behind)["epoch"] == (1 if taken < length else 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@each_isolation
def test_stopping_at_random_points_of_three_epochs_changes_nothing(root: str, isolation: Isolation) -> None:
    with new_loader(root, "thread", 2) as loader:
        uninterrupted = [exact(batch) for _ in range(3) for batch in loader]
    draw = random.Random(f"{root.rpartition('/')[2]} {isolation}")
    points = sorted(draw.sample(range(1, len(uninterrupted)), 6))
    joined: list[Exact] = []
    state: str | None = None
    for number, count in enumerate(b - a for a, b in zip([0, *points], [*points, len(uninterrupted)], strict=True)):
        batches, state = in_new_process(root, isolation, state, count, 1 + number % 3)
        joined += batches
    assert joined == uninterrupted
