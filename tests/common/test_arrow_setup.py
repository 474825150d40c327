"""Threads use Arrow: the first allocation of each, and the first conversion to numpy."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The limit is below the memory in use, so no more can be mapped.
SCARCE = """
import resource, threading
from parquet_loader.common import prepare_thread, use_returning_pool
import pyarrow as pa

def work(is_prepared):
    try:
        if is_prepared:
            prepare_thread()
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
        if not is_prepared:
            prepare_thread()
        pa.allocate_buffer(1 << 28)
    except (MemoryError, OSError) as error:
        print(error, flush=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

use_returning_pool()
for is_prepared in (True, False):
    thread = threading.Thread(target=work, args=(is_prepared,))
    thread.start()
    thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of a process")
def test_a_threads_first_allocation_raises_if_no_memory_can_be_mapped() -> None:
    done = subprocess.run([sys.executable, "-c", SCARCE], check=False, capture_output=True, text=True, timeout=60)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-500:]
    assert len(said) == 2
    assert said[0].startswith("malloc of size 268435456 failed")
    assert "Cannot allocate memory" in said[1]


CONVERTING = """
import gc, threading
import parquet_loader, pyarrow as pa

text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(4) + bytes([1, 0, 0, 0])), pa.py_buffer(b"a")])
begin, are_done = threading.Barrier(4), threading.Event()

def convert():
    begin.wait()
    text.to_numpy(zero_copy_only=False)

def collect():
    begin.wait()
    while not are_done.is_set():
        gc.collect()

threads = [threading.Thread(target=convert) for _ in range(3)]
collector = threading.Thread(target=collect)
for thread in (collector, *threads):
    thread.start()
for thread in threads:
    thread.join()
are_done.set()
collector.join()
"""


def test_threads_that_convert_first_do_not_wait_for_each_other_while_garbage_is_collected() -> None:
    # Without a GIL, Arrow's first conversion would wait forever. With one, this shows only that it does not.
    subprocess.run([sys.executable, "-c", CONVERTING], check=True, timeout=60)
