"""Upper limits of the machine, without shuffling and without tensors: decoding alone, copying alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.suite.systems.base import Batch, Job, System

PACKAGES = ("pyarrow", "polars", "duckdb", "numpy", "pillow")


class PyarrowDecoding(System):
    """Decodes each row group into an Arrow table, on the job's threads, and drops it at once."""

    delivers_tensors = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import pyarrow.parquet as pq  # noqa: PLC0415  (each limit imports what it measures)

        self._pq = pq
        self._footers = {path: pq.read_metadata(path) for path in job.files}
        self._groups = [(p, g) for p in job.files for g in range(self._footers[p].num_row_groups)]
        self._pool = ThreadPoolExecutor(job.threads)

    def table(self, path: str, group: int) -> Any:
        with self._pq.ParquetFile(path, metadata=self._footers[path], pre_buffer=False) as file:
            return file.read_row_group(group, use_threads=False)

    def epoch(self) -> Iterator[Batch]:
        yield from ({"": range(n)} for n in self._pool.map(lambda g: self.table(*g).num_rows, self._groups))

    def checked_epoch(self) -> Iterator[Batch]:
        for path, group in self._groups:
            table = self.table(path, group)
            yield _arrays(self.job, table)

    def close(self) -> None:
        self._pool.shutdown()


class PolarsDecoding(System):
    """A file at a time into a data frame, by Polars' own threads."""

    delivers_tensors = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        os.environ["POLARS_MAX_THREADS"] = str(job.threads)
        import polars as pl  # noqa: PLC0415  (reads the number of its threads when it is imported)

        self._polars = pl

    def epoch(self) -> Iterator[Batch]:
        for path in self.job.files:
            yield {"": range(self._polars.read_parquet(path).height)}

    def checked_epoch(self) -> Iterator[Batch]:
        for path in self.job.files:
            yield _arrays(self.job, self._polars.read_parquet(path).to_arrow())


class DuckdbScan(System):
    """A file at a time into Arrow batches, by DuckDB's own threads."""

    delivers_tensors = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import duckdb  # noqa: PLC0415  (each limit imports what it measures)

        self._connection = duckdb.connect(config={"threads": job.threads})

    def _tables(self) -> Iterator[Any]:
        for path in self.job.files:
            yield self._connection.execute("SELECT * FROM read_parquet(?)", [path]).to_arrow_table()

    def epoch(self) -> Iterator[Batch]:
        yield from ({"": range(table.num_rows)} for table in self._tables())

    def checked_epoch(self) -> Iterator[Batch]:
        yield from (_arrays(self.job, table) for table in self._tables())

    def close(self) -> None:
        self._connection.close()


class Copying(System):
    """As many bytes as an epoch delivers, from warm memory to warm memory, on one thread."""

    delivers_tensors = False
    _PIECE_BYTES = 256 * 2**20

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._source = np.ones(self._PIECE_BYTES, np.uint8)
        self._target = np.ones_like(self._source)

    def epoch(self) -> Iterator[Batch]:
        left = self.job.rows * sum(column.row_bytes for column in self.job.columns)
        while left:
            size = min(left, self._PIECE_BYTES)
            np.copyto(self._target[:size], self._source[:size])
            left -= size
        yield {"": range(self.job.rows)}

    def checked_epoch(self) -> Iterator[Batch]:
        return iter(())


class JpegDecoding(System):
    """Decodes all images, on the job's threads; their bytes are in memory."""

    delivers_tensors = False
    _PIECE_IMAGES = 32

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import pyarrow.parquet as pq  # noqa: PLC0415  (each limit imports what it measures)

        from benchmarks.suite.systems.pictures import decode, decode_all  # noqa: PLC0415

        self._decode, self._decode_all = decode, decode_all
        table = pq.read_table(list(job.files))
        images = table["image"].to_pylist()
        self._pieces = [images[at : at + self._PIECE_IMAGES] for at in range(0, len(images), self._PIECE_IMAGES)]
        self._labels = table["y"].to_numpy()
        self._pool = ThreadPoolExecutor(job.threads)

    def _decoded(self, piece: list[bytes]) -> int:
        for encoded in piece:
            self._decode(encoded)
        return len(piece)

    def epoch(self) -> Iterator[Batch]:
        yield from ({"": range(count)} for count in self._pool.map(self._decoded, self._pieces))

    def checked_epoch(self) -> Iterator[Batch]:
        at = 0
        for piece in self._pieces:
            yield {"image": self._decode_all(piece), "y": self._labels[at : at + len(piece)]}
            at += len(piece)

    def close(self) -> None:
        self._pool.shutdown()


def _arrays(job: Job, table: Any) -> dict[str, Any]:
    """Return an Arrow table's columns as numpy arrays; packed groups are split into columns."""
    from benchmarks.suite.workloads import CATEGORIES, DENSE  # noqa: PLC0415

    out: dict[str, Any] = {}
    for name, members in (("dense", DENSE), ("categories", CATEGORIES)):
        if name in table.column_names:
            matrix = _raw(table[name], job.column(members[0]).dtype)
            out |= {member: matrix[:, place] for place, member in enumerate(members)}
    for column in job.columns:
        if column.name in out:
            continue
        chunked = table[column.name]
        array = chunked.combine_chunks() if hasattr(chunked, "combine_chunks") else chunked
        if column.kind == "scalar":
            out[column.name] = array.to_numpy(zero_copy_only=False)
        elif column.kind == "image":
            from benchmarks.suite.systems.pictures import decode_all  # noqa: PLC0415

            out[column.name] = decode_all(array.to_pylist())
        elif column.kind == "text":
            encoded = [value.encode() for value in array.to_pylist()]
            values = np.frombuffer(b"".join(encoded), np.uint8)
            out[column.name] = (values, np.cumsum([0, *map(len, encoded)]))
        elif column.kind == "vector" and "list" not in str(array.type):
            out[column.name] = _raw(chunked, column.dtype)
        else:
            values = array.flatten().to_numpy(zero_copy_only=False)
            offsets = np.asarray(array.offsets).astype(np.int64)
            is_list = column.kind == "list"
            out[column.name] = (values, offsets - offsets[0]) if is_list else values.reshape(len(array), column.width)
    return out


def _raw(chunked: Any, dtype: str) -> np.ndarray[Any, Any]:
    parts = [np.frombuffer(b"".join(chunk.to_pylist()), dtype).reshape(len(chunk), -1) for chunk in chunked.chunks]
    return np.concatenate(parts)


def open_system(job: Job) -> System:
    """Open the limit that ``limit`` names."""
    limits = {
        "pyarrow": PyarrowDecoding,
        "polars": PolarsDecoding,
        "duckdb": DuckdbScan,
        "copy": Copying,
        "jpeg": JpegDecoding,
    }
    return limits[job.options["limit"]](job)  # type: ignore[abstract]
