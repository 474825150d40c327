"""`ParquetDataset`: lists a source once, and makes loaders over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from parquet_loader.collate import Batch
from parquet_loader.common import LOADER_KEYWORDS, OutputOptions, Shard, ShardOptions, explains_keywords
from parquet_loader.dataset import ListedDataset
from parquet_loader.engine import Transform
from parquet_loader.errors import UnsupportedError
from parquet_loader.loader.batched import BatchedDataLoader
from parquet_loader.loader.episodes.episode_loader import EpisodeLoader
from parquet_loader.loader.episodes.episodes import Episodes
from parquet_loader.loader.rows.row_reader import Row, RowReader
from parquet_loader.read import Filters

if TYPE_CHECKING:
    import torch

_OF_DATASET = ("schema", "columns", "split", "filesystem", "on_error", "read_options", "cache")


class ParquetDataset(ListedDataset):
    """Parquet files with a schema: lists the files and reads their footers once, for any number of loaders.

    `batches` makes a loader, for example one for training and one for validation. ``BatchedDataLoader(source, ...)``
    does both steps in one call. A data set is immutable: files that are added later do not belong to it, and a file
    that is changed later raises `SourceError` when it is read. It holds no thread and no open file, so it needs no
    ``close()``. It holds up to 64 MiB of parsed footers, which no loader's `memory_limit` counts. It can be pickled.

    ``data[i]`` is one row, and ``data.take(indices)`` a batch of rows, in the order of an unshuffled loader; see
    `rows`, and docs/rows.md. The first use keeps decoded pages from then on, up to 256 MiB.

    If `torch.distributed` is initialised, all ranks construct it together: rank 0 lists the files for all.

    Args:
        source: A file, a directory (hive partitions become columns), a glob, a URL, or a list of these. A `SampleStore`
            changes between epochs: pass it to `BatchedDataLoader`.
        schema: The schema of the columns; default: the schema stored in the files, else the rules in docs/types.md.
        columns: Names to read, in the order of the batch; the name of a struct stands for all its leaves.
        filters: Rows to read, in all loaders; `batches` takes further filters. As in `BatchedDataLoader`.
        filesystem: A `pyarrow.fs.FileSystem` to which the paths belong.
        on_error: With ``"skip"``, loaders leave out row groups that cannot be read; only with one rank. With
            ``"skip_row"``, they replace rows whose media cannot be decoded by others of the same batch.
        split: The split to read (``"train"``, ``"validation"``, ``"test"``), by the names of files and directories, or
            by a partition column ``split`` of a table; ``"all"`` reads all of them. Default: all files, which is an
            error if they belong to different splits.
        read_options: Checksums and remote requests.
        cache: A `LocalCache` for row groups of remote files, shared by the loaders.
        shard: The part of the rows that loaders read unless they have their own; with it, each rank lists the files
            itself. Default: that of this rank.

    Raises:
        SourceError: There is nothing to read, or a file is not readable Parquet.
        SchemaError: Schema or columns do not fit the files.
        ConfigurationError: An argument has the wrong kind or value.
        TypeError: There is no such keyword; the message names the equivalent.
    """

    @explains_keywords(
        LOADER_KEYWORDS
        | dict.fromkeys(_OF_DATASET, "the data set decides this: pass it to ParquetDataset(...)")
        | {"cache": "pass a LocalCache to ParquetDataset(...), and 'device' to BatchedDataLoader(data, ...)"}
    )
    def batches(
        self,
        batch_size: int,
        *,
        episodes: Episodes | None = None,
        filters: Filters | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window_rows: int | None = None,
        drop_last: bool = False,
        transform: Transform | None = None,
        transform_workers: int = 0,
        rows_out: int | None = None,
        device: str | torch.device | None = None,
        memory_limit: int | str = "1GiB",
        shard: Shard | None = None,
        num_threads: int | None = None,
        isolation: Literal["thread", "process"] = "thread",
        progress: bool = False,
        shard_options: ShardOptions | None = None,
        output_options: OutputOptions | None = None,
    ) -> BatchedDataLoader:
        """Return a loader over these files; neither the listing nor the footers are read again.

        The loader equals ``BatchedDataLoader(source, batch_size, ...)`` with all arguments together: it has the same
        order, and each accepts states of the other. Loaders of one data set are independent: they may iterate at the
        same time, and each is closed by itself.

        Args:
            batch_size: Rows of a batch.
            episodes: Makes batches of samples, each of consecutive rows of one episode; the loader is an
                `EpisodeLoader`.
            filters: Rows to read, in addition to the data set's filters, such as ``split("id", 0, 0.9)`` for training.
                Each loader counts the rows that pass its own filters.
            shuffle, seed, window_rows, drop_last, transform, transform_workers, rows_out: As in `BatchedDataLoader`.
            device, memory_limit, num_threads, isolation, progress: As in `BatchedDataLoader`.
            shard: As in `BatchedDataLoader`; default: the data set's.
            shard_options, output_options: As in `BatchedDataLoader`.

        Raises:
            SchemaError: The filters do not fit the files.
            DataError: The rows of an episode are not consecutive.
            MemoryLimitError: `memory_limit` is too small; the message names one that suffices.
            ConfigurationError: An argument has the wrong kind or value.
            TypeError: There is no such keyword; the message names the equivalent.
        """
        given = {**locals()}
        for name in ("self", "batch_size", "episodes"):
            del given[name]
        if episodes is not None:
            if transform_workers or rows_out is not None:
                raise UnsupportedError(
                    "transform_workers, rows_out: not with episodes; the threads of this process call transform, which "
                    "keeps the number of samples"
                )
            for name in ("transform_workers", "rows_out"):
                del given[name]
            return EpisodeLoader(self, batch_size, episodes=episodes, **given)
        return BatchedDataLoader(self, batch_size, **given)

    def rows(
        self,
        *,
        output_options: OutputOptions | None = None,
        cache_bytes: int | str = "256MiB",
        num_threads: int | None = None,
    ) -> RowReader:
        """Return a reader of rows by index, with memory of its own: a map-style data set.

        Args:
            output_options: A column of row numbers; the format of batches.
            cache_bytes: The most bytes of decoded pages that stay in memory between calls.
            num_threads: The most threads that one call starts; default: the processors, at most 8, or 1 in a worker
                process of a `DataLoader`. For remote files there may be a thread for each request.

        Raises:
            ConfigurationError: An argument has the wrong kind or value.
        """
        return RowReader(
            self._source,
            filters=self._filters,
            read_options=self._read_options,
            cache=self._cache,
            skips=self._on_error == "skip",
            output_options=output_options,
            cache_bytes=cache_bytes,
            num_threads=num_threads,
        )

    def take(self, indices: Any, *, output_options: OutputOptions | None = None) -> Batch:
        """Return rows as a batch; see `RowReader.take`."""
        return self._rows().take(indices, output_options=output_options)

    def __len__(self) -> int:
        """Return the number of rows that pass the filters; the first call counts them if there are filters."""
        return len(self._rows())

    def __bool__(self) -> bool:
        """Return True; else conditions would call `__len__`, which may count rows."""
        return True

    def __getitem__(self, index: Any) -> Any:
        """Return one row, or a batch for a slice or integers ``[rows]``; see `RowReader.__getitem__`."""
        return self._rows()[index]

    if TYPE_CHECKING:  # it iterates by `__getitem__`

        def __iter__(self) -> Iterator[Row]:
            """Iterate over the rows."""

    def __getitems__(self, indices: Any) -> list[Row]:
        """Return rows one by one, read together; see `RowReader.__getitems__`."""
        return self._rows().__getitems__(indices)

    def _rows(self) -> RowReader:
        """Return the reader of this data set's rows; all threads get the same one."""
        made: RowReader | None = self.__dict__.get("_own_rows")
        return self.__dict__.setdefault("_own_rows", self.rows()) if made is None else made
