"""The window that a memory limit allows depends only on the bytes of the rows that are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, MemoryLimitError, OutputOptions, SystemReadError
from parquet_loader.dataset import WindowNeeds, row_sizes
from tests.support.footers import column_chunk, put, rewrite_footer

LIMIT = 64 * 2**20


def loader_of(path: Path, columns: list[str] | None = None, memory_limit: int | str = LIMIT) -> BatchedDataLoader:
    options = OutputOptions(format="numpy")
    return BatchedDataLoader(path, 64, columns=columns, shuffle=True, memory_limit=memory_limit, output_options=options)


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


def text_of(lengths: npt.NDArray[np.int64]) -> pa.Table:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    letters = np.random.default_rng(0).integers(97, 123, int(offsets[-1])).astype(np.uint8)
    return pa.table({"x": pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(letters))})


def lists_of(lengths: npt.NDArray[np.int64]) -> pa.Table:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table({"x": pa.ListArray.from_arrays(offsets, np.arange(offsets[-1], dtype=np.int32))})


GROWING = np.sort((10 + 1000 * np.random.default_rng(0).random(60_000) ** 2).astype(np.int64))


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("table_of", "row_groups"),
    [
        pytest.param(text_of, [np.full(200_000, 10)] + 12 * [np.full(300, 7000)], id="most bytes in short text"),
        pytest.param(text_of, 10 * [np.full(10_000, 10)] + 3 * [np.full(5_000, 2000)], id="few groups of long text"),
        pytest.param(text_of, [GROWING], id="text sorted by length in one row group", marks=pytest.mark.slow),
        pytest.param(lists_of, [GROWING // 3], id="lists sorted by length in one row group"),
    ],
)
def test_rows_whose_length_differs_by_row_group_stay_within_the_limit(
    tmp_path: Path,
    table_of: Callable[[npt.NDArray[np.int64]], pa.Table],
    row_groups: list[npt.NDArray[np.int64]],
    *,
    shuffle: bool,
) -> None:
    tables = [table_of(lengths) for lengths in row_groups]
    with pq.ParquetWriter(tmp_path / "a.parquet", tables[0].schema, use_dictionary=False) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=len(table))
    options = OutputOptions(format="numpy")
    with BatchedDataLoader(
        tmp_path, 16, shuffle=shuffle, memory_limit="32MiB", num_threads=2, output_options=options
    ) as loader:
        assert sum(len(batch["x"]) for batch in loader) == sum(map(len, tables))
        stats = loader.stats()
        assert stats.peak_bytes <= stats.memory_limit_bytes


def test_long_words_of_a_dictionary_that_follow_short_ones_make_windows_smaller(tmp_path: Path) -> None:
    """The encoded bytes of these rows tell nothing; the footer also states their bytes without dictionary."""
    words = text_of(np.arange(10, 2010, 20))["x"]
    rows = pa.table({"x": words.take(np.repeat(np.arange(100), 1000))})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=len(rows))
    with loader_of(tmp_path) as loader:
        assert 3 * 1000 * loader.window_rows < 0.4 * LIMIT
        assert loader.window_rows > 1000


def test_long_words_of_other_row_groups_than_that_with_most_encoded_bytes_make_windows_smaller(tmp_path: Path) -> None:
    """Dictionaries hide that the words of eight row groups take most of the decoded bytes."""
    words = text_of(np.full(20, 3000))["x"]
    tables = [text_of(np.full(300_000, 10)), *8 * [pa.table({"x": words.take(np.arange(5_000) % 20)})]]
    with pq.ParquetWriter(tmp_path / "a.parquet", tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=len(table))
    footer = pq.read_metadata(tmp_path / "a.parquet")
    assert footer.row_group(0).total_byte_size > 10 * footer.row_group(1).total_byte_size
    with loader_of(tmp_path) as loader:
        assert 3 * 350 * loader.window_rows < 0.4 * LIMIT  # 350 bytes: the average row
        assert loader.window_rows > 1000


def test_large_dictionaries_count_for_each_open_row_group(tmp_path: Path) -> None:
    rows = 30_000
    words = text_of(np.full(100_000, 40))["x"].combine_chunks()
    codes = np.random.default_rng(0).integers(0, len(words), rows).astype(np.int32)
    table = pa.table({"x": pa.DictionaryArray.from_arrays(codes, words)})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for _ in range(4):
            writer.write_table(table)
    with loader_of(tmp_path, memory_limit="160MiB") as loader:
        assert sum(len(batch["x"]) for batch in loader) == 4 * rows
        assert loader._dataset.sizing.cursor_bytes > 16 * 10**6
    with pytest.raises(MemoryLimitError, match="use memory_limit="), loader_of(tmp_path, memory_limit="32MiB") as tight:
        tight.plan()


def test_nothing_is_read_if_a_page_alone_exceeds_the_limit(tmp_path: Path) -> None:
    """Arrow ends a page only after 1,024 rows, here of 1 MiB; reading one of them reads the whole page."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [b"a" * 2**20] * 40}), path, use_dictionary=False, compression="none")
    with path.open("r+b") as file:
        file.seek(4)
        file.write(bytes(64))  # no page can be read
    with pytest.raises(MemoryLimitError, match=r"use memory_limit=\d+MiB or more"):
        BatchedDataLoader(path, 1, memory_limit="16MiB")


def test_row_groups_with_large_pages_are_open_at_once_only_within_the_limit(tmp_path: Path) -> None:
    """DuckDB writes pages of up to 100 MiB: here, 20 MiB."""
    table = pa.table({"text": pa.array(["a" * 1000]).take(pa.array(np.zeros(40_000, np.int64)))})
    one, large = tmp_path / "usual.parquet", tmp_path / "large.parquet"
    options = {"row_group_size": 20_000, "use_dictionary": False, "compression": "none"}
    pq.write_table(table, one, **options)
    pq.write_table(table, large, data_page_size=10**8, **options)
    with loader_of(one, memory_limit="32MiB") as usual, loader_of(large, memory_limit="32MiB") as found:
        assert usual.plan().open_row_groups == 2
        assert found.plan().open_row_groups == 1
        assert sum(len(batch["text"]) for batch in found) == len(table)
    with loader_of(one, memory_limit="512MiB") as usual, loader_of(large, memory_limit="512MiB") as found:
        plan = usual.plan()
        assert found.plan().predicted_peak_bytes > plan.predicted_peak_bytes
        assert replace(found.plan(), predicted_peak_bytes=plan.predicted_peak_bytes) == plan
    with pytest.raises(MemoryLimitError, match="use memory_limit=") as refused, loader_of(large, None, 2**24) as tight:
        tight.plan()
    sufficient = str(refused.value).split("memory_limit=")[-1].split(" ")[0]
    with loader_of(large, memory_limit=sufficient) as loader:
        assert sum(len(batch["text"]) for batch in loader) == len(table)


def test_row_groups_with_large_pages_of_numbers_are_open_at_once_only_within_the_limit(tmp_path: Path) -> None:
    rows, width, limit = 20_000, 320, 128 * 2**20
    numbers = pa.array([bytes(width)], pa.binary(width)).take(pa.array(np.zeros(2 * rows, np.int64)))
    table = pa.table(dict.fromkeys("abcd", numbers))
    for name, page_bytes in (("usual", 2**20), ("large", 10**8)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path, rows, use_dictionary=False, compression="none", data_page_size=page_bytes)
    paths = [tmp_path / "usual.parquet", tmp_path / "large.parquet"]
    with loader_of(paths[0], memory_limit=limit) as usual, loader_of(paths[1], memory_limit=limit) as large:
        assert usual.plan().open_row_groups == large.plan().open_row_groups == 2
    with loader_of(paths[0], memory_limit=limit // 2) as usual, loader_of(paths[1], memory_limit=limit // 2) as large:
        assert usual.plan().open_row_groups == 2
        assert large.plan().open_row_groups == 1
        assert large._dataset.sizing.row.large_page_bytes == pytest.approx(4 * (width * rows - 2**20), rel=0.02)
        with pytest.raises(MemoryLimitError, match="use memory_limit="):
            large._dataset.with_window(usual.window_rows, 2, WindowNeeds(64, shuffle=True))
    named = set()
    for too_small in ("1MiB", "24MiB"):  # less than windows alone need, and less than they need with these pages
        with pytest.raises(MemoryLimitError, match="use memory_limit=") as refused:
            loader_of(paths[1], memory_limit=too_small)
        named.add(int(str(refused.value).split("memory_limit=")[-1].split("MiB")[0]))
    (sufficient,) = named
    assert sufficient < 48
    with loader_of(paths[1], memory_limit=f"{sufficient}MiB") as loader:
        assert sum(len(batch["a"]) for batch in loader) == len(table)


def test_as_many_row_groups_with_large_pages_are_open_at_once_as_fit(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["a" * 1000]).take(pa.array(np.zeros(40_000, np.int64)))})
    for name, page_bytes in (("usual", 2**20), ("large", 10**8)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path, 8000, use_dictionary=False, compression="none", data_page_size=page_bytes)
    with loader_of(tmp_path / "usual.parquet") as usual, loader_of(tmp_path / "large.parquet") as large:
        assert usual.plan().open_row_groups == 5
        assert large.plan().open_row_groups == 4
        assert large.window_rows == usual.window_rows
        large._dataset.with_window(large.window_rows, 4, WindowNeeds(64, shuffle=True))
        with pytest.raises(MemoryLimitError, match="use memory_limit="):
            large._dataset.with_window(large.window_rows, 5, WindowNeeds(64, shuffle=True))


def test_the_predicted_peak_holds_the_large_pages_of_the_only_open_row_group(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["a" * 1000]).take(pa.array(np.zeros(40_000, np.int64)))})
    options = {"use_dictionary": False, "compression": "none", "data_page_size": 10**8}
    pq.write_table(table, tmp_path / "a.parquet", 20_000, **options)
    with loader_of(tmp_path / "a.parquet") as loader:
        plan = loader.plan()
        assert plan.open_row_groups == 1
        assert plan.predicted_peak_bytes > 3 * 1000 * plan.window_rows + 1000 * 20_000


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_large_pages_of_long_rows_count_once(tmp_path: Path, compression: str) -> None:
    """Arrow ends a page only after 1,024 rows, here of 4 MiB, which each open row group counts without a header."""
    letters = text_of(np.full(8192, 4096))
    pq.write_table(letters, tmp_path / "a.parquet", 4096, use_dictionary=False, compression=compression)
    with loader_of(tmp_path / "a.parquet") as loader:
        row = loader._dataset.sizing.row
        assert row.cursor_bytes > 4 * 2**20
        assert row.large_page_bytes < 2**18


def test_a_page_header_that_the_system_cannot_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the rank that cannot read it would have another order."""
    pq.write_table(text_of(np.full(8192, 4096)), tmp_path / "a.parquet", 4096, use_dictionary=False)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(row_sizes, "_peek", refuse)
    with loader_of(tmp_path / "a.parquet") as loader, pytest.raises(SystemReadError, match=r"a\.parquet, row group 0"):
        loader.plan()


@pytest.mark.parametrize("offset", [-1, 2**40])
def test_a_damaged_offset_of_the_largest_row_group_is_skipped_as_other_damage(tmp_path: Path, offset: int) -> None:
    """It has most rows, but not most bytes, so that the sample comes from another row group."""
    path = tmp_path / "a.parquet"
    texts = pa.array(["a" * 1000] * 4000 + ["a" * 5000] * 1000)
    with pq.ParquetWriter(path, pa.schema({"text": texts.type}), use_dictionary=False, compression="none") as writer:
        for first, rows in ((0, 4000), (4000, 1000), (4000, 1000)):
            writer.write_table(pa.table({"text": texts.slice(first, rows)}))
    rewrite_footer(str(path), lambda footer: put(column_chunk(footer, 0, 0), 9, offset))
    with BatchedDataLoader(path, 64, on_error="skip") as loader:
        assert sum(len(batch["text"]) for batch in loader) == 2000
        assert len(loader.stats().skipped_row_groups) == 1


def test_open_row_groups_of_text_count_all_pages_that_they_hold(tmp_path: Path) -> None:
    """Arrow ends a page at the first multiple of 1,024 rows that has 1 MiB: here, 2,048 rows of 1,004 bytes."""
    table = pa.table({"text": pa.array(["a" * 1000]).take(pa.array(np.zeros(40_000, np.int64)))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000, use_dictionary=False)
    with loader_of(tmp_path / "a.parquet") as loader:
        plan = loader.plan()
        assert plan.open_row_groups > 1
        windows = 3 * 1000 * plan.window_rows
        # The compressed page, the current one, and that from which rows are being copied.
        assert plan.predicted_peak_bytes > windows + plan.open_row_groups * 3 * 2048 * 1004
