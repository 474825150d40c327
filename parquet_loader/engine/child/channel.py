"""Messages between the caller and the child process: framed pickles over a socket pair, with file descriptors.

Both ends belong to this library, over a pair of sockets without a name. Nothing from a data set is unpickled.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from select import POLLIN, poll
from typing import Any

from parquet_loader.common import out_of_descriptors, uninterrupted

_LENGTH = struct.Struct("<Q")


class Channel:
    """One end. Used by one thread at a time.

    Files follow their message one at a time, each with one byte, so that the receiver needs one free descriptor however
    many files there are. A call that Ctrl-C interrupts leaves the stream in the middle of a message: close the channel.

    Args:
        end: Its socket; closed by `close`.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """Send a message, and duplicates of open files.

        Raises:
            OSError: the other end is closed.
        """
        data = pickle.dumps(message, protocol=5)
        self._end.sendall(_LENGTH.pack(len(data)))
        self._end.sendall(data)
        for file in files:
            socket.send_fds(self._end, [b"f"], [file])

    def wait(self) -> None:
        """Wait until there is something to receive, or the other end dies."""
        waiting = poll()
        waiting.register(self._end, POLLIN)
        waiting.poll()

    def receive(self) -> Any:
        """Return the next message; receive each of its files by `receive_file` before the next message.

        Raises:
            EOFError: the other end is closed.
        """
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(size))  # noqa: S301 - of our own process, see above

    def receive_file(self, use: Callable[[int], None]) -> None:
        """Receive a file, and close it after `use`, which keeps no descriptor of it.

        Ctrl-C is deferred while the file is open, so that no interrupt leaks a descriptor; never while waiting.

        Raises:
            EOFError: the other end is closed.
            OpenFilesError: this process has no free file descriptor.
        """

        def take() -> None:
            data, files, _, _ = socket.recv_fds(self._end, 1, 1)
            try:
                if not data:
                    raise EOFError("the other end is closed")
                if not files:  # MSG_CTRUNC: the kernel has dropped it
                    raise out_of_descriptors("isolation='process': a window cannot be received", 1)
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
