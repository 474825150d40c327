"""Processes that are killed at a random moment, once they are at work, and what they say of themselves until then."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_LOOK_S = 0.002


def say(log: str, **what: Any) -> None:
    """Add a line to a process's log."""
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


def said(log: str | Path) -> Iterator[dict[str, Any]]:
    """Yield what was said, but for what a kill has cut."""
    for line in Path(log).read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


@dataclass(slots=True)
class Doomed:
    """A process that is to be killed.

    Attributes:
        process: A `multiprocessing.Process`, or what is used as one.
        log: What it says; the file's stem is its name.
        sign: What is in its log once it is at work.
        kind: What it does.
        dies_at: When; known once it is at work.
    """

    process: Any
    log: Path
    sign: str
    kind: str = ""
    dies_at: float | None = None

    def step(self, draw: random.Random, life_s: float) -> Literal["lives", "ended", "killed"]:
        """Look at it for a moment; kill it if its time has come, which is at most so long after it went to work."""
        self.process.join(_LOOK_S)
        if self.process.exitcode is not None:
            self.process.close()
            return "ended"
        if self.dies_at is None:
            if self.sign in self.log.read_text(encoding="utf-8"):  # from here on any moment will do
                self.dies_at = time.monotonic() + draw.uniform(0.0, life_s)
        elif time.monotonic() >= self.dies_at:
            self.end()
            return "killed"
        return "lives"

    def end(self) -> None:
        """Kill it, and wait until it has ended."""
        self.process.kill()
        self.process.join()
        self.process.close()


@contextlib.contextmanager
def doomed() -> Iterator[list[Doomed]]:
    """Yield a list for those that run; however the body ends, none that is on it then runs on."""
    running: list[Doomed] = []
    try:
        yield running
    finally:
        for one in running:
            one.end()
