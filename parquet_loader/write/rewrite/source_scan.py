"""Reads the source in the form of the new files: a sample, the footers' null counts, all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parquet_loader.common import ReadOptions, Stream, permutation
from parquet_loader.dataset import Dataset
from parquet_loader.decode import parts_of, read_name
from parquet_loader.read import RowFilter, RowGroupReader
from parquet_loader.schema import Group, Schema
from parquet_loader.source import Metadata, Snapshot
from parquet_loader.write.rewrite.stored_columns import Facts, StoredDecoder, Target, nullable

_SAMPLE_GROUPS = 16


@dataclass(frozen=True, slots=True)
class Rows:
    """A source's rows in the stored form of a target.

    Attributes:
        dataset: The source, and the rows that pass the filters.
        target: The form of the new files.
        reader: Reads row groups as stored columns.
        slice_rows: Rows that are read at a time.
    """

    dataset: Dataset
    target: Target
    reader: RowGroupReader
    slice_rows: int

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        target: Target,
        row_filter: RowFilter | None,
        options: ReadOptions,
        slice_bytes: int,
    ) -> Rows:
        """Return the rows of a data set."""
        snapshot = dataset.snapshot
        with_rows = set(snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]].tolist())
        decoders: list[StoredDecoder | None] = []
        for number, file_schema in enumerate(snapshot.schemas):
            name = snapshot.files[int(np.argmax(snapshot.file_schema == number))].path
            is_read = number in with_rows or not with_rows
            decoders.append(StoredDecoder(target, file_schema, snapshot.partition_schema, name) if is_read else None)
        usable = next(d for d in decoders if d is not None)
        rows = max(1, int(slice_bytes / max(dataset.sizing.row.decoded, 1.0)))
        return cls(
            dataset, target, RowGroupReader(snapshot, [d or usable for d in decoders], row_filter, options), rows
        )

    @property
    def row_groups(self) -> list[int]:
        """The row groups with rows that pass the filters, in order."""
        return np.flatnonzero(self.dataset.counts).tolist()

    @property
    def schema(self) -> pa.Schema:
        """The stored columns, all nullable."""
        return nullable(self.target.schema.arrow_schema().empty_table()).schema

    def slices(self, row_group: int) -> Iterator[pa.Table]:
        """Yield one row group's rows a slice at a time."""
        yield from self.reader.stream(self.dataset.snapshot.row_group(row_group), self.slice_rows)

    def sample(self, sample_bytes: int, *, shuffled: bool, seed: int) -> pa.Table:
        """Return rows of row groups spread over the data set, in random order if they will be stored shuffled."""
        groups = self.row_groups
        stride = max(1, -(-len(groups) // _SAMPLE_GROUPS))
        chosen = groups[::stride]
        rows = max(1, int(sample_bytes / max(self.dataset.sizing.row.decoded, 1.0)) // max(len(chosen), 1))
        tables: list[pa.Table] = []
        for group in chosen:
            taken = 0
            stream = self.reader.stream(self.dataset.snapshot.row_group(group), min(rows, self.slice_rows))
            try:
                for table in stream:
                    tables.append(table.slice(0, rows - taken))
                    taken += len(tables[-1])
                    if taken >= rows:
                        break
            finally:
                stream.close()  # type: ignore[attr-defined]
        sample = pa.concat_tables(tables).combine_chunks()
        return sample.take(pa.array(permutation(len(sample), seed, Stream.REWRITE, 1))) if shuffled else sample


def guess_nulls(rows: Rows, sample: pa.Table) -> Facts:
    """Return the levels with nulls, by the sample and by the null counts of footers.

    A count of zero is not trusted: each row of a column that is written not-null is checked.
    """
    levels = dict(Facts.from_table(sample).nulls)
    snapshot = rows.dataset.snapshot
    undecided = {name for name, found in levels.items() if found == (False,)}
    for file in np.unique(snapshot.row_group_file[rows.row_groups]).tolist():
        if not undecided:
            break
        footer = snapshot.footers.get(file)
        paths = {read_name(snapshot.schema_of(file), name, enters_lists=False): name for name in undecided}
        for column, path in enumerate(footer.paths):
            if path in paths and _counts_nulls(footer, column):
                levels[paths[path]] = (True,)
                undecided.discard(paths[path])
    return Facts(levels)


def _counts_nulls(footer: Metadata, column: int) -> bool:
    if footer.schema.leaves[column].max_definition_level == 0:
        return False
    return any(footer.null_count(number, column) for number in range(footer.num_row_groups))


def bytes_by_column(snapshot: Snapshot, row_groups: Sequence[int], schema: Schema) -> tuple[dict[str, int], int]:
    """Return the bytes of each stored column of `schema` in the row groups, and of all columns read for it."""
    sizes = dict.fromkeys(schema.stored_columns(), 0)
    total = 0
    by_file: dict[int, list[int]] = {}
    for group in row_groups:
        by_file.setdefault(int(snapshot.row_group_file[group]), []).append(int(snapshot.row_group_number[group]))
    for file, numbers in by_file.items():
        footer, file_schema = snapshot.footers.get(file), snapshot.schema_of(file)
        owners = _owners(schema, file_schema)
        columns = [
            (i, {name for prefix, name in owners if path == prefix or path.startswith(f"{prefix}.")})
            for i, path in enumerate(footer.names)
        ]
        columns = [(i, names) for i, names in columns if names]
        for number in numbers:
            for i, names in columns:
                size = footer.stored_bytes(number, [i])
                total += size
                for name in names:
                    sizes[name] += size
    return sizes, total


def _owners(schema: Schema, file_schema: pa.Schema) -> list[tuple[str, str]]:
    """Return pairs of a name to read and the stored column that is made from it."""
    found: list[tuple[str, str]] = []
    for name, field in schema.items():
        for part, _ in parts_of(name, field):
            found.append((read_name(file_schema, part), part))
        if isinstance(field, Group) and field.storage == "packed" and name not in file_schema.names:
            found += [(read_name(file_schema, member), name) for member in field.fields]
    return found
