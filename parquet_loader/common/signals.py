"""Defers SIGINT around short critical sections."""

from __future__ import annotations

import signal
from collections.abc import Callable
from threading import current_thread, main_thread
from types import FrameType


def uninterrupted(work: Callable[[], None]) -> None:
    """Call `work`, and raise a Ctrl-C that came meanwhile afterwards; for work of milliseconds.

    Only the main thread gets Ctrl-C, and only Python's handlers can be put off; elsewhere this is a plain call.
    """
    handler = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        work()
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        work()
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])
