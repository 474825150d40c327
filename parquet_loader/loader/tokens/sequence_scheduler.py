"""Schedules the jobs that pack windows and write batches of sequences in the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parquet_loader.engine import CutBatches, HeldWindow, Job, ProcessedBatch, Usage, WindowTask
from parquet_loader.loader.tokens.documents import Documents, WindowPacker
from parquet_loader.loader.tokens.sequences import BatchCutter, BatchWriter, SequenceRange
from parquet_loader.schema import Ragged
from parquet_loader.window import Window, nbytes_of


@dataclass(slots=True, eq=False)
class _Packed(HeldWindow):
    """A window, from the job that packs it until its release.

    Attributes:
        documents: Its packed documents; None until they are packed.
        chunks: Ranges of rows of text that no job has begun to encode.
        encoded: The tokens of each chunk of text; None until it is encoded.
        is_packing: Whether a job packs it, or has packed it.
    """

    documents: Documents | None = None
    chunks: deque[tuple[int, tuple[int, int]]] = field(default_factory=deque)
    encoded: list[Ragged | None] = field(default_factory=list)
    is_packing: bool = False

    def release(self) -> None:
        """Release the documents."""
        self.task.window = self.documents = None


class SequenceScheduler(CutBatches[SequenceRange, _Packed]):
    """Packs windows and writes batches; see `CutBatches`.

    Text is encoded in jobs of about a megabyte. Windows are packed in any order, one job each, as soon as they are
    finished and encoded, and divided into batches in their order.

    Args:
        packer: Packs windows.
        writer: Writes batches.
        first_batch: The batch with which the epoch begins.
        batch_bytes: The most bytes of a batch, without columns of documents.
        most_ahead: The most batches in progress or ready; they have their own share of the memory limit. Fewer if the
            columns of documents make batches larger than `batch_bytes`.
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
        super().__init__(
            lambda batches, _: writer(batches), first_batch, batch_bytes, most_ahead, usage, delivers_jobs=True
        )
        self._packer = packer
        self._own_bytes = most_ahead * batch_bytes
        self._cutter = BatchCutter(packer.packing, first_batch)
        usage.limit_bytes += self._own_bytes

    @property
    def ahead_bytes(self) -> int | None:
        """See `Batches`; a tokenizer is called in its own epoch only."""
        return None if self._packer.form.encoder is not None else self._job_batches() * self._batch_bytes

    def _windows_of(self, parts: Sequence[SequenceRange]) -> set[int]:
        return {part.documents.number for part in parts}

    def _write_job(self, windows: deque[WindowTask]) -> Job[list[ProcessedBatch]] | None:
        if self._packer.form.document_columns:  # they may take many times the bytes of tokens
            self._most_ahead = max(1, self._own_bytes // self._batch_bytes if self._is_measured else 1)
        return super()._write_job(windows)

    def job(self, windows: deque[WindowTask]) -> Job[Any] | None:
        """Return a job that writes batches, else one that packs a window; see `Batches`."""
        job = self._write_job(windows)
        if job is not None:
            return job
        for task in windows:
            packed = self._held.get(task.index)
            if packed is not None and packed.is_packing:
                continue
            window = task.in_order
            if window is None or task.error is not None:
                return None
            if packed is None:
                chunks = self._packer.chunks(window)
                packed = self._held[task.index] = _Packed(task, chunks=deque(enumerate(chunks)))
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
            packed.documents, task.window = documents, None
            packed.encoded.clear()
            task.gathered_bytes += documents.index_bytes
            self._usage.reserve(documents.index_bytes)
            self._cut_packed(windows)

        return Job("process", lambda: self._packer(window, task.index, encoded), done, task.fail)

    def _cut_packed(self, windows: deque[WindowTask]) -> None:
        """Divide packed windows into batches, in the order of windows."""
        for task in tuple(windows):
            packed = self._held.get(task.index)
            if packed is None or packed.documents is None:
                break
            if not packed.is_cut:
                complete = self._cutter.add(packed.documents)
                self._add(packed, complete, self._cutter.waiting, windows)
