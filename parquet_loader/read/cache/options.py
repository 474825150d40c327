"""`LocalCache`: the directory and the byte limit of a local cache."""

from __future__ import annotations

import os
from dataclasses import dataclass

from parquet_loader.common import local_path, parse_bytes
from parquet_loader.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LocalCache:
    """A directory on a local disk that keeps the row groups a loader reads from remote files.

    Loaders, ranks and worker processes of one user on one machine share it, whatever data sets they read. Its files
    may be deleted at any time. See docs/cache.md.

    Attributes:
        path: The directory, created if it does not exist; the attribute is absolute.
        max_bytes: The most bytes of disk that it takes, as an int or as text (``"100GB"``); the attribute is an int.
            Row groups count as the blocks they occupy.
        shared: Use the directory even if it belongs to another user or others may write to it. Users who can write
            there decide which data is read. Without it such a directory is refused when the loader opens it.

    Raises:
        ConfigurationError: `path` is not a path, `max_bytes` not a number of bytes, or `shared` not a bool.
    """

    path: str | os.PathLike[str]
    max_bytes: int | str
    shared: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise ConfigurationError(f"LocalCache(path={self.path!r:.80}): expected the path of a directory")
        path = local_path(self.path)
        object.__setattr__(self, "path", path)
        if not isinstance(self.shared, bool):
            raise ConfigurationError(f"LocalCache(shared={self.shared!r:.80}): expected True or False")
        object.__setattr__(self, "max_bytes", parse_bytes(self.max_bytes, "LocalCache max_bytes"))
