"""Atomic replacement of small files, and fsync of names."""

from __future__ import annotations

import os

from parquet_loader.store.files.file_names import new_identity
from parquet_loader.store.files.paths import TEMPORARY


def write_atomically(path: str, data: bytes) -> None:
    """Replace a small file so that it is whole at any instant, after a power cut too; under the store's lock."""
    hidden = f"{path}.{new_identity()}{TEMPORARY}"
    try:
        with open(hidden, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        if os.path.lexists(hidden):
            os.unlink(hidden)
        raise


def sync_directory(path: str) -> None:
    """Force the names in a directory to the disk."""
    sync_file(path)


def sync_file(path: str) -> None:
    """Force a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
