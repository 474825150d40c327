"""A writer that loses rows, or waits for long, says so."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from parquet_loader import DatasetWriter, SampleStore, Scalar, Schema, StoreFullError

SCHEMA = Schema({"x": Scalar("int64")})


def _forget_store_writer(path: Path) -> None:
    SampleStore(path, schema=SCHEMA).writer().write({"x": np.arange(7)})
    gc.collect()


def _forget_data_set_writer(path: Path) -> None:
    DatasetWriter(path, SCHEMA).write({"x": np.arange(7)})
    gc.collect()


def test_a_store_writer_that_is_never_closed_says_which_rows_are_lost(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"never closed, and 7 rows that it had not published are lost; close\(\)"):
        _forget_store_writer(tmp_path / "s")
    assert SampleStore(tmp_path / "s").status().rows == 0


def test_a_data_set_writer_that_is_never_closed_says_which_rows_are_lost(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="never closed, and its 7 rows are lost; close"):
        _forget_data_set_writer(tmp_path / "d")


def test_rows_that_a_writers_thread_has_dropped_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that publishes by age runs out of memory before it publishes."""

    def without_memory(output: object) -> None:
        raise MemoryError(output)

    monkeypatch.setattr("parquet_loader.store.writer._publish_if_due", without_memory)
    writer = SampleStore(tmp_path / "s", schema=SCHEMA).writer(roll_s=0.01)
    writer.write({"x": np.arange(7)})
    (thread,) = (t for t in threading.enumerate() if t.name == "parquet_loader-roller")
    thread.join()
    with pytest.raises(MemoryError):
        writer.close()
    assert writer.done.rows == 0


def test_it_is_said_at_the_end_of_a_script(tmp_path: Path) -> None:
    script = (
        "import numpy as np\n"
        "from parquet_loader import DatasetWriter, SampleStore, Scalar, Schema\n"
        "schema = Schema({'x': Scalar('int64')})\n"
        "writer = SampleStore('s', schema=schema).writer()\n"
        "writer.write({'x': np.arange(7)})\n"
        "other = DatasetWriter('d', schema)\n"
        "other.write({'x': np.arange(8)})\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "7 rows that it had not published are lost" in ran.stderr
    assert "its 8 rows are lost" in ran.stderr


def test_nothing_is_said_of_writers_that_were_closed_or_aborted_or_wrote_nothing(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "s", schema=SCHEMA)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with store.writer() as writer, DatasetWriter(tmp_path / "d", SCHEMA) as other:
            writer.write({"x": np.arange(7)})
            other.write({"x": np.arange(7)})
        writer, other = store.writer(), DatasetWriter(tmp_path / "e", SCHEMA)
        writer.write({"x": np.arange(7)})
        other.write({"x": np.arange(7)})
        writer.abort()
        other.abort()
        writer, other = store.writer(), DatasetWriter(tmp_path / "f", SCHEMA)
        del writer, other
        gc.collect()
    assert [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)] == []


def _fill(store: SampleStore, **options: object) -> None:
    rng = np.random.default_rng(0)
    with store.writer(**options) as writer:  # type: ignore[arg-type]
        try:
            while True:
                writer.write({"x": rng.integers(0, 2**60, 1000)})
        except StoreFullError:
            writer.abort()
            raise


@pytest.mark.parametrize(
    ("evict", "options", "why"),
    [
        ("never", {}, r"evict='never' keeps every file; raise max_bytes"),
        ("oldest", {"evicts": False}, r"this writer does not evict \(evicts=False\)"),
    ],
)
def test_a_full_store_says_why_nothing_goes(tmp_path: Path, evict: str, options: dict[str, bool], why: str) -> None:
    store = SampleStore(tmp_path / "s", schema=SCHEMA, max_bytes="300KB", evict=evict)  # type: ignore[arg-type]
    with pytest.raises(StoreFullError, match=why):
        _fill(store, when_full="fail", **options)


def test_a_store_whose_function_is_elsewhere_says_so(tmp_path: Path) -> None:
    SampleStore(tmp_path / "s", schema=SCHEMA, max_bytes="300KB", evict=lambda file: file.rows)
    with pytest.raises(StoreFullError, match="this process lacks the store's eviction function"):
        _fill(SampleStore(tmp_path / "s"), when_full="fail")


def test_a_store_of_held_files_says_so(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "s", schema=SCHEMA, max_bytes="300KB")
    with pytest.raises(StoreFullError):
        _fill(SampleStore(tmp_path / "s", evict="never"), when_full="fail")
    store = SampleStore(tmp_path / "s", evict="oldest")
    with store.snapshot(), pytest.raises(StoreFullError, match=r"readers need them, or they are held"):
        _fill(store, when_full="fail")


def test_a_writer_that_waits_for_long_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 30 * monotonic())
    store = SampleStore(tmp_path / "s", schema=SCHEMA, max_bytes="300KB", evict="never")
    with pytest.warns(RuntimeWarning, match="evict='never'.*still waits") as said, pytest.raises(StoreFullError):
        _fill(store, wait_s=39.0)
    assert len(said) == 1
