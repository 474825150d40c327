"""`StoredFile`: the public description of one published file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FOOTER_KEY = b"parquet_loader.store"
"""Key of a published file's own JSON in the footer's metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredFile:
    """One published file.

    Attributes:
        name: Its name in the store's directory.
        path: Its path.
        sequence: The store's count of publications, from 1; the order of files.
        published_s: The time of publication by its writer's clock, in seconds since 1970.
        rows, size_bytes: Rows and bytes of the file.
        writer: Identity of the writer.
        priority: As given to the writer.
        metadata: As given to the writer, text by name.
        epochs_seen: Number of readers' epochs in which it was delivered. Set for eviction and weights.
        times_sampled: How often it was delivered in all; more often than `epochs_seen` if weights repeat it.
    """

    name: str
    path: str
    sequence: int
    published_s: float
    rows: int
    size_bytes: int
    writer: str
    priority: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict)
    epochs_seen: int = 0
    times_sampled: int = 0
