"""The memory into which kernels decompress pages is reused and released."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions
from parquet_loader.common.native.bindings import IS_BUILT

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")

ROWS = 100_000


@pytest.fixture(scope="module")
def large_dictionaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two row groups of 16 columns with a dictionary of 800 KB each, all of which are in use at once."""
    folder = tmp_path_factory.mktemp("dictionaries")
    rng = np.random.default_rng(0)
    table = pa.table({f"c{i}": rng.integers(0, 2**60, ROWS) for i in range(16)})
    for number in range(2):
        pq.write_table(table, folder / f"{number}.parquet", compression="snappy")
    return folder


def _epoch(loader: BatchedDataLoader) -> int:
    return sum(len(batch["c0"]) for batch in loader)


def test_later_epochs_decompress_into_memory_that_is_there(large_dictionaries: Path) -> None:
    with BatchedDataLoader(
        large_dictionaries,
        5000,
        shuffle=True,
        window_rows=60_000,
        num_threads=1,
        output_options=OutputOptions(format="numpy"),
    ) as loader:
        for _ in range(3):
            assert _epoch(loader) == 2 * ROWS
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(3):
            assert _epoch(loader) == 2 * ROWS
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    nbytes = 3 * sum(path.stat().st_size for path in large_dictionaries.iterdir())
    assert faults < nbytes // resource.getpagesize() / 4


AFTER = """
import sys
from parquet_loader import BatchedDataLoader, OutputOptions

def anonymous():
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def read(columns):
    with BatchedDataLoader(
        sys.argv[1], 5000, columns=columns, shuffle=True, num_threads=1, output_options=OutputOptions(format="numpy")
    ) as loader:
        for batch in loader:
            pass

read(["c0"])
before = anonymous()
read(None)
print(anonymous() - before)
"""


@pytest.mark.slow
def test_a_loader_that_is_closed_leaves_a_bounded_part_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({f"c{i}": rng.integers(0, 2**60, ROWS) for i in range(130)})
    pq.write_table(table, tmp_path / "0.parquet", compression="snappy")  # 104 MB of dictionaries
    command = [sys.executable, "-c", AFTER, str(tmp_path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    assert int(found.stdout) < 96 * 2**20, found
