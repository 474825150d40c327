"""Divides the rows and batches of an epoch over the ranks. Pure arithmetic."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise

from parquet_loader.common import Shard, ShardOptions
from parquet_loader.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PartRows:
    """Rows ``first`` to ``stop`` (exclusive) of an epoch, in the order in which its row groups are read.

    Attributes:
        number: Number of the shard in random streams.
        first, stop: The rows.
    """

    number: int
    first: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Division:
    """One rank's share of an epoch.

    Attributes:
        parts: The rows it reads; every batch holds the same number of rows of each part.
        batches: Batches it delivers.
        delivered_rows: Rows it delivers; fewer than it reads if all ranks must get equal numbers.
        side_by_side: The most parts that one rank reads at a time, with the fewest ranks; they share its memory.
    """

    parts: tuple[PartRows, ...]
    batches: int
    delivered_rows: int
    side_by_side: int = 1


def batch_count(rows: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of batches that `rows` rows make."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


def everything(rows: int, batch_size: int, *, drop_last: bool) -> Division:
    """Return the division for one rank: all rows."""
    return Division((PartRows(0, 0, rows),), batch_count(rows, batch_size, drop_last=drop_last), rows)


@dataclass(frozen=True, slots=True)
class Sharding:
    """The division rule of one rank's loader.

    Attributes:
        shard: The rank, and the number of ranks.
        options: The treatment of the remainder, and logical shards.
    """

    shard: Shard
    options: ShardOptions

    def check(self, batch_size: int) -> None:
        """Check that the ranks and the batch divide the logical shards evenly.

        Raises:
            ConfigurationError: they do not; the message names numbers that do.
        """
        shards, ranks = self.options.logical_shards, self.shard.world_size
        if shards is None:
            return
        if shards % ranks:
            raise ConfigurationError(
                f"logical_shards={shards} cannot be divided evenly over {ranks} ranks; choose a multiple of every "
                "number of ranks that the job may run on"
            )
        if ranks < self.options.fewest_ranks:
            raise ConfigurationError(
                f"fewest_ranks={self.options.fewest_ranks}: there are only {ranks} ranks, and the memory budget is for "
                "more; choose a smaller fewest_ranks"
            )
        if batch_size * ranks % shards:
            raise ConfigurationError(
                f"batch_size={batch_size} on {ranks} ranks is a global batch of {batch_size * ranks} rows, which "
                f"cannot be divided evenly by {shards} logical shards; choose a multiple of {shards // ranks}"
            )

    @property
    def side_by_side(self) -> int:
        """Logical shards that one rank reads at a time, with the fewest ranks."""
        return (self.options.logical_shards or 1) // self.options.fewest_ranks or 1

    def largest_batch(self, batch_size: int) -> int:
        """Return the rows of a batch on the fewest ranks."""
        if self.options.logical_shards is None:
            return batch_size
        return -(-batch_size * self.shard.world_size // self.options.fewest_ranks)

    def divide(self, rows: int, batch_size: int, *, drop_last: bool) -> Division:
        """Return this rank's share of an epoch.

        Rank ``k`` of ``n`` begins at row ``rows * k // n``. With ``"drop"`` all ranks get as many batches as the
        smallest rank can fill. With ``"pad"`` all ranks get as many rows as the largest: the others repeat the next
        rank's first row.

        Args:
            rows: Rows of the epoch that pass the filter.
            batch_size: Rows of a batch of one rank.
            drop_last: Whether a last batch that is not full is left out.
        """
        ranks, rank = self.shard.world_size, self.shard.rank
        remainder = self._remainder(drop_last=drop_last)
        if self.options.logical_shards is not None:
            return self._logical(rows, batch_size, self.options.logical_shards, remainder, drop_last=drop_last)
        if ranks == 1:
            return everything(rows, batch_size, drop_last=drop_last)
        first, stop = rows * rank // ranks, rows * (rank + 1) // ranks
        if remainder == "drop":
            batches = rows // (ranks * batch_size)
            return Division((PartRows(rank, first, stop),), batches, batches * batch_size)
        if remainder == "pad":
            stop = first + -(-rows // ranks)
        batches = batch_count(stop - first, batch_size, drop_last=drop_last)
        return Division((PartRows(rank, first, stop),), batches, min(stop - first, batches * batch_size))

    def _logical(self, rows: int, batch_size: int, shards: int, remainder: str, *, drop_last: bool) -> Division:
        own = shards // self.shard.world_size
        share = batch_size // own
        firsts = [rows * number // shards for number in range(shards + 1)]
        if remainder == "drop":
            batches = rows // (shards * share)
            delivered, lengths = batches * share, [b - a for a, b in pairwise(firsts)]
        else:
            padded = -(-rows // shards)
            batches = batch_count(padded, share, drop_last=drop_last)
            delivered, lengths = min(padded, batches * share), [padded] * shards
        numbers = range(self.shard.rank * own, (self.shard.rank + 1) * own)
        parts = tuple(PartRows(n, firsts[n], firsts[n] + lengths[n]) for n in numbers)
        return Division(parts, batches, delivered * own, side_by_side=shards // self.options.fewest_ranks)

    def _remainder(self, *, drop_last: bool) -> str:
        """Return the caller's choice, or the default for this `drop_last`."""
        return self.options.remainder or ("drop" if drop_last else "pad")

    def warn_if_uneven(self, rows: int, batch_size: int, *, drop_last: bool) -> None:
        """Warn if ranks get different numbers of batches."""
        ranks = self.shard.world_size
        if self.options.remainder != "uneven" or ranks == 1:
            return
        counts = [batch_count(n, batch_size, drop_last=drop_last) for n in (rows // ranks, -(-rows // ranks))]
        if counts[0] < counts[1]:
            warnings.warn(
                f"remainder='uneven': some of the {ranks} ranks get {counts[1]} batches, the others {counts[0]}; "
                "collectives such as DDP's all-reduce hang in the last batch; use torch's Join in the training loop, "
                "or another remainder",
                stacklevel=4,
            )

    def identity(self, batch_size: int, *, drop_last: bool) -> dict[str, str | int]:
        """Return the settings that determine the rows of a batch, by their names in the state."""
        ranks, shards = self.shard.world_size, self.options.logical_shards
        remainder = self._remainder(drop_last=drop_last)
        if shards is not None:
            return {
                "global_batch_size": batch_size * ranks,
                "logical_shards": shards,
                "fewest_ranks": self.options.fewest_ranks,
                "remainder": remainder,
            }
        return {"batch_size": batch_size, "ranks": ranks, **({"remainder": remainder} if ranks > 1 else {})}


def split_over_workers(division: Division, batch_size: int, worker: int, workers: int) -> Division:
    """Divide a rank's batches over worker processes that deliver in turn, beginning with the first.

    Each worker reads consecutive rows of the rank, in full batches. Only the rank's last batch may be smaller, and it
    is delivered last.
    """
    (part,) = division.parts
    counts = [division.batches // workers + (n < division.batches % workers) for n in range(workers)]
    sizes = [count * batch_size for count in counts]
    if division.batches:
        sizes[(division.batches - 1) % workers] -= division.batches * batch_size - division.delivered_rows
    first = part.first + sum(sizes[:worker])
    excess = part.rows - division.delivered_rows if worker == workers - 1 else 0
    rows = PartRows(part.number * workers + worker, first, first + sizes[worker] + excess)
    return Division((rows,), counts[worker], sizes[worker])
