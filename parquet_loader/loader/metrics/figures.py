"""The figures of a loader as a flat dict of numbers, and the identity of the rows that it reads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from parquet_loader.errors import ConfigurationError, LoaderStateError
from parquet_loader.loader.stats import LoaderStats


@runtime_checkable
class Measured(Protocol):
    """A loader with figures, such as `BatchedDataLoader`."""

    def stats(self) -> LoaderStats:
        """Return the figures of the running epoch, or else of the last one."""

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position, and everything that its order depends on."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a loader has.

    Attributes:
        name: Its name, which ends in its unit.
        help: A description.
        value: Returns its value; None if the loader has none.
        is_total: Whether it only grows within an epoch.
    """

    name: str
    help: str
    value: Callable[[LoaderStats], float | None]
    is_total: bool = False


METRICS: tuple[Metric, ...] = (
    Metric("epoch", "Number of the epoch.", lambda s: s.epoch),
    Metric("rows", "Rows delivered in this epoch.", lambda s: s.rows, is_total=True),
    Metric("batches", "Batches delivered in this epoch.", lambda s: s.batches, is_total=True),
    Metric("seconds", "Time since the epoch began, or its length.", lambda s: s.seconds, is_total=True),
    Metric("wait_seconds", "Time that the training loop waited for batches.", lambda s: s.wait_s, is_total=True),
    Metric("first_batch_seconds", "Wait for the first batch.", lambda s: s.first_batch_s),
    Metric("longest_wait_seconds", "Longest wait for a later batch.", lambda s: s.longest_wait_s),
    Metric("idle_seconds", "Time of all workers without a job.", lambda s: s.idle_s, is_total=True),
    Metric("read_cpu_seconds", "Processor time of reading and decoding.", lambda s: s.cpu_s["read"], is_total=True),
    Metric("permute_cpu_seconds", "Processor time of permutations.", lambda s: s.cpu_s["permute"], is_total=True),
    Metric("gather_cpu_seconds", "Processor time of ordering rows.", lambda s: s.cpu_s["gather"], is_total=True),
    Metric("process_cpu_seconds", "Processor time of images and transform.", lambda s: s.cpu_s["process"],
           is_total=True),
    Metric("blocked_seconds", "Time of jobs without a processor.", lambda s: sum(s.blocked_s.values()), is_total=True),
    Metric("read_bytes", "Stored bytes of the column chunks read.", lambda s: s.bytes_read, is_total=True),
    Metric("disk_bytes", "Of these, bytes from a disk or a store.", lambda s: s.bytes_from_disk, is_total=True),
    Metric("row_groups", "Row groups read to their end.", lambda s: s.row_groups, is_total=True),
    Metric("skipped_row_groups", "Row groups left out because of errors.", lambda s: len(s.skipped_row_groups),
           is_total=True),
    Metric("replaced_rows", "Rows replaced because their media are damaged.", lambda s: s.replaced_rows, is_total=True),
    Metric("held_bytes", "Memory held now.", lambda s: s.held_bytes),
    Metric("peak_bytes", "Most memory held in this epoch.", lambda s: s.peak_bytes),
    Metric("memory_limit_bytes", "memory_limit.", lambda s: s.memory_limit_bytes),
    Metric("threads", "Workers.", lambda s: s.num_threads),
    Metric("rows_per_second", "Rows delivered per second of this epoch.", lambda s: s.rows_per_s),
    Metric("wait_ratio", "Share of the epoch that the training loop waited.", lambda s: s.wait_share),
    Metric("requests", "Requests to a store, with retries.", lambda s: None if s.remote is None else s.remote.requests,
           is_total=True),
    Metric("fetched_bytes", "Bytes from a store.", lambda s: None if s.remote is None else s.remote.fetched_bytes,
           is_total=True),
    Metric("retries", "Requests that were repeated.", lambda s: None if s.remote is None else s.remote.retries,
           is_total=True),
    Metric("cache_hits", "Row groups found in the local cache.", lambda s: None if s.cache is None else s.cache.hits,
           is_total=True),
    Metric("cache_misses", "Row groups not found there.", lambda s: None if s.cache is None else s.cache.misses,
           is_total=True),
    Metric("new_rows", "Rows that the source gained.", lambda s: None if s.growth is None else s.growth.new_rows),
    Metric("gone_rows", "Rows that the source lost.", lambda s: None if s.growth is None else s.growth.gone_rows),
)  # fmt: skip


def metrics_of(stats: LoaderStats) -> dict[str, float]:
    """Return the numbers of an epoch by name; those that the loader does not have are left out."""
    found = ((metric.name, metric.value(stats)) for metric in METRICS)
    return {name: float(value) for name, value in found if value is not None}


def lineage_of(loader: Measured) -> dict[str, Any]:
    """Return JSON values that identify the rows of a run and their order.

    They are the loader's state without its position: digests of files, rows and schema, the version of a table, columns
    and filters, the seed, and the number of ranks.
    """
    state = loader.state_dict()
    return {name: value for name, value in state.items() if name not in ("epoch", "batch", "left_out", "snapshot")}


def loaders_by_name(where: str, loaders: Mapping[str, Measured]) -> weakref.WeakValueDictionary[str, Any]:
    """Return loaders by name, without keeping them alive.

    Raises:
        ConfigurationError: There is no loader, a name is not text, or a value has no figures.
    """
    if not isinstance(loaders, Mapping) or not loaders or not all(isinstance(name, str) for name in loaders):
        raise ConfigurationError(f"{where}(loaders): expected a dict of loaders by name, such as {{'train': loader}}")
    for name, loader in loaders.items():
        if isinstance(loader, type) or not isinstance(loader, Measured):
            kind = f"the class {loader.__name__}" if isinstance(loader, type) else f"a {type(loader).__name__}"
            raise ConfigurationError(
                f"{where}(loaders): {name!r:.80} is {kind}, which has no stats(); pass loaders, "
                "such as mixture.loaders of a MixedLoader"
            )
    return weakref.WeakValueDictionary(loaders)


def counters_of(loader: Measured) -> LoaderStats | None:
    """Return the figures of a loader without advice, which would take longer; None before its first epoch."""
    try:
        counters = getattr(loader, "_counters", None)
        return loader.stats() if counters is None else counters()
    except LoaderStateError:
        return None
