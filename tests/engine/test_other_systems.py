"""Threads read on systems that lack what Linux has, and what is missing there says so.

Simulated: a process deletes from the standard library what macOS or Windows lacks, and then imports the package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import parquet_loader as pl

SCRIPT = """
import asyncio, builtins, ctypes, mmap, multiprocessing.connection, os, select, signal, socket, sys, tempfile, time
import urllib.request
import fcntl, resource
import numpy as np, pyarrow.dataset, pyarrow.fs, pyarrow.parquet  # they know their system by themselves

system, source, target = sys.argv[1:]
LINUX = "memfd_create MFD_CLOEXEC eventfd posix_fadvise posix_fallocate copy_file_range splice O_TMPFILE O_DIRECT "
LINUX += "pidfd_open SCHED_BATCH SCHED_OTHER sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler"
UNIX = "fork register_at_fork pread preadv pwrite pwritev O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_NONBLOCK nice getuid "
UNIX += "geteuid getgid statvfs fchmod mkfifo chown setsid killpg sysconf uname getloadavg posix_spawn lockf readv"
for name in (LINUX + (" " + UNIX if system == "win32" else "")).split():
    if hasattr(os, name):
        delattr(os, name)
for name in ("MADV_REMOVE", "MADV_POPULATE_WRITE", "MADV_DONTFORK", "MADV_HUGEPAGE"):
    if hasattr(mmap, name):
        delattr(mmap, name)
for module, name in ((resource, "RUSAGE_THREAD"), (select, "epoll")):
    if hasattr(module, name):
        delattr(module, name)
if system == "win32":
    sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios")))
    for name in ("SIGKILL", "SIGHUP", "SIGCHLD", "SIGALRM", "setitimer", "pthread_sigmask"):
        delattr(signal, name)
    lacks = {select: "poll", socket: "send_fds recv_fds AF_UNIX CMSG SCM", mmap: "MAP PROT MADV", time: "clock pthread"}
    for module, prefixes in lacks.items():
        for name in dir(module):
            if name.upper().startswith(tuple(prefixes.upper().split())):
                delattr(module, name)

def without_proc(function):
    def call(path, *more, **named):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys", "/dev/shm")):
            raise FileNotFoundError(path)
        return function(path, *more, **named)
    return call

builtins.open, os.open, os.listdir = without_proc(builtins.open), without_proc(os.open), without_proc(os.listdir)
sys.platform = system

import parquet_loader as pl

out = pl.OutputOptions(format="numpy")

def errors(call):
    try:
        call()
    except pl.UnsupportedError as error:
        return str(error)
    return "no error"

def batches(**options):
    with pl.BatchedDataLoader(source, 100, shuffle=True, num_threads=2, output_options=out, **options) as loader:
        read = [int(x) for batch in loader for x in batch["x"]]
        loader.stats().to_dict()
        return read

read = batches()
assert sorted(read) == list(range(1000)) != read
assert len(batches(filters=[("x", "<", 300)])) == 300
pl.write_dataset({"x": np.arange(10)}, target)
assert pl.ParquetDataset(target).num_rows == 10
print("process:", errors(lambda: batches(isolation="process")))
print("rows:", errors(lambda: pl.ParquetDataset(source).rows(output_options=out)[5]["x"]))
schema = pl.Schema({"x": pl.Scalar("int64")})
print("store:", errors(lambda: pl.SampleStore(target + "-store", schema=schema, max_bytes="1GB")))
"""


def run(system: str, tmp_path: Path, **variables: str) -> list[str]:
    pl.write_dataset({"x": list(range(1000)), "s": [str(i) for i in range(1000)]}, tmp_path / "data")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, system, str(tmp_path / "data"), str(tmp_path / "new")],
        env=os.environ | variables, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("native", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_without_what_only_linux_has_all_but_the_reading_process_works(native: str, tmp_path: Path) -> None:
    process, rows, store = run("darwin", tmp_path, PARQUET_LOADER_NATIVE=native)
    assert process == "process: isolation='process' needs Linux (memfd); isolation='thread' gives the same batches"
    assert (rows, store) == ("rows: no error", "store: no error")


def test_without_what_only_unix_has_threads_read_and_stores_and_rows_say_what_they_lack(tmp_path: Path) -> None:
    process, rows, store = run("win32", tmp_path, PARQUET_LOADER_NATIVE="0")  # there are no kernels for Windows
    assert "needs Linux (memfd)" in process
    assert "rows by index need preadv" in rows
    assert "this system has no flock" in store


def test_big_endian_processors_are_refused() -> None:
    script = "import numpy, pyarrow, sys; sys.byteorder = 'big'; import parquet_loader"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr.splitlines()[-1].startswith("ImportError: parquet_loader needs a little-endian processor")
