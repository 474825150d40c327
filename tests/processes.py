"""Processes that a test's own code started."""

from __future__ import annotations

import contextlib

import psutil

# Processes that live until the interpreter ends, by design of those that start them.
LASTING_CHILDREN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "java", "pyspark")


def children() -> set[psutil.Process]:
    """The processes below this one that are alive and are to end."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            lasts = any(word in part for part in child.cmdline() for word in LASTING_CHILDREN)
            if not lasts and child.status() != psutil.STATUS_ZOMBIE:
                found.add(child)
    return found
