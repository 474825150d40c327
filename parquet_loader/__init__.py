"""Feed deep-learning training from Parquet: asynchronous, shuffled, batched into contiguous tensors.

Importing this package does not import torch: `BatchedDataLoader` and related names are resolved on first use
(PEP 562), so that jobs that write data sets need numpy and pyarrow alone. A name that needs torch can be looked at
without it, as `help` and completion do, and raises `ImportError` when it is called.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

# Before anything else imports pyarrow; which, first imported by a thread other than the main one, can hang at exit.
import parquet_loader.common.arrow_memory  # noqa: F401

# isort: split
from parquet_loader.common.distributed import Shard
from parquet_loader.common.options import OutputOptions, ReadOptions, RemoteOptions, ShardOptions
from parquet_loader.errors import (
    ArgumentTypeError,
    ConfigurationError,
    DataError,
    LoaderStateError,
    MemoryLimitError,
    MissingDeviceError,
    MissingPackageError,
    OpenFilesError,
    OutOfMemoryError,
    ParquetLoaderDeprecationWarning,
    ParquetLoaderError,
    PerformanceWarning,
    RemoteError,
    ResumeError,
    SchemaError,
    SourceError,
    StoreFullError,
    SystemReadError,
    TransformError,
    UnsupportedError,
    WriteError,
)
from parquet_loader.schema import Bytes, Category, Encoded, Group, Image, RaggedList, Scalar, Schema, Tensor, Text
from parquet_loader.schema.ragged import Ragged
from parquet_loader.write import DatasetWriter, WriteOptions, write_dataset

if TYPE_CHECKING:
    import torch

    from parquet_loader.dataset import RowGroup
    from parquet_loader.loader.batched import BatchedDataLoader
    from parquet_loader.loader.epoch_plan import EpochPlan
    from parquet_loader.loader.from_frames import ConvertedLoader, from_dask, from_pandas, from_spark
    from parquet_loader.loader.iterable_dataset import ParquetIterable
    from parquet_loader.loader.mixed import MixedLoader
    from parquet_loader.loader.parquet_dataset import ParquetDataset
    from parquet_loader.loader.stats import LoaderStats
    from parquet_loader.read.cache.options import LocalCache
    from parquet_loader.read.cache.stats import CacheStats
    from parquet_loader.read.splits import split, split_rows
    from parquet_loader.store import SampleStore, StoreOptions
    from parquet_loader.write.rewrite import RewriteReport, rewrite_dataset

    Batch: TypeAlias = dict[str, torch.Tensor | Ragged]
    """One batch, for annotations: a tensor or a `Ragged` by the column's name."""
else:
    Batch = dict[str, Any]

__version__ = "0.1.0"

_LAZY = {
    "CacheStats": "parquet_loader.read.cache.stats",
    "LocalCache": "parquet_loader.read.cache.options",
    "split": "parquet_loader.read.splits",
    "split_rows": "parquet_loader.read.splits",
    "BatchedDataLoader": "parquet_loader.loader.batched",
    "ConvertedLoader": "parquet_loader.loader.from_frames",
    "EpochPlan": "parquet_loader.loader.epoch_plan",
    "LoaderStats": "parquet_loader.loader.stats",
    "MixedLoader": "parquet_loader.loader.mixed",
    "ParquetDataset": "parquet_loader.loader.parquet_dataset",
    "ParquetIterable": "parquet_loader.loader.iterable_dataset",
    "RewriteReport": "parquet_loader.write.rewrite",
    "RowGroup": "parquet_loader.dataset",
    "from_dask": "parquet_loader.loader.from_frames",
    "from_pandas": "parquet_loader.loader.from_frames",
    "from_spark": "parquet_loader.loader.from_frames",
    "rewrite_dataset": "parquet_loader.write.rewrite",
    "SampleStore": "parquet_loader.store",
    "StoreOptions": "parquet_loader.store",
}
_NEED_TORCH = {"ParquetIterable"}

__all__ = [
    "ArgumentTypeError",
    "Batch",
    "BatchedDataLoader",
    "Bytes",
    "CacheStats",
    "Category",
    "ConfigurationError",
    "ConvertedLoader",
    "DataError",
    "DatasetWriter",
    "Encoded",
    "EpochPlan",
    "Group",
    "Image",
    "LoaderStateError",
    "LoaderStats",
    "LocalCache",
    "MemoryLimitError",
    "MissingDeviceError",
    "MissingPackageError",
    "MixedLoader",
    "OpenFilesError",
    "OutOfMemoryError",
    "OutputOptions",
    "ParquetDataset",
    "ParquetIterable",
    "ParquetLoaderDeprecationWarning",
    "ParquetLoaderError",
    "PerformanceWarning",
    "Ragged",
    "RaggedList",
    "ReadOptions",
    "RemoteError",
    "RemoteOptions",
    "ResumeError",
    "RewriteReport",
    "RowGroup",
    "SampleStore",
    "Scalar",
    "Schema",
    "SchemaError",
    "Shard",
    "ShardOptions",
    "SourceError",
    "StoreFullError",
    "StoreOptions",
    "SystemReadError",
    "Tensor",
    "Text",
    "TransformError",
    "UnsupportedError",
    "WriteError",
    "WriteOptions",
    "from_dask",
    "from_pandas",
    "from_spark",
    "rewrite_dataset",
    "split",
    "split_rows",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    except (ImportError, OSError) as error:  # an OSError: torch is installed, and one of its libraries is not
        if name not in _NEED_TORCH:
            raise
        return _stand_in(name, str(error))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


@functools.cache
def _stand_in(name: str, reason: str) -> type:
    """Return a class that can be looked at, and raises when it is called; not kept, so that installing torch helps."""
    message = f"{name} needs torch, which cannot be imported ({reason}); pip install 'torch-parquet-loader[torch]'"

    def refuse(_: type, *__: Any, **___: Any) -> NoReturn:
        raise ImportError(message)

    return type(name, (), {"__new__": refuse, "__doc__": f"{message}.", "__module__": __name__})
