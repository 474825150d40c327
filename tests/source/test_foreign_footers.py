"""A damaged footer ends in the library's own error or in the right rows, and never in an abort of the process."""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from parquet_loader import BatchedDataLoader, DataError, OutputOptions, SourceError
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.source.metadata import Metadata, Numbers, footer_numbers, read_numbers
from parquet_loader.source.opening import open_snapshot
from parquet_loader.source.thrift import ThriftError
from tests.support import footers
from tests.support.loading import load_in_a_process

NUMBERS = pa.table({"a": pa.array(range(100), pa.int32()), "b": pa.array(range(100), pa.int64())})


def rows_of(path: Path, *, shuffle: bool = False) -> list[int]:
    with BatchedDataLoader(path, 10, shuffle=shuffle, output_options=OutputOptions(format="numpy")) as loader:
        return [int(value) for batch in loader for value in batch["a"]]


def written(folder: Path, change: Callable[[footers.ThriftStruct], None], **options: object) -> Path:
    """A file of two row groups and an altered footer."""
    path = folder / "altered.parquet"
    pq.write_table(NUMBERS, path, row_group_size=50, store_schema=False, **options)
    footers.rewrite_footer(str(path), change)
    return path


def put(field: int, value: int, column: int = 0) -> Callable[[footers.ThriftStruct], None]:
    return lambda footer: footers.put(footers.column_chunk(footer, 1, column), field, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put(4, 9), "the footer names the compression codec 9, which does not exist"),
        (put(1, 4), "the footer says that the pages hold FLOAT, and the schema INT32"),
        (put(7, 2**40), "the footer says that it is at bytes"),
        (put(7, -5), "the footer says that it is at bytes"),
        (put(6, -1), "the footer says that it has 50 values in -1 bytes"),
    ],
    ids=["codec", "type", "beyond the file", "negative length", "negative size"],
)
def test_a_column_chunk_that_the_footer_lies_about_is_named_and_can_be_skipped(
    tmp_path: Path, change: Callable[[footers.ThriftStruct], None], reason: str
) -> None:
    path = written(tmp_path, change)
    told = load_in_a_process(str(path), "raise")
    assert told.startswith(f"DataError {path}, row group 1, column 'a': the data cannot be decoded: {reason}")
    assert load_in_a_process(str(path), "skip") == "rows 50 skipped 1"


@pytest.mark.parametrize("name", [b"", b"b.parquet"])
def test_a_column_chunk_whose_path_is_empty_is_in_this_file(tmp_path: Path, name: bytes) -> None:
    def put_path(footer: footers.ThriftStruct) -> None:
        for group in (0, 1):
            for column in (0, 1):
                footer[4][1][1 + group][1][1][1 + column][1] = (footers.BINARY, name)

    path = written(tmp_path, put_path)
    raw = footers.split(path.read_bytes())[1]
    flags = {int(flag) for read in (read_numbers, footer_numbers) for flag in read(raw, len(raw)).chunks[:, 8]}
    assert flags == {1 if name else 0}
    if name:
        with pytest.raises(DataError, match=r"column 'a': .*the footer says that its values are in another file"):
            rows_of(path)
    else:
        assert rows_of(path) == list(range(100))


def shorten(footer: footers.ThriftStruct) -> None:
    for group in (0, 1):
        statistics = footers.column_chunk(footer, group, 0)[12][1]
        for field in (1, 2, 5, 6):
            if field in statistics:
                statistics[field] = (footers.BINARY, statistics[field][1][:1])


def exchange(footer: footers.ThriftStruct) -> None:
    for group in (0, 1):
        statistics = footers.column_chunk(footer, group, 0)[12][1]
        statistics[5], statistics[6] = statistics[6], statistics[5]


def break_histogram(footer: footers.ThriftStruct) -> None:
    for group in (0, 1):
        sizes = footers.column_chunk(footer, group, 0).setdefault(16, (footers.STRUCT, {}))[1]
        sizes[3] = (footers.LIST, [footers.I64, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("change", [shorten, exchange, break_histogram])
def test_statistics_that_are_damaged_rule_out_no_row(
    tmp_path: Path, change: Callable[[footers.ThriftStruct], None]
) -> None:
    path = written(tmp_path, change)
    assert load_in_a_process(str(path), "raise") == "rows 100 skipped 0"
    assert load_in_a_process(str(path), "raise", is_filtered=True) == "rows 10 skipped 0"


def test_sound_statistics_rule_out_row_groups_of_numbers_text_and_times(tmp_path: Path) -> None:
    count = 60
    table = pa.table(
        {
            "a": pa.array([None if n % 10 == 3 else n for n in range(count)], pa.int16()),
            "u": pa.array([2**63 + n for n in range(count)], pa.uint64()),
            "f": pa.array([n / 2 for n in range(count)], pa.float32()),
            "s": [f"{n:03}" for n in range(count)],
            "t": pa.array(range(0, count * 10**6, 10**6), pa.timestamp("us", "UTC")),
            "d": pa.array(range(count), pa.date32()),
            "m": pa.array(range(count), pa.int64()).cast(pa.decimal128(19, 0)),
            "n": pa.array([None] * 20 + list(range(40)), pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    schema = table.schema
    snapshot = open_snapshot(tmp_path)
    filters = [pc.field(n) >= pa.scalar(table[n][45].as_py(), schema.field(n).type) for n in schema.names]
    from parquet_loader.read.row_filter import RowFilter

    assert [RowFilter(expression, snapshot).surviving(snapshot, 0) for expression in filters] == [{2}] * len(filters)
    assert RowFilter(pc.field("n").is_null(), snapshot).surviving(snapshot, 0) == {0}
    assert RowFilter(pc.field("s") == "005", snapshot).surviving(snapshot, 0) == {0}


def encrypted(folder: Path, *, plaintext_footer: bool) -> Path:
    class Kms(pe.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return base64.b64encode(master_key_identifier.encode() + key_bytes)

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return base64.b64decode(wrapped_key)[len(master_key_identifier) :]

    factory = pe.CryptoFactory(lambda _: Kms())
    settings = pe.EncryptionConfiguration(footer_key="k1", column_keys={"k2": ["a"]}, plaintext_footer=plaintext_footer)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
    path = folder / "encrypted.parquet"
    with pq.ParquetWriter(path, NUMBERS.schema, encryption_properties=properties) as writer:
        writer.write_table(NUMBERS)
    return path


def test_an_encrypted_footer_is_refused_by_name(tmp_path: Path) -> None:
    path = encrypted(tmp_path, plaintext_footer=False)
    with pytest.raises(SourceError, match=r"encrypted.parquet: .*its footer is encrypted, which this library"):
        open_snapshot(path)


def test_an_encrypted_column_is_refused_by_name_and_the_others_are_read(tmp_path: Path) -> None:
    path = encrypted(tmp_path, plaintext_footer=True)
    told = load_in_a_process(str(path), "raise")
    assert told.startswith(
        f"DataError {path}, row group 0, column 'a': the data cannot be decoded: the column is encrypted"
    )
    options = OutputOptions(format="numpy")
    with BatchedDataLoader(path, 10, columns=["b"], output_options=options) as loader:
        assert sum(len(batch["b"]) for batch in loader) == 100


@pytest.mark.parametrize("size", [0, 1, 7, 8, 11, 12, 500, -1, -8, -9])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.parquet"
    pq.write_table(NUMBERS, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(SourceError, match=r"cut\.parquet: "):
        open_snapshot(path)


def test_a_schema_of_any_depth_is_refused_before_anybody_recurses(tmp_path: Path) -> None:
    def nest(footer: footers.ThriftStruct) -> None:
        elements = footer[2][1]
        inner = {3: (footers.I32, 1), 4: (footers.BINARY, b"x"), 5: (footers.I32, 1)}
        footer[2] = (footers.LIST, [elements[0], {**elements[1], 5: (footers.I32, 1)}, *[inner] * 200_000, elements[2]])

    path = written(tmp_path, nest)
    assert "nested more than 100 deep" in load_in_a_process(str(path), "raise")


@pytest.mark.parametrize("count", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_altered_footers_end_in_rows_or_in_the_librarys_own_errors(count: int) -> None:
    run_fuzz(count)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_very_many_altered_footers_end_in_rows_or_in_the_librarys_own_errors() -> None:
    run_fuzz(20_000, seed=1)


def run_fuzz(count: int, seed: int = 0) -> None:
    command = [sys.executable, "-m", "tests.support.fuzz_footers", "--count", str(count), "--seed", str(seed)]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root, env=environment)
    assert done.returncode == 0, f"case {done.stdout.split()[-1]}: {done.stderr[-2000:]}"


@pytest.mark.skipif(not IS_BUILT, reason="no kernels")
def test_both_parsers_of_footers_agree_on_any_bytes(tmp_path: Path) -> None:
    nested = NUMBERS.append_column("l", pa.array([[{"x": 1, "y": "z"}]] * 100))
    pq.write_table(nested, tmp_path / "a.parquet", row_group_size=20, write_page_index=True)
    footer = footers.split((tmp_path / "a.parquet").read_bytes())[1]
    rng = random.Random(0)

    def numbers(read: Callable[[bytes, int], Numbers], raw: bytes) -> list[object] | None:
        try:
            found = read(raw, len(raw))
        except ThriftError:
            return None
        return [list(found.file), found.groups.tolist(), found.chunks.tolist()]

    assert numbers(read_numbers, footer) is not None
    for _ in range(500):
        altered = bytearray(footer)
        for _ in range(rng.choice((1, 1, 1, 3))):
            altered[rng.randrange(len(altered))] = rng.randrange(256)
        assert numbers(read_numbers, bytes(altered)) == numbers(footer_numbers, bytes(altered))


def test_a_footer_of_five_thousand_columns_is_parsed_in_linear_time(tmp_path: Path) -> None:
    def seconds(columns: int) -> float:
        path = tmp_path / f"{columns}.parquet"
        pq.write_table(pa.table({f"c{n}": [1] for n in range(columns)}), path)
        parsed = footers.metadata_of(path)
        began = time.thread_time()
        for _ in range(5):
            fresh = Metadata(parsed.raw, parsed.file_bytes)
            for column in range(columns):
                fresh.check(0, column)
        return time.thread_time() - began

    assert min(seconds(5000) for _ in range(3)) < 40 * min(seconds(500) for _ in range(3))


def test_a_row_group_with_another_number_of_columns_is_refused(tmp_path: Path) -> None:
    def drop(footer: footers.ThriftStruct) -> None:
        group = footers.row_group(footer, 1)
        group[1] = (footers.LIST, group[1][1][:-1])

    path = written(tmp_path, drop)
    assert "row group 1 has 1 columns, and the schema 2" in load_in_a_process(str(path), "raise")


def test_a_wrong_size_of_a_row_group_does_not_reach_the_memory_budget(tmp_path: Path) -> None:
    path = written(tmp_path, lambda footer: footers.put(footers.row_group(footer, 0), 2, -(2**62)))
    assert sorted(rows_of(path, shuffle=True)) == list(range(100))


def test_data_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"altered.parquet, row group 1, column 'b'"):
        rows_of(written(tmp_path, put(4, 77, column=1)))
