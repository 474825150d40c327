"""Opens a store: creates it, checks or changes its settings, or opens it read-only."""

from __future__ import annotations

import contextlib
import os

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader.common import check_locks_exclude, exclusive, replace_file
from parquet_loader.errors import ConfigurationError, SchemaError, SourceError, WriteError
from parquet_loader.schema import Schema
from parquet_loader.source import table_to_write_to
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import HIDDEN, StorePaths, share_record
from parquet_loader.store.files.stored_file import FOOTER_KEY
from parquet_loader.store.settings import (
    Eviction,
    StoreOptions,
    StoreSettings,
    changed_settings,
    new_settings,
    settings_of_footer,
)
from parquet_loader.write import storage_errors


def open_settings(
    paths: StorePaths,
    schema: Schema | None,
    max_bytes: int | str | None,
    evict: Eviction | None,
    options: StoreOptions | None,
) -> tuple[StoreSettings, bool]:
    """Return the settings of a store, created or changed by the arguments, and whether it is read-only.

    Arguments and errors as in `SampleStore`.
    """
    if HIDDEN in paths.root.split(os.sep):
        raise ConfigurationError(
            f"{paths.root}: this is within a store's own directory {HIDDEN!r}; pass the directory above it"
        )
    if os.path.lexists(paths.root) and not os.path.isdir(paths.root):
        raise WriteError(f"{paths.root}: this is a file; pass a directory")
    known = _known_settings(paths)
    if schema is not None and schema.extra == "infer":
        raise ConfigurationError(
            f"{paths.root}: a store needs a schema of all its columns; Schema.from_frame(batch) gives one, and "
            "extra='infer' is for loaders and writers of data sets"
        )
    if known is None and schema is None:
        raise SourceError(
            f"{paths.root}: there is no sample store here; pass a store's directory, or create a store in Python: "
            "SampleStore(path, schema=...)"
        )

    def changed(known: StoreSettings) -> StoreSettings:
        return changed_settings(known, paths.root, schema=schema, max_bytes=max_bytes, evict=evict, options=options)

    if known is not None and not _may_write(paths):
        if changed(known) != known:
            raise WriteError(
                f"{paths.root}: the directory is read-only, so the settings cannot change; open the store without them"
            )
        return known, True
    advice = "; free some space, or check its permissions"
    with storage_errors(paths.root, "the store cannot be created or opened: {}", advice):
        if known is None:
            table = table_to_write_to(pafs.LocalFileSystem(), paths.root, ())
            if table is not None:
                raise WriteError(table.writing_refusal(paths.root))
        paths.make()
        check_locks_exclude(paths.ledger)
        with exclusive(paths.ledger):
            share_record(paths.ledger)
            known = _known_settings(paths)  # again, because another process may have created the store
            if known is None:
                assert schema is not None
                wanted = new_settings(schema, max_bytes, evict, options)
            else:
                wanted = changed(known)
            if wanted != known or not os.path.exists(paths.settings):
                replace_file(paths.settings, wanted.to_json().encode("utf-8"))
                share_record(paths.settings)
    return wanted, False


def _known_settings(paths: StorePaths) -> StoreSettings | None:
    """Return the settings in the hidden directory, or else those in the footer of the newest file that has some."""
    try:
        with open(paths.settings, "rb") as file:
            return StoreSettings.from_json(file.read(), paths.settings)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SourceError(f"{paths.settings}: cannot be read: {error.strerror}; check its permissions") from error
    return _settings_of_files(paths.root)


def _settings_of_files(root: str) -> StoreSettings | None:
    """Return the settings in the footer of the newest published file, if the hidden directory is lost."""
    try:
        names = sorted((name for name in os.listdir(root) if FileName.parse(name)), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"{root}: cannot be listed: {error.strerror}; check its permissions") from error
    for name in names:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, SchemaError, SourceError):
            footer = pq.read_metadata(os.path.join(root, name)).metadata or {}
            if FOOTER_KEY in footer:
                return settings_of_footer(footer[FOOTER_KEY], os.path.join(root, name))
    return None


def _may_write(paths: StorePaths) -> bool:
    """Return whether this process may change the store; False also on a file system that is mounted read-only."""
    try:
        for directory in (paths.root, paths.hidden):
            if os.path.isdir(directory) and not os.access(directory, os.W_OK | os.X_OK):
                return False
        return not os.path.exists(paths.ledger) or os.access(paths.ledger, os.R_OK | os.W_OK)
    except OSError:
        return False
