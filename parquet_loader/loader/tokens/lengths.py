"""Reads the number of tokens of each document, once, before the first plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray, OutputOptions, Shard, format_bytes
from parquet_loader.dataset import ListedDataset, ranks_to_agree_with, with_columns
from parquet_loader.errors import ConfigurationError, DataError, MemoryLimitError, SchemaError
from parquet_loader.loader.batched import BatchedDataLoader, parts_of
from parquet_loader.loader.tokens.tokenizing import DocumentEncoder
from parquet_loader.plan import Lengths, Plan
from parquet_loader.read import Filters
from parquet_loader.schema import Ragged

# Rows of a batch when lengths are read; a window holds at least as many.
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
    listed: ListedDataset,
    column: str,
    *,
    filters: Filters | None,
    shard: Shard | None,
    memory_limit_bytes: int,
    num_threads: int | None,
    isolation: Literal["thread", "process"],
    progress: bool,
    encoder: DocumentEncoder | None = None,
) -> DocumentLengths:
    """Read the length of each document that passes the filters.

    Each rank of `torch.distributed` reads a part, and the ranks gather the parts. If the caller passes a shard, this
    rank reads all documents.

    Args:
        listed: The files.
        column: A column of lengths (integers), of lists, or of text for the encoder.
        filters, shard, num_threads, isolation, progress: As in `TokenLoader`.
        memory_limit_bytes: Limit of the memory held while lengths are read.
        encoder: Turns text into tokens; None for a column of lengths or lists.

    Raises:
        SchemaError: The column has another type.
        MemoryLimitError: The lengths take more than half of the memory limit.
        DataError, SourceError: Rows cannot be read.
    """
    ranks = ranks_to_agree_with(shard)
    with BatchedDataLoader(
        with_columns(listed, [column]),
        _BATCH_ROWS,
        transform=None if encoder is None else encoder.count_column,
        filters=filters,
        memory_limit=memory_limit_bytes,
        shard=None if ranks is not None else Shard(0, 1),
        num_threads=num_threads,
        isolation=isolation,
        progress=progress,
        output_options=OutputOptions(format="numpy"),
    ) as loader:
        dataset = parts_of(loader).dataset
        counts = dataset.counts
        begins = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=begins[1:])
        rows = int(begins[-1])
        if 4 * rows > memory_limit_bytes // 2:
            raise MemoryLimitError(
                f"memory_limit={format_bytes(memory_limit_bytes)}: the lengths of {rows} documents take "
                f"{format_bytes(4 * rows)}, which may be at most half of it; pass at least {format_bytes(8 * rows)}"
            )
        rank, world_size = (0, 1) if ranks is None else (ranks.shard.rank, ranks.shard.world_size)
        bounds = [rows * number // world_size for number in range(world_size + 1)]
        own = np.empty(bounds[rank + 1] - bounds[rank], np.int32)

        def read() -> bytes:
            at = 0
            for batch in loader:
                some = _lengths_in(batch[column], column)[: len(own) - at]
                wrong = np.flatnonzero((some < 0) | (some >= 2**31))
                if len(wrong):
                    row = bounds[rank] + at + int(wrong[0])
                    number = int(np.searchsorted(begins, row, side="right")) - 1
                    group = dataset.snapshot.row_group(number)
                    raise DataError(
                        f"{group.file.name}, row group {group.number}, row {row - int(begins[number])} of those that "
                        f"pass: column {column!r} says {some[wrong[0]]} tokens; expected from 0 to {2**31 - 1}"
                    )
                own[at : at + len(some)] = some
                at += len(some)
            if at != len(own):
                raise DataError(f"column {column!r}: {at} lengths were read, expected {len(own)}")
            return own.astype("<i4").tobytes() if ranks is not None else b""

        if ranks is None:
            read()
            lengths = own
        else:
            parts = [np.frombuffer(part, "<i4") for part in ranks.gather(read)]
            lengths = np.concatenate(parts).astype(np.int32, copy=False)
        return DocumentLengths(lengths, begins)


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
        text = (
            "; pass tokenizer= if it holds the text of documents"
            if isinstance(array, Ragged) and array.kind == "text"
            else ""
        )
        raise SchemaError(
            f"column {column!r}: lengths are integers, or the lengths of lists of token ids; this column has "
            f"neither{text}"
        )
    return lengths


def check_lengths_fit(counts: IntArray, lengths: DocumentLengths) -> None:
    """Check that the lengths belong to the rows that the loader reads.

    Raises:
        ConfigurationError: The number of rows has changed.
    """
    if not np.array_equal(np.diff(lengths.begins), counts):
        raise ConfigurationError("the files changed while the loader was made; make it again")
