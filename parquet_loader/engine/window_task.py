"""The state of one window while it is made: its slices, its buffers, and the bytes it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from parquet_loader.common import is_out_of_memory, out_of_memory
from parquet_loader.plan import RowGroupSlice
from parquet_loader.read import Cursor
from parquet_loader.window import Assembly, Window


@dataclass(slots=True, eq=False)
class WindowTask:
    """A window from its admission until it is released; belongs to the engine's lock.

    Attributes:
        index: Its number in the plan.
        slices: What it reads.
        assembly: Its rows.
        phase: What may be done next; ``"busy"`` while a step is under way that allows no other.
        waiting: Slices not begun.
        unread: Slices not done.
        jobs: Gathering steps not begun.
        ungathered: Gathering steps not done.
        arena_bytes, decoded_bytes, gathered_bytes: What it holds.
        window: The result.
        error: What spoiled it.
        begun_rows: Rows of batches begun, where batches are processed.
        unprocessed: Batches not done.
    """

    index: int
    slices: list[RowGroupSlice]
    assembly: Assembly
    phase: Literal["new", "read", "order", "gather", "finish", "busy", "ready"] = "new"
    waiting: list[int] = field(default_factory=list)
    unread: int = 0
    jobs: list[int] = field(default_factory=list)
    ungathered: int = 0
    arena_bytes: int = 0
    decoded_bytes: int = 0
    gathered_bytes: int = 0
    window: Window | None = None
    error: BaseException | None = None
    begun_rows: int = 0
    unprocessed: int = 0

    def spoil(self, error: BaseException) -> None:
        """Note what went wrong first; everything before the window is still delivered."""
        if is_out_of_memory(error):
            error = out_of_memory("a window of rows", error)
        self.error = self.error or error

    @property
    def held_bytes(self) -> int:
        """All it holds."""
        return self.arena_bytes + self.decoded_bytes + self.gathered_bytes


@dataclass(frozen=True, slots=True)
class ReadSlice:
    """What reading a slice gave: bytes that stay with the window, bytes read, and the cursor if it goes on."""

    kept_bytes: int
    read_bytes: int
    left_open: Cursor | None
