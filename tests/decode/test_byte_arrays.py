"""Text and bytes decoded by the kernels equal Arrow's; damaged pages are left to Arrow."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, Bytes, DataError, OutputOptions, Schema, Text
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.decode import (
    DecodableChunks,
    NativeChunks,
    NotDecodedError,
    SkippedRows,
    decodable_chunks,
    is_known_codec,
)
from parquet_loader.decode.native.column_reader import Fills
from parquet_loader.decode.native.decodable import RowDemand, WindowForm, decodable_columns
from parquet_loader.source import Metadata
from tests.support.examples import examples, grid
from tests.support.footers import metadata_of

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")

CODECS = ["none", "snappy", "lz4", *(codec for codec in ("gzip", "zstd") if is_known_codec(codec))]
ENCODINGS = ["dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]


def known(
    path: Path, group: int = 0, *, is_text: bool = False, footer: Metadata | None = None, fills: bool = False
) -> DecodableChunks:
    footer = footer or metadata_of(path)
    described = footer.of_row_group(group, ("a",), chunks=True, arrow=False)
    form = WindowForm(RowDemand(0, refuses_nulls=False, fills_nulls=fills), is_text=is_text)
    return decodable_columns(described, ["a"], footer.schema.arrow, int(footer.row_group_rows[group]), {"a": form})


def viewed(views: np.ndarray[Any, np.dtype[np.int64]]) -> list[bytes]:
    # The upper half of the length is the number of a dictionary's entry.
    return [ctypes.string_at(address, length & 0x7FFFFFFF) for address, length in views.tolist()]


def read(chunks: NativeChunks, first: int, rows: int) -> list[bytes]:
    views = np.empty((rows, 2), np.int64)
    chunks.read_into(first, rows, np.array([views.ctypes.data]))
    found = viewed(views)
    chunks.release()
    return found


def words(rows: int, distinct: int, longest: int, nulls: float, seed: int = 0) -> pa.Array:
    rng = np.random.default_rng(seed)
    vocabulary = [
        "".join(rng.choice([*"abcdefgh ", "ü", "日", "😀"], rng.integers(longest + 1))) for _ in range(distinct)
    ]
    is_null = rng.random(rows) < nulls
    numbers = rng.integers(0, distinct, rows).tolist()
    return pa.array([None if null else vocabulary[n] for n, null in zip(numbers, is_null, strict=True)], pa.string())


def write(path: Path, array: pa.Array, encoding: str, **options: Any) -> None:
    coded = encoding == "dictionary"
    options |= {"use_dictionary": coded, "column_encoding": None if coded else {"a": encoding}}
    pq.write_table(pa.table({"a": array}), path, **options)


@settings(max_examples=examples(40), deadline=None)
@given(
    type_=st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]),
    rows=st.integers(1, 1500),
    distinct=st.sampled_from([1, 5, 400]),
    longest=st.sampled_from([0, 3, 17, 150]),
    encoding=st.sampled_from(ENCODINGS),
    codec=st.sampled_from(CODECS),
    version=st.sampled_from(["1.0", "2.0"]),
    page_bytes=st.sampled_from([100, 3000, 2**20]),
    dictionary_bytes=st.sampled_from([500, 2**20]),
    in_memory=st.booleans(),
    steps=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 900)), max_size=4),
)
def test_any_text_and_bytes_are_those_that_arrow_decodes(
    tmp_path_factory: pytest.TempPathFactory,
    type_: pa.DataType,
    rows: int,
    distinct: int,
    longest: int,
    encoding: str,
    codec: str,
    version: str,
    page_bytes: int,
    dictionary_bytes: int,
    in_memory: bool,
    steps: list[tuple[int, int]],
) -> None:
    path = tmp_path_factory.mktemp("texts") / "a.parquet"
    array = words(rows, distinct, longest, 0).cast(type_)
    write(
        path,
        array,
        encoding,
        compression=codec,
        data_page_version=version,
        data_page_size=page_bytes,
        write_batch_size=max(1, page_bytes // 16),
        dictionary_pagesize_limit=dictionary_bytes,
    )
    chunks, expected = known(path, is_text=pa.types.is_string(type_)), array.cast(pa.large_binary()).to_pylist()
    assert chunks.names == ["a"]
    with NativeChunks(pa.py_buffer(path.read_bytes()) if in_memory else str(path), chunks) as native_chunks:
        at = 0
        for skipped, step in [*steps, (0, rows)]:
            at = min(at + skipped, rows)
            some = min(step, rows - at)
            if some:
                assert read(native_chunks, at, some) == expected[at : at + some]
            at += some
        with pytest.raises(NotDecodedError):
            read(native_chunks, rows, 1)


def test_arrays_of_text_are_left_to_arrow(tmp_path: Path) -> None:
    """Kernels deliver views to the window only, and not for columns with nulls that nothing replaces."""
    write(tmp_path / "a.parquet", pa.array(["x", None]), "PLAIN")
    assert known(tmp_path / "a.parquet").names == []
    write(tmp_path / "b.parquet", pa.array(["x", "y"]), "PLAIN")
    assert known(tmp_path / "b.parquet").names == ["a"]
    footer = metadata_of(tmp_path / "b.parquet")
    assert decodable_chunks(footer, 0, ["a"], footer.schema.arrow).names == []


def test_views_stay_valid_until_they_are_released(tmp_path: Path) -> None:
    """Also if the slice has many pages, and the views' pages were left long before."""
    array = words(2000, 500, 40, 0)
    write(tmp_path / "a.parquet", array, "PLAIN", data_page_size=500, write_batch_size=10)
    with NativeChunks(str(tmp_path / "a.parquet"), known(tmp_path / "a.parquet")) as native_chunks:
        for first in (0, 1000):
            views = np.empty((1000, 2), np.int64)
            native_chunks.read_into(first, 1000, np.array([views.ctypes.data]))
            assert viewed(views) == array[first : first + 1000].cast(pa.binary()).to_pylist()
            native_chunks.release()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("share", [0.02, 0.6])
@pytest.mark.parametrize("nulls", [0.0, 0.3])
def test_deleted_rows_are_left_out(tmp_path: Path, encoding: str, share: float, nulls: float) -> None:
    rows, array = 2500, words(2500, 300, 40, nulls)
    write(tmp_path / "a.parquet", array, encoding, data_page_size=2000, write_batch_size=50)
    deleted = np.flatnonzero(np.random.default_rng(1).random(rows) < share)
    expected = np.delete(np.array(array.fill_null("gap").to_pylist(), object), deleted).tolist()
    fills = Fills.of_columns(["a"], {"a": b"gap"}, ["a"])
    skipped, found = SkippedRows(deleted, 0), list[str]()
    with NativeChunks(str(tmp_path / "a.parquet"), known(tmp_path / "a.parquet", fills=True), fills) as native_chunks:
        while len(found) < len(expected):
            some = min(600, len(expected) - len(found))
            views, alive = np.empty((some, 2), np.int64), skipped.alive(len(found), some)
            native_chunks.read_alive(alive, np.array([views.ctypes.data]))
            found += [value.decode() for value in viewed(views)]
            native_chunks.release()
    assert found == expected


def is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def candidates() -> list[bytes]:
    """Sequences at the limits of UTF-8, at the begin and around the end of the checked blocks."""
    leads = [0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
    tails = [b"", b"\x7f", b"\x80", b"\x8f", b"\x90", b"\x9f", b"\xa0", b"\xbf", b"\xc0", b"\xc3\xbc"]
    found = [bytes([lead]) + tail + more for lead in leads for tail in tails for more in (b"", b"\x80", b"\x80\xbf")]
    short = [b"a" * (n % 3 and 60 + n % 7) + value + b"z" * (n % 4) for n, value in enumerate(found)]
    # After a character that is not ASCII, at the begin and around the end of a later block, of which others are ASCII.
    long = [
        "\u00fc".encode() + b"a" * (64 * (n % 4) + 56 + n % 10) + value + b"z" * (n % 3 * 62 + n % 5)
        for n, value in enumerate(found)
    ]
    return short + long


@pytest.mark.parametrize("encoding", ["dictionary", "PLAIN"])
def test_bytes_are_text_if_python_decodes_them(tmp_path: Path, encoding: str) -> None:
    """Among them surrogates, overlong and cut sequences, which have a row group each."""
    values = candidates()
    assert 100 < sum(map(is_utf8, values)) < len(values) - 600
    write(tmp_path / "a.parquet", pa.array(values).view(pa.string()), encoding, row_group_size=1)
    footer = metadata_of(tmp_path / "a.parquet")
    for number, value in enumerate(values):
        chunks = known(tmp_path / "a.parquet", number, is_text=True, footer=footer)
        with NativeChunks(str(tmp_path / "a.parquet"), chunks) as native_chunks:
            if is_utf8(value):
                assert read(native_chunks, 0, 1) == [value]
            else:
                with pytest.raises(NotDecodedError):
                    read(native_chunks, 0, 1)


def test_text_that_is_not_utf8_names_its_row_and_does_not_matter_if_bytes_are_asked_for(tmp_path: Path) -> None:
    values = [b"fine"] * 70 + [b"\xff bad"] + [b"fine"] * 29
    table = pa.table({"a": pa.array(values).view(pa.string()), "n": range(100)})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    options: dict[str, Any] = {"window_rows": 32, "output_options": OutputOptions(format="numpy")}
    refused = pytest.raises(
        DataError, match=r"a\.parquet.*column 'a', row 70: is not UTF-8 text.*; .* write the column as binary"
    )
    with BatchedDataLoader(str(tmp_path), 16, schema=Schema({"a": Text()}), **options) as loader, refused:
        list(loader)
    binary = table.set_column(0, "a", pa.array(values))
    pq.write_table(binary, tmp_path / "a.parquet", use_dictionary=False)
    with BatchedDataLoader(str(tmp_path), 16, schema=Schema({"a": Bytes()}), **options) as loader:
        assert [row for batch in loader for row in batch["a"].to_list()] == values


@grid(
    "field, nulls, encoding, filters, categorical",
    [
        pytest.param(field, id=repr(field))
        for field in (Text(fill="a filler of more bytes than a number"), Text(null="mask"), Text(null="mask", fill="-"))
    ],
    [pytest.param(nulls, id=str(nulls)) for nulls in (0.0, 0.2, 1.0)],
    [pytest.param(encoding, id=encoding) for encoding in ENCODINGS],
    [pytest.param(None, id="all rows"), pytest.param([("n", ">", 20)], id="filter")],
    [pytest.param(False, id="text"), pytest.param(True, id="categorical")],
    everyday=lambda field, nulls, encoding, filters, categorical: (
        nulls == 0.2 and (filters is None) == (field.null == "mask") and categorical <= (encoding == "dictionary")
    ),
)
def test_nulls_are_filled_or_masked(
    tmp_path: Path, field: Text, nulls: float, encoding: str, filters: Any, categorical: bool
) -> None:
    if categorical and encoding.startswith("DELTA"):
        pytest.skip("pyarrow, which measures the first rows, does not decode these pages to a dictionary")
    array = words(3000, 200, 20, nulls)
    table = pa.table({"a": array.dictionary_encode() if categorical else array, "n": range(3000)})
    coded = encoding == "dictionary"
    options: dict[str, Any] = {"use_dictionary": coded, "column_encoding": None if coded else {"a": encoding}}
    pq.write_table(
        table, tmp_path / "a.parquet", row_group_size=700, data_page_size=3000, write_batch_size=60, **options
    )
    options = {"filters": filters, "output_options": OutputOptions(format="numpy")}
    with BatchedDataLoader(str(tmp_path), 100, schema=Schema({"a": field}), window_rows=1000, **options) as loader:
        batches = [dict(batch) for batch in loader]
    expected = array.to_pylist()[21 if filters else 0 :]
    assert sum(map(len, (batch["a"] for batch in batches))) == len(expected)
    found = [row for batch in batches for row in batch["a"].to_list()]
    filler = field.fill if isinstance(field.fill, str) else ""
    assert found == [filler if value is None else value for value in expected]
    if field.null == "mask":
        masks = np.concatenate([batch["a_valid"] for batch in batches])
        assert masks.tolist() == [value is not None for value in expected]


def test_a_null_that_is_refused_names_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x"] * 50 + [None] + ["y"] * 20}), tmp_path / "a.parquet")
    options: dict[str, Any] = {"window_rows": 16, "output_options": OutputOptions(format="numpy")}
    refused = pytest.raises(DataError, match="column 'a', row 50: is null")
    with BatchedDataLoader(str(tmp_path), 8, schema=Schema({"a": Text()}), **options) as loader, refused:
        list(loader)


def test_values_that_share_long_beginnings_are_left_to_arrow(tmp_path: Path) -> None:
    """A page of DELTA_BYTE_ARRAY may stand for far more bytes than it has."""
    array = pa.array([f"{'x' * 100_000}{n:04}" for n in range(400)])
    write(tmp_path / "a.parquet", array, "DELTA_BYTE_ARRAY", data_page_size=2**26, write_batch_size=400)
    chunks = known(tmp_path / "a.parquet")
    with NativeChunks(str(tmp_path / "a.parquet"), chunks) as native_chunks, pytest.raises(NotDecodedError):
        read(native_chunks, 0, 1)
    options: dict[str, Any] = {"window_rows": 64, "output_options": OutputOptions(format="numpy")}
    with BatchedDataLoader(str(tmp_path), 8, **options) as loader:
        assert [row[-4:] for batch in loader for row in batch["a"].to_list()] == [f"{n:04}" for n in range(400)]
