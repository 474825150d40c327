"""Names of published files: sorted by order of publication, never reused, and readable by people.

``000000000042-20261121T161059.123456-4096r-1f00c2aa-8d1e5c0a77b3f210.parquet``: the store's 42nd file, when it was
published (UTC, by its writer's clock), rows, the store's tag, the writer's identity.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

_PATTERN = re.compile(
    r"(?P<sequence>\d{12})-(?P<time>\d{8}T\d{6}\.\d{6})-(?P<rows>\d+)r-(?P<tag>[0-9a-f]{8})-(?P<writer>[0-9a-f]{16})"
    r"\.parquet"
)
_TIME = "%Y%m%dT%H%M%S.%f"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FileName:
    """The parts of the name of a published file.

    Attributes:
        sequence: The store's count of publications, from 1; the order of files.
        published_us: Microseconds since 1970 by the writer's clock; never used for order.
        rows: Rows of the file.
        tag: First eight digits of the store's identity.
        writer: The writer's identity, 16 hexadecimal digits drawn at random.
    """

    sequence: int
    published_us: int
    rows: int
    tag: str
    writer: str

    def __str__(self) -> str:
        known_us = min(max(0, self.published_us), (_LAST - _EPOCH) // timedelta(microseconds=1))
        text = (_EPOCH + timedelta(microseconds=known_us)).strftime(_TIME)
        return f"{self.sequence:012d}-{text}-{self.rows}r-{self.tag}-{self.writer}.parquet"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return the parts of a name, or None if it is not the name of a published file."""
        found = _PATTERN.fullmatch(name)
        if found is None:
            return None
        t = found["time"]
        try:
            date = int(t[0:4]), int(t[4:6]), int(t[6:8])
            moment = datetime(*date, int(t[9:11]), int(t[11:13]), int(t[13:15]), int(t[16:]), tzinfo=UTC)
        except ValueError:  # digits, and no date
            return None
        published_us = (moment - _EPOCH) // timedelta(microseconds=1)
        return cls(int(found["sequence"]), published_us, int(found["rows"]), found["tag"], found["writer"])


def new_identity() -> str:
    """Return 64 random bits as 16 hexadecimal digits."""
    return os.urandom(8).hex()
