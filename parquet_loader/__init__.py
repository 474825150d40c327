"""Feed deep-learning training from Parquet: asynchronous, shuffled, batched into contiguous tensors.

Importing this package does not import torch: `BatchedDataLoader` and related names are resolved on first use
(PEP 562), so that jobs that write data sets need numpy and pyarrow alone. A name that needs torch can be looked at
without it, as `help` and completion do, and raises `ImportError` when it is called.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

# Before anything else imports pyarrow; which, first imported by a thread other than the main one, can hang at exit.
import parquet_loader.common.arrow_setup  # noqa: F401

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
    ReadingProcessError,
    RemoteError,
    ResumeError,
    SchemaError,
    SourceError,
    StoreFullError,
    SystemReadError,
    TransformError,
    UnfinishedCommitError,
    UnsupportedError,
    WriteError,
)
from parquet_loader.schema import (
    Audio,
    Bytes,
    Category,
    Encoded,
    Group,
    Image,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    Video,
)
from parquet_loader.schema.ragged import Ragged
from parquet_loader.write import DatasetWriter, WriteOptions, WriteSummary, write_dataset

if sys.byteorder != "little":  # raw values would be read in the wrong byte order, without an error
    raise ImportError("parquet_loader needs a little-endian processor, such as x86-64 or ARM")

if TYPE_CHECKING:
    from parquet_loader.collate import Batch, DeviceFigures
    from parquet_loader.dataset import RowGroup
    from parquet_loader.loader.batched import BatchedDataLoader, LoadedRows
    from parquet_loader.loader.episodes.episode_loader import EpisodeLoader, EpisodePlan
    from parquet_loader.loader.episodes.episodes import Episodes
    from parquet_loader.loader.episodes.lerobot import LeRobotDataset
    from parquet_loader.loader.epoch_plan import EpochPlan
    from parquet_loader.loader.from_frames import ConvertedLoader, from_dask, from_pandas, from_spark
    from parquet_loader.loader.iterable_dataset import ParquetIterable
    from parquet_loader.loader.live_source import SourceChange
    from parquet_loader.loader.mixed import MixedLoader
    from parquet_loader.loader.mixing import MixingFigures, SortingFigures
    from parquet_loader.loader.parquet_dataset import ParquetDataset
    from parquet_loader.loader.rows.map_dataset import ParquetRows
    from parquet_loader.loader.rows.row_reader import RowReader
    from parquet_loader.loader.stats import (
        CodecFigures,
        Finding,
        LoaderStats,
        ReplacedRow,
        ShuffleFigures,
        SkippedRowGroup,
        SlowColumns,
        StorageFigures,
    )
    from parquet_loader.loader.tokens.lineage import BatchLineage
    from parquet_loader.loader.tokens.token_loader import TokenLoader
    from parquet_loader.loader.tokens.token_plan import TokenPlan
    from parquet_loader.loader.tokens.tokenizing import TokenizerOptions
    from parquet_loader.plan import MixingScore
    from parquet_loader.read.cache.options import LocalCache
    from parquet_loader.read.cache.stats import CacheStats
    from parquet_loader.read.splits import split, split_rows
    from parquet_loader.source import DeltaSource, HubSource, IcebergSource, RemoteFigures
    from parquet_loader.store import (
        Arrival,
        AtMost,
        Evicted,
        HeldState,
        RecentFirst,
        Samplers,
        SamplerStatus,
        SampleStore,
        StoredFile,
        StoreOptions,
        StoreSettings,
        StoreStatus,
        StoreWriter,
        WeightedStore,
        WrittenRows,
    )
    from parquet_loader.write.dask import write_dask
    from parquet_loader.write.jobs.job import JobSummary
    from parquet_loader.write.jobs.job_runner import package_archive
    from parquet_loader.write.rewrite import ColumnReport, RewriteReport, rewrite_dataset
    from parquet_loader.write.spark import write_spark

__version__ = "0.1.0"

_MODULES = {
    "parquet_loader.collate": ("Batch", "DeviceFigures"),
    "parquet_loader.dataset": ("RowGroup",),
    "parquet_loader.loader.batched": ("BatchedDataLoader", "LoadedRows"),
    "parquet_loader.loader.episodes.episode_loader": ("EpisodeLoader", "EpisodePlan"),
    "parquet_loader.loader.episodes.episodes": ("Episodes",),
    "parquet_loader.loader.episodes.lerobot": ("LeRobotDataset",),
    "parquet_loader.loader.epoch_plan": ("EpochPlan",),
    "parquet_loader.loader.from_frames": ("ConvertedLoader", "from_dask", "from_pandas", "from_spark"),
    "parquet_loader.loader.iterable_dataset": ("ParquetIterable",),
    "parquet_loader.loader.live_source": ("SourceChange",),
    "parquet_loader.loader.rows.map_dataset": ("ParquetRows",),
    "parquet_loader.loader.mixed": ("MixedLoader",),
    "parquet_loader.loader.mixing": ("MixingFigures", "SortingFigures"),
    "parquet_loader.loader.parquet_dataset": ("ParquetDataset",),
    "parquet_loader.loader.rows.row_reader": ("RowReader",),
    "parquet_loader.loader.stats": (
        "CodecFigures",
        "Finding",
        "LoaderStats",
        "ReplacedRow",
        "ShuffleFigures",
        "SkippedRowGroup",
        "SlowColumns",
        "StorageFigures",
    ),
    "parquet_loader.loader.tokens.lineage": ("BatchLineage",),
    "parquet_loader.loader.tokens.token_loader": ("TokenLoader",),
    "parquet_loader.loader.tokens.token_plan": ("TokenPlan",),
    "parquet_loader.loader.tokens.tokenizing": ("TokenizerOptions",),
    "parquet_loader.plan": ("MixingScore",),
    "parquet_loader.read.cache.options": ("LocalCache",),
    "parquet_loader.read.cache.stats": ("CacheStats",),
    "parquet_loader.read.splits": ("split", "split_rows"),
    "parquet_loader.source": ("DeltaSource", "HubSource", "IcebergSource", "RemoteFigures"),
    "parquet_loader.store": (
        "Arrival",
        "AtMost",
        "Evicted",
        "HeldState",
        "RecentFirst",
        "SampleStore",
        "Samplers",
        "SamplerStatus",
        "StoreOptions",
        "StoreSettings",
        "StoreStatus",
        "StoreWriter",
        "StoredFile",
        "WeightedStore",
        "WrittenRows",
    ),
    "parquet_loader.write.dask": ("write_dask",),
    "parquet_loader.write.jobs.job": ("JobSummary",),
    "parquet_loader.write.jobs.job_runner": ("package_archive",),
    "parquet_loader.write.rewrite": ("ColumnReport", "RewriteReport", "rewrite_dataset"),
    "parquet_loader.write.spark": ("write_spark",),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}
_NEED_TORCH = {"ParquetIterable", "ParquetRows"}

__all__ = [
    "ArgumentTypeError",
    "Arrival",
    "AtMost",
    "Audio",
    "Batch",
    "BatchLineage",
    "BatchedDataLoader",
    "Bytes",
    "CacheStats",
    "Category",
    "CodecFigures",
    "ColumnReport",
    "ConfigurationError",
    "ConvertedLoader",
    "DataError",
    "DatasetWriter",
    "DeltaSource",
    "DeviceFigures",
    "Encoded",
    "EpisodeLoader",
    "EpisodePlan",
    "Episodes",
    "EpochPlan",
    "Evicted",
    "Finding",
    "Group",
    "HeldState",
    "HubSource",
    "IcebergSource",
    "Image",
    "JobSummary",
    "LeRobotDataset",
    "LoadedRows",
    "LoaderStateError",
    "LoaderStats",
    "LocalCache",
    "MemoryLimitError",
    "MissingDeviceError",
    "MissingPackageError",
    "MixedLoader",
    "MixingFigures",
    "MixingScore",
    "OpenFilesError",
    "OutOfMemoryError",
    "OutputOptions",
    "ParquetDataset",
    "ParquetIterable",
    "ParquetLoaderDeprecationWarning",
    "ParquetLoaderError",
    "ParquetRows",
    "PerformanceWarning",
    "Ragged",
    "RaggedList",
    "ReadOptions",
    "ReadingProcessError",
    "RecentFirst",
    "RemoteError",
    "RemoteFigures",
    "RemoteOptions",
    "ReplacedRow",
    "ResumeError",
    "RewriteReport",
    "RowGroup",
    "RowReader",
    "SampleStore",
    "SamplerStatus",
    "Samplers",
    "Scalar",
    "Schema",
    "SchemaError",
    "Shard",
    "ShardOptions",
    "ShuffleFigures",
    "SkippedRowGroup",
    "SlowColumns",
    "SortingFigures",
    "SourceChange",
    "SourceError",
    "StorageFigures",
    "StoreFullError",
    "StoreOptions",
    "StoreSettings",
    "StoreStatus",
    "StoreWriter",
    "StoredFile",
    "SystemReadError",
    "Tensor",
    "Text",
    "TokenLoader",
    "TokenPlan",
    "TokenizerOptions",
    "TransformError",
    "UnfinishedCommitError",
    "UnsupportedError",
    "Video",
    "WeightedStore",
    "WriteError",
    "WriteOptions",
    "WriteSummary",
    "WrittenRows",
    "from_dask",
    "from_pandas",
    "from_spark",
    "package_archive",
    "rewrite_dataset",
    "split",
    "split_rows",
    "write_dask",
    "write_dataset",
    "write_spark",
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


def load_ipython_extension(shell: Any) -> None:
    """Let a notebook show batches as tables with images and curves; ``%load_ext parquet_loader`` calls this."""
    importlib.import_module("parquet_loader.loader.sheet.notebook").register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Let a notebook show batches as other dicts; ``%unload_ext parquet_loader`` calls this."""
    importlib.import_module("parquet_loader.loader.sheet.notebook").unregister(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


@functools.cache
def _stand_in(name: str, reason: str) -> type:
    """Return a class that can be looked at, and raises when it is called; not kept, so that installing torch helps."""
    message = f"{name} needs torch, which cannot be imported ({reason}); pip install 'torch-parquet-loader[torch]'"

    def refuse(_: type, *__: Any, **___: Any) -> NoReturn:
        raise ImportError(message)

    return type(name, (), {"__new__": refuse, "__doc__": f"{message}.", "__module__": __name__})
