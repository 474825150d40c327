"""A source as one loader or the loaders of all ranks open it: listed once, so that all have the same snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parquet_loader.common import Ranks, RemoteOptions, resolve
from parquet_loader.dataset import Dataset
from parquet_loader.errors import ConfigurationError
from parquet_loader.loader.state import Identity, digest
from parquet_loader.source import (
    Selection,
    Snapshot,
    Source,
    dump_snapshot,
    load_snapshot,
    open_remembered,
    open_snapshot,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A source that was opened before, as a loader takes it along to another process.

    Attributes:
        dataset: All that is known of it.
    """

    dataset: Dataset


def open_source(
    source: Source,
    filesystem: Any,
    ranks: Ranks | None,
    remote: RemoteOptions | None = None,
    selection: Selection | None = None,
) -> Snapshot:
    """List a source; with several ranks, rank 0 does, and the others receive the same snapshot.

    Raises:
        SourceError, ConfigurationError: as `open_snapshot`, on every rank.
    """
    remote = remote or RemoteOptions()
    if ranks is None:
        return _open(source, filesystem, remote, selection)
    mine: list[Snapshot] = []

    def list_and_dump() -> bytes:
        mine.append(_open(source, filesystem, remote, selection))
        return dump_snapshot(mine[0])

    manifest = ranks.from_first(list_and_dump)
    if mine:
        return mine[0]
    first = source[0] if isinstance(source, Sequence) and not isinstance(source, str | bytes) else source
    return load_snapshot(manifest, resolve(first, filesystem)[0], remote)


def _open(source: Source, filesystem: Any, remote: RemoteOptions, selection: Selection | None) -> Snapshot:
    if remote.snapshot_cache is not None:
        return open_remembered(source, filesystem, remote, selection)
    return open_snapshot(source, filesystem, remote=remote, selection=selection)


def check_agreement(identity: Identity, ranks: Ranks) -> None:
    """Check that all ranks' loaders deliver parts of the same batches.

    Raises:
        ConfigurationError: an argument differs; names it, and a rank.
    """
    marks = {name: digest(repr(value).encode()) for name, value in identity.items()}
    received = ranks.gather(lambda: ",".join(marks.values()).encode())
    first = received[0].decode().split(",")
    for rank, payload in enumerate(received):
        differing = [n for n, a, b in zip(marks, first, payload.decode().split(","), strict=True) if a != b]
        if differing:
            raise ConfigurationError(
                f"the loaders of rank 0 and rank {rank} differ in {', '.join(differing)}; "
                "all ranks pass the same arguments, and read the same files"
            )
