"""Frames to loaders: written once, shared between processes, deleted by the last that uses them."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from parquet_loader import ConfigurationError, DataError, Scalar, Schema, WriteError, from_dask, from_pandas
from parquet_loader.loader.frames import frame_cache as kept
from parquet_loader.petastorm.cache import LocalDiskCache

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")


def frame(rows: int = 100) -> pd.DataFrame:
    return pd.DataFrame({"id": np.arange(rows), "x": np.arange(rows) / 2})


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cache"
    for one in list(kept._kept.values()):
        one.delete()


def entries(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.glob("*") if p.is_dir())


def test_a_frame_is_delivered_as_it_is(cache: Path) -> None:
    with from_pandas(frame(), 40, cache_dir=cache) as loader:
        assert [len(batch["id"]) for batch in loader] == [40, 40, 20]
        assert sum(batch["x"].sum().item() for batch in loader) == frame().x.sum()


def test_equal_frames_are_written_once_and_others_beside(cache: Path) -> None:
    one, two = from_pandas(frame(), 10, cache_dir=cache), from_pandas(frame(), 20, cache_dir=cache, shuffle=True)
    assert one.path == two.path
    other = frame()
    other.loc[50, "x"] = -1.0
    three = from_pandas(other, 10, cache_dir=cache)
    assert three.path != one.path
    assert len(entries(cache)) == 2
    assert three.delete()
    assert not three.delete()
    assert entries(cache) == [os.path.basename(one.path)]
    assert one.delete()
    assert list(cache.iterdir()) == []


def test_no_rows_of_another_schema_are_another_frame(cache: Path) -> None:
    one, two = Schema({"x": Scalar("float64")}), Schema({"y": Scalar("int32")})
    loaders = [from_pandas([], 3, schema=schema, cache_dir=cache) for schema in (one, two, one)]
    assert [loader.schema for loader in loaders] == [one, two, one]
    assert len(entries(cache)) == 2


def test_what_does_not_fit_leaves_nothing(cache: Path) -> None:
    with pytest.raises(DataError, match="field 'x'"):
        from_pandas(frame(), 10, schema=Schema({"id": Scalar("int64"), "x": Scalar("int8")}), cache_dir=cache)
    assert entries(cache) == []
    with pytest.raises(ConfigurationError, match="only once"):
        from_pandas(iter([frame()]), 10, cache_dir=cache)


class Once:
    """Arrow data that can be read once."""

    def __init__(self, table: pa.Table) -> None:
        self.reader = table.to_reader()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("suffix", [".lock", ".writing", ".keep"])
def test_a_cache_directory_that_refuses_a_file_is_named(cache: Path, suffix: str) -> None:
    frame = pd.DataFrame({"x": [1, 2]})
    with from_pandas(frame, 2, cache_dir=cache) as loader:
        path = Path(loader.path + suffix)
    loader.delete()
    path.mkdir()
    with pytest.raises(WriteError, match=rf"cache_dir='{cache}': .*Is a directory: {path}; pass one") as caught:
        from_pandas(frame, 2, cache_dir=cache, keep_files=True)
    assert isinstance(caught.value.__cause__, IsADirectoryError)
    path.rmdir()


def test_a_cache_directory_that_cannot_be_made_or_listed_is_named(cache: Path) -> None:
    cache.write_text("")
    for directory in (cache, cache / "below"):
        with pytest.raises(WriteError, match=rf"cache_dir='{directory}': .*: {directory}; pass one"):
            from_pandas(pd.DataFrame({"x": [1, 2]}), 2, cache_dir=directory)
        with pytest.raises(WriteError, match=rf"cache_location='{directory}': the directory cannot be created"):
            LocalDiskCache(str(directory), 10**6)


def test_a_user_without_a_home_is_asked_for_a_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as in a container with a user id of its own
    with pytest.raises(ConfigurationError, match="no home directory; set HOME, or pass cache_dir="):
        from_pandas(frame(), 10)


@pytest.mark.parametrize("schema", [None, Schema({"id": Scalar("int64"), "x": Scalar("float64")})])
def test_a_stream_that_can_be_read_once_loses_no_row_and_shares_with_its_table(cache: Path, schema: Any) -> None:
    table = pa.Table.from_pandas(frame(), preserve_index=False)
    one = from_pandas(Once(table), 40, schema=schema, cache_dir=cache)
    assert sum(len(batch["id"]) for batch in one) == 100
    two = from_pandas(table, 40, schema=schema, cache_dir=cache)
    assert two.path == one.path
    assert sum(len(batch["id"]) for batch in two) == 100


def test_a_frame_that_has_other_rows_the_second_time_is_refused(cache: Path) -> None:
    class Fleeting(dict[str, Any]):
        reads = 0

        def items(self) -> Any:
            self.reads += 1
            return {"id": np.arange(100 // self.reads)}.items()

    with pytest.raises(DataError, match="had 100 rows when it was first read and 50 when it was written"):
        from_pandas(Fleeting(), 10, schema=Schema({"id": Scalar("int64")}), cache_dir=cache)
    assert entries(cache) == []


def test_dask_frames_with_the_same_token_are_computed_once(cache: Path) -> None:
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    data = dd.from_pandas(frame(), npartitions=3)
    one = from_dask(data, 10, cache_dir=cache, scheduler="synchronous")
    again = from_dask(dd.from_pandas(frame(), npartitions=3), 10, cache_dir=cache, scheduler="synchronous")
    other = from_dask(data[data.id > 5], 10, cache_dir=cache, scheduler="synchronous")
    assert one.path == again.path != other.path
    assert sum(len(batch["id"]) for batch in one) == 100
    assert sum(len(batch["id"]) for batch in other) == 94


USES = """
    import sys, time, os
    import numpy as np, pandas as pd
    from parquet_loader import OutputOptions, from_pandas

    frame = pd.DataFrame({"id": np.arange(100), "x": np.arange(100) / 2})
    numpy = OutputOptions(format="numpy")  # imports no torch
    loader = from_pandas(frame, 40, cache_dir=sys.argv[1], keep_files=sys.argv[2] == "keep", output_options=numpy)
    print(loader.path, os.stat(loader.path).st_ino, flush=True)
    sys.stdin.readline()
"""


def using(cache: Path, keep: str = "") -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(USES), str(cache), keep]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_share_a_frame_and_the_last_deletes_it(cache: Path) -> None:
    one, two = using(cache), using(cache)
    with one, two:
        first, second = one.stdout.readline(), two.stdout.readline()
        assert first == second != ""
        one.communicate("\n")
        assert len(entries(cache)) == 1
        two.communicate("\n")
    assert list(cache.iterdir()) == []


def test_who_waited_for_a_frame_to_be_written_does_not_wait_for_its_writer_to_end(tmp_path: Path) -> None:
    path, begun, may_end = str(tmp_path / "frame"), threading.Event(), threading.Event()

    def write(place: str) -> None:
        begun.set()
        may_end.wait(60)
        os.mkdir(place)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept._acquire, path, write)
        assert begun.wait(60)
        second = pool.submit(kept._acquire, path, write)  # there is no frame yet, or it is there: both must do
        may_end.set()
        locks = [first.result(60), second.result(60)]
    for lock in locks:
        lock.close()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_frame_that_could_not_be_written_leaves_nothing(cache: Path, error: type[BaseException]) -> None:
    def fail(path: str) -> None:
        os.mkdir(path)
        raise error

    with pytest.raises(error):
        kept.keep(cache, "f0", fail, forever=False)
    assert list(cache.iterdir()) == []


def test_what_a_killed_process_left_is_deleted_by_the_next(cache: Path) -> None:
    with using(cache) as process:
        path = process.stdout.readline().split()[0]
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert os.path.isdir(path)
    loader = from_pandas(frame(7), 10, cache_dir=cache)
    assert entries(cache) == [os.path.basename(loader.path)]


FORKED = """
    import os, signal, sys
    import numpy as np, pandas as pd
    from parquet_loader import OutputOptions, from_pandas

    frame = pd.DataFrame({"id": np.arange(100), "x": np.arange(100) / 2})
    options = {"cache_dir": sys.argv[1], "output_options": OutputOptions(format="numpy")}  # imports no torch
    loader = from_pandas(frame, 40, **options)
    ready, tell = os.pipe()
    if not os.fork():
        own = from_pandas(frame, 40, **options)
        os.write(tell, b"1")
        sys.stdin.readline()
        print(sum(len(batch["id"]) for batch in own), flush=True)
        os._exit(0)
    os.read(ready, 1)
    print(loader.path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_child_that_asks_for_its_parents_frame_keeps_it_when_the_parent_dies(cache: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(FORKED), str(cache)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        path = process.stdout.readline().split()[0]
        process.wait()
        from_pandas(frame(7), 10, cache_dir=cache)
        assert os.path.isdir(path)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().split() == ["100"]


def test_a_frame_that_cannot_be_deleted_at_exit_keeps_no_other_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = from_pandas(frame(), 10, cache_dir=cache), from_pandas(frame(200), 10, cache_dir=cache)
    rename = os.rename

    def refusing(source: str, target: str) -> None:
        if source == one.path:
            raise PermissionError("of another user")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refusing)
    kept._end_all()
    assert entries(cache) == [os.path.basename(one.path)]


def test_a_frame_can_outlive_its_processes(cache: Path) -> None:
    with using(cache, "keep") as process:
        path = process.stdout.readline().split()[0]
        process.communicate("\n")
    assert os.path.isdir(path)
    loader = from_pandas(frame(), 10, cache_dir=cache)
    assert loader.path == path
    assert loader.delete()
    assert list(cache.iterdir()) == []
