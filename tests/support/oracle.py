"""What a data set holds, found without the library: plain pyarrow, one file at a time, one column at a time.

Every row becomes a tuple of plain values that compare exactly: floats by their bits (every NaN alike), text as
`str`, binary as `bytes`, lists as tuples. Batches of the loader become the same tuples, so that
"every row exactly once, values equal" is equality of two multisets.
"""

from __future__ import annotations

import math
import os
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Row: TypeAlias = tuple[Any, ...]


class NullWithoutPolicyError(Exception):
    """The files hold a null that no tensor can show: a loader without a schema has to refuse them."""


@dataclass(frozen=True, slots=True)
class Column:
    """One delivered column: its values as comparable Python objects, and the dtype of its leaves.

    `kind` is a numpy dtype's name, ``"text"`` or ``"bytes"``, within as many ``"list of "`` as it is deep.
    """

    kind: str
    values: list[Any]


# ---- where the files are ------------------------------------------------------------------------------------------


def files_under(root: str) -> list[str]:
    """The data files below a directory in the order of their names, or the one file itself."""
    if os.path.isfile(root):
        return [root]
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith((".", "_")) or (f[0] == "_" and "=" in f)]
        found += [os.path.join(folder, n) for n in names if not n.startswith((".", "_"))]
    return sorted(found)


def partition_values(root: str, file: str) -> dict[str, str]:
    """The ``key=value`` folders between the root of a data set and one of its files."""
    folders = os.path.dirname(os.path.relpath(file, root)).split(os.sep)
    pairs = (f.partition("=") for f in folders if "=" in f)
    return {urllib.parse.unquote(key): urllib.parse.unquote(value) for key, _, value in pairs}


# ---- Arrow values to comparable values ----------------------------------------------------------------------------


def canonical_floats(array: np.ndarray[Any, Any]) -> list[int | str]:
    """The bits of each float, or ``"nan"``."""
    bits: list[int | str] = array.view(f"u{array.dtype.itemsize}").tolist()
    for row in np.flatnonzero(np.isnan(array)).tolist():
        bits[row] = "nan"
    return bits


def leaves_of(name: str, values: pa.Array) -> Iterator[tuple[str, Column]]:
    """The delivered columns that one Arrow column becomes: structs dotted, maps as keys and values."""
    if isinstance(values, pa.ExtensionArray):
        yield from leaves_of(name, values.storage)
    elif isinstance(values, pa.DictionaryArray):
        yield from leaves_of(name, values.dictionary_decode())
    elif pa.types.is_struct(values.type):
        for index, field in enumerate(values.type):
            yield from leaves_of(f"{name}.{field.name}", pc.struct_field(values, [index]))
    elif _is_list(values.type):
        _refuse_nulls(name, values)
        inner, lengths = _entries(values)
        for leaf, column in leaves_of(name, inner):
            yield leaf, Column(f"list of {column.kind}", _cut(column.values, lengths))
    else:
        yield name, _scalar(name, values)


def _is_list(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_list(type_)
        or t.is_large_list(type_)
        or t.is_fixed_size_list(type_)
        or t.is_map(type_)
        or t.is_list_view(type_)
        or t.is_large_list_view(type_)
    )


def _entries(values: pa.Array) -> tuple[pa.Array, list[int]]:
    if pa.types.is_map(values.type):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        pair = [values.keys[first:last], values.items[first:last]]
        entries = pa.StructArray.from_arrays(pair, names=["key", "value"])
        return entries, np.diff(values.offsets.to_numpy()).tolist()
    if pa.types.is_fixed_size_list(values.type):
        return values.flatten(), [values.type.list_size] * len(values)
    return values.flatten(), pc.list_value_length(values).to_pylist()


def _cut(values: list[Any], lengths: list[int]) -> list[tuple[Any, ...]]:
    rows, start = [], 0
    for length in lengths:
        rows.append(tuple(values[start : start + length]))
        start += length
    return rows


def _refuse_nulls(name: str, values: pa.Array) -> None:
    if values.null_count:
        raise NullWithoutPolicyError(f"{name}: {values.null_count} nulls of {values.type}")


def _scalar(name: str, values: pa.Array) -> Column:
    type_, t = values.type, pa.types
    if t.is_floating(type_):
        bits = np.dtype(f"f{type_.bit_width // 8}")
        numbers = np.array([math.nan if v is None else v for v in values.to_pylist()], dtype=bits)
        return Column(bits.name, canonical_floats(numbers))
    _refuse_nulls(name, values)
    if t.is_decimal(type_):
        return Column("float64", canonical_floats(np.array([float(v) for v in values.to_pylist()], dtype="f8")))
    if t.is_boolean(type_):
        return Column("bool", values.to_pylist())
    if t.is_integer(type_):
        return Column(str(type_), values.to_pylist())
    if t.is_date32(type_) or t.is_time32(type_):
        return Column("int32", values.cast(pa.int32()).to_pylist())
    if t.is_date64(type_) or t.is_time64(type_) or t.is_timestamp(type_) or t.is_duration(type_):
        return Column("int64", values.cast(pa.int64()).to_pylist())
    if t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_):
        return Column("text", values.to_pylist())
    if t.is_fixed_size_binary(type_):
        return Column("list of uint8", [tuple(v) for v in values.to_pylist()])
    if t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_):
        return Column("bytes", values.to_pylist())
    raise TypeError(f"{name}: the oracle knows no {type_}")


# ---- the expected rows --------------------------------------------------------------------------------------------


def read_file(file: str, columns: Sequence[str] | None = None) -> pa.Table:
    """One file by itself: no data set, no partitions guessed from its path."""
    with pq.ParquetFile(file, pre_buffer=False) as parquet:
        names = None if columns is None else [name for name in columns if name in parquet.schema_arrow.names]
        table = parquet.read(names, use_threads=False)
    # Arrow filters no views yet.
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return table.cast(pa.schema([f.with_type(plain.get(f.type, f.type)) for f in table.schema]))


def expected_columns(
    root: str,
    files: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
) -> dict[str, Column]:
    """Every column that a loader has to deliver, in the order of the files.

    Args:
        root: The data set's directory, or its only file.
        files: Its files; found below `root` if not given.
        columns: Names of top-level columns to keep.
        filters: Rows to keep, by pyarrow's own filter.
    """
    files = files_under(root) if files is None else files
    partitions = [partition_values(root, file) if os.path.isdir(root) else {} for file in files]
    numeric = {
        key: all(_is_integer(p[key]) for p in partitions if key in p) for key in {k for p in partitions for k in p}
    }
    gathered: dict[str, Column] = {}
    for file, partition in zip(files, partitions, strict=True):
        table = read_file(file, columns if filters is None else None)
        for key, value in partition.items():
            if key not in table.column_names:
                typed = pa.scalar(int(value), pa.int64()) if numeric[key] else pa.scalar(value)
                table = table.append_column(key, pa.repeat(typed, table.num_rows))
        if filters is not None:
            table = table.filter(filters)
        if columns is not None:
            table = table.select(list(columns))
        for field, chunked in zip(table.schema, table.columns, strict=True):
            if columns is None and (field.name.startswith("__index_level_") or field.name == "__null_dask_index__"):
                continue
            whole = chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)
            if isinstance(whole, pa.ChunkedArray):
                whole = pa.concat_arrays(whole.chunks)
            for name, leaf in leaves_of(field.name, whole):
                known = gathered.setdefault(name, Column(leaf.kind, []))
                assert known.kind == leaf.kind, f"{file}: {name} is {leaf.kind}, elsewhere {known.kind}"
                known.values.extend(leaf.values)
    return gathered


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()


def rows_of_columns(columns: Mapping[str, Column]) -> list[Row]:
    """Columns as rows, the columns in the order of their names."""
    return list(zip(*(columns[name].values for name in sorted(columns)), strict=True))


# ---- the delivered rows -------------------------------------------------------------------------------------------


def column_of(value: Any) -> Column:
    """One column of a batch, a tensor or a `Ragged`, as comparable values."""
    offsets = getattr(value, "offsets", None)
    if offsets is None:
        return _column_of_array(_as_numpy(value))
    bounds = _as_numpy(offsets)
    assert bounds.dtype == np.int64, f"offsets are {bounds.dtype}, not int64"
    assert bounds[0] == 0, f"offsets begin at {bounds[0]}"
    assert (np.diff(bounds) >= 0).all(), "offsets go backwards"
    if value.kind != "list":
        rows = value.to_list()
        assert all(isinstance(row, str if value.kind == "text" else bytes) for row in rows)
        return Column(value.kind, rows)
    inner = column_of(value.values)
    assert len(inner.values) == bounds[-1], f"{len(inner.values)} values, but offsets end at {bounds[-1]}"
    return Column(f"list of {inner.kind}", _cut(inner.values, np.diff(bounds).tolist()))


def _column_of_array(array: np.ndarray[Any, Any]) -> Column:
    if array.ndim > 1:
        inner = _column_of_array(array.reshape(math.prod(array.shape[:2]), *array.shape[2:]))
        return Column(f"list of {inner.kind}", _cut(inner.values, [array.shape[1]] * array.shape[0]))
    values = canonical_floats(np.ascontiguousarray(array)) if array.dtype.kind == "f" else array.tolist()
    return Column(array.dtype.name, values)


def _as_numpy(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value.cpu().numpy() if hasattr(value, "cpu") else value)


def rows_in(value: Any) -> int:
    """How many rows one column of a batch has."""
    return int((value.offsets.shape[0] - 1) if hasattr(value, "offsets") else value.shape[0])


def batch_rows(batch: Mapping[str, Any]) -> int:
    """How many rows a batch has; all its columns must agree."""
    counts = {rows_in(value) for value in batch.values()}
    assert len(counts) == 1, f"columns of {sorted(counts)} rows in one batch"
    return counts.pop()


def delivered_columns(batches: Iterable[Mapping[str, Any]]) -> dict[str, Column]:
    """All batches' columns, laid end to end."""
    gathered: dict[str, Column] = {}
    shapes: dict[str, Any] = {}
    for index, batch in enumerate(batches):
        batch_rows(batch)
        assert not gathered or gathered.keys() == batch.keys(), f"batch {index} has other columns than the first"
        for name, value in batch.items():
            column = column_of(value)
            known = gathered.setdefault(name, Column(column.kind, []))
            assert known.kind == column.kind, f"batch {index}: {name} is {column.kind}, before it was {known.kind}"
            known.values.extend(column.values)
            shape = "ragged" if hasattr(value, "offsets") else tuple(value.shape[1:])
            assert shapes.setdefault(name, shape) == shape, f"batch {index}: {name} {shape}, before {shapes[name]}"
    return gathered


def delivered_rows(batches: Iterable[Mapping[str, Any]]) -> list[Row]:
    """All rows of the batches, in the order they came."""
    return rows_of_columns(delivered_columns(batches))


# ---- the comparison -----------------------------------------------------------------------------------------------


def assert_columns_equal(delivered: Mapping[str, Column], expected: Mapping[str, Column], *, ordered: bool) -> None:
    """Compare names, dtypes and the multiset (or the sequence) of rows; say what differs in one line."""
    expected_rows = rows_of_columns(expected)
    if not delivered and not expected_rows:
        return
    assert sorted(delivered) == sorted(expected), f"columns {sorted(delivered)}, expected {sorted(expected)}"
    kinds = {n: (delivered[n].kind, expected[n].kind) for n in expected if delivered[n].kind != expected[n].kind}
    assert not kinds, f"dtypes (delivered, expected): {kinds}"
    rows = rows_of_columns(delivered)
    assert len(rows) == len(expected_rows), f"{len(rows)} rows delivered, {len(expected_rows)} expected"
    if ordered:
        wrong = [i for i, (a, b) in enumerate(zip(rows, expected_rows, strict=True)) if a != b]
        assert not wrong, f"row {wrong[0]} of {len(rows)} (sorted columns): {_difference(rows, expected_rows, wrong)}"
        return
    got, want = Counter(rows), Counter(expected_rows)
    if got != want:
        extra, lost = got - want, want - got
        differing = [n for n in sorted(expected) if Counter(delivered[n].values) != Counter(expected[n].values)]
        examples = [
            f"{name}: lost {list(w - g)[:2]!r:.200}, unexpected {list(g - w)[:2]!r:.200}"
            for name in differing[:3]
            for g, w in [(Counter(delivered[name].values), Counter(expected[name].values))]
        ]
        raise AssertionError(
            f"{lost.total()} rows lost and {extra.total()} unexpected of {len(rows)}; "
            f"{'; '.join(examples) or 'the values of each column are right, but not in the same rows'}"
        )


def _difference(rows: list[Row], expected: list[Row], wrong: list[int]) -> str:
    return f"delivered {rows[wrong[0]]}, expected {expected[wrong[0]]}; {len(wrong)} rows differ"


def assert_epoch_equals(
    loader: Iterable[Mapping[str, Any]],
    root: str,
    files: Sequence[str] | None = None,
    *,
    ordered: bool = False,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
) -> list[Mapping[str, Any]]:
    """Run one epoch and hold it against the files; returns the batches."""
    batches = list(loader)
    expected = expected_columns(root, files, columns, filters)
    assert_columns_equal(delivered_columns(batches), expected, ordered=ordered)
    return batches
