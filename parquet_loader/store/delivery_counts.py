"""Counts how often each file was delivered, for eviction and weights.

Records of 16 bytes are appended under the store's lock: the file's sequence number, times delivered, epochs. They are
hints: a power failure may lose some, which only changes which files are evicted first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from parquet_loader.common import replace_file
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import StorePaths, share_record

_RECORD = np.dtype([("sequence", "<i8"), ("times", "<i4"), ("epochs", "<i4")])
_COMPACT_BYTES = 2**20
_MOST_RECORDS = 4  # of each file, on average


def add_seen(paths: StorePaths, delivered: Mapping[str, int]) -> None:
    """Count one epoch's deliveries, times by name; called under the store's lock."""
    parsed = {name: FileName.parse(name) for name in delivered}
    records = np.array([(p.sequence, delivered[name], 1) for name, p in parsed.items() if p is not None], dtype=_RECORD)
    if len(records):
        with open(paths.seen, "ab") as file:
            file.truncate(file.tell() // _RECORD.itemsize * _RECORD.itemsize)  # a killed process may leave a part
            file.write(records.tobytes())
        share_record(paths.seen)


def read_seen(paths: StorePaths) -> dict[int, tuple[int, int]]:
    """Return (times delivered, epochs) by sequence number."""
    records = _records(paths)
    numbers, inverse = np.unique(records["sequence"], return_inverse=True)
    times = np.bincount(inverse, records["times"], len(numbers)).astype(np.int64).tolist()
    epochs = np.bincount(inverse, records["epochs"], len(numbers)).astype(np.int64).tolist()
    return dict(zip(numbers.tolist(), zip(times, epochs, strict=True), strict=True))


def compact_seen(paths: StorePaths, files: int, present: Callable[[], set[int]]) -> None:
    """Keep one record of each existing file if the file is large and the disk has space; called under the store's lock.

    Args:
        paths: The paths of the store.
        files: Number of the existing files.
        present: Returns their sequence numbers.
    """
    with contextlib.suppress(OSError):
        if os.stat(paths.seen).st_size > max(_COMPACT_BYTES, _MOST_RECORDS * files * _RECORD.itemsize):
            counts, keep = read_seen(paths), present()
            records = [(s, *counts[s]) for s in sorted(counts.keys() & keep)]
            replace_file(paths.seen, np.array(records, dtype=_RECORD).tobytes())
            share_record(paths.seen)


def _records(paths: StorePaths) -> npt.NDArray[np.void]:
    try:
        with open(paths.seen, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        data = b""
    return np.frombuffer(data[: len(data) // _RECORD.itemsize * _RECORD.itemsize], dtype=_RECORD)
