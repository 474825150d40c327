"""Rows of a task that is disturbed amid them; light, for workers to import."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.job_places import rows


class Broken:
    """Batches of one partition, made where they are consumed; `disturb` is called amid them."""

    def __init__(self, first: int, stop: int, disturb: Callable[[], None]) -> None:
        self.first, self.stop, self.disturb = first, stop, disturb
        self.batches: Any = None

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.batches = self.batches or self.run()
        return next(self.batches)

    def run(self) -> Iterator[Any]:
        middle = (self.first + self.stop) // 2
        yield rows(self.first, middle)  # more than a row group: a file has been begun
        self.disturb()
        yield rows(middle, self.stop)


class KillOnce:
    """SIGKILL to a process, the worker's own or a given one, by whoever comes first."""

    def __init__(self, marker: Path, pid: int | None = None) -> None:
        self.marker, self.pid = str(marker), pid

    def __call__(self) -> None:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(self.pid or os.getpid(), signal.SIGKILL)
