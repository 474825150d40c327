"""What holds for every test: nothing leaks past its module, and property tests are the same on every run."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import ALL_EXAMPLES
from tests.support.processes import children

# `steady` draws the same examples on every run; HYPOTHESIS_PROFILE=explore looks for new ones. `everyday` draws fewer;
# it holds where the slow tests are left out. Tests with a number of their own give it through `examples`.
settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("steady"), derandomize=False, max_examples=1000)
settings.register_profile("everyday", settings.get_profile("steady"), max_examples=ALL_EXAMPLES // 5)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# The tests start hundreds of interpreters; each would compile the whole package if none may write bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# There are more processes than processors: a thread of torch that spins while it waits takes time from other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

SECONDS_TO_END = 60.0


# What pyarrow says if a test writes or reads data beyond an old version; current versions know them all.
_BEYOND_OLD_PYARROW = (
    "Unhandled type for Arrow to Parquet schema conversion",
    "Lists with non-zero length null components are not supported",
    "Expected all lists to be of size",
)
_IS_OLD_PYARROW = "max_rows_per_page" not in inspect.signature(pq.write_table).parameters


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip tests whose own data an old pyarrow cannot write or read (`make test-oldest`)."""
    try:
        return (yield)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        reason = str(error)
        if not (_IS_OLD_PYARROW and reason.startswith(_BEYOND_OLD_PYARROW)):
            raise
    pytest.skip(f"beyond this pyarrow: {reason}")  # not inside, where the error would keep the test's files open


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile of hypothesis, and let Ctrl-C be heard.

    A shell that starts `make test` in the background lets its children ignore SIGINT.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "HYPOTHESIS_PROFILE" not in os.environ and "not slow" in config.option.markexpr:
        settings.load_profile("everyday")


# They take 10 to 30 s each. At the end of a run, one would keep a process busy while the others have no file left.
LONG_FILES = {
    "tests/docs/test_typed_examples.py",
    "tests/engine/test_isolation.py",
    "tests/loader/test_ddp.py",
    "tests/loader/test_endings.py",
    "tests/source/test_mistyped_stores.py",
    "tests/source/test_refused_stores.py",
    "tests/source/test_remote.py",
    "tests/source/test_remote_opening.py",
    "tests/store/test_kills.py",
    "tests/store/test_sampling.py",
    "tests/store/test_together.py",
    "tests/test_docs.py",
    "tests/write/test_rewrite.py",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of frameworks where their marker is: each process would import the frameworks to see it."""
    is_of_frameworks = collection_path == Path(__file__).parent / "frameworks"
    return True if is_of_frameworks and "not frameworks" in config.option.markexpr else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without garbage collections, and exempt them from later ones, see `nothing_leaks`."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LONG_FILES)  # is stable
    missing = {
        "cuda": _no_cuda,
        "spark": _no_spark,
    }
    for name, why in missing.items():
        marked = [item for item in items if item.get_closest_marker(name)]
        reason = why() if marked else None
        if reason:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_cuda() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no GPU"


def _no_spark() -> str | None:
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    return None if shutil.which("java") or os.environ.get("JAVA_HOME") else "no Java runtime"


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the module that leaves a thread, a child process or an open file of the library behind."""
    scratch = os.path.realpath(tmp_path_factory.getbasetemp())
    files, before, threads_before = _open_files(scratch), children(), set(threading.enumerate())
    yield
    gc.collect()
    gc.freeze()  # what outlives a module lives to the end; each `gc.collect` of a later test would take 0.4 s
    threads = [t for t in set(threading.enumerate()) - threads_before if t.name.startswith("parquet_loader")]
    for thread in threads:
        thread.join(SECONDS_TO_END)
    _, alive = psutil.wait_procs(children() - before, timeout=SECONDS_TO_END)
    left = [f"thread {t.name}" for t in threads if t.is_alive()]
    left += [f"child process {p.pid}: {p.name()}" for p in alive]
    left += [f"open file {f}" for f in sorted(_still_open(scratch, files))]
    assert not left, f"left behind by this module: {'; '.join(left)}"


def _still_open(scratch: str, before: set[str]) -> set[str]:
    """Return files opened since; Arrow's threads may close a file some moments after `read_table` has returned."""
    end, never = time.monotonic() + SECONDS_TO_END, threading.Event()
    while (left := _open_files(scratch) - before) and time.monotonic() < end:
        never.wait(0.01)
    return left


def _open_files(scratch: str) -> set[str]:
    """Open descriptors that point into the tests' own directory, or at shared memory without a name."""
    found = set()
    with contextlib.suppress(FileNotFoundError):  # no /proc: the check is for Linux
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{number}")
                if target.startswith((scratch, "/memfd:parquet_loader")):
                    found.add(f"{number} -> {target}")
    return found
