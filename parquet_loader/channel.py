"""Messages between the caller's process and the one that reads: framed pickles over a socket pair, with open files.

Both ends are this library's own, over a pair of sockets that has no name; nothing from a data set is unpickled.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Sequence
from select import POLLIN, poll
from typing import Any

# A message begins with its length and the number of open files that come with it. The system passes at most 253 open
# files at once: they come in groups, each with a byte of its own behind the message.
_HEAD = struct.Struct("<QI")
_FILES_AT_ONCE = 128


class Channel:
    """One end. Used by one thread at a time.

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
        self._end.sendall(_HEAD.pack(len(data), len(files)))
        self._end.sendall(data)
        for start in range(0, len(files), _FILES_AT_ONCE):
            socket.send_fds(self._end, [b"f"], list(files[start : start + _FILES_AT_ONCE]))

    def wait(self) -> None:
        """Wait for the beginning of a message, or the other end's death."""
        waiting = poll()
        waiting.register(self._end, POLLIN)
        waiting.poll()

    def receive(self) -> tuple[Any, list[int]]:
        """Return the next message, and the open files that came with it, which the caller closes.

        Raises:
            EOFError: the other end is closed.
        """
        size, count = _HEAD.unpack(self._exactly(_HEAD.size))
        message = pickle.loads(self._exactly(size))  # noqa: S301 - of our own process, see above
        files: list[int] = []
        while len(files) < count:
            data, received, _, _ = socket.recv_fds(self._end, 1, _FILES_AT_ONCE)
            if not data:
                for file in files:
                    os.close(file)
                raise EOFError("the other end is closed")
            files.extend(received)
        return message, files

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
