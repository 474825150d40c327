"""Which way of storing each column, and which size of row group, loads fastest: tried on a sample, in memory.

Time is processor time of this thread, the least of a few repeats, so that a busy machine disturbs it little.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.write.column_layout import ColumnLayout, Way, columns_with_order
from parquet_loader.write.options import least_group_bytes

Objective: TypeAlias = Literal["speed", "size"]

PLAIN = Way("plain", "none")
_WAYS = (
    PLAIN,
    Way("plain", "lz4"),
    Way("plain", "snappy"),
    Way("plain", "zstd"),
    Way("dictionary", "none"),
    Way("dictionary", "lz4"),
    Way("dictionary", "zstd"),
)
_FOR_INTEGERS = (Way("delta", "none"), Way("delta", "lz4"), Way("delta", "zstd"))
_FOR_NUMBERS = (Way("split", "lz4"), Way("split", "zstd"))
_REPEATS = 4
# A way that is hardly smaller than plain bytes cannot pay for its decoding, and is not timed.
_HARDLY_SMALLER = 0.97
# Of ways about as good, the plainer one.
_ABOUT_AS_GOOD = 1.03
_ABOUT_AS_FAST = 1.05
MIB = 2**20
ROW_GROUP_BYTES = (MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a way of storing a column came to.

    Attributes:
        stored_bytes: Bytes a row in the file.
        decode_ns: Nanoseconds a row to decode, on one thread; None where it was not worth timing.
    """

    stored_bytes: float
    decode_ns: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """How a column is stored, and why.

    Attributes:
        way: The way chosen.
        trials: All that was tried.
        why: In words.
    """

    way: Way
    trials: Mapping[Way, Trial]
    why: str


def choose_ways(sample: pa.Table, *, objective: Objective, storage_bytes_per_s: float) -> dict[str, Choice]:
    """Return a choice for each column of `sample`, by name.

    ``"speed"`` takes the way with the least time a row: decoding, and reading its bytes at `storage_bytes_per_s`.
    ``"size"`` takes the smallest, and of those within 3 % of it the fastest.

    Args:
        sample: Rows in the form and about the order in which they will be stored; 1 row at least.
        objective: See above.
        storage_bytes_per_s: What one reading thread gets from the storage that the data will be loaded from.
    """
    candidates: dict[str, dict[Way, Trial]] = {name: {} for name in sample.column_names}
    for way in dict.fromkeys((*_WAYS, *_FOR_INTEGERS, *_FOR_NUMBERS)):
        suited = [f.name for f in sample.schema if _suits(way, f.type)]
        if suited:
            _try(sample.select(suited), way, candidates)
    return {
        name: _choose(trials, objective=objective, storage_bytes_per_s=storage_bytes_per_s)
        for name, trials in candidates.items()
    }


def _suits(way: Way, type_: pa.DataType) -> bool:
    while pa.types.is_list(type_):
        type_ = type_.value_type
    if way in _FOR_INTEGERS:
        is_time = pa.types.is_temporal(type_) and not pa.types.is_duration(type_)
        return bool(pa.types.is_integer(type_) or is_time)
    if way in _FOR_NUMBERS:
        return bool(pa.types.is_float32(type_) or pa.types.is_float64(type_))
    return not (way.encoding == "dictionary" and pa.types.is_boolean(type_))


def _try(sample: pa.Table, way: Way, candidates: dict[str, dict[Way, Trial]]) -> None:
    """Store all columns one way, and time the decoding of each that comes out small enough."""
    paths = _leaf_paths(sample.schema)
    layout = ColumnLayout(dict.fromkeys(paths.values(), way), frozenset())
    file = pq.ParquetFile(_written(sample, layout), pre_buffer=False)
    group, rows = file.metadata.row_group(0), len(sample)
    for number, (name, path) in enumerate(paths.items()):
        stored = group.column(number).total_compressed_size / rows
        plain = candidates[name].get(PLAIN)
        decode = None
        if plain is None or stored <= _HARDLY_SMALLER * plain.stored_bytes:
            decode = _decode_s(file, [path]) / rows * 1e9
        candidates[name][way] = Trial(stored, decode)


def _choose(trials: Mapping[Way, Trial], *, objective: Objective, storage_bytes_per_s: float) -> Choice:
    timed = {way: t for way, t in trials.items() if t.decode_ns is not None}

    def time_ns(way: Way) -> float:
        trial = timed[way]
        assert trial.decode_ns is not None
        return trial.decode_ns + trial.stored_bytes / storage_bytes_per_s * 1e9

    plain, share = timed[PLAIN], 1.0
    if objective == "size":
        smallest = min(t.stored_bytes for t in timed.values())
        way = min((w for w, t in timed.items() if t.stored_bytes <= _ABOUT_AS_GOOD * smallest), key=time_ns)
        share = timed[way].stored_bytes / max(plain.stored_bytes, 1e-9)
        why = f"the smallest: {share:.2f} of plain bytes" if way != PLAIN else "nothing made it smaller"
        return Choice(way, trials, why)
    fastest = min(map(time_ns, timed))
    way = next(w for w in timed if time_ns(w) <= _ABOUT_AS_GOOD * fastest)
    share = timed[way].stored_bytes / max(plain.stored_bytes, 1e-9)
    others = [w for w in timed if w != way]
    if way != PLAIN:
        why = f"{share:.2f} of the bytes, {time_ns(way):.2f} ns a row to read and decode; plain {time_ns(PLAIN):.2f}"
    elif others:
        second = min(others, key=time_ns)
        why = f"{time_ns(way):.2f} ns a row to read and decode; {second}, the next best, {time_ns(second):.2f}"
    else:
        why = "no encoding and no codec made it smaller"
    return Choice(way, trials, why)


def choose_row_group_bytes(sample: pa.Table, ways: Mapping[str, Way]) -> tuple[int, dict[int, float]]:
    """Return the smallest of `ROW_GROUP_BYTES` that decodes within 5 % of the fastest, and ns a row by size.

    Smaller row groups mix better in a window of the same memory. Where the sample is smaller than a size, that size is
    not tried. With many columns it is at least what `least_group_bytes` says, because decoding is not all they cost.

    Args:
        sample: As in `choose_ways`.
        ways: By column name.
    """
    layout = layout_of(sample.schema, ways)
    by_size: dict[int, float] = {}
    for size in ROW_GROUP_BYTES:
        rows = int(len(sample) * size / max(sample.nbytes, 1))
        if rows == 0 or rows > len(sample):
            continue
        file = pq.ParquetFile(_written(sample.slice(0, rows), layout), pre_buffer=False)
        by_size[size] = _decode_s(file, None) / rows * 1e9
    if not by_size:
        return 8 * MIB, {}
    fastest = min(by_size.values())
    chosen = next(size for size, ns in by_size.items() if ns <= _ABOUT_AS_FAST * fastest)
    return max(chosen, least_group_bytes(sample.num_columns)), by_size


def layout_of(schema: pa.Schema, ways: Mapping[str, Way]) -> ColumnLayout:
    """Return the layout of a file of this schema."""
    return ColumnLayout({path: ways[name] for name, path in _leaf_paths(schema).items()}, columns_with_order(schema))


def _leaf_paths(schema: pa.Schema) -> dict[str, str]:
    """Return the Parquet path of each stored column; all have one leaf."""
    paths: dict[str, str] = {}
    for field in schema:
        path, type_ = field.name, field.type
        while pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
            path, type_ = f"{path}.list.element", type_.value_type
        paths[field.name] = path
    return paths


def _written(table: pa.Table, layout: ColumnLayout) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **layout.writer_arguments()) as writer:
        writer.write_table(table, row_group_size=max(1, len(table)))
    return sink.getvalue()


def _decode_s(file: pq.ParquetFile, columns: list[str] | None) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        began = time.thread_time()
        file.read_row_group(0, columns=columns, use_threads=False)
        best = min(best, time.thread_time() - began)
    return best
