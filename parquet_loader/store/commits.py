"""Atomic publication of several files: all or none, even if a process is killed at any instant.

A record under ``commits/`` gives the current path (under ``unfinished/``) and the final name of each file. The record
appears as a whole, by one rename, under the store's lock: that is the commit. Then the files are renamed, in the
record's order, under the same lock, and the record is removed after the ledger counts the commit. If the process dies
in between, its mark stays in the ledger, and the next holder of the lock first completes the renames of all records. So
no process that holds the lock sees a partial commit, and `Ledger.published` sees none even without the lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parquet_loader.common import remove_file, replace_file
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import StorePaths, names_in, share_record
from parquet_loader.write import fsync

_SOURCE = re.compile(r"[0-9a-f]{16}-\d+\.parquet")


@dataclass(frozen=True, slots=True)
class Commit:
    """Files that appear together.

    Attributes:
        name: The name of the record.
        moves: The name under ``unfinished/`` and the published name of each file.
    """

    name: str
    moves: tuple[tuple[str, str], ...]


def record_commit(paths: StorePaths, commit: Commit, *, durable: bool) -> None:
    """Write the record, after which the files count as published. Called in a transaction."""
    path = os.path.join(paths.commits, commit.name)
    replace_file(path, json.dumps(commit.moves).encode("ascii"))
    share_record(path)
    if durable:
        fsync(paths.commits)


def is_recorded(paths: StorePaths, name: str) -> bool:
    """Return whether the record of a commit exists."""
    return os.path.lexists(os.path.join(paths.commits, name))


def read_commits(paths: StorePaths, tag: str) -> list[Commit]:
    """Return the recorded commits, except records that do not fit this store's files."""
    return [found for name in names_in(paths.commits) if (found := _read(paths, name, tag)) is not None]


def is_finished(paths: StorePaths, commit: Commit) -> bool:
    """Return whether all files have their final names; files are renamed in order, so the last one decides."""
    return not commit.moves or not os.path.lexists(_source(paths, commit.moves[-1]))


def finish_commit(paths: StorePaths, commit: Commit) -> None:
    """Rename the files that do not have their final names yet; called in a transaction."""
    for move in commit.moves:
        with contextlib.suppress(FileNotFoundError):
            os.rename(_source(paths, move), paths.file(move[1]))


def undo_commit(paths: StorePaths, commit: Commit) -> None:
    """Undo the renames, the last first; called in the transaction in which one failed."""
    for move in reversed(commit.moves):
        if os.path.lexists(paths.file(move[1])):
            os.rename(paths.file(move[1]), _source(paths, move))


def finish_commits(paths: StorePaths, tag: str) -> list[str]:
    """Finish the commits of dead processes; return the names of records to remove after the commits are counted.

    Called in a transaction. If the file system refuses (a full disk), the commit stays recorded for the next
    transaction, and no reader sees its files until then.
    """
    done: list[str] = []
    for commit in read_commits(paths, tag):
        with contextlib.suppress(OSError):
            finish_commit(paths, commit)
            done.append(commit.name)
    return done


def forget_commits(paths: StorePaths, names: Iterable[str]) -> None:
    """Remove the records of commits that the ledger counts, or that were undone."""
    for name in names:
        if is_recorded(paths, name):
            remove_file(os.path.join(paths.commits, name))


def names_of(commits: Iterable[Commit]) -> set[str]:
    """Return the published names of the commits' files."""
    return {name for commit in commits for _, name in commit.moves}


def sources_of(commits: Iterable[Commit]) -> set[str]:
    """Return the names of the commits' files under ``unfinished/``."""
    return {source for commit in commits for source, _ in commit.moves}


def _source(paths: StorePaths, move: Sequence[str]) -> str:
    return os.path.join(paths.unfinished, move[0])


def _read(paths: StorePaths, name: str, tag: str) -> Commit | None:
    """Return a record's commit; a record may only rename unfinished files to published ones."""
    try:
        with open(os.path.join(paths.commits, name), "rb") as file:
            moves = tuple((source, target) for source, target in json.load(file))
        for source, target in moves:
            parsed = FileName.parse(target)
            if _SOURCE.fullmatch(source) is None or parsed is None or parsed.tag != tag:
                return None
    except (FileNotFoundError, ValueError, TypeError):
        return None  # no other error: a record that cannot be read for now still counts
    return Commit(name, moves)
