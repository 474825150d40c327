"""Suggests what to use instead of an unsupported source, another library's keyword, or a missing package."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from parquet_loader.common.options import OutputOptions, ReadOptions, RemoteOptions, ShardOptions
from parquet_loader.errors import ArgumentTypeError, ConfigurationError, MissingPackageError, nearest

P = ParamSpec("P")
R = TypeVar("R")

_THREADS = "num_threads=<n> sets the number of background threads; transform_workers=<n> runs transform in processes"
_READ_AHEAD = "memory_limit=<bytes> bounds how much is read ahead"
_MANY_EPOCHS = "each `for batch in loader` is one epoch; write a loop of epochs around it"
_PINNED = (
    "batches are in pinned memory if torch sees a GPU, unless output_options=OutputOptions(pin_memory=False); "
    "device='cuda' copies them there in the background"
)
_COLLATE = "batches are made of whole columns; transform=<function of (columns, rng)> changes them"
_SAMPLING = (
    "shuffle=True, seed=<n> fix the order, shard=Shard(rank, world_size) the part; rows of a sampler's choice "
    "come from DataLoader(ParquetRows(data), sampler=...), see docs/rows.md"
)

_IN_OPTIONS = {
    field.name: f"{argument}={options.__name__}({field.name}=<value>)"
    for argument, options in (
        ("output_options", OutputOptions),
        ("read_options", ReadOptions),
        ("shard_options", ShardOptions),
    )
    for field in fields(options)
} | {
    field.name: f"read_options=ReadOptions(remote=RemoteOptions({field.name}=<value>))"
    for field in fields(RemoteOptions)
}  # fmt: skip

LOADER_KEYWORDS = _IN_OPTIONS | {
    # torch.utils.data.DataLoader
    "dataset": "the first argument is a path, a URL, or a list of them",
    "num_workers": _THREADS,
    "persistent_workers": "background threads need no keeping; leave it out",
    "prefetch_factor": _READ_AHEAD,
    "pin_memory": _PINNED,
    "pin_memory_device": _PINNED,
    "collate_fn": _COLLATE,
    "sampler": _SAMPLING,
    "batch_sampler": _SAMPLING,
    "worker_init_fn": "transform=<function of (columns, rng)> gets a seeded generator, in threads and in processes",
    "generator": "seed=<n> determines the order",
    "timeout": "read_options=ReadOptions(remote=RemoteOptions(deadline_s=<seconds>)) bounds remote reads",
    "multiprocessing_context": "isolation='process' reads in a process of its own",
    "in_order": "batches always come in the same order; leave it out",
    # Petastorm
    "dataset_url": "the first argument is a path, a URL, or a list of them",
    "dataset_url_or_urls": "the first argument is a path, a URL, or a list of them",
    "dataset_path_or_paths": "the first argument is a path, a URL, or a list of them",
    "reader": "the first argument is a path, a URL, or a list of them",
    "reader_pool_type": "isolation='thread' (the default) or isolation='process'",
    "workers_count": _THREADS,
    "results_queue_size": _READ_AHEAD,
    "num_epochs": _MANY_EPOCHS,
    "schema_fields": "columns=[<names>] selects columns",
    "shuffle_rows": "shuffle=True shuffles row groups and the rows of each window",
    "shuffle_row_groups": "shuffle=True shuffles row groups and the rows of each window",
    "shuffle_row_drop_partitions": "window_rows=<n> sets how many rows are shuffled together",
    "shuffling_queue_capacity": "window_rows=<n> sets how many rows are shuffled together",
    "shuffle_options": "window_rows=<n> sets how many rows are shuffled together",
    "predicate": "filters=<pyarrow.compute expression> selects rows",
    "rowgroup_selector": "filters=<pyarrow.compute expression> selects rows",
    "cur_shard": "shard=Shard(rank, world_size) selects a rank's rows",
    "shard_count": "shard=Shard(rank, world_size) selects a rank's rows",
    "shard_seed": "seed=<n> determines the order",
    "cache_type": "cache=LocalCache(<directory>) keeps remote row groups on a local disk",
    "cache_location": "cache=LocalCache(<directory>) keeps remote row groups on a local disk",
    "cache_size_limit": "cache=LocalCache(<directory>, <bytes>) bounds the cache",
    "transform_spec": "transform=<function of (columns, rng)> changes batches",
    "transform_fn": "transform=<function of (columns, rng)> changes batches",
    "storage_options": "filesystem=<pyarrow.fs.FileSystem> holds credentials and endpoints",
    "hdfs_driver": "filesystem=<pyarrow.fs.HadoopFileSystem>, or a URL hdfs://...",
    # Other readers of Parquet and loaders
    "epochs": _MANY_EPOCHS,
    "rank": "shard=Shard(rank, world_size) selects a rank's rows",
    "world_size": "shard=Shard(rank, world_size) selects a rank's rows",
    "num_shards": "shard=Shard(rank, world_size) selects a rank's rows",
    "fs": "filesystem=<pyarrow.fs.FileSystem>",
    "streaming": "data are never downloaded beforehand; leave it out",
    "filter": "filters=<pyarrow.compute expression> selects rows",
    "buffer_size": "window_rows=<n> sets how many rows are shuffled together",
    "shuffle_buffer": "window_rows=<n> sets how many rows are shuffled together",
    "dtype": "schema=Schema({<name>: Scalar(<type>)}) sets types",
    # Other loaders of this library
    "episodes": "EpisodeLoader(source, batch_size, episodes=Episodes(<column>)) takes it",
}
"""Replacements for keywords of other loaders that `BatchedDataLoader` does not have."""

_OF_LOADER = "ParquetDataset(source).batches(batch_size, ...) takes it"
DATASET_KEYWORDS = (
    LOADER_KEYWORDS
    | dict.fromkeys(("batch_size", "shuffle", "seed", "window_rows", "drop_last", "transform", "device"), _OF_LOADER)
    | dict.fromkeys(("memory_limit", "num_threads", "isolation", "progress"), _OF_LOADER)
    | dict.fromkeys(("transform_workers", "rows_out"), _OF_LOADER)
    | dict.fromkeys(("shard_options", "output_options"), _OF_LOADER)
)
"""Replacements for keywords of other data sets that `ParquetDataset` does not have."""

WRITER_KEYWORDS = {
    "compression": "options=WriteOptions(compression=<codec>)",
    "row_group_size": "options=WriteOptions(row_group_bytes=<bytes>)",
    "row_group_bytes": "options=WriteOptions(row_group_bytes=<bytes>)",
    "file_bytes": "options=WriteOptions(file_bytes=<bytes>)",
    "write_options": "options=WriteOptions(...)",
    "partition_by": "there are no partitioned directories; filters= selects rows by any column",
    "partition_cols": "there are no partitioned directories; filters= selects rows by any column",
    "index": "an index is not written; reset_index() makes it a column",
    "overwrite": "mode='overwrite' replaces a data set",
    "append": "mode='append' adds to a data set",
    "storage_options": "filesystem=<pyarrow.fs.FileSystem> holds credentials and endpoints",
}
"""Replacements for keywords of other writers."""


def check_keywords(
    work: Callable[..., Any], given: Mapping[str, Any], known_elsewhere: Mapping[str, str], where: str | None = None
) -> None:
    """Check that a function has all given keywords.

    Args:
        work: The function, or the `__init__` of a class.
        given: The caller's arguments by keyword.
        known_elsewhere: What to use instead of keywords of other libraries.
        where: The name of the function or class in the message; None takes it from `work`.

    Raises:
        TypeError: the function lacks a keyword; the message says what to use.
    """
    names = list(inspect.signature(work).parameters)
    for name in given:
        if name not in names:
            where = where or work.__qualname__.removesuffix(".__init__")
            if name in known_elsewhere:
                raise TypeError(f"{where}: there is no argument {name!r}; {known_elsewhere[name]}")
            raise TypeError(
                f"{where}: there is no argument {name!r}. {nearest(name, [n for n in names if n != 'self'])}"
            )


def explains_keywords(known_elsewhere: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets an unknown keyword raise as in `check_keywords`."""

    def decorated(work: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(work)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            makes = work.__name__ == "__init__" and bool(args)
            check_keywords(work, kwargs, known_elsewhere, type(args[0]).__name__ if makes else None)
            return work(*args, **kwargs)

        return checked

    return decorated


def check_source(source: Any) -> None:
    """Check that a source is a path or URL, or a list of these.

    Raises:
        ArgumentTypeError: it is something else; the message says how to read it.
    """
    if isinstance(source, str | os.PathLike):
        return
    if isinstance(source, Sequence) and not isinstance(source, bytes | bytearray | memoryview):
        other = next((entry for entry in source if not isinstance(entry, str | os.PathLike)), None)
        if other is None:
            return
        what = f"a list that holds {named(other)}"
        if isinstance(other, Mapping) or _package(other) in _FRAMES:
            raise ArgumentTypeError(f"source is {what}; {_OF_ROWS}")
        raise ArgumentTypeError(f"source is {what}; expected paths or URLs")
    raise ArgumentTypeError(f"source is {named(source)}; {_reader_of(source)}")


def check_frame(frame: Any) -> None:
    """Check that `from_pandas` can read a frame, and more than once, on this machine.

    Raises:
        ConfigurationError: it cannot; the message says how to read the frame.
    """
    if isinstance(frame, str | os.PathLike):
        raise ConfigurationError("from_pandas: the frame is a path; BatchedDataLoader(path, batch_size) reads files")
    if _package(frame) in _ELSEWHERE:
        raise ConfigurationError(f"from_pandas: the frame is {named(frame)}; {_reader_of(frame)}")
    if hasattr(frame, "__next__"):
        raise ConfigurationError("from_pandas: an iterator can be read only once; write_dataset(data, path) takes it")


_FRAMES = ("pandas", "polars", "pyarrow")
_ELSEWHERE = ("dask", "dask_expr", "distributed", "pyspark")
_OF_FRAME = "from_pandas(data, batch_size) makes a loader of it, and write_dataset(data, path) writes it as Parquet"
_OF_ROWS = "write_dataset(data, path) writes it as Parquet, then BatchedDataLoader(path, batch_size) reads that"


def _reader_of(source: Any) -> str:
    package, name = _package(source), type(source).__name__
    if (package, name) == ("parquet_loader", "SampleStore"):
        return (
            "it changes between epochs, so BatchedDataLoader(store, batch_size) reads it; for a fixed list of its "
            "files: with store.snapshot() as files: ParquetDataset([file.path for file in files])"
        )
    if (package, name) == ("parquet_loader", "ParquetDataset"):
        return "it is listed already; data.batches(batch_size, ...) makes a loader of it"
    if package in ("dask", "dask_expr", "distributed"):
        return "from_dask(data, batch_size) makes a loader of it, and write_dask(data, path) writes it as Parquet"
    if package == "pyspark":
        return "from_spark(data, batch_size) makes a loader of it, and write_spark(data, path) writes it as Parquet"
    if package == "datasets":
        return _OF_ROWS
    has_text = getattr(getattr(source, "dtype", None), "kind", None) in ("O", "U")
    if has_text and hasattr(source, "tolist"):
        return "of paths, pass a list: source.tolist(); from_pandas({'x': source}, batch_size) makes a loader of values"
    if package in ("pandas", "polars") and name == "Series":
        return f"to_frame() makes it a frame; {_OF_FRAME}"
    if (package, name) == ("polars", "LazyFrame"):
        return f"collect() makes it a frame; {_OF_FRAME}"
    if type(source).__module__.startswith("pyarrow._dataset") and hasattr(source, "files"):
        return "pass the paths of its files, BatchedDataLoader(dataset.files, batch_size)"
    if (package, name) in (("pyarrow", "ParquetFile"), ("pyarrow", "ParquetDataset")) or hasattr(source, "read"):
        return "pass the path of the file"
    if hasattr(source, "__next__") and package != "pyarrow":
        return f"of paths, pass a list: list(paths); of rows, {_OF_ROWS}"
    if (package, name) == ("pyarrow", "RecordBatchReader"):
        return _OF_ROWS
    if isinstance(source, Mapping) or package in _FRAMES or hasattr(source, "__arrow_c_stream__"):
        return _OF_FRAME
    if hasattr(source, "__array__") or hasattr(source, "__dlpack__"):
        return "from_pandas({'x': array}, batch_size) makes a loader of an array"
    if any(base.__module__.startswith("torch.utils.data") for base in type(source).__mro__):
        return (
            "write_dataset(({'x': x, 'y': y} for x, y in data), path) writes its rows as Parquet, or, if they are "
            "dicts, write_dataset((data[n] for n in range(len(data))), path); then BatchedDataLoader(path, batch_size) "
            "reads that"
        )
    return "expected a path, a URL, a list of these, or a SampleStore"


def _package(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def named(thing: Any) -> str:
    """Return the class of an object with its package, for messages: ``"a pandas.DataFrame"``."""
    if thing is None:
        return "None"
    package = _package(thing)
    name = type(thing).__name__
    full = name if package == "builtins" else f"{package}.{name}"
    return f"{'an' if full[0] in 'aeiou' else 'a'} {full}"


class NotCopied:
    """Stands for an option of torch's `DataLoader`; comparing it fails, as happens when a loader is copied as one."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        """Raise `ConfigurationError`."""
        raise ConfigurationError(
            "BatchedDataLoader: it cannot be copied as a DataLoader, as accelerate.skip_first_batches does; "
            "call loader.seek(epoch, batch), and set ignore_data_skip=True for transformers' Trainer "
            "(docs/transformers.md)"
        )


class NotIndexed:
    """Base of iterable classes: item access and `next` raise an error that says what to do instead."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        """Raise `TypeError`. Samplers, `Subset` and `random_split` of torch call this."""
        raise TypeError(
            f"{type(self).__name__}: batches have no index; iterate over the loader itself "
            "(for DataLoader(loader) write DataLoader(ParquetIterable(loader), batch_size=None), "
            "for random_split filters=split(...), for ConcatDataset a list of paths; transformers' Trainer takes the "
            "loader from its get_train_dataloader, not as train_dataset)"
        )

    def __next__(self) -> Any:
        """Raise `TypeError`."""
        raise TypeError(
            f"{type(self).__name__}: a loader is not an iterator; batches = iter(loader) begins an epoch, and "
            "next(batches) gives its next batch"
        )


@contextmanager
def needs_package(package: str, message: str) -> Iterator[None]:
    """Replace the import error of the body by `message` if `package` is not installed; other errors pass through.

    Raises:
        MissingPackageError: that package, or a module of it, is not found.
    """
    try:
        yield
    except ImportError as error:
        # If a library cannot be loaded, or a module lacks a name, the error has the path of that file.
        if (error.name or "").partition(".")[0] != package or error.path is not None:
            raise
        raise MissingPackageError(message) from error
