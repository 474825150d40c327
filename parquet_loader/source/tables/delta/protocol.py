"""Checks that a table uses only supported features of the Delta protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parquet_loader.errors import SourceError

_READ = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "variantType",  # a column of this type is refused, and other columns do not differ
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_MOST_VERSION = 3


def check_protocol(protocol: Mapping[str, Any], root: str) -> frozenset[str]:
    """Return the features that readers of a table must support.

    Raises:
        SourceError: the table needs features or a protocol version that this library does not support.
    """
    version = protocol.get("minReaderVersion")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SourceError(f"{root}: the table's protocol names no reader version; the log is damaged")
    if version > _MOST_VERSION:
        raise SourceError(
            f"{root}: the table needs reader version {version} of the Delta protocol, and versions up to "
            f"{_MOST_VERSION} are read; export its rows with a reader that knows it"
        )
    if version < _MOST_VERSION:
        return frozenset({"columnMapping"} if version == 2 else ())
    features = protocol.get("readerFeatures")
    if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
        raise SourceError(f"{root}: the table's protocol lists no reader features; the log is damaged")
    unknown = sorted(set(features) - _READ)
    if unknown:
        what = "the reader features" if len(unknown) > 1 else "the reader feature"
        raise SourceError(
            f"{root}: the table uses {what} {', '.join(unknown)} of the Delta protocol, which this library does not "
            "read; drop it (ALTER TABLE ... DROP FEATURE), or export the rows with a reader that knows it"
        )
    return frozenset(features)
