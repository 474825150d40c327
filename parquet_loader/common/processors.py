"""Counts the CPUs that this process may use: affinity and the container's CPU quota."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath


def available_processors(root: str = "/") -> int:
    """Return how many processors this process may use, at least 1, by its affinity and its cgroup's quota (Linux).

    Args:
        root: The directory of ``proc`` and ``sys``.
    """
    processors = os.cpu_count() or 1
    with suppress(AttributeError, OSError):  # not on macOS or Windows; a sandbox may refuse it
        processors = len(os.sched_getaffinity(0))
    quota = _quota(Path(root))
    return max(1, processors if quota is None else min(processors, math.ceil(quota)))


def _quota(root: Path) -> float | None:
    """Return the smallest quota of the process's cgroups and their parents, in processors, or None."""
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified", root / f"sys/fs/cgroup/{controllers}"):
            path = PurePosixPath(name.lstrip("/"))
            quotas += [_quota_of(folder / part) for part in (path, *path.parents)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(folder: Path) -> float | None:
    """Return the quota of one cgroup of version 2 or 1."""
    words = _read(folder / "cpu.max").split()
    words = words or [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
