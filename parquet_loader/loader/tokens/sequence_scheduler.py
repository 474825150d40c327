"""Schedules the jobs that pack windows and write batches of sequences in the workers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from parquet_loader.engine import Batches, Job, ProcessedBatch, Usage, WindowTask
from parquet_loader.loader.tokens.documents import Documents, WindowPacker
from parquet_loader.loader.tokens.sequences import BatchCutter, BatchParts, BatchWriter
from parquet_loader.schema import Ragged
from parquet_loader.window import Window, nbytes_of

# Batches are written several at a time, because a job takes the engine's lock and wakes its threads: 4 instead of 2
# batches of 2 MiB save 4 percent of an epoch's processor time.
_JOB_BYTES = 8 * 2**20


@dataclass(slots=True, eq=False)
class _Packed:
    """A window from the job that packs it until its last batch is written, and the engine has no more use for it.

    Attributes:
        task: The window in the engine.
        documents: Its documents, when they are packed.
        chunks: Ranges of rows of text that no job encodes yet.
        encoded: The tokens of each chunk of text, when it is encoded.
        is_packing: Whether a job packs it, or has packed it.
        is_cut: Whether it is divided into batches.
        batches: Batches that need it and are not written, the one that waits for the next window included.
        not_begun: Batches that need it and are complete, and that no job writes yet.
        is_removed: Whether it is removed from the engine's windows.
    """

    task: WindowTask
    documents: Documents | None = None
    chunks: deque[tuple[int, tuple[int, int]]] = field(default_factory=deque)
    encoded: list[Ragged | None] = field(default_factory=list)
    is_packing: bool = False
    is_cut: bool = False
    batches: int = 0
    not_begun: int = 0
    is_removed: bool = False


class SequenceScheduler(Batches):
    """Packs windows and writes batches; see `Batches`.

    Text is encoded in jobs of about a megabyte. Windows are packed in any order, one job each, as soon as they are
    finished and encoded, and divided into batches in their order. A window is held until its
    last batch is written.

    Invariant: at most `most_ahead` batches are in progress or ready.

    Args:
        packer: Packs windows.
        writer: Writes batches.
        first_batch: The batch with which the epoch begins.
        batch_bytes: The most bytes of a batch.
        most_ahead: The most batches in progress or ready; they have their own share of the memory limit.
        usage: The counters of the epoch.
    """

    def __init__(
        self,
        packer: WindowPacker,
        writer: BatchWriter,
        first_batch: int,
        batch_bytes: int,
        most_ahead: int,
        usage: Usage,
    ) -> None:
        super().__init__(first_batch, usage)
        self._packer = packer
        self._writer = writer
        self._cutter = BatchCutter(packer.packing, first_batch)
        self._batch_bytes = batch_bytes
        self._most_ahead = most_ahead
        self._batches_of_job = max(1, min(most_ahead // 2, _JOB_BYTES // batch_bytes))
        usage.limit_bytes += most_ahead * batch_bytes
        self._packed: dict[int, _Packed] = {}
        self._cut: deque[BatchParts] = deque()

    def _reserved(self, batch: ProcessedBatch | BaseException) -> int:  # noqa: ARG002
        return self._batch_bytes

    def clear(self) -> None:
        """Release batches and windows."""
        super().clear()
        self._cut.clear()
        self._packed.clear()

    def job(self, windows: deque[WindowTask]) -> Job[Any] | None:
        """Return a job that writes batches, else one that packs a window; see `Batches`."""
        free = self._most_ahead - (self._next_begun - self._next_delivered)
        if self._cut and free >= min(self._batches_of_job, len(self._cut)):
            return self._write_job(windows)
        for task in windows:
            packed = self._packed.get(task.index)
            if packed is not None and packed.is_packing:
                continue
            window = task.in_order
            if window is None or task.error is not None:
                return None
            if packed is None:
                chunks = self._packer.chunks(window)
                packed = self._packed[task.index] = _Packed(task, chunks=deque(enumerate(chunks)))
                packed.encoded = [None] * len(chunks)
            if packed.chunks:
                return self._encode_job(packed, window)
            if all(part is not None for part in packed.encoded):
                return self._pack_job(packed, window, windows)
        return None

    def _encode_job(self, packed: _Packed, window: Window) -> Job[Ragged]:
        number, (first, last) = packed.chunks.popleft()

        def done(tokens: Ragged) -> None:
            packed.encoded[number] = tokens
            packed.task.gathered_bytes += nbytes_of(tokens)
            self._usage.reserve(nbytes_of(tokens))

        return Job("process", lambda: self._packer.encoded(window, first, last), done, packed.task.fail)

    def _pack_job(self, packed: _Packed, window: Window, windows: deque[WindowTask]) -> Job[Documents]:
        packed.is_packing = True
        task, encoded = packed.task, [part for part in packed.encoded if part is not None]

        def done(documents: Documents) -> None:
            packed.documents = documents
            packed.encoded.clear()
            task.gathered_bytes += documents.index_bytes
            self._usage.reserve(documents.index_bytes)
            self._cut_packed(windows)

        return Job("process", lambda: self._packer(window, task.index, encoded), done, task.fail)

    def _cut_packed(self, windows: deque[WindowTask]) -> None:
        """Divide the windows that are packed into batches, in their order."""
        for task in tuple(windows):
            packed = self._packed.get(task.index)
            if packed is None or packed.documents is None:
                break
            if packed.is_cut:
                continue
            packed.is_cut = True
            waited = self._cutter.waiting
            complete = self._cutter.add(packed.documents)
            for parts in complete:
                for owner in self._owners(parts):
                    owner.batches += 1
                    owner.not_begun += 1
            self._cut.extend(complete)
            waits = self._cutter.waiting
            for number in waits - waited:
                self._packed[number].batches += 1
            self._release_begun(windows)
            for number in waited - waits:
                self._end_of(self._packed[number])
            if not packed.batches:
                self._release(packed)

    def _owners(self, parts: BatchParts) -> list[_Packed]:
        return [self._packed[number] for number in {part.documents.number for part in parts}]

    def _write_job(self, windows: deque[WindowTask]) -> Job[list[ProcessedBatch]]:
        some = [self._cut.popleft() for _ in range(min(self._batches_of_job, len(self._cut)))]
        number = self._next_begun
        self._next_begun += len(some)
        self._usage.reserve(len(some) * self._batch_bytes)
        owners = [owner for parts in some for owner in self._owners(parts)]
        for owner in owners:
            owner.not_begun -= 1
        self._release_begun(windows)

        def settle(outcomes: list[ProcessedBatch] | list[BaseException]) -> None:
            self._ready.update(zip(range(number, number + len(outcomes)), outcomes, strict=True))
            some.clear()
            for owner in owners:
                self._end_of(owner)

        count = len(some)
        return Job(
            "process",
            lambda: [self._writer(parts) for parts in some],
            settle,
            lambda error: settle([error] * count),
        )

    def _release_begun(self, windows: deque[WindowTask]) -> None:
        """Remove the first windows whose complete batches have all begun; their memory may be in use."""
        while windows and (first := self._packed.get(windows[0].index)) is not None:
            if not first.is_cut or first.not_begun:
                return
            windows.popleft()
            first.is_removed = True
            if not first.batches:
                del self._packed[first.task.index]

    def _end_of(self, packed: _Packed) -> None:
        packed.batches -= 1
        if not packed.batches:
            self._release(packed)

    def _release(self, packed: _Packed) -> None:
        """Release the memory of a window."""
        self._usage.reserve(-packed.task.held_bytes)
        packed.task.window = packed.documents = None
        if packed.is_removed:
            self._packed.pop(packed.task.index, None)
