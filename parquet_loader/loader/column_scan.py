"""Reads columns of all rows once, for loaders that plan from their values; each rank reads a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

import numpy as np

from parquet_loader.collate import Batch, rows_of
from parquet_loader.common import IntArray, OutputOptions, Shard
from parquet_loader.dataset import Dataset, ListedDataset, ranks_to_agree_with, with_columns
from parquet_loader.engine import Transform
from parquet_loader.errors import DataError
from parquet_loader.loader.batched import BatchedDataLoader, parts_of
from parquet_loader.read import Filters
from parquet_loader.source import Snapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """How columns are read before the first plan.

    Attributes:
        filters, num_threads, isolation, progress: As in `BatchedDataLoader`.
        shard: As in `BatchedDataLoader`; if the caller passes one, this rank reads all rows.
        memory_limit_bytes: Limit of the memory held while the columns are read.
    """

    filters: Filters | None
    shard: Shard | None
    memory_limit_bytes: int
    num_threads: int | None
    isolation: Literal["thread", "process"]
    progress: bool


@dataclass(frozen=True, slots=True)
class PassingRows:
    """The rows that pass the filters, numbered in the order of the snapshot.

    Attributes:
        snapshot: The files.
        begins: int64 ``[row groups + 1]``: rows before each row group, and all rows.
    """

    snapshot: Snapshot
    begins: IntArray

    @classmethod
    def of(cls, dataset: Dataset) -> PassingRows:
        """Return the rows of a data set."""
        return cls(dataset.snapshot, np.concatenate([np.zeros(1, np.int64), np.cumsum(dataset.counts)]))

    def locate(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the row group of each row, and its number among the rows of the row group that pass."""
        group = np.searchsorted(self.begins, rows, side="right") - 1
        return group, rows - self.begins[group]

    def name(self, row: int) -> str:
        """Return the file, row group and number of a row, for messages."""
        number = int(np.searchsorted(self.begins, row, side="right")) - 1
        return f"{self.snapshot.row_group(number).name}, row {row - int(self.begins[number])}"


class ColumnScan:
    """Reads columns once, in a ``with`` block. Each rank of `torch.distributed` reads a part of the rows.

    Args:
        listed: The files.
        columns: The columns.
        batch_rows: Rows of a batch; a window holds at least as many.
        options: How they are read.
        output: The format of batches.
        transform: As in `BatchedDataLoader`.

    Attributes:
        rows: The rows of all ranks.
        first, stop: The numbers of this rank's rows; `stop` is exclusive.
    """

    def __init__(
        self,
        listed: ListedDataset,
        columns: Sequence[str],
        batch_rows: int,
        options: ScanOptions,
        output: OutputOptions,
        transform: Transform | None = None,
    ) -> None:
        self._ranks = ranks_to_agree_with(options.shard)
        self._columns = columns
        self._loader = BatchedDataLoader(
            with_columns(listed, columns),
            batch_rows,
            transform=transform,
            filters=options.filters,
            memory_limit=options.memory_limit_bytes,
            shard=None if self._ranks is not None else Shard(0, 1),
            num_threads=options.num_threads,
            isolation=options.isolation,
            progress=options.progress,
            output_options=output,
        )
        self.rows = PassingRows.of(parts_of(self._loader).dataset)
        shard, total = self._loader.shard, int(self.rows.begins[-1])
        self.first, self.stop = (total * (shard.rank + n) // shard.world_size for n in range(2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()

    def batches(self) -> Iterator[tuple[int, int, Batch]]:
        """Yield this rank's rows: the number of the first row, the number of rows, and a batch that begins with them.

        Raises:
            DataError: There are fewer rows than expected.
        """
        at = self.first
        for batch in self._loader:
            rows = min(rows_of(batch), self.stop - at)
            if rows:
                yield at, rows, batch
            at += rows
        if at != self.stop:
            raise DataError(
                f"column {self._columns[0]!r}: {at - self.first} rows were read, expected {self.stop - self.first}"
            )

    def gather(self, read: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> list[T]:
        """Return the results of `read` on all ranks, in their order; an error on one rank is raised on all."""
        if self._ranks is None:
            return [read()]
        return [unpack(part) for part in self._ranks.gather(lambda: pack(read()))]
