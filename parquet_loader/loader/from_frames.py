"""`from_pandas`, `from_dask`, `from_spark`: write a frame to a cache directory, and return a loader of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from parquet_loader.common import LOADER_KEYWORDS, check_frame, check_keywords
from parquet_loader.errors import DataError, SchemaError
from parquet_loader.loader.batched import BatchedDataLoader
from parquet_loader.loader.frames import Kept, keep
from parquet_loader.loader.frames.fingerprint import dask_key, digest, pandas_key, spark_key
from parquet_loader.schema import Schema, iter_tables
from parquet_loader.write import WriteJob, WriteOptions, write_partition
from parquet_loader.write.dask import write_dask
from parquet_loader.write.spark import write_spark


class ConvertedLoader(BatchedDataLoader):
    """A `BatchedDataLoader` of a frame in a cache directory.

    Attributes:
        path: The data set in the cache directory.
    """

    def __init__(self, kept: Kept, batch_size: int, **loader_options: Any) -> None:
        super().__init__(kept.path, batch_size, **loader_options)
        self.path = kept.path
        self._kept = kept

    def delete(self) -> bool:
        """Close the loader and delete the data set, unless another process uses it; return whether it was deleted.

        Other loaders of the same frame in this process cannot be used afterwards.
        """
        self.close()
        return self._kept.delete()


def from_pandas(
    frame: Any,
    batch_size: int,
    *,
    schema: Schema | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    keep_files: bool = False,
    write_options: WriteOptions | None = None,
    **loader_options: Any,
) -> ConvertedLoader:
    """Return a loader of a pandas frame, or of any batch that `DatasetWriter.write` accepts.

    The frame is written once: frames of equal content share the files, and other processes wait while they are written.
    The files are deleted by `ConvertedLoader.delete`, or when the last process that uses them ends; the next call
    deletes the files of killed processes. Files are named by their content, so `split_rows` puts a row into the same
    split in every process, and another process can continue from a state.

    Args:
        frame: The rows; without a schema, at least one. Not an iterator, because it could be read only once.
        batch_size: As in `BatchedDataLoader`, like all keywords except the following:
        schema: The schema of the columns; None to infer it.
        cache_dir: A local directory for frames; default ``~/.cache/parquet_loader/frames``.
        keep_files: Whether to keep the files when the process ends, for later processes.
        write_options: Sizes and codec.

    Raises:
        DataError, SchemaError, WriteError: As in `write_dataset`.
    """
    check_frame(frame)
    frame = _held(frame)
    content, rows = pandas_key(frame, schema)
    key = digest("pandas", content, schema and schema.to_json(), write_options)

    def write(path: str) -> object:
        known = schema
        if known is None or known.extra == "infer":
            known = Schema.from_arrow(next(iter_tables(frame, schema)).schema)
        with WriteJob(path, known, options=write_options, file_id=key) as job:
            files = write_partition(job.spec, 0, frame)
            if (written := sum(file.rows for file in files)) != rows:
                raise DataError(
                    f"from_pandas: the frame had {rows} rows when it was first read and {written} when it was written; "
                    "pass a frame that does not change and can be read twice"
                )
            return job.commit(files)

    return _converted(key, write, batch_size, cache_dir, keep_files, loader_options)


def from_dask(
    data: Any,
    batch_size: int,
    *,
    schema: Schema | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    keep_files: bool = False,
    write_options: WriteOptions | None = None,
    scheduler: Any = None,
    **loader_options: Any,
) -> ConvertedLoader:
    """Return a loader of a Dask collection, computed and written once; see `from_pandas` and `write_dask`.

    Two collections are the same if Dask gives them the same token. With workers on other machines, `cache_dir` has to
    be on shared storage. A collection that is written again gets other file names, on which `split_rows` depends. For
    the same split in every run, filter by `split` of a column.
    """
    key = digest("dask", dask_key(data), schema and schema.to_json(), write_options)

    def write(path: str) -> object:
        return write_dask(data, path, schema, options=write_options, scheduler=scheduler)

    return _converted(key, write, batch_size, cache_dir, keep_files, loader_options)


def from_spark(
    df: Any,
    batch_size: int,
    *,
    schema: Schema | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    keep_files: bool = False,
    write_options: WriteOptions | None = None,
    **loader_options: Any,
) -> ConvertedLoader:
    """Return a loader of a Spark DataFrame, computed and written once; see `from_pandas` and `write_spark`.

    Two frames are the same if their analysed plans are equal and the files that they read have not changed. Plans with
    data or functions of their session (Python rows, user-defined functions) are the same only within the session. With
    executors on other machines, `cache_dir` has to be on shared storage. As with `from_dask`, `split` of a column gives
    the same split in every run, but `split_rows` does not.
    """
    key = digest("spark", spark_key(df), schema and schema.to_json(), write_options)

    def write(path: str) -> object:
        return write_spark(df, path, schema, options=write_options)

    return _converted(key, write, batch_size, cache_dir, keep_files, loader_options)


def _held(frame: Any) -> Any:
    """Return a frame that can be read twice; Arrow streams of other libraries are read into a table."""
    own = isinstance(frame, pa.Table) or type(frame).__module__.partition(".")[0] in ("pandas", "polars")
    if own or not hasattr(frame, "__arrow_c_stream__"):
        return frame
    try:
        return pa.RecordBatchReader.from_stream(frame).read_all()
    except MemoryError:
        raise  # a lack of memory does not mean that the frame is wrong
    except (pa.ArrowException, ValueError) as error:
        raise SchemaError(f"from_pandas: {type(frame).__name__} is not a table: {str(error).splitlines()[0]}") from None


def _converted(
    key: str,
    write: Callable[[str], object],
    batch_size: int,
    cache_dir: str | os.PathLike[str] | None,
    keep_files: bool,
    loader_options: dict[str, Any],
) -> ConvertedLoader:
    check_keywords(BatchedDataLoader.__init__, loader_options, LOADER_KEYWORDS)
    return ConvertedLoader(keep(cache_dir, key, write, forever=keep_files), batch_size, **loader_options)
