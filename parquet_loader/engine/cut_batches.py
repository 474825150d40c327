"""Schedules the jobs that write batches cut from windows: sequences of tokens, samples of episodes."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from parquet_loader.engine.batch_processor import ProcessedBatch
from parquet_loader.engine.batch_scheduler import Batches
from parquet_loader.engine.usage import Usage
from parquet_loader.engine.window_task import WindowTask
from parquet_loader.engine.workers.epoch_workers import Job

# A job writes several batches, because each job takes the engine's lock and wakes its threads: 4 instead of 2 batches
# of 2 MiB save 4 percent of an epoch's processor time.
_JOB_BYTES = 8 * 2**20

P = TypeVar("P")


def batches_at_once(most_ahead: int, batch_bytes: int) -> int:
    """Return the most batches that one job writes, if `most_ahead` of `batch_bytes` may be in progress or ready."""
    return max(1, min(most_ahead // 2, _JOB_BYTES // max(1, batch_bytes)))


@dataclass(slots=True, eq=False)
class HeldWindow:
    """A window, until its last batch is written and the engine does not need it any more.

    Attributes:
        task: The window in the engine.
        is_cut: Whether it is divided into batches.
        batches: Number of unwritten batches that need it, including the one that waits for the next window.
        not_begun: Number of complete batches that need it and that no job writes yet.
        is_removed: Whether it is removed from the engine's windows.
    """

    task: WindowTask
    is_cut: bool = False
    batches: int = 0
    not_begun: int = 0
    is_removed: bool = False

    def release(self) -> None:
        """Release the rows."""
        self.task.window = None


H = TypeVar("H", bound=HeldWindow)


class CutBatches(Batches, Generic[P, H]):
    """Batches that are cut from windows, in the order of windows; see `Batches`.

    The parts of a batch come from one or more windows. Subclasses return the jobs that prepare windows, and call `_add`
    when one is divided into batches. A window is held until its last batch is written.

    Invariant: at most `most_ahead` batches are in progress or ready.

    Args:
        write: Makes a batch of its parts and its number; any thread may call it.
        first_batch: The batch with which the epoch begins.
        batch_bytes: Bytes reserved for a batch until it is written; later, those of the largest batch so far.
        most_ahead: The most batches in progress or ready.
        at_once: The most batches that one job writes; None for about 8 MiB.
        usage: The counters of the epoch.
        delivers_jobs: Whether the batches of a job are delivered together: the consumer's thread then locks the engine
            once for all. They no longer count towards the memory in use, so they need a share of the limit.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Sequence[P]], int], list[ProcessedBatch]],
        first_batch: int,
        batch_bytes: int,
        most_ahead: int,
        usage: Usage,
        at_once: int | None = None,
        *,
        delivers_jobs: bool = False,
    ) -> None:
        super().__init__(first_batch, usage)
        self._write = write
        self._batch_bytes = batch_bytes
        self._most_ahead = most_ahead
        self._at_once = at_once
        self._delivers_jobs = delivers_jobs
        self._is_measured = False
        self._held: dict[int, H] = {}
        self._waiting: Collection[int] = ()
        self._cut: deque[tuple[Sequence[P], list[H]]] = deque()

    @abstractmethod
    def _windows_of(self, parts: Sequence[P]) -> set[int]:
        """Return the numbers of the windows that a batch needs."""

    def _writable(self, count: int) -> int:
        """Return how many of the next `count` batches one job may write now."""
        return count if self.begun + count <= self._most_ahead else 0

    def _job_batches(self) -> int:
        """Return the most batches that one job writes."""
        return self._at_once or batches_at_once(self._most_ahead, self._batch_bytes)

    def clear(self) -> None:
        """Release batches and windows."""
        super().clear()
        self._cut.clear()
        self._held.clear()

    def _add(self, held: H, complete: Sequence[Sequence[P]], waiting: set[int], windows: deque[WindowTask]) -> None:
        """Add the batches that the next window completes.

        Args:
            held: The window.
            complete: The parts of each of these batches.
            waiting: The windows that the last, incomplete batch needs.
            windows: As in `job`.
        """
        held.is_cut = True
        for parts in complete:
            owners = [self._held[number] for number in self._windows_of(parts)]
            for owner in owners:
                owner.batches += 1
                owner.not_begun += 1
            self._cut.append((parts, owners))
        waited, self._waiting = set(self._waiting), waiting
        for number in waiting - waited:
            self._held[number].batches += 1
        self._release_begun(windows)
        for number in waited - waiting:
            self._end_of(self._held[number])
        if not held.batches:
            self._release(held)

    def _write_job(self, windows: deque[WindowTask]) -> Job[list[ProcessedBatch]] | None:
        """Return a job that writes the next batches; None if there are none, or enough are ahead."""
        # Divided evenly, so that jobs are of nearly one size, and reuse the memory of each other.
        jobs = -(-len(self._cut) // self._job_batches())
        count = self._writable(-(-len(self._cut) // jobs)) if jobs else 0
        if not count:
            return None
        some, owners = list[Sequence[P]](), list[H]()
        for _ in range(count):
            parts, own = self._cut.popleft()
            some.append(parts)
            owners += own
        number, expected = self._next_begun, self._batch_bytes
        self._next_begun += count
        self._usage.reserve(count * expected)
        for owner in owners:
            owner.not_begun -= 1
        self._release_begun(windows)

        def settle(nbytes: int) -> None:
            self._usage.reserve(nbytes - count * expected)
            some.clear()
            for owner in owners:
                self._end_of(owner)

        def done(batches: Sequence[ProcessedBatch]) -> None:
            together = count if self._delivers_jobs else 1
            for first in range(0, count, together):
                self._ready[number + first] = batches[first : first + together]
            sizes = [batch.nbytes for batch in batches]
            self._batch_bytes, self._is_measured = max(self._batch_bytes, *sizes), True
            settle(sum(sizes))

        def failed(error: BaseException) -> None:
            self._ready.update(dict.fromkeys(range(number, number + count), error))
            settle(0)

        return Job("process", lambda: self._write(some, number), done, failed)

    def _release_begun(self, windows: deque[WindowTask]) -> None:
        """Remove the first windows whose complete batches have all begun; their memory may be in use."""
        while windows and (first := self._held.get(windows[0].index)) is not None:
            if not first.is_cut or first.not_begun:
                return
            windows.popleft()
            first.is_removed = True
            if not first.batches:
                del self._held[first.task.index]

    def _end_of(self, held: H) -> None:
        held.batches -= 1
        if not held.batches:
            self._release(held)

    def _release(self, held: H) -> None:
        """Release the memory of a window."""
        self._usage.reserve(-held.task.held_bytes)
        held.release()
        if held.is_removed:
            self._held.pop(held.task.index, None)
