"""Finds the newest version of a Delta table at a given time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from parquet_loader.errors import SourceError
from parquet_loader.source.tables.delta.log import Log


def version_at(log: Log, time_ms: int, asked: str, root: str) -> int:
    """Return the newest version that was committed at or before a time.

    The time of a commit is its in-commit timestamp if the table has these, else the modification time of its file. A
    file that is not newer than the previous one counts as a millisecond newer.

    Args:
        log: The log.
        time_ms: Milliseconds since 1970.
        asked: The time as the caller gave it, for messages.
        root: The table's name for messages.

    Raises:
        SourceError: the log has no commit that is old enough.
    """
    newest = log.newest
    versions = [number for number in sorted(log.commits) if number <= newest]
    configuration = (log.replay(newest).metadata or {}).get("configuration") or {}
    stated = _first_stated(configuration)
    if stated is not None:
        begin = bisect_right(versions, stated - 1)
        own = versions[begin:]
        if own and time_ms >= _stated_time(log, own[0], root):
            low, high = 0, len(own)
            while high - low > 1:  # the format requires ascending times
                middle = (low + high) // 2
                if _stated_time(log, own[middle], root) <= time_ms:
                    low = middle
                else:
                    high = middle
            return own[low]
        versions = versions[:begin]
    found, before = None, -1
    for version in versions:
        modified_ns = log.commits[version].mtime_ns
        if modified_ns is None:
            raise SourceError(f"{root}: the store gives no times of files; ask for a version by its number")
        before = max(modified_ns // 1_000_000, before + 1)
        if before <= time_ms:
            found = version
    if found is None:
        raise SourceError(
            f"{root}: no version is as old as {asked}; the oldest commit in the log is version {log.oldest_commit}"
        )
    return found


def _first_stated(configuration: Mapping[str, Any]) -> int | None:
    """Return the first version with an in-commit timestamp, or None."""
    if str(configuration.get("delta.enableInCommitTimestamps", "false")).lower() != "true":
        return None
    return int(configuration.get("delta.inCommitTimestampEnablementVersion", 0))


def _stated_time(log: Log, version: int, root: str) -> int:
    for action in log.commit_actions(version):
        about = action.get("commitInfo")
        if isinstance(about, dict) and isinstance(about.get("inCommitTimestamp"), int):
            return int(about["inCommitTimestamp"])
    raise SourceError(
        f"{root}: commit {version} does not state its time, as the table's settings demand; ask by number"
    )
