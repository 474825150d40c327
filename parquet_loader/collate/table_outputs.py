"""Delivers batches as Arrow tables, or as frames of pandas or Polars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from parquet_loader.collate.arrow_columns import arrow_array
from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.collate.output import Batch
from parquet_loader.common import needs_package
from parquet_loader.engine import ProcessedBatch
from parquet_loader.errors import DataError, UnsupportedError
from parquet_loader.window import Allocator, Window

MakeTable: TypeAlias = Callable[[Batch, Mapping[str, str]], Any]
"""Makes a table of a batch of arrays, and of the names of mask columns by the names of the columns they belong to."""

_MISSING = "OutputOptions(format={0!r}) needs {0}: pip install '{1}'"


class TableOutput(ArrayOutput):
    """Batches as tables, which share the memory of the arrays.

    Args:
        format: ``"arrow"``, ``"pandas"`` or ``"polars"``.
        device: None or ``"cpu"``.
        masks: The names of mask columns, by the names of the columns they belong to.

    Raises:
        ConfigurationError: It is another device.
        MissingPackageError: pandas or Polars is not installed.
    """

    def __init__(self, format: str, device: Any, masks: Mapping[str, str] | None = None) -> None:  # noqa: A002
        super().__init__(device, format)
        makers: Mapping[str, Callable[[], MakeTable]] = {
            "arrow": lambda: arrow_table,
            "pandas": _pandas_maker,
            "polars": _polars_maker,
        }
        self._table = makers[format]()
        self._masks = masks or {}

    def masked(self, masks: Mapping[str, str]) -> TableOutput:
        """Return an output that turns masks into nulls."""
        return TableOutput(self._format, None, masks)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield a table for each batch of a window, which keeps the window's memory alive."""
        for arrays in super().from_window(window, batch_size, copied_to):
            yield self._table(arrays, self._masks)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch as a table."""
        made: Batch = self._table(super().from_batch(batch, copied_to), self._masks)
        return made


def arrow_table(arrays: Batch, masks: Mapping[str, str]) -> pa.Table:
    """Return a batch of arrays as a table.

    Args:
        arrays: ``[rows, ...]`` by name.
        masks: The names of mask columns, by the names of the columns they belong to; masks become nulls.
    """
    return pa.table({name: _arrow_column(name, arrays, masks) for name in _names(arrays, masks)})


def _names(arrays: Batch, masks: Mapping[str, str]) -> list[str]:
    """Return the names of columns that are not masks."""
    dropped = set(masks.values())
    return [name for name in arrays if name not in dropped]


def _arrow_column(name: str, arrays: Batch, masks: Mapping[str, str]) -> pa.Array:
    try:
        return arrow_array(arrays[name], arrays[masks[name]] if name in masks else None)
    except UnsupportedError as error:
        raise UnsupportedError(f"column {name!r} {error}") from None
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {name!r} holds text that is not UTF-8: {error}; return Ragged(..., kind='bytes') from transform"
        ) from error


def _pandas_maker() -> MakeTable:
    with needs_package("pandas", _MISSING.format("pandas", "torch-parquet-loader[pandas]")):
        import pandas as pd  # noqa: PLC0415

    def frame(arrays: Batch, masks: Mapping[str, str]) -> pd.DataFrame:
        columns: dict[str, Any] = {}
        for name in _names(arrays, masks):
            array = arrays[name]
            if isinstance(array, np.ndarray) and array.ndim == 1 and name not in masks:
                columns[name] = array
            else:
                columns[name] = pd.arrays.ArrowExtensionArray(_arrow_column(name, arrays, masks))
        return pd.DataFrame(columns, copy=False)

    return frame


def _polars_maker() -> MakeTable:
    with needs_package("polars", _MISSING.format("polars", "polars")):
        import polars as pl  # noqa: PLC0415

    return lambda arrays, masks: pl.from_arrow(arrow_table(arrays, masks), rechunk=False)
