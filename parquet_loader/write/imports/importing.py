"""Runs an import: writes files to a hidden directory next to the target, and renames it to the target at the end.

    <parent>/.<name>.import/     survives Ctrl-C, kill -9 and errors
        journal.jsonl            line 1: the source and the arguments; one line for each finished file; last "done"
        data/                    the files to publish; one that is not in the journal is incomplete
        lock                     held while the process lives

Invariants: a file is durable under its name before its line is. A line holds the position of the source after the
file's last row. So the next run removes files without a line, and continues at the last line's position. Files begin
and end at the same rows even if the import was interrupted: the result is the same to the byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import (
    FileLock,
    PathLike,
    ShowProgress,
    is_local,
    progress_bar,
    resolve,
    shown_progress,
)
from parquet_loader.errors import ConfigurationError, SourceError, WriteError
from parquet_loader.schema import Schema
from parquet_loader.write.column_layout import choose_layout
from parquet_loader.write.imports.records import ImportSource, Position, Prepared, Tally
from parquet_loader.write.imports.report import ImportReport, SkippedRecords
from parquet_loader.write.jobs.commit import publish_directory
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.staging import StagedFile, fsync, remove_tree

_VERSION = 1


def run_import(
    source: ImportSource, target: PathLike, *, options: WriteOptions | None = None, progress: bool = False
) -> ImportReport:
    """Import a source into a new directory, or continue the import that was interrupted.

    Args:
        source: The source.
        target: Directory of the data set: a local one, which does not exist or is empty.
        options: Sizes and codec.
        progress: Show a progress bar (needs tqdm).

    Raises:
        SourceError: The source cannot be read, holds nothing to import, or has changed since the interrupted run.
        WriteError: The target is not empty, or the file system refuses.
    """
    began_s = time.monotonic()
    filesystem, path = resolve(target)
    if not is_local(filesystem):
        raise ConfigurationError(
            f"{target}: an import writes to a local directory; import to one, then copy its files to {target}"
        )
    bar = progress_bar() if progress else None
    staging = ImportDirectory(path)
    options = options or WriteOptions()
    stopped = f"the import stopped: {{}}; it is continued by the same command, from {staging.root}"
    with storage_errors(path, stopped), staging.held() as journal:
        if journal.is_done and os.path.isdir(path) and not os.path.isdir(staging.data):
            return _finished(source, staging, journal, began_s)  # an earlier run was killed after it had published
        _check_empty(path)
        prepared = _begin(source, staging, journal, options)
        with shown_progress(bar, desc=source.format) as show:
            _write(source, staging, journal, prepared, options, show)
        if not journal.tally.rows:
            _refuse_nothing(source, staging, journal)
        publish_directory(filesystem, staging.data, path, "", mode="error")
        return _finished(source, staging, journal, began_s)


class ImportJournal:
    """The progress of an import, in memory and in its file. Used by one process at a time.

    Attributes:
        head: The first line: the source and the arguments; None if the import has not begun.
        files: Bytes of the finished files, by name.
        tally: The tally of these files.
        position: Where the source continues; None for its beginning.
        is_done: Whether all files are finished.
        resumed_rows: Rows of the files that existed when the journal was opened.
        resumed_bytes: Bytes of their records.
    """

    def __init__(self, path: str) -> None:
        self.head: dict[str, Any] | None = None
        self.files: dict[str, int] = {}
        self.tally = Tally()
        self.position: Position | None = None
        self.is_done = False
        self._path = path
        kept = 0
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # cut off by a kill: its file counts as unfinished
                self._take(json.loads(line))
                kept += len(line)
        self._kept_bytes = kept
        self.resumed_rows, self.resumed_bytes = self.tally.rows, self.tally.nbytes

    def forget(self) -> None:
        """Start over, if no file is finished; the next line is the first one."""
        assert not self.files
        self.head, self.tally, self.position, self.is_done = None, Tally(), None, False
        self._kept_bytes = self.resumed_rows = self.resumed_bytes = 0

    def append(self, line: dict[str, Any]) -> None:
        """Write a line and force it to the disk."""
        content = json.dumps(line).encode("ascii") + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(descriptor, self._kept_bytes)
            with open(descriptor, "wb", closefd=False) as file:
                file.seek(self._kept_bytes)
                file.write(content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._kept_bytes += len(content)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if self.head is None:
            self.head = line
            return
        self.tally.add(Tally.from_json(line["tally"]))
        if "file" in line:
            self.files[line["file"]] = line["bytes"]
            self.position = line["position"]
        self.is_done = line.get("done", False)


class ImportDirectory:
    """The hidden directory of an import.

    Args:
        path: The target.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        parent, name = os.path.split(os.path.realpath(path))
        self.root = os.path.join(parent, f".{name}.import")
        self.data = os.path.join(self.root, "data")
        self._journal = os.path.join(self.root, "journal.jsonl")

    @contextlib.contextmanager
    def held(self) -> Iterator[ImportJournal]:
        """Make the directory if necessary, lock it, and yield its journal.

        If the body fails after the import has begun, the directory stays.
        """
        with storage_errors(self.path, f"the import cannot begin: {self.root} cannot be made: {{}}"):
            os.makedirs(self.root, exist_ok=True)
        with FileLock(os.path.join(self.root, "lock"), os.O_RDWR | os.O_CREAT) as lock:
            if not lock.acquire(waits=False) or not lock.has_its_name:
                raise WriteError(f"{self.path}: another import to this directory is running; wait for its end")
            try:
                journal = ImportJournal(self._journal)
            except (ValueError, KeyError, TypeError) as error:
                raise WriteError(
                    f"{self._journal}: not the journal of an import ({error}); {self.restart_hint}"
                ) from None
            try:
                yield journal
            except BaseException:
                if journal.head is None:
                    remove_tree(self.root)
                raise

    @property
    def restart_hint(self) -> str:
        """How to start the import over, for error messages."""
        return f"to start over, delete {self.root}"

    def clean(self, journal: ImportJournal) -> None:
        """Remove incomplete files, and check that all others exist.

        Raises:
            WriteError: A file is missing or has another size.
        """
        os.makedirs(self.data, exist_ok=True)
        there = {entry.name: entry.stat().st_size for entry in os.scandir(self.data)}
        for name, nbytes in journal.files.items():
            if there.pop(name, None) != nbytes:
                raise WriteError(f"{self.data}: {name} is not as the interrupted import wrote it; {self.restart_hint}")
        for name in there:
            os.unlink(os.path.join(self.data, name))

    def remove(self) -> None:
        """Remove the directory: the import is published."""
        remove_tree(self.root)


def _check_empty(path: str) -> None:
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            first = next(entries, None)
        if first is not None:
            raise WriteError(f"{path}: the directory is not empty, it holds {first.name!r}; import to a new directory")
    elif os.path.lexists(path):
        raise WriteError(f"{path}: this is a file; a data set is written to a directory")


def _begin(source: ImportSource, staging: ImportDirectory, journal: ImportJournal, options: WriteOptions) -> Prepared:
    """Return the prepared source; check that an interrupted import had the same source and arguments."""
    asked = {
        "version": _VERSION,
        "format": source.format,
        "source": source.path,
        "file_bytes": options.file_bytes,
        "row_group_bytes": options.row_group_bytes,
        "compression": options.compression,
    }
    identity = source.identity()
    if journal.head is not None and not journal.files:
        now = asked | {"identity": identity}
        if any(journal.head.get(key) != value for key, value in now.items()):
            journal.forget()
    if journal.head is None:
        prepared = source.prepare()
        head: dict[str, Any] = asked | {
            "identity": identity,
            "schema": prepared.schema.to_json(),
            "facts": prepared.facts,
            "metadata": prepared.metadata,
            "notes": prepared.notes,
            "total": prepared.total,
        }
        staging.clean(journal)
        journal.append(head)
        fsync(staging.root)
        fsync(os.path.dirname(staging.root))
        return prepared
    begun = journal.head
    for key, value in asked.items():
        if begun.get(key) != value:
            raise WriteError(
                f"{staging.path}: an import of {begun.get('source')} with {key}={begun.get(key)!r} was interrupted, "
                f"and this one has {value!r}; repeat that command; {staging.restart_hint}"
            )
    if begun["identity"] != identity:
        raise SourceError(f"{source.path}: changed since its import was interrupted; {staging.restart_hint}")
    staging.clean(journal)
    return Prepared(
        Schema.from_json(begun["schema"]), begun["facts"], begun["metadata"], tuple(begun["notes"]), begun["total"]
    )


def _write(
    source: ImportSource,
    staging: ImportDirectory,
    journal: ImportJournal,
    prepared: Prepared,
    options: WriteOptions,
    show: ShowProgress,
) -> None:
    """Write all rows after the journal's position."""
    if journal.is_done:
        return
    group_bytes = options.group_bytes(len(prepared.schema))
    writer = _FileWriter(staging, journal, prepared, options)
    try:
        chunks = source.chunks(prepared, journal.position, group_bytes)
        with contextlib.closing(chunks):  # type: ignore[type-var]
            for chunk in chunks:
                writer.write(chunk.table, chunk.position, chunk.tally)
                show(chunk.done, prepared.total or chunk.done)
        writer.finish(is_last=True)
    finally:
        writer.discard()


class _FileWriter:
    """Writes chunks to files, and a line of the journal for each finished one."""

    def __init__(
        self, staging: ImportDirectory, journal: ImportJournal, prepared: Prepared, options: WriteOptions
    ) -> None:
        self._staging = staging
        self._journal = journal
        self._metadata = {key.encode(): text.encode() for key, text in prepared.metadata.items()}
        self._options = options
        self._file: StagedFile | None = None
        self._tally = Tally()
        self._position: Position = None

    def write(self, table: pa.Table, position: Position, tally: Tally) -> None:
        """Write a chunk as one row group."""
        self._tally.add(tally)
        self._position = position
        if not table.num_rows:
            return
        if self._file is None:
            # Chosen by the first rows of each file, so that a resumed import makes the same choice.
            layout = choose_layout(table, self._options.compression)
            hidden = os.path.join(self._staging.data, f".{self._name()}.tmp")
            self._file = StagedFile(pafs.LocalFileSystem(), hidden)
            # In the schema, as `datasets` writes it: metadata of the footer alone is not read with the schema.
            schema = table.schema.with_metadata({**(table.schema.metadata or {}), **self._metadata})
            self._file.open(schema, layout.writer_arguments())
        self._file.write(table)
        if self._file.bytes >= int(self._options.file_bytes):
            self.finish()

    def finish(self, *, is_last: bool = False) -> None:
        """Finish the file, and write its line; the last line also says that the import is done."""
        line: dict[str, Any] = {"tally": self._tally.to_json()}
        if self._file is not None:
            name = self._name()
            self._file.finish()
            os.replace(self._file.path, os.path.join(self._staging.data, name))
            fsync(self._staging.data)
            line |= {"file": name, "bytes": self._file.bytes, "position": self._position}
            self._file = None
        if is_last:
            line["done"] = True
        self._journal.append(line)
        self._tally = Tally()

    def discard(self) -> None:
        """Remove the unfinished file."""
        if self._file is not None:
            self._file.discard()

    def _name(self) -> str:
        return f"part-{len(self._journal.files):06}.parquet"


def _refuse_nothing(source: ImportSource, staging: ImportDirectory, journal: ImportJournal) -> None:
    staging.remove()
    skipped = "; ".join(f"{count:,} skipped, {reason}" for reason, (count, _) in journal.tally.skipped.items())
    raise SourceError(f"{source.path}: nothing to import{f': {skipped}' if skipped else ''}")


def _finished(source: ImportSource, staging: ImportDirectory, journal: ImportJournal, began_s: float) -> ImportReport:
    staging.remove()
    tally = journal.tally
    return ImportReport(
        format=source.format,
        source=source.path,
        path=staging.path,
        rows=tally.rows,
        files=len(journal.files),
        resumed_rows=journal.resumed_rows,
        bytes_read=tally.nbytes,
        bytes_stored=sum(journal.files.values()),
        kinds=dict(tally.kinds),
        skipped=tuple(SkippedRecords(why, n, tuple(names)) for why, (n, names) in sorted(tally.skipped.items())),
        notes=tuple((journal.head or {}).get("notes", ())),
        seconds=time.monotonic() - began_s,
        run_bytes=tally.nbytes - journal.resumed_bytes,
    )
