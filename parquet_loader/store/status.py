"""The status of a store as a table."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from parquet_loader.common import format_bytes, is_locked
from parquet_loader.store.files.file_lists import read_holds
from parquet_loader.store.files.paths import StorePaths, names_in
from parquet_loader.store.leases import LeaseTable, read_lease
from parquet_loader.store.ledger import Ledger, Totals, live_writers

_RATE_S = 60.0


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The contents and rates of a store at one moment; `str` of it is a table.

    Attributes:
        path: Its directory.
        files, rows, bytes: Totals of the present published files.
        reserved_bytes: Bytes reserved for files being written.
        max_bytes: The limit, or None.
        held_files, held_bytes: Totals of the files that must not be evicted at the moment.
        holds: Number of holds; see `SampleStore.hold`.
        kept_files, kept_bytes: Totals of the files that holds keep; they also count as `held_files`.
        over_limit_bytes: The bytes by which the used space exceeds the limit.
        oldest_age_s, newest_age_s: Seconds since the oldest and the newest file were published, by their writers'
            clocks; None without files.
        write_bytes_per_s, evict_bytes_per_s: Rates over the last minute or less.
        written_bytes, evicted_bytes: Totals since the store was made.
        writers, readers: Number of live writers and readers.
        evict: The policy.
    """

    path: str
    files: int
    rows: int
    bytes: int
    reserved_bytes: int
    max_bytes: int | None
    held_files: int
    held_bytes: int
    holds: int
    kept_files: int
    kept_bytes: int
    over_limit_bytes: int
    oldest_age_s: float | None
    newest_age_s: float | None
    write_bytes_per_s: float
    evict_bytes_per_s: float
    written_bytes: int
    evicted_bytes: int
    writers: int
    readers: int
    evict: str

    def __str__(self) -> str:
        limit = "no limit" if self.max_bytes is None else f"of {format_bytes(self.max_bytes)}"
        over = f", {format_bytes(self.over_limit_bytes)} over" if self.over_limit_bytes else ""
        age = "-"
        if self.oldest_age_s is not None and self.newest_age_s is not None:
            age = f"{format_seconds(self.oldest_age_s)} to {format_seconds(self.newest_age_s)} ago"
        lines = [
            ("files", f"{self.files}"),
            ("rows", f"{self.rows}"),
            ("bytes", f"{format_bytes(self.bytes)} {limit}{over}"),
            ("under way", f"{format_bytes(self.reserved_bytes)} by {self.writers} writers"),
            ("held", f"{format_bytes(self.held_bytes)} in {self.held_files} files, {self.readers} readers"),
            ("on purpose", f"{format_bytes(self.kept_bytes)} in {self.kept_files} files, {self.holds} holds"),
            ("published", age),
            ("written", f"{format_bytes(self.written_bytes)}, now {format_bytes(self.write_bytes_per_s)}/s"),
            ("evicted", f"{format_bytes(self.evicted_bytes)}, now {format_bytes(self.evict_bytes_per_s)}/s"),
            ("evicts", self.evict),
        ]
        return "\n".join([self.path, *(f"  {name:<11} {value}" for name, value in lines)])


def status_of(paths: StorePaths, ledger: Ledger, max_bytes: int | None, evict: str) -> StoreStatus:
    """Return the status without taking the store's lock; figures may be from slightly different moments."""
    totals = ledger.totals()
    names = ledger.published()
    needed = LeaseTable(paths).needed()
    held = {name: _size(paths.file(name)) for name in names if name in needed}
    kept = [size for name, size in held.items() if name in needed.pinned]
    now = time.time()
    ages = [now - parsed.published_us / 1e6 for parsed in names.values()]
    write, evicted = _rates(totals, now)
    readers = [os.path.join(paths.readers, name) for name in names_in(paths.readers)]
    return StoreStatus(
        path=paths.root,
        files=len(names),
        rows=sum(parsed.rows for parsed in names.values()),
        bytes=totals.bytes,
        reserved_bytes=totals.reserved_bytes,
        max_bytes=max_bytes,
        held_files=len(held),
        held_bytes=sum(held.values()),
        holds=len(read_holds(paths)),
        kept_files=len(kept),
        kept_bytes=sum(kept),
        over_limit_bytes=max(0, totals.used_bytes - max_bytes) if max_bytes is not None else 0,
        oldest_age_s=max(ages, default=None),
        newest_age_s=min(ages, default=None),
        write_bytes_per_s=write,
        evict_bytes_per_s=evicted,
        written_bytes=totals.written_bytes,
        evicted_bytes=totals.evicted_bytes,
        writers=len(live_writers(paths)),
        readers=sum(is_locked(path) and read_lease(path) is not None for path in readers),
        evict=evict,
    )


def format_seconds(seconds: float) -> str:
    """Return a duration for people to read."""
    if abs(seconds) < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"


def _rates(totals: Totals, now: float) -> tuple[float, float]:
    recent = [m for m in totals.marks if m[0] >= now - _RATE_S]
    if not recent or now - recent[0][0] < 1e-3:
        return 0.0, 0.0
    then, written, evicted = recent[0]
    return (totals.written_bytes - written) / (now - then), (totals.evicted_bytes - evicted) / (now - then)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
