"""Child processes in a container whose seccomp profile refuses system calls: what is not needed is done without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parquet_loader import write_dataset
from tests.support.seccomp import IS_POSSIBLE

pytestmark = [
    pytest.mark.skipif(not IS_POSSIBLE, reason="needs seccomp, and the numbers of system calls"),
    pytest.mark.timeout(120),
]

# Refuses one set of calls after another, and says what the loader does then.
SCRIPT = """
import sys
from parquet_loader import BatchedDataLoader, OutputOptions, ParquetLoaderError
from tests.support.seccomp import refuse

def double(columns, rng):
    return {"x": 2 * columns["x"]}

if __name__ == "__main__":
    for names in sys.argv[2:]:
        refuse(*names.split())
        for options in ({"isolation": "process"}, {"transform": double, "transform_workers": 1}):
            try:
                with BatchedDataLoader(sys.argv[1], 50, output_options=OutputOptions(format="numpy"), **options) as all:
                    print(sum(int(batch["x"].sum()) for batch in all))
            except ParquetLoaderError as error:
                print(f"{type(error).__name__}: {error}")
"""
OPTIONAL = "getpriority setpriority prlimit64 pidfd_open sched_getaffinity sched_getscheduler sched_setscheduler"


def said_without(calls: list[str], folder: Path) -> list[str]:
    write_dataset({"x": np.arange(100)}, folder)
    command = [sys.executable, "-c", SCRIPT, str(folder), *calls]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    return done.stdout.splitlines()


def test_calls_that_only_help_may_be_refused(tmp_path: Path) -> None:
    assert said_without([OPTIONAL], tmp_path / "set") == ["4950", "9900"]


def test_calls_that_are_needed_are_named(tmp_path: Path) -> None:
    options = ["isolation='process'", "transform_workers=1"]
    needs = "needs memfd_create, which this system or container refuses (Operation not permitted); allow it in the "
    assert said_without(["socketpair", "memfd_create"], tmp_path / "set") == [
        *(f"ReadingProcessError: {o}: no process can be started: [Errno 1] Operation not permitted" for o in options),
        f"UnsupportedError: {options[0]} {needs}seccomp profile; isolation='thread' gives the same batches",
        f"UnsupportedError: {options[1]} {needs}seccomp profile; transform_workers=0 gives the same batches",
    ]
