"""Opening a data set reads footers; rows are read at the first use that needs them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    DataError,
    MemoryLimitError,
    OutputOptions,
    ParquetDataset,
)
from tests.support.page_rewriter import SIZE_STATISTICS, pages_of

NUMPY = OutputOptions(format="numpy")
Reads = list[tuple[str, int, int]]


class LoggedFiles(pafs.FileSystemHandler):  # type: ignore[misc]
    """The local file system as a store that logs each byte range that is read."""

    def __init__(self) -> None:
        self.reads: Reads = []
        self._local = pafs.LocalFileSystem()

    def get_type_name(self) -> str:
        return "logged"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> Any:
        return self._local.get_file_info(selector)

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(_LoggedFile(path, self.reads), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


class _LoggedFile(io.RawIOBase):
    def __init__(self, path: str, reads: Reads) -> None:
        self._data = Path(path).read_bytes()
        self._path, self._reads, self._at = path, reads, 0

    def read(self, size: int = -1) -> bytes:
        start, stop = self._at, len(self._data) if size < 0 else self._at + size
        data = self._data[start:stop]
        self._at += len(data)
        self._reads.append((self._path, start, start + len(data)))
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + {0: 0, 1: self._at, 2: len(self._data)}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


KINDS: dict[str, Callable[[int], pa.Array]] = {
    "numbers": lambda rows: pa.array(np.arange(rows)),
    "text": lambda rows: pa.array([f"row {row}" for row in range(rows)]),
    "blobs": lambda rows: pa.array([bytes(row % 50) for row in range(rows)]),
    "tokens": lambda rows: pa.array([list(range(row % 7)) for row in range(rows)]),
    "embeddings": lambda rows: pa.array([[float(row), 1.0, 2.0] for row in range(rows)]),
    "text lists": lambda rows: pa.array([["a"] * (row % 3) for row in range(rows)]),
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Two files of few rows with column data far longer than what is read at a file's end."""
    rng = np.random.default_rng(0)
    for number in range(2):
        columns = {kind: make(3_000) for kind, make in KINDS.items()}
        columns["noise"] = pa.array(rng.bytes(100) for _ in range(3_000))
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=1_000)
    return tmp_path


def read_of_columns(handler: LoggedFiles) -> Reads:
    """Return the reads outside of the last 64 KiB of a file, where its footer is."""
    return [read for read in handler.reads if read[1] < Path(read[0]).stat().st_size - 2**16]


def without_column_data(path: Path) -> None:
    """Overwrite everything except the footer, so that reading a page fails."""
    raw = path.read_bytes()
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    path.write_bytes(b"PAR1" + b"\xff" * (len(raw) - footer - 4) + raw[-footer:])


def test_opening_reads_only_the_ends_of_files(written: Path) -> None:
    handler = LoggedFiles()
    data = ParquetDataset(str(written), filesystem=pafs.PyFileSystem(handler))
    assert data.num_rows == 6_000
    assert len(data.row_groups) == 6
    assert data.locate([0, 5_999])
    assert repr(data)
    assert {Path(path).name for path, _, _ in handler.reads} == {"0.parquet", "1.parquet"}
    assert not read_of_columns(handler)
    data.schema  # noqa: B018 (lists of few rows: the first use reads some)
    first = read_of_columns(handler)
    assert first
    assert data.schema["embeddings"] == data.schema["embeddings"]
    assert type(data.schema["tokens"]).__name__ == "RaggedList"
    assert read_of_columns(handler) == first  # found out once


def test_loaders_of_one_data_set_decide_about_lists_once(written: Path) -> None:
    handler = LoggedFiles()
    data = ParquetDataset(str(written), columns=["embeddings"], filesystem=pafs.PyFileSystem(handler))
    loaders = [data.batches(10, output_options=NUMPY) for _ in range(3)]
    read = read_of_columns(handler)
    assert read
    del handler.reads[:]
    loaders.append(data.batches(10, output_options=NUMPY))
    assert not read_of_columns(handler)
    assert [type(loader.schema["embeddings"]).__name__ for loader in loaders] == ["Tensor"] * 4
    for loader in loaders:
        loader.close()


def test_making_a_loader_of_text_reads_nothing_before_its_first_plan(written: Path) -> None:
    columns = ["numbers", "text", "blobs", "noise", "text lists"]
    handler = LoggedFiles()
    data = ParquetDataset(str(written), columns=columns, filesystem=pafs.PyFileSystem(handler))
    with data.batches(10, shuffle=True, output_options=NUMPY) as loader:
        assert len(loader) == 600
        assert len(loader.dataset) == 6_000
        assert list(loader.schema) == columns
        assert "shuffled in windows, " in repr(loader)
        assert not read_of_columns(handler)
        state = loader.state_dict()
        assert read_of_columns(handler)
        assert f"windows of {loader.window_rows}" in repr(loader)
    with BatchedDataLoader(str(written), 10, columns=columns, shuffle=True, output_options=NUMPY) as whole:
        assert whole.state_dict() == state
        batches = list(whole)
    assert sorted(np.concatenate([batch["numbers"] for batch in batches]).tolist()) == sorted([*range(3_000)] * 2)


def test_numbers_are_planned_without_column_data(written: Path) -> None:
    handler = LoggedFiles()
    data = ParquetDataset(str(written), columns=["numbers"], filesystem=pafs.PyFileSystem(handler))
    with data.batches(10, shuffle=True, output_options=NUMPY) as loader:
        assert loader.plan().windows
        assert loader.state_dict()["batch"] == 0
    assert not read_of_columns(handler)


def test_damaged_columns_are_an_error_of_the_first_use_that_reads_them(written: Path) -> None:
    for path in written.iterdir():
        without_column_data(path)
    data = ParquetDataset(written)
    assert data.num_rows == 6_000
    assert type(data.schema["embeddings"]).__name__ == "RaggedList"  # rows that cannot be read decide nothing
    with data.batches(10, output_options=NUMPY) as loader:
        assert len(loader) == 600
        with pytest.raises(DataError, match=r"parquet, row group \d, column"):
            iter(loader)


def test_a_limit_that_is_too_small_for_wide_text_is_an_error_of_the_constructor(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [np.random.default_rng(row).bytes(20_000) for row in range(200)]}), path)
    with pytest.raises(MemoryLimitError, match=r"use memory_limit=\d+MiB or more"):
        BatchedDataLoader(path, 64, memory_limit="2MiB", output_options=NUMPY)


def test_a_limit_that_dictionaries_hide_from_footers_is_an_error_of_the_first_plan(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [b"word" * 5_000] * 200}), path)
    file = pages_of(path)
    sizes_of_text = file.chunks[0].metadata.pop(SIZE_STATISTICS, None)
    file.write(tmp_path / "b.parquet")
    with BatchedDataLoader(tmp_path / "b.parquet", 64, memory_limit="2MiB", output_options=NUMPY) as loader:
        assert len(loader) == 4
        for use in (lambda: loader.window_rows, lambda: iter(loader), loader.state_dict, loader.plan):
            with pytest.raises(MemoryLimitError, match=r"use memory_limit=\d+MiB or more"):
                use()
    if sizes_of_text is not None:  # older versions of Arrow do not write them
        with pytest.raises(MemoryLimitError, match=r"use memory_limit=\d+MiB or more"):
            BatchedDataLoader(path, 64, memory_limit="2MiB", output_options=NUMPY)
