"""`CacheStats`: the counters of a loader's local cache."""

from __future__ import annotations

from dataclasses import dataclass, fields

from parquet_loader.common import format_bytes


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counters of the local cache in an epoch, for this loader.

    Attributes:
        hits, misses: Row groups that were read from the cache, and those that were not.
        bytes_from_cache: Bytes of the ranges read from the cache: column chunks, and small gaps fetched with them.
        bytes_fetched: Bytes of the ranges fetched from the files.
        bytes_stored: Of these, bytes that were added to the cache.
        damaged: Row groups found damaged in the cache, dropped, and fetched again.
        problem: Why nothing was stored for a while, such as a full disk; None if there was no problem.
    """

    hits: int = 0
    misses: int = 0
    bytes_from_cache: int = 0
    bytes_fetched: int = 0
    bytes_stored: int = 0
    damaged: int = 0
    problem: str | None = None

    @property
    def hit_rate(self) -> float:
        """The share of bytes that came from the cache."""
        return self.bytes_from_cache / max(self.bytes_from_cache + self.bytes_fetched, 1)

    def since(self, before: CacheStats) -> CacheStats:
        """Return the difference from earlier figures of the same cache."""
        counts = [field.name for field in fields(self) if field.name != "problem"]
        return CacheStats(
            **{name: getattr(self, name) - getattr(before, name) for name in counts}, problem=self.problem
        )

    def __str__(self) -> str:
        text = (
            f"{self.hit_rate:.0%} from the local cache: {format_bytes(self.bytes_from_cache)} in {self.hits} row "
            f"groups; fetched {format_bytes(self.bytes_fetched)} in {self.misses}, stored "
            f"{format_bytes(self.bytes_stored)}"
        )
        text += f"; {self.damaged} were damaged" if self.damaged else ""
        return f"{text}; {self.problem}" if self.problem else text
