"""The child process: runs the engine and sends windows to the caller in shared memory.

`client.ReadingProcess` starts it as a plain subprocess, so it needs no main guard and works in notebooks and daemonic
workers. It does not import torch.

The main thread answers one message at a time. A second thread waits for the caller's death, and then ends this process
at once. It waits for the socket and for a `pidfd` of the caller: processes forked from the caller may keep the socket
open.
"""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from parquet_loader.common import use_returning_pool
from parquet_loader.dataset import Dataset
from parquet_loader.engine.batch_processor import ProcessedBatch
from parquet_loader.engine.child.channel import Channel
from parquet_loader.engine.child.process import NICENESS, packed_error, serve
from parquet_loader.engine.child.shared_memory import SharedMemorySender, SharedMessage
from parquet_loader.engine.child.transforms import TransformProcesses
from parquet_loader.engine.engine import Engine, EngineOptions, transform_processes
from parquet_loader.engine.read_ahead import NextPlan, ReadAhead
from parquet_loader.engine.usage import EngineFigures
from parquet_loader.engine.workers.record import EngineRecord
from parquet_loader.plan import Plan
from parquet_loader.window import Arenas, StoredWindow, Window


@dataclass(frozen=True, slots=True)
class Open:
    """Open a data set, which replaces an earlier one. Comes first, and between epochs. Not answered.

    Each attribute is pickled separately, so that an unpickling error can be sent back.

    Attributes:
        dataset: A pickled `Dataset`.
        options: Pickled `EngineOptions`; None for those of the first message.
    """

    dataset: bytes
    options: bytes | None


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin an epoch, and send its first window or batch.

    Attributes:
        unused: As in `Next`.
        plan: The plan of the epoch.
        first_batch: The batch with which it begins.
        next_plan: Computes the plan of the next epoch from the data set, if the next epoch is read ahead.
    """

    unused: list[int]
    plan: Plan
    first_batch: int
    next_plan: NextPlan | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """Send the next window or batch.

    Attributes:
        unused: Tags of segments that no array views any more.
    """

    unused: list[int]


@dataclass(frozen=True, slots=True)
class Release:
    """The caller has released all batches before the current window's. Not answered."""

    unused: list[int]


@dataclass(frozen=True, slots=True)
class Drop:
    """The epoch that is read ahead does not come next. Not answered."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to `Begin` or `Next`.

    Attributes:
        figures: Figures of the epoch so far.
        parcel: A window or batch; None at the end of the epoch.
        error: The error instead of it, pickled.
        record: The jobs and samples since the last answer.
    """

    figures: EngineFigures
    parcel: SharedMessage | None = None
    error: bytes | None = None
    record: EngineRecord = EngineRecord()  # noqa: RUF009 - immutable


_Answer: TypeAlias = tuple[Reply, SharedMessage, list[int]]
"""An answer, the window or batch in it, and the files of its new blocks."""


def main(socket_number: int, parent: int) -> None:
    """Serve until the caller's process closes the socket or dies."""
    with suppress(OSError):  # a sandbox may refuse it
        os.nice(NICENESS)
    use_returning_pool()
    serve(socket_number, parent, lambda end: _Server(Channel(end)).serve())


class _Server:
    """Runs one caller's epochs, one after another."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sender = SharedMemorySender()
        self._staging = Arenas(0)
        self._dataset: Dataset | None = None
        self._options: EngineOptions | None = None
        self._engine: Engine | None = None
        self._ahead: ReadAhead[Engine] | None = None
        self._transforms: TransformProcesses | None = None
        self._is_first = True
        self._failure: BaseException | None = None
        self._prepared: _Answer | None = None  # to the next request

    def serve(self) -> None:
        """Answer messages until the socket ends."""
        while True:
            match message := self._channel.receive():
                case Open():
                    self._open(message)
                case Begin():
                    self._sender.take_back(message.unused)
                    self._begin(message)
                case Drop():
                    self._withdraw()
                    self._drop_ahead()
                case Next():
                    self._sender.take_back(message.unused)
                    self._answer()
                case Release():
                    self._sender.take_back(message.unused)
                    if self._engine is not None:
                        self._engine.release_previous()
                        self._prepare(self._engine, waits=True)

    def _open(self, message: Open) -> None:
        self._withdraw()
        self._drop_ahead()  # of the data set that is replaced
        unpickled = "the data set"
        try:
            self._dataset = pickle.loads(message.dataset)  # noqa: S301 - sent by the caller's process
            self._staging.keep_bytes = self._dataset.sizing.windows_and_batches_bytes
            self._sender.limit(self._dataset.sizing.windows_and_batches_bytes)
            if message.options is not None:
                unpickled = "transform"
                self._options = pickle.loads(message.options)  # noqa: S301 - likewise
                self._transforms = transform_processes(self._options, is_nested=True)
        except BaseException as error:  # such as a module that cannot be imported here
            error.add_note(f"raised while {unpickled} was unpickled in the child process that reads")
            self._failure = error

    def _begin(self, message: Begin) -> None:
        is_answered = False
        try:
            if self._options is not None and self._dataset is not None:
                self._engine = self._opened_or_ahead(self._dataset, self._options, message)
                is_answered = self._send_prepared(self._engine)
                self._engine.start()
        except BaseException as error:
            self._failure = error
        if not is_answered:
            self._answer()

    def _opened_or_ahead(self, dataset: Dataset, options: EngineOptions, message: Begin) -> Engine:
        """Return the engine of an epoch: that which has read ahead, or a new one."""
        ahead = None if self._ahead is None else self._ahead.engine
        if ahead is not None and not message.first_batch and ahead.plan.has_rows_of(message.plan):
            engine, self._ahead = ahead, None
        else:
            self._withdraw()
            self._drop_ahead()
            engine = self._opened(dataset, options, message.plan, message.first_batch)
        self._is_first = False
        if message.next_plan is not None:
            self._ahead = ReadAhead(dataset, message.next_plan, partial(self._opened, dataset, options))
            engine.set_next(self._ahead)
        return engine

    def _opened(self, dataset: Dataset, options: EngineOptions, plan: Plan, first_batch: int = 0) -> Engine:
        return Engine(
            dataset,
            plan,
            options,
            first_batch=first_batch,
            allocator=self._sender.arenas,
            staging=self._staging,
            is_first=self._is_first,
            transforms=self._transforms,
        )

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.drop()
            self._ahead = None

    def _prepare(self, engine: Engine, *, waits: bool) -> None:
        """Pack the answer to the next request, so that the caller's loop waits less.

        Args:
            engine: Reads the window.
            waits: Whether to wait for the window, because the next message is that request.
        """
        window = None if engine.processes else engine.coming_window(waits=waits)
        if window is not None:
            with suppress(Exception):  # the request packs it again, and sends the error
                self._prepared = self._packed(window, engine)

    def _withdraw(self) -> None:
        """Forget the answer that was prepared."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._sender.withdraw(prepared[1])

    def _packed(self, result: Window | StoredWindow | ProcessedBatch, engine: Engine | None) -> _Answer:
        parcel, files = self._sender.pack(result)
        return self._reply(engine, parcel), parcel, files

    def _reply(self, engine: Engine | None, parcel: SharedMessage | None = None, error: bytes | None = None) -> Reply:
        if engine is None or self._dataset is None:
            return Reply(EngineFigures.nothing(), parcel, error)
        figures = engine.figures(self._dataset.snapshot.footers.held_bytes)
        return Reply(figures, parcel, error, engine.take_record())

    def _send(self, answer: _Answer) -> None:
        reply, parcel, files = answer
        self._channel.send(reply, files)
        self._sender.sent(parcel)

    def _send_prepared(self, engine: Engine) -> bool:
        """Send the answer that was prepared, and let the engine go on; return whether there was one.

        In this order, because the workers compete with the caller for a processor.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return False
        self._send(prepared)
        try:
            engine.next_window()
        except BaseException as error:  # another window has failed meanwhile; raised by the next request
            self._failure = error
        return True

    def _answer(self) -> None:
        if self._engine is not None and self._send_prepared(self._engine):
            return
        try:
            result = self._next()
            answer = None if result is None else self._packed(result, self._engine)
        except BaseException as error:
            self._channel.send(self._reply(self._engine, error=packed_error(error)))
            return
        if answer is not None:
            self._send(answer)
        elif self._engine is not None:
            self._engine.close()
            self._channel.send(self._reply(self._engine))
            self._engine = None
            self._prepare_next_epoch()

    def _prepare_next_epoch(self) -> None:
        """Let the epoch that is read ahead use all memory, and prepare its first window if it is ready."""
        if self._ahead is not None:
            self._ahead.go_on_alone()
            if (engine := self._ahead.engine) is not None:
                self._prepare(engine, waits=False)

    def _next(self) -> Window | StoredWindow | ProcessedBatch | None:
        if self._failure is not None:
            raise self._failure
        assert self._engine is not None
        if not self._engine.processes:
            return self._engine.next_window()
        batches = self._engine.next_batches()
        assert len(batches) <= 1  # only jobs that cut batches from windows make several, and no child has such jobs
        return batches[0] if batches else None
