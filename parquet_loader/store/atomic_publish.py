"""Publishes the finished files of a job together: all of them or none.

Space for all of them is reserved first, so that two jobs with half their space each never wait for each other. Then the
files move into the directory of pending files, and one commit publishes them: see `parquet_loader.store.commits`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.common import format_bytes, system_error, uninterrupted
from parquet_loader.errors import UnfinishedCommitError, WriteError
from parquet_loader.store.commits import (
    Commit,
    finish_commit,
    forget_commits,
    is_recorded,
    record_commit,
    undo_commit,
)
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import StorePaths, share_record
from parquet_loader.store.files.stored_file import FOOTER_KEY
from parquet_loader.store.ledger import Ledger, Totals
from parquet_loader.store.settings import StoreSettings
from parquet_loader.store.space import FIRST_WAIT_S, LONGEST_WAIT_S, Reservation, Space, reclaim
from parquet_loader.write import fsync


@dataclass(frozen=True, slots=True)
class _Finished:
    """A finished file to publish."""

    path: str
    rows: int
    bytes: int


class AtomicPublish:
    """Publishes several files, all of them or none. Any thread of the process that made it may use it.

    Args:
        paths: The paths of the store.
        ledger: Its totals and its lock.
        space: Grants reservations.
        settings: Returns the settings that all processes share.
    """

    def __init__(self, paths: StorePaths, ledger: Ledger, space: Space, settings: Callable[[], StoreSettings]) -> None:
        self._paths = paths
        self._ledger = ledger
        self._space = space
        self._settings = settings

    def publish(self, paths: Sequence[str]) -> list[str]:
        """Publish files in this order, and return their paths; waits for space without limit.

        Args:
            paths: Whole Parquet files whose footers name this store, in its file system. They are moved.

        Raises:
            WriteError: A file does not belong to this store, or all of them exceed its limit. Nothing is published.
            UnfinishedCommitError: The file system refuses to complete the commit and to undo it. All appear later.
            OSError: The file system refuses. Nothing is published.
        """
        files = [self._inspect(path) for path in paths]
        if not files:
            return []
        reservation = Reservation(self._paths, self._ledger)
        try:
            self._wait_for_space(reservation, sum(file.bytes for file in files))
            sources = self._move_in(reservation, files)
            return self._commit(reservation, files, sources)
        finally:
            # Errors here do not tell whether files were published. Other processes release what stays reserved.
            with contextlib.suppress(OSError):
                reservation.close()
            with contextlib.suppress(OSError), self._ledger.transaction() as totals:
                reclaim(self._paths, self._ledger, totals)  # files that were moved in and not published

    def _inspect(self, path: str) -> _Finished:
        try:
            footer = pq.read_metadata(path)
            about = json.loads((footer.metadata or {}).get(FOOTER_KEY, b"null"))
        except (ValueError, pa.ArrowException) as error:
            failure = system_error(path, error)
            if failure is not None:
                raise failure from error
            raise WriteError(f"{path}: not a complete Parquet file: {error}; nothing was published") from error
        if not isinstance(about, dict) or about.get("store") != self._settings().identity:
            raise WriteError(f"{path}: its footer does not name the store {self._paths.root}; nothing was published")
        return _Finished(path, footer.num_rows, os.stat(path).st_size)

    def _wait_for_space(self, reservation: Reservation, count: int) -> None:
        delay = FIRST_WAIT_S
        while True:
            limit = self._settings().max_bytes
            if limit is not None and count > limit:
                raise WriteError(
                    f"{self._paths.root}: the rows come to {format_bytes(count)}, the store's limit is "
                    f"{format_bytes(limit)}, and they appear together or not at all; raise max_bytes, or divide the job"
                )
            if self._space.reserve(reservation, count, evicts=True):
                return
            time.sleep(delay)
            delay = min(2 * delay, LONGEST_WAIT_S)

    def _move_in(self, reservation: Reservation, files: Sequence[_Finished]) -> list[str]:
        """Move files to the directory of unfinished ones, and return their names there."""
        names = [f"{reservation.writer}-{number}.parquet" for number in range(1, len(files) + 1)]
        for file, name in zip(files, names, strict=True):
            path = os.path.join(self._paths.unfinished, name)
            _move(file.path, path)
            share_record(path)
        if self._settings().options.durable:
            fsync(self._paths.unfinished)
        return names

    def _commit(self, reservation: Reservation, files: Sequence[_Finished], sources: Sequence[str]) -> list[str]:
        settings = self._settings()
        durable = settings.options.durable
        now_us = time.time_ns() // 1000
        names: list[str] = []
        failures: list[OSError] = []
        has_appeared = False

        # After the commit is counted, so that readers list again; with the lock, so that no other process finishes it.
        def forget_undone() -> None:
            if failures:
                forget_commits(self._paths, [reservation.writer])

        try:
            with self._ledger.transaction(then=forget_undone) as totals:
                numbers = range(totals.sequence + 1, totals.sequence + 1 + len(files))
                names = [
                    str(FileName(number, now_us, file.rows, settings.tag, reservation.writer))
                    for number, file in zip(numbers, files, strict=True)
                ]
                commit = Commit(reservation.writer, tuple(zip(sources, names, strict=True)))
                uninterrupted(lambda: failures.extend(self._carry_out(commit, durable=durable)))
                totals.commits += 1
                if not failures:
                    has_appeared = True
                    self._count(totals, reservation, files)
        except OSError as error:
            if not has_appeared and not failures:
                raise
            if failures and is_recorded(self._paths, reservation.writer):
                raise self._stuck(error) from failures[0]
            # The account was not written: its mark and the record stay for the next process that takes the lock.
        else:
            with contextlib.suppress(OSError):  # the next process that opens the store removes the record
                forget_commits(self._paths, [reservation.writer])
        if failures:
            raise failures[0]
        return [self._paths.file(name) for name in names]

    def _carry_out(self, commit: Commit, *, durable: bool) -> list[OSError]:
        """Publish the files; if the file system refuses, undo this, and return the errors.

        Raises:
            UnfinishedCommitError: The commit can neither be completed nor undone; the next process that opens the
                store completes it.
        """
        try:
            record_commit(self._paths, commit, durable=durable)
            finish_commit(self._paths, commit)
            if durable:
                fsync(self._paths.root)
        except OSError as error:
            try:
                undo_commit(self._paths, commit)
            except OSError as stuck:
                raise self._stuck(stuck) from error
            return [error]
        return []

    def _stuck(self, error: OSError) -> UnfinishedCommitError:
        return UnfinishedCommitError(
            f"{self._paths.root}: a commit could not rename its files ({error.strerror}); they stay hidden until the "
            "next process that opens the store completes the commit"
        )

    def _count(self, totals: Totals, reservation: Reservation, files: Sequence[_Finished]) -> None:
        totals.sequence += len(files)
        for file in files:
            totals.published(file.rows, file.bytes)
        reservation.set(totals, 0)


def _move(source: str, target: str) -> None:
    """Rename a file, or copy it if the paths are on two mounts."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)
        fsync(target)
