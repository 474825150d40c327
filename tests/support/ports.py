"""Ports for servers that cannot choose one themselves, and ports on which nothing listens."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_drawn = random.SystemRandom()
_returned = set[int]()


def unused_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens, another one at each call.

    It is below those that systems assign: one of these may go to another process before the test uses it.
    """
    while True:
        port = _drawn.randrange(20_000, 32_768)
        if port in _returned:
            continue
        _returned.add(port)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
