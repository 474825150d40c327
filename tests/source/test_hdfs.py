"""HDFS itself, a namenode and a datanode of Hadoop's: read, written, cached; silent, gone; forks and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    DataError,
    DatasetWriter,
    LocalCache,
    OutputOptions,
    ParquetIterable,
    Ragged,
    ReadOptions,
    RemoteError,
    RemoteOptions,
    Scalar,
    Schema,
    SourceError,
    Tensor,
    Text,
    WriteError,
    WriteOptions,
    write_dataset,
)
from parquet_loader.common.storage.filesystem import list_below, look_up, resolve
from parquet_loader.write.rewrite import rewrite_dataset
from tests.support import hdfs
from tests.support.field_kinds import KINDS, kind_rows

if (reason := hdfs.missing()) is not None:
    pytest.skip(reason, allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = Schema({"id": Scalar("int64"), "v": Tensor("float32", (16,)), "text": Text()})
SMALL = WriteOptions(row_group_bytes="16KiB", file_bytes="512KiB")
LITTLE = "64MiB"
NUMPY = OutputOptions(format="numpy")
IMPATIENT = ReadOptions(remote=RemoteOptions(deadline_s=10, stall_s=4))


def rows(first: int, stop: int) -> dict[str, Any]:
    ids = np.arange(first, stop)
    vectors = np.random.default_rng(first).standard_normal((len(ids), 16), dtype="f4")
    return {"id": ids, "v": vectors, "text": [f"row {i} é" for i in ids]}


cluster = hdfs.cluster


@pytest.fixture
def url(cluster: hdfs.Cluster) -> str:
    return f"{cluster.url}/tests/{uuid.uuid4().hex}"


def placed(url: str) -> tuple[pafs.FileSystem, str]:
    found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(url)
    return found


def ids(url: Any, **arguments: Any) -> list[int]:
    with BatchedDataLoader(url, 100, output_options=NUMPY, **arguments) as loader:
        return sorted(i for batch in loader for i in batch["id"].tolist())


def assert_same(ones: Any, others: Any) -> int:
    """Equal bit for bit; return how many batches there were."""
    found, wanted = [bits(one) for one in ones], [bits(other) for other in others]
    assert found == wanted
    return len(found)


def bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: bits(column) for name, column in value.items()}
    if isinstance(value, list):
        return [bits(item) for item in value]
    if isinstance(value, Ragged):
        return value.kind, bits(value.values), bits(value.offsets)
    return str(value.dtype), value.shape, value.tolist() if value.dtype == object else value.tobytes()


def names(url: str) -> list[str]:
    filesystem, path = placed(url)
    return sorted(info.base_name for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True)))


def in_a_process(code: str, *arguments: str, conf: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if conf is not None:
        environment["CLASSPATH"] = f"{conf}{os.pathsep}{environment['CLASSPATH']}"
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


# ---- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("by", ["url", "filesystem"])
def test_batches_are_those_of_the_same_files_on_a_disk(url: str, tmp_path: Path, by: str, isolation: Any) -> None:
    write_dataset(rows(0, 3000), tmp_path / "data", SCHEMA, options=SMALL)
    filesystem, path = placed(url)
    filesystem.create_dir(path)
    pafs.copy_files(str(tmp_path / "data"), path, destination_filesystem=filesystem)
    arguments: dict[str, Any] = {"shuffle": True, "seed": 3, "window_rows": 700, "output_options": NUMPY}
    where: dict[str, Any] = {"source": url} if by == "url" else {"source": path, "filesystem": filesystem}
    with (
        BatchedDataLoader(**where, batch_size=128, isolation=isolation, **arguments) as remote,
        BatchedDataLoader(tmp_path / "data", 128, **arguments) as local,
    ):
        for _ in range(2):
            assert assert_same(remote, local) == 24
        figures = remote.stats().remote
        assert figures is not None
        assert figures.row_groups == figures.row_group_requests


def test_every_kind_of_field_comes_as_it_was_written(url: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(kind_rows(200))
    write_dataset(frame, url, KINDS)
    write_dataset(frame, tmp_path / "data", KINDS)
    with (
        BatchedDataLoader(url, 32, schema=KINDS, output_options=NUMPY) as remote,
        BatchedDataLoader(tmp_path / "data", 32, schema=KINDS, output_options=NUMPY) as local,
    ):
        assert assert_same(remote, local) == 7


def test_partitions_globs_and_lists_name_files_and_hidden_ones_are_passed_over(url: str) -> None:
    filesystem, path = placed(url)
    for key in ("a b", "ü%41", "a+b=c"):
        filesystem.create_dir(f"{path}/key={key}")
        for name in ("x.parquet", "y.parquet", "_z.parquet", ".x.parquet.crc"):
            pq.write_table(pa.table({"id": [len(key)]}), f"{path}/key={key}/{name}", filesystem=filesystem)
    assert ids(url) == [3, 3, 4, 4, 5, 5]
    assert ids(f"{url}/key=a*") == [3, 3, 5, 5]
    assert ids(f"{url}/**/x.parquet") == [3, 4, 5]
    assert ids([f"{url}/key=a%20b/x.parquet", f"{url}/key=a%20b/y.parquet"]) == [3, 3]
    assert ids("key=a b", filesystem=pafs.SubTreeFileSystem(path, filesystem)) == [3, 3]
    with BatchedDataLoader(url, 6, filters=pa.compute.field("key") == "a b", output_options=NUMPY) as loader:
        assert next(iter(loader))["id"].tolist() == [3, 3]


def test_the_namenode_of_hadoop_s_settings_needs_no_name(cluster: hdfs.Cluster, url: str) -> None:
    write_dataset(rows(0, 100), url, SCHEMA)
    code = """
        import sys
        from parquet_loader import BatchedDataLoader
        print(len(BatchedDataLoader(sys.argv[1], 10)), len(BatchedDataLoader(sys.argv[1] + "?replication=1", 10)))
    """
    done = in_a_process(code, f"hdfs://{url.removeprefix(cluster.url)}", conf=cluster.conf)
    assert (done.returncode, done.stdout) == (0, "10 10\n"), done.stderr


def test_fsspec_s_filesystem_for_hdfs_is_pyarrow_s_again(url: str) -> None:
    from fsspec.implementations.arrow import HadoopFileSystem

    write_dataset(rows(0, 100), url, SCHEMA)
    host, port, path = url.removeprefix("hdfs://").replace("/", ":", 1).split(":")
    wrapped = pafs.PyFileSystem(pafs.FSSpecHandler(HadoopFileSystem(host=host, port=int(port))))
    assert ids(f"/{path}", filesystem=wrapped) == list(range(100))
    assert resolve(f"/{path}", wrapped)[0].type_name == "hdfs"
    write_dataset(rows(100, 200), f"/{path}", SCHEMA, mode="append", filesystem=wrapped)
    assert ids(url) == list(range(200))


def test_what_is_not_there_is_said_to_be_not_there(url: str) -> None:
    write_dataset(rows(0, 10), f"{url}/set", SCHEMA)
    for wrong, words in (("sett", "no such file or directory"), ("set/*.csv", "the pattern matches no file")):
        with pytest.raises(SourceError, match=words) as caught:
            BatchedDataLoader(f"{url}/{wrong}", 10)
        assert f"{url}/{wrong}" in str(caught.value)
    filesystem, path = placed(url)
    assert look_up(filesystem, f"{path}/no").type == pafs.FileType.NotFound
    assert list_below(filesystem, f"{path}/no", recursive=True) == []


def test_a_corrupt_row_group_is_named_and_passed_over_if_asked(url: str, tmp_path: Path) -> None:
    write_dataset(rows(0, 1000), tmp_path / "data", SCHEMA, options=SMALL)
    (file, *_) = (tmp_path / "data").glob("*.parquet")
    footer = pq.read_metadata(file)
    column = footer.row_group(1).column(1)
    data = bytearray(file.read_bytes())
    data[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = (
        b"\xff" * column.total_compressed_size
    )
    filesystem, path = placed(url)
    filesystem.create_dir(path)
    with filesystem.open_output_stream(f"{path}/broken.parquet") as stream:
        stream.write(bytes(data))
    with pytest.raises(DataError, match=r"broken\.parquet, row group 1, column 'v'"):
        ids(url)
    lost = footer.row_group(1).num_rows
    assert len(ids(url, on_error="skip")) == footer.num_rows - lost


def test_caches_of_row_groups_and_of_the_snapshot_spare_the_cluster(url: str, tmp_path: Path) -> None:
    write_dataset(rows(0, 3000), url, SCHEMA, options=SMALL)
    remote = RemoteOptions(snapshot_cache=tmp_path / "snapshots")
    figures = []
    for _ in range(2):
        with BatchedDataLoader(
            url,
            100,
            shuffle=True,
            cache=LocalCache(tmp_path / "cache", "1GiB"),
            output_options=NUMPY,
            read_options=ReadOptions(remote=remote),
        ) as loader:
            for _ in range(2):
                assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(3000))
                found = loader.stats().remote
                assert found is not None
                figures.append(found.requests)
    assert figures[0] > 0
    assert figures[1:] == [0, 0, 0]
    write_dataset(rows(3000, 3100), url, SCHEMA, mode="append")
    assert ids(url, cache=LocalCache(tmp_path / "cache", "1GiB"), read_options=ReadOptions(remote=remote)) == list(
        range(3100)
    )


# ---- writing -------------------------------------------------------------------------------------------------------


def test_writers_append_replace_and_refuse(url: str) -> None:
    write_dataset(rows(0, 500), url, SCHEMA, options=SMALL)
    with pytest.raises(WriteError, match="not empty"):
        write_dataset(rows(0, 500), url, SCHEMA)
    write_dataset(rows(500, 600), url, SCHEMA, mode="append")
    assert ids(url) == list(range(600))
    write_dataset(rows(600, 700), url, SCHEMA, mode="overwrite")
    assert ids(url) == list(range(600, 700))
    assert len(names(url)) == 1
    filesystem, path = placed(url)
    with filesystem.open_output_stream(f"{path}/thesis.tex") as stream:
        stream.write(b"years of work")
    with pytest.raises(WriteError, match=r"thesis\.tex"):
        write_dataset(rows(0, 1), url, SCHEMA, mode="overwrite")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_an_exception_publishes_nothing(url: str, mode: Any) -> None:
    write_dataset(rows(0, 100), url, SCHEMA)
    before = names(url)

    def unlucky() -> None:
        with DatasetWriter(url, SCHEMA, mode=mode, options=SMALL) as writer:
            writer.write(rows(100, 2000))
            raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        unlucky()
    assert names(url) == before


KILLED_WRITER = """
    import os, signal, sys
    from parquet_loader import DatasetWriter
    from tests.source.test_hdfs import SCHEMA, SMALL, rows

    with DatasetWriter(sys.argv[1], SCHEMA, mode=sys.argv[2], options=SMALL) as writer:
        writer.write(rows(100, 5000))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_killed_writer_leaves_nothing_that_is_seen(url: str, mode: str) -> None:
    write_dataset(rows(0, 100), url, SCHEMA)
    done = in_a_process(KILLED_WRITER, url, mode)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ids(url) == list(range(100))
    write_dataset(rows(100, 200), url, SCHEMA, mode=mode)  # type: ignore[arg-type]
    assert ids(url) == list(range(0 if mode == "append" else 100, 200))


def test_a_data_set_is_rewritten_from_hdfs_and_to_it(url: str, tmp_path: Path) -> None:
    write_dataset(rows(0, 3000), f"{url}/old", SCHEMA, options=SMALL)
    rewrite_dataset(f"{url}/old", f"{url}/new", shuffle=True, seed=1)
    assert ids(f"{url}/new") == list(range(3000))
    rewrite_dataset(f"{url}/new", tmp_path / "local")
    assert ids(tmp_path / "local") == list(range(3000))
    rewrite_dataset(tmp_path / "local", f"{url}/new", mode="overwrite")
    assert ids(f"{url}/new") == list(range(3000))
    assert sorted(n for n in names(url) if n.startswith((".", "_"))) == []


# ---- what breaks ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(cluster: hdfs.Cluster) -> str:
    """More than a loader with `LITTLE` memory fetches at a time."""
    url = f"{cluster.url}/large"
    schema = Schema({"id": Scalar("int64"), "v": Tensor("uint8", (16384,))})
    noise = np.random.default_rng(0).integers(0, 256, (4000, 16384), np.uint8)
    data = {"id": np.arange(4000), "v": noise}
    write_dataset(data, url, schema, options=WriteOptions(row_group_bytes="1MiB"))
    return url


def test_a_silent_datanode_is_an_error_within_the_deadline(cluster: hdfs.Cluster, large: str) -> None:
    with BatchedDataLoader(large, 10, memory_limit=LITTLE, read_options=IMPATIENT) as loader:
        batches = iter(loader)
        next(batches)
        words = rf"{cluster.url}/large/part-.*parquet, bytes .* no byte arrived"
        with cluster.datanode.frozen(), pytest.raises(RemoteError, match=words):
            list(batches)
    with BatchedDataLoader(large, 10, memory_limit=LITTLE) as loader:  # and afterwards all is well
        assert sum(len(batch["id"]) for batch in loader) == 4000


def test_a_silent_namenode_is_an_error_within_the_deadline(cluster: hdfs.Cluster, url: str) -> None:
    write_dataset(rows(0, 100), url, SCHEMA)
    with cluster.namenode.frozen(), pytest.raises(RemoteError, match=r"namenode did not answer for 10 s.*deadline_s"):
        BatchedDataLoader(url, 10, read_options=IMPATIENT)
    assert ids(url) == list(range(100))


def test_what_a_namenode_that_is_gone_cannot_tell_is_never_taken_for_not_there(tmp_path: Path) -> None:
    (tmp_path / "hdfs").mkdir()
    with hdfs.cluster_in(tmp_path / "hdfs") as cluster:
        url = f"{cluster.url}/set"
        write_dataset(rows(0, 100), url, SCHEMA)
        filesystem, path = placed(url)
        loader = BatchedDataLoader(url, 10)
        writer = DatasetWriter(url, SCHEMA, mode="append", options=SMALL)
        writer.write(rows(0, 2000))
        cluster.namenode.kill()
        assert filesystem.get_file_info(path).type == pafs.FileType.NotFound  # pyarrow, of any error
        for ask in (lambda: look_up(filesystem, path), lambda: list_below(filesystem, path, recursive=True)):
            with pytest.raises(OSError, match="HDFS does not answer"):
                ask()
        with pytest.raises(SourceError, match=r"cannot be listed: HDFS does not answer"):
            BatchedDataLoader(url, 10, read_options=IMPATIENT)
        with pytest.raises(WriteError, match=r"HDFS does not answer"):
            write_dataset(rows(0, 10), url, SCHEMA, mode="overwrite")
        with pytest.raises(WriteError):
            writer.close()
        loader.close()


LEFT = """
    import os, signal, sys, threading
    from parquet_loader import BatchedDataLoader

    loader = BatchedDataLoader(sys.argv[1], 10, memory_limit="64MiB", isolation=sys.argv[2])
    batches = iter(loader)
    next(batches)
    os.kill(int(sys.argv[3]), signal.SIGSTOP)
    threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        for batch in batches:
            pass
    except KeyboardInterrupt:
        print("interrupted")
        sys.exit(3)
"""


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_interpreter_ends_with_requests_in_flight_that_nobody_answers(
    cluster: hdfs.Cluster, large: str, isolation: str
) -> None:
    try:
        done = in_a_process(LEFT, large, isolation, str(cluster.datanode.process.pid))
    finally:
        os.kill(cluster.datanode.process.pid, signal.SIGCONT)
    assert (done.returncode, done.stdout) == (3, "interrupted\n"), done.stderr


SIGNALLED = """
    import os, signal, sys
    came = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    from parquet_loader import BatchedDataLoader

    loader = BatchedDataLoader(sys.argv[1], 10)
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print(came == [signal.SIGTERM], "and Ctrl-C")
"""


def test_java_does_not_take_python_s_signals(url: str) -> None:
    write_dataset(rows(0, 100), url, SCHEMA)
    done = in_a_process(SIGNALLED, url)
    assert (done.returncode, done.stdout) == (0, "True and Ctrl-C\n"), done.stderr


# ---- processes -----------------------------------------------------------------------------------------------------


def test_a_forked_process_is_refused_at_once_and_ends(url: str) -> None:
    from torch.utils.data import DataLoader

    write_dataset(rows(0, 1000), url, SCHEMA, options=SMALL)
    with BatchedDataLoader(url, 10) as loader:
        forked = DataLoader(ParquetIterable(loader), batch_size=None, num_workers=1, multiprocessing_context="fork")
        with pytest.raises(SourceError, match=r"forked.*multiprocessing_context='spawn'"):
            list(forked)
        assert sum(len(batch["id"]) for batch in loader) == 1000


FORKED = """
    import os, sys
    import pyarrow.fs as pafs
    from parquet_loader import BatchedDataLoader, SourceError, write_dataset

    loader = BatchedDataLoader(sys.argv[1], 10)
    filesystem, path = pafs.FileSystem.from_uri(sys.argv[1])
    BatchedDataLoader(path, 10, filesystem=filesystem)
    if not os.fork():
        for use in (
            lambda: BatchedDataLoader(sys.argv[1], 10),
            lambda: BatchedDataLoader(path, 10, filesystem=filesystem),
            lambda: write_dataset({"id": [1]}, sys.argv[1], mode="append"),
        ):
            try:
                use()
            except SourceError as error:
                print("refused:", "forked" in str(error), flush=True)
        del loader, filesystem
        sys.exit(0)
    os.wait()
"""


def test_a_forked_process_that_lets_go_of_a_loader_ends(url: str) -> None:
    write_dataset(rows(0, 100), url, SCHEMA)
    done = in_a_process(FORKED, url)
    assert (done.returncode, done.stdout) == (0, "refused: True\n" * 3), done.stderr


def test_workers_that_are_spawned_read_every_row_once(url: str) -> None:
    from torch.utils.data import DataLoader

    write_dataset(rows(0, 1000), url, SCHEMA, options=SMALL)
    with BatchedDataLoader(url, 10, shuffle=True) as loader:
        spawned = DataLoader(ParquetIterable(loader), batch_size=None, num_workers=2, multiprocessing_context="spawn")
        assert sorted(i for batch in spawned for i in batch["id"].tolist()) == list(range(1000))


@pytest.mark.parametrize("lacking", ["CLASSPATH", "ARROW_LIBHDFS_DIR"])
def test_what_the_client_lacks_is_said(url: str, lacking: str) -> None:
    code = """
        import os, sys
        del os.environ[sys.argv[2]]
        from parquet_loader import BatchedDataLoader, SourceError
        try:
            BatchedDataLoader(sys.argv[1], 10)
        except SourceError as error:
            print(error)
    """
    done = in_a_process(code, url, lacking)
    assert f"{url}: Hadoop's client cannot be used" in done.stdout, done.stderr
    assert "hadoop classpath --glob" in done.stdout
    assert ("CLASSPATH, which is not set" in done.stdout) == (lacking == "CLASSPATH")
