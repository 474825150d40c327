"""Byte ranges of values are correct for files of any layout, or an error is raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parquet_loader import DataError
from parquet_loader.decode import ValueRange, packed_ranges
from parquet_loader.read.value_ranges import ValueRanges
from parquet_loader.source import ReadableChunk, open_snapshot

VALUES = st.lists(st.binary(max_size=40) | st.binary(min_size=5000, max_size=5001), min_size=1, max_size=30)


def values_of(path: Path, column: str = "v") -> list[bytes]:
    """Return the values of a column, read from the file at their byte ranges."""
    snapshot = open_snapshot(str(path))
    ranges = ValueRanges(snapshot, [{"found": column}] * len(snapshot.schemas))
    data, values = path.read_bytes(), []
    for number in range(snapshot.row_groups):
        row_group = snapshot.row_group(number)
        for packed in ranges.of(row_group)["found"].to_pylist():
            at = ValueRange.unpacked(packed)
            assert at.path == row_group.file.path
            assert at.file_bytes == len(data)
            values.append(data[at.offset : at.offset + at.size])
    return values


def write(path: Path, values: list[Any], *, nullable: bool = True, **options: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.binary(), nullable)])
    table = pa.table([pa.array(range(len(values))), pa.array(values, pa.binary())], schema=schema)
    plain = {"compression": "NONE", "use_dictionary": False}
    pq.write_table(table, path, **(plain | options))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=VALUES,
    nullable=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([1, 100, 2**20]),
    rows=st.sampled_from([1, 7, 1000]),
)
def test_ranges_hold_the_values(
    tmp_path: Path, values: list[bytes], nullable: bool, version: str, page: int, rows: int
) -> None:
    write(
        tmp_path / "a.parquet", values, nullable=nullable, data_page_version=version, data_page_size=page,
        write_batch_size=3, row_group_size=rows,
    )  # fmt: skip
    assert values_of(tmp_path / "a.parquet") == values


def test_members_of_structs_have_ranges(tmp_path: Path) -> None:
    rows = [{"bytes": b"one" * n, "path": f"{n}.mp4"} for n in range(9)]
    table = pa.table({"v": pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))})
    pq.write_table(table, tmp_path / "a.parquet", compression="NONE", use_dictionary=False)
    assert values_of(tmp_path / "a.parquet", "v.bytes") == [row["bytes"] for row in rows]


@pytest.mark.parametrize("with_statistics", [True, False])
@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        ([b"a" * 100] * 9, {"compression": "snappy"}, "it is compressed with snappy"),
        ([b"a" * 100] * 9, {"use_dictionary": True}, "its pages are not all plain"),
        ([b"a", b"bcdef"], {"column_encoding": {"v": "DELTA_LENGTH_BYTE_ARRAY"}}, "its pages are not all plain"),
        ([b"a", None, b"b"], {}, "null"),
        ([None, b"a", b"b"], {"data_page_version": "2.0"}, "null"),
        ([b"a", b"b", None], {"data_page_size": 1, "write_batch_size": 1}, "null"),
        ([None, None], {}, "null"),
    ],
)
def test_columns_without_ranges_are_refused_by_name(
    tmp_path: Path, values: list[Any], options: dict[str, Any], reason: str, with_statistics: bool
) -> None:
    write(tmp_path / "a.parquet", values, write_statistics=with_statistics, **options)
    with pytest.raises(DataError, match=rf"a.parquet, row group 0, column 'v': ranges=True .*{reason}"):
        values_of(tmp_path / "a.parquet")


def test_a_list_is_refused(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([[b"a"], [b"b"]])})
    pq.write_table(table, tmp_path / "a.parquet", compression="NONE", use_dictionary=False)
    with pytest.raises(DataError, match="not a column of byte arrays"):
        values_of(tmp_path / "a.parquet", "v")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=3),
    version=st.sampled_from(["1.0", "2.0"]),
)
def test_damaged_pages_give_ranges_inside_of_the_column_or_an_error(
    tmp_path: Path, changes: list[tuple[int, int]], version: str
) -> None:
    path = tmp_path / "a.parquet"
    write(path, [bytes([n]) * n for n in range(20)], data_page_size=64, write_batch_size=2, data_page_version=version)
    snapshot = open_snapshot(str(path))
    chunk = pq.read_metadata(path).row_group(0).column(1)
    begin, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[begin + place % (end - begin)] = value
    path.write_bytes(data)
    try:
        found = ValueRanges(snapshot, [{"found": "v"}]).of(snapshot.row_group(0))["found"].to_pylist()
    except DataError:
        return
    ranges = [ValueRange.unpacked(packed) for packed in found]
    assert len(ranges) == 20
    assert all(begin <= at.offset <= at.offset + at.size <= end for at in ranges)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("15 02 15 0d 15 0d 00", id="an index page of -7 bytes, which lies where its header does"),
        pytest.param("15 06 15 28 15 28 5c 15 28 15 00 15 28 15 00 15 63 15 00 00 00", id="levels of -50 bytes"),
        pytest.param("15 06 15 28 15 28 5c 15 28 15 00 15 28 15 00 15 00 15 63 00 00", id="repetitions of -50 bytes"),
    ],
)
def test_a_page_of_less_than_no_bytes_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.parquet"
    write(path, [bytes([n]) * n for n in range(20)])
    begin = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    snapshot, data, damage = open_snapshot(str(path)), bytearray(path.read_bytes()), bytes.fromhex(header)
    data[begin : begin + len(damage)] = damage
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"the page at byte .* claims"):
        ValueRanges(snapshot, [{"found": "v"}]).of(snapshot.row_group(0))


def test_only_page_headers_and_lengths_are_read(tmp_path: Path) -> None:
    path, read = tmp_path / "a.parquet", list[int]()
    write(path, [b"v" * 10**6] * 20, data_page_size=2**22)
    data = path.read_bytes()

    def peek(at: int, nbytes: int) -> bytes:
        read.append(nbytes)
        return data[at : at + nbytes]

    snapshot = open_snapshot(str(path))
    row_group = snapshot.row_group(0)
    (chunk,) = snapshot.footer_of(row_group, ("v",), chunks=True, arrow=False).chunks["v"]
    assert isinstance(chunk, ReadableChunk)
    assert len(packed_ranges(peek, chunk, 20, row_group.file)) == 20
    assert sum(read) < 5000
