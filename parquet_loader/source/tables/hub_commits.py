"""The commits of repositories of the Hugging Face Hub, as the version of a source that states name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from parquet_loader.common import HubAddress
from parquet_loader.source.tables.table_version import TableInfo

HUB = "hub"
# Of more repositories a state holds a digest, because it is small.
_MOST_NAMED = 4


def commits_of(paths: Sequence[str]) -> TableInfo:
    """Return which commits of which repositories these files are of."""
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
