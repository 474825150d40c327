"""Finds columns whose writer abandoned a dictionary, by the headers of a few pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parquet_loader.decode import page_header
from parquet_loader.loader.layout.columns import StoredColumn
from parquet_loader.source import MetadataError, Snapshot, ThriftError

# By default, writers abandon a dictionary of 1 MiB; chunks with smaller dictionaries than this are not checked.
LEAST_DICTIONARY_BYTES = 256 * 1024
MOST_COLUMNS, MOST_PAGES = 64, 4096
_HEADER_BYTES = 4096
_DICTIONARY_ENCODINGS = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_DATA_PAGES = (0, 3)


def mixed_encodings(snapshot: Snapshot, columns: Sequence[StoredColumn]) -> frozenset[str]:
    """Return the columns with data pages both with and without a dictionary, in the largest row group.

    Args:
        snapshot: Local files.
        columns: Their columns, by `stored_columns`.
    """
    suspects = sorted(
        (c for c in columns if c.chunks and c.dictionary_bytes / c.chunks >= LEAST_DICTIONARY_BYTES),
        key=lambda column: -column.dictionary_bytes,
    )[:MOST_COLUMNS]
    if not suspects or not len(snapshot.row_group_bytes):
        return frozenset()
    row_group = snapshot.row_group(int(np.argmax(snapshot.row_group_bytes)))
    footer = snapshot.footers.get(row_group.file_number)
    wanted, found = {column.path for column in suspects}, set[str]()
    try:
        with open(row_group.file.path, "rb") as file:
            for leaf, path in enumerate(footer.paths):
                name = path if path in wanted else next((p for p in wanted if path.startswith(f"{p}.")), None)
                if name is None:
                    continue
                chunk = footer.check(row_group.number, leaf)
                kinds, at, end = set[bool](), chunk.start, chunk.start + chunk.stored_bytes
                for _ in range(MOST_PAGES):
                    if at >= end or len(kinds) == 2:
                        break
                    file.seek(at)
                    header = page_header(file.read(min(_HEADER_BYTES, end - at)))
                    if header.kind in _DATA_PAGES:
                        kinds.add(header.encoding in _DICTIONARY_ENCODINGS)
                    at += header.nbytes + header.page_bytes
                found |= {name} if len(kinds) == 2 else set()
    except (OSError, ThriftError, MetadataError, ValueError):  # raised again when the column is read
        return frozenset(found)
    return frozenset(found)
