"""The window that a memory limit allows follows from the bytes of the rows that are read, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, OutputOptions

LIMIT = 64 * 2**20


def loader_of(path: Path, columns: list[str] | None = None) -> BatchedDataLoader:
    return BatchedDataLoader(
        path, 64, columns=columns, shuffle=True, memory_limit=LIMIT, output_options=OutputOptions(format="numpy")
    )


def test_rows_of_text_take_their_offsets_however_small_the_file_is(tmp_path: Path) -> None:
    """A million equal words take a few hundred bytes in the file, and eight bytes each in a batch."""
    columns, rows = 20, 500_000
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"c{n}": pa.array([""] * rows) for n in range(columns)}), path, row_group_size=50_000)
    assert path.stat().st_size < rows
    with loader_of(path) as loader:
        # The delivered window, the next one's decoded rows, and its ordered rows.
        assert 3 * 8 * columns * loader.window_rows < 0.4 * LIMIT
        assert loader.window_rows > 10_000


def test_columns_that_are_not_read_do_not_make_windows_smaller(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wanted = pa.table({"wanted": rng.integers(0, 2**62, 200_000)})
    alone, among = tmp_path / "alone.parquet", tmp_path / "among.parquet"
    pq.write_table(wanted, alone)
    for n in range(40):
        wanted = wanted.append_column(f"other{n}", pa.array(rng.random(len(wanted))))
    pq.write_table(wanted, among)
    with loader_of(alone) as expected, loader_of(among, ["wanted"]) as found:
        assert found.window_rows == expected.window_rows
        assert found.plan().open_row_groups == expected.plan().open_row_groups
        assert len(found) == len(expected)
