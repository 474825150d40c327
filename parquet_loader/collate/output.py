"""The protocol of outputs: how an epoch turns windows and processed batches into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from parquet_loader.common import IntArray
from parquet_loader.decode import Column
from parquet_loader.engine import ProcessedBatch
from parquet_loader.plan import Plan
from parquet_loader.window import Allocator, KeptWindow, Memory, StoredWindow, Window

Batch: TypeAlias = dict[str, Any]
"""A batch: by column name a `torch.Tensor` or `Ragged`, with ``OutputOptions(format="numpy")`` a numpy array.

With the formats of tables a batch is a table, for which type checkers need a cast.

Images of different sizes are a list of tensors. To type checkers the values are `Any`; docs/design/typing.md says why.
"""


class Output(Protocol):
    """Makes batches of the engine's windows and processed batches. Used by the caller's thread."""

    def masked(self, masks: Mapping[str, str]) -> Output:  # noqa: ARG002
        """Return an output for batches in which columns have masks; this one, unless masks become something else.

        Args:
            masks: The names of mask columns, by the names of the columns they belong to. Empty if there is a
                `transform`, whose columns may mean something else.
        """
        return self

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return the allocator of windows, which may keep up to `keep_bytes` for reuse."""

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield a window's batches in order: views of it, or copies if `copied_to` is given.

        Args:
            window: The window; its memory lives as long as a view of it.
            batch_size: Rows of each batch except the last.
            copied_to: Provides the memory of copies; None: no copy.
        """

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch, copied if `copied_to` is given."""

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the device that the caller chose; the CPU, unless an output knows others."""
        return batches


@dataclass(slots=True)
class DeviceFigures:
    """Where the rows of an epoch were permuted whose batches go to a device.

    Attributes:
        windows: Windows copied as a whole, and permuted on the device.
        cpu_columns: Columns of these that the CPU permuted: lists of lists.
        reasons: Why others were permuted on the CPU, with the number of windows or batches: ``"out of device memory"``
            (windows), ``"transform or media"`` (batches).
        kept_rows: With ``cache="device"``, rows of the data set that are on the device.
        copied: With ``isolation="process"``, why windows were copied to pinned memory first, with their number: their
            shared memory could not be registered with CUDA.
        not_kept: Why ``cache="device"`` keeps no rows; None if it does, or was not asked for.
    """

    windows: int = 0
    cpu_columns: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    kept_rows: int = 0
    copied: dict[str, int] = field(default_factory=dict)
    not_kept: str | None = None

    def count_copied(self, reason: str) -> None:
        """Count a window that was copied to pinned memory first."""
        self.copied[reason] = self.copied.get(reason, 0) + 1

    def count(self, reason: str) -> None:
        """Count a window or batch that the CPU permuted."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


@runtime_checkable
class PermutingOutput(Protocol):
    """An output that lets a device permute the rows of windows."""

    permutes: bool
    """Whether it does; if not, it gets no `StoredWindow`."""
    device_limit_bytes: int | None
    """`OutputOptions.device_memory_limit`."""
    figures: DeviceFigures
    """Those of the epoch that began last."""

    def check_device_memory(self, rows: int, row_bytes: float, widest_bytes: float, *, is_ragged: bool) -> None:
        """Raise `MemoryLimitError` if windows may exceed `device_memory_limit`; see `most_device_bytes`."""

    def from_stored(self, window: StoredWindow, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield a window's batches as `Output.from_window` does; `copied_to` provides memory to copy from."""

    def kept_rows(self, counts: IntArray, columns: Sequence[Column], window_rows: int) -> DeviceRows | None:
        """Return the rows that stay on the device; None if none do.

        Args:
            counts: int64 ``[row groups]``: rows of each that pass the filter.
            columns: The columns.
            window_rows: Rows of the largest window, with those that another one left over.

        Raises:
            ConfigurationError: rows of such columns cannot be kept.
        """

    def from_kept(self, window: KeptWindow, batch_size: int) -> Iterator[Batch]:
        """Yield the batches of a window of kept rows."""

    def register(self, memory: Memory) -> None:
        """Page-lock a block of shared memory that windows come in, as long as it lives, if they go to a GPU."""

    def release(self) -> None:
        """Release the rows that are kept."""


class DeviceRows(Protocol):
    """Rows of a data set that are on a device; see `KeptRows`."""

    first_row: IntArray
    """int64 ``[row groups]``: the number of the first row of each."""

    def has(self, plan: Plan) -> bool:
        """Whether all rows of an epoch are there."""


class Pulled(Protocol):
    """Counts the batches that a framework itself cuts from windows. Any thread may use it."""

    @property
    def batches(self) -> int:
        """Batches of the epoch that it has cut."""

    def cut(self) -> None:
        """End the epoch: further batches of it are an error."""


@runtime_checkable
class CountedOutput(Protocol):
    """An output of parts that stand for batches, which a framework cuts; `Pulled` says how many it has."""

    pulled: Pulled


def rows_of(batch: Any) -> int:
    """Return the number of rows of a batch, in any format."""
    if isinstance(batch, dict):
        return len(next(iter(batch.values()))) if batch else 0
    return len(batch)
