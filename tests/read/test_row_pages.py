"""Reading a row reads only its pages, and no layout of pages gives a wrong row."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import DataError, OutputOptions, ParquetDataset, RowReader
from tests.dataset.test_opening_reads_footers import LoggedFiles, read_of_columns
from tests.source.tables.made_tables import deleting, rows_of, table
from tests.support.page_rewriter import (
    INT32,
    INT64,
    LIST,
    STRUCT,
    V1,
    Page,
    Reader,
    encoded_struct,
    pages_of,
    varint,
)

NUMPY = OutputOptions(format="numpy")


def reader(source: Any, **options: Any) -> RowReader:
    return ParquetDataset(source, **options).rows(output_options=NUMPY)


def page_spans(path: Path) -> list[tuple[int, int]]:
    """Return the bytes of the pages of a file, dictionaries first in their chunk."""
    file, found = pages_of(path), []
    for chunk in file.chunks:
        at = min(chunk.metadata[n][1] for n in (9, 11) if n in chunk.metadata)
        data = path.read_bytes()
        for page in chunk.pages:
            end = data.index(page.body, at) + len(page.body)
            found.append((at, end))
            at = end
    return found


COLUMNS: dict[str, Any] = {
    "number": np.random.default_rng(0).integers(0, 2**60, 2_000),
    "word": [f"word {n % 50}" for n in range(2_000)],
    "text": [f"row {n}" for n in range(2_000)],
    "list": [[n] * (n % 5) for n in range(2_000)],
}


def spans_of_row(path: Path, row: int, group_rows: int) -> list[tuple[int, int]]:
    """Return the bytes of the pages that hold a row, of flat columns, and of their dictionaries."""
    data, found = path.read_bytes(), list[tuple[int, int]]()
    file = pages_of(path)
    columns = len(file.chunks) // len(file.footer[4][1][1])
    for chunk in file.chunks[row // group_rows * columns :][:columns]:
        at, before = min(chunk.metadata[n][1] for n in (9, 11) if n in chunk.metadata), 0
        for page in chunk.pages:
            end = data.index(page.body, at) + len(page.body)
            values = 0 if page.kind == 2 else page.described[1][1]
            if page.kind == 2 or before <= row % group_rows < before + values:
                found.append((at, end))
            at, before = end, before + values
    return found


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_row_takes_at_most_two_pages_of_a_column(tmp_path: Path, version: str, is_indexed: bool) -> None:
    path = tmp_path / "file.parquet"
    flat = {name: column for name, column in COLUMNS.items() if name != "list"}
    pq.write_table(pa.table(flat), path, row_group_size=700, data_page_version=version, write_batch_size=100,
                   data_page_size=1, write_page_index=is_indexed)  # fmt: skip
    rows = reader(path)
    rows.take([0, 700, 1400])  # the locations of pages are found
    for row in (150, 899, 1_777):
        whole, times = path.read_bytes(), os.stat(path)
        needed = spans_of_row(path, row, 700)
        assert len(needed) <= 2 * len(flat)
        only = bytearray(b"\xff" * len(whole))  # all other pages are gone
        for start, stop in needed:
            only[start:stop] = whole[start:stop]
        path.write_bytes(only)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        for _ in range(2):
            assert rows[row]["number"] == flat["number"][row]
            assert rows[row]["word"] == f"word {row % 50}"
            assert rows[row]["text"] == f"row {row}"
            path.write_bytes(b"\xff" * len(whole))  # the pages are kept
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        path.write_bytes(whole)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_row_of_a_store_takes_at_most_two_pages_of_a_column(tmp_path: Path, is_indexed: bool) -> None:
    path = tmp_path / "file.parquet"
    columns = COLUMNS | {"noise": [bytes(200)] * 2_000}
    pq.write_table(pa.table(columns), path, row_group_size=700, write_batch_size=100, data_page_size=1,
                   write_page_index=is_indexed, compression="none", use_dictionary=["word"])  # fmt: skip
    handler = LoggedFiles()
    rows = reader(str(path), filesystem=pafs.PyFileSystem(handler))
    assert rows[0]["text"] == "row 0"
    handler.reads.clear()
    assert rows[450]["text"] == "row 450"
    spans = page_spans(path)
    touched = [s for s in spans if any(s[0] < stop and start < s[1] for _, start, stop in read_of_columns(handler))]
    assert 0 < len(touched) <= 2 * len(columns)


def cut_anywhere(path: Path, lists: list[list[int]], cuts: list[int], length: int = -1) -> None:
    """Write lists of int32 in pages of version 1 that begin at these values, also within rows."""
    array = pa.array(lists, pa.list_(pa.int32(), length))
    pq.write_table(pa.table({"list": array}), path, compression="none", use_dictionary=False)
    file = pages_of(path)
    (chunk,) = file.chunks
    levels = [(int(n > 0), 3 if row else 1, value) for row in lists for n, value in enumerate(row or [0])]
    pages = []
    for first, last in zip([0, *cuts], [*cuts, len(levels)], strict=True):
        some = levels[first:last]
        repetitions = packed([r for r, _, _ in some], 1)
        definitions = packed([d for _, d, _ in some], 2)
        body = len(repetitions).to_bytes(4, "little") + repetitions + len(definitions).to_bytes(4, "little")
        body += definitions + b"".join(v.to_bytes(4, "little") for _, d, v in some if d == 3)
        header = {**chunk.pages[0].header, V1: (12, {**chunk.pages[0].described, 1: (INT32, len(some))})}
        header[V1][1].pop(5, None)  # statistics
        page = Page(header, b"")
        page.resize(body)
        pages.append(page)
    chunk.pages = pages
    file.write(path)


def packed(levels: list[int], width: int) -> bytes:
    """Return levels as one bit-packed run."""
    groups = (len(levels) + 7) // 8
    bits = np.zeros((groups * 8, width), np.uint8)
    for n, level in enumerate(levels):
        bits[n] = [level >> b & 1 for b in range(width)]
    return bytes(varint(groups << 1 | 1) + np.packbits(bits.reshape(-1), bitorder="little").tobytes())


@pytest.mark.parametrize("seed", range(8))
def test_pages_of_lists_may_begin_within_a_row(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lists = [[row * 100 + n for n in range(rng.choice([0, 1, 2, 3, 60]))] for row in range(40)]
    values = sum(max(1, len(row)) for row in lists)
    cuts = sorted(rng.choice(np.arange(1, values), 12, replace=False).tolist())
    cut_anywhere(tmp_path / "file.parquet", lists, cuts)
    assert pq.read_table(tmp_path / "file.parquet").column(0).to_pylist() == lists
    rows = reader(tmp_path)
    assert [rows[row]["list"].tolist() for row in (39, 0, 20)] == [lists[row] for row in (39, 0, 20)]
    indices = rng.integers(0, 40, 60)
    assert [row.tolist() for row in rows.take(indices)["list"].to_list()] == [lists[row] for row in indices]
    assert [rows[row]["list"].tolist() for row in range(40)] == lists


@pytest.mark.parametrize("seed", range(3))
def test_pages_of_fixed_size_lists_may_begin_within_a_row(tmp_path: Path, seed: int) -> None:
    """As pyarrow before 21 writes them: Arrow refuses a list that lacks values at the beginning of a page."""
    rng = np.random.default_rng(seed)
    lists = [[row * 100 + n for n in range(4)] for row in range(40)]
    cuts = sorted(rng.choice(np.arange(1, 160), 12, replace=False).tolist())
    cut_anywhere(tmp_path / "file.parquet", lists, cuts, length=4)
    assert pq.read_table(tmp_path / "file.parquet").column(0).to_pylist() == lists
    rows = reader(tmp_path)
    assert [rows[row]["list"].tolist() for row in (39, 0, 20)] == [lists[row] for row in (39, 0, 20)]
    indices = rng.integers(0, 40, 60)
    assert rows.take(indices)["list"].tolist() == [lists[row] for row in indices]


def test_deleted_rows_do_not_count(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64()), ("part", pa.string())])
    parts = [pa.table({"x": pa.array(np.arange(10) + 10 * n, pa.int32())}) for n in range(3)]
    files = list(zip(parts, [deleting(0, 3, 4, 9), deleting(*range(10)), None], strict=True))
    source = table(tmp_path, files, schema, constants={"part": ["a", "b", "c"]})
    expected = rows_of(source)
    rows = reader(source)
    assert len(rows) == len(expected) == 16
    for index in range(-16, 16):
        assert {name: getattr(v, "item", lambda v=v: v)() for name, v in rows[index].items()} == expected[index]
    some = ParquetDataset(source, filters=[("x", ">=", 5)]).rows(output_options=NUMPY)
    wanted = [row for row in expected if row["x"] >= 5]
    assert some.take(range(len(some)))["x"].tolist() == [row["x"] for row in wanted]
    numbered = some.take([-1, 0], output_options=OutputOptions(format="numpy", row_numbers="n"))["n"]
    assert [expected[n] for n in numbered] == [wanted[-1], wanted[0]]


@pytest.mark.parametrize("change", ["values", "rows"])
def test_pages_that_contradict_the_footer_are_never_delivered_as_other_rows(tmp_path: Path, change: str) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"n": np.arange(1_000)}), path, write_batch_size=100, data_page_size=1,
                   use_dictionary=False, compression="none")  # fmt: skip
    file = pages_of(path)
    (chunk,) = file.chunks
    if change == "values":  # the second page claims a value of the first one
        for page, by in zip(chunk.pages[:2], (-1, 1), strict=True):
            page.described[1] = (INT32, 100 + by)
    else:
        del chunk.pages[3]
    file.write(path)
    rows = reader(path)
    found = []
    for row in range(0, 1_000, 50):
        try:
            found.append((row, int(rows[row]["n"])))
        except DataError:
            continue
    assert all(row == value for row, value in found)


def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"n": np.arange(1_000), "m": np.arange(1_000)}), path, write_batch_size=100,
                   data_page_size=1, use_dictionary=False, compression="snappy", row_group_size=500)  # fmt: skip
    _, stop = page_spans(path)[12]
    data = bytearray(path.read_bytes())
    data[stop - 300 : stop] = b"\xff" * 300
    path.write_bytes(bytes(data))
    rows = reader(path)
    assert rows[0]["n"] == rows[0]["m"] == 0
    with pytest.raises(DataError, match=r"file.parquet, row group \d, column '[nm]'"):
        rows.take(range(1_000))


def index(path: Path, locations: Callable[[list[tuple[int, int]]], list[tuple[int, int, int]]]) -> None:
    """Add an offset index to a file of one column: offset, bytes and first row of pages, from offsets and ends."""
    found = locations(page_spans(path))
    data = path.read_bytes()
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = Reader(data, footer_at).struct()
    lines = [{1: (INT64, start), 2: (INT32, nbytes), 3: (INT64, row)} for start, nbytes, row in found]
    offsets = encoded_struct({1: (LIST, (STRUCT, lines))})
    chunk = footer[4][1][1][0][1][1][1][0]
    chunk |= {4: (INT64, footer_at), 5: (INT32, len(offsets))}
    rest = encoded_struct(footer)
    path.write_bytes(data[:footer_at] + offsets + rest + len(rest).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize("remote", [False, True])
def test_rows_that_two_indexed_pages_share_come_whole(tmp_path: Path, remote: bool) -> None:
    lists = [[row * 10 + n for n in range(row % 7 + 1)] for row in range(400)]
    starts = np.cumsum([0, *map(len, lists)])
    path = tmp_path / "file.parquet"
    cut_anywhere(path, lists, [int(starts[100]) + 2, int(starts[250]) + 3])
    rows_of_pages = [0, 101, 251]  # that begin in them, as writers count that divide rows
    index(path, lambda spans: [(s, e - s, row) for (s, e), row in zip(spans, rows_of_pages, strict=True)])
    assert pq.read_table(path).column(0).to_pylist() == lists
    options = {"filesystem": pafs.PyFileSystem(LoggedFiles())} if remote else {}
    for order in ([100, 250, 399], [399, 250, 100], [99, 101, 100], [251, 0, 250]):
        rows = reader(str(path), **options)
        assert [rows[row]["list"].tolist() for row in order] == [lists[row] for row in order]
        assert [row.tolist() for row in reader(str(path), **options).take(order)["list"].to_list()] == [
            lists[row] for row in order
        ]


@pytest.mark.parametrize("fault", ["left out", "joined"])
def test_pages_that_an_index_names_wrongly_are_never_taken_for_others(tmp_path: Path, fault: str) -> None:
    lists = [[row * 10 + n for n in range(row % 7 + 1)] for row in range(400)]
    starts = np.cumsum([0, *map(len, lists)])
    path = tmp_path / "file.parquet"
    cut_anywhere(path, lists, [int(starts[row]) for row in (100, 200, 300)])

    def locations(spans: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        found = [(start, stop - start, 100 * number) for number, (start, stop) in enumerate(spans)]
        return [found[0] if fault == "left out" else (spans[0][0], spans[1][1] - spans[0][0], 0), *found[2:]]

    index(path, locations)
    assert pq.read_table(path).column(0).to_pylist() == lists
    rows = reader(path)
    for row in (210, 10, 110, 150, 310):  # at the second one, the index is found to be wrong
        assert rows[row]["list"].tolist() == lists[row]
