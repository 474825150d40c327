"""The protocol of outputs: how an epoch turns windows and processed batches into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

from parquet_loader.common import IntArray
from parquet_loader.decode import Column
from parquet_loader.engine import ProcessedBatch
from parquet_loader.plan import Plan
from parquet_loader.window import Allocator, CarriedRows, KeptWindow, Memory, StoredWindow, Window

Batch: TypeAlias = dict[str, Any]
"""A batch: a `torch.Tensor` or `Ragged` by column name; with ``OutputOptions(format="numpy")`` a numpy array.

Images of different sizes are a list of tensors. With the formats of tables a batch is a table, for which type checkers
need a cast. To type checkers the values are `Any`; docs/design/typing.md says why.
"""


class Output(Protocol):
    """Makes batches of the engine's windows and processed batches. Used by the caller's thread."""

    def masked(self, masks: Mapping[str, str]) -> Output:  # noqa: ARG002
        """Return an output for batches in which columns have masks: this one, unless the format has nulls.

        Args:
            masks: The names of mask columns, by the names of the columns they belong to. Empty if there is a
                `transform`, because its columns may mean something else.
        """
        return self

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return the allocator of windows, which may keep up to `keep_bytes` for reuse."""

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield a window's batches in order: views of it, or copies if `copied_to` is given.

        Args:
            window: The window; its memory lives as long as a view of it.
            batch_size: Rows of each batch except the last.
            copied_to: Provides the memory of copies; None for views.
        """

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch, copied if `copied_to` is given."""

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the caller's device. This implementation leaves them on the CPU."""
        return batches


@dataclass(slots=True)
class DeviceFigures:
    """Where the rows of an epoch were permuted, if its batches go to a device.

    Attributes:
        windows: Windows copied as a whole, and permuted on the device.
        cpu_columns: Columns of these windows that the CPU permuted: lists of lists.
        reasons: Number of other windows or batches, which the CPU permuted, by reason: ``"out of device memory"``
            (windows), ``"transform or media"`` (batches), ``"no images for the device"`` (batches, although
            `OutputOptions.decode_on_device` is set).
        kept_rows: With ``cache="device"``, rows of the data set that are on the device.
        copied: With ``isolation="process"``, the number of windows that were copied to pinned memory first, by the
            reason why CUDA could not register their shared memory.
        not_kept: Why ``cache="device"`` keeps no rows; None if it keeps them, or was not requested.
        images: Images decoded on the device.
        cpu_images: With `OutputOptions.decode_on_device`, the number of images that the CPU decoded, by reason:
            ``"not plain JPEGs"`` (also nulls), ``"refused by the device"``, ``"out of device memory"``.
    """

    windows: int = 0
    cpu_columns: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    kept_rows: int = 0
    copied: dict[str, int] = field(default_factory=dict)
    not_kept: str | None = None
    images: int = 0
    cpu_images: dict[str, int] = field(default_factory=dict)

    def copied_now(self) -> DeviceFigures:
        """Return a copy that later counts do not change."""
        return replace(self, reasons=dict(self.reasons), copied=dict(self.copied), cpu_images=dict(self.cpu_images))

    def count_images(self, reason: str, images: int) -> None:
        """Count images that the CPU decoded."""
        if images:
            self.cpu_images[reason] = self.cpu_images.get(reason, 0) + images

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
    """Whether a device permutes rows; if not, the output gets no `StoredWindow`."""
    decodes: bool
    """Whether a device decodes images; if not, the output gets no `ProcessedBatch` with encoded ones."""
    device_limit_bytes: int | None
    """`OutputOptions.device_memory_limit`."""
    figures: DeviceFigures
    """Figures of the latest epoch."""

    def check_device_memory(self, rows: int, row_bytes: float, widest_bytes: float, *, is_ragged: bool) -> None:
        """Raise `MemoryLimitError` if windows may exceed `device_memory_limit`; see `most_device_bytes`."""

    def check_image_memory(self, batch_bytes: float) -> None:
        """Raise `MemoryLimitError` if batches of decoded images may exceed it; see `image_device_bytes`."""

    def from_stored(
        self, window: StoredWindow, batch_size: int, copied_to: Allocator | None, carried: CarriedRows
    ) -> Iterator[Batch]:
        """Yield a window's batches like `Output.from_window`.

        Args:
            window: The window.
            batch_size: Rows of each batch except the last.
            copied_to: Provides pinned memory for uploads.
            carried: The rows that the previous window left; receives those that this one leaves.
        """

    def kept_rows(self, counts: IntArray, columns: Sequence[Column], window_rows: int) -> DeviceRows | None:
        """Return the rows that stay on the device; None if none do.

        Args:
            counts: int64 ``[row groups]``: rows of each row group that pass the filter.
            columns: The columns.
            window_rows: Rows of the largest window, including rows left over by the previous one.

        Raises:
            ConfigurationError: Rows of such columns cannot be kept.
        """

    def from_kept(self, window: KeptWindow, batch_size: int) -> Iterator[Batch]:
        """Yield the batches of a window of kept rows."""

    def register(self, memory: Memory) -> None:
        """Page-lock a block of shared memory that holds windows for a GPU, as long as the block lives."""

    def release(self) -> None:
        """Release the rows that are kept."""


class DeviceRows(Protocol):
    """Rows of a data set that are on a device; see `KeptRows`."""

    first_row: IntArray
    """int64 ``[row groups]``: the number of each row group's first row."""

    def has(self, plan: Plan) -> bool:
        """Whether all rows of an epoch are present."""


class Pulled(Protocol):
    """Counts the batches that a framework itself cuts from windows. Any thread may use it."""

    @property
    def batches(self) -> int:
        """Number of batches of the epoch that the framework has cut."""

    def cut(self) -> None:
        """End the epoch: further batches of it are an error."""


@runtime_checkable
class CountedOutput(Protocol):
    """An output whose items stand for batches that a framework cuts later; `pulled` counts those that it has cut."""

    pulled: Pulled


def rows_of(batch: Any) -> int:
    """Return the number of rows of a batch, in any format."""
    if isinstance(batch, dict):
        if not batch:
            return 0
        column = next(iter(batch.values()))
        shape = getattr(column, "shape", None)
        return int(shape[0]) if shape and shape[0] is not None else len(column)  # `len` of a tensor takes 2 us
    return len(batch)
