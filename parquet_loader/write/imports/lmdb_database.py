"""`import_lmdb`: an LMDB of keys and values to Parquet, by the package `lmdb`. Values are never unpickled."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from parquet_loader.common import SIGNATURE_BYTES, PathLike, needs_package
from parquet_loader.errors import SourceError
from parquet_loader.write.imports.importing import run_import
from parquet_loader.write.imports.report import ImportReport
from parquet_loader.write.imports.sharded import Record, ShardedSource
from parquet_loader.write.imports.values import is_image_alone
from parquet_loader.write.options import WriteOptions

_DATABASE_BYTES = 48  # bytes of a named database's entry in the main database
_ABOUT = re.compile(rb"__[a-z_]+__")


def import_lmdb(
    source: PathLike, target: PathLike, *, options: WriteOptions | None = None, progress: bool = False
) -> ImportReport:
    """Import an LMDB into a new directory, or continue the import that was interrupted.

    The columns are ``key`` and ``value``. The database is read twice: once to find the types of keys and values, once
    for the rows.

    Args:
        source: The directory of the database, or its file.
        target: Directory of the data set: a local one, which does not exist or is empty.
        options: Sizes and codec.
        progress: Show a progress bar (needs tqdm).

    Raises:
        SourceError: The database cannot be read, holds pickles, or has changed since the interrupted run.
        WriteError: The target is not empty, or the file system refuses.
        MissingPackageError: The package `lmdb` is not installed.
    """
    return run_import(LMDBSource(source), target, options=options, progress=progress)


class LMDBSource(ShardedSource):
    """The main database of an LMDB environment; named databases in it are refused."""

    format = "lmdb"

    def find_files(self) -> list[str]:
        """Return the file of the database."""
        path = os.path.join(self.path, "data.mdb") if os.path.isdir(self.path) else self.path
        if not os.path.isfile(path):
            raise SourceError(f"{self.path}: not an LMDB; expected a directory that holds data.mdb, or the file itself")
        return [path]

    def records(self, path: str, *, scans: bool) -> Iterator[Record]:
        """Yield keys and values, in the order of the keys."""
        lmdb = _package()
        try:
            with (
                lmdb.open(path, subdir=False, readonly=True, lock=False, create=False, max_dbs=1) as environment,
                environment.begin(buffers=True) as transaction,
            ):
                _check_size(path, environment)
                for key, value in transaction.cursor():
                    if len(value) == _DATABASE_BYTES and _is_database(lmdb, environment, transaction, bytes(key)):
                        raise SourceError(
                            f"{path}: {bytes(key).decode('utf-8', 'backslashreplace')!r} is a named database, which is "
                            "not imported; copy its entries to a database of their own"
                        )
                    yield _record(path, bytes(key), value, scans=scans)
        except lmdb.Error as error:
            raise SourceError(f"{path}: cannot be read as an LMDB ({error})") from error


def _check_size(path: str, environment: Any) -> None:
    """Check that the file holds all pages: reading a page beyond its end kills the process (SIGBUS)."""
    size, needed = os.path.getsize(path), (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if size < needed:
        raise SourceError(
            f"{path}: the file is truncated: it has {size:,} bytes, and its pages take {needed:,}; copy it again, or "
            "if it is whole, rewrite it with mdb_copy -c"
        )


def _is_database(lmdb: Any, environment: Any, transaction: Any, key: bytes) -> bool:
    """Return whether an entry is a named database."""
    try:
        environment.open_db(key, txn=transaction, create=False)
    except (lmdb.IncompatibleError, lmdb.NotFoundError):
        return False
    return True


def _record(path: str, key: bytes, value: memoryview, *, scans: bool) -> Record:
    name = key.decode("utf-8", "backslashreplace")
    if _ABOUT.fullmatch(key):
        return Record({}, 0, name, "its key is that of an entry about the database")
    if len(value) > 2 and value[0] == 0x80 and 2 <= value[1] <= 5 and bytes(value[-1:]) == b".":
        raise SourceError(
            f"{path}: the value of {name!r} is a pickle, which is never loaded, because it may run code; write the "
            "data set again from its source, with DatasetWriter"
        )
    head = bytes(value[:SIGNATURE_BYTES])
    # Copied: the memory of the database is valid until the cursor moves on.
    content = head if scans and is_image_alone(head) else bytes(value)
    return Record({"key": key, "value": content}, len(key) + len(value))


def _package() -> Any:
    with needs_package("lmdb", "an LMDB is read by the package lmdb: pip install 'torch-parquet-loader[lmdb]'"):
        import lmdb  # noqa: PLC0415
    return lmdb
