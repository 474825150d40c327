"""Everything known before the first epoch: what the files hold, what is delivered of it, and how memory is divided."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.cache import LocalCache
from parquet_loader.columns import number_type
from parquet_loader.decode import Decoder, read_name, type_at
from parquet_loader.errors import DataError, SchemaError, SourceError, nearest
from parquet_loader.filters import RowFilter
from parquet_loader.options import ReadOptions
from parquet_loader.plan import Plan, plan_epoch
from parquet_loader.ranks import Ranks
from parquet_loader.read import Reader
from parquet_loader.schema import METADATA_KEY, Field, Group, RaggedList, Scalar, Schema, Tensor
from parquet_loader.schema.infer import infer_fields
from parquet_loader.shards import Division
from parquet_loader.sizes import SAMPLE_ROWS, SHARE_FOOTERS, RowSizes, Sizing, divide, measure_rows
from parquet_loader.snapshot import Snapshot
from parquet_loader.types import IntArray
from parquet_loader.unischema.hook import with_unischema

CONSTANT_LISTS_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Counted:
    """What counting rows gave.

    Attributes:
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        skipped: Row groups left out because they could not be read, each with its reason.
    """

    counts: IntArray
    skipped: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What a loader with the same arguments has found out before, of files that never change.

    Attributes:
        snapshot: The row groups that were counted.
        counted: What its filter gave; without a filter of no use.
        row: Bytes of a row of this very snapshot, where it is the one to open; None: to be found out.
    """

    snapshot: Snapshot
    counted: Counted
    row: RowSizes | None = None

    def counts_of(self, snapshot: Snapshot) -> IntArray:
        """Return the rows of another snapshot's row groups that pass, int64 ``[row groups]``; -1: not known."""
        counts = np.where(snapshot.row_group_rows > 0, -1, 0).astype(np.int64)
        numbers = {file.path: number for number, file in enumerate(self.snapshot.files)}
        file = np.array([numbers.get(file.path, -1) for file in snapshot.files], np.int64)
        known = self.snapshot.row_group_file.astype(np.int64) << 32 | self.snapshot.row_group_number
        wanted = np.where(file < 0, -1, file << 32)[snapshot.row_group_file] | snapshot.row_group_number
        order = np.argsort(known, kind="stable")
        place = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
        if len(known):
            found = known[order[place]] == wanted
            counts[found] = self.counted.counts[order[place[found]]]
            if self.counted.skipped:  # what could not be read may be readable by now
                again = np.isin(wanted, known[[group for group, _ in self.counted.skipped]])
                counts[again & found] = -1
        return counts


@dataclass(frozen=True, slots=True)
class Dataset:
    """A snapshot with a schema, a filter and a memory budget applied to it. Immutable.

    Attributes:
        snapshot: The files and row groups.
        schema: What is delivered.
        reader: Reads row groups as the schema says.
        counted: The rows of each row group that pass the filter.
        sizing: How the memory limit is divided.
    """

    snapshot: Snapshot
    schema: Schema
    reader: Reader
    counted: Counted
    sizing: Sizing

    @property
    def counts(self) -> IntArray:
        """Rows of each row group that pass the filter, int64 ``[row groups]``."""
        return self.counted.counts

    @property
    def skipped(self) -> tuple[tuple[int, str], ...]:
        """Row groups left out when rows were counted, each with its reason."""
        return self.counted.skipped

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return int(self.counts.sum())

    def with_window(self, window_rows: int, *, batch_size: int, shuffle: bool, side_by_side: int) -> Dataset:
        """Return the same with windows of another size.

        Raises:
            MemoryLimitError: they do not fit.
        """
        sizing = divide(
            self.sizing.limit_bytes,
            self.sizing.row,
            self.snapshot,
            self.counts,
            batch_size=batch_size,
            window_rows=window_rows,
            shuffle=shuffle,
            side_by_side=side_by_side,
            num_threads=self.sizing.num_threads,
        )
        return replace(self, sizing=sizing)

    def plan(
        self, division: Division, *, batch_size: int, drop_last: bool, shuffle: bool, seed: int, epoch: int
    ) -> Plan:
        """Return one rank's plan of an epoch."""
        return plan_epoch(
            self.counts,
            window_rows=self.sizing.window_rows,
            open_row_groups=self.sizing.open_row_groups,
            batch_size=batch_size,
            drop_last=drop_last,
            shuffle=shuffle,
            seed=seed,
            epoch=epoch,
            division=division,
        )


def open_dataset(
    snapshot: Snapshot,
    *,
    schema: Schema | None,
    columns: Sequence[str] | None,
    filters: pc.Expression | None,
    batch_size: int,
    window_rows: int | None,
    shuffle: bool,
    memory_limit_bytes: int,
    transform: bool,
    read_options: ReadOptions,
    cache: LocalCache | None = None,
    skips: bool,
    num_threads: int,
    side_by_side: int = 1,
    ranks: Ranks | None = None,
    row_numbers: str | None = None,
    known: Known | None = None,
) -> Dataset:
    """Find out what is delivered, how many rows there are, and what fits; arguments as in `BatchedDataLoader`.

    `batch_size` is what the fewest ranks will deliver at a time, from `side_by_side` parts of the epoch. Rows are
    counted by all `ranks` together, but for those that are `known`.

    With a filter this reads the filter's columns of all row groups that may match; with columns of varying width it
    decodes a few thousand rows.

    Raises:
        SchemaError, DataError, SourceError, MemoryLimitError, ConfigurationError: see there.
    """
    snapshot.footers.limit(int(memory_limit_bytes * SHARE_FOOTERS))
    if schema is None:
        snapshot, schema = with_unischema(snapshot, columns)
    row_filter = None if filters is None else RowFilter(filters, snapshot)
    if schema is None:
        chosen = with_constant_lists(found_schema(snapshot, columns), snapshot, read_options)
    else:
        chosen = select(schema, columns)
    if not chosen and snapshot.row_group_rows.any():
        raise SchemaError("there is no column to deliver: the schema names none")
    reader = Reader(snapshot, _decoders(chosen, snapshot), row_filter, read_options, row_numbers, cache)
    if row_numbers is not None:
        if row_numbers in (column.name for column in reader.columns[:-1]):
            raise SchemaError(f"row_numbers={row_numbers!r}: there is a column of this name already; choose another")
        chosen = Schema({**chosen, row_numbers: Scalar(pa.int64())})
    counted = Counted(snapshot.row_group_rows)
    if row_filter is not None:
        counted = _count(snapshot, reader, row_filter, num_threads, ranks, known, skips=skips)
    counts = counted.counts
    if reader.cache is not None:
        reader.cache.expect(counts > 0)
    processes = transform or any(c.image is not None for c in reader.columns)
    row = None if known is None else known.row
    if row is None:
        row = measure_rows(snapshot, reader, reader.columns, counts, processes=processes, skips=skips)
    sizing = divide(
        memory_limit_bytes,
        row,
        snapshot,
        counts,
        batch_size=batch_size,
        window_rows=window_rows,
        shuffle=shuffle,
        side_by_side=side_by_side,
        num_threads=num_threads,
    )
    return Dataset(snapshot, chosen, reader, counted, sizing)


def found_schema(snapshot: Snapshot, columns: Sequence[str] | None = None) -> Schema:
    """Return the schema that the files carry, or that follows from their columns, with the partition columns.

    With `columns`, only these are looked at: others may differ, or be of types that no tensor holds.

    Files without rows have no say, nor has a file on the type of a column in which it holds nothing but nulls.

    Raises:
        SchemaError: two files differ; names both and the column.
    """
    with_rows = sorted(set(snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]].tolist()))
    numbers = with_rows or [0]
    known = [_fields_of(snapshot, number, columns) for number in numbers]
    found: dict[str, tuple[Field, int]] = {}
    for number, fields in zip(numbers, known, strict=True):
        for name, field in fields.items():
            first_field, first = found.setdefault(name, (field, number))
            if first_field != field:
                raise _differ(snapshot, name, (first, first_field), (number, field))
    for number in numbers:
        for name, (field, first) in found.items():
            if type_at(snapshot.schemas[number], name) is None and not _is_carried(snapshot.schemas[number], name):
                raise _differ(snapshot, name, (first, field), (number, None))
    for column in snapshot.schemas[numbers[0]]:
        known_to_some = any(_stands_for(column.name, name) for name in found)
        if not known_to_some and _is_wanted(column.name, columns) and not is_carrying(snapshot.schemas[numbers[0]]):
            infer_fields(column)  # raises: no file says what it is
    fields = {name: field for name, (field, _) in found.items()}
    for column in snapshot.partition_schema:
        if column.name not in fields and column.name not in snapshot.schemas[numbers[0]].names:
            fields.update(infer_fields(column))
    names = [*snapshot.schemas[numbers[0]].names, *snapshot.partition_schema.names]
    return select(Schema(fields), columns, names)


def _fields_of(snapshot: Snapshot, number: int, columns: Sequence[str] | None) -> dict[str, Field]:
    """Return `_known_fields` of one of the snapshot's schemas; errors name a file."""
    try:
        return _known_fields(snapshot.schemas[number], columns)
    except SchemaError as error:
        raise SchemaError(f"{_file_of(snapshot, number)}: {error}") from error


def _file_of(snapshot: Snapshot, number: int) -> str:
    return snapshot.files[int(np.argmax(snapshot.file_schema == number))].path


def _known_fields(schema: pa.Schema, columns: Sequence[str] | None) -> dict[str, Field]:
    """Return the wanted fields of one file, but for columns in which it holds nothing but nulls."""
    if is_carrying(schema):
        fields = Schema.from_arrow(schema)
    else:
        known = [c for c in schema if _is_wanted(c.name, columns) and not _holds_nulls_only(c.type)]
        fields = Schema.from_arrow(pa.schema(known))
    wanted = {name for name in fields if columns is None or any(_stands_for(c, name) for c in columns)}
    return {name: field for name, field in fields.items() if name in wanted}


def _is_wanted(column: str, columns: Sequence[str] | None) -> bool:
    """Whether a file's column holds one of the names asked for."""
    return columns is None or any(_stands_for(column, name) or _stands_for(name, column) for name in columns)


def is_carrying(schema: pa.Schema) -> bool:
    """Whether a file of this Arrow schema says itself what its columns mean."""
    return METADATA_KEY in (schema.metadata or {})


def _is_carried(schema: pa.Schema, name: str) -> bool:
    return is_carrying(schema) and name in Schema.from_arrow(schema)


def _holds_nulls_only(type_: pa.DataType) -> bool:
    if pa.types.is_null(type_):
        return True
    return any(_holds_nulls_only(type_.field(i).type) for i in range(type_.num_fields))


def _stands_for(column: str, name: str) -> bool:
    return name == column or name.startswith(f"{column}.")


def _differ(snapshot: Snapshot, column: str, one: tuple[int, Field], other: tuple[int, Field | None]) -> SchemaError:
    names = [_file_of(snapshot, number) for number, _ in (one, other)]
    return SchemaError(
        f"column {column!r} differs: {names[0]} has {one[1]}, {names[1]} has {other[1] or 'no such column'}; "
        "pass schema= (missing=<value> reads files that lack a column), or columns= without it"
    )


def select(schema: Schema, columns: Sequence[str] | None, known: Sequence[str] = ()) -> Schema:
    """Return the named fields; the name of a struct stands for all its leaves.

    Raises:
        SchemaError: a name is unknown or repeated.
    """
    if columns is None:
        return schema
    names: list[str] = []
    for column in columns:
        leaves = [column] if column in schema else [name for name in schema if name.startswith(f"{column}.")]
        in_group = any(isinstance(field, Group) and column in field.fields for field in schema.values())
        if not leaves and (in_group or column in known):
            raise SchemaError(
                f"columns: {column!r} is in the files, but the schema delivers it as a part of a group or not at all; "
                "ask for the group, or pass another schema="
            )
        if not leaves:
            raise SchemaError(
                f"columns: there is no column {column!r}. {nearest(column, dict.fromkeys([*schema, *known]))}"
            )
        names.extend(leaves)
    return schema.select(names)


def _decoders(schema: Schema, snapshot: Snapshot) -> list[Decoder]:
    """Return one decoder for each of the snapshot's schemas; those of files without rows are never used."""
    with_rows = snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]]
    decoders: list[Decoder | None] = []
    for number, file_schema in enumerate(snapshot.schemas):
        name = snapshot.files[int(np.argmax(snapshot.file_schema == number))].path
        is_read = number in with_rows or not len(with_rows)
        decoders.append(Decoder(schema, file_schema, snapshot.partition_schema, name) if is_read else None)
    usable = next(d for d in decoders if d is not None)
    return [d or usable for d in decoders]


def with_constant_lists(schema: Schema, snapshot: Snapshot, options: ReadOptions) -> Schema:
    """Deliver lists that have the same length in every row as tensors, where no file carries a schema for them.

    Footers tell how many values each row group has, which rules out most lists. What is left is looked at: all of it
    up to 64 MiB, row groups spread over the data set beyond that, where a row that differs after all is an error when
    it is read.
    """
    with_rows = set(snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]].tolist())
    carrying = [found for number, found in enumerate(snapshot.schemas) if number in with_rows and is_carrying(found)]
    declared = {name for found in carrying for name in Schema.from_arrow(found)}
    lists = {n: field for n, field in schema.items() if isinstance(field, RaggedList) and n not in declared}
    lengths = {
        name: _constant_length(snapshot, name) for name, field in lists.items() if isinstance(field.item, Scalar)
    }
    candidates = [name for name, length in lengths.items() if length]
    if not candidates:
        return schema
    fields = dict(schema)
    for name in candidates:
        item, length = lists[name].item, lengths[name] or 0
        width = length * number_type(item.dtype).bit_width // 8
        reader = Reader(snapshot, _decoders(schema.select([name]), snapshot), None, options)
        if _all_have_width(snapshot, reader, name, width):
            fields[name] = Tensor(item.type, (length,), fill=item.fill, storage="list")
    return Schema(fields)


def _all_have_width(snapshot: Snapshot, reader: Reader, name: str, width: int) -> bool:
    """Look at the lists of row groups spread over the data set, at all of them where there are not too many."""
    groups = np.flatnonzero(snapshot.row_group_rows)
    stride = max(1, int(snapshot.row_group_rows[groups].sum()) * width // CONSTANT_LISTS_BYTES)
    for group in groups[::stride].tolist():
        seen_bytes = 0
        stream = reader.stream(group, SAMPLE_ROWS)
        try:
            for table in stream:
                lengths = pc.unique(pc.binary_length(table.column(name)))
                if lengths.to_pylist() != [width]:
                    return False
                seen_bytes += width * len(table)
                if seen_bytes >= CONSTANT_LISTS_BYTES // 4:
                    break
        except (DataError, SourceError):
            return False  # nulls, or damage: reading it will say so
        finally:
            stream.close()  # type: ignore[attr-defined]
    return True


def _constant_length(snapshot: Snapshot, name: str) -> int | None:
    """Return how many values each row of a list column has, if footers admit that all have as many."""
    lengths: set[int] = set()
    for group in np.flatnonzero(snapshot.row_group_rows):
        file = int(snapshot.row_group_file[group])
        prefix = read_name(snapshot.schema_of(file), name) + "."
        footer = snapshot.footers.get(file)
        chunks = [footer.row_group(int(snapshot.row_group_number[group])).column(i) for i in range(footer.num_columns)]
        leaves = [c for c in chunks if c.path_in_schema.startswith(prefix)]
        if len(leaves) != 1 or leaves[0].num_values % snapshot.row_group_rows[group]:
            return None
        lengths.add(int(leaves[0].num_values // snapshot.row_group_rows[group]))
        if len(lengths) > 1:
            return None
    return lengths.pop() if lengths else None


def _count(
    snapshot: Snapshot,
    reader: Reader,
    row_filter: RowFilter,
    num_threads: int,
    ranks: Ranks | None,
    known: Known | None,
    *,
    skips: bool,
) -> Counted:
    """Count the rows of each row group that pass the filter: of every nth one on each of n ranks."""
    counts = np.where(snapshot.row_group_rows > 0, -1, 0) if known is None else known.counts_of(snapshot)
    wanted = np.flatnonzero(counts < 0)
    if ranks is None:
        counts[wanted], skipped = _count_some(snapshot, reader, row_filter, num_threads, wanted, skips=skips)
        return Counted(counts, skipped)
    rank, world_size = ranks.shard.rank, ranks.shard.world_size
    own = wanted[rank::world_size]

    def count() -> bytes:
        return _count_some(snapshot, reader, row_filter, num_threads, own, skips=False)[0].astype("<i8").tobytes()

    for number, received in enumerate(ranks.gather(count)):
        counts[wanted[number::world_size]] = np.frombuffer(received, "<i8")
    return Counted(counts)


def _count_some(
    snapshot: Snapshot, reader: Reader, row_filter: RowFilter, num_threads: int, wanted: IntArray, *, skips: bool
) -> tuple[IntArray, tuple[tuple[int, str], ...]]:
    """Return the rows of some row groups that pass the filter, and which of them were left out, with the reason."""
    counts = np.zeros(len(wanted), np.int64)
    skipped: list[tuple[int, str]] = []
    if not len(wanted):
        return counts, ()

    def count(group: int) -> int:
        try:
            return reader.count(group)
        except (DataError, SourceError) as error:
            if not skips:
                raise
            skipped.append((group, str(error)))
            return 0

    with ThreadPoolExecutor(num_threads, thread_name_prefix="parquet_loader-count") as pool:
        files = np.unique(snapshot.row_group_file[wanted]).tolist()
        admitted = pool.map(lambda file: row_filter.surviving(snapshot, file, reader.positions), files)
        surviving = dict(zip(files, admitted, strict=True))
        places = [
            place
            for place, group in enumerate(wanted.tolist())
            if int(snapshot.row_group_number[group]) in surviving[int(snapshot.row_group_file[group])]
        ]
        try:
            counts[places] = list(pool.map(count, wanted[places].tolist()))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return counts, tuple(sorted(skipped))


def default_num_threads() -> int:
    """Return the number of processors this process may use, at most 8."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, available))
