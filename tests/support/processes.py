"""Processes that a test's own code started."""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
from multiprocessing.context import ForkServerContext

import psutil
import pytest

from parquet_loader.common import has_gil

needs_transform_processes = pytest.mark.skipif(not has_gil(), reason="without a GIL, threads run transforms")

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


# One server forks the processes of all tests of a run, so it imports what any of them needs.
_IMPORTED = (
    "torch",
    "torch.distributed",
    "parquet_loader.loader.batched",
    "parquet_loader.store",
    "parquet_loader.read.cache.directory",
    "tests.read.cache.kills",
    "tests.store.deaths",
    "tests.store.kills",
    "tests.store.machines",
    "tests.support.gloo",
    "tests.support.loading",
    "tests.support.oracle",
)


def forkserver() -> ForkServerContext:
    """Return what starts processes quickly: forks of one that has imported the library, torch and helpers of tests."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(_IMPORTED))
    return found


_PASSES = """
rows = sum(len(batch["id"]) for batch in loader)
child = os.fork()
again = sum(len(batch["id"]) for batch in loader)
if not child:
    os._exit(0 if again == rows else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or again != rows)
"""


def passes_on_both_sides_of_a_fork(opening: str, *arguments: str) -> None:
    """Read all rows in a new process, and then as many in it and in its fork at the same time.

    Args:
        opening: Code that makes ``loader`` of the arguments, which are in ``sys.argv[1:]``.
        arguments: Of the process.
    """
    command = [sys.executable, "-W", "ignore", "-c", f"import os, sys\n{opening}{_PASSES}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
