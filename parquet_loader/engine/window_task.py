"""The state of one window while it is assembled: its slices, its buffers, and the bytes it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from parquet_loader.common import is_out_of_memory, out_of_memory
from parquet_loader.plan import RowGroupSlice
from parquet_loader.window import Assembly, StoredWindow, Window


@dataclass(slots=True, eq=False)
class WindowTask:
    """A window from its admission until it is released. Guarded by the engine's lock.

    Attributes:
        index: Its number in the plan.
        slices: The slices of row groups that it reads.
        assembly: Assembles its rows.
        phase: The next step; ``"busy"`` while a step runs that excludes all others.
        waiting: Numbers of the slices that no job reads yet.
        unread: Number of slices not read to their end.
        jobs: Numbers of the gathering steps that no job has started.
        ungathered: Number of gathering steps not done.
        arena_bytes, decoded_bytes, gathered_bytes: Bytes reserved for wide rows, decoded rows, and ordered rows.
        window: The finished window.
        error: The first error of its jobs.
        begun_rows: Rows of the batches that are processed or in progress, if batches are processed one by one.
        unprocessed: Number of batches not processed.
    """

    index: int
    slices: list[RowGroupSlice]
    assembly: Assembly
    phase: Literal["new", "read", "gather", "finish", "busy", "ready"] = "new"
    waiting: list[int] = field(default_factory=list)
    unread: int = 0
    jobs: list[int] = field(default_factory=list)
    ungathered: int = 0
    arena_bytes: int = 0
    decoded_bytes: int = 0
    gathered_bytes: int = 0
    window: Window | StoredWindow | None = None
    error: BaseException | None = None
    begun_rows: int = 0
    unprocessed: int = 0

    def fail(self, error: BaseException) -> None:
        """Keep the first error; all windows before this one are still delivered."""
        if is_out_of_memory(error):
            error = out_of_memory("a window of rows", error)
        self.error = self.error or error

    @property
    def is_ready_or_failed(self) -> bool:
        """Whether the consumer can get the window, or its error."""
        return self.phase == "ready" or self.error is not None

    @property
    def in_order(self) -> Window | None:
        """The finished window; an engine that makes batches has no stored windows."""
        assert not isinstance(self.window, StoredWindow)
        return self.window

    @property
    def held_bytes(self) -> int:
        """All bytes reserved for it."""
        return self.arena_bytes + self.decoded_bytes + self.gathered_bytes
