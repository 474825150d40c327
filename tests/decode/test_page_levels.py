"""The kernels accept a page only if every level, run and length in it adds up; else Arrow decides what is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetLoaderError
from parquet_loader.common import IS_BUILT
from parquet_loader.decode import NativeChunks, NotDecodedError, decodable_chunks
from tests.support.footers import metadata_of
from tests.support.mutated_pages import arrows_values, is_same, loaders_values
from tests.support.page_rewriter import (
    CODEC,
    DICTIONARY,
    INT32,
    INT64,
    KIND,
    NULL_COUNT,
    PAGE_BYTES,
    PLAIN_BYTES,
    STATISTICS,
    STRUCT,
    V1,
    V2,
    Page,
    PagesOfFile,
    pages_of,
)

ROWS = 100
FULL = pa.array(np.arange(ROWS) % 9 / 2)
HOLES = pa.array([None if n == 7 else n % 9 / 2 for n in range(ROWS)])


def written(path: Path, values: pa.Array = FULL, **options: Any) -> PagesOfFile:
    pq.write_table(pa.table({"a": values}), path, **{"compression": "none", "use_dictionary": False, **options})
    return pages_of(path)


def data_page(file: PagesOfFile) -> Page:
    return next(page for page in file.chunks[0].pages if page.kind != 2)


def no_nulls_said(file: PagesOfFile) -> None:
    file.chunks[0].metadata[STATISTICS][1][NULL_COUNT] = (INT64, 0)
    page = data_page(file)
    if page.kind == 3:
        page.described[2] = (INT32, 0)


def agrees_with_pyarrow(path: Path) -> bool:
    """Whether the loader delivers what pyarrow reads, or fails if it does."""
    expected, found = arrows_values(path), loaders_values(path)
    if isinstance(found, ParquetLoaderError):
        return expected is None
    return expected is not None and is_same(found, expected)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("codec", ["none", "snappy", "lz4"])
def test_nulls_that_no_header_and_no_statistic_counts_are_found(
    tmp_path: Path, version: str, coded: bool, codec: str
) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, HOLES, data_page_version=version, use_dictionary=coded, compression=codec)
    no_nulls_said(file)
    file.write(path)
    found = loaders_values(path)
    assert isinstance(found, dict)
    assert np.array_equal(found["a"], HOLES.to_numpy(zero_copy_only=False), equal_nan=True)


def body_of(page: Page, levels: bytes, values: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels + values


def set_levels(file: PagesOfFile, levels: bytes) -> None:
    """Replace the definition levels of a plain page that has no codec."""
    page = data_page(file)
    if page.kind == 0:
        length = int.from_bytes(page.body[:4], "little")
        page.resize(len(levels).to_bytes(4, "little") + levels + page.body[4 + length :])
    else:
        length = page.described[5][1]
        page.resize(levels + page.body[length:])
        page.described[5] = (INT32, len(levels))


LEVELS = {
    "none": b"",
    "of 99 values": b"\xc6\x01\x01",
    "of 101 values": b"\xca\x01\x01",
    "of 100 values and a byte": b"\xc8\x01\x01\x00",
    "a run of length 0 first": b"\x00\x01\xc8\x01\x01",
    "a value of more than a bit": b"\xc8\x01\x03",
    "13 groups of bits with 12 bytes": b"\x1b" + b"\xff" * 12,
    "13 groups of bits": b"\x1b" + b"\xff" * 13,
    "13 groups of bits with a null in the padding": b"\x1b" + b"\xff" * 12 + b"\x0f",
    "14 groups of bits": b"\x1d" + b"\xff" * 14,
    "a null among groups of bits": b"\x1b" + b"\xff" * 5 + b"\xfb" + b"\xff" * 7,
    "a run whose number has 11 bytes": b"\xc8" + b"\x80" * 9 + b"\x01\x01",
    "runs of 60 and 40": b"\x78\x01\x50\x01",
    "bits and a run": b"\x03\xff\xb8\x01\x01",
}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS.keys())
def test_definition_levels_are_read_as_pyarrow_reads_them(tmp_path: Path, version: str, levels: bytes) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, data_page_version=version)
    set_levels(file, levels)
    file.write(path)
    assert agrees_with_pyarrow(path)


def coded_page(codes: bytes) -> Callable[[PagesOfFile], None]:
    """Replace the codes of a dictionary-encoded page, the byte of their width first."""

    def change(file: PagesOfFile) -> None:
        page = data_page(file)
        length = int.from_bytes(page.body[:4], "little")
        page.resize(page.body[: 4 + length] + codes)

    return change


PACKED = np.packbits((np.arange(104)[:, None] % 9 >> np.arange(4) & 1).astype(np.uint8).ravel(), bitorder="little")
CODES = {
    "as they were": b"\x04\x1b" + PACKED.tobytes(),
    "more groups than bytes": b"\x04\x9b\x08" + PACKED.tobytes(),
    "a group too few": b"\x04\x19" + PACKED.tobytes()[:-4],
    "a byte too few": b"\x04\x1b" + PACKED.tobytes()[:-1],
    "a byte behind": b"\x04\x1b" + PACKED.tobytes() + b"\x00",
    "a run behind": b"\x04\x1b" + PACKED.tobytes() + b"\x02\x00",
    "a padded group more": b"\x04\x1d" + PACKED.tobytes() + bytes(4),
    "padding to 256 values": b"\x04\x41" + PACKED.tobytes() + bytes(128 - 52),
    "one run": b"\x04\xc8\x01\x03",
    "one run of 101": b"\x04\xca\x01\x03",
    "a code behind the dictionary": b"\x04\xc8\x01\x09",
    "a code of more bits than are said": b"\x01\xc8\x01\x05",
    "codes of 32 bits": b"\x20\xc8\x01\x05\x00\x00\x00",
    "codes of 33 bits": b"\x21\xc8\x01\x05\x00\x00\x00\x00",
    "codes of 255 bits": b"\xff\xc8\x01" + bytes(32),
    "codes of no bits": b"\x00\xc8\x01",
    "packed codes of no bits": b"\x00\x1b",
    "many packed codes of no bits": b"\x00\xff\xff\xff\x7f",
    "no codes of no bits": b"\x00",
    "nothing": b"",
    "a run of length 0": b"\x04\x00\x00\xc8\x01\x03",
    "no group": b"\x04\x01\xc8\x01\x03",
}


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES.keys())
def test_codes_are_read_as_pyarrow_reads_them(tmp_path: Path, codes: bytes) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, use_dictionary=True)
    coded_page(codes)(file)
    file.write(path)
    assert agrees_with_pyarrow(path)


def described(number: int, value: int) -> Callable[[PagesOfFile], None]:
    def change(file: PagesOfFile) -> None:
        data_page(file).described[number] = (INT32, value)

    return change


def of_another_version(file: PagesOfFile) -> None:
    page = data_page(file)
    page.header[KIND] = (INT32, 3 if page.kind == 0 else 0)


def both_versions(file: PagesOfFile) -> None:
    page = data_page(file)
    fields: Any = {1: (INT32, 50), 2: (INT32, 0), 3: (INT32, 3), 4: (INT32, 3)}
    if page.kind == 0:
        fields = {n: (INT32, value) for n, value in enumerate([50, 0, 50, 0, 0, 0], 1)}
    page.header[V1 if page.kind == 3 else V2] = (STRUCT, fields)


def without(number: int) -> Callable[[PagesOfFile], None]:
    def change(file: PagesOfFile) -> None:
        del data_page(file).described[number]

    return change


def of_another_type(number: int) -> Callable[[PagesOfFile], None]:
    def change(file: PagesOfFile) -> None:
        page = data_page(file)
        page.described[number] = (INT64, page.described[number][1])

    return change


def unknown_fields(file: PagesOfFile) -> None:
    nested: Any = {1: (9, (12, [{1: (8, b"x")}, {}])), 2: (9, (5, [1, 2, 3])), 3: (7, bytes(8)), 40: (3, 7)}
    data_page(file).header[90] = (STRUCT, nested)


def two_dictionaries(file: PagesOfFile) -> None:
    file.chunks[0].pages.insert(0, file.chunks[0].pages[0])


def dictionary_last(file: PagesOfFile) -> None:
    file.chunks[0].pages.reverse()


def dictionary_entries(by: int) -> Callable[[PagesOfFile], None]:
    def change(file: PagesOfFile) -> None:
        page = file.chunks[0].pages[0]
        if page.kind == 2:
            page.described[1] = (INT32, page.described[1][1] + by)

    return change


def page_of_another_kind(file: PagesOfFile) -> None:
    header: Any = {KIND: (INT32, 1), PLAIN_BYTES: (INT32, 3), PAGE_BYTES: (INT32, 3), 6: (STRUCT, {})}
    file.chunks[0].pages.insert(0, Page(header, b"abc"))


def bytes_behind(file: PagesOfFile) -> None:
    file.chunks[0].behind = b"\0\1\2"


def incomplete_dictionary_header(file: PagesOfFile) -> None:
    data_page(file).header[DICTIONARY] = (STRUCT, {1: (INT32, 3)})


CHANGES = {
    "fewer values": described(1, ROWS - 1),
    "more values": described(1, ROWS + 1),
    "no values": described(1, 0),
    "of another version": of_another_version,
    "both versions": both_versions,
    "unknown fields": unknown_fields,
    "two dictionaries": two_dictionaries,
    "the dictionary last": dictionary_last,
    "an entry more": dictionary_entries(1),
    "an entry less": dictionary_entries(-1),
    "a page of another kind": page_of_another_kind,
    "bytes behind the last page": bytes_behind,
    "an incomplete header of another kind": incomplete_dictionary_header,
    **{f"without field {number}": without(number) for number in (1, 2, 3, 4)},
    **{f"field {number} of another type": of_another_type(number) for number in (1, 2, 3, 4)},
}


@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_page_headers_are_read_as_pyarrow_reads_them(
    tmp_path: Path, version: str, coded: bool, change: Callable[[PagesOfFile], None]
) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, data_page_version=version, use_dictionary=coded)
    change(file)
    file.write(path)
    expected, found = arrows_values(path), loaders_values(path)
    assert isinstance(found, ParquetLoaderError) or (expected is not None and is_same(found, expected))


@pytest.mark.parametrize("number", [5, 6])
@pytest.mark.parametrize("value", [-1, 1, 2, 3, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_lengths_of_levels_are_read_as_pyarrow_reads_them(tmp_path: Path, number: int, value: int, codec: str) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, data_page_version="2.0", compression=codec)
    described(number, value)(file)
    file.write(path)
    assert agrees_with_pyarrow(path)


@pytest.mark.parametrize("is_old", [True, False])
def test_pages_of_version_2_by_old_writers_are_compressed_whatever_they_say(tmp_path: Path, is_old: bool) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, data_page_version="2.0")
    file.footer[6] = (8, b"parquet-cpp version 1.5.1-SNAPSHOT" if is_old else b"parquet-cpp-arrow version 9.0.0")
    file.chunks[0].metadata[CODEC] = (INT32, 1)
    page = data_page(file)
    page.described[7] = (2, False)
    if is_old:
        # 800 bytes of Snappy that stand for 800 bytes: their number, 792 as they are, and the last 8 of these again.
        levels, plain = page.described[5][1], np.arange(ROWS - 1, dtype=np.float64).tobytes()
        literal = bytes([61 << 2]) + (len(plain) - 1).to_bytes(2, "little") + plain
        page.body = page.body[:levels] + b"\xa0\x06" + literal + bytes([7 << 2 | 2, 8, 0])
    assert len(page.body) == page.header[PAGE_BYTES][1] == page.header[PLAIN_BYTES][1]
    file.write(path)
    found = loaders_values(path)
    assert isinstance(found, dict)
    assert np.array_equal(found["a"], [*range(ROWS - 1), ROWS - 2] if is_old else FULL.to_numpy())
    assert agrees_with_pyarrow(path)


def lz4_block(*sequences: tuple[bytes, int, int]) -> bytes:
    """Return an LZ4 block of sequences of literals, a match's offset, and its length; the last has no match."""
    out = b""
    for literals, offset, length in sequences:
        assert len(literals) < 15
        out += bytes([len(literals) << 4 | (length - 4 if offset else 0)]) + literals
        out += offset.to_bytes(2, "little") if offset else b""
    return out


BLOCKS = {
    "lz4_raw, 4 literals last": ("lz4", lz4_block((b"01234567", 8, 12), (b"4567", 0, 0)), False),
    "lz4_raw, 5 literals last": ("lz4", lz4_block((b"01234567", 8, 11), (b"34567", 0, 0)), True),
    "lz4_raw, a match last": ("lz4", lz4_block((b"01234567", 8, 16)), False),
    "lz4_raw, a match last and no literal": ("lz4", lz4_block((b"01234567", 8, 16), (b"", 0, 0)), False),
    "snappy, a length of 5 bytes": ("snappy", b"\x98\x80\x80\x80\x00" + b"\x5c" + b"01234567" * 3, True),
    "snappy, a length of 6 bytes": ("snappy", b"\x98\x80\x80\x80\x80\x00" + b"\x5c" + b"01234567" * 3, False),
    "snappy, a byte behind": ("snappy", b"\x18\x5c" + b"01234567" * 3 + b"\x00", False),
}


@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
@pytest.mark.parametrize(("codec", "block", "is_sound"), BLOCKS.values(), ids=BLOCKS.keys())
def test_compressed_blocks_end_as_their_format_says(tmp_path: Path, codec: str, block: bytes, is_sound: bool) -> None:
    path = tmp_path / "a.parquet"
    values = pa.array(np.frombuffer(b"01234567" * 3, np.int64))
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    pq.write_table(pa.Table.from_arrays([values], schema=schema), path, compression=codec, use_dictionary=False)
    file = pages_of(path)
    page = data_page(file)
    page.body = block
    page.header[PAGE_BYTES] = (INT32, len(block))
    file.write(path)
    assert agrees_with_pyarrow(path)
    assert (arrows_values(path) is not None) == is_sound
    footer = metadata_of(path)
    with NativeChunks(str(path), decodable_chunks(footer, 0, ["a"], footer.schema.arrow)) as chunks:
        if is_sound:
            assert chunks.read(3)[0].equals(values)
        else:
            with pytest.raises(NotDecodedError):
                chunks.read(3)
