"""The byte count of a store, and the one lock under which it changes.

The ledger avoids listing the directory for each reservation. `account_file` keeps it correct if a writer dies.

Under the lock only names, sizes and small files are touched, never samples.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from parquet_loader.common import begin_account, end_account, exclusive, is_locked, parse_account
from parquet_loader.store.commits import (
    Commit,
    finish_commits,
    forget_commits,
    is_finished,
    names_of,
    read_commits,
    sources_of,
)
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import NONE_KNOWN, StorePaths, names_in

_MARKS = 32
_MARK_INTERVAL_S = 1.0
_MARKS_KEPT_S = 120.0
_MOST_READS = 100


@dataclass(slots=True)
class Totals:
    """The account of a store.

    Attributes:
        sequence: Number of the last publication.
        commits: Number of commits of several files, including undone ones.
        files, rows, bytes: Totals of the published files that still exist.
        reserved_bytes: Bytes reserved by writers, including those of unfinished files.
        written_files, written_rows, written_bytes: Totals published since the store was made, as far as known.
        evicted_files, evicted_rows, evicted_bytes: Totals evicted since the store was made, as far as known.
        marks: Samples of (seconds since 1970, written bytes, evicted bytes), for rates.
    """

    sequence: int = 0
    commits: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    reserved_bytes: int = 0
    written_files: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    evicted_files: int = 0
    evicted_rows: int = 0
    evicted_bytes: int = 0
    marks: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def used_bytes(self) -> int:
        """Bytes that count towards the limit."""
        return self.bytes + self.reserved_bytes

    def published(self, rows: int, size_bytes: int) -> None:
        """Count a file that appeared."""
        self.files, self.rows, self.bytes = self.files + 1, self.rows + rows, self.bytes + size_bytes
        self.written_files += 1
        self.written_rows += rows
        self.written_bytes += size_bytes
        self._mark()

    def removed(self, rows: int, size_bytes: int) -> None:
        """Count a file that was evicted."""
        self.files, self.rows, self.bytes = self.files - 1, self.rows - rows, self.bytes - size_bytes
        self.evicted_files += 1
        self.evicted_rows += rows
        self.evicted_bytes += size_bytes
        self._mark()

    def _mark(self) -> None:
        now = time.time()
        self.marks = [m for m in self.marks if now - _MARKS_KEPT_S <= m[0] <= now]
        if not self.marks or now - self.marks[-1][0] >= _MARK_INTERVAL_S:
            self.marks = [*self.marks[-_MARKS + 1 :], (now, self.written_bytes, self.evicted_bytes)]


class Ledger:
    """Reads and changes the totals.

    Args:
        paths: The paths of the store.
        tag: The store's tag in the names of its files.
    """

    def __init__(self, paths: StorePaths, tag: str) -> None:
        self._paths = paths
        self._tag = tag

    @contextlib.contextmanager
    def transaction(self, *, rebuild: bool = False, then: Callable[[], None] | None = None) -> Iterator[Totals]:
        """Hold the store's lock, yield the totals, and write them after the body.

        If the body raises, the mark stays, and the next transaction counts the directory.

        Args:
            rebuild: Whether to count the directory even if the ledger is sound.
            then: Called with the lock held, after the account was written or its writing has failed.
        """
        with exclusive(self._paths.ledger) as descriptor:
            # Opens the file again: if machines share the directory, this gets the latest content from the server.
            totals, is_clean = self._read()
            is_sound = totals is not None and is_clean and not rebuild
            with _named(self._paths.ledger):
                begin_account(descriptor)
            finished: list[str] = []
            if totals is None or not is_sound:
                finished = finish_commits(self._paths, self._tag)
                totals = self._rebuilt(totals or Totals())
                totals.commits += len(finished)
            yield totals
            try:
                with _named(self._paths.ledger):
                    end_account(descriptor, format_totals(totals))
            finally:
                if then is not None:
                    then()
        with contextlib.suppress(OSError):  # the next rebuild finds and removes them
            forget_commits(self._paths, finished)

    def totals(self) -> Totals:
        """Return the totals without the lock: from the ledger, or else by counting the directory.

        A change takes only a moment, so this reads the ledger several times before it counts the files.
        """
        totals: Totals | None = None
        for _ in range(_MOST_READS):
            totals, is_clean = self._read()
            if totals is not None and is_clean:
                return totals
        return self._rebuilt(totals or Totals())

    def published(self, known: Mapping[str, FileName] = NONE_KNOWN) -> dict[str, FileName]:
        """Return the published files by name, in their order; of the files of one commit, all or none.

        Needs no lock. If the listing shows only a part of a commit, its record exists before or after the listing,
        because it exists until the ledger counts the commit. If a commit was counted in between, this lists again.

        Args:
            known: An earlier result, which saves parsing most names.
        """
        found: dict[str, FileName] = {}
        hidden: set[str] = set()
        for _ in range(_MOST_READS):
            count = self._commits()
            before = read_commits(self._paths, self._tag)
            hidden = self._unfinished(before)
            found = self._paths.published(self._tag, known)
            hidden |= names_of(set(read_commits(self._paths, self._tag)) - set(before))
            hidden |= self._unfinished(before)  # a commit whose renames are being undone
            if self._commits() == count:
                break
        return {name: parsed for name, parsed in found.items() if name not in hidden} if hidden else found

    def _unfinished(self, commits: Iterable[Commit]) -> set[str]:
        return names_of(commit for commit in commits if not is_finished(self._paths, commit))

    def committed(self) -> set[str]:
        """Return the names under ``unfinished/`` of files that count as published; called in a transaction."""
        return sources_of(read_commits(self._paths, self._tag))

    def _commits(self) -> int | None:
        totals, _ = self._read()
        return None if totals is None else totals.commits

    def _read(self) -> tuple[Totals | None, bool]:
        """Return the totals of the ledger, and whether no process is changing them."""
        try:
            with open(self._paths.ledger, "rb") as file:
                data = file.read()
        except OSError:
            data = b""
        text, is_clean = parse_account(data)
        return None if text is None else _parse_totals(text), is_clean

    def _rebuilt(self, old: Totals) -> Totals:
        files, rows, size = 0, 0, 0
        given = map(FileName.parse, names_of(read_commits(self._paths, self._tag)))
        sequence = max([old.sequence, *(parsed.sequence for parsed in given if parsed is not None)])
        for name, parsed in self.published().items():
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(self._paths.file(name)).st_size
                files, rows, sequence = files + 1, rows + parsed.rows, max(sequence, parsed.sequence)
        reserved = sum(reserved_bytes(os.path.join(self._paths.writers, n)) for n in names_in(self._paths.writers))
        return replace(
            old,
            sequence=sequence,
            files=files,
            rows=rows,
            bytes=size,
            reserved_bytes=reserved,
            written_files=max(old.written_files, files),
            written_rows=max(old.written_rows, rows),
            written_bytes=max(old.written_bytes, size),
        )


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Let errors of a descriptor name its file."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


def reserved_bytes(path: str) -> int:
    """Return the bytes that a writer's file reserves."""
    try:
        with open(path, "rb") as file:
            return int(file.read(20) or b"0")
    except (FileNotFoundError, ValueError):
        return 0


def reservation_text(count: int) -> bytes:
    """Return the content of a writer's file, of fixed length."""
    return b"%020d" % count


def live_writers(paths: StorePaths) -> list[str]:
    """Return the identities of writers whose process is alive."""
    return [name for name in names_in(paths.writers) if is_locked(os.path.join(paths.writers, name))]


def format_totals(totals: Totals) -> bytes:
    """Return the totals as text."""
    return json.dumps({name: getattr(totals, name) for name in Totals.__slots__}).encode("ascii")


def _parse_totals(text: bytes) -> Totals | None:
    """Return the totals in a text; None if another version of the library wrote it."""
    try:
        values = json.loads(text)
        values["marks"] = [(float(t), int(w), int(e)) for t, w, e in values["marks"]]
        return Totals(**values)
    except (ValueError, TypeError, KeyError):
        return None
