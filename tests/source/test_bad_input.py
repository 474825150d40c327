"""Bad input ends in one clear error that names the place; nothing is lost and nothing hangs."""

from __future__ import annotations

import datetime as dt
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, ParquetDataset, SampleStore, write_dataset
from parquet_loader.common.units import parse_bytes
from parquet_loader.errors import (
    ConfigurationError,
    DataError,
    LoaderStateError,
    MemoryLimitError,
    ParquetLoaderError,
    SchemaError,
    SourceError,
    TransformError,
)
from parquet_loader.loader.batched import parts_of
from tests.support import oracle
from tests.support.datasets import Layout, write_layout, write_numbered
from tests.support.examples import grid
from tests.support.footers import ThriftStruct, column_chunk, put, rewrite_footer, row_group, split


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("parquet_loader"):
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} outlived its loader"


def load(source: Any, batch_size: Any = 10, **options: Any) -> list[dict[str, Any]]:
    with BatchedDataLoader(source, batch_size, **options) as loader:
        return list(loader)


def ids(batches: list[dict[str, Any]]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


def assert_refused(error: type[Exception], source: Any, *named: str, batch_size: Any = 10, **options: Any) -> str:
    """Loading fails with one error of this type whose message has all of these words; returns the message."""
    with pytest.raises(error) as caught:
        load(source, batch_size, **options)
    message = str(caught.value)
    missing = [word for word in named if word not in message]
    assert not missing, f"{message!r} does not name {missing}"
    return message


# ---- sources -------------------------------------------------------------------------------------------------------


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    assert_refused(SourceError, str(tmp_path), str(tmp_path))


def test_a_directory_of_hidden_files_alone_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part.parquet").touch()
    assert_refused(SourceError, str(tmp_path), str(tmp_path))


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert_refused(SourceError, str(tmp_path / "nowhere"), "nowhere")
    assert_refused(SourceError, str(tmp_path / "nowhere" / "*.parquet"), "nowhere")
    assert_refused(SourceError, [str(tmp_path / "nowhere.parquet")], "nowhere.parquet")


def test_a_glob_that_matches_nothing_is_named(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((5,),))
    assert_refused(SourceError, str(tmp_path / "*.pq"), "*.pq")


def test_an_empty_list_is_no_source() -> None:
    assert_refused(SourceError, [])


def test_an_unknown_scheme_is_named() -> None:
    assert_refused(SourceError, "carrier-pigeon://coop/a.parquet", "carrier-pigeon")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (file,) = write_numbered(str(tmp_path), ((5,),))
    os.chmod(file, 0)
    assert_refused(SourceError, str(tmp_path), file)


def test_a_directory_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    message = assert_refused(SourceError, str(tmp_path), f"{tmp_path}: cannot be listed", "Permission denied")
    assert message.endswith("; let this user read it and search its directories")


def test_a_path_through_a_file_is_named(tmp_path: Path) -> None:
    (file,) = write_numbered(str(tmp_path), ((5,),))
    assert_refused(SourceError, f"{file}/a.parquet", file)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((5,),))
    (tmp_path / "linked.parquet").symlink_to(tmp_path / "gone.parquet")
    assert_refused(SourceError, str(tmp_path), "linked.parquet")


def test_a_directory_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((5,),))
    (tmp_path / "folder.parquet").mkdir()
    assert len(ids(load(str(tmp_path)))) == 5


def test_one_file_named_twice_is_refused(tmp_path: Path) -> None:
    (file,) = write_numbered(str(tmp_path), ((5,),))
    assert_refused(SourceError, [file, file], file)


# ---- files that are not what they seem -----------------------------------------------------------------------------


def _truncate_in_the_middle(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _cut_the_last_byte(data: bytes) -> bytes:
    return data[:-1]


def _footer_length(length: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:-8] + length.to_bytes(4, "little") + data[-4:]


def _smash_the_footer(data: bytes) -> bytes:
    body, footer = split(data)
    return body + b"\xff" * len(footer) + data[-8:]


def _cut_the_body(data: bytes) -> bytes:
    body, _ = split(data)
    return data[:4] + data[len(body) :]


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "one byte": lambda data: b"P",
    "only magic": lambda data: b"PAR1",
    "magic twice": lambda data: b"PAR1PAR1",
    "text": lambda data: b"id,x\n1,2\n" * 20,
    "zeros": lambda data: bytes(4096),
    "truncated": _truncate_in_the_middle,
    "last byte missing": _cut_the_last_byte,
    "wrong magic at the end": lambda data: data[:-4] + b"PARX",
    "footer of length zero": _footer_length(0),
    "footer longer than the file": _footer_length(2**31 - 1),
    "footer of four gigabytes": _footer_length(2**32 - 1),
    "footer one byte short": lambda data: _footer_length(int.from_bytes(data[-8:-4], "little") - 1)(data),
    "footer smashed": _smash_the_footer,
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_file_that_is_not_whole_is_named(tmp_path: Path, broken: str) -> None:
    files = write_numbered(str(tmp_path), ((20,), (20,), (20,)), ("float",))
    data = Path(files[1]).read_bytes()
    Path(files[1]).write_bytes(BROKEN[broken](data))
    assert_refused(SourceError, str(tmp_path), files[1])


def test_a_file_whose_data_is_cut_out_is_named(tmp_path: Path) -> None:
    files = write_numbered(str(tmp_path), ((2000,), (2000,)), ("double",))
    Path(files[1]).write_bytes(_cut_the_body(Path(files[1]).read_bytes()))
    assert_refused(ParquetLoaderError, str(tmp_path), files[1])


# ---- footers that lie ----------------------------------------------------------------------------------------------

ROWS = 300


def _total_rows(footer: ThriftStruct) -> None:
    put(footer, 3, 2 * ROWS + 1)


def _rows_of_a_row_group(rows: int) -> Callable[[ThriftStruct], None]:
    """Row group and file agree with each other, but not with the columns."""

    def change(footer: ThriftStruct) -> None:
        put(row_group(footer, 1), 3, rows)
        put(footer, 3, ROWS + rows)

    return change


def _of_column(field: int, value: int, *, column: int = 1) -> Callable[[ThriftStruct], None]:
    return lambda footer: put(column_chunk(footer, 1, column), field, value)


VALUES, UNCOMPRESSED, COMPRESSED, DATA_PAGE, DICTIONARY_PAGE = 5, 6, 7, 9, 11

LIES: dict[str, Callable[[ThriftStruct], None]] = {
    "more rows in the file": _total_rows,
    "fewer rows in a row group": _rows_of_a_row_group(ROWS - 7),
    "more rows in a row group": _rows_of_a_row_group(ROWS + 7),
    "no rows in a row group": _rows_of_a_row_group(0),
    "negative rows in a row group": _rows_of_a_row_group(-5),
    "millions of rows in a row group": _rows_of_a_row_group(2**26),
    "fewer values in a column": _of_column(VALUES, ROWS - 7),
    "more values in a column": _of_column(VALUES, ROWS + 7),
    "negative values in a column": _of_column(VALUES, -1),
    "a compressed size of nothing": _of_column(COMPRESSED, 0),
    "a compressed size too small": _of_column(COMPRESSED, 20),
    "a compressed size beyond the file": _of_column(COMPRESSED, 2**20),
    "a huge compressed size": _of_column(COMPRESSED, 2**45),
    "a negative compressed size": _of_column(COMPRESSED, -3),
    "a column that begins behind the file": _of_column(DATA_PAGE, 2**30),
    "a column that begins before the file": _of_column(DATA_PAGE, -100),
    "a column that begins in the middle of another": _of_column(DATA_PAGE, 11),
}


@pytest.mark.parametrize("shuffle", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lie", LIES)
def test_a_footer_that_lies_is_named_and_no_row_is_lost_in_silence(tmp_path: Path, lie: str, shuffle: bool) -> None:
    """Some lies do no harm: then every row is there with its values."""
    files = write_layout(Layout(((50,), (ROWS, ROWS)), ("double",), dictionary=False), str(tmp_path))
    expected = oracle.expected_columns(str(tmp_path))
    rewrite_footer(files[1], LIES[lie])
    try:
        batches = load(str(tmp_path), shuffle=shuffle)
    except ParquetLoaderError as error:
        assert files[1] in str(error)  # noqa: PT017 - either end is right, and each is checked
    else:
        oracle.assert_columns_equal(oracle.delivered_columns(batches), expected, ordered=not shuffle)


@pytest.mark.parametrize("size", [0, 1, -7, 2**20])
def test_a_wrong_uncompressed_size_costs_no_row(tmp_path: Path, size: int) -> None:
    """It is only an estimate of memory: the file loads, or is refused by name."""
    files = write_layout(Layout(((50,), (ROWS, ROWS)), ("double",)), str(tmp_path))
    expected = oracle.expected_columns(str(tmp_path))
    rewrite_footer(files[1], _of_column(UNCOMPRESSED, size))
    try:
        batches = load(str(tmp_path))
    except ParquetLoaderError as error:
        assert files[1] in str(error)  # noqa: PT017 - either end is right, and each is checked
    else:
        oracle.assert_columns_equal(oracle.delivered_columns(batches), expected, ordered=True)


# ---- corrupt pages -------------------------------------------------------------------------------------------------


def smash(file: str, group: int, column: str, *, header: bool) -> None:
    """Overwrite a page's header, or only what it holds, of one column of one row group."""
    footer = pq.ParquetFile(file).metadata
    names = [footer.schema.column(i).path for i in range(footer.num_columns)]
    chunk = footer.row_group(group).column(names.index(column))
    start = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    with open(file, "r+b") as target:
        target.seek(start if header else start + chunk.total_compressed_size - 40)
        target.write(b"\xff" * 40)


def wide_rows(batches: list[dict[str, Any]]) -> list[Any]:
    return oracle.delivered_columns(batches)["wide"].values


def write_corrupt(root: Path, *, header: bool = True) -> tuple[list[str], set[int]]:
    """Three files of three row groups of 40 rows; row group 1 of the second file is corrupt: its ids."""
    kinds = ("double", "text", "wide")
    files = write_layout(Layout(((40,) * 3,) * 3, kinds, compression="zstd", dictionary=False), str(root))
    smash(files[1], 1, "double", header=header)
    return files, set(range(160, 200))


@pytest.mark.parametrize("header", [True, False], ids=["page header", "page body"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_corrupt_page_names_file_row_group_and_column(
    tmp_path: Path, header: bool, shuffle: bool, threads: int
) -> None:
    files, _ = write_corrupt(tmp_path, header=header)
    options = {"shuffle": shuffle, "num_threads": threads, "window_rows": 40}
    message = assert_refused(DataError, str(tmp_path), files[1], "row group 1", "double", **options)
    assert "\n" not in message


def test_the_batches_before_a_corrupt_page_are_delivered_first(tmp_path: Path) -> None:
    write_corrupt(tmp_path)
    delivered: list[int] = []
    with BatchedDataLoader(str(tmp_path), 10, window_rows=40) as loader, pytest.raises(DataError):
        delivered.extend(i for batch in loader for i in batch["id"].tolist())
    with BatchedDataLoader(str(tmp_path), 10, window_rows=40) as loader:
        iterator = iter(loader)
        for start in range(0, 160, 10):
            assert next(iterator)["id"].tolist() == list(range(start, start + 10))
        with pytest.raises(DataError):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


def test_every_epoch_meets_the_corrupt_page_again(tmp_path: Path) -> None:
    files, _ = write_corrupt(tmp_path)
    with BatchedDataLoader(str(tmp_path), 10, shuffle=True) as loader:
        for _ in range(3):
            with pytest.raises(DataError, match=re.escape(files[1])):
                list(loader)


@grid(
    "window_rows, batch_size, shuffle, header",
    [pytest.param(None, id="one window"), pytest.param(50, id="small windows")],
    [pytest.param(size, id=str(size)) for size in (7, 40, 1000)],
    [pytest.param(False, id="False"), pytest.param(True, id="True")],
    [pytest.param(True, id="page header"), pytest.param(False, id="page body")],
    everyday=lambda window_rows, batch_size, shuffle, header: shuffle != header and batch_size == 40,
)
def test_skipping_a_corrupt_row_group_delivers_all_others_once(
    tmp_path: Path, header: bool, shuffle: bool, batch_size: int, window_rows: int | None
) -> None:
    files, lost = write_corrupt(tmp_path, header=header)
    values = oracle.expected_columns(str(tmp_path), columns=["wide"])["wide"].values
    window_rows = window_rows and max(window_rows, batch_size)
    with BatchedDataLoader(
        str(tmp_path), batch_size, shuffle=shuffle, window_rows=window_rows, on_error="skip"
    ) as loader:
        for _ in range(2):
            batches = list(loader)
            delivered = ids(batches)
            assert sorted(delivered) == sorted(set(range(360)) - lost)
            assert all(values[row] == right for row, right in zip(delivered, wide_rows(batches), strict=True))
            if not shuffle:
                assert delivered == sorted(delivered)
            skipped = loader.stats().skipped_row_groups
            assert len(skipped) == 1
            assert files[1] in str(skipped[0])
            assert "1" in str(skipped[0]).removeprefix(files[1])


@pytest.mark.parametrize("batch_size", [7, 16, 40])
@pytest.mark.parametrize("broken", [0, 1, 3, 9])
def test_windows_that_begin_with_more_rows_than_planned_are_right(tmp_path: Path, batch_size: int, broken: int) -> None:
    path, rows = tmp_path / "a.parquet", 330
    bytes_of = {width: np.arange(rows)[:, None].repeat(width, 1) % 251 for width in (24, 300)}
    columns = {
        f"of {width}": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), rows, [None, pa.py_buffer(values.astype(np.uint8).tobytes())]
        )
        for width, values in bytes_of.items()
    }
    pq.write_table(pa.table({"id": np.arange(rows), **columns}), path, row_group_size=30)
    place = pq.read_metadata(path).row_group(broken).column(0).data_page_offset
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 20)
    with BatchedDataLoader(str(path), batch_size, shuffle=True, window_rows=50, on_error="skip") as loader:
        batches = list(loader)
        assert len(loader.stats().skipped_row_groups) == 1
    assert sorted(ids(batches)) == sorted(set(range(rows)) - set(range(30 * broken, 30 * broken + 30)))
    for batch in batches:
        for width, values in bytes_of.items():
            assert np.array_equal(np.asarray(batch[f"of {width}"]), values[batch["id"].numpy()])


def test_skipping_keeps_the_values_of_the_other_columns(tmp_path: Path) -> None:
    write_corrupt(tmp_path)
    with BatchedDataLoader(str(tmp_path), 10, columns=["id", "text", "wide"]) as loader:
        oracle.assert_epoch_equals(loader, str(tmp_path), ordered=True, columns=["id", "text", "wide"])


def test_without_a_bad_row_group_nothing_is_skipped(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((30, 30),))
    with BatchedDataLoader(str(tmp_path), 10, on_error="skip") as loader:
        assert len(ids(list(loader))) == 60
        assert len(loader.stats().skipped_row_groups) == 0


def test_a_corrupt_page_under_a_filter_names_the_place(tmp_path: Path) -> None:
    files, _ = write_corrupt(tmp_path)
    assert_refused(DataError, str(tmp_path), files[1], "row group 1", "double", filters=pc.field("double") > 0)


def test_text_that_is_not_utf8_names_the_place(tmp_path: Path) -> None:
    raw = pa.array([b"ok", b"\xff\xfe", b"ok"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"word": text}), tmp_path / "a.parquet")
    assert_refused(DataError, str(tmp_path), "a.parquet", "row group 0", "word")


# ---- schemas -------------------------------------------------------------------------------------------------------


def write_two(root: Path, one: dict[str, Any], other: dict[str, Any]) -> tuple[str, str]:
    paths = str(root / "one.parquet"), str(root / "other.parquet")
    for path, columns in zip(paths, (one, other), strict=True):
        pq.write_table(pa.table(columns), path)
    return paths


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, 2]), pa.array(["1", "2"])),
        (pa.array([1, 2]), pa.array([1.0, 2.0])),
        (pa.array([1.0]), pa.array([[1.0]])),
        (pa.array([{"a": 1}]), pa.array([{"a": "x"}])),
        (pa.array([0], pa.timestamp("us")), pa.array([0], pa.timestamp("ms"))),
        (pa.array([0], pa.int64()), pa.array([0], pa.uint64())),
    ],
    ids=["int and text", "int and float", "scalar and list", "structs", "units", "signs"],
)
def test_files_whose_types_differ_are_both_named_with_the_column(
    tmp_path: Path, one: pa.Array, other: pa.Array
) -> None:
    first, second = write_two(tmp_path, {"price": one}, {"price": other})
    assert_refused(SchemaError, str(tmp_path), first, second, "price")


def test_a_column_that_one_file_lacks_is_named_with_both_files(tmp_path: Path) -> None:
    first, second = write_two(tmp_path, {"id": [1], "price": [1.0]}, {"id": [2]})
    assert_refused(SchemaError, str(tmp_path), first, second, "price")


def test_a_column_that_only_a_later_file_has_is_named(tmp_path: Path) -> None:
    first, second = write_two(tmp_path, {"id": [2]}, {"id": [1], "price": [1.0]})
    assert_refused(SchemaError, str(tmp_path), first, second, "price")


def test_files_that_differ_in_columns_not_asked_for_load(tmp_path: Path) -> None:
    write_two(tmp_path, {"id": [1], "price": [1.0]}, {"price": ["x"], "id": [2], "more": [0]})
    assert ids(load(str(tmp_path), columns=["id"])) == [1, 2]


def test_files_whose_columns_lie_in_another_order_load_by_name(tmp_path: Path) -> None:
    write_two(tmp_path, {"id": [1], "price": [1.5]}, {"price": [2.5], "id": [2]})
    (batch,) = load(str(tmp_path))
    assert (batch["id"].tolist(), batch["price"].tolist()) == ([1, 2], [1.5, 2.5])


def test_a_column_asked_for_twice_is_refused(tmp_path: Path) -> None:
    write_two(tmp_path, {"price": [1], "date": [1]}, {"price": [1], "date": [1]})
    assert_refused(SchemaError, str(tmp_path), "'price'", columns=["price", "date", "price"])


def test_an_unknown_column_suggests_the_nearest(tmp_path: Path) -> None:
    write_two(tmp_path, {"price": [1], "date": [1]}, {"price": [1], "date": [1]})
    assert_refused(SchemaError, str(tmp_path), "'prize'", "'price'", columns=["date", "prize"])


def test_an_unknown_column_in_another_unicode_form_is_told_from_the_one_that_exists(tmp_path: Path) -> None:
    write_two(tmp_path, {"gr\xf6\xdfe": [1]}, {"gr\xf6\xdfe": [1]})
    assert_refused(SchemaError, str(tmp_path), r"'gr\xf6\xdfe'", r"'gro\u0308\xdfe'", columns=["gro\u0308\xdfe"])


def test_an_unknown_filter_column_suggests_the_nearest(tmp_path: Path) -> None:
    write_two(tmp_path, {"price": [1], "date": [1]}, {"price": [1], "date": [1]})
    assert_refused(SchemaError, str(tmp_path), "prize", "'price'", filters=(pc.field("prize") > 1))
    combined = (pc.field("date") > 1) & (pc.field("prize") > 1)
    assert_refused(SchemaError, str(tmp_path), "prize", "'price'", filters=combined)


def test_a_filter_whose_types_do_not_fit_is_refused(tmp_path: Path) -> None:
    write_two(tmp_path, {"price": [1]}, {"price": [1]})
    assert_refused(SchemaError, str(tmp_path), "price", filters=(pc.field("price") > "x"))
    assert_refused(SchemaError, str(tmp_path), filters=(pc.field("price") + 1))


def test_a_filter_that_compares_decimals_with_an_int_says_what_to_compare_with(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"price": pa.array([Decimal("1.25"), Decimal("7.50")])}), path)
    with pytest.raises(SchemaError, match=r"a\.parquet.*decimal\.Decimal"):
        BatchedDataLoader(path, 2, filters=[("price", ">", 5)])
    (batch,) = BatchedDataLoader(path, 2, filters=[("price", ">", Decimal(5))])
    assert batch["price"].tolist() == [7.5]


def test_a_filter_that_compares_times_with_and_without_a_time_zone_is_refused(tmp_path: Path) -> None:
    utc = dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    day = utc.replace(tzinfo=None)
    days = [day, day + dt.timedelta(days=1)]
    table = pa.table(
        {
            "id": [1, 2],
            "zoned": pa.array(days, pa.timestamp("us", tz="Europe/Berlin")),
            "plain": pa.array(days, pa.timestamp("us")),
            "struct": pa.array([{"plain": day} for day in days], pa.struct({"plain": pa.timestamp("us")})),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    for filters in (
        pc.field("zoned") > day,
        pc.field("plain") != utc,
        (pc.field("id") > 0) & (pc.field("plain") == pc.field("zoned")),
        [("zoned", "<", day)],
    ):
        assert_refused(SchemaError, str(tmp_path), "a.parquet", "time zone", columns=["id"], filters=filters)
    assert_refused(
        SchemaError, str(tmp_path), "struct.plain", columns=["id"], filters=pc.field("struct", "plain") > utc
    )
    assert ids(load(str(tmp_path), columns=["id"], filters=(pc.field("zoned") > utc) & (pc.field("plain") > day))) == [
        2
    ]


def test_a_type_that_no_tensor_can_hold_names_the_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "nothing": pa.nulls(2)}), tmp_path / "a.parquet")
    assert_refused(SchemaError, str(tmp_path), "nothing", "null")
    assert ids(load(str(tmp_path), columns=["id"])) == [1, 2]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert_refused(SchemaError, str(tmp_path), "'id'", "leave both out with columns=[...]")


def test_a_dotted_name_that_a_struct_makes_too_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": [1], "a": [{"b": 2}]}), tmp_path / "a.parquet")
    assert_refused(SchemaError, str(tmp_path), "a.b")


# ---- nulls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3]),
        pa.array([True, None, False]),
        pa.array(["a", None, ""]),
        pa.array([b"a", None, b""]),
        pa.array([1, None, 3], pa.timestamp("us")),
        pa.array([1, None, 3], pa.date32()),
        pa.array([1, None, 3], pa.decimal128(5, 2)),
        pa.array([[1], None, []], pa.list_(pa.int32())),
        pa.array([[1], [None], []], pa.list_(pa.int32())),
        pa.array([[1.0], None, []], pa.list_(pa.float32())),
        pa.array([[1, 2], None, [1, 2]], pa.list_(pa.int32(), 2)),
        pa.array([{"x": 1}, None, {"x": 2}]),
        pa.array([{"x": 1}, {"x": None}, {"x": 2}]),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array([b"ab", None, b"cd"], pa.binary(2)),
    ],
    ids=lambda values: str(values.type)[:40],
)
def test_a_null_without_a_policy_names_the_place_and_the_three_policies(tmp_path: Path, values: pa.Array) -> None:
    plain = values.take(pa.array([0, 0]))
    table = pa.table({"maybe": pa.concat_arrays([plain, values])})
    pq.write_table(table.slice(0, 2), tmp_path / "a.parquet")
    pq.write_table(table, tmp_path / "b.parquet", row_group_size=2)
    message = assert_refused(DataError, str(tmp_path), "b.parquet", "row group 1", "maybe", batch_size=2, window_rows=2)
    assert "refuse" in message
    assert "fill" in message
    assert "mask" in message


def test_a_null_that_the_filter_removes_is_no_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, None, 3]}), tmp_path / "a.parquet")
    assert ids(load(str(tmp_path), filters=pc.field("id").is_valid())) == [1, 3]


def test_a_null_partition_names_the_place(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "kind": ["a", None]})
    pq.write_to_dataset(table, tmp_path, partition_cols=["kind"])
    assert_refused(DataError, str(tmp_path), "kind", "__HIVE_DEFAULT_PARTITION__")


# ---- arguments -----------------------------------------------------------------------------------------------------

WRONG_ARGUMENTS: list[tuple[str, Any]] = [
    *(("batch_size", value) for value in (0, -1, 1.5, "8", None, True, [8])),
    *(("seed", value) for value in (-1, 1.5, "x", None, True)),
    *(("window_rows", value) for value in (0, -1, 2.5, "many", True)),
    *(("memory_limit", value) for value in (0, -1, "12 parsecs", "", None, True, [1], float("nan"))),
    *(("num_threads", value) for value in (0, -1, 1.5, "2", True)),
    *(("on_error", value) for value in ("ignore", None, True)),
    *(("isolation", value) for value in ("fiber", None)),
    *(("shuffle", value) for value in ("yes", None, 2)),
    *(("drop_last", value) for value in ("no", None)),
    *(("columns", value) for value in ("id", [1], [], 5)),
    *(("filters", value) for value in ("id > 3", [("id", ">")], 5)),
    *(("transform", value) for value in (3, "normalise")),
    *(("schema", value) for value in ({"id": "int64"}, 5)),
    *(("shard", value) for value in (5, (0, 2))),
    *(("filesystem", value) for value in ("s3", 5)),
    *(("device", value) for value in ("toaster", 1.5)),
    *(("progress", value) for value in ("bar",)),
    *(("source", value) for value in (5, None, [5], "", b"path")),
]


@pytest.mark.parametrize(("name", "value"), WRONG_ARGUMENTS, ids=lambda v: repr(v)[:24])
def test_an_argument_of_the_wrong_kind_is_named(tmp_path: Path, name: str, value: Any) -> None:
    write_numbered(str(tmp_path), ((20,),))
    arguments: dict[str, Any] = {"source": str(tmp_path), "batch_size": 10, name: value}
    with pytest.raises(ConfigurationError) as caught:
        BatchedDataLoader(**arguments)
    message = str(caught.value)
    assert name in message or name == "source"
    shown = [repr(value), str(value), type(value).__name__, *map(repr, value if isinstance(value, list) else [])]
    assert any(text in message for text in shown)


def test_numpy_integers_are_integers(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((20,),))
    numbers = {"seed": np.uint32(3), "window_rows": np.int64(10), "num_threads": np.int8(1)}
    assert len(ids(load(str(tmp_path), np.int64(5), shuffle=True, memory_limit=np.int64(2**30), **numbers))) == 20


def test_an_epoch_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((20,),))
    with BatchedDataLoader(str(tmp_path), 5) as loader:
        for epoch in (-1, 1.5, "2", None):
            with pytest.raises(ConfigurationError, match="epoch"):
                loader.set_epoch(epoch)  # type: ignore[arg-type]


# ---- memory --------------------------------------------------------------------------------------------------------


def limit_named(message: str) -> str:
    """The limit that suffices, as the message names it."""
    found = re.search(r"memory_limit=(\d+(?:\.\d+)? ?[KMGT]?i?B?) or more", message)
    assert found, f"{message!r} names no limit that suffices"
    return found[1]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("kinds", "batch_size", "limit"),
    [
        (("double", "int64"), 1000, 1000),
        (("double", "int64"), 1000, "64KiB"),
        (("text",), 1000, "64KiB"),
        (("ragged", "blob"), 1000, "64KiB"),
        (("constant",), 20_000, "200KiB"),
    ],
    ids=["narrow, 1000 bytes", "narrow", "text", "ragged", "batch larger than limit"],
)
def test_a_memory_limit_too_small_names_one_that_does(
    tmp_path: Path, kinds: tuple[str, ...], batch_size: int, limit: str | int, shuffle: bool
) -> None:
    files = write_layout(Layout(((20_000,), (5_000,)), kinds), str(tmp_path))
    options = {"batch_size": batch_size, "shuffle": shuffle, "num_threads": 2}
    message = assert_refused(MemoryLimitError, str(tmp_path), files[0], "row group 0", memory_limit=limit, **options)
    enough = limit_named(message)
    assert parse_bytes(enough) > parse_bytes(limit)
    delivered = load(str(tmp_path), memory_limit=enough, **options)
    assert sorted(ids(delivered)) == list(range(25_000))


def test_a_window_too_large_for_the_limit_names_one_that_does(tmp_path: Path) -> None:
    write_layout(Layout(((5_000,),) * 20, ("constant",)), str(tmp_path))
    options: dict[str, Any] = {"window_rows": 100_000, "shuffle": True, "num_threads": 2}
    enough = limit_named(assert_refused(MemoryLimitError, str(tmp_path), memory_limit="2MiB", **options))
    assert len(ids(load(str(tmp_path), memory_limit=enough, **options))) == 100_000


def test_nothing_is_read_before_the_limit_is_found_too_small(tmp_path: Path) -> None:
    """The pages are gone, so reading any of them would be another error."""
    (file,) = write_layout(Layout(((20_000,),), ("double",), dictionary=False), str(tmp_path))
    data = Path(file).read_bytes()
    body, _ = split(data)
    Path(file).write_bytes(b"PAR1" + bytes(len(body) - 4) + data[len(body) :])
    assert_refused(MemoryLimitError, str(tmp_path), file, memory_limit="32KiB")


# ---- transforms ----------------------------------------------------------------------------------------------------


class MishapError(Exception):
    pass


def _raise(columns: Any, rng: Any) -> Any:
    raise MishapError("in the transform")


def _raise_later(columns: Any, rng: Any) -> Any:
    if (columns["id"] >= 50).any():
        raise MishapError("in the transform")
    return columns


def _unequal(columns: Any, rng: Any) -> Any:
    return {**columns, "more": np.arange(len(columns["id"]) + 1)}


def _fewer_rows(columns: Any, rng: Any) -> Any:
    return {"id": columns["id"][:-1]}


def _no_rows(columns: Any, rng: Any) -> Any:
    return {"id": columns["id"][:0]}


@pytest.mark.parametrize("transform", [_raise, _raise_later])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_exception_in_the_transform_reaches_the_caller_as_itself(
    tmp_path: Path, transform: Any, shuffle: bool
) -> None:
    write_numbered(str(tmp_path), ((40,), (40,)))
    with pytest.raises(MishapError, match="in the transform"):
        load(str(tmp_path), transform=transform, shuffle=shuffle)


@pytest.mark.parametrize(
    ("transform", "named"),
    [
        (_unequal, "more"),
        (_fewer_rows, "id"),
        (_no_rows, "id"),
        (lambda columns, rng: None, "NoneType"),
        (lambda columns, rng: [columns["id"]], "list"),
        (lambda columns, rng: {}, ""),
        (lambda columns, rng: {1: columns["id"]}, "1"),
        (lambda columns, rng: {"id": "text"}, "id"),
        (lambda columns, rng: {"id": 5}, "id"),
        (lambda columns, rng: {"id": np.array([object()] * len(columns["id"]))}, "id"),
        (lambda columns, rng: {"id": np.ma.masked_equal(columns["id"], columns["id"][0])}, "mask"),
    ],
    ids=["unequal", "fewer", "none", "None", "list", "empty", "key", "str", "int", "objects", "masked"],
)
def test_what_a_transform_must_not_return_is_named(tmp_path: Path, transform: Any, named: str) -> None:
    write_numbered(str(tmp_path), ((40,), (40,)))
    assert_refused(TransformError, str(tmp_path), named, transform=transform)


def test_on_error_skip_does_not_hide_a_failing_transform(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((40,), (40,)))
    with pytest.raises(MishapError):
        load(str(tmp_path), transform=_raise_later, on_error="skip")


def test_a_loader_can_go_on_after_a_failing_transform(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((40,), (40,)))
    fail = True

    def transform(columns: Any, rng: Any) -> Any:
        return _raise(columns, rng) if fail else columns

    with BatchedDataLoader(str(tmp_path), 10, transform=transform) as loader:
        with pytest.raises(MishapError):
            list(loader)
        fail = False
        assert ids(list(loader)) == list(range(80))


# ---- files that change ---------------------------------------------------------------------------------------------


def test_a_file_that_vanishes_between_footer_and_read_is_named(tmp_path: Path) -> None:
    files = write_numbered(str(tmp_path), ((20,), (20,), (20,)))
    with BatchedDataLoader(str(tmp_path), 10) as loader:
        assert len(loader) == 6
        os.unlink(files[1])
        with pytest.raises(SourceError, match=re.escape(files[1])):
            list(loader)


@pytest.mark.parametrize("rows", [20, 21, 300])
def test_a_file_rewritten_between_footer_and_read_is_named(tmp_path: Path, rows: int) -> None:
    files = write_numbered(str(tmp_path), ((20,), (20,), (20,)))
    with BatchedDataLoader(str(tmp_path), 10) as loader:
        assert len(loader) == 6
        before = os.stat(files[1])
        os.unlink(files[1])
        pq.write_table(pa.table({"id": np.arange(1000, 1000 + rows)}), files[1])
        os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
        with pytest.raises(SourceError, match=re.escape(files[1])):
            list(loader)


def test_a_file_truncated_between_footer_and_read_is_named(tmp_path: Path) -> None:
    files = write_numbered(str(tmp_path), ((2000,), (2000,)), ("double",))
    with BatchedDataLoader(str(tmp_path), 100) as loader:
        assert len(loader) == 40
        os.truncate(files[1], 100)
        with pytest.raises(SourceError, match=re.escape(files[1])):
            list(loader)


def test_a_file_that_vanishes_in_the_middle_of_an_epoch_is_named_or_was_read(tmp_path: Path) -> None:
    files = write_numbered(str(tmp_path), ((100,),) * 30)
    with BatchedDataLoader(str(tmp_path), 10, window_rows=100) as loader:
        iterator = iter(loader)
        delivered = next(iterator)["id"].tolist()
        os.unlink(files[-1])
        try:
            for batch in iterator:
                delivered += batch["id"].tolist()
        except SourceError as error:
            assert files[-1] in str(error)  # noqa: PT017 - either end is right, and each is checked
            assert delivered == list(range(2900))
        else:
            assert delivered == list(range(3000))


def test_a_file_that_becomes_a_link_to_itself_has_vanished(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet")
    with BatchedDataLoader(tmp_path, 10) as loader:
        (tmp_path / "a.parquet").unlink()
        (tmp_path / "a.parquet").symlink_to(tmp_path / "a.parquet")
        with pytest.raises(SourceError, match=r"a\.parquet"):
            list(loader)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    "read", [lambda data: list(data.batches(10)), lambda data: data.take([1])], ids=["all", "rows"]
)
def test_a_file_that_becomes_a_named_pipe_has_vanished(tmp_path: Path, read: Callable[[ParquetDataset], Any]) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet")
    data = ParquetDataset(tmp_path)
    assert data.num_rows == 100
    (tmp_path / "a.parquet").unlink()
    os.mkfifo(tmp_path / "a.parquet")  # whoever opens it waits until somebody writes to it
    with pytest.raises(SourceError, match=r"a\.parquet, row group 0: the file has vanished"):
        read(data)


def _touch(path: Path) -> None:
    os.utime(path, (1, 1))


def _truncate(path: Path) -> None:
    before = path.stat()
    os.truncate(path, 100)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace_with_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)  # whoever opens it waits until somebody writes to it


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_touch, "has changed"),
        (_truncate, "has changed"),
        (Path.unlink, "has vanished"),
        pytest.param(
            _replace_with_pipe,
            "has vanished",
            marks=pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes"),
        ),
    ],
)
@pytest.mark.parametrize("columns", [["id"], None], ids=["kernels alone", "all"])
def test_a_file_that_changes_between_epochs_is_an_error(
    tmp_path: Path, change: Callable[[Path], None], found: str, columns: list[str] | None
) -> None:
    for number in range(10):
        table = pa.table({"id": np.arange(100) + 100 * number, "texts": [["a"]] * 100})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    with BatchedDataLoader(tmp_path, 10, columns=columns, window_rows=100, num_threads=1) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 1000
        change(tmp_path / "9.parquet")  # the first window is read ahead
        with pytest.raises(SourceError, match=rf"9\.parquet, row group 0: the file {found}"):
            list(loader)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_not_opened_to_read_a_footer_again(tmp_path: Path) -> None:
    for number in range(10):
        pq.write_table(pa.table({"id": np.arange(100)}), tmp_path / f"{number}.parquet")
    with BatchedDataLoader(tmp_path, 10, window_rows=100, num_threads=1) as loader:
        assert len(loader) == 100
        parts_of(loader).dataset.reader.snapshot.footers.limit(1)
        _replace_with_pipe(tmp_path / "9.parquet")
        with pytest.raises(SourceError, match=r"9\.parquet: the file has vanished .*; make a new loader"):
            list(loader)


@pytest.mark.parametrize("time_s", [-1e9, 2**33 + 0.5, 1e10])
def test_a_file_of_any_time_can_be_read(tmp_path: Path, time_s: float) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet")
    os.utime(tmp_path / "a.parquet", (time_s, time_s))
    with BatchedDataLoader(tmp_path, 10) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 100


def test_a_vanished_file_is_not_skipped_in_silence(tmp_path: Path) -> None:
    files = write_numbered(str(tmp_path), ((20,), (20,), (20,)))
    with BatchedDataLoader(str(tmp_path), 10, on_error="skip") as loader:
        assert len(loader) == 6
        os.unlink(files[1])
        try:
            delivered = ids(list(loader))
        except SourceError as error:
            assert files[1] in str(error)  # noqa: PT017 - either end is right, and each is checked
        else:
            assert delivered == [*range(20), *range(40, 60)]
            assert files[1] in str(loader.stats().skipped_row_groups[0])


# ---- states --------------------------------------------------------------------------------------------------------


def test_a_closed_loader_says_so(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((20,),))
    loader = BatchedDataLoader(str(tmp_path), 5)
    loader.close()
    loader.close()
    with pytest.raises(LoaderStateError, match="closed"):
        iter(loader)


def test_an_iterator_of_a_closed_loader_says_so(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((20,) * 10,))
    loader = BatchedDataLoader(str(tmp_path), 5, window_rows=20)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(LoaderStateError, match="closed"):
        list(iterator)


def test_of_two_iterations_at_the_same_time_the_first_one_is_refused(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((20,) * 10,))
    with BatchedDataLoader(str(tmp_path), 5, window_rows=20) as loader:
        first = iter(loader)
        assert next(first)["id"].tolist() == list(range(5))
        assert ids(list(loader)) == list(range(200))
        with pytest.raises(LoaderStateError, match=r"iter\(loader\) was called again"):
            next(first)


def test_an_exhausted_iterator_stays_exhausted(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((20,),))
    with BatchedDataLoader(str(tmp_path), 5) as loader:
        iterator = iter(loader)
        assert len(list(iterator)) == 4
        assert list(iterator) == []
        assert len(list(loader)) == 4
        assert list(iterator) == []


@pytest.mark.parametrize("folder", ["a=%b0", "a%b0=1"])
def test_a_partition_whose_escapes_are_not_utf_8_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / folder / "a.parquet")
    assert_refused(
        SourceError,
        str(tmp_path),
        f"{tmp_path / folder}: the partition in the name",
        "percent sign as %25",
        "PYTHONUTF8=1",
    )


def test_the_error_of_a_special_file_says_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.parquet")
    assert_refused(SourceError, str(tmp_path / "a.parquet"), "this is a FIFO; pass a regular file or a directory")
    assert_refused(SourceError, os.devnull, "this is a device; pass a regular file or a directory")


def test_a_nul_in_a_path_is_refused_by_name(tmp_path: Path) -> None:
    assert_refused(ConfigurationError, str(tmp_path / "a\0b"), "a path has no NUL characters", "a\\x00b'")


def test_a_relative_path_without_a_working_directory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    os.rmdir(tmp_path / "removed")
    assert_refused(ConfigurationError, "train", "train: the path is relative, and the working directory", "was removed")


def test_a_file_whose_name_is_not_utf_8_says_so(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    os.rename(tmp_path / "a.parquet", os.fsencode(tmp_path) + b"/\xff.parquet")
    with pytest.raises(
        SourceError, match=r"the name of the file is not UTF-8, and Arrow cannot open it; .*, or set PYTHONUTF8=1"
    ):
        ParquetDataset(tmp_path)


@pytest.mark.parametrize("use", [ParquetDataset, partial(write_dataset, {"a": [1]}), SampleStore])
def test_a_path_that_is_not_utf_8_is_refused_by_name(tmp_path: Path, use: Callable[[str], Any]) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    with pytest.raises(SourceError, match=r"/\udcff/d: the path is not UTF-8, .*; rename it, or set PYTHONUTF8=1"):
        use(os.path.join(os.fsdecode(folder), "d"))


@pytest.mark.parametrize("value", [1, {"x": 1}, [{"x": 1}]])
def test_a_column_without_a_name_is_refused_with_its_file_and_can_be_left_out(tmp_path: Path, value: Any) -> None:
    pq.write_table(pa.table([pa.array([value]), pa.array([2])], names=["", "b"]), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"a\.parquet: column '': its name is empty; leave it out with columns="):
        BatchedDataLoader(tmp_path, 1)
    with BatchedDataLoader(tmp_path, 1, columns=["b"]) as loader:
        assert next(iter(loader))["b"].tolist() == [2]
