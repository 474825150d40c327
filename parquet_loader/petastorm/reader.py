"""`make_reader`, `make_batch_reader` and `Reader`: rows, or row groups as batches, in the way of Petastorm."""

from __future__ import annotations

import os
import secrets
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from parquet_loader.common import Stream, permutation
from parquet_loader.petastorm.cache import CacheBase, LocalDiskCache, NullCache
from parquet_loader.petastorm.errors import NoDataAvailableError, PetastormMetadataError
from parquet_loader.petastorm.ngram import NGram
from parquet_loader.petastorm.predicates import PredicateBase
from parquet_loader.petastorm.reading.dataset import RowGroups, source_of
from parquet_loader.petastorm.reading.row_group_tasks import BatchWork, Piece, RowWork, Work
from parquet_loader.petastorm.selectors import RowGroupSelectorBase
from parquet_loader.petastorm.transform import TransformSpec, transform_schema
from parquet_loader.petastorm.unischema import Unischema

LOCAL_DISK_CACHE = "local-disk"
NULL_CACHE = "null"
# How many row groups are read ahead beyond those that threads are at.
READ_AHEAD = 2


def make_reader(
    dataset_url: str | list[str],
    schema_fields: Any = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    pyarrow_serialize: bool = False,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: RowGroupSelectorBase | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = NULL_CACHE,
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: dict[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001  (pyarrow has one driver now)
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: dict[str, Any] | None = None,
    zmq_copy_buffers: bool = True,  # noqa: ARG001  (there is no such copy)
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,  # noqa: ARG001  (it always is)
) -> Reader:
    """Return a reader of rows, each a namedtuple of decoded values; arguments as Petastorm's.

    See docs/petastorm.md for what each does, and where this differs.
    """
    if pyarrow_serialize:
        warnings.warn("pyarrow_serialize has no effect", stacklevel=2)
    source, home = source_of(dataset_url, filesystem, storage_options)
    reader = Reader(
        home,
        source,
        schema_fields=schema_fields,
        reader_pool_type=reader_pool_type,
        workers_count=workers_count,
        results_queue_size=results_queue_size,
        seed=seed,
        shuffle_rows=shuffle_rows,
        shuffle_row_groups=shuffle_row_groups,
        shuffle_row_drop_partitions=shuffle_row_drop_partitions,
        predicate=predicate,
        rowgroup_selector=rowgroup_selector,
        num_epochs=num_epochs,
        cur_shard=cur_shard,
        shard_count=shard_count,
        shard_seed=shard_seed,
        cache=_cache(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings),
        transform_spec=transform_spec,
        filters=filters,
    )
    if not reader.dataset.is_petastorm:
        warnings.warn(
            "make_reader is for Petastorm's data sets, and this one carries no Unischema; "
            "make_batch_reader, or parquet_loader.BatchedDataLoader, reads any Parquet",
            stacklevel=2,
        )
    return reader


def make_batch_reader(
    dataset_url_or_urls: str | list[str],
    schema_fields: Any = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: RowGroupSelectorBase | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = NULL_CACHE,
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: dict[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: dict[str, Any] | None = None,
    zmq_copy_buffers: bool = True,  # noqa: ARG001
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,  # noqa: ARG001
) -> Reader:
    """Return a reader of batches, each a row group as a namedtuple of arrays; arguments as Petastorm's.

    See docs/petastorm.md for what each does, and where this differs.
    """
    source, home = source_of(dataset_url_or_urls, filesystem, storage_options)
    reader = Reader(
        home,
        source,
        schema_fields=schema_fields,
        reader_pool_type=reader_pool_type,
        workers_count=workers_count,
        results_queue_size=results_queue_size,
        seed=seed,
        shuffle_rows=shuffle_rows,
        shuffle_row_groups=shuffle_row_groups,
        shuffle_row_drop_partitions=shuffle_row_drop_partitions,
        predicate=predicate,
        rowgroup_selector=rowgroup_selector,
        num_epochs=num_epochs,
        cur_shard=cur_shard,
        shard_count=shard_count,
        shard_seed=shard_seed,
        cache=_cache(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings),
        transform_spec=transform_spec,
        is_batched_reader=True,
        filters=filters,
    )
    if reader.dataset.is_petastorm:
        warnings.warn(
            "this is a data set of Petastorm's: make_batch_reader returns its columns as they are stored, "
            "and make_reader decodes them",
            stacklevel=2,
        )
    return reader


def _cache(
    cache_type: str | None,
    location: str | None,
    size_limit: int | None,
    row_size: int | None,
    settings: dict[str, Any] | None,
) -> CacheBase:
    if cache_type is None or cache_type == NULL_CACHE:
        return NullCache()
    if cache_type != LOCAL_DISK_CACHE:
        raise ValueError(f"cache_type={cache_type!r}: expected None, {NULL_CACHE!r} or {LOCAL_DISK_CACHE!r}")
    return LocalDiskCache(location or "", size_limit or 0, row_size, **settings or {})


class Reader:
    """Rows, or row groups as batches, read ahead by threads and returned in an order that the seed determines.

    Row groups come in the order of a permutation, another one each epoch, whatever the number of threads. Threads
    (``parquet_loader-petastorm``) live from the first `next` to `stop`, the end, or the reader's own end; each reads
    and decodes one row group at a time, and at most `workers_count` and two more are held.

    Attributes:
        schema: The fields of what is returned, a `Unischema`.
        ngram: The `NGram` asked for, or None.
        last_row_consumed: Whether the end was reached.
        stopped: Whether `stop` was called.
        num_epochs: Passes over the data set; None: without end.
    """

    def __init__(
        self,
        pyarrow_filesystem: Any,
        dataset_path: Any,
        schema_fields: Any = None,
        seed: int | None = None,
        shuffle_rows: bool = False,
        shuffle_row_groups: bool = True,
        shuffle_row_drop_partitions: int = 1,
        predicate: PredicateBase | None = None,
        rowgroup_selector: RowGroupSelectorBase | None = None,
        reader_pool: Any = None,
        num_epochs: int | None = 1,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        cache: CacheBase | None = None,
        worker_class: Any = None,  # noqa: ARG002  (`is_batched_reader` says which)
        transform_spec: TransformSpec | None = None,
        is_batched_reader: bool = False,
        filters: Any = None,
        shard_seed: int | None = None,
        convert_early_to_numpy: bool = False,  # noqa: ARG002
        *,
        reader_pool_type: str = "thread",
        workers_count: int = 10,
        results_queue_size: int = 50,
    ) -> None:
        if reader_pool_type not in ("thread", "process", "dummy"):
            raise ValueError(f"reader_pool_type={reader_pool_type!r}: expected 'thread', 'process' or 'dummy'")
        if num_epochs is not None and (
            isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < 1
        ):
            raise ValueError(f"num_epochs={num_epochs!r}: expected a positive int, or None")
        if predicate is not None and not isinstance(predicate, PredicateBase):
            raise ValueError("predicate is derived from PredicateBase")
        self.num_epochs = num_epochs
        self.is_batched_reader = self.batched_output = is_batched_reader
        self.dataset = RowGroups(dataset_path, pyarrow_filesystem, filters)
        self.cache = cache or NullCache()
        stored, self.ngram = self._storage_schema(schema_fields, transform_spec)
        self.schema = transform_schema(stored, transform_spec) if transform_spec else stored
        if self.ngram and not self.ngram.timestamp_overlap and shuffle_row_drop_partitions > 1:
            raise NotImplementedError("NGram: timestamp_overlap=False does not go with shuffle_row_drop_partitions > 1")
        if self.ngram and is_batched_reader:
            raise NotImplementedError("NGram is for make_reader")
        row_groups, predicate = self._chosen(predicate, rowgroup_selector, cur_shard, shard_count)
        if shard_seed is not None:
            warnings.warn("shard_seed has no effect: a shard is made of every shard_count-th row group", stacklevel=3)
        parts = max(1, int(shuffle_row_drop_partitions))
        self._pieces = [Piece(group, part, parts) for group in row_groups for part in range(parts)]
        self._seed = secrets.randbits(63) if seed is None else int(seed) % 2**64
        self._shuffles = shuffle_row_groups
        columns = dict.fromkeys(stored.fields)
        columns |= {} if predicate is None else dict.fromkeys(sorted(predicate.get_fields()))
        columns |= {} if self.ngram is None else {self.ngram.timestamp_name: None}
        work = BatchWork if is_batched_reader else RowWork
        self._work: Work = work(
            dataset=self.dataset,
            read=self.dataset.cached_reads(list(columns), self.cache),
            stored=stored,
            delivered=self.schema,
            predicate=predicate,
            transform=transform_spec,
            ngram=self.ngram,
            seed=self._seed,
            shuffle_rows=shuffle_rows,
        )
        workers = getattr(reader_pool, "workers_count", workers_count)
        self._threads = 0 if reader_pool_type == "dummy" else max(1, int(workers))
        self._ahead = max(1, min(self._threads + READ_AHEAD, int(results_queue_size)))
        self.last_row_consumed = False
        self.stopped = False
        self._passes = 0
        self._returned = 0
        self._current: deque[Any] = deque()
        self._pass: _Pass | None = None

    def _storage_schema(self, fields: Any, transform: TransformSpec | None) -> tuple[Unischema, NGram | None]:
        whole = self.dataset.unischema
        if fields is None or (isinstance(fields, list | tuple | set | dict) and not fields):
            if transform is not None and transform.selected_fields is not None and transform.func is None:
                kept = [f for name, f in whole.fields.items() if name in set(transform.selected_fields)]
                return (whole.create_schema_view(kept) if kept else whole), None
            return whole, None
        if isinstance(fields, NGram):
            fields.resolve_regex_field_names(whole)
            return whole.create_schema_view(fields.get_field_names_at_all_timesteps()), fields
        if isinstance(fields, str) or (
            not isinstance(fields, list | tuple | set | dict) and not hasattr(fields, "__iter__")
        ):
            raise ValueError("schema_fields is None, an NGram, or a list of fields and regular expressions")
        view = whole.create_schema_view(list(fields))
        if not view.fields:
            raise RuntimeError(f"no field of the data set matches {list(fields)}; there are {', '.join(whole.fields)}")
        return view, None

    def _chosen(
        self,
        predicate: PredicateBase | None,
        selector: RowGroupSelectorBase | None,
        cur_shard: int | None,
        shard_count: int | None,
    ) -> tuple[list[int], PredicateBase | None]:
        """Return the row groups that are read, and what is left of the predicate for their rows."""
        chosen = self.dataset.surviving
        if predicate is not None:
            fields = predicate.get_fields()
            unknown = set(fields) - set(self.dataset.unischema.fields)
            if unknown or not fields:
                raise ValueError(
                    f"the predicate looks at {', '.join(sorted(unknown)) or 'no field'}; "
                    f"there are {', '.join(self.dataset.unischema.fields)}"
                )
            if set(fields) <= self.dataset.partition_names and not self.is_batched_reader:
                chosen = [group for group in chosen if predicate.do_include(self._partition_row(group, fields))]
                predicate = None
        if selector is not None:
            if not isinstance(selector, RowGroupSelectorBase):
                raise ValueError("rowgroup_selector is derived from RowGroupSelectorBase")
            chosen = self._selected(selector, chosen)
        if cur_shard is not None or shard_count is not None:
            if not isinstance(cur_shard, int) or not isinstance(shard_count, int) or not 0 <= cur_shard < shard_count:
                raise ValueError("cur_shard and shard_count go together: cur_shard from 0 to shard_count - 1")
            if self.dataset.snapshot.row_groups < shard_count:
                raise NoDataAvailableError(
                    f"there are {self.dataset.snapshot.row_groups} row groups, fewer than shard_count={shard_count}: "
                    "some shards would be empty"
                )
            chosen = [group for group in chosen if group % shard_count == cur_shard]
        if not chosen:
            warnings.warn("no row group is left to read after predicate, selector and sharding", stacklevel=4)
        return chosen, predicate

    def _partition_row(self, group: int, fields: set[str]) -> dict[str, Any]:
        values = self.dataset.partition_values(group)
        types = self.dataset.unischema.fields
        return {name: None if values[name] is None else types[name].numpy_dtype(values[name]) for name in fields}

    def _selected(self, selector: RowGroupSelectorBase, chosen: list[int]) -> list[int]:
        try:
            indexes = self.dataset.indexes()
        except PetastormMetadataError as error:
            raise ValueError(str(error)) from None
        missing = set(selector.get_index_names()) - set(indexes)
        if missing:
            raise ValueError(f"there is no index {', '.join(sorted(missing))}; there are {', '.join(indexes)}")
        selected = selector.select_row_groups(indexes)
        return [group for group in chosen if group in selected]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next row, n-gram or batch.

        Raises:
            RuntimeError: the reader was stopped, has failed before, or began in another process.
            StopIteration: all epochs are over.
        """
        if self.stopped:
            raise RuntimeError("this reader was stopped (its `with` block was left?); nothing can be read from it")
        while not self._current:
            if self._pass is None:
                if self.last_row_consumed:
                    raise StopIteration
                self._pass = _Pass(self._items(), self._work, self._threads, self._ahead)
            found = self._pass.next()
            if found is None:
                self._pass = None
                self.last_row_consumed = True
                raise StopIteration
            self._current = found
        self._returned += 1
        return self._current.popleft()

    def next(self) -> Any:
        """Return the next row, n-gram or batch."""
        return self.__next__()

    def _items(self) -> Iterator[tuple[Piece, int]]:
        """Yield pieces and the epochs they belong to, in the order in which they are returned."""
        count = len(self._pieces)
        first = self._passes
        self._passes += self.num_epochs or 0
        epoch = first
        while count and (self.num_epochs is None or epoch < first + self.num_epochs):
            order = permutation(count, self._seed, Stream.ROW_GROUPS, epoch) if self._shuffles else range(count)
            for number in order:
                yield self._pieces[int(number)], epoch
            epoch += 1

    def reset(self) -> None:
        """Begin again, with the epochs that follow; only once the end was reached.

        Raises:
            NotImplementedError: there are rows left.
        """
        if not self.last_row_consumed:
            raise NotImplementedError("a reader can be reset once all its rows were read, and this one has more")
        self.last_row_consumed = False

    def stop(self) -> None:
        """Stop reading; what was read ahead is let go of. Idempotent."""
        self.stopped = True
        self._current.clear()
        if self._pass is not None:
            self._pass.stop()

    def join(self) -> None:
        """Wait for the threads to end; only after `stop`, or at the end."""
        if self._pass is not None and self.stopped:
            self._pass.join()

    def cleanup_cache(self) -> None:
        """Remove a cache that was made with ``cleanup=True``; other caches stay."""
        if isinstance(self.cache, LocalDiskCache):
            self.cache.cleanup()

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Figures: row groups read ahead and ready, being read, and rows or batches returned."""
        waiting, ready = (0, 0) if self._pass is None else self._pass.counts()
        return {
            "output_queue_size": ready,
            "items_in_flight": waiting,
            "items_returned": self._returned,
            "row_groups": len({piece.row_group for piece in self._pieces}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()
        self.cleanup_cache()


class _Pass:
    """Row groups on their way: handed to threads in their order, taken back in the same order.

    Only the thread that iterates calls it. Threads know the work, never the reader, so that one that is forgotten
    ends its threads: the executor's own finaliser sees to that.
    """

    def __init__(self, items: Iterator[tuple[Piece, int]], work: Work, threads: int, ahead: int) -> None:
        self._items = items
        self._work = work
        self._ahead = ahead
        self._futures: deque[Future[deque[Any]]] = deque()
        self._failure: str | None = None
        self._process = os.getpid()
        self._executor: ThreadPoolExecutor | None = None
        if threads:
            self._executor = ThreadPoolExecutor(threads, thread_name_prefix="parquet_loader-petastorm")
            self._finalizer = weakref.finalize(self, _shut_down, self._executor)

    def next(self) -> deque[Any] | None:
        """Return what the next row group gives, or None at the end. Raises what reading it raised."""
        if self._executor is None:
            item = next(self._items, None)
            return None if item is None else self._work(*item)
        if os.getpid() != self._process:
            raise RuntimeError("a reader goes on only in the process that it began in; make one in each worker process")
        while len(self._futures) < self._ahead:
            item = next(self._items, None)
            if item is None:
                break
            self._futures.append(self._executor.submit(self._work, *item))
        if not self._futures:
            if self._failure is not None:
                raise RuntimeError(f"reading failed with {self._failure}, and rows are missing; make a new reader")
            self.stop()
            self.join()
            return None
        future = self._futures[0]
        try:
            found = future.result()
        except BaseException as error:
            if future.done():  # else waiting for it was interrupted, and it is waited for again
                self._failure = repr(error)
                self.stop()
            raise
        self._futures.popleft()
        return found

    def counts(self) -> tuple[int, int]:
        """Return how many row groups are not read yet, and how many are."""
        ready = sum(future.done() for future in self._futures)
        return len(self._futures) - ready, ready

    def stop(self) -> None:
        """Begin no more row groups."""
        self._items = iter(())
        self._futures.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the threads."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)


def _shut_down(executor: ThreadPoolExecutor) -> None:
    executor.shutdown(wait=False, cancel_futures=True)
