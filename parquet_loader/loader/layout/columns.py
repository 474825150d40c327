"""Figures of each stored column from footers, and the route of each delivered column to a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.decode import ChunkRoute, Column, leaves_in
from parquet_loader.read import RowGroupReader
from parquet_loader.schema import Audio, plain_type
from parquet_loader.source import ColumnChunk, Metadata, RowGroupRef, Snapshot

# Indices of `ColumnChunk`.
(_TYPE, _CODEC, _ENCODINGS, _VALUES, _ENCODED, _STORED, _DATA_AT, _DICTIONARY_AT, _NULLS, _INDEX_AT) = (
    ColumnChunk._fields.index(name)
    for name in (
        *("physical_type", "codec", "encodings", "values", "encoded_bytes", "stored_bytes", "data_at"),
        *("dictionary_at", "nulls", "index_at"),
    )
)
_LEAST = [ColumnChunk._fields.index(name) for name in ("least_bytes", "old_least_bytes")]
_MOST = 2**40
_LEVELS = frozenset({"RLE", "BIT_PACKED"})
# Kinds of row groups whose routes are looked up; further kinds are ignored.
MOST_KINDS = 1000


@dataclass(slots=True)
class StoredColumn:
    """A leaf of a struct, or a whole list, over all row groups, by the footers.

    Attributes:
        path: Names from the root, joined by dots.
        types: The column's Arrow types in the files; empty if the leaves do not fit the Arrow schema.
        physical_types: The types of its pages.
        is_nullable: Whether the files' schemas allow nulls.
        is_nested: Whether it is a list; then `nulls` also counts empty lists.
        nulls: The number of nulls by the footers; None if some footers do not count them.
        encodings, codecs: In the order in which they are found, without encodings of levels.
        stored_bytes, encoded_bytes: Bytes after and before compression.
        values: Number of values, including nulls.
        chunks: Number of column chunks.
        indexed_chunks: Number of chunks whose pages have an offset index.
        bounded_chunks: Number of chunks whose footers name the smallest value.
        dictionary_bytes: Stored bytes of dictionaries.
    """

    path: str
    types: list[pa.DataType] = field(default_factory=list)
    physical_types: list[str] = field(default_factory=list)
    is_nullable: bool = False
    is_nested: bool = False
    nulls: int | None = 0
    encodings: list[str] = field(default_factory=list)
    codecs: list[str] = field(default_factory=list)
    stored_bytes: int = 0
    encoded_bytes: int = 0
    values: int = 0
    chunks: int = 0
    indexed_chunks: int = 0
    bounded_chunks: int = 0
    dictionary_bytes: int = 0

    @property
    def name(self) -> str:
        """The top-level column."""
        return self.path.split(".")[0]


@dataclass(frozen=True, slots=True)
class RouteShare:
    """Row groups in which a column takes one route for one reason.

    Attributes:
        route, reason: As in `ChunkRoute`.
        row_groups: Number of row groups.
    """

    route: str
    reason: str
    row_groups: int


@dataclass(frozen=True, slots=True)
class DeliveredColumn:
    """A column of a batch.

    Attributes:
        column: Its canonical form.
        routes: Its routes, the most frequent one first.
    """

    column: Column
    routes: tuple[RouteShare, ...]

    @property
    def becomes(self) -> str:
        """The column's form in a batch; see `becomes`."""
        return becomes(self.column)


def becomes(column: Column) -> str:
    """Describe the form of a column in a batch: dtype and shape, or the contents of a `Ragged`."""
    if column.kind == "list":
        assert column.item is not None
        item = column.item
        if item.kind == "fixed":
            return f"Ragged of {item.dtype}{f' {list(item.shape)}' if item.shape else ''}"
        return f"Ragged of {becomes(item)}"
    if column.kind in ("text", "bytes"):
        return f"Ragged of {column.kind}"
    if column.kind == "image":
        if isinstance(column.image, Audio) and not column.image.is_fixed:
            return f"Ragged of {column.dtype}" + (f" [{column.image.channels}]" if column.image.channels > 1 else "")
        sizes = None if column.image is None else column.decoded_shape
        known = sizes is not None and all(sizes)
        shape = ", ".join("?" if not size else str(size) for size in sizes or ())
        return f"{column.dtype} [rows, {shape}]" if known else f"a list of {column.dtype} [{shape or '?'}]"
    return f"{column.dtype} [{', '.join(['rows', *map(str, column.shape)])}]"


def stored_columns(snapshot: Snapshot) -> list[StoredColumn]:
    """Return figures of each column, in the order of the files' schemas; reads only footers."""
    found: dict[str, StoredColumn] = {}
    for number in range(len(snapshot.files)):
        footer = snapshot.footers.get(number)
        groups = [footer.chunks(group) for group in range(footer.num_row_groups)]
        chunks = np.stack(groups) if groups else np.empty((0, footer.num_columns, len(ColumnChunk._fields)), np.int64)
        first = 0
        for path, type_, is_nullable, leaves in _leaves(snapshot.schema_of(number), footer.paths):
            column = found.setdefault(path, StoredColumn(path))
            if type_ is not None and type_ not in column.types:
                column.types.append(type_)
            column.is_nullable |= is_nullable
            column.is_nested |= type_ is None or leaves > 1 or pa.types.is_nested(plain_type(type_))
            for leaf in range(first, first + leaves):
                _add(column, footer, leaf, chunks[:, leaf])
            first += leaves
    return list(found.values())


def delivered_columns(snapshot: Snapshot, reader: RowGroupReader) -> list[DeliveredColumn]:
    """Return the columns of a batch with their routes; reads only footers."""
    shares: dict[str, dict[ChunkRoute, int]] = {column.name: {} for column in reader.columns}
    for row_group, count in _kinds(snapshot):
        for name, route in reader.chunk_routes(row_group).items():
            if name in shares:
                shares[name][route] = shares[name].get(route, 0) + count
    return [
        DeliveredColumn(
            column,
            tuple(
                RouteShare(route.name, route.reason, count)
                for route, count in sorted(shares[column.name].items(), key=lambda item: -item[1])
            ),
        )
        for column in reader.columns
    ]


def _kinds(snapshot: Snapshot) -> list[tuple[RowGroupRef, int]]:
    """Return a row group of each kind whose routes may differ, and the number of row groups of that kind."""
    kinds: dict[tuple[int, bytes], list[int]] = {}
    for index, file in enumerate(snapshot.row_group_file.tolist()):
        rows = int(snapshot.row_group_rows[index])
        if not rows:
            continue
        chunks = snapshot.footers.get(file).chunks(int(snapshot.row_group_number[index]))
        nulls, values = chunks[:, _NULLS], chunks[:, _VALUES]
        each = np.where(values % rows == 0, values // rows, 0)
        facts = [chunks[:, _TYPE], chunks[:, _CODEC], chunks[:, _ENCODINGS], np.sign(nulls), each]
        key = int(snapshot.file_schema[file]), np.stack([*facts, chunks[:, _DICTIONARY_AT] >= 0]).tobytes()
        if key in kinds or len(kinds) < MOST_KINDS:
            kinds.setdefault(key, [index, 0])[1] += 1
    return [(snapshot.row_group(index), count) for index, count in kinds.values()]


def _add(column: StoredColumn, footer: Metadata, leaf: int, chunks: npt.NDArray[np.int64]) -> None:
    """Add the chunks of a leaf, int64 ``[row groups, numbers]``."""
    physical = footer.schema.leaves[leaf].physical_type
    column.physical_types += [physical] if physical not in column.physical_types else []
    if not len(chunks):
        return
    stored, encoded = (np.clip(chunks[:, at], 0, _MOST) for at in (_STORED, _ENCODED))
    column.stored_bytes += int(stored.sum())
    column.encoded_bytes += int(encoded.sum())
    column.values += int(np.clip(chunks[:, _VALUES], 0, _MOST).sum())
    column.chunks += len(chunks)
    column.indexed_chunks += int(np.count_nonzero(chunks[:, _INDEX_AT] > 0))
    column.bounded_chunks += int(np.count_nonzero((chunks[:, _LEAST] >= 0).any(axis=1)))
    one = ColumnChunk(*chunks[0].tolist())
    for codec in np.unique(chunks[:, _CODEC]).tolist():
        name = one._replace(codec=codec).codec_name.lower()
        column.codecs += [name] if name not in column.codecs else []
    bits = int(np.bitwise_or.reduce(chunks[:, _ENCODINGS]))
    names = one._replace(encodings=bits).encoding_names
    column.encodings += [name for name in names if name not in column.encodings and name not in _LEVELS]
    dictionary = chunks[:, _DATA_AT] - chunks[:, _DICTIONARY_AT]
    has_one = (chunks[:, _DICTIONARY_AT] > 0) & (dictionary > 0) & (dictionary <= stored)
    column.dictionary_bytes += int(dictionary[has_one].sum())
    nulls = chunks[:, _NULLS]
    is_known = bool(((nulls >= 0) & (nulls <= chunks[:, _VALUES])).all())
    column.nulls = column.nulls + int(nulls.sum()) if is_known and column.nulls is not None else None


def _leaves(schema: pa.Schema, paths: Sequence[str]) -> list[tuple[str, pa.DataType | None, bool, int]]:
    """Return name, type, nullability and number of leaves of each column, in the order of the file."""
    columns = [column for field_ in schema for column in _flat(field_, "", is_nullable=False)]
    if sum(leaves for _, _, _, leaves in columns) != len(paths):
        return [(path, None, True, 1) for path in paths]
    return columns


def _flat(column: pa.Field, prefix: str, *, is_nullable: bool) -> Iterator[tuple[str, pa.DataType, bool, int]]:
    name, nullable = prefix + column.name, is_nullable or column.nullable
    if pa.types.is_struct(column.type) and column.type.num_fields:
        for child in column.type:
            yield from _flat(child, f"{name}.", is_nullable=nullable)
    else:
        yield name, column.type, nullable, leaves_in(column.type)
