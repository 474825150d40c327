"""Ctrl-C at a chosen moment."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

from parquet_loader import BatchedDataLoader


def interrupted(loader: BatchedDataLoader, moment: int) -> tuple[BaseException | None, int]:
    """Begin a pass with Ctrl-C at one moment of it; return the exception, if it came, and the moments there were.

    A moment is where the interpreter looks for signals: at the entry of a function, and after a call into C.
    """
    moments = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal moments
        if event in {"call", "c_return"}:
            moments += 1
            if moments == moment:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    caught: BaseException | None = None
    sys.setprofile(profile)
    try:
        _held = iter(loader)  # its end is no moment of these
    except KeyboardInterrupt as error:
        caught = error
    finally:
        sys.setprofile(None)
    return caught, moments
