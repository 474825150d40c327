"""Ranks that read one data set in a store: one of them lists it, and each fetches its own row groups."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.archive import ACCESS_KEY, SECRET_KEY, Server, find_rclone
from tests.support.far import far
from tests.support.gloo import run_on_ranks

FILES, ROWS, GROUP = 6, 400, 100


def _has_rclone() -> bool:
    try:
        find_rclone()
    except RuntimeError:
        return False
    return True


@pytest.mark.skipif(
    not _has_rclone() or importlib.util.find_spec("obstore") is None, reason="rclone or obstore is not installed"
)
@pytest.mark.timeout(300)
def test_one_rank_lists_and_each_reads_its_part(tmp_path: Path) -> None:
    folder = tmp_path / "s3" / "bucket" / "rows"
    folder.mkdir(parents=True)
    for number in range(FILES):
        table = pa.table({"id": np.arange(ROWS) + number * ROWS, "x": np.zeros(ROWS, np.float32)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=GROUP)
    script = f"""
    import pyarrow.fs as pafs
    home = pafs.S3FileSystem(
        endpoint_override=root, scheme="http", region="other", access_key="{ACCESS_KEY}", secret_key="{SECRET_KEY}"
    )
    with BatchedDataLoader("bucket/rows", 50, shuffle=True, filesystem=home) as loader:
        for _ in range(2):
            ids = [int(i) for batch in loader for i in batch["id"]]
        print(json.dumps([ids, loader.stats().remote.row_groups]))
    """
    with Server(tmp_path / "s3") as server, far(server.endpoint) as proxy:
        ended = run_on_ranks(2, proxy.endpoint, script, tmp_path)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    (ones, groups), (others, more_groups) = (json.loads(rank.stdout.splitlines()[-1]) for rank in ended)
    assert sorted(ones + others) == list(range(FILES * ROWS))
    assert groups + more_groups == FILES * ROWS // GROUP
    kinds = Counter(method for method, _ in proxy.log.requests)
    assert set(kinds) == {"GET"}
    assert kinds["GET"] - len(proxy.log.ranges) == 1, "the store was listed once"
    row_groups = 2 * FILES * ROWS // GROUP
    footers = len(proxy.log.ranges) - row_groups
    assert FILES <= footers <= 2 * FILES, "footers are read by the one that lists, and once by each that needs them"
