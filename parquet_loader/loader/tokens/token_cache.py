"""Keeps the tokens of text as a data set in a local directory, so that each document is tokenized once.

    <folder>/tokens-<digest>/           the tokens and the carried columns of the rows that pass, in their order
    <folder>/.tokens-<digest>.tmp/      one that is being written; it is renamed when it is complete

The digest covers the tokenizer, the files with their ETags or modification times, the filters and the columns. Writers
lock the directory that is being written: one process tokenizes, and others that need the same tokens wait for it; other
tokens are written at the same time. The remains of a killed process are removed by the next process that writes the
same tokens.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.collate import arrow_table
from parquet_loader.common import FileLock, OutputOptions, Shard, reading_errors
from parquet_loader.dataset import Dataset, ListedDataset, digest, settings_of, with_columns, with_shard
from parquet_loader.errors import (
    ConfigurationError,
    OpenFilesError,
    ParquetLoaderError,
    SourceError,
    SystemReadError,
    UnsupportedError,
)
from parquet_loader.loader.batched import BatchedDataLoader, parts_of
from parquet_loader.loader.column_scan import PassingRows, ScanOptions
from parquet_loader.loader.state import counts_identity, described, files_identity
from parquet_loader.loader.tokens.tokenizing import DocumentEncoder
from parquet_loader.schema import RaggedList, Scalar, Schema, masks_of
from parquet_loader.write import DatasetWriter

# Rows of a batch of text; a window holds at least as many.
_BATCH_ROWS = 64
# How the directory is opened; a file in its place is an error.
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


@dataclass(frozen=True, slots=True)
class TextOrigin:
    """The origin of the rows of a `CachedTokens`.

    Attributes:
        rows: The rows of text.
        identity: The files and the filter of the text, for states, instead of the cache's own files.
    """

    rows: PassingRows
    identity: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """The tokens of text, as a data set.

    Attributes:
        listed: Its files: the column of text holds lists of tokens.
        lengths: The column with the number of tokens of each document.
        origin: The origin of its rows.
    """

    listed: ListedDataset
    lengths: str
    origin: TextOrigin


def cached_tokens(
    listed: ListedDataset,
    columns: list[str],
    encoder: DocumentEncoder,
    options: ScanOptions,
) -> CachedTokens:
    """Return the tokens of a column of text from the cache; if they are missing, tokenize all rows first.

    Args:
        listed: The files.
        columns: The column of text, and the carried columns.
        encoder: The tokenizer, and the directory of the cache.
        options: How the rows are read; each process reads all rows, on threads.

    Raises:
        SourceError: The directory cannot be written, or the system cannot read the tokens.
        OpenFilesError: No file descriptor is free.
        UnsupportedError: Its file system has no locks, or the filter cannot be serialised.
        DataError, SchemaError, MemoryLimitError, WriteError: Rows cannot be read or stored.
    """
    text = columns[0]
    lengths = "num_tokens"
    while lengths in columns:
        lengths += "_"
    assert encoder.cache is not None
    with BatchedDataLoader(
        with_columns(listed, columns),
        _BATCH_ROWS,
        transform=_Tokenized(encoder, text, lengths),
        filters=options.filters,
        memory_limit=options.memory_limit_bytes,
        shard=Shard(0, 1),  # all rows, in each process: the lock lets one of them tokenize
        num_threads=options.num_threads,
        progress=options.progress,
        output_options=OutputOptions(format="numpy"),
    ) as loader:
        parts = parts_of(loader)
        dataset = parts.dataset
        fields = {**dataset.schema, lengths: Scalar("int32")}
        fields[text] = RaggedList(Scalar(encoder.dtype.name))
        origin = _origin_of(dataset, None if parts.filters is None else described(str(parts.filters)))
        schema = Schema(fields)
        key = {
            **origin.identity,
            "filters": None if parts.filters is None else _digest_of(parts.filters),
            "versions": [file.etag or file.mtime_ns for file in dataset.snapshot.files],
            "rows": counts_identity(dataset.counts),
            "schema": dataset.schema.to_json(),
            "tokens": schema.to_json(),
            "tokenizer": encoder.identity,
        }
        path = encoder.cache / f"tokens-{digest(json.dumps(key).encode())}"
        shard = settings_of(listed).shard
        found = _opened(path, dataset.rows, shard)
        if found is None:
            found = _written(path, loader, schema, shard)
    return CachedTokens(found, lengths, origin)


@dataclass(frozen=True, slots=True)
class _Tokenized:
    """A `transform` that replaces text by its tokens, and adds their number."""

    encoder: DocumentEncoder
    text: str
    lengths: str

    def __call__(self, columns: dict[str, Any], rng: object) -> dict[str, Any]:  # noqa: ARG002
        tokens = self.encoder(columns[self.text].tolist())
        return {**columns, self.text: tokens, self.lengths: np.diff(tokens.offsets).astype(np.int32)}


def _digest_of(filters: pc.Expression) -> str:
    """Return a digest of a serialised filter; its text would omit values of long lists."""
    try:
        return digest(filters.__reduce__()[1][0])
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedError(
            f"TokenizerOptions(cache=...) with filters={filters}: this expression cannot be serialised ({error}); "
            "leave cache out"
        ) from None


def _origin_of(dataset: Dataset, filters: Any) -> TextOrigin:
    snapshot = dataset.snapshot
    table = {} if snapshot.table is None else {"table": snapshot.table.name}
    return TextOrigin(PassingRows.of(dataset), {**table, "files": files_identity(snapshot), "filters": filters})


def _opened(path: Path, rows: int, shard: Shard | None) -> ListedDataset | None:
    """Return the data set of tokens; None if it is missing or incomplete.

    Raises:
        SystemReadError, OpenFilesError: The system cannot read it for now, so it may be complete, and in use.
    """
    names: list[str] = []
    with reading_errors(str(path)), suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(path)
    # Sorted by length first: names of earlier releases put the tenth file before the second.
    files = sorted(fnmatch.filter(names, "part-*.parquet"), key=lambda name: (len(name), name))
    if not files:
        return None
    try:
        listed = ListedDataset([str(path / name) for name in files], shard=Shard(0, 1))
    except (SystemReadError, OpenFilesError):
        raise
    except ParquetLoaderError:
        return None
    if listed.num_rows != rows:
        return None
    return with_shard(listed, shard)  # ranks divide it as they divide the text


def _written(path: Path, loader: BatchedDataLoader, schema: Schema, shard: Shard | None) -> ListedDataset:
    """Tokenize all rows, unless another process does so meanwhile; return the data set."""
    dataset = parts_of(loader).dataset
    rows, masks, temporary = dataset.rows, masks_of(dataset.schema), path.parent / f".{path.name}.tmp"
    with _locked(temporary):
        found = _opened(path, rows, shard)
        if found is not None:
            shutil.rmtree(temporary)  # it was made for its lock
            return found
        for old in (*temporary.iterdir(), path):
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        try:
            with DatasetWriter(temporary, schema) as writer:
                for batch in loader:
                    writer.write(arrow_table(batch, masks))
            os.rename(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        found = _opened(path, rows, shard)
    if found is None:
        raise ConfigurationError(f"{path}: the tokens were removed while they were written; keep the cache's directory")
    return found


def _locked(temporary: Path) -> FileLock:
    """Return the lock of the directory in which tokens are written, held; the directory is made if it is missing.

    At any time another process may rename or remove the directory. It then has to be made again.

    Raises:
        SourceError: It cannot be made.
        UnsupportedError: Its file system has no locks.
    """
    place = f"TokenizerOptions(cache={str(temporary.parent)!r})"
    while True:
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # `exist_ok=True` would look again whether the directory is still there
                temporary.mkdir()
        except OSError as error:
            raise SourceError(f"{place}: {error}; name a local directory that can be written") from error
        try:
            lock = FileLock(str(temporary), _DIRECTORY)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SourceError(f"{place}: {error}; name a directory that can be read and written") from error
        try:
            lock.acquire()
        except OSError as error:
            raise UnsupportedError(
                f"{place}: the file system has no locks: {error}; name a directory on a local disk"
            ) from error
        if lock.has_its_name:
            return lock
        lock.close()
