"""A failure of the system (memory, file descriptors, disks) is an error of its own, and skips no sound row group."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    DataError,
    OutOfMemoryError,
    ParquetLoaderError,
    SourceError,
    SystemReadError,
)
from parquet_loader.common.failures import system_error
from parquet_loader.errors import OpenFilesError, is_skippable
from parquet_loader.loader.epochs.epoch_figures import EpochFigures

SCARCE = """
import os, resource, sys
import pyarrow.parquet, pyarrow.compute
from parquet_loader import BatchedDataLoader, OutOfMemoryError, OutputOptions
folder, isolation, extra = sys.argv[1:]
if __name__ == "__main__":
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + int(extra) * 2**20,) * 2)
    options = {"shuffle": True, "window_rows": 5_000, "memory_limit": "400MiB", "num_threads": 1}
    options |= {"isolation": isolation, "on_error": "skip", "output_options": OutputOptions(format="numpy")}
    try:
        with BatchedDataLoader(folder, 256, **options) as loader:
            rows = sum(len(batch["id"]) for batch in loader)
        print("rows", rows, flush=True)
    except OutOfMemoryError as error:
        print("OutOfMemoryError", isinstance(error, MemoryError), flush=True)
    except MemoryError as error:
        print("other", type(error).__name__, flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("scarce"), np.random.default_rng(0)
    for number in range(8):
        ids = np.arange(40_000) + number * 40_000
        wide = pa.FixedSizeBinaryArray.from_buffers(pa.binary(400), 40_000, [None, pa.py_buffer(rng.bytes(16_000_000))])
        pq.write_table(
            pa.table({"id": ids, "w": wide.cast(pa.binary())}), folder / f"{number}.parquet", row_group_size=10_000
        )
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages of /proc")
@pytest.mark.parametrize("extras", [(20, 30), pytest.param((20, 25, 30, 35, 60, 150), marks=pytest.mark.slow)])
def test_a_process_short_of_memory_raises_and_never_skips_a_sound_row_group(
    folder: Path, extras: tuple[int, ...]
) -> None:
    told = set()
    # with one arena and malloc alone, a process of these libraries reserves the same address space in each run
    malloc = os.environ | {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    for extra in extras:
        command = [sys.executable, "-c", SCARCE, str(folder), "thread", str(extra)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=malloc)
        assert done.stdout.strip() in ("rows 320000", "OutOfMemoryError True"), (extra, done.stdout, done.stderr[-500:])
        told.add(done.stdout.strip())
    assert "OutOfMemoryError True" in told


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_memory_that_runs_out_while_a_batch_is_made_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    pq.write_table(pa.table({"x": np.arange(20)}), tmp_path / "a.parquet")
    monkeypatch.setattr(EpochFigures, "observe", fail)
    with (
        BatchedDataLoader(tmp_path, 4) as loader,
        pytest.raises(OutOfMemoryError, match=r"epoch 0, batch 0: memory ran out.*; lower memory_limit"),
    ):
        list(loader)


LARGE_BATCH = """
import resource, sys
import pyarrow.parquet, pyarrow.compute
from parquet_loader import BatchedDataLoader, OutputOptions
resource.setrlimit(resource.RLIMIT_AS, (2**32,) * 2)
for shuffle in (False, True):
    options = {"shuffle": shuffle, "num_threads": 1, "output_options": OutputOptions(format="numpy")}
    with BatchedDataLoader(sys.argv[1], 2**31, **options) as loader:
        print(*(len(batch["x"]) for batch in loader))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_a_batch_size_beyond_the_data_takes_no_more_memory_than_the_data(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(100), "s": ["a"] * 100}), tmp_path / "a.parquet")
    command = [sys.executable, "-c", LARGE_BATCH, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["100", "100"], done.stderr[-500:]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pa.ArrowMemoryError("malloc of size 80000 failed"), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
        (OSError("std::bad_alloc"), OutOfMemoryError),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), OutOfMemoryError),
        (OSError(errno.EMFILE, "Too many open files"), OpenFilesError),
        (OSError(errno.ENFILE, "Too many open files in system"), OpenFilesError),
        (OSError(errno.EIO, "Input/output error"), SystemReadError),
        (PermissionError(errno.EACCES, "Permission denied"), SystemReadError),
        (RuntimeError("can't start new thread"), SystemReadError),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_failures_of_the_system_are_named_and_never_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[ParquetLoaderError], on_error: Any
) -> None:
    pq.write_table(pa.table({"s": ["a", "b"] * 10}), tmp_path / "a.parquet")

    def fail(*_: object, **__: object) -> None:
        raise error

    with BatchedDataLoader(tmp_path, 4, on_error=on_error, memory_limit="64MiB") as loader:
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
        monkeypatch.setattr(pq.ParquetFile, "read_row_group", fail)
        with pytest.raises(kind, match=r"a\.parquet") as caught:
            list(loader)
    assert not isinstance(caught.value, DataError)
    assert not is_skippable(caught.value)


def test_damage_is_still_damage() -> None:
    for error in (OSError("Couldn't deserialize thrift"), ValueError("x"), OSError(errno.EINVAL, "Invalid argument")):
        assert system_error("a.parquet", error) is None
    assert is_skippable(DataError("x"))
    assert is_skippable(SourceError("x"))


def test_a_store_leaves_out_no_file_because_memory_ran_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parquet_loader import SampleStore, Scalar, Schema
    from parquet_loader.store.files import file_catalog as files

    store = SampleStore(tmp_path / "store", schema=Schema({"x": Scalar("int64")}), max_bytes="1GB")
    with store.writer() as writer:
        writer.write({"x": np.arange(10)})

    def fail(*_: object) -> None:
        raise SystemReadError("a.parquet: the system could not read the file: Input/output error")

    monkeypatch.setattr(files, "read_footer", fail)
    again = SampleStore(tmp_path / "store")
    with pytest.raises(SystemReadError):
        list(again.files())
