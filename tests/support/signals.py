"""Ctrl-C at a chosen moment, and at random ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType
from typing import Any

from parquet_loader import BatchedDataLoader

_AT_RANDOM_MOMENTS = """
import random, signal, sys, threading, psutil
from parquet_loader import BatchedDataLoader, OutputOptions

def left():
    return [t.name for t in threading.enumerate() if t.name.startswith("parquet_loader")] + psutil.Process().children()

loader = BatchedDataLoader(sys.argv[1], 10, shuffle=True, {options})
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
drawn = random.Random(5)
interrupted = 0
for attempt in range({attempts}):
    held = None  # the exception, and with its traceback all frames that it went through
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + drawn.random() * drawn.choice({longest_s}))
        for batch in loader:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as error:
        held = error
        interrupted += 1
    # After a whole epoch the next one is read ahead.
    if held and loader.state_dict()["batch"] and left():
        print("left", attempt, left(), repr(held), flush=True)
    {after}
loader.close()
print("done", interrupted > {attempts} // 6, psutil.Process().num_fds() < 30, left(), flush=True)
"""


def interrupted_at_random_moments(
    source: str, options: str, *, attempts: int, longest_s: tuple[float, ...], after: str = ""
) -> str:
    """Return what a new process says that interrupts epochs and finds what they leave; "done True True []" is right.

    Args:
        source: A data set.
        options: Of the loader, as code.
        attempts: Epochs.
        longest_s: The time before the interruption is drawn from 0 to one of these.
        after: Code that runs after each epoch.
    """
    code = _AT_RANDOM_MOMENTS.format(options=options, attempts=attempts, longest_s=longest_s, after=after)
    command = [sys.executable, "-c", code, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    return done.stdout.strip() or done.stderr  # which also tells of callbacks that were interrupted


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
        _held = iter(loader)  # its end is not one of these moments
    except KeyboardInterrupt as error:
        caught = error
    finally:
        sys.setprofile(None)
    return caught, moments
