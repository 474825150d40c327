"""A data set appears whole or not at all, whatever interrupts its writer; and it is laid out as its options say."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import ParquetDataset
from parquet_loader.errors import (
    ConfigurationError,
    DataError,
    SchemaError,
    SourceError,
    UnfinishedCommitError,
    WriteError,
)
from parquet_loader.schema import Category, Group, Image, RaggedList, Scalar, Schema, Tensor, Text
from parquet_loader.write import DatasetWriter, WriteOptions, write_dataset
from parquet_loader.write.column_layout import choose_layout
from tests.support import job_places
from tests.support.job_places import Place

SCHEMA = Schema({"x": Scalar("int64"), "t": Tensor("float32", (256,))})
NOISE = np.random.default_rng(0).standard_normal((1000, 256), dtype=np.float32)  # does not compress
SMALL = WriteOptions(row_group_bytes="16KiB", file_bytes="64KiB")


class Interrupted(Exception):
    pass


def batch(rows: int, start: int = 0) -> dict[str, Any]:
    numbers = np.arange(start, start + rows)
    return {"x": numbers, "t": NOISE[numbers % len(NOISE)]}


def write_and_raise(writer: DatasetWriter, error: type[BaseException]) -> None:
    writer.write(batch(200))
    raise error


def visible(path: Path | str) -> list[str]:
    return sorted(n for n in os.listdir(path) if not n.startswith((".", "_")))


def numbers_in(path: Path | str) -> list[int]:
    files = sorted(Path(path).glob("[!._]*.parquet"))
    return sorted(x for f in files for x in pq.read_table(f, columns=["x"])["x"].to_pylist())


def everything_below(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


# -- what is written --


def test_files_and_row_groups_have_the_size_asked_for(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", SCHEMA, options=SMALL) as writer:
        for start in range(0, 500, 7):
            writer.write(batch(7, start))
        assert visible(tmp_path / "d") == [], "nothing is seen before close"
    summary = writer.close()
    assert numbers_in(tmp_path / "d") == list(range(504))
    assert summary.rows == 504
    assert summary.bytes == sum(os.path.getsize(f) for f in summary.files)
    assert sorted(os.path.basename(f) for f in summary.files) == visible(tmp_path / "d")
    groups = [(m.num_rows) for f in summary.files for m in _row_groups(f)]
    assert set(groups[:-1]) == {15}, "row groups of at most 16 KiB at 1032 bytes a row"
    sizes = [os.path.getsize(f) for f in summary.files]
    assert all(64 * 1024 <= size <= 84 * 1024 for size in sizes[:-1])
    assert os.listdir(tmp_path) == ["d"]


def _row_groups(path: str) -> Iterator[Any]:
    metadata = pq.read_metadata(path)
    return (metadata.row_group(i) for i in range(metadata.num_row_groups))


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 40_000))
def test_every_row_is_written_once_and_in_order(sizes: list[int], row_group_bytes: int) -> None:
    memory = pafs._MockFileSystem()
    options = WriteOptions(row_group_bytes=row_group_bytes, file_bytes=30_000)
    total = 0
    with DatasetWriter("d", SCHEMA, options=options, filesystem=memory) as writer:
        for size in sizes:
            writer.write(batch(size, total))
            total += size
    found = [pq.read_table(f, filesystem=memory)["x"].to_pylist() for f in writer.close().files]
    assert [x for rows in found for x in rows] == list(range(total))


def test_files_sort_by_name_in_the_order_of_their_rows(tmp_path: Path) -> None:
    summary = write_dataset(batch(1000), tmp_path / "d", SCHEMA, options=SMALL)
    assert len(summary.files) > 10
    assert list(summary.files) == sorted(summary.files)
    rows = [x for name in visible(tmp_path / "d") for x in pq.read_table(tmp_path / "d" / name)["x"].to_pylist()]
    assert rows == list(range(1000))


def test_footers_carry_the_schema_and_checksums_are_written(tmp_path: Path) -> None:
    (file,) = write_dataset(batch(100), tmp_path / "d", SCHEMA).files
    assert Schema.from_arrow(pq.read_schema(file)) == SCHEMA
    damaged = bytearray(Path(file).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path(file).write_bytes(damaged)
    with pytest.raises(OSError, match="CRC checksum"):
        pq.ParquetFile(file, page_checksum_verification=True).read()


@pytest.mark.parametrize(
    "data",
    [
        batch(3),
        [{"x": i, "t": NOISE[i].tolist()} for i in range(3)],
        pd.DataFrame({"x": range(3), "t": list(batch(3)["t"])}),
        pl.DataFrame({"x": range(3), "t": batch(3)["t"]}),
        pa.table({"x": range(3), "t": batch(3)["t"].tolist()}),
        pa.table({"x": range(3), "t": batch(3)["t"].tolist()}).to_reader(),
        (batch(1, i) for i in range(3)),
    ],
    ids=lambda v: f"{type(v).__module__}.{type(v).__name__}",
)
def test_batches_of_every_form_are_written(tmp_path: Path, data: Any) -> None:
    (file,) = write_dataset(data, tmp_path / "d", SCHEMA).files
    table = pq.read_table(file)
    assert table["x"].to_pylist() == [0, 1, 2]
    assert np.frombuffer(table["t"][2].as_py(), np.float32).tolist() == NOISE[2].tolist()


def test_empty_data_sets_have_one_file_with_the_schema(tmp_path: Path) -> None:
    for name, data in {"rows": [], "columns": {"x": [], "t": np.zeros((0, 256))}}.items():
        (file,) = write_dataset(data, tmp_path / name, SCHEMA).files
        assert pq.read_metadata(file).num_row_groups == 0
        assert Schema.from_arrow(pq.read_schema(file)) == SCHEMA
    with pytest.raises(SchemaError, match="nothing was written, and there is no schema"):
        write_dataset([], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_batch_may_change_after_write(tmp_path: Path) -> None:
    array = np.zeros(4)
    with DatasetWriter(tmp_path / "d") as writer:
        for value in range(5):
            array[:] = value
            writer.write({"x": array})
    assert numbers_in(tmp_path / "d") == np.repeat(np.arange(5.0), 4).tolist()


def test_the_buffer_stays_below_a_row_group_and_a_piece(tmp_path: Path) -> None:
    options = WriteOptions(row_group_bytes="1MiB")
    reader = pa.RecordBatchReader.from_batches(
        pa.schema([("x", pa.int64())]), (pa.record_batch({"x": np.arange(2**16)}) for _ in range(200))
    )
    gc.collect()
    before = pa.total_allocated_bytes()
    highest = 0
    with DatasetWriter(tmp_path / "d", options=options) as writer:
        for piece in reader:
            writer.write(piece)
            highest = max(highest, pa.total_allocated_bytes() - before)
    assert writer.close().rows == 200 * 2**16
    assert highest < 4 * 2**20


@pytest.mark.parametrize(("columns", "mib"), [(1, 8), (256, 8), (512, 16), (1000, 31.25), (5000, 64)])
def test_row_groups_of_many_columns_are_larger(columns: int, mib: float) -> None:
    assert WriteOptions().group_bytes(columns) == mib * 2**20
    assert WriteOptions(row_group_bytes="1MiB").group_bytes(columns) == 2**20


def test_row_groups_of_many_columns_are_written_so(tmp_path: Path) -> None:
    rows = 2**14
    columns = {f"x{number}": np.arange(rows, dtype=np.int64) for number in range(512)}
    summary = write_dataset(columns, tmp_path / "d")
    (path,) = summary.files
    footer = pq.read_metadata(path)
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [2**12] * 4


# -- layout --


def test_layout_follows_the_data() -> None:
    rng = np.random.default_rng(0)
    rows = 20_000
    table = pa.table(
        {
            "noise": rng.standard_normal(rows, dtype=np.float32),
            "few": rng.integers(0, 100, rows),
            "zeros": np.where(rng.random(rows) < 0.9, 0, rng.standard_normal(rows)),
            "word": pa.array(rng.choice(["red", "green", "a rather long blue"], rows)),
            "tensor": pa.array([rng.bytes(64) for _ in range(rows)], pa.binary(64)),
            "list": pa.array(rng.integers(0, 4, (rows, 3)).tolist()),
        }
    )
    layout = choose_layout(table)
    assert layout.dictionaries == {"few", "word", "list.list.element"}
    assert {"noise", "tensor"} <= layout.plain
    assert "zeros" in layout.compressed
    assert layout.statistics == {"noise", "few", "zeros", "word"}
    assert choose_layout(table, "none").compressed == frozenset()
    assert choose_layout(table) == layout, "the choice is a function of the data"


def test_rows_of_bytes_are_compressed_only_where_they_shrink_to_a_third() -> None:
    rng = np.random.default_rng(0)
    halved = rng.integers(0, 256, (4000, 52), np.uint8)
    halved[:, ::2] = 0
    halved = np.ascontiguousarray(np.sort(halved, axis=1))  # half of each row is a run of zeros
    tiny = np.zeros((4000, 52), np.uint8)
    tiny[:, 0] = rng.integers(0, 256, 4000)
    wide = pa.binary(52)
    table = pa.table(
        {
            "halved": pa.FixedSizeBinaryArray.from_buffers(wide, 4000, [None, pa.py_buffer(halved)]),
            "tiny": pa.FixedSizeBinaryArray.from_buffers(wide, 4000, [None, pa.py_buffer(tiny)]),
            "text": [bytes(row) for row in halved],
        }
    )
    assert choose_layout(table).compressed == {"tiny", "text"}


def test_files_are_stored_as_the_layout_says(tmp_path: Path) -> None:
    data = {"t": np.random.default_rng(0).standard_normal((500, 64)), "few": np.arange(500) % 3, "z": np.zeros(500)}
    (file,) = write_dataset(data, tmp_path / "d", options=WriteOptions(compression="zstd")).files
    group = pq.read_metadata(file).row_group(0)
    tensor, few, _ = (group.column(i) for i in range(3))
    assert (tensor.compression, tensor.is_stats_set, "PLAIN" in tensor.encodings) == ("UNCOMPRESSED", False, True)
    assert (few.statistics.min, few.statistics.max, "RLE_DICTIONARY" in few.encodings) == (0, 2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_group_bytes": 0}, "row_group_bytes=0"),
        ({"file_bytes": "huge"}, "file_bytes='huge'"),
        ({"compression": "lzma"}, "compression='lzma': expected one of 'lz4'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WriteOptions(**options)
    assert message in str(caught.value)


# -- modes --


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    write_dataset(batch(1), tmp_path / "d", SCHEMA)
    with pytest.raises(WriteError, match=r"/d: the directory is not empty.*mode='append'.*mode='overwrite'"):
        DatasetWriter(tmp_path / "d", SCHEMA)
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="this is a file"):
        DatasetWriter(tmp_path / "file", SCHEMA)
    (tmp_path / "empty").mkdir()
    write_dataset(batch(1), tmp_path / "empty", SCHEMA)


def test_of_several_writers_in_an_empty_directory_one_publishes(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with DatasetWriter(path, SCHEMA) as first:
        first.write(batch(3))
        second = DatasetWriter(path, SCHEMA, mode="error", options=SMALL)  # as another rank of torchrun begins it
    second.write(batch(3))
    with pytest.raises(WriteError, match=r"was empty when this writer began, and now holds 'part-.*mode='append'"):
        second.close()
    assert numbers_in(path) == [0, 1, 2]
    assert visible(path) == os.listdir(path)


def test_files_of_a_writer_that_publishes_at_the_same_moment_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace = tmp_path / "d", os.replace

    def publish_beside(source: str, target: str) -> None:
        replace(source, target)
        pq.write_table(pa.table({"x": [7]}), path / "part-other.parquet")

    monkeypatch.setattr(os, "replace", publish_beside)
    with pytest.raises(WriteError, match=r"now holds 'part-other\.parquet'"):
        write_dataset(batch(500), path, SCHEMA, options=SMALL)
    assert os.listdir(path) == ["part-other.parquet"]


def test_a_writer_that_fails_leaves_the_directory_to_others(tmp_path: Path) -> None:
    failing = DatasetWriter(tmp_path / "d", SCHEMA, mode="append")
    writer = DatasetWriter(tmp_path / "d", SCHEMA, mode="append")
    failing.abort()
    writer.write(batch(3))
    writer.close()
    assert numbers_in(tmp_path / "d") == [0, 1, 2]


def test_append_adds_files_of_the_same_schema(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write_dataset(batch(3), path, SCHEMA, mode="append")
    write_dataset(batch(3, 3), path, SCHEMA, mode="append")
    write_dataset(batch(3, 6), path, mode="append")
    write_dataset([], path, SCHEMA, mode="append")
    assert len(visible(path)) == 3
    assert numbers_in(path) == list(range(9))
    assert {Schema.from_arrow(pq.read_schema(path / f)) for f in visible(path)} == {SCHEMA}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (Schema({**SCHEMA, "x": Scalar("int32")}), "column 'x' is Scalar('int64') there, and would be Scalar('int32')"),
        (Schema({**SCHEMA, "y": Text()}), "would add column 'y', which is not there"),
        (SCHEMA.select(["x"]), "needs column 't', which the new schema lacks"),
        (SCHEMA.select(["t", "x"]), "the columns are ['x', 't'] there"),
    ],
)
def test_append_names_the_column_that_differs(tmp_path: Path, schema: Schema, message: str) -> None:
    (file,) = write_dataset(batch(3), tmp_path / "d", SCHEMA).files
    with pytest.raises(SchemaError) as caught:
        DatasetWriter(tmp_path / "d", schema, mode="append")
    assert message in str(caught.value)
    assert file in str(caught.value)


def test_append_to_files_of_other_writers_compares_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir()
    pl.DataFrame({"a": [1], "b": ["x"], "c": [[1.5]]}).write_parquet(path / "polars.parquet")
    with pytest.raises(SchemaError, match=r"column 'a' is int64 there, and would be int8"):
        DatasetWriter(path, Schema({"a": Scalar("int8"), "b": Text(), "c": RaggedList("float64")}), mode="append")
    write_dataset({"a": [2], "b": ["y"], "c": [[2.5]]}, path, mode="append")
    assert pq.read_table(path).num_rows == 2


def test_overwrite_replaces_the_directory_in_one_exchange(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write_dataset(batch(3), path, SCHEMA)
    (path / "_SUCCESS").touch()
    os.chmod(path, 0o750)
    with DatasetWriter(path, SCHEMA, mode="overwrite") as writer:
        writer.write(batch(5, 10))
        assert numbers_in(path) == [0, 1, 2], "the old data set stays until close"
    assert numbers_in(path) == list(range(10, 15))
    assert everything_below(tmp_path) == ["d", f"d/{visible(path)[0]}"]
    assert path.stat().st_mode & 0o777 == 0o750


def test_overwrite_works_where_directories_cannot_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())  # a C library without renameat2
    path = tmp_path / "d"
    for rows in (3, 5):
        write_dataset(batch(rows), path, SCHEMA, mode="overwrite")
    assert numbers_in(path) == list(range(5))
    assert len(everything_below(tmp_path)) == 2


def test_overwrite_goes_through_symbolic_links(tmp_path: Path) -> None:
    write_dataset(batch(3), tmp_path / "real", SCHEMA)
    (tmp_path / "link").symlink_to("real")
    write_dataset(batch(5), tmp_path / "link", SCHEMA, mode="overwrite")
    assert (tmp_path / "link").is_symlink()
    assert numbers_in(tmp_path / "real") == list(range(5))


@pytest.mark.parametrize("name", ["notes.txt", "deeper/model.pt", ".git/config"])
def test_overwrite_refuses_to_delete_what_is_no_data_set(tmp_path: Path, name: str) -> None:
    path = tmp_path / "d"
    write_dataset(batch(3), path, SCHEMA)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).touch()
    before = everything_below(tmp_path)
    with pytest.raises(WriteError, match=f"but it holds '{name}', which is not a Parquet file"):
        DatasetWriter(path, SCHEMA, mode="overwrite")
    assert everything_below(tmp_path) == before


def test_what_appears_while_overwriting_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write_dataset(batch(3), path, SCHEMA)
    writer = DatasetWriter(path, SCHEMA, mode="overwrite")
    writer.write(batch(5))
    (path / "notes.txt").touch()
    with pytest.raises(WriteError, match=r"notes\.txt"):
        writer.close()
    assert numbers_in(path) == [0, 1, 2]
    assert (path / "notes.txt").exists()
    assert os.listdir(tmp_path) == ["d"]


# -- interruptions --


def test_an_exception_publishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write_dataset(batch(3), path, SCHEMA)
    for mode in ("append", "overwrite"):
        before = everything_below(tmp_path)
        with pytest.raises(Interrupted), DatasetWriter(path, SCHEMA, mode=mode, options=SMALL) as writer:
            write_and_raise(writer, Interrupted)
        assert everything_below(tmp_path) == before
        with pytest.raises(WriteError, match="aborted"):
            writer.write(batch(1))
    with pytest.raises(KeyboardInterrupt), DatasetWriter(tmp_path / "new", SCHEMA, options=SMALL) as writer:
        write_and_raise(writer, KeyboardInterrupt)
    assert not (tmp_path / "new").exists()


def test_a_bad_value_publishes_nothing_and_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=r"field 'x', row 1: the value 0\.5"),
        DatasetWriter(tmp_path / "d", SCHEMA) as writer,
    ):
        writer.write({"x": [0, 0.5], "t": np.zeros((2, 256))})
    assert os.listdir(tmp_path) == []


def test_closing_twice_says_the_same_and_writing_after_it_fails(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "d", SCHEMA)
    writer.write(batch(1))
    assert writer.close() == writer.close()
    writer.abort()
    assert numbers_in(tmp_path / "d") == [0], "abort after close does nothing"
    with pytest.raises(WriteError, match="closed"):
        writer.write(batch(1))
    assert repr(writer) == f"DatasetWriter({str(tmp_path / 'd')!r}, closed, 1 rows)"


@pytest.mark.filterwarnings("ignore:.*the writer was never closed:RuntimeWarning")
def test_a_writer_that_is_forgotten_leaves_nothing(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "d", SCHEMA, options=SMALL)
    writer.write(batch(200))
    assert os.listdir(tmp_path / "d")
    del writer
    gc.collect()
    assert os.listdir(tmp_path) == []


FORKED = """
import os, sys
import numpy as np
from parquet_loader.schema import Scalar, Schema, Tensor
from parquet_loader.write import DatasetWriter, WriteOptions
from parquet_loader.write.jobs.job import WriteJob
from parquet_loader.write.jobs.task import write_partition
schema = Schema({"x": Scalar("int64"), "t": Tensor("float32", (256,))})
rows = {"x": np.arange(100), "t": np.zeros((100, 256))}
writer = DatasetWriter(sys.argv[1] + "/d", schema, options=WriteOptions("16KiB", "64MiB"))
writer.write(rows)
job = WriteJob(sys.argv[1] + "/j", schema)
files = write_partition(job.spec, 0, rows)
child = os.fork()
if child == 0:
    job.abort()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
writer.write(rows)
assert writer.close().rows == 200
assert job.commit(files).rows == 100
"""


def test_a_forked_child_leaves_the_files_of_its_parent_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path)], check=True, timeout=60)
    assert sorted(pq.read_table(tmp_path / "d")["x"].to_pylist()) == sorted([*range(100)] * 2)
    assert numbers_in(tmp_path / "j") == list(range(100))
    assert visible(tmp_path) == sorted(os.listdir(tmp_path))


def test_a_full_disk_is_an_error_with_the_path_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write_dataset(batch(3), path, SCHEMA)
    before = everything_below(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        for mode in ("append", "overwrite"):
            with pytest.raises(WriteError, match="/d: the data set could not be written, and nothing") as caught:
                write_dataset(batch(1000), path, SCHEMA, mode=mode)
            assert os.strerror(errno.EFBIG) in str(caught.value)
            assert everything_below(tmp_path) == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_rename_takes_back_the_files_published_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def fail_on_third(source: str, target: str) -> None:
        if target.endswith("-000002.parquet"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_on_third)
    with pytest.raises(WriteError, match="nothing of it was published: Input/output error"):
        write_dataset(batch(500), tmp_path / "d", SCHEMA, options=SMALL)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
import numpy as np
from parquet_loader.schema import Scalar, Schema, Tensor
from parquet_loader.write import DatasetWriter, WriteOptions
schema = Schema({"x": Scalar("int64"), "t": Tensor("float32", (256,))})
writer = DatasetWriter(sys.argv[1], schema, mode=sys.argv[2], options=WriteOptions("16KiB", "64KiB"))
for _ in range(50):
    writer.write({"x": np.zeros(10), "t": np.zeros((10, 256))})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "mode", [pytest.param("error", marks=pytest.mark.slow), "append", pytest.param("overwrite", marks=pytest.mark.slow)]
)
def test_a_writer_that_is_killed_leaves_nothing_that_can_be_seen(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "d"
    if mode != "error":
        write_dataset(batch(3), path, SCHEMA)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), mode], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert visible(tmp_path) == ["d"]
    assert numbers_in(path) == ([] if mode == "error" else [0, 1, 2])
    hidden = [n for n in everything_below(tmp_path) if "part-" in n and n.endswith(".tmp")]
    assert hidden, "it was killed in the middle"
    write_dataset(batch(5), path, SCHEMA, mode="overwrite")
    assert numbers_in(path) == list(range(5))


def test_readers_see_the_old_or_the_new_data_set_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d"
    write_dataset(batch(3), path, SCHEMA)
    seen = []
    for name in ("rename", "replace", "unlink", "rmdir"):
        original: Callable[..., Any] = getattr(os, name)

        def look(*args: Any, original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            seen.append(numbers_in(path))
            result = original(*args, **kwargs)
            seen.append(numbers_in(path))
            return result

        monkeypatch.setattr(os, name, look)
    write_dataset(batch(500, 10), path, SCHEMA, mode="overwrite", options=SMALL)
    monkeypatch.undo()
    assert [0, 1, 2] in seen
    assert all(rows in ([0, 1, 2], list(range(10, 510))) for rows in seen)


# -- other file systems --


def test_other_file_systems_publish_by_moving_and_replace_by_deleting(tmp_path: Path) -> None:
    store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    for rows in (3, 200):
        with DatasetWriter("a/d", SCHEMA, mode="overwrite", options=SMALL, filesystem=store) as writer:
            writer.write(batch(rows))
            assert len(visible(tmp_path / "a/d")) in (0, 1)
    assert numbers_in(tmp_path / "a/d") == list(range(200))
    assert not [n for n in everything_below(tmp_path) if n.endswith(".tmp")]
    with pytest.raises(Interrupted), DatasetWriter("a/d", mode="append", filesystem=store) as writer:
        write_and_raise(writer, Interrupted)
    assert numbers_in(tmp_path / "a/d") == list(range(200))
    assert not [n for n in everything_below(tmp_path) if n.endswith(".tmp")]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_delete_that_fails_costs_no_row_of_the_new_data_set(tmp_path: Path, error: type[BaseException]) -> None:
    place = Place("objects", tmp_path)
    for first in (1000, 1010, 1020):
        place.write(first, first + 10, "append")
    deleted = []

    def refuse(operation: str, path: str) -> None:
        if operation == "delete":
            deleted.append(path)
            if len(deleted) == 2:
                raise error("503 slow down")

    place.handler.before = refuse
    writer = DatasetWriter(place.path, mode="overwrite", filesystem=place.filesystem)
    writer.write(job_places.rows(0, 50))
    with pytest.raises(UnfinishedCommitError if error is OSError else error) as caught:
        writer.close()
    left = place.ids()
    assert left[:50] == list(range(50))
    if error is OSError:
        message = str(caught.value)
        assert "the new files are published, but 1 of 3 old ones could not be deleted (503 slow down)" in message
        assert deleted[1] in message
        assert len(left) == 60
        assert len(deleted) == 3
    with pytest.raises(WriteError, match="its files are published"):
        writer.close()
    writer.abort()
    assert place.ids() == left
    assert place.leftovers() == []


AT_EXIT = """
import atexit, sys
from pathlib import Path
from parquet_loader.write import DatasetWriter
from tests.support.job_places import SCHEMA, SMALL, Place, rows
place = Place("objects", Path(sys.argv[1]))
writer = DatasetWriter(place.path, SCHEMA, options=SMALL, filesystem=place.filesystem)
writer.write(rows(0, 1000))
atexit.register(lambda: print(len(writer.close().files)))
"""


def test_a_writer_may_be_closed_while_the_interpreter_exits(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 1, done.stderr
    assert Place("objects", tmp_path).ids() == list(range(1000))


def test_files_that_cannot_be_taken_back_are_named(tmp_path: Path) -> None:
    place = Place("objects", tmp_path)
    place.write(1000, 1010)
    place.handler.fail_after = 1

    def refuse(operation: str, path: str) -> None:
        if operation == "delete" and "/part-" in path:
            raise OSError("503 slow down")

    place.handler.before = refuse
    writer = DatasetWriter(place.path, mode="append", options=job_places.SMALL, filesystem=place.filesystem)
    writer.write(job_places.rows(0, 1000))
    with pytest.raises(UnfinishedCommitError, match=r"reset\), and 1 of its 2 new files could not be") as caught:
        writer.close()
    assert [path in str(caught.value) for path in visible(place.local)].count(True) == 1
    assert len(visible(place.local)) == 2


def test_an_exchange_that_is_interrupted_between_its_renames_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())  # a C library without renameat2
    write_dataset(batch(3), tmp_path / "d", SCHEMA)
    rename, calls = os.rename, list[str]()

    def interrupt(source: str, target: str) -> None:
        rename(source, target)
        calls.append(source)
        if len(calls) == 1:
            raise KeyboardInterrupt

    writer = DatasetWriter(tmp_path / "d", SCHEMA, mode="overwrite")
    writer.write(batch(5))
    monkeypatch.setattr(os, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    assert calls[0] == str(tmp_path / "d")
    assert numbers_in(tmp_path / "d") == [0, 1, 2]
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("closes", [True, False])
def test_ctrl_c_while_files_are_removed_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    write_dataset(batch(3), tmp_path / "d", SCHEMA)
    unlink, calls = os.unlink, list[Any]()

    def interrupt(path: Any, **options: Any) -> None:
        calls.append(path)
        signal.raise_signal(signal.SIGINT)
        unlink(path, **options)

    writer = DatasetWriter(tmp_path / "d", SCHEMA, mode="overwrite", options=SMALL)
    writer.write(batch(200))
    if not closes:  # a file that is not of the writer, so that something is left to remove in the hidden directory
        (next(tmp_path.glob(".d-*.tmp")) / "left").touch()
    monkeypatch.setattr(os, "unlink", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.close() if closes else writer.abort()
    assert calls
    assert os.listdir(tmp_path) == ["d"]
    assert numbers_in(tmp_path / "d") == list(range(200 if closes else 3))


def test_what_was_exchanged_is_kept_where_the_disk_does_not_confirm_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(batch(3), tmp_path / "d", SCHEMA)
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), os.stat(tmp_path)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(
        UnfinishedCommitError, match=r"published, but .* \(Input/output error\); the old ones are in"
    ) as caught:
        write_dataset(batch(5), tmp_path / "d", SCHEMA, mode="overwrite")
    assert numbers_in(tmp_path / "d") == list(range(5))
    assert numbers_in(str(caught.value).rsplit(" ", 1)[1]) == [0, 1, 2]


def test_stores_that_cannot_rename_get_a_copy(tmp_path: Path) -> None:
    fsspec_local = pytest.importorskip("fsspec.implementations.local")

    class NoRename(fsspec_local.LocalFileSystem):  # type: ignore[misc,name-defined]
        cachable = False

        def mv(self, *_: Any, **__: Any) -> None:
            raise NotImplementedError

    store = pafs.PyFileSystem(pafs.FSSpecHandler(NoRename()))
    write_dataset(batch(200), str(tmp_path / "d"), SCHEMA, options=SMALL, filesystem=store)
    assert numbers_in(tmp_path / "d") == list(range(200))
    assert sorted(os.listdir(tmp_path / "d")) == visible(tmp_path / "d")


def test_errors_of_the_source_are_not_taken_for_errors_of_the_disk(tmp_path: Path) -> None:
    def batches() -> Iterator[dict[str, Any]]:
        yield batch(200)
        raise FileNotFoundError("the source")

    with pytest.raises(FileNotFoundError, match="the source"):
        write_dataset(batches(), tmp_path / "d", SCHEMA, options=SMALL)
    assert os.listdir(tmp_path) == []


def test_arguments_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected a Schema or None"):
        DatasetWriter(tmp_path / "d", {"x": Scalar("int8")})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mode='w'"):
        DatasetWriter(tmp_path / "d", mode="w")  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="no filesystem for this URL"):
        DatasetWriter("nowhere://host/d", SCHEMA)
    with pytest.raises(SourceError, match=r"ftp://nobody\.invalid/d: cannot be opened: gaierror"):
        DatasetWriter("ftp://nobody.invalid/d", SCHEMA)
    assert os.listdir(tmp_path) == []


def test_every_kind_of_field_is_written(tmp_path: Path) -> None:
    schema = Schema(
        {
            "image": Image((4, 4, 3)),
            "word": Category(("a", "b"), storage="words"),
            "group": Group(["p", "q"], "float32", storage="packed"),
            "lists": RaggedList(RaggedList(Text())),
            "masked": Tensor("int8", (2, 2), null="mask", storage="list"),
        }
    )
    rows = [
        {"image": np.zeros((4, 4, 3), np.uint8), "word": w, "p": 1, "q": 2, "lists": [["x"], []], "masked": None}
        for w in "abba"
    ]
    (file,) = write_dataset(rows, tmp_path / "d", schema).files
    assert pq.read_table(file).schema.equals(schema.arrow_schema(), check_metadata=True)


def test_the_summary_of_a_url_names_files_within_its_file_system() -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    url = f"memory://{uuid.uuid4().hex}/d"
    summary = write_dataset({"id": np.arange(3)}, url)
    assert "://" not in summary.files[0]
    files = pafs.PyFileSystem(pafs.FSSpecHandler(memory))
    assert ParquetDataset(list(summary.files), filesystem=files).num_rows == 3
    memory.rm(url, recursive=True)
