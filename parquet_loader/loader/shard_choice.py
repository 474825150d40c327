"""Chooses the part of the rows that a loader reads, and checks its ranks."""

from __future__ import annotations

from parquet_loader.common import Shard, ShardOptions, current_ranks, is_worker
from parquet_loader.errors import ConfigurationError, LoaderStateError, UnsupportedError
from parquet_loader.plan import Sharding


def choose_sharding(shard: Shard | None, options: ShardOptions | None, batch_size: int, *, skips: bool) -> Sharding:
    """Return the division of rows: by the caller's shard, else by `torch.distributed`, else one shard of all rows.

    Raises:
        ConfigurationError: The batch size does not fit the shards, or one rank of several may skip row groups.
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
    """Check that a loader without an explicit shard still has this rank's shard.

    Raises:
        LoaderStateError: It was made before the process group, or for another one, so ranks would read the same rows.
    """
    now = current_ranks() or sharding.shard
    if now != sharding.shard:
        raise LoaderStateError(
            f"this is rank {now.rank} of {now.world_size}, but the loader was made before torch.distributed was "
            f"initialised, and reads the rows of rank {sharding.shard.rank} of {sharding.shard.world_size}; "
            "make loaders after init_process_group (in Lightning: in a DataModule), or pass shard=Shard(0, 1) "
            "to read all rows on every rank"
        )


def check_store_ranks(shard: Shard) -> Shard | None:
    """Return the shard if several ranks read a store together; None for one rank.

    Raises:
        UnsupportedError: There is no process group in which the ranks can agree on a snapshot.
    """
    if shard.world_size == 1:
        return None
    if current_ranks() != shard or is_worker():
        raise UnsupportedError(
            f"{shard}: ranks that read one store agree on the files of every epoch, so torch.distributed has to be "
            "initialised with the same rank and world size; without it, pass the same list of files to each rank: "
            "with store.snapshot() as files: BatchedDataLoader([f.path for f in files], ..., shard=...)"
        )
    return shard
