"""Rows of a data set as a `torch.utils.data.Dataset`, for samplers and for trainers that check the type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from parquet_loader.dataset import ListedDataset
from parquet_loader.errors import ConfigurationError
from parquet_loader.loader.parquet_dataset import ParquetDataset
from parquet_loader.loader.rows.row_reader import Row, RowReader
from parquet_loader.schema import Schema


class ParquetRows(Dataset[Any]):
    """Rows by index for torch's `DataLoader`, samplers, `Subset` and `random_split`.

    Whole batches are the fastest: ``DataLoader(ParquetRows(data), sampler=BatchSampler(...), batch_size=None)`` passes
    a list of indices to `__getitem__`, which returns a batch. With ``batch_size=256`` the rows of a batch are also read
    together, but torch's `collate_fn` gets them one by one. Worker processes read with one thread each, and every start
    method of processes works.

    Args:
        data: A data set, or a `RowReader` from its method `rows`, which chooses memory and format.
    """

    def __init__(self, data: ParquetDataset | RowReader) -> None:
        if not isinstance(data, ListedDataset | RowReader):
            raise ConfigurationError(
                f"ParquetRows: expected a data set, as in ParquetRows(ParquetDataset(source)), found {data!r:.80}"
            )
        self.rows = data if isinstance(data, RowReader) else data.rows()

    def __len__(self) -> int:
        """Return the number of rows that pass the data set's filters."""
        return len(self.rows)

    def __code_schema__(self) -> Schema:
        """Return the schema whose codes are in rows, for writers."""
        return self.rows.schema

    def __getitem__(self, index: Any) -> Any:
        """Return one row, or a batch for a slice or integers ``[rows]``; see `RowReader.__getitem__`."""
        return self.rows[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return rows one by one, read together; see `RowReader.__getitems__`."""
        return self.rows.__getitems__(indices)
