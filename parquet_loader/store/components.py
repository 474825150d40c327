"""The components of a store within one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from parquet_loader.store.epochs import StoreView
from parquet_loader.store.files.file_catalog import FileCatalog
from parquet_loader.store.files.paths import StorePaths
from parquet_loader.store.ledger import Ledger
from parquet_loader.store.settings import StoreSettings
from parquet_loader.store.space import Policy, Space


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of a store that know each other; they belong to the process that made them.

    Attributes:
        ledger: Its account, and the published files.
        files: The known facts of its files, for reading.
        space: Reservations and eviction.
        reading: What loaders see.
    """

    ledger: Ledger
    files: FileCatalog
    space: Space
    reading: StoreView

    @classmethod
    def create(
        cls,
        paths: StorePaths,
        settings: StoreSettings,
        *,
        policy: Callable[[], Policy],
        limit: Callable[[], int | None],
        may_hold: bool,
    ) -> Self:
        """Return the parts of a store.

        Args:
            paths: The paths of the store.
            settings: What never changes of them is used: identity and tag.
            policy: Returns what goes first, as it stands at the moment.
            limit: Returns the most bytes there may be, or None, likewise.
            may_hold: Whether files can be held: not if the directory is read-only.
        """
        ledger = Ledger(paths, settings.tag)
        files = FileCatalog(paths, settings.identity)
        # Eviction works under a lock of its own, with a table of files of its own.
        space = Space(paths, ledger, FileCatalog(paths, settings.identity), policy, limit)
        return cls(ledger, files, space, StoreView(paths, ledger, files, may_hold=may_hold))
