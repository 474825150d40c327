"""A page header that claims more than its column chunk can hold is an error before anybody allocates what it claims."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, DataError, OutputOptions, ReadOptions, RemoteOptions, SourceError
from parquet_loader.common import KERNELS
from parquet_loader.decode import FeedCheck, check_pages, chunk_bounds, page_header
from parquet_loader.decode.native import page_check
from parquet_loader.decode.page_headers import FalseClaimError
from parquet_loader.petastorm import make_batch_reader
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.file_schema import MetadataError
from parquet_loader.source.remote.streaming_file import StreamedFile
from parquet_loader.source.thrift import ThriftError
from tests.support.examples import grid
from tests.support.footers import metadata_in, metadata_of
from tests.support.mutated_pages import mutants, tables
from tests.support.page_rewriter import (
    DICTIONARY,
    INT32,
    PAGE_BYTES,
    PLAIN_BYTES,
    PLAIN_TOTAL,
    STRUCT,
    PagesOfFile,
    encoded_struct,
    pages_of,
)

MOST = 2**31 - 1
ROWS = 3000


@pytest.fixture
def peak() -> Callable[[], int]:
    """By how many bytes the most that Arrow has ever allocated has grown since the test began."""
    pool = pa.default_memory_pool()  # Arrow's readers use this one whatever is set
    before = max(pool.max_memory(), 16 * 2**20)
    return lambda: max(pool.max_memory() - before, 0)


def field_of_page(kind: int, number: int, value: int, which: int = -1) -> Callable[[PagesOfFile], None]:
    """Return what changes a field in the header of one of the pages of a kind, in the last column."""

    def change(file: PagesOfFile) -> None:
        pages = [page for page in file.chunks[-1].pages if (page.kind == 2) == (kind == 2)]
        pages[which].header[number] = (INT32, value)

    return change


def described_of_page(kind: int, number: int, value: int) -> Callable[[PagesOfFile], None]:
    def change(file: PagesOfFile) -> None:
        pages = [page for page in file.chunks[-1].pages if (page.kind == 2) == (kind == 2)]
        pages[-1].described[number] = (INT32, value)

    return change


TEXTS = pa.array([f"text {n % 700}" for n in range(ROWS)])
NUMBERS = pa.array(np.arange(ROWS) % 700)
LISTS = pa.array([[n % 700] * (n % 3) for n in range(ROWS)])
CLAIMS: dict[str, tuple[pa.Array, str, Callable[[PagesOfFile], None], str]] = {
    "a page": (TEXTS, "zstd", field_of_page(0, PAGE_BYTES, MOST), "claims 2147483647 bytes, its column chunk has"),
    "the first page": (TEXTS, "zstd", field_of_page(0, PAGE_BYTES, MOST, 0), "its column chunk has"),
    "a page of lists": (LISTS, "zstd", field_of_page(0, PAGE_BYTES, MOST), "its column chunk has"),
    "a page of numbers": (NUMBERS, "snappy", field_of_page(0, PAGE_BYTES, MOST), "its column chunk has"),
    "a dictionary": (TEXTS, "none", field_of_page(2, PAGE_BYTES, MOST), "its column chunk has"),
    "a negative page": (TEXTS, "zstd", field_of_page(0, PAGE_BYTES, -1), "claims -1 bytes"),
    "a dictionary, decompressed": (TEXTS, "snappy", field_of_page(2, PLAIN_BYTES, MOST), "its codec allows"),
    "a page, decompressed": (TEXTS, "gzip", field_of_page(0, PLAIN_BYTES, MOST), "its codec allows"),
    "a page, by lz4": (TEXTS, "lz4", field_of_page(0, PLAIN_BYTES, MOST), "its codec allows"),
    "a page, by zstd": (TEXTS, "zstd", field_of_page(0, PLAIN_BYTES, MOST), "its codec allows"),
    "a page, by brotli": (TEXTS, "brotli", field_of_page(0, PLAIN_BYTES, MOST), "the footer allows at most"),
    "texts in a dictionary": (TEXTS, "zstd", described_of_page(2, 1, MOST), "dictionary entries"),
    "numbers in a dictionary": (NUMBERS, "zstd", described_of_page(2, 1, MOST), "dictionary entries"),
    "values": (TEXTS, "zstd", described_of_page(0, 1, MOST), "values, its column chunk has 3000"),
    "negative values": (TEXTS, "zstd", described_of_page(0, 1, -5), "claims -5 values"),
}


def written(path: Path, values: pa.Array, codec: str, version: str) -> PagesOfFile:
    table = pa.table({"n": np.arange(ROWS), "a": values})
    options: dict[str, Any] = {"data_page_version": version, "data_page_size": 512, "write_batch_size": 256}
    pq.write_table(table, path, compression=codec, **options)
    return pages_of(path)


def batches(source: str, **arguments: Any) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"output_options": OutputOptions(format="numpy"), "memory_limit": "64MiB", **arguments}
    with BatchedDataLoader(source, 64, **options) as loader:
        return list(loader)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(("values", "codec", "change", "said"), CLAIMS.values(), ids=CLAIMS.keys())
@pytest.mark.parametrize("place", ["local", "fetched", "without kernels"])
def test_a_false_claim_is_an_error_that_takes_no_memory(
    tmp_path: Path,
    peak: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    values: pa.Array,
    codec: str,
    change: Callable[[PagesOfFile], None],
    said: str,
    place: str,
) -> None:
    file = written(tmp_path / "a.parquet", values, codec, version)
    change(file)
    file.write(tmp_path / "a.parquet")
    arguments: dict[str, Any] = {"columns": ["n", "a"]}
    source = str(tmp_path / "a.parquet")
    if place == "fetched":
        arguments["filesystem"], source = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "a.parquet"
    if place == "without kernels":
        monkeypatch.setattr(page_check, "KERNELS", None)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, column 'a': .*" + said):
        batches(source, **arguments)
    assert peak() < 16 * 2**20


def test_a_row_group_with_a_false_claim_can_be_skipped(tmp_path: Path, peak: Callable[[], int]) -> None:
    file = written(tmp_path / "a.parquet", TEXTS, "zstd", "1.0")
    field_of_page(0, PAGE_BYTES, MOST)(file)
    file.write(tmp_path / "a.parquet")
    written(tmp_path / "b.parquet", TEXTS, "zstd", "1.0")
    found = batches(str(tmp_path), on_error="skip")
    assert sum(len(batch["n"]) for batch in found) == ROWS
    assert peak() < 16 * 2**20


@grid(
    "place, codec",
    ["local", "without kernels"],
    ["none", "snappy", "gzip", "zstd", "lz4", "brotli"],
    everyday=lambda place, codec: place == "local" or codec == "zstd",
)
def test_pages_that_shrink_as_far_as_their_codec_can_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, place: str
) -> None:
    if place == "without kernels":
        monkeypatch.setattr(page_check, "KERNELS", None)
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4 * 2**20)), 2**19)
    options: dict[str, Any] = {"use_dictionary": False, "data_page_size": 2**25}
    pq.write_table(pa.table({"a": values}), tmp_path / "a.parquet", compression=codec, **options)
    (batch,) = batches(str(tmp_path / "a.parquet"), memory_limit="4GiB")
    assert batch["a"].shape == (8, 2**19)
    assert not batch["a"].any()


def test_a_total_that_the_footer_gets_wrong_does_not_matter_to_small_pages(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", TEXTS, "zstd", "1.0")
    for chunk in file.chunks:
        chunk.metadata[PLAIN_TOTAL] = (6, 0)
    file.write(tmp_path / "a.parquet")
    assert sum(len(batch["n"]) for batch in batches(str(tmp_path / "a.parquet"))) == ROWS


def claim_of(check: Callable[..., object], *arguments: Any) -> str:
    """Return what a check says of a file's page headers; "" if nothing is wrong with them."""
    try:
        check(*arguments)
    except FalseClaimError as error:
        return str(error)
    return ""


def feed(data: bytes, bounds: Any, steps: np.random.Generator) -> None:
    """Check the page headers of bytes that come in parts."""
    check = FeedCheck(bounds, len(data))
    for first, end in sorted(bounds[:, :2].tolist()):
        at, stop = first, min(end, len(data))
        while at < stop:
            some = min(int(steps.integers(1, 60)), stop - at)
            check(at, np.frombuffer(data, np.uint8, some, at))
            at += some


@pytest.mark.skipif(KERNELS is None, reason="the kernels were not compiled: no C compiler at hand")
@pytest.mark.parametrize("count", [120, pytest.param(600, marks=pytest.mark.slow)])
def test_kernels_python_and_bytes_in_parts_find_the_same_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    rng, wrong = np.random.default_rng(0), 0
    for what, path, _ in mutants(tmp_path, count, seed=3):
        try:
            footer = metadata_of(path)
            bounds = chunk_bounds(footer, 0, range(footer.num_columns))
        except MetadataError:
            continue  # no page is looked at behind a footer that contradicts itself
        data = path.read_bytes()
        said = claim_of(check_pages, str(path), bounds)
        assert claim_of(check_pages, pa.py_buffer(data), bounds) == said, what
        with monkeypatch.context() as patched:
            patched.setattr(page_check, "KERNELS", None)
            assert claim_of(check_pages, str(path), bounds) == said, what
            assert claim_of(check_pages, pa.py_buffer(data), bounds) == said, what
            in_parts = claim_of(feed, data, bounds, rng)
        # A header that is cut off by the chunk's end is not missed in parts, and Arrow says what is wrong with it.
        assert in_parts in (said, "" if "no page header" in said else said), what
        wrong += bool(said)
    assert wrong > count // 15


def test_a_file_read_from_a_store_in_parts_is_checked_as_it_comes(tmp_path: Path, peak: Callable[[], int]) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, TEXTS, "zstd", "1.0")
    field_of_page(0, PAGE_BYTES, MOST)(file)
    file.write(path)
    data, footer = np.frombuffer(path.read_bytes(), np.uint8), metadata_of(path)
    bounds = chunk_bounds(footer, 0, range(2))

    def fetch_into(ranges: Any, places: Any) -> None:
        for span, place in zip(ranges, places, strict=True):
            place[:] = data[span.start : span.stop]

    spans = [ByteRange(first, end) for first, end in bounds[:, :2].tolist()]
    streamed = StreamedFile(fetch_into, len(data), spans, 2**20, 2**20, FeedCheck(bounds, len(data)))
    opened = pq.ParquetFile(
        pa.PythonFile(streamed, mode="r"), metadata=footer.arrow, pre_buffer=False, buffer_size=2**16
    )
    with opened as parquet, pytest.raises(FalseClaimError, match="its column chunk has"):
        parquet.read_row_group(0, use_threads=False)
    assert peak() < 16 * 2**20


@pytest.mark.parametrize("is_built", [True, False])
def test_unknown_fields_of_every_type_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_built: bool
) -> None:
    monkeypatch.setattr(page_check, "KERNELS", KERNELS if is_built else None)
    file = written(tmp_path / "a.parquet", TEXTS, "zstd", "1.0")
    nested: Any = {1: (9, (12, [{1: (8, b"x" * 300)}, {}])), 2: (9, (1, [True] * 20)), 3: (7, bytes(8)), 40: (3, 7)}
    for page in file.chunks[-1].pages:
        page.header[90] = (STRUCT, nested)
    file.write(tmp_path / "a.parquet")
    assert sum(len(batch["n"]) for batch in batches(str(tmp_path / "a.parquet"))) == ROWS


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("first", [-5, -(2**63), 2**62])
def test_chunks_that_lie_outside_the_file_are_left_to_arrow(
    monkeypatch: pytest.MonkeyPatch, is_built: bool, first: int
) -> None:
    monkeypatch.setattr(page_check, "KERNELS", KERNELS if is_built else None)
    check_pages(pa.py_buffer(b"PAR1" * 9), np.array([[first, 2**62, 10, 1, 0, 2**24]], np.int64))


def test_headers_longer_than_any_buffer_are_read(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", TEXTS, "zstd", "1.0")
    file.chunks[-1].pages[1].header[90] = (8, bytes(200_000))
    file.write(tmp_path / "a.parquet")
    assert sum(len(batch["n"]) for batch in batches(str(tmp_path / "a.parquet"))) == ROWS


@pytest.mark.parametrize(
    "data",
    [
        b"\x15" + b"\xff" * 9 + b"\x7f",  # a number of 11 bytes
        b"\x1c" * 200,  # structs in one another
        b"\x19\xfc" + b"\xff" * 4 + b"\x0f" + b"\x0c" * 100,  # a list of 4 billion structs
        b"\x18" + b"\xff" * 4 + b"\x0f" + bytes(100),  # 4 GiB of bytes
        b"\x15\x00\x15\x02\x15" + b"\x80" * 5 + b"\x01\x00",  # a size of 36 bits
        b"\x15\x00\x15\x02\x15\x02\x05\x06\x04\x00",  # field 3 twice
        encoded_struct({1: (5, 0), 2: (5, 1)}),
        encoded_struct({1: (5, 0), 2: (6, 1), 3: (5, 1)}),
        encoded_struct({1: (5, 2), 2: (5, 1), 3: (5, 1), DICTIONARY: (STRUCT, {1: (5, 1)})}),
        encoded_struct({1: (5, 2), 2: (5, 1), 3: (5, 1), 2**15: (5, 1)}),
    ],
)
def test_what_is_no_page_header_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ThriftError):
        page_header(data)
    bounds = np.array([[4, 4 + len(data), 10, 1, 0, 2**24]], np.int64)
    with pytest.raises(FalseClaimError, match="no page header at byte 4"):
        check_pages(pa.py_buffer(b"PAR1" + data), bounds)


def test_the_tables_that_are_changed_hold_no_false_claim(tmp_path: Path) -> None:
    for _, table, options in tables():
        sink = io.BytesIO()
        pq.write_table(table, sink, **options)
        footer = metadata_in(sink.getvalue())
        check_pages(pa.py_buffer(sink.getvalue()), chunk_bounds(footer, 0, range(footer.num_columns)))


def test_row_groups_of_a_store_that_come_in_parts_are_checked(tmp_path: Path, peak: Callable[[], int]) -> None:
    file = written(tmp_path / "a.parquet", TEXTS, "zstd", "1.0")
    field_of_page(0, PAGE_BYTES, MOST, 0)(file)
    file.write(tmp_path / "a.parquet")
    home = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    options = ReadOptions(remote=RemoteOptions(request_bytes=1024))
    with pytest.raises(DataError, match="its column chunk has"):
        batches("a.parquet", filesystem=home, read_options=options)
    assert peak() < 16 * 2**20


def test_a_file_that_changes_after_its_headers_were_checked_is_said_to_have_changed(
    tmp_path: Path, peak: Callable[[], int]
) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, TEXTS, "zstd", "1.0")
    file.write(path)
    options: dict[str, Any] = {"output_options": OutputOptions(format="numpy"), "memory_limit": "64MiB"}
    with BatchedDataLoader(str(path), 64, **options) as loader:
        assert sum(len(batch["n"]) for batch in loader) == ROWS
        field_of_page(0, PAGE_BYTES, MOST)(file)
        file.write(path)
        os.utime(path, ns=(0, 0))
        with pytest.raises(SourceError, match="changed"):
            list(loader)
    assert peak() < 16 * 2**20


@pytest.mark.filterwarnings("ignore")
def test_petastorms_readers_refuse_a_false_claim(tmp_path: Path, peak: Callable[[], int]) -> None:
    file = written(tmp_path / "a.parquet", TEXTS, "zstd", "1.0")
    field_of_page(0, PAGE_BYTES, MOST)(file)
    file.write(tmp_path / "a.parquet")
    reader = make_batch_reader(f"file://{tmp_path}", num_epochs=1)
    with reader, pytest.raises(DataError, match="its column chunk has"):
        list(reader)
    assert peak() < 16 * 2**20
