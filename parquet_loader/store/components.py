"""What a store uses within one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from parquet_loader.store.epochs import Reading
from parquet_loader.store.files.file_catalog import Files
from parquet_loader.store.files.paths import StorePaths
from parquet_loader.store.ledger import Ledger
from parquet_loader.store.settings import Settings
from parquet_loader.store.space import Policy, Room


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a store that know each other; they belong to the process that made them.

    Attributes:
        ledger: Its account, and what is published.
        files: What is known of its files, for reading.
        room: Reservations and eviction.
        reading: What loaders see.
    """

    ledger: Ledger
    files: Files
    room: Room
    reading: Reading

    @classmethod
    def of(
        cls,
        places: StorePaths,
        settings: Settings,
        *,
        policy: Callable[[], Policy],
        limit: Callable[[], int | None],
        may_hold: bool,
    ) -> Self:
        """Return the parts of a store.

        Args:
            places: Where it lies.
            settings: What never changes of them is used: identity and tag.
            policy: Returns what goes first, as it stands at the moment.
            limit: Returns the most bytes there may be, or None, likewise.
            may_hold: Whether files can be held: not where the directory is read-only.
        """
        ledger = Ledger(places, settings.tag)
        files = Files(places, settings.identity)
        # Eviction works under a lock of its own, with a table of files of its own.
        room = Room(places, ledger, Files(places, settings.identity), policy, limit)
        return cls(ledger, files, room, Reading(places, ledger, files, may_hold=may_hold))
