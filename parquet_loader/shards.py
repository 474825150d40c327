"""Which rows of an epoch a rank reads, and how many batches it makes of them: arithmetic on the number of rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartRows:
    """Rows ``first`` to ``stop`` (exclusive) of an epoch, in the order in which its row groups are read.

    Attributes:
        number: Names the part in random streams.
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
    """What one rank does of an epoch.

    Attributes:
        parts: The rows it reads; of several, every batch holds as many rows of each.
        batches: Batches it delivers.
        delivered_rows: Rows it delivers.
        side_by_side: Most parts that any number of ranks lets one rank read: memory is shared among so many.
    """

    parts: tuple[PartRows, ...]
    batches: int
    delivered_rows: int
    side_by_side: int = 1


def batch_count(rows: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of batches that `rows` rows make."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


def everything(rows: int, batch_size: int, *, drop_last: bool) -> Division:
    """Return the division of one rank alone."""
    return Division((PartRows(0, 0, rows),), batch_count(rows, batch_size, drop_last=drop_last), rows)
