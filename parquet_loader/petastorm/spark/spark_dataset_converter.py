"""`make_spark_converter`: writes a Spark data frame as Parquet once, for training to read."""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.fs as pafs

from parquet_loader.common import resolve
from parquet_loader.errors import ConfigurationError
from parquet_loader.petastorm.reader import make_batch_reader

logger = logging.getLogger(__name__)

DEFAULT_ROW_GROUP_SIZE_BYTES = 32 * 2**20
_COMPRESSIONS = ("uncompressed", "bzip2", "gzip", "lz4", "snappy", "deflate", "zstd")
_RANKS = (("HOROVOD_RANK", "HOROVOD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


def _delete_directory(dataset_url: str) -> None:
    filesystem, path = resolve(_plain(dataset_url))
    if filesystem.get_file_info(path).type == pafs.FileType.Directory:
        filesystem.delete_dir(path)


_delete_handler: Callable[[str], None] = _delete_directory


def register_delete_dir_handler(handler: Callable[[str], None] | None) -> None:
    """Set the function that deletes a directory by its URL; None: the default, which uses the URL's filesystem."""
    global _delete_handler  # one for each process, as in Petastorm
    _delete_handler = handler or _delete_directory


def _plain(url: str) -> str:
    """Return a URL in the form that pyarrow accepts: Spark writes local URLs with one slash."""
    if url.startswith("file:/") and not url.startswith("file://"):
        return unquote("file://" + url.removeprefix("file:"))
    return url


@dataclass(frozen=True, slots=True)
class _Cached:
    """A written data frame: its plan (not the frame itself), the options of writing, and the location."""

    plan: Any
    options: tuple[Any, ...]
    url: str


@dataclass(slots=True)
class _Cache:
    """The data frames written by this process."""

    lock: Lock = field(default_factory=Lock)
    entries: list[_Cached] = field(default_factory=list)


_cache = _Cache()


class SparkDatasetConverter:
    """A data frame stored as Parquet, which torch or TensorFlow reads in this or other processes.

    Attributes:
        cache_dir_url: Its directory.
        file_urls: Its files.
        dataset_size: Its number of rows.
    """

    PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"

    def __init__(self, cache_dir_url: str, file_urls: list[str], dataset_size: int) -> None:
        self.cache_dir_url = cache_dir_url
        self.file_urls = file_urls
        self.dataset_size = dataset_size

    def __len__(self) -> int:
        return self.dataset_size

    @contextlib.contextmanager
    def make_torch_dataloader(
        self,
        batch_size: int = 32,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> Iterator[Any]:
        """Return a torch loader of the rows as a context manager, which closes the reader.

        Args:
            batch_size: Rows of a batch.
            num_epochs: Number of epochs; None: without end.
            workers_count: Number of reading threads; None: 4.
            shuffling_queue_capacity: As in `pytorch.DataLoader`.
            data_loader_fn: Makes the loader; None: `pytorch.DataLoader`.
            petastorm_reader_kwargs: Further arguments of `make_batch_reader`.
        """
        if data_loader_fn is None:
            from parquet_loader.petastorm.pytorch import DataLoader  # noqa: PLC0415  (loads torch, so only when used)

            data_loader_fn = DataLoader
        with self._reader(num_epochs, workers_count, petastorm_reader_kwargs) as reader:
            yield data_loader_fn(
                reader=reader, batch_size=batch_size, shuffling_queue_capacity=shuffling_queue_capacity
            )

    @contextlib.contextmanager
    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> Iterator[Any]:
        """Return a `tf.data.Dataset` of batches as a context manager, which closes the reader.

        Args:
            batch_size: Rows of a batch; None: 32.
            prefetch: Batches to prefetch; None: TensorFlow decides.
            num_epochs, workers_count, petastorm_reader_kwargs: As in `make_torch_dataloader`.
            shuffling_queue_capacity: Size of TensorFlow's shuffle buffer; None: no shuffling.
        """
        import tensorflow.compat.v1 as tf  # noqa: PLC0415

        from parquet_loader.petastorm.tf_utils import make_petastorm_dataset  # noqa: PLC0415

        with self._reader(num_epochs, workers_count, petastorm_reader_kwargs) as reader:
            dataset = make_petastorm_dataset(reader).flat_map(tf.data.Dataset.from_tensor_slices)
            if shuffling_queue_capacity:
                dataset = dataset.shuffle(shuffling_queue_capacity)
            yield dataset.batch(batch_size or 32).prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)

    def _reader(self, num_epochs: int | None, workers_count: int | None, options: dict[str, Any]) -> Any:
        _warn_of_other_rank(options)
        threads = 4 if workers_count is None else workers_count
        return make_batch_reader(self.file_urls, num_epochs=num_epochs, workers_count=threads, **options)

    def delete(self) -> None:
        """Delete the files."""
        with _cache.lock:
            _cache.entries[:] = [entry for entry in _cache.entries if entry.url != self.cache_dir_url]
        _delete_handler(self.cache_dir_url)


def _warn_of_other_rank(options: dict[str, Any]) -> None:
    for rank, size in _RANKS:
        if rank in os.environ and size in os.environ:
            expected = int(os.environ[rank]), int(os.environ[size])
            if (options.get("cur_shard"), options.get("shard_count")) != expected:
                logger.warning(
                    "cur_shard=%s and shard_count=%s are not %s and %s of the environment: every rank reads other rows "
                    "than Horovod expects",
                    options.get("cur_shard"),
                    options.get("shard_count"),
                    *expected,
                )
            return


def make_spark_converter(
    df: Any,
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
) -> SparkDatasetConverter:
    """Write a data frame below the directory of ``petastorm.spark.converter.parentCacheDirUrl``, once for each plan.

    `SparkDatasetConverter.delete`, or the end of the process, deletes the files.

    Args:
        df: The data frame, or the URL of an existing directory of Parquet files.
        parquet_row_group_size_bytes: Size of a row group.
        compression_codec: Spark's name of the compression; None: no compression.
        dtype: ``"float32"`` or ``"float64"``: cast floats to this type, also in arrays and vectors; None: do not cast.

    Raises:
        ConfigurationError: the directory is not configured, or an argument has another value.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415

    spark = SparkSession.builder.getOrCreate()
    parent = spark.conf.get(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, None)
    if not parent or not urlparse(parent).scheme:
        raise ConfigurationError(
            f"set the Spark configuration {SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF} to a URL with its scheme, "
            f"such as file:///tmp/cache; it is {parent!r}"
        )
    if dtype not in (None, "float32", "float64"):
        raise ConfigurationError(f"dtype={dtype!r}: expected 'float32', 'float64' or None")
    codec = (compression_codec or "uncompressed").lower()
    if codec not in _COMPRESSIONS:
        raise ConfigurationError(f"compression_codec={compression_codec!r}: expected one of {', '.join(_COMPRESSIONS)}")
    if isinstance(df, str):
        url = df
    else:
        url = _written(spark, df, parent.rstrip("/"), (parquet_row_group_size_bytes, codec, dtype, parent))
    frame = spark.read.parquet(url)
    files = [_plain(str(name)) for name in frame._jdf.inputFiles()]
    return SparkDatasetConverter(url, sorted(files), frame.count())


def _written(spark: Any, df: Any, parent: str, options: tuple[Any, ...]) -> str:
    with _cache.lock:
        plan = df._jdf.queryExecution().analyzed()
        for entry in _cache.entries:
            if entry.options == options and entry.plan.sameResult(plan):
                return entry.url
        row_group_bytes, codec, dtype, _ = options
        now = dt.datetime.now(dt.UTC).strftime("%Y%m%d%H%M%S")
        url = f"{parent}/{now}-appid-{spark.sparkContext.applicationId}-{uuid.uuid4()}"
        writer = _as_dtype(df, dtype).write.option("compression", codec)
        writer.option("parquet.block.size", row_group_bytes).parquet(url)
        atexit.register(_delete_at_exit, url)
        _cache.entries.append(_Cached(plan, options, url))
        return url


def _delete_at_exit(url: str) -> None:
    try:
        _delete_handler(url)
    except Exception as error:
        logger.warning("%s was not deleted: %s", url, error)


def _as_dtype(df: Any, dtype: str | None) -> Any:
    """Return the frame with vectors as arrays, and floats of the given width."""
    from pyspark.sql.types import ArrayType, DoubleType, FloatType  # noqa: PLC0415

    for column in df.schema:
        if type(column.dataType).__name__ == "VectorUDT":
            from pyspark.ml.functions import vector_to_array  # noqa: PLC0415

            df = df.withColumn(column.name, vector_to_array(df[column.name], dtype or "float64"))
    if dtype is None:
        return df
    other, wanted = (DoubleType, FloatType) if dtype == "float32" else (FloatType, DoubleType)
    for column in df.schema:
        if isinstance(column.dataType, other):
            df = df.withColumn(column.name, df[column.name].cast(wanted()))
        elif isinstance(column.dataType, ArrayType) and isinstance(column.dataType.elementType, other):
            df = df.withColumn(column.name, df[column.name].cast(ArrayType(wanted())))
    return df
