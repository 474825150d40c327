"""`make_reader`, `make_batch_reader` and `Reader`: rows, or row groups as batches, as Petastorm delivers them."""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from parquet_loader.common import Stream, permutation, result_of, starting_threads, warn_at_caller
from parquet_loader.errors import SystemReadError
from parquet_loader.petastorm.cache import CacheBase, LocalDiskCache, NullCache
from parquet_loader.petastorm.errors import NoDataAvailableError, PetastormMetadataError
from parquet_loader.petastorm.etl.reading.dataset import RowGroups, source_of
from parquet_loader.petastorm.etl.reading.row_group_tasks import BatchWork, RowGroupPart, RowWork, Work
from parquet_loader.petastorm.ngram import NGram
from parquet_loader.petastorm.predicates import PredicateBase
from parquet_loader.petastorm.selectors import RowGroupSelectorBase
from parquet_loader.petastorm.transform import TransformSpec, transform_schema
from parquet_loader.petastorm.unischema import Unischema

LOCAL_DISK_CACHE = "local-disk"
NULL_CACHE = "null"
# Row groups read ahead, in addition to one for each thread.
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
    hdfs_driver: str = "libhdfs3",
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: dict[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,
) -> Reader:
    """Return a reader of rows, each a namedtuple of decoded values.

    The arguments are Petastorm's; docs/petastorm.md lists the differences.
    """
    arguments = dict(locals())
    if pyarrow_serialize:
        warnings.warn("pyarrow_serialize has no effect", stacklevel=2)
    reader = _reader(dataset_url, arguments, is_batched_reader=False)
    if not reader.dataset.is_petastorm:
        warnings.warn(
            "make_reader is for Petastorm data sets, and this one carries no Unischema; "
            "make_batch_reader and parquet_loader.BatchedDataLoader read any Parquet",
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
    hdfs_driver: str = "libhdfs3",
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: dict[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,
) -> Reader:
    """Return a reader of batches, each a row group as a namedtuple of arrays.

    The arguments are Petastorm's; docs/petastorm.md lists the differences.
    """
    reader = _reader(dataset_url_or_urls, dict(locals()), is_batched_reader=True)
    if reader.dataset.is_petastorm:
        warnings.warn(
            "this is a Petastorm data set: make_batch_reader returns its columns as they are stored, "
            "and make_reader decodes them",
            stacklevel=2,
        )
    return reader


def _reader(url: Any, arguments: dict[str, Any], *, is_batched_reader: bool) -> Reader:
    """Return a `Reader` for the arguments of `make_reader` or `make_batch_reader`."""
    source, home = source_of(url, arguments["filesystem"], arguments["storage_options"])
    cache = _cache(**{name: value for name, value in arguments.items() if name.startswith("cache_")})
    passed = {name: arguments[name] for name in inspect.signature(Reader).parameters if name in arguments}
    return Reader(home, source, cache=cache, is_batched_reader=is_batched_reader, **passed)


def _cache(
    cache_type: str | None,
    cache_location: str | None,
    cache_size_limit: int | None,
    cache_row_size_estimate: int | None,
    cache_extra_settings: dict[str, Any] | None,
) -> CacheBase:
    if cache_type is None or cache_type == NULL_CACHE:
        return NullCache()
    if cache_type != LOCAL_DISK_CACHE:
        raise ValueError(f"cache_type={cache_type!r}: expected None, {NULL_CACHE!r} or {LOCAL_DISK_CACHE!r}")
    settings = cache_extra_settings or {}
    return LocalDiskCache(cache_location or "", cache_size_limit or 0, cache_row_size_estimate, **settings)


class Reader:
    """Iterates over rows, or over row groups as batches, which threads read ahead.

    The seed determines the order, and the number of threads does not. Each epoch has its own permutation of the row
    groups. The threads (``parquet_loader-petastorm``) live from the first `next` until the end, `stop`, or until the
    reader is collected. Each reads and decodes one row group at a time; at most `workers_count + 2` are held.

    Attributes:
        schema: The fields of the rows or batches, a `Unischema`.
        ngram: The requested `NGram`, or None.
        last_row_consumed: Whether the end was reached.
        stopped: Whether `stop` was called.
        num_epochs: Epochs in one iteration; None: without end.
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
            raise ValueError(f"predicate={predicate!r:.80}: expected a PredicateBase")
        self.num_epochs = num_epochs
        self.is_batched_reader = self.batched_output = is_batched_reader
        self.dataset = RowGroups(dataset_path, pyarrow_filesystem, filters)
        self.cache = cache or NullCache()
        stored, self.ngram = self._storage_schema(schema_fields, transform_spec)
        self.schema = transform_schema(stored, transform_spec) if transform_spec else stored
        if self.ngram and not self.ngram.timestamp_overlap and shuffle_row_drop_partitions > 1:
            raise NotImplementedError("NGram: timestamp_overlap=False needs shuffle_row_drop_partitions=1")
        if self.ngram and is_batched_reader:
            raise NotImplementedError("NGram is for make_reader")
        row_groups, predicate = self._chosen(predicate, rowgroup_selector, cur_shard, shard_count)
        if shard_seed is not None:
            warn_at_caller("shard_seed has no effect: a shard holds every shard_count-th row group", UserWarning)
        count = max(1, int(shuffle_row_drop_partitions))
        self._parts = [RowGroupPart(group, part, count) for group in row_groups for part in range(count)]
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
        self._next_epoch = 0
        self._returned = 0
        self._current: deque[Any] = deque()
        self._reading: _ReadAhead | None = None

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
            raise ValueError("schema_fields: expected None, an NGram, or a list of fields and regular expressions")
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
        """Return the row groups to read, and the predicate of their rows if it needs more than partitions."""
        chosen = self.dataset.surviving
        if predicate is not None:
            fields = predicate.get_fields()
            unknown = set(fields) - set(self.dataset.unischema.fields)
            if unknown or not fields:
                raise ValueError(
                    f"the predicate names {', '.join(sorted(unknown)) or 'no field'}; "
                    f"there are {', '.join(self.dataset.unischema.fields)}"
                )
            if set(fields) <= self.dataset.partition_names and not self.is_batched_reader:
                chosen = [group for group in chosen if predicate.do_include(self._partition_row(group, fields))]
                predicate = None
        if selector is not None:
            if not isinstance(selector, RowGroupSelectorBase):
                raise ValueError(f"rowgroup_selector={selector!r:.80}: expected a RowGroupSelectorBase")
            chosen = self._selected(selector, chosen)
        if cur_shard is not None or shard_count is not None:
            if not isinstance(cur_shard, int) or not isinstance(shard_count, int) or not 0 <= cur_shard < shard_count:
                raise ValueError(
                    f"cur_shard={cur_shard!r}, shard_count={shard_count!r}: "
                    "expected both, with cur_shard from 0 to shard_count - 1"
                )
            if self.dataset.snapshot.row_groups < shard_count:
                raise NoDataAvailableError(
                    f"there are {self.dataset.snapshot.row_groups} row groups, fewer than shard_count={shard_count}: "
                    "some shards would be empty"
                )
            chosen = [group for group in chosen if group % shard_count == cur_shard]
        if not chosen:
            warn_at_caller("no row group is left to read after predicate, selector and sharding", UserWarning)
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
            RuntimeError: the reader was stopped, has failed before, or was started in another process.
            StopIteration: all epochs are over.
        """
        if self.stopped:
            raise RuntimeError("this reader was stopped (its `with` block was left?); make a new one")
        while not self._current:
            if self._reading is None:
                if self.last_row_consumed:
                    raise StopIteration
                self._reading = _ReadAhead(self._jobs(), self._work, self._threads, self._ahead)
            found = self._reading.next()
            if found is None:
                self._reading = None
                self.last_row_consumed = True
                raise StopIteration
            self._current = found
        self._returned += 1
        return self._current.popleft()

    def next(self) -> Any:
        """Return the next row, n-gram or batch."""
        return self.__next__()

    def _jobs(self) -> Iterator[tuple[RowGroupPart, int]]:
        """Yield the parts of row groups in the order in which they are delivered, each with its epoch."""
        count, first = len(self._parts), self._next_epoch
        self._next_epoch += self.num_epochs or 0
        epoch = first
        while count and (self.num_epochs is None or epoch < first + self.num_epochs):
            order = permutation(count, self._seed, Stream.ROW_GROUPS, epoch) if self._shuffles else range(count)
            for number in order:
                yield self._parts[int(number)], epoch
            epoch += 1

    def reset(self) -> None:
        """Start again with the next epochs; possible only at the end.

        Raises:
            NotImplementedError: there are rows left.
        """
        if not self.last_row_consumed:
            raise NotImplementedError("a reader can be reset once all its rows were read, and this one has more")
        self.last_row_consumed = False

    def stop(self) -> None:
        """Stop reading, and release the row groups read ahead. Idempotent."""
        self.stopped = True
        self._current.clear()
        if self._reading is not None:
            self._reading.stop()

    def join(self) -> None:
        """Wait for the threads to end, after `stop`."""
        if self._reading is not None and self.stopped:
            self._reading.join()

    def cleanup_cache(self) -> None:
        """Delete a cache that was made with ``cleanup=True``; other caches stay."""
        if isinstance(self.cache, LocalDiskCache):
            self.cache.cleanup()

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Numbers of row groups that are ready, that are being read and in all, and of rows or batches returned."""
        in_flight, ready = (0, 0) if self._reading is None else self._reading.counts()
        return {
            "output_queue_size": ready,
            "items_in_flight": in_flight,
            "items_returned": self._returned,
            "row_groups": len({part.row_group for part in self._parts}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()
        self.cleanup_cache()


class _ReadAhead:
    """One iteration of a reader: threads run jobs in order, and results are taken back in the same order.

    Only the consumer's thread calls it. A job refers to the work, never to the reader, so an unreferenced reader is
    collected, and its finaliser ends the threads.

    Args:
        jobs: The jobs, in order.
        work: The function to run for each job.
        threads: Number of threads; 0 uses the consumer's own.
        ahead: The most jobs that run or whose results wait.
    """

    def __init__(self, jobs: Iterator[tuple[RowGroupPart, int]], work: Work, threads: int, ahead: int) -> None:
        self._jobs = jobs
        self._work = work
        self._ahead = ahead if threads else 0
        self._futures: deque[Future[deque[Any]]] = deque()
        self._failure: str | None = None
        self._process = os.getpid()
        self._executor = ThreadPoolExecutor(max(1, threads), thread_name_prefix="parquet_loader-petastorm")
        self._fetching = contextlib.ExitStack()
        self._fetching.enter_context(work.dataset.opened())
        self._end = weakref.finalize(self, _end, self._executor, work.dataset)

    def next(self) -> deque[Any] | None:
        """Return the result of the next job or raise its error; None at the end."""
        if not self._ahead and (job := next(self._jobs, None)) is not None:
            return self._work(*job)
        if self._ahead and os.getpid() != self._process:
            raise RuntimeError("a reader continues only in the process that started it; make one in each process")
        try:
            with starting_threads("a reader"):
                while len(self._futures) < self._ahead and (job := next(self._jobs, None)) is not None:
                    self._futures.append(self._executor.submit(self._work, *job))
        except SystemReadError as error:
            self._failure = repr(error)
            self.stop()
            raise
        if not self._futures:
            if self._failure is not None:
                raise RuntimeError(f"reading failed with {self._failure}, and rows are missing; make a new reader")
            self.stop()
            self.join()
            return None
        future = self._futures[0]
        try:
            found = result_of(future)
        except BaseException as error:
            if future.done():  # else the wait was interrupted, and the next call waits again
                self._failure = repr(error)
                self.stop()
            raise
        self._futures.popleft()
        return found

    def counts(self) -> tuple[int, int]:
        """Return the number of jobs that are not done, and of those that are."""
        ready = sum(future.done() for future in self._futures)
        return len(self._futures) - ready, ready

    def stop(self) -> None:
        """Start no more jobs, and cancel fetching."""
        self._jobs = iter(())
        self._futures.clear()
        self._end()

    def join(self) -> None:
        """Wait for the threads."""
        self._executor.shutdown(wait=True)
        self._fetching.close()


def _end(executor: ThreadPoolExecutor, dataset: RowGroups) -> None:
    executor.shutdown(wait=False, cancel_futures=True)
    dataset.cancel()
