"""Numbers decoded by the kernels equal Arrow's; unexpected pages are left to Arrow."""

from __future__ import annotations

import decimal
import itertools
import math
import os
import pickle
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    DataError,
    OutputOptions,
    ParquetDataset,
    Ragged,
    RaggedList,
    ReadOptions,
    Scalar,
    Schema,
    Tensor,
)
from parquet_loader.common.native import permute
from parquet_loader.common.native.bindings import IS_BUILT, KERNELS, NO_MEMORY, _load, trim_buffers
from parquet_loader.common.native.build import LIBRARY, build, compilers, digest
from parquet_loader.decode import (
    DecodableChunks,
    NativeChunks,
    NotDecodedError,
    SkippedRows,
    decodable_chunks,
    is_known_codec,
)
from parquet_loader.decode.lazy_rows import _slots_of_all
from parquet_loader.decode.native import column_reader, decodable
from parquet_loader.decode.native.decodable import Line
from parquet_loader.schema import decimals_to_float64
from tests.support.examples import examples, grid
from tests.support.footers import column_chunk, metadata_of, put, rewrite_footer
from tests.support.fuzz_pages import SANITIZERS, VECTORS
from tests.support.page_rewriter import INT32, KIND, PAGE_BYTES, PLAIN_BYTES, Page, pages_of

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")

TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.uint8(),
    pa.int16(),
    pa.uint16(),
    pa.int32(),
    pa.uint32(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.binary(3),
    pa.binary(700),
]
LISTS = pa.list_(pa.int32(), 3)
CODECS = ["none", "snappy", "lz4", *(codec for codec in ("gzip", "zstd") if is_known_codec(codec))]

# By physical type, the encodings that pyarrow writes in addition to dictionaries.
ENCODINGS = {
    "bool": ["PLAIN", "RLE"],
    "int": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "float": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "bytes": ["PLAIN", "BYTE_STREAM_SPLIT"],
}


def encodings_of(type_: pa.DataType) -> list[str]:
    t = pa.types
    kind = "bool" if t.is_boolean(type_) else "int" if t.is_integer(type_) else "float"
    return ENCODINGS["bytes" if t.is_fixed_size_binary(type_) else kind]


def with_nulls(array: pa.Array, share: float, seed: int) -> pa.Array:
    """Return the array with the given share of null rows, in runs and mixed."""
    rng = np.random.default_rng([seed, 1])
    null = rng.random(len(array)) < share
    null[: len(array) // 3] &= rng.integers(0, 2, len(array) // 300 + 1).astype(bool).repeat(100)[: len(array) // 3]
    return array.take(pa.array(np.arange(len(array)), mask=null))


def values(type_: pa.DataType, rows: int, distinct: int, seed: int = 0) -> pa.Array:
    """Random values of which so many differ, in runs and mixed."""
    rng = np.random.default_rng(seed)
    width = max(1, type_.bit_width // 8)
    which = rng.integers(0, distinct, rows)
    runs = rng.integers(0, 2, rows // 50 + 1).astype(bool).repeat(50)[:rows]
    which[runs] = which[runs] // 7 * 0
    entries = rng.integers(0, 256, (distinct, width)).astype(np.uint8)
    if pa.types.is_boolean(type_):
        return pa.array(entries[which, 0] & 1, pa.uint8()).cast(type_)
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(np.ascontiguousarray(entries[which]))])


def known(path: Path, group: int = 0) -> DecodableChunks:
    footer = metadata_of(path)
    return decodable_chunks(footer, group, footer.schema.arrow.names, footer.schema.arrow)


def raw(array: pa.Array, filler: bytes | None = None) -> bytes:
    """What an array of numbers holds, NaN of its own bits included; nulls are `filler`, or zero bytes."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    width = array.type.bit_width // 8
    held = memoryview(array.buffers()[1])[array.offset * width :][: len(array) * width]
    rows = np.frombuffer(held, np.uint8).reshape(len(array), width).copy()
    rows[array.is_null().to_numpy(zero_copy_only=False)] = np.frombuffer(filler or bytes(width), np.uint8)
    return rows.tobytes()


def is_same(one: pa.Array, other: pa.Array) -> bool:
    assert one.null_count == (one.is_null().sum().as_py() or 0), "the count of nulls is the array's own"
    nulls = one.is_null().equals(other.is_null())
    return bool(one.type == other.type and len(one) == len(other) and nulls and raw(one) == raw(other))


@settings(max_examples=examples(120), deadline=None)
@given(
    types=st.lists(st.sampled_from(TYPES), min_size=1, max_size=4),
    rows=st.integers(1, 5000),
    distinct=st.sampled_from([1, 2, 3, 40, 1000, 5000]),
    codec=st.sampled_from(CODECS),
    dictionary=st.booleans(),
    nullable=st.booleans(),
    page_bytes=st.sampled_from([100, 3000, 2**20]),
    dictionary_bytes=st.sampled_from([500, 2**20]),
    version=st.sampled_from(["1.0", "2.0"]),
    encoding=st.integers(0, 2),
    nulls=st.sampled_from([0, 0, 0.04, 0.5, 0.96, 1]),
    in_memory=st.booleans(),
    steps=st.lists(st.integers(1, 3000), max_size=6),
)
def test_any_numbers_are_those_that_arrow_decodes(
    tmp_path_factory: pytest.TempPathFactory,
    types: list[pa.DataType],
    rows: int,
    distinct: int,
    codec: str,
    dictionary: bool,
    nullable: bool,
    page_bytes: int,
    dictionary_bytes: int,
    version: str,
    encoding: int,
    nulls: float,
    in_memory: bool,
    steps: list[int],
) -> None:
    path = tmp_path_factory.mktemp("native") / "a.parquet"
    arrays = [values(type_, rows, distinct, seed) for seed, type_ in enumerate(types)]
    if nullable:
        arrays = [with_nulls(array, nulls, seed) for seed, array in enumerate(arrays)]
    encodings = {f"c{i}": options[encoding % len(options)] for i, options in enumerate(map(encodings_of, types))}
    schema = pa.schema([pa.field(f"c{i}", a.type, nullable=nullable) for i, a in enumerate(arrays)])
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        path,
        compression=codec,
        use_dictionary=dictionary,
        column_encoding=None if dictionary else encodings,
        data_page_size=page_bytes,
        dictionary_pagesize_limit=dictionary_bytes,
        data_page_version=version,
        write_batch_size=max(1, page_bytes // 8),
    )
    chunks = known(path)
    assert chunks.names == schema.names
    expected = pq.read_table(path).combine_chunks()
    with NativeChunks(pa.py_buffer(path.read_bytes()) if in_memory else str(path), chunks) as native_chunks:
        at = 0
        for step in [*steps, rows]:
            some = min(step, rows - at)
            if some:
                for number, array in enumerate(native_chunks.read(some)):
                    assert is_same(array, expected.column(number).chunk(0).slice(at, some))
            at += some
        with pytest.raises(NotDecodedError):
            native_chunks.read(1)


def differences(dtype: type[np.signedinteger[Any]], bits: int, rows: int) -> npt.NDArray[Any]:
    """Numbers whose differences, modulo the range of the type, have the given number of bits."""
    rng = np.random.default_rng(bits)
    steps = rng.integers(0, 2**bits - 1, rows, np.uint64, endpoint=True) if bits else np.full(rows, 3, np.uint64)
    return np.cumsum(steps, dtype=np.uint64).astype(np.dtype(f"u{np.dtype(dtype).itemsize}")).view(dtype)


def is_read_as_by_arrow(path: Path, rows: int) -> bool:
    """Whether kernels decode all columns of a row group, in steps that begin anywhere in a group of packed values."""
    expected = pq.read_table(path).combine_chunks()
    with NativeChunks(str(path), known(path)) as native_chunks:
        same, at = native_chunks.names == expected.column_names, 0
        for step in [1, 30, 33, 64, 1023, 1025, rows]:
            some = min(step, rows - at)
            parts = zip(native_chunks.read(some), expected.columns, strict=True)
            same &= all(is_same(array, column.chunk(0).slice(at, some)) for array, column in parts)
            at += some
    return bool(same)


def test_differences_of_any_width_are_those_that_arrow_decodes(tmp_path: Path) -> None:
    rows = 5000
    table = {f"i{bits}": differences(np.int32, bits, rows) for bits in range(33)}
    table |= {f"l{bits}": differences(np.int64, bits, rows) for bits in range(65)}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(table), path, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")
    assert is_read_as_by_arrow(path, rows)


def test_codes_of_any_width_are_looked_up_as_arrow_does(tmp_path: Path) -> None:
    rows, rng = 2**17 + 5, np.random.default_rng(0)
    table = {}
    for bits in range(1, 18):
        codes = np.concatenate([np.arange(2**bits), rng.integers(0, 2**bits, rows)])[:rows]
        dtype = np.int8 if bits < 7 else np.int16 if bits < 13 else (np.int32, np.int64)[bits % 2]
        table[f"c{bits}"] = (rng.permutation(codes) * 7).astype(dtype)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(table), path, dictionary_pagesize_limit=2**21, row_group_size=rows)
    assert is_read_as_by_arrow(path, rows)


@pytest.mark.parametrize(
    ("array", "options"),
    [
        (pa.array([1, 2, 3]), {"compression": "brotli"}),
        (pa.array(["a", "b", "c"], pa.string_view()), {}),
        (pa.array([["a"], ["b"], ["c"]]), {}),
        (pa.array([{"x": 1}, {"x": 2}, {"x": 3}]), {}),
        (pa.array([[1], [2], [3]], pa.list_(pa.timestamp("ms"))), {"use_deprecated_int96_timestamps": True}),
        (pa.array([1, 2, 3], pa.decimal256(50, 2)), {}),
        (pa.array([[[1]], [[2]], [[3]]]), {}),
        (pa.array([[True], [False], []]), {}),
        (pa.array(["a", "b", "a"]).dictionary_encode(), {}),
    ],
)
def test_what_the_kernels_do_not_know_is_left_to_arrow(
    tmp_path: Path, array: pa.Array, options: dict[str, Any]
) -> None:
    pq.write_table(pa.table({"c": array}), tmp_path / "a.parquet", **options)
    assert known(tmp_path / "a.parquet").names == []


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("each", [2, 3, 768])
def test_lists_of_one_length_are_those_that_arrow_decodes(
    tmp_path: Path, version: str, codec: str, dictionary: bool, each: int
) -> None:
    rows, path = 200, tmp_path / "a.parquet"
    numbers = values(pa.int32(), rows * each, 900).cast(pa.int64())
    offsets = np.arange(0, (rows + 1) * each, each)
    required = pa.list_(pa.field("n", pa.int64(), nullable=False))
    lists = {
        "list": pa.ListArray.from_arrays(offsets.astype(np.int32), numbers),
        "large": pa.LargeListArray.from_arrays(offsets, numbers),
        "fixed": pa.FixedSizeListArray.from_arrays(numbers, each),
        "required": pa.ListArray.from_arrays(offsets.astype(np.int32), numbers, type=required),
    }
    schema = pa.schema([pa.field(name, a.type, nullable=name != "required") for name, a in lists.items()])
    options: dict[str, Any] = {"data_page_version": version, "compression": codec, "use_dictionary": dictionary}
    pq.write_table(pa.table(lists, schema=schema), path, data_page_size=10_000, write_batch_size=50, **options)
    expected = pq.read_table(path).combine_chunks()
    with NativeChunks(str(path), known(path)) as native_chunks:
        assert native_chunks.names == list(lists)
        for first, some in ((0, 77), (77, 123)):
            for array, column in zip(native_chunks.read(some), expected.columns, strict=True):
                array.validate(full=True)
                assert array.type == column.type
                assert array.equals(column.chunk(0).slice(first, some))


def damaged(path: Path, at: int, byte: int) -> pa.Buffer:
    whole = bytearray(path.read_bytes())
    whole[at] = byte
    return pa.py_buffer(bytes(whole))


@grid(
    "codec, dictionary, version",
    CODECS,
    [True, False],
    ["1.0", "2.0"],
    everyday=lambda codec, dictionary, version: dictionary == (version == "1.0"),
)
def test_a_byte_that_was_changed_anywhere_gives_what_arrow_gives_or_is_left_to_it(
    tmp_path: Path, codec: str, dictionary: bool, version: str
) -> None:
    path, rows = tmp_path / "a.parquet", 1000
    arrays = [values(pa.int32(), rows, 60), values(pa.int8(), rows, 3, 1)]
    table = pa.table(arrays, schema=pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.int8())]))
    options: dict[str, Any] = {"data_page_size": 1000, "write_batch_size": 100, "data_page_version": version}
    pq.write_table(table, path, compression=codec, use_dictionary=dictionary, **options)
    chunks, footer = known(path), pq.read_metadata(path)
    end = footer.row_group(0).column(1).total_compressed_size + footer.row_group(0).column(0).total_compressed_size
    rng, decoded = np.random.default_rng(0), 0
    for at, byte in zip(rng.integers(4, 4 + end, 600).tolist(), rng.integers(0, 256, 600).tolist(), strict=True):
        buffer = damaged(path, at, byte)
        try:
            with NativeChunks(buffer, chunks) as native_chunks:
                found = native_chunks.read(rows)
        except NotDecodedError:
            continue
        decoded += 1
        try:
            expected = pq.ParquetFile(pa.BufferReader(buffer), metadata=footer).read(use_threads=False)
        except (OSError, ValueError):
            continue  # Arrow is stricter with fields of headers that values do not depend on
        # What a damaged frame of zstd without a checksum gives depends on the library's version.
        if codec != "zstd":
            assert all(is_same(f, e.combine_chunks()) for f, e in zip(found, expected.columns, strict=True)), at
    assert decoded


needs_compiler = pytest.mark.skipif(
    not any(shutil.which(command.partition(" ")[0]) for command in compilers()), reason="there is no C compiler"
)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_codec_whose_library_is_missing_is_left_to_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    pq.write_table(pa.table({"c": [1, 2, 3]}), tmp_path / "a.parquet", compression=codec)
    monkeypatch.setattr(decodable, "LOADED_CODECS", 0b111)
    assert known(tmp_path / "a.parquet").names == []
    assert [batch["c"].tolist() for batch in batches(tmp_path)] == [[1, 2, 3]]


@pytest.mark.slow
@needs_compiler
def test_gzip_is_decompressed_by_zlib_where_libdeflate_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = values(pa.int32(), 5000, 60)
    pq.write_table(pa.table({"a": array}), tmp_path / "a.parquet", compression="gzip")
    assert build(tmp_path / "zlib.so", options=("-O0", "-DWITHOUT_LIBDEFLATE")) is None
    library, _ = _load(tmp_path / "zlib.so")
    if not library.codecs_load() >> 3 & 1:
        pytest.skip("there is no zlib")
    monkeypatch.setattr(decodable, "LOADED_CODECS", library.codecs_load())
    monkeypatch.setattr(column_reader, "KERNELS", library)
    chunks = known(tmp_path / "a.parquet")
    with NativeChunks(str(tmp_path / "a.parquet"), chunks) as native_chunks:
        assert is_same(native_chunks.read(5000)[0], array)
    end, whole = int(chunks.lines[0, Line.END]), bytearray((tmp_path / "a.parquet").read_bytes())
    whole[end - 40 : end - 30] = bytes(10)
    with NativeChunks(pa.py_buffer(bytes(whole)), chunks) as native_chunks, pytest.raises(NotDecodedError):
        native_chunks.read(5000)


def test_a_file_that_ends_early_is_left_to_arrow(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": np.arange(10_000)}), path, compression="none", use_dictionary=False)
    chunks = known(path)
    os.truncate(path, 20_000)
    with NativeChunks(str(path), chunks) as native_chunks, pytest.raises(NotDecodedError):
        native_chunks.read(10_000)
    with NativeChunks(pa.py_buffer(path.read_bytes()), chunks) as native_chunks, pytest.raises(NotDecodedError):
        native_chunks.read(10_000)


@pytest.mark.parametrize("rows", [2**59, 2**61 + 8])  # 4 EiB, and what would be 64 bytes modulo 2**64
def test_more_rows_than_memory_can_hold_are_left_to_arrow(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": np.arange(100)}), path, compression="none", use_dictionary=False)
    chunks = known(path)
    chunks.lines[0, Line.VALUES] = rows
    with NativeChunks(str(path), chunks) as native_chunks, pytest.raises(NotDecodedError):
        native_chunks.read(rows)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_chunks_say_whether_their_file_is_as_listed(tmp_path: Path, is_replaced: bool) -> None:
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for one in (path, other):
        pq.write_table(pa.table({"x": np.arange(100)}), one)
    found, chunks = path.stat(), known(path)
    listed = found.st_size, found.st_mtime_ns
    with NativeChunks(str(path), chunks, None, listed) as unchanged:
        assert unchanged.is_as_listed
    assert unchanged.is_as_listed
    for wrong in [(listed[0] + 1, listed[1]), (listed[0], listed[1] + 1), (-1, -1)]:
        with NativeChunks(str(path), chunks, None, wrong) as differs:
            assert not differs.is_as_listed
        assert not differs.is_as_listed
    with NativeChunks(str(path), chunks, None, listed) as changes:
        if is_replaced:
            os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
            other.rename(path)
        else:
            path.unlink()
        assert changes.is_as_listed
        assert changes.read(100)[0].to_pylist() == list(range(100))
    assert not changes.is_as_listed
    with NativeChunks(pa.py_buffer(bytes(listed[0])), chunks) as in_memory:
        assert not in_memory.is_as_listed


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(100)}), tmp_path / "a.parquet")
    with pytest.raises(FileNotFoundError, match=r"b\.parquet"):
        NativeChunks(str(tmp_path / "b.parquet"), known(tmp_path / "a.parquet"))


def test_a_column_that_is_let_go_of_takes_no_memory(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.parquet", 1000
    pq.write_table(pa.table({"label": np.arange(rows), "wide": values(pa.binary(3000), rows, rows)}), path)
    with NativeChunks(str(path), known(path)) as native_chunks:
        label, wide = native_chunks.read(rows)
        both = pa.total_allocated_bytes()
        del wide
        assert both - pa.total_allocated_bytes() >= rows * 3000
    assert label.to_pylist() == list(range(rows))


@settings(max_examples=examples(60), deadline=None)
@given(
    types=st.lists(st.sampled_from([type_ for type_ in TYPES if type_.bit_width <= 64]), min_size=1, max_size=4),
    rows=st.integers(1, 4000),
    distinct=st.sampled_from([1, 40, 5000]),
    codec=st.sampled_from(CODECS),
    dictionary=st.booleans(),
    page_bytes=st.sampled_from([200, 3000, 2**20]),
    encoding=st.integers(0, 2),
    nulls=st.sampled_from([0, 0, 0.04, 0.5, 0.96, 1]),
    spans=st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 1500)), max_size=5),
)
def test_rows_are_read_to_any_place_and_passed_over(
    tmp_path_factory: pytest.TempPathFactory,
    types: list[pa.DataType],
    rows: int,
    distinct: int,
    codec: str,
    dictionary: bool,
    page_bytes: int,
    encoding: int,
    nulls: float,
    spans: list[tuple[int, int]],
) -> None:
    path = tmp_path_factory.mktemp("native") / "a.parquet"
    arrays = [with_nulls(values(type_, rows, distinct, seed), nulls, seed) for seed, type_ in enumerate(types)]
    table = pa.table(arrays, names=[f"c{i}" for i in range(len(types))])
    encodings = {f"c{i}": options[encoding % len(options)] for i, options in enumerate(map(encodings_of, types))}
    options: dict[str, Any] = {"data_page_size": page_bytes, "write_batch_size": page_bytes // 8}
    options["column_encoding"] = None if dictionary else encodings
    pq.write_table(table, path, compression=codec, use_dictionary=dictionary, **options)
    fills = {f"c{i}": bytes([7, 1, 250, 3, 77, 9, 2, 5])[: max(1, t.bit_width // 8)] for i, t in enumerate(types)}
    chunks = known(path)
    with NativeChunks(str(path), chunks, column_reader.Fills.of_columns(chunks.names, fills)) as native_chunks:
        at = 0
        for passed, count in spans:
            first = min(at + passed, rows)
            at = min(first + count, rows)
            outs = [np.zeros((at - first, max(1, type_.bit_width // 8)), np.uint8) for type_ in types]
            places = [out.ctypes.data for out in outs]
            native_chunks.read_into(first, at - first, np.array(places, np.int64))
            assert [out.tobytes() for out in outs] == [
                raw(array.slice(first, at - first), fills[f"c{i}"]) for i, array in enumerate(arrays)
            ]


def batches(root: Path, **arguments: Any) -> list[dict[str, Any]]:
    with BatchedDataLoader(str(root), 64, output_options=OutputOptions(format="numpy"), **arguments) as loader:
        return [dict(batch) for batch in loader]


def test_text_and_lists_come_the_same_without_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["x" * (n * n % 700) for n in range(3000)]
    lists = [list(range(n % 11)) for n in range(3000)]
    pq.write_table(pa.table({"text": texts, "list": lists}), tmp_path / "a.parquet", row_group_size=500)
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700}
    found = []
    for is_built in (True, False):
        monkeypatch.setattr(permute, "KERNELS", KERNELS if is_built else None)
        rows = [
            (b["text"].to_list(), [row.tolist() for row in b["list"].to_list()]) for b in batches(tmp_path, **options)
        ]
        found.append(rows)
    assert found[0] == found[1]
    assert sorted(text for part, _ in found[0] for text in part) == sorted(texts)


WITHOUT_KERNELS = """
import pickle, sys
import numpy as np
from parquet_loader import BatchedDataLoader, DataError, OutputOptions
def batches(root, **arguments):
    with BatchedDataLoader(str(root), 64, output_options=OutputOptions(format="numpy"), **arguments) as loader:
        return [dict(batch) for batch in loader]
root, options = pickle.load(sys.stdin.buffer)
found = []
for arguments in options:
    try:
        loaded = batches(root, **arguments)
        found.append([{n: v for n, v in batch.items() if isinstance(v, np.ndarray)} for batch in loaded])
    except DataError as error:
        found.append(str(error))
pickle.dump(found, sys.stdout.buffer)
"""


def without_kernels(root: Path, options: list[dict[str, Any]]) -> list[Any]:
    """Return the batches of loaders with each of these options, or their errors, of a process without kernels."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PARQUET_LOADER_NATIVE": "0"}
    command, given = [sys.executable, "-c", WITHOUT_KERNELS], pickle.dumps((root, options))
    done = subprocess.run(command, env=environment, input=given, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return pickle.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Row groups of which the kernels can decode all, some or no columns."""
    rng = np.random.default_rng(0)
    kinds: list[dict[str, Any]] = [
        {},
        {"compression": {"a": "brotli", "b": "zstd"}},
        {"compression": "brotli"},
        {"use_dictionary": False},
    ]
    for number, options in enumerate(kinds):
        table = pa.table(
            {
                "a": rng.integers(0, 100, 3000).astype(np.int16),
                "b": rng.random(3000),
                "t": [f"row {i}" for i in range(3000)],
            }
        )
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=700, **options)
    return tmp_path


def test_batches_are_the_same_with_and_without(mixed: Path) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"shuffle": True, "window_rows": 500},
        {"shuffle": True, "window_rows": 5000, "columns": ["b", "a"]},
        {"shuffle": True, "window_rows": 2000, "isolation": "process"},
    ]
    for arguments, expected in zip(options, without_kernels(mixed, options), strict=True):
        found = batches(mixed, **arguments)
        assert len(found) == len(expected) == -(-12_000 // 64)
        for one, other in zip(found, expected, strict=True):
            assert one.keys() - {"t"} == other.keys() == {"a", "b"}
            assert all(np.array_equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("window_rows", [200, 4000])
def test_memory_that_the_kernels_do_not_get_is_asked_for_by_arrow(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, window_rows: int
) -> None:
    expected = batches(mixed, shuffle=True, window_rows=window_rows)
    monkeypatch.setattr(KERNELS, "chunks_read", lambda *_: NO_MEMORY)
    found = batches(mixed, shuffle=True, window_rows=window_rows)
    assert all(np.array_equal(f["a"], e["a"]) for f, e in zip(found, expected, strict=True))


@settings(max_examples=examples(100), deadline=None)
@given(
    types=st.lists(st.sampled_from([*TYPES, LISTS]), min_size=1, max_size=4),
    rows=st.integers(1, 4000),
    distinct=st.sampled_from([1, 40, 5000]),
    codec=st.sampled_from(CODECS),
    dictionary=st.booleans(),
    page_bytes=st.sampled_from([200, 3000, 2**20]),
    encoding=st.integers(0, 2),
    nulls=st.sampled_from([0, 0, 0.04, 0.96]),
    in_memory=st.booleans(),
    share=st.sampled_from([0, 0.05, 0.05, 0.5, 0.98]),
    ends=st.sets(st.sampled_from(["first", "last", "block"])),
    spans=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 1500)), max_size=5),
    seed=st.integers(0, 100),
)
def test_deleted_rows_are_left_out(
    tmp_path_factory: pytest.TempPathFactory,
    types: list[pa.DataType],
    rows: int,
    distinct: int,
    codec: str,
    dictionary: bool,
    page_bytes: int,
    encoding: int,
    nulls: float,
    in_memory: bool,
    share: float,
    ends: set[str],
    spans: list[tuple[int, int]],
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("native") / "a.parquet"
    arrays = []
    for number, type_ in enumerate(types):
        if type_ == LISTS:
            array = pa.FixedSizeListArray.from_arrays(values(pa.int32(), 3 * rows, distinct, number), 3)
            arrays.append(array.cast(LISTS))
        else:
            arrays.append(
                with_nulls(values(type_, rows, distinct, number), nulls if type_.bit_width <= 64 else 0, number)
            )
    names = [f"c{i}" for i in range(len(types))]
    flat = {n: t for n, t in zip(names, types, strict=True) if t != LISTS}
    encodings = {
        name: options[encoding % len(options)] for name, options in ((n, encodings_of(t)) for n, t in flat.items())
    }
    options: dict[str, Any] = {"data_page_size": page_bytes, "write_batch_size": max(1, page_bytes // 8)}
    options["column_encoding"] = None if dictionary else encodings
    pq.write_table(pa.table(arrays, names=names), path, compression=codec, use_dictionary=dictionary, **options)
    fills = {
        n: bytes([7, 1, 250, 3, 77, 9, 2, 5])[: max(1, t.bit_width // 8)] for n, t in flat.items() if t.bit_width <= 64
    }

    is_deleted = np.random.default_rng(seed).random(rows) < share
    is_deleted[0] |= "first" in ends
    is_deleted[-1] |= "last" in ends
    is_deleted[rows // 3 : rows // 2] |= "block" in ends
    alive = np.flatnonzero(~is_deleted)
    begin = rows // 10 if seed % 2 else 0
    alive = alive[alive >= begin]
    deleted = SkippedRows(np.flatnonzero(is_deleted[begin:]) + begin, begin)
    source = pa.py_buffer(path.read_bytes()) if in_memory else str(path)
    chunks = known(path)
    widths = [12 if type_ == LISTS else max(1, type_.bit_width // 8) for type_ in types]
    replaced = column_reader.Fills.of_columns(chunks.names, fills)
    with NativeChunks(str(path), chunks, replaced) as whole_chunks:
        whole = [np.zeros((rows, width), np.uint8) for width in widths]
        assert chunks.names == names
        whole_chunks.read_into(0, rows, np.array([out.ctypes.data for out in whole], np.int64))
    masks = []
    if seed % 3 == 0 and LISTS not in types:
        masks = [array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8).reshape(-1, 1) for array in arrays]
    with NativeChunks(source, chunks, replaced) as native_chunks:
        at = 0
        for passed, count in spans:
            first = at + passed
            at = min(first + count, len(alive))
            if first >= at:
                break
            outs = [np.full((at - first + 2, width), 0xA5, np.uint8) for width in (*widths, *[1] * len(masks))]
            places = np.array([out[1:].ctypes.data for out in outs], np.int64)
            of_masks = places[len(types) :] if masks else None
            native_chunks.read_alive(deleted.alive(first, at - first), places[: len(types)], masks=of_masks)
            for out, expected in zip(outs, whole + masks, strict=True):
                assert np.array_equal(out[1:-1], expected[alive[first:at]])
                assert (out[[0, -1]] == 0xA5).all(), "nothing is written before or behind the rows"


def test_a_page_that_kernels_refuse_sends_only_its_column_to_arrow(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.parquet", 3000
    table = pa.table({name: values(pa.int32(), rows, 3000, seed) for seed, name in enumerate("abcd")})
    pq.write_table(table, path, use_dictionary=False, data_page_size=1000, write_batch_size=100)
    file = pages_of(path)
    for number in (1, 3):  # Arrow skips index pages, the kernels refuse them
        header = {KIND: (INT32, 1), PLAIN_BYTES: (INT32, 3), PAGE_BYTES: (INT32, 3)}
        file.chunks[number].pages.insert(9, Page(header, b"abc"))
    file.write(path)
    assert pq.read_table(path).equals(table)
    with NativeChunks(str(path), known(path)) as native_chunks:
        assert len(native_chunks.read(1000)) == 4
        with pytest.raises(NotDecodedError) as caught:
            native_chunks.read(1800)
        assert caught.value.columns == {"b", "d"}
        assert list(caught.value.others) == native_chunks.names == ["a", "c"]
        later = native_chunks.read(200)
    for name, array in zip("ac", later, strict=True):
        both = pa.concat_arrays([caught.value.others[name], array])
        assert is_same(both, table.column(name).chunk(0).slice(1000))
    for arguments in ({"window_rows": 250}, {"window_rows": 4000}, {"filters": [("a", ">", -(2**31))]}):
        found = batches(tmp_path, **arguments)
        for name in "abcd":
            assert np.array_equal(np.concatenate([batch[name] for batch in found]), table.column(name).to_numpy())


@grid(
    "columns, window_rows, call",
    [None, ["b", "a"]],
    [150, 4000],
    range(8),
    everyday=lambda columns, window_rows, call: call == 1 or (call == 6 and (window_rows == 4000 or columns is None)),
)
def test_what_turns_out_to_be_not_as_expected_is_arrows_from_there_on(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, call: int, window_rows: int, columns: list[str] | None
) -> None:
    expected = batches(mixed, shuffle=True, window_rows=window_rows, columns=columns)
    calls = itertools.count()
    read_into = NativeChunks.read_into

    def lied_to(self: NativeChunks, first: int, rows: int, *places: Any) -> None:
        is_wrong = next(calls) % 8 == call
        read_into(self, first, rows // 2 if is_wrong else rows, *places)
        if is_wrong:
            raise NotDecodedError(self.names if call % 2 else self.names[:1])

    monkeypatch.setattr(NativeChunks, "read_into", lied_to)
    found = batches(mixed, shuffle=True, window_rows=window_rows, columns=columns)
    assert next(calls) > call
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in ("a", "b"))


def test_options_that_the_kernels_lack_are_arrows(tmp_path: Path) -> None:
    """The kernels do not verify checksums."""
    table = pa.table({"a": pa.array(range(1000), pa.int64())})
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, tmp_path / "a.parquet", **plain)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    at = data.index(np.int64(500).tobytes())
    data[at : at + 8] = np.int64(-7).tobytes()
    (tmp_path / "a.parquet").write_bytes(data)
    assert sum(batch["a"].tolist().count(-7) for batch in batches(tmp_path)) == 1
    with pytest.raises(DataError, match="checksum"):
        batches(tmp_path, read_options=ReadOptions(verify_checksums=True))


def test_damage_is_said_as_arrow_says_it(mixed: Path) -> None:
    path = mixed / "0.parquet"
    chunk = pq.read_metadata(path).row_group(1).column(1)
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset + 40)
        file.write(bytes(range(200)))
    options = [{"shuffle": True, "window_rows": rows, "columns": ["a", "b"]} for rows in (200, 4000)]
    for arguments, expected in zip(options, without_kernels(mixed, options), strict=True):
        with pytest.raises(DataError, match=r"0\.parquet.*row group 1.*column 'b'") as caught:
            batches(mixed, **arguments)
        assert str(caught.value) == expected


POLICIES: dict[str, dict[str, Any]] = {
    "fill": {"f": Scalar("float32", fill=math.nan), "i": Scalar("int16", fill=-3), "b": Scalar("bool", fill=True)},
    "mask": {"f": Scalar("float32", null="mask"), "i": Scalar("int16", null="mask"), "b": Scalar("bool", null="mask")},
    "masked fill": {"f": Scalar("float32", null="mask", fill=0.5), "i": Scalar("int16", null="mask", fill=7)},
    "other types": {"f": Scalar("float64", fill=2.5), "i": Scalar("int64", fill=2**40)},
    "pairs": {"pair": Tensor("float32", (2,), fill=1.5)},
}


@pytest.mark.parametrize("has_statistics", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_nulls_are_delivered_the_same_with_and_without(tmp_path: Path, has_statistics: bool) -> None:
    arrays = {"f": pa.float32(), "i": pa.int16(), "b": pa.bool_(), "pair": pa.binary(8)}
    table = pa.table({n: with_nulls(values(t, 3000, 900, 5), 0.3, 5) for n, t in arrays.items()})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1100, write_statistics=has_statistics)
    options: list[dict[str, Any]] = [
        {"schema": Schema(fields), "columns": list(fields), "shuffle": True, "window_rows": 1500}
        for fields in POLICIES.values()
    ]
    for arguments, expected in zip(options, without_kernels(tmp_path, options), strict=True):
        found = batches(tmp_path, **arguments)
        assert len(found) == len(expected) == -(-3000 // 64)
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys() >= set(arguments["columns"])
            assert all(one[name].dtype == other[name].dtype for name in one)
            assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("has_statistics", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_null_that_is_refused_is_said_as_without_kernels(tmp_path: Path, has_statistics: bool) -> None:
    array = pa.array([1] * 700 + [None] + [0] * 300)
    types = {"f": pa.float32(), "i": pa.int16(), "b": pa.bool_()}
    table = pa.table({name: array.cast(type_) for name, type_ in types.items()})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=has_statistics)
    options: list[dict[str, Any]] = [{"schema": Schema({name: Scalar(type_)})} for name, type_ in types.items()]
    for arguments, expected in zip(options, without_kernels(tmp_path, options), strict=True):
        with pytest.raises(DataError, match=r"column '.', row 700: is null") as caught:
            batches(tmp_path, **arguments)
        assert str(caught.value) == expected


@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
def test_a_library_that_is_missing_broken_or_of_other_source_is_not_used(tmp_path: Path) -> None:
    broken, right, other, older = (tmp_path / f"{name}.so" for name in ("broken", "right", "other", "older"))
    assert _load(broken)[0] is None
    broken.write_bytes(b"no library")
    assert _load(broken)[0] is None
    library = LIBRARY.read_bytes()
    right.write_bytes(library)
    assert _load(right)[0] is not None
    other.write_bytes(library.replace(digest().encode(), b"0" * len(digest())))
    assert _load(other) == (None, "it was compiled from the source of another version")
    older.write_bytes(library.replace(b"kernels_digest", b"kernels_hashed"))
    assert "kernels_digest" in _load(older)[1]


def test_without_a_compiler_there_is_no_library_and_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    (tmp_path / "kernels.so").write_bytes(b"an older one")
    assert build(tmp_path / "kernels.so") == "there is no C compiler"
    assert not (tmp_path / "kernels.so").exists()


CODEC_STUBS = """
#include <stddef.h>
void *libdeflate_alloc_decompressor(void) { return NULL; }
int libdeflate_gzip_decompress_ex(void *d, const void *i, size_t n, void *o, size_t m, size_t *r, size_t *w) {
  return 1;
}
void libdeflate_free_decompressor(void *d) {}
void *ZSTD_createDCtx(void) { return NULL; }
size_t ZSTD_decompressDCtx(void *d, void *o, size_t m, const void *i, size_t n) { return 0; }
size_t ZSTD_freeDCtx(void *d) { return 0; }
"""


@pytest.mark.slow
@needs_compiler
def test_codecs_are_linked_in_if_their_sources_are_given(tmp_path: Path) -> None:
    (tmp_path / "codecs" / "both").mkdir(parents=True)
    (tmp_path / "codecs" / "both" / "stubs.c").write_text(CODEC_STUBS)
    assert build(tmp_path / "kernels.so", options=("-O0",), codecs=tmp_path / "codecs") is None
    library, problem = _load(tmp_path / "kernels.so")
    assert (library.codecs_load(), problem) == (0b11111, "")
    assert b"libzstd.so" not in (tmp_path / "kernels.so").read_bytes(), "the system's libraries are not looked for"


def test_no_other_compiler_is_tried_than_the_one_that_is_named(tmp_path: Path) -> None:
    assert build(tmp_path / "kernels.so", compiler="no-such-compiler") == "there is no C compiler"


def test_where_no_library_can_be_written_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nowhere" in (build(tmp_path / "nowhere" / "kernels.so") or "")
    (tmp_path / "folder.so").mkdir()
    assert "folder.so" in (build(tmp_path / "folder.so") or "")
    monkeypatch.setenv("CC", "gcc '")
    assert build(tmp_path / "kernels.so") == "No closing quotation"


def library_of(compiler: str, name: str) -> str:
    asked = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"gcc has no {name}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("vectors", [VECTORS, ()] if VECTORS else [()], ids=lambda flags: " ".join(flags) or "plain")
def test_no_byte_is_touched_that_is_not_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: tuple[str, ...]
) -> None:
    """Repeats the tests of damage with kernels that were compiled with sanitizers."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc, whose address sanitizer this needs")
    library = tmp_path / "kernels.so"
    monkeypatch.setenv("CC", compiler)
    assert build(library, options=SANITIZERS + vectors) is None
    environment = {
        **os.environ,
        # Arrow's exceptions are thrown through the sanitizer, which has to find the C++ library first.
        "LD_PRELOAD": " ".join(library_of(compiler, name) for name in ("libasan.so", "libstdc++.so")),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PARQUET_LOADER_KERNELS": str(library),
    }
    chosen = "arrow_decodes or arrow_does or changed_anywhere or ends_early or any_order or passed_over or gave_less"
    files = [__file__, str(Path(__file__).with_name("test_pages.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *files]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]


@pytest.mark.parametrize("before", [[], ["number"]], ids=["alone", "behind a dictionary"])
def test_booleans_have_no_dictionary_whatever_their_pages_say(tmp_path: Path, before: list[str]) -> None:
    columns = [pa.array([7] * 48) for _ in before] + [pa.array([True] * 48)]
    types = [pa.field(name, pa.int64(), nullable=False) for name in before] + [pa.field("x", pa.bool_(), False)]
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table(columns, schema=pa.schema(types)), file, compression="none", use_dictionary=before,
        data_page_size=1, write_batch_size=24, write_statistics=False, column_encoding={"x": "PLAIN"},
    )  # fmt: skip
    content = file.read_bytes()
    page = bytes.fromhex("150015061506 2c 1530 1500 1506 1506 1c000000 ffffff")  # 24 booleans, packed
    lying = bytes.fromhex("150015061506 2c 1530 1510 1506 1506 1c000000 013000")  # 24 times the first dictionary entry
    first = content.index(page)
    second = content.index(page, first + len(page))
    content = content[:second] + lying + content[second + len(page) :]
    footer = content.index(bytes.fromhex("1500 1925 0600 1918 0178"))  # a boolean column with the encodings RLE, PLAIN
    content = content[: footer + 4] + b"\x10" + content[footer + 5 :]  # RLE_DICTIONARY instead of RLE
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0"), BatchedDataLoader(file, 48) as loader:
        list(loader)


@settings(max_examples=examples(60), deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["lists", "bytes", "number"]), min_size=1, max_size=3),
    each=st.sampled_from([2, 3, 70, 5000]),
    rows=st.integers(1, 60),
    codec=st.sampled_from(CODECS),
    version=st.sampled_from(["1.0", "2.0"]),
    encoding=st.integers(-1, 2),
    page_bytes=st.sampled_from([100, 3000, 2**20]),
    in_memory=st.booleans(),
    share=st.sampled_from([0, 0, 0.1, 0.9]),
    seed=st.integers(0, 100),
)
def test_rows_go_to_their_slots(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[str],
    each: int,
    rows: int,
    codec: str,
    version: str,
    encoding: int,
    page_bytes: int,
    in_memory: bool,
    share: float,
    seed: int,
) -> None:
    path, rng = tmp_path_factory.mktemp("native") / "a.parquet", np.random.default_rng(seed)
    data = {f"c{n}": values(pa.int32(), rows * each, 40, seed=n) for n in range(len(kinds))}
    arrays = {}
    for name, kind in zip(data, kinds, strict=True):
        lists = pa.FixedSizeListArray.from_arrays(data[name], each)
        wide = pa.Array.from_buffers(pa.binary(4 * each), rows, [None, data[name].buffers()[1]])
        arrays[name] = {"lists": lists, "bytes": wide, "number": data[name][:rows]}[kind]
    options: dict[str, Any] = {"compression": codec, "data_page_version": version, "data_page_size": page_bytes}
    leaf = {"lists": ".list.element", "bytes": "", "number": ""}
    if encoding >= 0:
        options["column_encoding"] = {
            f"{name}{leaf[kind]}": encodings_of(pa.binary(1) if kind == "bytes" else pa.int32())[
                encoding % (2 if kind == "bytes" else 3)
            ]
            for name, kind in zip(data, kinds, strict=True)
        }
    pq.write_table(pa.table(arrays), path, use_dictionary=encoding < 0, write_batch_size=16, **options)
    is_deleted = rng.random(rows) < share
    is_deleted[rng.integers(rows)] = False
    alive = np.flatnonzero(~is_deleted)
    deleted = SkippedRows(np.flatnonzero(is_deleted), 0)
    source = pa.py_buffer(path.read_bytes()) if in_memory else str(path)
    widths = [4 if kind == "number" else 4 * each for kind in kinds]
    order = rng.permutation(len(alive))
    outs = [np.full((len(alive) + 2, width), 0xA5, np.uint8) for width in widths]
    with NativeChunks(source, known(path)) as native_chunks:
        cuts = np.unique([0, *rng.integers(0, len(alive) + 1, 2), len(alive)]).tolist()
        for first, stop in itertools.pairwise(cuts):
            slots = [None if kind == "number" else order[first:stop] for kind in kinds]
            begins = [1 + first if own is None else 1 for own in slots]
            places = np.array([out[b:].ctypes.data for out, b in zip(outs, begins, strict=True)], np.int64)
            span = deleted.alive(first, stop - first)
            of_all = [None if own is None else _slots_of_all(span, own) for own in slots]
            native_chunks.read_alive(span, places, of_all)
    for out, name, kind, width in zip(outs, data, kinds, widths, strict=True):
        expected = data[name].to_numpy().view(np.uint8)[: rows * width].reshape(rows, width)[alive]
        found = out[1:-1] if kind == "number" else out[1:-1][order]
        assert np.array_equal(found, expected)
        assert (out[[0, -1]] == 0xA5).all(), "nothing is written before or behind the rows"


BY_ARROW = ReadOptions(verify_checksums=True)
EMBEDDING = Tensor("float32", (100,))


def embeddings(folder: Path, lists: list[Any], **options: Any) -> Path:
    folder.mkdir()
    offsets = np.cumsum([0, *(0 if row is None else len(row) for row in lists)], dtype=np.int32)
    numbers = pa.array([n for row in lists if row is not None for n in row], pa.float32())
    mask = [row is None for row in lists]
    type_ = pa.list_(pa.field(options.pop("element", "element"), pa.float32()))
    array = pa.ListArray.from_arrays(offsets, numbers, type=type_, mask=pa.array(mask) if any(mask) else None)
    table = pa.table({"e": array, "row": np.arange(len(lists))})
    pq.write_table(table, folder / "a.parquet", row_group_size=90, store_schema=False, **options)
    return folder


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_compliant_nested_type": False, "element": "array_element"},
        {"use_dictionary": False, "data_page_version": "2.0"},
        {"write_statistics": False, "data_page_size": 1000},
    ],
)
def test_embeddings_go_straight_to_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    lists = list(rng.integers(0, 9, (200, 100)).astype(np.float32))
    folder = embeddings(tmp_path / "data", lists, compression=compression, **options)

    def no_arrays(self: NativeChunks, rows: int) -> Any:
        raise AssertionError(f"{self.names} were decoded to arrays")

    monkeypatch.setattr(NativeChunks, "read", no_arrays)
    found = batches(folder, schema=Schema({"e": EMBEDDING, "row": Scalar("int64")}), shuffle=True, window_rows=100)
    rows = np.concatenate([batch["row"] for batch in found])
    assert sorted(rows.tolist()) == list(range(200))
    assert np.array_equal(np.concatenate([batch["e"] for batch in found]), np.array(lists)[rows])


@pytest.mark.parametrize("has_statistics", [True, False])
@pytest.mark.parametrize("fill", [None, 7.0])
@pytest.mark.parametrize("fault", [None, [1.0] * 99, [1.0] * 99 + [None], []])
def test_a_row_that_is_no_whole_embedding_is_filled_or_refused_as_without_kernels(
    tmp_path: Path, has_statistics: bool, fill: float | None, fault: Any
) -> None:
    lists: list[Any] = [[float(n)] * 100 for n in range(200)]
    lists[133] = fault
    if fault is not None and len(fault) != 100:
        lists[150] = [1.0] * (200 - len(fault))  # so that the footer's numbers add up
    folder = embeddings(tmp_path / "data", lists, write_statistics=has_statistics)
    schema = Schema({"e": Tensor("float32", (100,), fill=fill), "row": Scalar("int64")})

    def outcome(**arguments: Any) -> Any:
        try:
            found = batches(folder, schema=schema, **arguments)
            return [{name: array.tolist() for name, array in batch.items()} for batch in found]
        except DataError as error:
            return str(error)

    found = outcome()
    assert outcome(read_options=BY_ARROW) == found
    assert isinstance(found, str) == (fill is None or (fault is not None and len(fault) != 100))


LOGICAL = [
    pa.timestamp("s"),
    pa.timestamp("ms", tz="Europe/Berlin"),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("ns"),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.date32(),
    pa.date64(),
    pa.duration("s"),
    pa.duration("ns"),
    pa.float16(),
    *(pa.decimal128(p, s) for p, s in [(1, 0), (9, 2), (15, 15), (18, 3), (25, 22), (38, 7), (38, 38), (20, 0)]),
]


def of_logical_type(type_: pa.DataType, rows: int, seed: int = 0) -> pa.Array:
    rng = np.random.default_rng(seed)
    if pa.types.is_decimal(type_):
        most = min(10**type_.precision - 1, 2**62)
        numbers = [int(n) for n in rng.integers(-most, most + 1, rows)]
        whole = [
            n * 10 ** max(0, type_.precision - 19) if i % 5 else n % min(1000, most) for i, n in enumerate(numbers)
        ]
        low_high = np.array([[n & (2**64 - 1), (n >> 64) & (2**64 - 1)] for n in whole], np.uint64)
        return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(low_high)])
    if pa.types.is_float16(type_):
        return pa.array(rng.normal(size=rows).astype(np.float16))
    day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.get(getattr(type_, "unit", ""), 1)
    if pa.types.is_time(type_):
        return (
            pa.array(rng.integers(0, day, rows)).cast(pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
        )
    if pa.types.is_date(type_):
        return pa.array(rng.integers(-40_000, 40_000, rows).astype(np.int32)).cast(pa.date32()).cast(type_)
    return pa.array(rng.integers(-40_000 * day, 40_000 * day, rows)).cast(type_)


@pytest.mark.parametrize("share", [0, 0.1])
@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "store_decimal_as_integer": True}])
def test_dates_times_and_decimals_are_those_that_arrow_decodes(
    tmp_path: Path, options: dict[str, Any], share: float
) -> None:
    rows, path = 300, tmp_path / "a.parquet"
    arrays = {str(type_): with_nulls(of_logical_type(type_, rows), share, 3) for type_ in LOGICAL}
    pq.write_table(pa.table(arrays), path, data_page_size=500, write_batch_size=64, **options)
    expected = pq.read_table(path)
    with NativeChunks(str(path), known(path)) as native_chunks:
        assert set(arrays) - set(native_chunks.names) == {"time32[s]"} - set(arrays)
        for name, array in zip(native_chunks.names, native_chunks.read(rows), strict=True):
            array.validate(full=True)
            assert array.equals(expected[name].chunk(0)), name


DAY = 86_400 * 10**9
JULIAN_DAY_OF_1970 = 2_440_588


def int96_file(path: Path, times: pa.Array, **options: Any) -> Path:
    """Write INT96 timestamps, in the column ``t``."""
    pq.write_table(pa.table({"t": times}), path, use_deprecated_int96_timestamps=True, **options)
    return path


def file_of_one_int96(folder: Path, day: int, time: int, *, dictionary: bool) -> Path:
    """Write the INT96 timestamp of a day since 1970 and nanoseconds, as they are, and one that is 0."""
    times = pa.array([20_000 * DAY + 12_345, 0], pa.timestamp("ns"))  # 12,345: no other bytes are the same
    path = int96_file(folder / "a.parquet", times, use_dictionary=dictionary, compression="none")
    old = (12_345).to_bytes(8, "little") + (JULIAN_DAY_OF_1970 + 20_000).to_bytes(4, "little")
    new = time.to_bytes(8, "little", signed=True) + (JULIAN_DAY_OF_1970 + day).to_bytes(4, "little")
    assert path.read_bytes().count(old) == 1
    path.write_bytes(path.read_bytes().replace(old, new))
    return path


@pytest.mark.parametrize("share", [0, 0.1])
@pytest.mark.parametrize("distinct", [5, 3_000])
@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}], ids=str)
def test_int96_timestamps_are_those_that_arrow_decodes(
    tmp_path: Path, options: dict[str, Any], distinct: int, share: float
) -> None:
    rng = np.random.default_rng(distinct)
    times = rng.integers(-106_750 * DAY, 106_751 * DAY, distinct)
    times[:4] = 0, -1, -106_750 * DAY, 106_751 * DAY - 1
    array = with_nulls(pa.array(times[rng.integers(0, distinct, 3_000)], pa.timestamp("ns")), share, 5)
    path = int96_file(tmp_path / "a.parquet", array, data_page_size=2_000, write_batch_size=100, **options)
    if pc.max(pq.read_table(path, coerce_int96_timestamp_unit="s")["t"]).cast(pa.int64()).as_py() > 2**34:
        pytest.skip("pyarrow before 23 writes INT96 timestamps before 1970 as negative times of the next day")
    expected = pq.read_table(path)["t"].combine_chunks()
    with NativeChunks(str(path), known(path)) as native_chunks:
        for first, some in ((0, 1_777), (1_777, 1_223)):
            (found,) = native_chunks.read(some)
            found.validate(full=True)
            assert found.equals(expected.slice(first, some))


@pytest.mark.parametrize(("day", "time"), [(0, DAY), (3, 2 * DAY + 5), (106_751, 7), (-106_751, DAY + 9)])
@pytest.mark.parametrize("dictionary", [True, False])
def test_an_int96_timestamp_that_kernels_do_not_convert_is_left_to_arrow(
    tmp_path: Path, day: int, time: int, dictionary: bool
) -> None:
    path = file_of_one_int96(tmp_path, day, time, dictionary=dictionary)
    with NativeChunks(str(path), known(path)) as native_chunks, pytest.raises(NotDecodedError):
        native_chunks.read(2)
    (batch,) = batches(path)
    assert batch["t"].tolist() == [day * DAY + time, 0]


@pytest.mark.parametrize(("day", "time"), [(0, -1), (-3, 1 - DAY), (-106_750, 1 - DAY)])
@pytest.mark.parametrize("dictionary", [True, False])
def test_an_int96_timestamp_may_be_a_negative_time_of_the_next_day(
    tmp_path: Path, day: int, time: int, dictionary: bool
) -> None:
    """As pyarrow before 23 writes times before 1970; Arrow reads them in nanoseconds, but not in other units."""
    path = file_of_one_int96(tmp_path, day, time, dictionary=dictionary)
    (batch,) = batches(path)
    assert batch["t"].tolist() == pq.read_table(path)["t"].cast(pa.int64()).to_pylist() == [day * DAY + time, 0]
    (batch,) = batches(path, filters=pc.field("t").is_valid())
    assert batch["t"].tolist() == [day * DAY + time, 0]
    with ParquetDataset(path).rows(output_options=OutputOptions(format="numpy")) as rows:
        assert rows[0]["t"].item() == day * DAY + time


def test_an_int96_timestamp_on_a_later_page_that_does_not_fit_nanoseconds_is_an_error(tmp_path: Path) -> None:
    times = np.zeros(5_000, "datetime64[us]")
    times[4_321] = np.datetime64("3000-01-01")
    path = int96_file(tmp_path / "a.parquet", pa.array(times), data_page_size=500, write_batch_size=100)
    for options in ({}, {"shuffle": True, "window_rows": 5_000}, {"filters": pc.field("t").is_valid()}):
        with pytest.raises(DataError, match=r"column 't', rows .*the INT96 timestamp 3000-01-01 00:00:00 does not fit"):
            batches(path, **options)


@pytest.mark.parametrize("share", [0, 0.1])
def test_dates_times_and_decimals_are_delivered_the_same_with_and_without(tmp_path: Path, share: float) -> None:
    arrays = {f"c{n}": with_nulls(of_logical_type(type_, 300), share, n) for n, type_ in enumerate(LOGICAL)}
    arrays["int96"] = arrays["c3"]
    pq.write_table(pa.table(arrays), tmp_path / "a.parquet")
    pq.write_table(pa.table({"int96": arrays["c3"]}), tmp_path / "b.parquet", use_deprecated_int96_timestamps=True)
    seconds = pq.read_table(tmp_path / "b.parquet", coerce_int96_timestamp_unit="s").column(0)
    if pc.max(seconds).cast(pa.int64()).as_py() > 2**34:
        pytest.skip("pyarrow before 23 writes INT96 timestamps before 1970 as negative times of the next day")
    found = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.parquet"
        fields = Schema.infer(path).items()
        schema = Schema({n: Scalar(f.type, fill=1) for n, f in fields if isinstance(f, Scalar)})
        assert len(schema) == (1 if name == "b" else len(arrays))
        found.append(batches(path, schema=schema))
        expected = batches(path, schema=schema, read_options=BY_ARROW)
        for one, other in zip(found[-1], expected, strict=True):
            for column in one:
                assert one[column].dtype == other[column].dtype
                assert one[column].tobytes() == other[column].tobytes(), column
    for number, type_ in enumerate(LOGICAL):
        if pa.types.is_decimal(type_) and not share:
            values_of = [float(value) for value in arrays[f"c{number}"].to_pylist()]
            assert np.concatenate([batch[f"c{number}"] for batch in found[0]]).tolist() == values_of


def test_decimals_of_varying_width_are_left_to_arrow_also_if_all_are_null(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = pa.array([None] * 50 + [b"\x01\x00"] * 50, pa.binary())
    pq.write_table(pa.table({"price": values}), path, row_group_size=50, store_schema=False)
    file = pages_of(path)
    element = file.footer[2][1][1][1]
    element |= {6: (INT32, 5), 7: (INT32, 2), 8: (INT32, 9)}  # DECIMAL(9, 2)
    file.write(path)
    assert pq.read_table(path).column("price").to_pylist() == [None] * 50 + [Decimal("2.56")] * 50
    assert known(path).names == []
    found = batches(path, schema=Schema({"price": Scalar("decimal128(9, 2)", fill=-1.0)}))
    assert np.concatenate([batch["price"] for batch in found]).tolist() == [-1.0] * 50 + [2.56] * 50


@settings(max_examples=examples(100), deadline=None)
@given(numbers=st.lists(st.none() | st.integers(-(2**54), 2**54), max_size=20), scale=st.integers(-3, 38))
def test_decimals_become_the_nearest_floats(numbers: list[int | None], scale: int) -> None:
    type_ = pa.decimal128(38, scale)
    given_numbers = [None if n is None else Decimal(n).scaleb(-scale) for n in numbers]
    array = pa.array(given_numbers, type_)
    expected = [None if n is None else float(n) for n in given_numbers]
    assert decimals_to_float64(array).to_pylist() == expected
    assert decimals_to_float64(pa.chunked_array([array, array[1:]], type_)).to_pylist() == expected + expected[1:]


INTEGERS = (
    st.integers(-9, 9)
    | st.integers(-(10**9), 10**9)
    | st.integers(-(2**54), 2**54)
    | st.builds(lambda n, zeros: n * 10**zeros, st.integers(-(10**17), 10**17), st.integers(0, 20))
    | st.integers(-(10**38) + 1, 10**38 - 1)
)


@settings(max_examples=examples(150), deadline=None)
@given(
    numbers=st.lists(st.none() | INTEGERS, min_size=1, max_size=30),
    repeats=st.sampled_from([1, 1, 40]),
    precision=st.integers(1, 38),
    scale=st.integers(0, 38),
    options=st.sampled_from(
        [
            {},
            {"use_dictionary": False},
            {"use_dictionary": False, "store_decimal_as_integer": True},
            {"use_dictionary": False, "store_decimal_as_integer": True, "column_encoding": "DELTA_BINARY_PACKED"},
            {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
        ]
    ),
    page_bytes=st.sampled_from([64, 2**20]),
    codec=st.sampled_from(["none", "snappy"]),
)
def test_kernels_write_the_float_that_is_nearest_to_a_decimal(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: list[int | None],
    repeats: int,
    precision: int,
    scale: int,
    options: dict[str, Any],
    page_bytes: int,
    codec: str,
) -> None:
    path = tmp_path_factory.mktemp("native") / "a.parquet"
    assume(options.get("column_encoding") != "DELTA_BINARY_PACKED" or precision <= 18)
    type_ = pa.decimal128(precision, min(scale, precision))
    fitting = [None if n is None else abs(n) % 10**precision * (1 if n > 0 else -1) for n in numbers]
    fitting *= repeats
    with decimal.localcontext(prec=60):
        given_numbers = [None if n is None else Decimal(n).scaleb(-type_.scale) for n in fitting]
    pq.write_table(
        pa.table({"x": pa.array(given_numbers, type_)}),
        path,
        compression=codec,
        data_page_size=page_bytes,
        write_batch_size=max(1, page_bytes // 16),
        **options,
    )
    footer, out = metadata_of(path), np.zeros(len(fitting))
    described = footer.of_row_group(0, ("x",), chunks=True, arrow=False)
    forms = {"x": decodable.WindowForm(number=pa.float64())}
    chunks = decodable.decodable_columns(described, ["x"], footer.schema.arrow, len(fitting), forms)
    fills = column_reader.Fills.of_columns(["x"], {"x": np.float64(-0.5).tobytes()})
    with NativeChunks(str(path), chunks, fills) as native_chunks:
        half = len(fitting) // 2
        native_chunks.read_into(0, half, np.array([out.ctypes.data], np.int64))
        native_chunks.read_into(half, len(fitting) - half, np.array([out[half:].ctypes.data], np.int64))
    assert out.tolist() == [-0.5 if n is None else float(n) for n in given_numbers]


def random_lists(
    type_: pa.DataType,
    rows: int,
    seed: int,
    *,
    average: float,
    null_share: float,
    list_share: float,
    empty: float,
    is_sorted: bool,
) -> pa.Array:
    """Lists of any length: some null, some empty, some of their elements null."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(1 / (average + 1), rows) - 1
    lengths[rng.random(rows) < empty] = 0
    is_null = rng.random(rows) < list_share
    if is_sorted:  # the first ones are longer than the average says
        is_null, lengths = np.sort(is_null), -np.sort(-lengths)
    lengths[is_null] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    numbers = with_nulls(values(type_.value_type, int(offsets[-1]), 90, seed), null_share, seed)
    mask = pa.array(is_null) if list_share else None
    if pa.types.is_large_list(type_):
        return pa.LargeListArray.from_arrays(offsets, numbers, mask=mask, type=type_)
    return pa.ListArray.from_arrays(offsets.astype(np.int32), numbers, mask=mask, type=type_)


@settings(max_examples=examples(120), deadline=None)
@given(
    element=st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]),
    is_large=st.booleans(),
    nullable=st.tuples(st.booleans(), st.booleans()),
    rows=st.integers(1, 700),
    average=st.sampled_from([0.3, 3, 40, 900]),
    shares=st.tuples(*[st.sampled_from([0, 0, 0.03, 0.5, 1])] * 3),
    codec=st.sampled_from(CODECS),
    version=st.sampled_from(["1.0", "2.0"]),
    encoding=st.integers(-1, 2),
    page_bytes=st.sampled_from([100, 3000, 2**20]),
    in_memory=st.booleans(),
    is_sorted=st.booleans(),
    steps=st.lists(st.integers(0, 300), max_size=6),
)
def test_lists_of_any_length_are_those_that_arrow_decodes(
    tmp_path_factory: pytest.TempPathFactory,
    element: pa.DataType,
    is_large: bool,
    nullable: tuple[bool, bool],
    rows: int,
    average: float,
    shares: tuple[float, float, float],
    codec: str,
    version: str,
    encoding: int,
    page_bytes: int,
    in_memory: bool,
    is_sorted: bool,
    steps: list[int],
) -> None:
    path = tmp_path_factory.mktemp("native") / "a.parquet"
    rows = min(rows, int(40_000 / average))
    kind = pa.large_list if is_large else pa.list_
    type_ = kind(pa.field("element", element, nullable=nullable[1]))
    null_share, list_share = shares[0] * nullable[1], shares[1] * nullable[0]
    lists = random_lists(
        type_,
        rows,
        rows,
        average=average,
        null_share=null_share,
        list_share=list_share,
        empty=shares[2],
        is_sorted=is_sorted,
    )
    table = pa.table([lists, range(rows)], pa.schema([pa.field("a", type_, nullable=nullable[0]), ("b", pa.int64())]))
    options: dict[str, Any] = {"compression": codec, "data_page_version": version, "data_page_size": page_bytes}
    if encoding >= 0:
        encodings = encodings_of(element)
        options["column_encoding"] = {"a.list.element": encodings[encoding % len(encodings)], "b": "PLAIN"}
    pq.write_table(table, path, use_dictionary=encoding < 0, write_batch_size=16, **options)
    pages = pages_of(path).chunks[0].pages  # pyarrow may write pages without values, which are Arrow's
    assume(all(page.described[1][1] for page in pages))
    expected = pq.read_table(path).combine_chunks()
    source = pa.py_buffer(path.read_bytes()) if in_memory else str(path)
    with NativeChunks(source, known(path)) as chunks:
        assert chunks.names == ["a", "b"]
        at = 0
        for step in [*steps, rows]:
            some = min(step, rows - at)
            for array, column in zip(chunks.read(some), expected.columns, strict=True):
                array.validate(full=True)
                assert array.type == column.type
                assert is_same_column(array, column.chunk(0).slice(at, some)), (at, some)
            at += some


def is_same_column(found: Any, expected: Any) -> bool:
    """Compare lists by their lengths and their elements' bits; Arrow says that NaN is not equal to itself."""
    if not pa.types.is_list(found.type) and not pa.types.is_large_list(found.type):
        return is_same(found, expected)
    lengths = pc.list_value_length(found).equals(pc.list_value_length(expected))
    return lengths and is_same(found.flatten(), expected.flatten())


@pytest.mark.parametrize("place", [0, 1023, 1024, 3000, 5999])
def test_one_null_among_many_elements_is_found_wherever_it_is(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.parquet"
    elements = pa.array([None if number == place else number for number in range(6000)], pa.int32())
    offsets = [0, 10, 2500, 2500, 5000, 6000]  # the kernel unpacks 1024 levels at a time
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements)
    pq.write_table(pa.table({"a": lists}), path)
    with NativeChunks(str(path), known(path)) as chunks:
        found = pa.concat_arrays([chunks.read(rows)[0] for rows in (1, 4)])
    assert found.null_count == 0
    assert found.equals(lists)


ROWS_OF_LARGE_PAGES: dict[str, list[int]] = {
    "one element": [1] * 70_000,
    "few elements": [1 + n % 9 for n in range(16_000)],
    "several pages": [3, 61_000, 1, 1, 40_000, 7, 30_000],
    "with empty lists": [0, 20_000, 0, 0, 50_000, 30, 0],
}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("lengths", ROWS_OF_LARGE_PAGES.values(), ids=ROWS_OF_LARGE_PAGES.keys())
@pytest.mark.parametrize("element", [pa.int16(), pa.int32(), pa.float64()], ids=str)
@pytest.mark.parametrize("null", [None, 0, 65_000])
@pytest.mark.parametrize("page_bytes", [70_000, 2**18])
def test_lists_in_large_uncompressed_pages_are_those_that_arrow_decodes(
    tmp_path: Path, version: str, lengths: list[int], element: pa.DataType, null: int | None, page_bytes: int
) -> None:
    path = tmp_path / "a.parquet"
    elements = np.random.default_rng(0).integers(0, 2**15, sum(lengths))
    mask = None if null is None else np.arange(len(elements)) == null
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(elements, mask=mask).cast(element))
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "data_page_version": version}
    pq.write_table(pa.table({"a": lists}), path, data_page_size=page_bytes, **options)
    assert max(page.header[PLAIN_BYTES][1] for page in pages_of(path).chunks[0].pages) > 2**16
    with NativeChunks(str(path), known(path)) as chunks:
        steps = [1, 2, len(lists) // 2, len(lists)]
        begins = [0, 1, 3, 3 + len(lists) // 2]
        for begin, step in zip(begins, steps, strict=True):
            (found,) = chunks.read(min(step, len(lists) - begin))
            found.validate(full=True)
            assert found.equals(lists.slice(begin, step)), begin


@pytest.mark.parametrize("part", [0, 1], ids=["repetition levels", "definition levels"])
@pytest.mark.parametrize("length", [0, 1, 5000, 79_990, 2**31 - 1, 2**32 - 1])
def test_wrong_lengths_of_levels_in_large_pages_are_refused(tmp_path: Path, part: int, length: int) -> None:
    path = tmp_path / "a.parquet"
    lists = pa.array([list(range(20_000))], pa.list_(pa.int32()))
    pq.write_table(pa.table({"a": lists}), path, compression="none", use_dictionary=False)
    file = pages_of(path)
    (page,) = file.chunks[0].pages
    body = bytearray(page.body)
    at = 0 if part == 0 else 4 + int.from_bytes(body[:4], "little")
    body[at : at + 4] = length.to_bytes(4, "little")
    page.body = bytes(body)
    file.write(path)
    with NativeChunks(str(path), known(path)) as chunks, pytest.raises(NotDecodedError):
        chunks.read(1)


def test_trimming_returns_the_page_buffers_that_closed_chunks_left(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**60, 1_000_000)
    pq.write_table(pa.table({"a": values}), tmp_path / "a.parquet", dictionary_pagesize_limit=2**24)
    with NativeChunks(str(tmp_path / "a.parquet"), known(tmp_path / "a.parquet")) as native_chunks:
        assert is_same(native_chunks.read(1_000_000)[0], pa.array(values))
    before = psutil.Process().memory_info().rss
    trim_buffers()
    assert before - psutil.Process().memory_info().rss >= 7 * 2**20


LIST_ROWS: list[Any] = [[1, 2], [3], [], [4, 5, 6], *[[n] * (n % 5) for n in range(300)]]


@pytest.mark.parametrize("fault", [{}, {2: None}, {3: [4, None]}, {2: None, 3: [None]}, {200: None}])
@pytest.mark.parametrize("policy", ["refuse", "fill", "mask"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_nulls_of_lists_are_delivered_or_refused_as_by_arrow(
    tmp_path: Path, fault: dict[int, Any], policy: str, version: str
) -> None:
    rows = [fault.get(number, row) for number, row in enumerate(LIST_ROWS)]
    table = pa.table({"a": pa.array(rows, pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "a.parquet", data_page_version=version, row_group_size=170)
    item = Scalar("int32", fill=-1) if policy == "fill" else Scalar("int32")
    policies: dict[str, RaggedList] = {
        "refuse": RaggedList(item),
        "fill": RaggedList(item, fill=()),
        "mask": RaggedList(item, null="mask"),
    }
    schema = Schema({"a": policies[policy]})

    def outcome(**arguments: Any) -> Any:
        try:
            found = batches(tmp_path, schema=schema, shuffle=True, **arguments)
            return [{name: list_of(column) for name, column in batch.items()} for batch in found]
        except DataError as error:
            return str(error)

    assert outcome() == outcome(read_options=BY_ARROW)
    if policy == "fill":
        assert not isinstance(outcome(), str)


@pytest.mark.parametrize("others", [(), ("number",), ("text",)])
@pytest.mark.parametrize("written", [{}, {"use_dictionary": False, "compression": "none", "data_page_size": 2**17}])
@pytest.mark.parametrize("null_row", [None, 0, 50_000])
def test_lists_of_whole_row_groups_are_delivered_as_they_were_written(
    tmp_path: Path, others: tuple[str, ...], written: dict[str, Any], null_row: int | None
) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 60_000)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    valid = np.arange(len(lengths)) != null_row
    lists = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(rng.integers(0, 1000, offsets[-1]).astype(np.int32)), mask=pa.array(~valid)
    )
    columns = {"lists": lists, "number": pa.array(np.arange(len(lengths))), "text": pa.array(lengths.astype(str))}
    table = pa.table({name: columns[name] for name in ("lists", *others)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000, **written)
    schema = Schema({"lists": RaggedList("int32", fill=())}, extra="infer")
    found = batches(tmp_path, schema=schema, window_rows=14_000, num_threads=2)
    values = np.concatenate([batch["lists"].values for batch in found])
    kept = np.repeat(valid, lengths)
    np.testing.assert_array_equal(values, lists.values.to_numpy()[kept])
    np.testing.assert_array_equal(np.concatenate([b["lists"].lengths for b in found]), lengths * valid)
    if "number" in others:
        np.testing.assert_array_equal(np.concatenate([b["number"] for b in found]), np.arange(len(lengths)))
    if "text" in others:
        assert [word for batch in found for word in batch["text"].to_list()] == lengths.astype(str).tolist()


def test_lists_of_a_footer_that_claims_a_million_million_values_are_read(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    lists = pa.array([list(range(n % 7)) for n in range(4000)], pa.list_(pa.int32()))
    pq.write_table(pa.table({"lists": lists}), path, row_group_size=2000)
    rewrite_footer(path, lambda footer: put(column_chunk(footer, 1, 0), 5, 10**12))
    found = batches(tmp_path, window_rows=2000)
    assert [row for batch in found for row in list_of(batch["lists"])] == lists.to_pylist()


def list_of(column: Any) -> list[Any]:
    return [row.tolist() for row in column.to_list()] if isinstance(column, Ragged) else list(column.tolist())
