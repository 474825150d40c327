"""With isolation="process", a caller or a child that is short of memory raises, and the loader works again later."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions, ReadingProcessError, SystemReadError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of a process"),
    pytest.mark.timeout(120),
]

# Limits one of the two processes after some batches, reads on until that shows, and reads an epoch without the limit.
SHORT = """
import itertools, resource, sys
import psutil
from parquet_loader import BatchedDataLoader, OutOfMemoryError, OutputOptions

if __name__ == "__main__":
    folder, short, extra = sys.argv[1:]
    options = {"shuffle": True, "window_rows": 40_000, "memory_limit": "400MiB", "num_threads": 2}
    options |= {"on_error": "skip", "output_options": OutputOptions(format="numpy")}
    with BatchedDataLoader(folder, 256, isolation="process", **options) as loader:
        batches = iter(loader)
        kept = [next(batches)]
        me = psutil.Process()
        (child,) = me.children()
        process = me if short == "caller" else child
        limits = process.rlimit(resource.RLIMIT_AS)
        process.rlimit(resource.RLIMIT_AS, (process.memory_info().vms + int(extra) * 2**20, limits[1]))
        try:
            # Before the limit the child may have mapped what an epoch needs, but not what all kept batches need.
            for batch in itertools.chain(batches, loader, loader, loader):
                kept.append(batch)
            print("rows", sum(len(batch["id"]) for batch in kept))
        except OutOfMemoryError as error:
            print(isinstance(error, MemoryError), error)
        sums = {int(batch["id"].sum()) for batch in kept}
        kept.clear()
        me.rlimit(resource.RLIMIT_AS, limits)
        rows = sum(len(batch["id"]) for batch in loader)
        print("rows", rows, len(sums) > 1, len(me.children()))
    print("children", len(me.children()))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("scarce"), np.random.default_rng(0)
    for number in range(4):
        wide = pa.FixedSizeBinaryArray.from_buffers(pa.binary(400), 40_000, [None, pa.py_buffer(rng.bytes(16_000_000))])
        table = pa.table({"id": np.arange(40_000) + number * 40_000, "w": wide.cast(pa.binary())})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=10_000)
    return folder


@pytest.mark.parametrize("extra", [1, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("short", ["caller", "child"])
def test_a_process_short_of_memory_is_told_and_no_row_is_skipped(folder: Path, short: str, extra: int) -> None:
    said = {"caller": "isolation='process'.*memory cannot be mapped.*; keep fewer batches", "child": "memory"}[short]
    command = [sys.executable, "-c", SHORT, str(folder), short, str(extra)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert re.fullmatch(rf"True .*{said}.*\nrows 160000 True 1\nchildren 0\n", done.stdout), (
        f"{done.returncode}, {done.stdout}, {done.stderr[-2000:]}"
    )


# A limit of the size of files counts for shared memory too; it is set after the output has its file.
SMALL_FILES = """
import resource, sys
from parquet_loader import BatchedDataLoader, OutputOptions, SystemReadError

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    options = {"on_error": "skip", "output_options": OutputOptions(format="numpy")}
    with BatchedDataLoader(sys.argv[1], 256, isolation="process", **options) as loader:
        try:
            next(iter(loader))
        except SystemReadError as error:
            print(error.errno, error)
"""


def test_a_limit_of_the_size_of_files_is_told(folder: Path) -> None:
    command = [sys.executable, "-c", SMALL_FILES, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    told = r"27 isolation='process': \d+ bytes of shared memory exceed the limit.*ulimit -f.*\n"
    assert re.fullmatch(told, done.stdout), f"{done.returncode}, {done.stdout}, {done.stderr[-2000:]}"


def test_threads_that_cannot_be_started_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("parquet_loader-worker"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with (
        BatchedDataLoader(folder, 256, num_threads=2) as loader,
        pytest.raises(SystemReadError, match=r"^num_threads=2: can't start new thread; lower num_threads, or allow"),
    ):
        next(iter(loader))


def doubled(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": 2 * columns["id"]}


@pytest.mark.parametrize("options", [{"isolation": "process"}, {"transform": doubled, "transform_workers": 1}])
def test_a_process_that_can_start_no_thread_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    refusing = "import threading\ndef start(self):\n    raise RuntimeError\nthreading.Thread.start = start\n"
    (tmp_path / "sitecustomize.py").write_text(refusing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        BatchedDataLoader(folder, 256, output_options=OutputOptions(format="numpy"), **options) as loader,
        pytest.raises(
            ReadingProcessError, match=r"code 71: if .*, it could start no thread; allow the process more threads"
        ),
    ):
        next(iter(loader))
