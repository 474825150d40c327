"""Lets rank 0 list a source for all ranks of a job, and checks that all have the same arguments."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from parquet_loader.common import Ranks, RemoteOptions, Shard, current_ranks, is_worker, resolve
from parquet_loader.errors import ConfigurationError
from parquet_loader.source import (
    Selection,
    Snapshot,
    Source,
    VersionedSource,
    dump_snapshot,
    load_snapshot,
    open_remembered,
    open_snapshot,
)


def digest(*parts: bytes) -> str:
    """Return a digest of byte strings, 16 hexadecimal digits."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()


def ranks_to_agree_with(shard: Shard | None) -> Ranks | None:
    """Return the ranks of `torch.distributed` to agree with; None for one rank, or if the caller chose a shard.

    A DataLoader's worker processes cannot reach the other ranks.
    """
    ranks = None if shard is not None or is_worker() else current_ranks()
    return None if ranks is None or ranks.world_size == 1 else Ranks(ranks)


def open_source(
    source: Source | VersionedSource,
    filesystem: Any,
    ranks: Ranks | None,
    remote: RemoteOptions,
    selection: Selection,
) -> Snapshot:
    """List a source; with several ranks, rank 0 lists it, and the others receive its snapshot.

    Raises:
        SourceError, ConfigurationError: as `open_snapshot`, on every rank; or the ranks were given different sources.
    """
    if ranks is None:
        return _open(source, filesystem, remote, selection)
    mine: list[Snapshot] = []
    paths: list[Any] = [source] if isinstance(source, str | os.PathLike | VersionedSource) else list(source)
    mark = _mark([source.name] if isinstance(source, VersionedSource) else paths)

    def mark_and_list() -> bytes:
        if ranks.shard.rank > 0:
            return mark
        mine.append(_open(source, filesystem, remote, selection))
        return mark + dump_snapshot(mine[0])

    received = ranks.gather(mark_and_list)
    for rank, payload in enumerate(received):
        if payload[: len(mark)] != received[0][: len(mark)]:
            raise ConfigurationError(
                f"rank 0 and rank {rank} were given different sources; pass the same files on all ranks, and each rank "
                "reads its part of the rows; for copies of the same data under other paths pass "
                "shard=Shard(rank, world_size), and to let each rank read all rows of its own files shard=Shard(0, 1)"
            )
    if mine:
        return mine[0]
    home = source.filesystem_of(filesystem) if isinstance(source, VersionedSource) else resolve(paths[0], filesystem)[0]
    return load_snapshot(received[0][len(mark) :], home, remote)


def _mark(paths: Sequence[Any]) -> bytes:
    """Return a digest of a source that does not depend on the order of files or the signatures of URLs."""
    names = (os.fspath(path) for path in paths)
    return digest(*sorted((name.split("?")[0] if "://" in name else name).encode() for name in names)).encode()


def _open(source: Source | VersionedSource, filesystem: Any, remote: RemoteOptions, selection: Selection) -> Snapshot:
    if remote.snapshot_cache is not None and not isinstance(source, VersionedSource):
        return open_remembered(source, filesystem, remote, selection)
    return open_snapshot(source, filesystem, remote=remote, selection=selection)


def check_agreement(identity: Mapping[str, Any], ranks: Ranks) -> None:
    """Check that the loaders of all ranks have the same identity.

    Raises:
        ConfigurationError: an argument differs; the message names it and a rank.
    """
    marks = {name: digest(repr(value).encode()) for name, value in identity.items()}
    received = ranks.gather(lambda: ",".join(marks.values()).encode())
    first = received[0].decode().split(",")
    for rank, payload in enumerate(received):
        differing = [n for n, a, b in zip(marks, first, payload.decode().split(","), strict=True) if a != b]
        if differing:
            raise ConfigurationError(
                f"the loaders of rank 0 and rank {rank} differ in {', '.join(differing)}; "
                "pass the same arguments and the same files on all ranks"
            )
