"""Finds Petastorm's metadata: ``_common_metadata`` at the root of a data set, above its partitions."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import is_local, look_up, system_error
from parquet_loader.errors import DataError, SchemaError, SourceError
from parquet_loader.source.file_types import has_magic
from parquet_loader.source.files import ListingContext, SourceFile
from parquet_loader.source.footer_reading import read_file_schema
from parquet_loader.source.unischema.records import UnischemaRecord, read_unischema

UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
ROW_GROUPS_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"
INDEX_KEY = b"dataset-toolkit.rowgroups_index.v1"

COMMON_METADATA = "_common_metadata"
_MANY_ROOTS = 64


def roots_of(files: Sequence[SourceFile]) -> list[str]:
    """Return the directories that may be roots of the files' data sets: the files' directories without partitions.

    If there are more than `_MANY_ROOTS`, only the directory that contains all of them.
    """
    roots: dict[str, None] = {}
    for file in files:
        folder = posixpath.dirname(file.path)
        while "=" in posixpath.basename(folder):
            folder = posixpath.dirname(folder)
        roots[folder] = None
    if len(roots) > _MANY_ROOTS:
        return [posixpath.commonpath(list(roots))]
    return list(roots)


def metadata_of(filesystem: pafs.FileSystem, root: str) -> dict[bytes, bytes] | None:
    """Return the keys and values of a data set's ``_common_metadata``, or None if there is no such file.

    Raises:
        SourceError: the file cannot be read.
    """
    path = posixpath.join(root, COMMON_METADATA)
    try:
        if look_up(filesystem, path).type != pafs.FileType.File:
            return None
        found = read_file_schema(filesystem, path).key_values
    except (pa.ArrowException, OSError, ValueError) as error:
        if "ACCESS_DENIED" in str(error) and not is_local(filesystem):
            return None  # S3's answer for a missing object if the caller may read but not list
        if path.startswith(("http://", "https://")) and not _is_parquet(filesystem, path):
            return None  # some servers answer with a page of HTML whatever the name
        failure = system_error(path, error)
        if failure is not None:
            raise failure from error
        reason = str(error).split("\n")[0]
        raise SourceError(f"{path}: the metadata of the data set cannot be read: {reason}") from error
    return found


def _is_parquet(filesystem: pafs.FileSystem, path: str) -> bool:
    """Whether a file begins like Parquet; True if it cannot be read."""
    try:
        with filesystem.open_input_file(path) as file:
            return has_magic((file.read(4), b""))
    except (pa.ArrowException, OSError, ValueError):
        return True


def declared_unischema(
    filesystem: pafs.FileSystem, files: Sequence[SourceFile], listing_context: ListingContext | None = None
) -> UnischemaRecord | None:
    """Return the Unischema in the metadata of a source's data sets, or None if there is none.

    Uses the results of the listing, and requests only files that it does not cover.

    Raises:
        DataError: the metadata is refused, because Petastorm does not write such values.
        SchemaError: data sets that are read together have different Unischemas.
        SourceError: the file with the metadata cannot be read.
    """
    first: tuple[str, UnischemaRecord] | None = None
    for root in roots_of(files):
        if listing_context is not None and listing_context.lacks(posixpath.join(root, COMMON_METADATA)):
            continue
        data = (metadata_of(filesystem, root) or {}).get(UNISCHEMA_KEY)
        if data is None:
            continue
        try:
            found = read_unischema(data)
        except DataError as error:
            raise DataError(
                f"{posixpath.join(root, COMMON_METADATA)}: {error}; pass schema= to read the files without it"
            ) from None
        if first is not None and first[1].fields != found.fields:
            raise SchemaError(f"{first[0]} and {root} have different Unischemas; pass schema= to read them together")
        first = first or (root, found)
    return None if first is None else first[1]
