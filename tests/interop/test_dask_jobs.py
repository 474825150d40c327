"""Dask writes what training reads: on every scheduler, through failures, with workers that die."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    Scalar,
    Schema,
    SchemaError,
    WriteError,
    WriteOptions,
    write_dataset,
)
from parquet_loader.write import dask as dask_jobs
from parquet_loader.write.dask import write_dask
from parquet_loader.write.jobs.job_runner import package_archive
from tests.support.field_kinds import KINDS, kind_rows, stored
from tests.support.job_places import SCHEMA, rows

pytest.importorskip("dask", reason="dask is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Dask's own sockets at its end
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SMALL = WriteOptions(row_group_bytes="1KiB", file_bytes="8KiB")


def parts(count: int, each: int = 100) -> list[Any]:
    import dask

    return [dask.delayed(rows)(n * each, n * each + each) for n in range(count)]


def ids(directory: Path) -> list[int]:
    return [
        i for file in sorted(directory.rglob("part-*.parquet")) for i in pq.ParquetFile(file).read()["id"].to_pylist()
    ]


@pytest.fixture
def frame() -> Any:
    """A frame of every kind of field, columns of objects left as they are."""
    import dask
    import dask.dataframe as dd
    import pandas as pd

    with dask.config.set({"dataframe.convert-string": False}):
        yield dd.from_pandas(pd.DataFrame(kind_rows(120)), npartitions=7)


def test_pandas_and_dask_frames_bags_and_batches_write_the_same_values(tmp_path: Path, frame: Any) -> None:
    import dask
    import dask.bag as db
    import pandas as pd

    write_dataset(pd.DataFrame(kind_rows(120)), tmp_path / "pandas", KINDS)
    expected = stored(tmp_path / "pandas")
    write_dask(frame, tmp_path / "frame", KINDS, scheduler="threads")
    write_dask(db.from_sequence(kind_rows(120), npartitions=5), tmp_path / "bag", KINDS, scheduler="synchronous")
    batches = [dask.delayed(kind_rows(120)[n : n + 50]) for n in (0, 50, 100)]
    write_dask(batches, tmp_path / "batches", KINDS, scheduler="threads")
    write_dask(dask.delayed(kind_rows)(120), tmp_path / "batch", KINDS, scheduler="synchronous")
    for name in ("frame", "bag", "batches", "batch"):
        assert stored(tmp_path / name).equals(expected), name


@pytest.mark.parametrize("partitions", [1, 3, 40])
def test_files_are_sized_by_bytes_whatever_the_partitions(tmp_path: Path, partitions: int) -> None:
    summary = write_dask(parts(partitions, 1200 // partitions), tmp_path / "set", SCHEMA, options=SMALL)
    assert ids(tmp_path / "set") == list(range(1200))
    groups = [pq.ParquetFile(file).num_row_groups for file in summary.files]
    assert sum(groups) <= 1200 * 24 / 1024 + 2 * len(groups)
    assert len(groups) <= 8


def test_an_error_names_partition_field_and_row_and_publishes_nothing(tmp_path: Path) -> None:
    import dask

    bad = dask.delayed({"id": [1, None], "vector": np.zeros((2, 4))})
    with pytest.raises(DataError, match="partition 2: field 'id', row 1: the value is null"):
        write_dask([*parts(2), bad], tmp_path / "set", SCHEMA, scheduler="threads")
    assert list(tmp_path.iterdir()) == []


def test_columns_that_do_not_fit_are_refused_before_any_task_runs(tmp_path: Path, frame: Any) -> None:
    with pytest.raises(SchemaError, match="column 'score' is not in the schema"):
        write_dask(frame[["id", "score"]], tmp_path / "set", Schema({"id": Scalar("int64")}))
    assert list(tmp_path.iterdir()) == []


def test_a_partition_without_rows_may_have_columns_of_any_type(tmp_path: Path) -> None:
    import dask.dataframe as dd
    import pandas as pd

    some = pd.DataFrame({"id": range(10), "x": np.ones(10)})
    frame = dd.from_map(lambda n: (some, pd.DataFrame(columns=["id", "x"]))[n], [0, 1], meta=some.iloc[:0])
    for name, shuffle in (("in order", False), ("shuffled", True)):
        write_dask(frame, tmp_path / name, shuffle=shuffle, scheduler="threads")
        assert sorted(ids(tmp_path / name)) == list(range(10))


def test_a_dict_is_no_schema(tmp_path: Path, frame: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"schema=\{'id': 'int64'\}: expected a Schema or None"):
        write_dask(frame, tmp_path / "out", {"id": "int64"})  # type: ignore[arg-type]


def test_a_lazy_frame_is_refused_by_name(tmp_path: Path) -> None:
    import dask

    pl = pytest.importorskip("polars")
    lazy = dask.delayed(pl.LazyFrame)({"x": [1.0]})
    with pytest.raises(SchemaError, match="partition 0: LazyFrame is not a batch; collect\\(\\) makes it a frame"):
        write_dask([lazy], tmp_path / "set", Schema({"x": Scalar("float64")}), scheduler="threads")


def test_a_schema_is_inferred_from_the_first_rows(tmp_path: Path) -> None:
    write_dask(parts(3), tmp_path / "set", scheduler="threads")
    with BatchedDataLoader(tmp_path / "set", 300) as loader:
        (batch,) = loader
    assert batch["vector"].shape == (300, 4)


def test_a_shuffled_job_is_the_same_on_every_scheduler(tmp_path: Path) -> None:
    for scheduler in ("synchronous", "threads"):
        write_dask(parts(5), tmp_path / scheduler, SCHEMA, shuffle=True, seed=4, bucket_bytes=3000, scheduler=scheduler)
    one, two = ids(tmp_path / "synchronous"), ids(tmp_path / "threads")
    assert one == two
    assert sorted(one) == list(range(500)) != one


def test_progress_counts_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dask(parts(3), tmp_path / "set", SCHEMA, progress=True, scheduler="synchronous")
    assert "3/3" in capsys.readouterr().err


class Unhashable:
    """An iterator that nobody can put into a set."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Any) -> None:
        self.values = iter(values)

    def __iter__(self) -> Unhashable:
        return self

    def __next__(self) -> Any:
        return next(self.values)


@pytest.mark.parametrize("kind", [lambda it: (x for x in it), iter, lambda it: map(pa.table, it), Unhashable])
def test_what_is_left_of_an_iterator_is_never_written_as_a_partition(tmp_path: Path, kind: Any) -> None:
    import dask

    def fresh(n: int) -> Any:
        return kind([pa.table({"id": list(range(n * 10, n * 10 + 10))})])

    write_dask([dask.delayed(fresh)(n) for n in range(2)], tmp_path / "fresh", scheduler="synchronous")
    assert sorted(ids(tmp_path / "fresh")) == list(range(20))
    shutil.rmtree(tmp_path / "fresh")
    kept = [dask.delayed(fresh(n), traverse=False) for n in range(2)]
    with pytest.raises(WriteError, match="partition 0: its rows come from an iterator that was kept"):
        write_dask(kept, tmp_path / "set", scheduler="synchronous")  # inferring the schema has read from the first
    assert list(tmp_path.iterdir()) == []


def test_iterators_that_begin_at_once_are_told_apart() -> None:
    errors: list[BaseException] = []

    def begin() -> None:
        try:
            for _ in range(3000):
                assert dask_jobs._begins(iter([1]))
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


# ---- a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def near() -> Iterator[Any]:
    """A cluster within this process, which is there at once."""
    distributed = pytest.importorskip("distributed", reason="dask's distributed scheduler is not installed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("kind", ["persisted", "filtered", "literal", "built on a literal", "future", "one part twice"])
def test_whatever_a_cluster_holds_already_is_written(near: Any, tmp_path: Path, kind: str) -> None:
    import dask
    import dask.dataframe as dd
    import pandas as pd

    table, schema = pd.DataFrame({"id": range(100)}), Schema({"id": Scalar("int64")})
    data: Any = near.persist(dd.from_pandas(table, npartitions=3))
    if kind == "filtered":
        data = data[data.id >= 0]
    elif kind == "literal":
        data = [dask.delayed({"id": np.arange(100)}, traverse=False)]
    elif kind == "built on a literal":
        data = [dask.delayed(dict)(dask.delayed({"id": np.arange(100)}, traverse=False))]
    elif kind == "future":
        data = [near.submit(dict, id=np.arange(100))]
    elif kind == "one part twice":
        data = [dask.delayed(dict)(id=np.arange(50))] * 2
    for name, given in (("given", schema), ("inferred", None)):
        write_dask(data, tmp_path / name, given, scheduler=near)
        expected = [*range(50)] * 2 if kind == "one part twice" else list(range(100))
        assert ids(tmp_path / name) == expected


def test_an_iterator_that_another_task_made_is_refused(near: Any, tmp_path: Path) -> None:
    import dask

    def make() -> Any:
        return iter([rows(0, 10)])  # it pickles, half read as well: a copy on another worker would lack rows

    for part in (near.submit(make), near.persist(dask.delayed(make)())):
        with pytest.raises(WriteError, match="partition 0: its rows come from an iterator that another task made"):
            write_dask([part], tmp_path / "set", SCHEMA, scheduler=near)
    assert list(tmp_path.iterdir()) == []
    write_dask([dask.delayed(make)()], tmp_path / "set", SCHEMA, scheduler=near)
    assert ids(tmp_path / "set") == list(range(10))


def fails_half_way(first: int, stop: int, marker: str) -> Iterator[Any]:
    """Rows that break off the first time."""
    yield rows(first, first + 50)
    if not os.path.exists(marker):
        open(marker, "w").close()
        raise ConnectionError("the line went dead")
    yield rows(first + 50, stop)


def kills_its_worker(first: int, stop: int, marker: str) -> Iterator[Any]:
    """Rows whose worker dies amid writing them, the first time."""
    yield rows(first, first + 50)
    if not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(1)
    yield rows(first + 50, stop)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [fails_half_way, kills_its_worker])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_tasks_that_fail_and_workers_that_die_cost_and_double_no_row(
    client: Any, tmp_path: Path, fails: Any, shuffle: bool
) -> None:
    import dask

    lazily = [dask.delayed(Rows)(fails, n * 100, n * 100 + 100, str(tmp_path / f"m{n}")) for n in range(2)]
    (tmp_path / "sets").mkdir()
    write_dask(
        [*lazily, *parts(6)[2:]], tmp_path / "sets" / "set", SCHEMA, options=SMALL, shuffle=shuffle, bucket_bytes=3000
    )
    assert sorted(ids(tmp_path / "sets" / "set")) == list(range(600))
    assert [p.name for p in (tmp_path / "sets").iterdir()] == ["set"]


class Rows:
    """An iterator of batches that is made where it is consumed, and so again with every attempt."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments
        self.batches: Any = None

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.batches = self.batches or self.function(*self.arguments)
        return next(self.batches)


@pytest.mark.slow
def test_errors_of_rows_come_back_from_a_cluster_as_they_are(client: Any, tmp_path: Path) -> None:
    import dask

    bad = dask.delayed({"id": [None], "vector": np.zeros((1, 4))})
    with pytest.raises(DataError, match="partition 3: field 'id', row 0"):
        write_dask([*parts(3), bad], tmp_path / "set", SCHEMA)
    assert list(tmp_path.iterdir()) == []


def test_the_archive_of_the_package_can_be_imported(tmp_path: Path) -> None:
    archive = package_archive(tmp_path / "parquet_loader.zip")
    code = f"import sys; sys.path[:0] = [{archive!r}]; import parquet_loader.write.dask as w; print(w.__file__)"
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=elsewhere, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(archive)


def test_an_archive_of_the_package_in_an_archive_is_refused(tmp_path: Path) -> None:
    archive = package_archive(tmp_path / "parquet_loader.zip")
    code = f"import sys; sys.path[:0] = [{archive!r}]; import parquet_loader; parquet_loader.package_archive('new.zip')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"this package is imported from {archive!r}; send that file to the workers" in done.stderr
    assert not (tmp_path / "new.zip").exists()


@pytest.mark.slow
def test_workers_can_import_the_package_from_an_archive(client: Any, tmp_path: Path) -> None:
    client.upload_file(package_archive(tmp_path / "parquet_loader.zip"))
    write_dask(parts(2), tmp_path / "set", SCHEMA)
    assert ids(tmp_path / "set") == list(range(200))
