"""The interface of a system. Needs only numpy, and runs with every system's versions."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.suite.workloads import Column

Batch = Mapping[str, Any]


class Unsupported(Exception):
    """The system cannot do this; the message says why, for the report."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a system is asked to load.

    Attributes:
        files: Parquet files, sorted.
        folder: Their directory.
        rows: In all of them.
        columns: What a batch holds.
        batch_size: Rows of a batch.
        window_rows: Rows to mix at least, where the system can.
        threads: Background threads, worker processes or processors to use, whatever the system counts.
        copies: Directory for the data set in other formats.
        options: Of the entry.
    """

    files: tuple[str, ...]
    folder: str
    rows: int
    columns: tuple[Column, ...]
    batch_size: int
    window_rows: int
    threads: int
    copies: Path
    options: Mapping[str, Any]

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Job:
        """Make a job from the message of the parent process."""
        columns = tuple(Column(**column) for column in given["columns"])
        folder = Path(given["folder"])
        files = tuple(str(path) for path in sorted(folder.glob("*.parquet")))
        rest = {name: given[name] for name in ("rows", "batch_size", "window_rows", "threads", "options")}
        return cls(files=files, folder=str(folder), columns=columns, copies=Path(given["copies"]), **rest)

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return next(column for column in self.columns if column.name == name)

    @property
    def kinds(self) -> set[str]:
        """Kinds of its columns."""
        return {column.kind for column in self.columns}


class System(ABC):
    """A system that is opened on a job. `epoch` is timed from its call to its last batch.

    Attributes:
        delivers_tensors: Whether batches hold torch tensors; the limits' do not.
    """

    delivers_tensors = True

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def epoch(self) -> Iterator[Batch]:
        """Deliver every row once: tensors by name, ``(values, offsets)`` for lists and texts."""

    def checked_epoch(self) -> Iterator[Batch]:
        """Deliver the same rows for the checksum, if the timed batches do not have a suitable form."""
        return self.epoch()

    def figures(self) -> dict[str, Any]:
        """Return the system's own figures of its last epoch."""
        return {}

    def close(self) -> None:  # noqa: B027  (most have nothing to release)
        """Let go of everything."""


def copy_once(target: Path, write: Callable[[Path], None]) -> Path:
    """Convert a data set into another format, unless that is there whole."""
    marker = target.with_name(f"{target.name}.json")
    if not marker.exists():
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target)
        marker.write_text(json.dumps({"complete": True}) + "\n")
    return target


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
