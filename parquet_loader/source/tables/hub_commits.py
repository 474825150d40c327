"""`HubSource`, which may follow a branch of the Hugging Face Hub; states hold the commits as versions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.fs as pafs

from parquet_loader.common import HubAddress, resolve
from parquet_loader.errors import ConfigurationError
from parquet_loader.source.tables.table_version import TableInfo

HUB = "hub"
# If a source has more repositories, states hold a digest of the commits, because states are small.
_MOST_NAMED = 4
_SCHEME = "hf://"


@dataclass(frozen=True, slots=True)
class HubSource:
    """An address of the Hugging Face Hub, which may be followed. Without `follow`, it is the same as the address.

    Args:
        address: ``"hf://datasets/ORG/NAME[@REVISION][/PATH]"``.
        follow: Let each epoch read the newest commit of the branch or tag; only in `BatchedDataLoader`.

    Raises:
        ConfigurationError: an argument has the wrong kind, or a commit is to be followed.
        SourceError: the address has another form.
    """

    address: str
    follow: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or not self.address.startswith(_SCHEME):
            raise ConfigurationError(
                f"HubSource({self.address!r:.80}): expected 'hf://datasets/ORG/NAME[@BRANCH][/PATH]'"
            )
        if not isinstance(self.follow, bool):
            raise ConfigurationError(f"HubSource(follow={self.follow!r:.80}): expected True or False")
        if self._parsed().is_pinned and self.follow:
            raise ConfigurationError(
                f"HubSource({self.address!r:.200}, follow=True): a commit never changes; name a branch"
            )

    @property
    def name(self) -> str:
        """Its name for messages."""
        return self.address

    def at(self, version: int | str) -> HubSource:
        """Return the same address at a commit, not followed."""
        pinned = replace(self._parsed(), revision=str(version), is_explicit=True)
        return HubSource(f"{_SCHEME}{pinned}")

    def filesystem_of(self, filesystem: Any) -> pafs.FileSystem:
        """Return the Hub as a file system; reads nothing."""
        return resolve(self.address, filesystem)[0]

    def _parsed(self) -> HubAddress:
        return HubAddress.parse(self.address.removeprefix(_SCHEME))


def commits_of(paths: Sequence[str]) -> TableInfo:
    """Return the repositories of these files and their commits."""
    roots = dict.fromkeys(path[: path.find("/", path.index("@"))] for path in paths)
    found = [HubAddress.parse(root) for root in roots]
    names = [f"hf://datasets/{address.repository}" for address in found]
    version = ", ".join(address.revision for address in found)
    if len(found) > _MOST_NAMED:
        digest = hashlib.blake2b(" ".join(map(str, found)).encode(), digest_size=8).hexdigest()
        version = f"{digest} of {len(found)} repositories"
    if len(found) == 1:
        reopen = f"'{names[0]}@{{version}}'"
    else:
        reopen = f"'{names[0]}@COMMIT' and the others likewise, of {{version}} in this order"
    return TableInfo(HUB, ", ".join(names[:_MOST_NAMED]), version, reopen)
