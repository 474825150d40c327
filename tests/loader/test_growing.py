"""The demo of a growing store, small: a real S3 server, sampling processes, and training that learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from demo.archive import BUCKET, RECORD_BYTES, SAMPLES, Archive, Server, draw, find_rclone, make_archive
from demo.growing import Epoch, Run, growing, plot
from parquet_loader import SampleStore


@pytest.fixture
def rclone() -> None:
    try:
        find_rclone()
    except RuntimeError as error:
        pytest.skip(f"no S3 server: {error}")


def test_records_drawn_from_the_server_are_the_archives(tmp_path: Path, rclone: None) -> None:
    make_archive(tmp_path, objects=2, records=16)
    with Server(tmp_path) as server:
        batches = list(draw(0, Archive(server.endpoint, 2, 16), batches=2))
        others = list(draw(1, Archive(server.endpoint, 2, 16), batches=1))
    objects = [np.fromfile(tmp_path / BUCKET / f"run-000{n}.f32", np.float32).reshape(16, -1) for n in range(2)]
    for batch in batches:
        assert batch["wave"].shape == (64, SAMPLES)
        for row, place in enumerate(zip(batch["object"], batch["record"], strict=True)):
            assert objects[place[0]][place[1], 0] == batch["frequency"][row]
            assert (objects[place[0]][place[1], 1:] == batch["wave"][row]).all()
    assert (batches[0]["record"] != others[0]["record"]).any()


@pytest.mark.slow  # docs/tutorials/growing_store.md, which test_docs.py runs, trains on a growing store
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.timeout(300)
def test_training_on_a_growing_store_learns_within_the_limit(tmp_path: Path, rclone: None, processes: int) -> None:
    limit = 400 * RECORD_BYTES
    run = growing(str(tmp_path), limit, epochs=3, processes=processes, objects=processes)
    assert run.epochs[0].new_rows == run.epochs[0].rows
    assert all(0 < e.rows <= 400 for e in run.epochs)
    assert run.epochs[-1].loss < run.epochs[0].loss
    assert max(size for _, size in run.size) <= limit
    assert SampleStore(tmp_path / "store").status().evicted_bytes > 0
    assert run.drawn_rows >= 600 - 64
    assert len(pq.read_table(tmp_path / "store")) <= 400
    assert not list((tmp_path / "store" / ".store" / "unfinished").iterdir())


def test_a_run_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    epochs = [Epoch(n, n + 0.5, 100 * n, 100, 0, 1 / n, 0.1, 0.1) for n in range(1, 4)]
    plot(Run(1000, [(0.0, 0), (3.0, 900)], epochs, 300, 4.0), str(tmp_path / "run.png"))
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
