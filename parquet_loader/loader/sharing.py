"""Which part of the rows a loader reads, and with which other ranks it agrees."""

from __future__ import annotations

from parquet_loader.common import Shard, ShardOptions, current_ranks, is_worker
from parquet_loader.errors import ConfigurationError, LoaderStateError, UnsupportedError
from parquet_loader.plan import Sharding


def choose_sharding(shard: Shard | None, options: ShardOptions | None, batch_size: int, *, skips: bool) -> Sharding:
    """Return how rows are divided: as asked for, or as `torch.distributed` says, or not at all.

    Raises:
        ConfigurationError: batches cannot be divided so, or bad row groups are to be skipped by one rank of several.
    """
    sharding = Sharding(shard or current_ranks() or Shard(0, 1), options or ShardOptions())
    sharding.check(batch_size)
    if skips and sharding.shard.world_size > 1:
        raise ConfigurationError(
            "on_error='skip' with more than one rank: a rank that leaves out a row group has fewer batches than the "
            "others, which then wait for it; use on_error='raise'"
        )
    return sharding


def check_still_divided(sharding: Sharding) -> None:
    """Check that a loader, which left its part to `torch.distributed`, still has the part of this rank.

    Raises:
        LoaderStateError: it was made before the process group, or for another one; other ranks would read its rows too.
    """
    now = current_ranks() or sharding.shard
    if now != sharding.shard:
        raise LoaderStateError(
            f"this is rank {now.rank} of {now.world_size}, but the loader was made before torch.distributed was "
            f"initialised, and reads the rows of rank {sharding.shard.rank} of {sharding.shard.world_size}; "
            "make loaders after init_process_group (in Lightning: in a DataModule), or pass shard=Shard(0, 1) "
            "to read all rows on every rank"
        )


def looking_together(shard: Shard) -> Shard | None:
    """Return the ranks that look at a source together, None for one alone.

    Raises:
        UnsupportedError: there is no process group in which they could agree on a snapshot.
    """
    if shard.world_size == 1:
        return None
    if current_ranks() != shard or is_worker():
        raise UnsupportedError(
            f"{shard}: ranks that read one store agree on the files of every epoch, for which torch.distributed has to "
            "be initialised with the same rank and world size; without it, hold the files yourself and give each rank "
            "the same list: with store.snapshot() as files: BatchedDataLoader([f.path for f in files], ..., shard=...)"
        )
    return shard
