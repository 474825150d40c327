"""The process that `transform_workers` starts: receives rows and makes batches of them, one at a time.

`transforms.TransformProcesses` starts it as a plain subprocess. Its main thread answers one message at a time. A second
thread waits for the death of the parent process, and then ends this process at once.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from parquet_loader.engine.batch_processor import BatchProcessor, Transform
from parquet_loader.engine.child.channel import Channel
from parquet_loader.engine.child.process import packed_error, serve
from parquet_loader.engine.child.shared_memory import SharedMemoryReceiver, SharedMemorySender, SharedMessage
from parquet_loader.window import Array

PLACE = "a process that runs transform"


@dataclass(frozen=True, slots=True)
class UseTransform:
    """The first message.

    Attributes:
        option: The loader's argument that asked for the process.
        transform: A pickled `PackedTransform`.
        keep_bytes: Limit of free shared memory.
    """

    option: str
    transform: bytes
    keep_bytes: int


@dataclass(frozen=True, slots=True)
class MakeBatch:
    """Make a batch.

    Attributes:
        parcel: The packed `UnprocessedBatch`.
        processor: A pickled `BatchProcessor` without its transform, for this and later batches; None to keep using the
            last one.
        unused: Tags of segments that no array views any more.
    """

    parcel: SharedMessage
    processor: bytes | None
    unused: list[int]


@dataclass(frozen=True, slots=True)
class UnprocessedBatch:
    """The rows of a batch.

    Attributes:
        rows: Number of rows.
        batch: The number of the batch.
        arrays: ``[rows, ...]`` by name.
    """

    rows: int
    batch: int
    arrays: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """Answer to `MakeBatch`.

    Attributes:
        cpu_s: Processor seconds that the batch took.
        unused: Tags of segments that no array views any more.
        parcel: The packed `ProcessedBatch`.
        error: The error instead of it, pickled.
    """

    cpu_s: float
    unused: list[int]
    parcel: SharedMessage | None = None
    error: bytes | None = None


def main(socket_number: int, parent: int) -> None:
    """Serve until the process that started this one closes the socket or dies."""
    serve(socket_number, parent, _serve)


def _serve(end: socket.socket) -> None:
    begin = Channel(end).receive()
    assert isinstance(begin, UseTransform)
    _Server(Channel(end, f"{begin.option}: a batch"), begin).serve()


class _Server:
    """Makes batches for one process, one after another."""

    def __init__(self, channel: Channel, begin: UseTransform) -> None:
        self._channel = channel
        self._sender = SharedMemorySender(begin.option)
        self._sender.limit(begin.keep_bytes)
        self._receiver = SharedMemoryReceiver(begin.option)
        self._processor: BatchProcessor | None = None
        self._transform: Transform | None = None
        self._failure: BaseException | None = None
        try:
            self._transform = pickle.loads(begin.transform).unpacked()  # noqa: S301 - sent by our own process
        except BaseException as error:  # such as a module that cannot be imported here
            error.add_note(f"raised while transform was unpickled in {PLACE}")
            self._failure = error

    def serve(self) -> None:
        """Answer messages until the socket ends."""
        while True:
            message = self._channel.receive()
            assert isinstance(message, MakeBatch)
            self._sender.take_back(message.unused)
            for number, nbytes in message.parcel.new:
                self._channel.receive_file(partial(self._receiver.add_block, number, nbytes))
            self._answer(message)

    def _answer(self, message: MakeBatch) -> None:
        began = time.process_time()
        parcel: SharedMessage | None = None
        files: list[int] = []
        error: bytes | None = None
        try:
            parcel, files = self._made(message)
        except BaseException as raised:
            error = packed_error(raised, PLACE)
        # The segments of the rows are free now, unless transform keeps an array over them.
        made = MadeBatch(time.process_time() - began, self._receiver.ended(), parcel, error)
        self._channel.send(made, files)
        if parcel is not None:
            self._sender.sent(parcel)

    def _made(self, message: MakeBatch) -> tuple[SharedMessage, list[int]]:
        if self._failure is not None:
            raise self._failure
        if message.processor is not None:
            processor: BatchProcessor = pickle.loads(message.processor)  # noqa: S301 - sent by our own process
            self._processor = processor.with_transform(self._transform)
        assert self._processor is not None
        rows = self._receiver.unpack(message.parcel)
        assert isinstance(rows, UnprocessedBatch)
        return self._sender.pack(self._processor.processed(rows.arrays, rows.rows, rows.batch))
