"""Random Parquet data sets, written by plain pyarrow: what they are is drawn by Hypothesis, the values by a seed."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

Generator: TypeAlias = np.random.Generator

WORDS = ["", "a", "Straße", "日本語", "emoji 🚀🚀", "line\nbreak", "nul\0inside", "é" * 40, "x" * 300, "ﬀ", "\u202ertl"]
FLOATS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.5, 5e-324, 1e-40, 65504.0, 1e300]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of column: an Arrow type, and how to make `rows` values of it."""

    name: str
    type: pa.DataType
    make: Callable[[Generator, int], list[Any]]


def _integers(type_: pa.DataType) -> Callable[[Generator, int], list[Any]]:
    bounds = np.iinfo(type_.to_pandas_dtype())

    def make(rng: Generator, rows: int) -> list[Any]:
        values = rng.integers(bounds.min, bounds.max, rows, dtype=bounds.dtype, endpoint=True).tolist()
        if rows:
            values[0] = int(rng.choice([0, 1])) or int(bounds.max)
            values[-1] = int(bounds.min)
        return list(values)

    return make


def _floats(rng: Generator, rows: int) -> list[Any]:
    values = rng.standard_normal(rows).astype("f4").tolist()
    values[::5] = [FLOATS[number] for number in rng.integers(len(FLOATS), size=len(values[::5])).tolist()]
    return list(values)


def _halves(rng: Generator, rows: int) -> list[Any]:
    with np.errstate(over="ignore"):
        return list(np.array(_floats(rng, rows)).astype("f2"))


def _with_nulls(make: Callable[[Generator, int], list[Any]]) -> Callable[[Generator, int], list[Any]]:
    def nullable(rng: Generator, rows: int) -> list[Any]:
        share = float(rng.choice([0.0, 0.1, 0.9, 1.0]))
        return [None if missing else v for v, missing in zip(make(rng, rows), rng.random(rows) < share, strict=True)]

    return nullable


def _texts(rng: Generator, rows: int) -> list[Any]:
    return [WORDS[i] + str(i) * (i % 2) for i in rng.integers(len(WORDS), size=rows).tolist()]


def _blobs(rng: Generator, rows: int) -> list[Any]:
    return [rng.bytes(int(n)) for n in rng.integers(0, 20, rows)]


def _between(low: int, high: int) -> Callable[[Generator, int], list[Any]]:
    return lambda rng, rows: list(rng.integers(low, high, rows).tolist())


def _days(rng: Generator, rows: int) -> list[Any]:
    return [dt.date(1, 1, 1) + dt.timedelta(days=int(d)) for d in rng.integers(0, 3_652_058, rows)]


def _decimals(rng: Generator, rows: int) -> list[Any]:
    return [Decimal(int(v)).scaleb(-3) for v in rng.integers(-(10**14), 10**14, rows)]


def _lists(make: Callable[[Generator, int], list[Any]], low: int, high: int) -> Callable[[Generator, int], list[Any]]:
    """Lists of `low` to `high` (inclusive) values."""

    def lists(rng: Generator, rows: int) -> list[Any]:
        lengths = rng.integers(low, high, rows, endpoint=True).tolist()
        values = make(rng, sum(lengths))
        ends = np.cumsum(lengths).tolist()
        return [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    return lists


def _structs(**fields: Callable[[Generator, int], list[Any]]) -> Callable[[Generator, int], list[Any]]:
    def structs(rng: Generator, rows: int) -> list[Any]:
        columns = [make(rng, rows) for make in fields.values()]
        return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]

    return structs


def _maps(rng: Generator, rows: int) -> list[Any]:
    return [[(f"{i}{w}", i) for i, w in enumerate(row)] for row in _lists(_texts, 0, 3)(rng, rows)]


_int8, _int16, _int32, _int64 = (_integers(t) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64()))

KINDS = (
    Kind("flag", pa.bool_(), lambda rng, rows: list((rng.random(rows) < 0.3).tolist())),
    *(
        Kind(str(t), t, _integers(t))
        for t in (
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.uint8(),
            pa.uint16(),
            pa.uint32(),
            pa.uint64(),
        )
    ),
    Kind("half", pa.float16(), _halves),
    Kind("float", pa.float32(), _floats),
    Kind("double", pa.float64(), _floats),
    Kind("half_null", pa.float16(), _with_nulls(_halves)),
    Kind("float_null", pa.float32(), _with_nulls(_floats)),
    Kind("double_null", pa.float64(), _with_nulls(_floats)),
    Kind("date32", pa.date32(), _days),
    Kind("date64", pa.date64(), _days),
    Kind("time_ms", pa.time32("ms"), _between(0, 86_400_000)),
    Kind("time_us", pa.time64("us"), _between(0, 86_400_000_000)),
    Kind("time_ns", pa.time64("ns"), _between(0, 86_400_000_000_000)),
    Kind("stamp_ms", pa.timestamp("ms"), _between(-(2**45), 2**45)),
    Kind("stamp_us", pa.timestamp("us", tz="UTC"), _between(-(2**50), 2**50)),
    Kind("stamp_ns", pa.timestamp("ns", tz="Europe/Berlin"), _between(-(2**62), 2**62)),
    Kind("duration", pa.duration("us"), _between(-(2**50), 2**50)),
    Kind("decimal", pa.decimal128(15, 3), _decimals),
    Kind("text", pa.string(), _texts),
    Kind("large_text", pa.large_string(), _texts),
    Kind("text_view", pa.string_view(), _texts),
    Kind("category", pa.dictionary(pa.int32(), pa.string()), _texts),
    Kind("blob", pa.binary(), _blobs),
    Kind("large_blob", pa.large_binary(), _blobs),
    Kind("fixed_blob", pa.binary(5), lambda rng, rows: [rng.bytes(5) for _ in range(rows)]),
    Kind("ragged", pa.list_(pa.float32()), _lists(_with_nulls(_floats), 0, 5)),
    Kind("ragged_large", pa.large_list(pa.int64()), _lists(_int64, 0, 3)),
    Kind("ragged_flags", pa.list_(pa.bool_()), _lists(lambda rng, n: (rng.random(n) < 0.5).tolist(), 0, 9)),
    Kind("ragged_text", pa.list_(pa.string()), _lists(_texts, 0, 4)),
    Kind("ragged_ragged", pa.list_(pa.list_(pa.int16())), _lists(_lists(_int16, 0, 3), 0, 3)),
    Kind("ragged_structs", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])), _lists(
        _structs(a=_int32, b=_texts), 0, 3)),
    Kind("constant", pa.list_(pa.float64()), _lists(_floats, 3, 3)),
    Kind("fixed", pa.list_(pa.int32(), 4), _lists(_int32, 4, 4)),
    Kind("wide", pa.list_(pa.float32(), 80), _lists(_floats, 80, 80)),
    Kind("wide_blob", pa.binary(300), lambda rng, rows: [rng.bytes(300) for _ in range(rows)]),
    Kind("map", pa.map_(pa.string(), pa.int64()), _maps),
    Kind("struct", pa.struct([
        ("id", pa.int32()),
        ("inner", pa.struct([("score", pa.float64()), ("word", pa.string())])),
        ("items", pa.list_(pa.int8())),
    ]), _structs(id=_int32, inner=_structs(score=_with_nulls(_floats), word=_texts), items=_lists(_int8, 0, 3))),
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a data set lies in its files."""

    row_groups: tuple[tuple[int, ...], ...]
    """Rows of each row group, file by file; an empty tuple is a file without a row group."""
    kinds: tuple[str, ...]
    seed: int = 0
    compression: str = "snappy"
    dictionary: bool = True
    page_version: str = "1.0"
    page_bytes: int = 1 << 20
    store_schema: bool = True

    @property
    def rows(self) -> int:
        return sum(map(sum, self.row_groups))


@st.composite
def layouts(draw: st.DrawFn, *, most_rows: int = 400, kinds: tuple[str, ...] | None = None) -> Layout:
    """Data sets of uneven files: empty ones, one row, tiny and large row groups, most kinds of column."""
    sizes = st.one_of(
        st.integers(0, 3),
        st.integers(4, 60),
        st.integers(0, most_rows // 2),
    )
    files = draw(st.lists(st.lists(sizes, max_size=4).map(tuple), min_size=1, max_size=4).map(tuple))
    if not any(map(sum, files)):
        files = (*files, (draw(st.integers(1, 20)),))
    return Layout(
        row_groups=files,
        kinds=draw(
            st.lists(st.sampled_from([k.name for k in KINDS]), min_size=1, max_size=5, unique=True).map(tuple)
            if kinds is None
            else st.just(kinds)
        ),
        seed=draw(st.integers(0, 2**16)),
        compression=draw(st.sampled_from(["none", "snappy", "zstd", "lz4", "gzip"])),
        dictionary=draw(st.booleans()),
        page_version=draw(st.sampled_from(["1.0", "2.0"])),
        page_bytes=draw(st.sampled_from([1 << 20, 256])),
        store_schema=draw(st.booleans()),
    )


def make_table(rows: int, kinds: tuple[str, ...], rng: Generator, *, first_id: int = 0) -> pa.Table:
    """A table of random columns, and of `id`: the row's number in the data set."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(first_id, first_id + rows), pa.int64())}
    for name in kinds:
        columns[name] = pa.array(BY_NAME[name].make(rng, rows), BY_NAME[name].type)
    return pa.table(columns)


def write_layout(layout: Layout, root: str) -> list[str]:
    """Write the files below `root` and return their paths in the order of their rows' ids."""
    rng = np.random.default_rng(layout.seed)
    os.makedirs(root, exist_ok=True)
    files, first_id = [], 0
    for number, row_groups in enumerate(layout.row_groups):
        file = os.path.join(root, f"part-{number:03}.parquet")
        empty = make_table(0, layout.kinds, rng)
        with pq.ParquetWriter(
            file,
            empty.schema,
            compression=layout.compression,
            use_dictionary=layout.dictionary,
            data_page_version=layout.page_version,
            data_page_size=layout.page_bytes,
            write_batch_size=64,
            store_schema=layout.store_schema,
        ) as writer:
            for rows in row_groups:
                table = make_table(rows, layout.kinds, rng, first_id=first_id)
                writer.write_table(table, row_group_size=max(rows, 1))
                first_id += rows
        files.append(file)
    return files


def write_numbered(root: str, row_groups: tuple[tuple[int, ...], ...], kinds: tuple[str, ...] = ()) -> list[str]:
    """Write a plain data set whose column `id` numbers the rows, for tests of order and of failure."""
    return write_layout(Layout(row_groups, kinds), root)
