"""The requests for a row group cover everything that Arrow reads, and are few."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.source.byte_ranges import ByteRange, chunk_ranges, merge, row_group_ranges
from parquet_loader.source.metadata import Metadata


@dataclass(frozen=True)
class Case:
    name: str
    ranges: list[tuple[int, int]]
    gap: int
    request: int
    expected: list[tuple[int, int]]


CASES = [
    Case("nothing", [], 10, 100, []),
    Case("one", [(5, 9)], 10, 100, [(5, 9)]),
    Case("empty ones are left out", [(5, 5), (7, 9)], 10, 100, [(7, 9)]),
    Case("in the order of the file", [(50, 60), (0, 10)], 0, 100, [(0, 10), (50, 60)]),
    Case("neighbours", [(0, 10), (10, 20)], 0, 100, [(0, 20)]),
    Case("a gap as large as allowed", [(0, 10), (15, 20)], 5, 100, [(0, 20)]),
    Case("a gap too large", [(0, 10), (16, 20)], 5, 100, [(0, 10), (16, 20)]),
    Case("one within another", [(0, 50), (10, 20)], 0, 100, [(0, 50)]),
    Case("as large as a request", [(0, 100)], 0, 100, [(0, 100)]),
    Case("divided evenly", [(0, 101)], 0, 100, [(0, 50), (50, 101)]),
    Case("merged, then divided", [(0, 90), (95, 210)], 5, 100, [(0, 70), (70, 140), (140, 210)]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_ranges_are_merged_and_divided(case: Case) -> None:
    ranges = [ByteRange(*r) for r in case.ranges]
    assert merge(ranges, gap_bytes=case.gap, request_bytes=case.request) == tuple(case.expected)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=20), st.integers(0, 50), st.integers(1, 200)
)
def test_merged_ranges_hold_every_byte_once_and_none_is_too_large(
    pairs: list[tuple[int, int]], gap: int, request: int
) -> None:
    ranges = [ByteRange(start, start + size) for start, size in pairs]
    merged = merge(ranges, gap_bytes=gap, request_bytes=request)
    held = [byte for r in merged for byte in range(*r)]
    assert held == sorted(set(held))
    assert set(held) >= {byte for r in ranges for byte in range(*r)}
    assert all(0 < r.size <= request for r in merged)


def file_of(columns: int, rows: int, **options: object) -> tuple[bytes, Metadata]:
    rng = np.random.default_rng(0)
    data = {f"c{n}": rng.integers(0, 50 if n % 2 else 2**40, rows) for n in range(columns)}
    data["s"] = pa.StructArray.from_arrays([pa.array(rng.normal(size=rows)), pa.array(["x"] * rows)], ["a", "b"])
    sink = io.BytesIO()
    pq.write_table(pa.table(data), sink, row_group_size=1000, **options)
    return sink.getvalue(), parsed(sink.getvalue(), sink.tell())


def parsed(whole: bytes, file_bytes: int) -> Metadata:
    length = int.from_bytes(whole[-8:-4], "little")
    return Metadata(whole[-8 - length :], file_bytes)


@pytest.mark.parametrize("columns", [None, ["c1"], ["c0", "c5"], ["s"], ["s.b", "c2"]])
@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "compression": "none"}, {"write_page_index": True}])
def test_arrow_reads_a_row_group_from_its_ranges_alone(columns: list[str] | None, options: dict[str, object]) -> None:
    whole, footer = file_of(8, 3000, **options)
    for number in range(footer.num_row_groups):
        ranges = row_group_ranges(footer, number, columns, gap_bytes=0, request_bytes=len(whole))
        sparse = bytearray(b"\xff" * len(whole))
        for start, stop in ranges:
            sparse[start:stop] = whole[start:stop]
        found = pq.ParquetFile(pa.BufferReader(sparse), metadata=footer.arrow).read_row_group(number, columns=columns)
        expected = pq.ParquetFile(pa.BufferReader(whole)).read_row_group(number, columns=columns)
        assert found.equals(expected)


def test_all_columns_of_a_row_group_are_one_request() -> None:
    _, footer = file_of(40, 3000)
    ranges = row_group_ranges(footer, 1, None, gap_bytes=0, request_bytes=2**24)
    assert len(ranges) == 1


def test_a_footer_that_names_bytes_behind_the_end_is_refused() -> None:
    whole, _ = file_of(2, 3000)
    with pytest.raises(ValueError, match="column 'c0': the footer says that it is at bytes"):
        chunk_ranges(parsed(whole, len(whole) // 2), 2, None)
