"""NVTX ranges: which there are, on which threads, and that nothing is marked unless it is asked for."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from parquet_loader import BatchedDataLoader, MissingPackageError, SourceError, write_dataset


class Recorder(ModuleType):
    """`nvtx`, which keeps what is open on each thread."""

    def __init__(self) -> None:
        super().__init__("nvtx")
        self.marked: list[tuple[str, str]] = []
        self.open: dict[int, list[str]] = {}  # by thread, not by name: two epochs have a worker of one name

    def push_range(self, message: str, *, domain: str) -> None:
        assert domain == "parquet_loader"
        self.open.setdefault(threading.get_ident(), []).append(message)
        self.marked.append((threading.current_thread().name, message))

    def pop_range(self, *, domain: str) -> None:
        assert domain == "parquet_loader"
        self.open[threading.get_ident()].pop()


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "nvtx", recorder)
    return recorder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_dataset({"x": list(range(1000))}, str(tmp_path / "rows"))
    return tmp_path / "rows"


def test_jobs_and_requests_are_ranges(source: Path, nvtx: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUET_LOADER_NVTX", "1")

    within = list[list[str]]()

    def transform(batch: dict[str, Any], _: object) -> dict[str, Any]:
        within.append(list(nvtx.open.get(threading.get_ident(), ())))
        return batch

    with BatchedDataLoader(source, 100, shuffle=True, num_threads=1, transform=transform) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 1000
    assert within[-10:] == [["process"]] * 10
    here = threading.current_thread().name
    assert nvtx.marked.count((here, "next batch")) == 11  # and the end
    names = {name for thread, name in nvtx.marked if thread.startswith("parquet_loader-worker")}
    assert names >= {"read", "permute", "gather", "process"}
    assert not any(nvtx.open.values())


def test_ranges_end_with_an_error(source: Path, nvtx: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUET_LOADER_NVTX", "1")
    with BatchedDataLoader(source, 100, num_threads=1) as loader:
        next(source.glob("*.parquet")).write_bytes(b"PAR1")
        with pytest.raises(SourceError):
            list(loader)
    assert nvtx.marked
    assert not any(nvtx.open.values())


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_is_marked_unasked(
    source: Path, nvtx: Recorder, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("PARQUET_LOADER_NVTX", raising=False)
    if value is not None:
        monkeypatch.setenv("PARQUET_LOADER_NVTX", value)
    with BatchedDataLoader(source, 100) as loader:
        assert len(list(loader)) == 10
    assert nvtx.marked == []


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_missing_package_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch, isolation: Literal["thread", "process"]
) -> None:
    monkeypatch.setenv("PARQUET_LOADER_NVTX", "1")
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with BatchedDataLoader(source, 100, isolation=isolation) as loader:
        with pytest.raises(MissingPackageError, match=r"torch-parquet-loader\[nvtx\]"):
            list(loader)
        monkeypatch.delenv("PARQUET_LOADER_NVTX")
