"""Values read straight from pages equal Arrow's; unexpected pages are left to Arrow."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    DataError,
    OutputOptions,
    ParquetLoaderError,
    ReadOptions,
    Scalar,
    Schema,
    SourceError,
    Tensor,
    WriteOptions,
    write_dataset,
)
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.decode import NativeChunks, page_header
from parquet_loader.decode import opened_chunks as reading
from parquet_loader.decode import plain_pages as pages
from parquet_loader.decode.native.page_list import pages_between
from parquet_loader.decode.plain_pages import (
    IS_POSSIBLE,
    RawColumn,
    RawFile,
    RawPages,
    ShortFileError,
    raw_pages,
)
from parquet_loader.read.column_chunks import BoundedMemo
from tests.support.examples import examples, grid
from tests.support.footers import metadata_of

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="no os.preadv on this system")

NUMPY = OutputOptions(format="numpy")
TYPES = [pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.binary(3), pa.binary(5000)]


def column_of(path: Path, file: RawFile, number: int = 0, group: int = 0) -> RawColumn | None:
    footer = metadata_of(path)
    type_, rows = footer.schema.arrow.field(number).type, int(footer.row_group_rows[group])
    pages = raw_pages(file, footer.check(group, number), footer.schema.leaves[number], rows, type_)
    return None if pages is None else RawColumn(file, pages)


def array_of(column: RawColumn, type_: pa.DataType, rows: int) -> pa.Array:
    out = np.zeros((rows, type_.bit_width // 8), np.uint8)
    column.read(0, out, slice(0, rows))
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(out)])


def values(type_: pa.DataType, rows: int, seed: int = 0) -> pa.Array:
    width = type_.bit_width // 8
    data = np.random.default_rng(seed).integers(0, 256, rows * width).astype(np.uint8)
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(data)])


def written(path: Path, arrays: Sequence[pa.Array], *, nullable: bool = False, **options: Any) -> None:
    schema = pa.schema([pa.field(f"c{i}", a.type, nullable=nullable) for i, a in enumerate(arrays)])
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.Table.from_arrays(list(arrays), schema=schema), path, **(plain | options))


@settings(max_examples=examples(60), deadline=None)
@given(
    type_=st.sampled_from(TYPES),
    rows=st.integers(1, 3000),
    page_bytes=st.sampled_from([100, 5000, 100_000, 2**20]),
    version=st.sampled_from(["1.0", "2.0"]),
    statistics=st.booleans(),
    checksums=st.booleans(),
    data=st.data(),
)
def test_any_rows_of_plain_pages_are_those_that_arrow_reads(
    tmp_path_factory: pytest.TempPathFactory,
    type_: pa.DataType,
    rows: int,
    page_bytes: int,
    version: str,
    statistics: bool,
    checksums: bool,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("pages") / "a.parquet"
    written(
        path,
        [values(type_, rows)],
        data_page_size=page_bytes,
        data_page_version=version,
        write_statistics=statistics,
        write_page_checksum=checksums,
        write_batch_size=max(1, page_bytes // 8),
    )
    table = pq.read_table(path)
    width = type_.bit_width // 8
    expected = np.frombuffer(table.column(0).combine_chunks().buffers()[1], np.uint8)[: rows * width].reshape(rows, -1)
    with closing(RawFile(str(path))) as file:
        column = column_of(path, file)
        assert column is not None
        assert array_of(column, type_, rows).equals(table.column(0).combine_chunks())
        first = data.draw(st.integers(0, rows - 1))
        count = data.draw(st.integers(0, rows - first))
        out = np.zeros((rows + 5, width), np.uint8)
        column.read(first, out, slice(3, 3 + count))
        assert np.array_equal(out[3 : 3 + count], expected[first : first + count])
        assert not out[:3].any()
        assert not out[3 + count :].any()
        places = np.random.default_rng(1).permutation(rows + 5)[:count]
        out[:] = 0
        column.read(first, out, places)
        assert np.array_equal(out[places], expected[first : first + count])


@pytest.mark.parametrize(
    ("options", "nullable", "type_"),
    [
        ({"compression": "snappy"}, False, pa.int32()),
        ({"use_dictionary": True}, False, pa.int32()),
        ({"column_encoding": {"c0": "DELTA_BINARY_PACKED"}}, False, pa.int32()),
        ({"column_encoding": {"c0": "BYTE_STREAM_SPLIT"}}, False, pa.float32()),
        ({}, True, pa.int32()),
    ],
)
def test_what_is_not_plain_is_left_to_arrow(
    tmp_path: Path, options: dict[str, Any], nullable: bool, type_: pa.DataType
) -> None:
    path = tmp_path / "a.parquet"
    written(path, [values(type_, 1000)], nullable=nullable, **options)
    with closing(RawFile(str(path))) as file:
        assert column_of(path, file) is None


def test_a_page_header_that_was_changed_anywhere_is_left_to_arrow_or_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    written(path, [values(pa.int32(), 5000)], data_page_size=4000, write_batch_size=500)
    whole = path.read_bytes()
    footer = pq.read_metadata(path)
    start = footer.row_group(0).column(0).data_page_offset
    length = page_header(whole[start : start + 200]).nbytes
    same, left = 0, 0
    for at in range(length):
        for value in range(256):
            changed = bytearray(whole)
            changed[start + at] = value
            other = tmp_path / "b.parquet"
            if at % 5 == value % 5 or value in (0, 0xFF, 0x1C):  # a part of all, and the nastiest
                other.write_bytes(changed)
                with closing(RawFile(str(other))) as file:
                    column = column_of(path, file)
                    if column is None:
                        left += 1
                        continue
                    # Fields that are not needed (checksum, the encoding of levels that are not there) may be anything.
                    assert array_of(column, pa.int32(), 5000).equals(values(pa.int32(), 5000))
                    same += 1
    assert left > 1000
    assert same > 10


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_none_and_nothing_else(data: bytes) -> None:
    try:
        header = page_header(data)
    except ValueError:
        return
    assert 0 < header.nbytes <= len(data)


def test_a_file_that_ends_early_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    written(path, [values(pa.int64(), 1000)])
    with closing(RawFile(str(path))) as file:
        column = column_of(path, file)
        assert column is not None
        os.truncate(path, 5000)
        with pytest.raises(ShortFileError, match="byte 5000"):
            array_of(column, pa.int64(), 1000)


def test_reads_that_give_less_than_was_asked_for_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    written(path, [values(pa.binary(5000), 300)])
    preadv = os.preadv

    def miserly(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        most = 7777
        some = []
        for buffer in buffers:
            view = memoryview(buffer).cast("B")[:most]
            some.append(view)
            most -= len(view)
            if not most:
                break
        return preadv(descriptor, some, offset)

    monkeypatch.setattr(pages, "KERNELS", None)
    monkeypatch.setattr(os, "preadv", miserly)
    with closing(RawFile(str(path))) as file:
        column = column_of(path, file)
        assert column is not None
        out = np.zeros((300, 5000), np.uint8)
        places = np.random.default_rng(0).permutation(300)
        column.read(0, out, places)
        assert array_of(column, pa.binary(5000), 300).equals(values(pa.binary(5000), 300))
    expected = np.frombuffer(values(pa.binary(5000), 300).buffers()[1], np.uint8).reshape(300, 5000)
    assert np.array_equal(out[places], expected)


@pytest.mark.skipif(not IS_BUILT, reason="the kernels are missing")
@pytest.mark.parametrize("width", [5000, 7])
def test_kernels_go_on_after_a_read_that_gave_less(width: int) -> None:
    path = Path("/proc/kallsyms")  # Linux gives a page of it at a time
    if not path.exists():
        pytest.skip("no file here gives less than was asked for")
    with path.open("rb") as source:
        assert len(os.pread(source.fileno(), 200_000, 0)) < 200_000
        data = source.read(200_000)
    rows = len(data) // width
    assert rows > 10
    expected = np.frombuffer(data, np.uint8)[: rows * width].reshape(rows, width)
    slots = np.random.default_rng(0).permutation(rows)
    out = np.zeros((rows, width), np.uint8)
    with closing(RawFile(str(path))) as file:
        RawColumn(file, RawPages(width, np.array([0]), np.array([0, rows]))).read(0, out, slots)
    assert np.array_equal(out[slots], expected)


def test_a_read_that_fails_says_why(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)  # opens, but cannot be read
    try:
        with pytest.raises(IsADirectoryError, match=os.strerror(errno.EISDIR)):
            pages_between(folder, 1000, 4, 1000, 10)
    finally:
        os.close(folder)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_rows_go_nowhere_but_into_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_kernels: bool
) -> None:
    if not has_kernels:
        monkeypatch.setattr(pages, "KERNELS", None)
    path = tmp_path / "a.parquet"
    written(path, [values(pa.binary(5000), 30)])
    with closing(RawFile(str(path))) as file:
        column = column_of(path, file)
        assert column is not None
        for places in ([0, 30], [-1, 3]):
            with pytest.raises(IndexError):
                column.read(0, np.zeros((30, 5000), np.uint8), np.array(places))
        with pytest.raises(ValueError, match="contiguous"):
            column.read(0, np.zeros((30, 10000), np.uint8)[:, ::2], np.array([1, 0]))
        with pytest.raises(ValueError, match="5000 bytes a row"):
            column.read(0, np.zeros((30, 2500), np.uint8), np.array([1, 0]))
    with pytest.raises(OSError, match="Bad file descriptor"):
        column.read(0, np.zeros((30, 5000), np.uint8), np.array([1, 0]))


SCHEMA = Schema(
    {
        "wide": Tensor("float32", (70,)),
        "row": Tensor("uint8", (37,)),
        "number": Scalar("int64"),
        "other": Scalar("float32", fill=-1.0),
    }
)
ROWS = 8000  # so many that "wide" and "row" are read from their pages


def dataset(tmp_path: Path, **options: Any) -> tuple[str, dict[str, Any]]:
    rng = np.random.default_rng(5)
    data: dict[str, Any] = {
        "wide": rng.random((ROWS, 70), np.float32),
        "row": rng.integers(0, 255, (ROWS, 37)).astype(np.uint8),
        "number": np.arange(ROWS),
        "other": rng.random(ROWS, np.float32),
    }
    write_dataset(data, tmp_path / "set", SCHEMA, **options)
    return str(tmp_path / "set"), data


def from_pages(loader: BatchedDataLoader) -> set[str]:
    """Return the columns of the first row group that are read from its pages."""
    batches: Any = loader._dataset.reader.lazy_batches(loader._dataset.snapshot.row_group(0), 100)
    with closing(batches):
        return set(next(batches).deferred.columns)


@grid(
    "isolation, arguments",
    ["thread", "process"],
    [{}, {"shuffle": True, "window_rows": 1200}, {"window_rows": 640, "batch_size": 300}],
    everyday=lambda isolation, arguments: isolation == "thread",
)
def test_batches_are_the_same_with_and_without(tmp_path: Path, arguments: dict[str, Any], isolation: Any) -> None:
    path, data = dataset(tmp_path)

    def batches(columns: set[str], **options: Any) -> list[dict[str, Any]]:
        arguments_ = {"batch_size": 320, "output_options": NUMPY, **arguments, **options}
        with BatchedDataLoader(path, **arguments_, isolation=isolation) as loader:
            assert from_pages(loader) == columns
            return list(loader)

    ours = batches({"wide", "row"})
    arrow = batches(set(), read_options=ReadOptions(verify_checksums=True))
    assert len(ours) == len(arrow)
    for one, other in zip(ours, arrow, strict=True):
        assert list(one) == list(other) == list(SCHEMA)
        for name in one:
            assert np.array_equal(one[name], other[name])
            assert np.array_equal(one[name], data[name][one["number"]])


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True, "window_rows": 300}])
def test_rows_are_numbered_where_every_column_is_read_from_its_pages(tmp_path: Path, arguments: dict[str, Any]) -> None:
    rows = np.random.default_rng(0).random((3000, 700), np.float32)
    write_dataset({"x": rows}, tmp_path / "set", Schema({"x": Tensor("float32", (700,))}))
    numbered = OutputOptions(row_numbers="n", format="numpy")
    with BatchedDataLoader(str(tmp_path / "set"), 32, output_options=numbered, **arguments) as loader:
        batches = list(loader)
    assert sorted(np.concatenate([batch["n"] for batch in batches])) == list(range(3000))
    assert all(np.array_equal(batch["x"], rows[batch["n"]]) for batch in batches)


def test_nothing_is_delivered_of_a_file_that_was_replaced(tmp_path: Path) -> None:
    path, _ = dataset(tmp_path)
    (file,) = (f for f in Path(path).iterdir() if f.suffix == ".parquet")
    (other,) = (f for f in Path(dataset(tmp_path / "other")[0]).iterdir() if f.suffix == ".parquet")
    delivered: list[Any] = []
    with BatchedDataLoader(path, 32, window_rows=64) as loader:
        os.replace(other, file)
        with pytest.raises(SourceError, match=file.name):
            delivered.extend(loader)
    assert delivered == []


@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
def test_a_file_that_is_replaced_between_two_looks_at_it_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = dataset(tmp_path)
    (file,) = (f for f in Path(path).iterdir() if f.suffix == ".parquet")
    (other,) = (f for f in Path(dataset(tmp_path / "other")[0]).iterdir() if f.suffix == ".parquet")

    class Late(NativeChunks):
        def __init__(self, *given: Any) -> None:
            if other.exists():
                os.replace(other, file)
            super().__init__(*given)

    with BatchedDataLoader(path, 32, window_rows=64) as loader:
        monkeypatch.setattr(reading, "NativeChunks", Late)
        with pytest.raises(SourceError, match=file.name):
            next(iter(loader))


def test_page_headers_are_parsed_once_for_all_epochs(tmp_path: Path) -> None:
    path, data = dataset(tmp_path, options=WriteOptions(row_group_bytes="1MiB"))
    (file,) = (f for f in Path(path).iterdir() if f.suffix == ".parquet")
    footer, before = pq.read_metadata(file), file.stat()
    assert footer.num_row_groups > 2
    options: dict[str, Any] = {"columns": ["wide", "number"], "shuffle": True, "output_options": NUMPY}

    def check(loader: BatchedDataLoader) -> None:
        for batch in loader:
            assert np.array_equal(batch["wide"], data["wide"][batch["number"]])

    with BatchedDataLoader(path, 320, **options) as loader:
        assert from_pages(loader) == {"wide"}
        check(loader)
        with open(file, "r+b") as opened:  # whoever looks at a header again finds none
            for group in range(footer.num_row_groups):
                opened.seek(footer.row_group(group).column(0).data_page_offset)
                opened.write(b"\xff" * 12)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        for _ in range(2):
            check(loader)
    with BatchedDataLoader(path, 320, **options) as loader, pytest.raises(DataError, match="column 'wide'"):
        check(loader)


def test_what_is_remembered_of_pages_is_bounded() -> None:
    memo = BoundedMemo[int, int](most_bytes=100)
    for key in range(5):
        memo.keep(key, key, 40)
    assert [memo.get(key) for key in range(5)] == [0, 1, 2, None, None]


def test_a_file_that_ends_early_names_itself_and_the_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = dataset(tmp_path)
    (file,) = (f for f in Path(path).iterdir() if f.suffix == ".parquet")

    def cut(*given: Any) -> RawPages | None:
        os.truncate(file, file.stat().st_size // 2)
        return raw_pages(*given)

    with BatchedDataLoader(path, 32, memory_limit="256MiB") as loader:
        monkeypatch.setattr(reading, "raw_pages", cut)
        with pytest.raises(ParquetLoaderError, match=file.name):
            list(loader)


def test_a_damaged_header_is_an_error_that_names_the_column(tmp_path: Path) -> None:
    path, _ = dataset(tmp_path)
    (file,) = (f for f in Path(path).iterdir() if f.suffix == ".parquet")
    footer = pq.read_metadata(file)
    start = footer.row_group(0).column(0).data_page_offset
    with open(file, "r+b") as opened:
        opened.seek(start)
        opened.write(b"\xff" * 12)
    with BatchedDataLoader(path, 32) as loader, pytest.raises(DataError, match=r"row group 0, column 'wide'"):
        list(loader)
