"""A directory of a table format is refused by name, however it is named, read or written to."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from parquet_loader import (
    BatchedDataLoader,
    DatasetWriter,
    OutputOptions,
    ReadOptions,
    SampleStore,
    Scalar,
    Schema,
    SourceError,
    WriteError,
    rewrite_dataset,
    write_dataset,
)
from parquet_loader.cli import commands
from parquet_loader.petastorm import make_batch_reader
from parquet_loader.write.jobs.job import WriteJob
from tests.source.layouts import LAYOUTS, READ, UUID, put

NUMPY = OutputOptions(format="numpy")
SCHEMA = Schema({"id": Scalar("int64")})


def load(source: Any, **options: Any) -> list[int]:
    with BatchedDataLoader(source, 64, output_options=NUMPY, **options) as loader:
        return sorted(int(i) for batch in loader for i in batch["id"])


def parquet_below(root: Path) -> list[str]:
    return sorted(str(p) for p in root.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"PAR1")


@pytest.fixture(params=list(LAYOUTS))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    make, name = LAYOUTS[request.param]
    make(tmp_path / "lake" / "sales")
    return tmp_path / "lake" / "sales", name


SOURCES: dict[str, Callable[[Path], Any]] = {
    "directory": str,
    "directory above": lambda root: str(root.parent),
    "directory below": lambda root: os.path.dirname(parquet_below(root)[0]),
    "list of files": parquet_below,
    "one file": lambda root: parquet_below(root)[-1],
    "glob": lambda root: f"{root}/**/*",
    "glob above": lambda root: f"{root.parent}/*",
    "glob below": lambda root: f"{os.path.dirname(parquet_below(root)[0])}/*",
}


@pytest.mark.parametrize("way", list(SOURCES))
def test_a_table_is_refused_however_it_is_named(table: tuple[Path, str], way: str) -> None:
    root, name = table
    refusal, source = rf"this is {name}, whose files also hold rows .*ignore_table_format=True", SOURCES[way](root)
    with pytest.raises(SourceError, match=None if source == str(root) and name in READ else refusal):
        load(source)


@pytest.mark.parametrize("way", list(SOURCES))
def test_a_table_in_a_store_is_refused_however_it_is_named(table: tuple[Path, str], way: str) -> None:
    """A store has only listings, so the directories above a source are requested one by one."""
    root, name = table
    top = root.parent.parent
    source = SOURCES[way](root)
    inner = [os.path.relpath(p, top) for p in source] if isinstance(source, list) else os.path.relpath(source, top)
    with pytest.raises(SourceError, match=None if source == str(root) and name in READ else f"this is {name}"):
        load(inner, filesystem=pafs.SubTreeFileSystem(str(top), pafs.LocalFileSystem()))


@pytest.mark.parametrize("below", ["", "day=1", "ab"])
def test_a_file_system_that_begins_at_a_delta_table_is_refused(tmp_path: Path, below: str) -> None:
    """Failed on 9ddb9f9: a source at the top of a file system has no directory above that was asked for."""
    put(tmp_path / below / "part-00000-a-c000.snappy.parquet")
    put(tmp_path / "_delta_log" / "00000000000000000010.checkpoint.parquet")
    here = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    with pytest.raises(SourceError, match=r"^\.: this is a Delta table.*pass the table's directory alone"):
        load(os.path.join(below, "part-00000-a-c000.snappy.parquet"), filesystem=here)


def test_a_link_into_a_table_is_refused(table: tuple[Path, str], tmp_path: Path) -> None:
    root, name = table
    (tmp_path / "links").mkdir()
    for number, path in enumerate(parquet_below(root)):
        (tmp_path / "links" / f"{number}.parquet").symlink_to(path)
    with pytest.raises(SourceError, match=f"this is {name}"):
        load(tmp_path / "links")


@pytest.mark.parametrize("marker", ["_delta_log", "_spark_metadata"])
@pytest.mark.parametrize("source", ["", "*.parquet", "a.parquet"])
def test_a_table_whose_log_may_not_be_listed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str, source: str
) -> None:
    """Failed on 6429ba6f: with a log of mode 0700 of another user, deleted rows were delivered."""
    put(tmp_path / "a.parquet")
    (tmp_path / marker).mkdir()

    def listdir(path: str, list_directory: Callable[[str], list[str]] = os.listdir) -> list[str]:
        if os.path.basename(path) == marker:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return list_directory(path)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(SourceError, match=r"Delta table|Spark streaming query"):
        load(tmp_path / source)


@pytest.mark.parametrize("format_", ["iceberg", "paimon"])
def test_a_table_whose_metadata_may_not_be_listed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    LAYOUTS[format_][0](tmp_path / "sales")
    put(tmp_path / "sales" / "data" / "day=1" / "a.parquet")
    hidden = tmp_path / "sales" / ("metadata" if format_ == "iceberg" else "schema")
    source = str(tmp_path / "sales" / "data" / "day=1" / "*.parquet")
    with pytest.raises(SourceError, match=LAYOUTS[format_][1]):
        load(source)

    def listdir(path: str, list_directory: Callable[[str], list[str]] = os.listdir) -> list[str]:
        if str(path) == str(hidden):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return list_directory(path)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(SourceError, match=f"^{re.escape(str(hidden))}: the directory cannot be listed"):
        load(source)
    assert load(source, read_options=ReadOptions(ignore_table_format=True)) == list(range(10))
    write_dataset({"id": [1]}, tmp_path / "sales" / "data" / "new", SCHEMA)


def test_a_table_whose_metadata_a_store_does_not_list_is_refused(tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory", reason="fsspec is not installed")

    class Store(memory.MemoryFileSystem):  # type: ignore[name-defined,misc]
        cachable = False
        store: dict[str, Any] = {}  # noqa: RUF012
        pseudo_dirs = [""]  # noqa: RUF012

        def find(self, path: str, *args: Any, **options: Any) -> Any:
            if path.endswith("metadata"):
                raise PermissionError(errno.EACCES, "AccessDenied", path)
            return super().find(path, *args, **options)

    store = Store()
    wrapped = pafs.PyFileSystem(pafs.FSSpecHandler(store))
    store.pipe("/lake/data/a.parquet", put(tmp_path / "a.parquet").read_bytes())
    assert load("/lake/data/a.parquet", filesystem=wrapped) == list(range(10))
    store.pipe("/lake/metadata/00000-a.metadata.json", b"{}")
    with pytest.raises(SourceError, match=r"^/lake/metadata: the directory cannot be listed"):
        load("/lake/data/a.parquet", filesystem=wrapped)


def test_a_table_that_the_disk_hides_is_not_read_as_plain_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed on 6429ba6f: an I/O error on `.hoodie` passed for its absence."""
    LAYOUTS["hudi"][0](tmp_path)

    def stat(path: Any, *args: Any, system_stat: Callable[..., Any] = os.stat, **options: Any) -> Any:
        if str(path).endswith(".hoodie"):
            raise OSError(errno.EIO, "Input/output error", path)
        return system_stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(SourceError, match="Input/output error"):
        load(tmp_path)


def test_ignore_table_format_reads_every_row_of_every_file(table: tuple[Path, str]) -> None:
    root, _ = table
    options = ReadOptions(ignore_table_format=True)
    if any("day=1" in path for path in parquet_below(root)):
        assert load(parquet_below(root), read_options=options) == list(range(20))
    assert load(str(root), read_options=options, columns=["id"]) == list(range(20))


def test_rewriting_and_info_and_petastorm_refuse_a_table(table: tuple[Path, str], tmp_path: Path) -> None:
    root, name = table
    with pytest.raises(SourceError, match=None if name in READ else f"this is {name}"):
        rewrite_dataset(root, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(SourceError, match=f"this is {name}"):
        make_batch_reader(f"file://{root}")
    for command in (
        ["info", str(root)],
        ["rewrite", str(root), str(tmp_path / "new")],
        ["petastorm", "info", str(root)],
    ):
        done = CliRunner().invoke(commands, command)
        assert done.exit_code != 0
        assert name in str(done.exception) + done.output or (name in READ and command[0] != "petastorm")
    assert CliRunner().invoke(commands, ["info", str(root), "--ignore-table-format"]).exit_code == 0


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
@pytest.mark.parametrize("below", ["", "new"])
def test_no_file_is_written_into_a_table(table: tuple[Path, str], mode: Any, below: str) -> None:
    root, name = table
    if below and name in ("a DuckLake table", "a transactional Hive table"):
        below = ""  # these are recognised by the names of their files, and a new directory has no files
    before = sorted(root.rglob("*"))
    with pytest.raises(WriteError, match=rf"{name}.*write to another directory"):
        write_dataset({"id": [1]}, root / below, SCHEMA, mode=mode)
    with pytest.raises(WriteError, match=rf"{name}.*write to another directory"):
        DatasetWriter(root / below, SCHEMA, mode=mode)
    assert sorted(root.rglob("*")) == before


def test_jobs_rewriting_and_stores_write_into_no_table(tmp_path: Path) -> None:
    root = tmp_path / "sales"
    LAYOUTS["delta"][0](root)
    put(tmp_path / "plain" / "a.parquet")
    before = sorted(root.rglob("*"))
    with pytest.raises(WriteError, match="a Delta table"):
        WriteJob(root, SCHEMA, mode="append")
    with pytest.raises(WriteError, match="a Delta table"):
        rewrite_dataset(tmp_path / "plain", root, mode="append")
    for path in (root, root / "samples"):
        with pytest.raises(WriteError, match="a Delta table"):
            SampleStore(path, schema=SCHEMA)
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("end", ["", "-00001", "-0-00001", "-12-00001-deletes"])
def test_files_of_iceberg_are_known_by_their_names_alone(tmp_path: Path, end: str) -> None:
    put(tmp_path / f"00000-5-{UUID}{end}.parquet")
    with pytest.raises(SourceError, match=r"this is an Iceberg table, .*its metadata is not here.*ignore_table"):
        load(tmp_path)


def test_plain_directories_with_like_names_are_read(tmp_path: Path) -> None:
    for number, name in enumerate(
        (
            "metadata/part.parquet",
            "data/metadata/part.parquet",
            "schema/part.parquet",
            "snapshot/snapshot-a.parquet",
            "delta_1/part.parquet",
            "base_model/part.parquet",
            "bucket-0/part.parquet",
            "delta_log/part.parquet",
        )
    ):
        put(tmp_path / name, 10 * number)
    (tmp_path / "metadata" / "columns.json").write_text("{}")
    (tmp_path / "schema" / "v1.json").write_text("{}")
    (tmp_path / "_delta_log").mkdir()  # nothing in it: there is no table
    assert load(tmp_path) == list(range(80))


def test_plain_files_that_no_table_owns_are_read_next_to_one(tmp_path: Path) -> None:
    LAYOUTS["delta"][0](tmp_path / "sales")
    put(tmp_path / "plain" / "a.parquet")
    assert load(tmp_path / "plain") == list(range(10))
    assert load(f"{tmp_path}/plain*/*.parquet") == list(range(10))


def test_the_rows_that_delta_itself_exports_are_the_live_ones(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="pip install deltalake: real Delta tables are tried with it")
    rows = pa.table({"id": range(20)})
    deltalake.write_deltalake(str(tmp_path / "sales"), rows)
    deltalake.write_deltalake(str(tmp_path / "sales"), rows.slice(0, 10), mode="overwrite")
    assert load(tmp_path / "sales") == list(range(10))
    write_dataset(deltalake.DeltaTable(str(tmp_path / "sales")).to_pyarrow_table(), tmp_path / "new")
    assert load(tmp_path / "new") == list(range(10))
    assert load(tmp_path / "sales", read_options=ReadOptions(ignore_table_format=True)) == sorted(
        [*range(10)] * 2 + [*range(10, 20)]
    )


def columns_of(source: Any, **options: Any) -> dict[str, list[Any]]:
    with BatchedDataLoader(source, 64, output_options=NUMPY, **options) as loader:
        batch = next(iter(loader))
        return {name: sorted(column.tolist()) for name, column in batch.items()}


@pytest.fixture
def partitioned(tmp_path: Path) -> Path:
    table = pa.table({"id": [1, 2, 3], "year": [2020, 2020, 2021], "month": [5, 6, 5]})
    pq.write_to_dataset(table, tmp_path / "run=7" / "sales", partition_cols=["year", "month"])
    return tmp_path / "run=7" / "sales"


def test_partitions_of_lists_and_globs_are_those_of_the_directory(partitioned: Path) -> None:
    whole = columns_of(partitioned)
    assert whole == {"id": [1, 2, 3], "year": [2020, 2020, 2021], "month": [5, 5, 6]}
    files = sorted(partitioned.rglob("*.parquet"))
    assert columns_of(files) == whole
    assert columns_of(f"{partitioned}/*/*/*.parquet") == whole
    assert columns_of([partitioned / "year=2020", partitioned / "year=2021"]) == whole
    assert columns_of([f"{partitioned}/year=2020/*/*", f"{partitioned}/year=2021"]) == whole
    here = pafs.SubTreeFileSystem(str(partitioned), pafs.LocalFileSystem())
    assert columns_of([str(file.relative_to(partitioned)) for file in files], filesystem=here) == whole


def test_partitions_of_a_part_of_the_directory_are_not_lost(partitioned: Path) -> None:
    one = next((partitioned / "year=2020" / "month=6").iterdir())
    expected = {"id": [2], "year": [2020], "month": [6]}
    assert columns_of(one) == columns_of([one]) == expected
    assert columns_of(f"{partitioned}/year=2020/month=6/*.parquet") == expected


def test_plain_partition_directories_deliver_what_is_below_them(partitioned: Path) -> None:
    assert columns_of(partitioned / "year=2020") == {"id": [1, 2], "month": [5, 6]}
