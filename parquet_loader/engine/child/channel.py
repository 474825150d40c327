"""Sends messages between the caller and the child process: framed pickles and file descriptors, over a socket pair.

Both ends of the unnamed socket pair belong to this library. Nothing from a data set is unpickled.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from parquet_loader.common import SIGINT_POLL_S, out_of_descriptors, uninterrupted

_LENGTH = struct.Struct("<Q")


class Channel:
    """One end of the channel. Used by one thread at a time.

    The files of a message follow it one by one, each with one byte, so the receiver needs only one free descriptor.
    SIGINT during a call leaves the stream in the middle of a message; close the channel then.

    Args:
        end: The socket; closed by `close`.
        content: What this end receives; error messages begin with it.
    """

    def __init__(self, end: socket.socket, content: str = "isolation='process': a window") -> None:
        self._end = end
        self._content = content

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """Send a message, and duplicates of open files.

        Raises:
            OSError: The other end is closed.
        """
        data = pickle.dumps(message, protocol=5)
        self._end.sendall(_LENGTH.pack(len(data)) + data)  # at once, so that the other end wakes once
        for file in files:
            socket.send_fds(self._end, [b"f"], [file])

    def wait(self, pidfd: int | None = None) -> None:
        """Wait until a message can be received, or the other end is closed, or a process has ended.

        Args:
            pidfd: The process at the other end. Its death is noticed even if processes that it forked keep its socket.

        Raises:
            EOFError: Another thread has closed this end.
        """
        waiting = select.poll()
        end = self._end.fileno()
        if end >= 0:
            waiting.register(end, select.POLLIN)
        if pidfd is not None:
            waiting.register(pidfd, select.POLLIN)
        # Another thread may close this end at any time; its descriptor may then be another file's.
        while self._end.fileno() >= 0 and not waiting.poll(SIGINT_POLL_S * 1000):
            pass
        if self._end.fileno() < 0:
            raise EOFError("this end is closed")

    @property
    def has_message(self) -> bool:
        """Whether `receive` would not wait."""
        waiting = select.poll()
        waiting.register(self._end, select.POLLIN)
        return bool(waiting.poll(0))

    def receive(self) -> Any:
        """Return the next message; call `receive_file` for each of its files before the next `receive`.

        Raises:
            EOFError: the other end is closed.
        """
        self.wait()
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(size))  # noqa: S301 - sent by our own process

    def receive_file(self, use: Callable[[int], None]) -> None:
        """Receive a file, pass it to `use`, and close it.

        Signals are deferred while the file is open, so that no descriptor leaks, but not while waiting.

        Raises:
            EOFError: the other end is closed.
            OpenFilesError: this process has no free file descriptor.
        """

        def take() -> None:
            data, files, _, _ = socket.recv_fds(self._end, 1, 1)
            try:
                if not data:
                    raise EOFError("the other end is closed")
                if not files:  # MSG_CTRUNC: the kernel dropped the descriptor
                    raise out_of_descriptors(f"{self._content} cannot be received", 1)
                use(files[0])
            finally:
                for file in files:
                    os.close(file)

        self.wait()
        uninterrupted(take)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            try:
                received = self._end.recv_into(view[at:])
            except ConnectionResetError:
                received = 0
            if not received:
                raise EOFError("the other end is closed")
            at += received
        return data

    def close(self) -> None:
        """Close this end."""
        self._end.close()
