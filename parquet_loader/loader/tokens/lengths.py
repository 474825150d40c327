"""Reads the number of tokens of each document, once, before the first plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray, OutputOptions, format_bytes
from parquet_loader.dataset import ListedDataset
from parquet_loader.errors import ConfigurationError, DataError, MemoryLimitError, SchemaError
from parquet_loader.loader.column_scan import ColumnScan, ScanOptions
from parquet_loader.loader.tokens.tokenizing import DocumentEncoder
from parquet_loader.plan import Lengths, Plan
from parquet_loader.schema import Ragged

# Rows of a batch when lengths are read.
_BATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class DocumentLengths:
    """The numbers of tokens of all documents that pass the filters; 4 bytes a document.

    Attributes:
        tokens: int32 ``[documents]``, in the order of the snapshot.
        begins: int64 ``[row groups + 1]``: documents before each row group.
    """

    tokens: Lengths
    begins: IntArray

    def of_window(self, plan: Plan, window: int) -> Lengths:
        """Return the lengths of a window's documents in the order in which they are read, int32 ``[rows]``."""
        parts = [
            self.tokens[self.begins[s.row_group] + s.start : self.begins[s.row_group] + s.stop]
            for s in plan.slices(window)
        ]
        return np.concatenate(parts) if len(parts) != 1 else parts[0]


def read_lengths(
    listed: ListedDataset, column: str, options: ScanOptions, encoder: DocumentEncoder | None = None
) -> DocumentLengths:
    """Read the length of each document that passes the filters.

    Args:
        listed: The files.
        column: A column of lengths (integers), of lists, or of text for the encoder.
        options: How it is read.
        encoder: Turns text into tokens; None for a column of lengths or lists.

    Raises:
        SchemaError: The column has another type.
        MemoryLimitError: The lengths take more than half of the memory limit.
        DataError, SourceError: Rows cannot be read.
    """
    transform, limit_bytes = None if encoder is None else encoder.count_column, options.memory_limit_bytes
    with ColumnScan(listed, [column], _BATCH_ROWS, options, OutputOptions(format="numpy"), transform) as scan:
        rows = int(scan.rows.begins[-1])
        if 4 * rows > limit_bytes // 2:
            raise MemoryLimitError(
                f"memory_limit={format_bytes(limit_bytes)}: the lengths of {rows} documents take "
                f"{format_bytes(4 * rows)}, which may be at most half of it; pass at least {format_bytes(8 * rows)}"
            )

        def read() -> Lengths:
            own = np.empty(scan.stop - scan.first, np.int32)
            for at, count, batch in scan.batches():
                some = _lengths_in(batch[column], column)[:count]
                wrong = np.flatnonzero((some < 0) | (some >= 2**31))
                if len(wrong):
                    raise DataError(
                        f"{scan.rows.name(at + int(wrong[0]))} of those that pass: column {column!r} says "
                        f"{some[wrong[0]]} tokens; expected from 0 to {2**31 - 1}"
                    )
                own[at - scan.first : at - scan.first + count] = some
            return own

        parts = scan.gather(read, lambda own: own.astype("<i4").tobytes(), lambda part: np.frombuffer(part, "<i4"))
        lengths = parts[0] if len(parts) == 1 else np.concatenate(parts).astype(np.int32, copy=False)
        return DocumentLengths(lengths, scan.rows.begins)


def _lengths_in(array: Any, column: str) -> npt.NDArray[Any]:
    """Return the lengths in a column of integers, or of the lists in a column of lists, ``[rows]``."""
    lengths: npt.NDArray[Any]
    if isinstance(array, Ragged) and array.kind == "list":
        lengths = np.diff(array.offsets)
    elif isinstance(array, np.ndarray) and array.ndim == 2:
        lengths = np.full(len(array), array.shape[1])
    elif isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "iu":
        lengths = array
    else:
        is_text = isinstance(array, Ragged) and array.kind == "text"
        advice = "pass tokenizer= if it holds the text of documents" if is_text else "name one of integers or lists"
        raise SchemaError(
            f"column {column!r}: lengths are integers, or the lengths of lists of token ids; this column has "
            f"neither; {advice}"
        )
    return lengths


def check_lengths_fit(counts: IntArray, lengths: DocumentLengths) -> None:
    """Check that the lengths belong to the rows that the loader reads.

    Raises:
        ConfigurationError: The number of rows has changed.
    """
    if not np.array_equal(np.diff(lengths.begins), counts):
        raise ConfigurationError("the files changed while the loader was made; make it again")
