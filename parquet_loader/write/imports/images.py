"""`import_images`: a folder of images to Parquet. The bytes stay unchanged; only their signatures are checked.

Order: by name within a directory, files before subdirectories. A position is a number of directory entries, and a
digest of their names, sizes and times. A resumed import walks these entries again without reading files, and refuses
the folder if any of them has changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import IMAGE_SUFFIXES, SIGNATURE_BYTES, IntArray, PathLike, image_kind, starting_threads
from parquet_loader.errors import SourceError
from parquet_loader.schema import Field, Image, Scalar, Schema, Text
from parquet_loader.write.imports.folder_metadata import METADATA_NAMES, FolderMetadata, find_metadata
from parquet_loader.write.imports.importing import run_import
from parquet_loader.write.imports.records import ImportedRows, ImportSource, Position, Prepared, Tally, listed
from parquet_loader.write.imports.report import ImportReport
from parquet_loader.write.options import WriteOptions

# Measured with files of 50 KB in the page cache: two threads keep the writer busy; more help only on slow storage.
_THREADS = 4
_MOST_BYTES = 2**31 - 2**20
_MOST_ENTRIES = 2**16
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation"))


def import_images(
    folder: PathLike, target: PathLike, *, options: WriteOptions | None = None, progress: bool = False
) -> ImportReport:
    """Import a folder of images into a new directory, or continue the import that was interrupted.

    The columns are ``image`` (the bytes of the file), ``label`` if directories are classes, ``path`` relative to the
    folder, and the columns of a ``metadata.csv`` or ``metadata.jsonl``.

    Memory: about six row groups, or the six largest images if these are larger; and the names in one directory.

    Args:
        folder: A directory of classes, or of images.
        target: Directory of the data set: a local one, which does not exist or is empty.
        options: Sizes and codec.
        progress: Show a progress bar (needs tqdm).

    Raises:
        SourceError: The folder cannot be read, holds no image, or has changed since the interrupted run.
        WriteError: The target is not empty, or the file system refuses.
    """
    return run_import(ImageFolder(folder), target, options=options, progress=progress)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A name in the folder.

    Attributes:
        path: The path relative to the folder.
        size, time_ns: Size and modification time of the file.
        label: Number of its class, or -1.
        row: Its row in the metadata, or -1.
        reason: Why it is left out; "" for an image by its name.
    """

    path: str
    size: int = 0
    time_ns: int = 0
    label: int = -1
    row: int = -1
    reason: str = ""


class ImageFolder(ImportSource):
    """A directory of images.

    Args:
        folder: Its path.
    """

    format = "images"

    def __init__(self, folder: PathLike) -> None:
        self.path = os.path.abspath(os.fspath(folder))
        if not os.path.isdir(self.path):
            what = "is not a directory" if os.path.lexists(self.path) else "does not exist"
            raise SourceError(f"{self.path}: {what}; expected a directory of images, or of directories of images")
        self._metadata: FolderMetadata | None = None
        self._classes: tuple[list[str] | None, tuple[str, ...]] = (None, ())

    def identity(self) -> Any:
        """Return a digest of the metadata, or the classes; positions have a digest of the images."""
        self._metadata = find_metadata(self.path)
        if self._metadata is not None:
            return self._metadata.identity()
        self._classes = _classes(self.path)
        return self._classes[0]

    def prepare(self) -> Prepared:
        """Return the schema; `identity` has found the metadata or the classes."""
        fields: dict[str, Field] = {"image": Image()}
        if self._metadata is not None:
            fields |= {"path": Text(), **self._metadata.schema}
            return Prepared(Schema(fields), {"classes": None}, notes=self._metadata.notes, total=self._metadata.rows)
        classes, notes = self._classes
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        if classes is not None:
            names = [_text(name) for name in classes]
            if repeated := [name for name, count in Counter(names).items() if count > 1]:
                raise SourceError(
                    f"{self.path}: two directories become the class {repeated[0]!r} after bytes that are not UTF-8 are "
                    "escaped; rename one of them"
                )
            fields["label"] = Scalar("int64", names=names)
            features["label"] = {"_type": "ClassLabel", "names": names}
        fields["path"] = Text()
        features["path"] = {"_type": "Value", "dtype": "string"}
        hub = json.dumps({"info": {"features": features}})
        return Prepared(Schema(fields), {"classes": classes}, {"huggingface": hub}, notes)

    def chunks(self, prepared: Prepared, position: Position | None, group_bytes: int) -> Iterator[ImportedRows]:
        """Yield the images in order; a few threads read the files of the next chunks."""
        entries = self._entries(prepared.facts["classes"])
        digest = hashlib.blake2b(digest_size=16)
        done = 0
        if position is not None:
            for _ in range(position["entries"]):
                if (entry := next(entries, None)) is not None:
                    _feed(digest, entry)
            done = position["entries"]
            if digest.hexdigest() != position["digest"]:
                raise SourceError(
                    f"{self.path}: names, sizes or times of files have changed since their import was interrupted; "
                    "to start over, delete the hidden directory of the import next to the target"
                )
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="parquet_loader-import")
        pending: deque[tuple[list[_Entry], Future[_Block]]] = deque()
        blocks = _blocks(entries, min(group_bytes, _MOST_BYTES))
        try:
            while True:
                while len(pending) <= _THREADS and (block := next(blocks, None)) is not None:
                    with starting_threads(f"{self.path}: the import"):
                        pending.append((block, pool.submit(_read_block, self.path, block)))
                if not pending:
                    return
                block, future = pending.popleft()
                read = future.result()
                for entry in block:
                    _feed(digest, entry)
                done += len(block)
                table = self._table(prepared.schema, read)
                yield ImportedRows(table, {"entries": done, "digest": digest.hexdigest()}, read.tally, done)
        finally:
            pool.shutdown(cancel_futures=True)

    def _entries(self, classes: list[str] | None) -> Iterator[_Entry]:
        if self._metadata is not None:
            return _listed(self.path, self._metadata)
        labels = None if classes is None else {name: number for number, name in enumerate(classes)}
        return _walk(self.path, "", labels, -1, ())

    def _table(self, schema: Schema, read: _Block) -> pa.Table:
        columns: dict[str, Any] = {"image": read.images, "path": pa.array(read.paths, pa.string())}
        if "label" in schema and self._metadata is None:
            columns["label"] = pa.array(read.labels, pa.int64())
        if self._metadata is not None:
            taken = self._metadata.table.take(pa.array(read.rows, pa.int64()))
            columns |= {name: taken.column(name) for name in taken.column_names}
        arrow = schema.arrow_schema()
        if "label" in columns:  # `datasets` reads names of classes only from a nullable column
            at = arrow.get_field_index("label")
            arrow = arrow.set(at, arrow.field(at).with_nullable(True))
        return pa.table([columns[field.name] for field in arrow], schema=arrow)


@dataclass(frozen=True, slots=True)
class _Block:
    """The images of some entries, with their paths, labels and rows of the metadata."""

    images: pa.Array
    paths: list[str]
    labels: list[int]
    rows: list[int]
    tally: Tally


def _blocks(entries: Iterator[_Entry], most_bytes: int) -> Iterator[list[_Entry]]:
    """Divide entries into blocks whose files fill a row group, of at most `_MOST_ENTRIES` entries."""
    block: list[_Entry] = []
    held = 0
    for entry in entries:
        if block and (held + entry.size > most_bytes or len(block) == _MOST_ENTRIES):
            yield block
            block, held = [], 0
        block.append(entry)
        held += entry.size
    if block:
        yield block


def _read_block(folder: str, block: list[_Entry]) -> _Block:
    """Read the images of a block into one buffer."""
    tally = Tally()
    buffer = np.empty(sum(entry.size for entry in block if not entry.reason), np.uint8)
    view = memoryview(buffer)  # type: ignore[arg-type]
    kept: list[_Entry] = []
    ends: list[int] = []
    end = 0
    for entry in block:
        if entry.reason:
            tally.skip(entry.reason, _text(entry.path))
            continue
        into = view[end : end + entry.size]
        _read_file(os.path.join(folder, entry.path), into, entry.time_ns)
        kind = image_kind(bytes(into[:SIGNATURE_BYTES]))
        if kind is None:
            tally.skip("empty" if not entry.size else "the bytes are not those of an image", _text(entry.path))
            continue
        tally.kinds[kind] += 1
        end += entry.size
        ends.append(end)
        kept.append(entry)
    tally.rows, tally.nbytes = len(kept), end
    offsets: IntArray = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    images = pa.Array.from_buffers(pa.binary(), len(kept), [None, pa.py_buffer(offsets), pa.py_buffer(buffer[:end])])
    return _Block(images, [_text(e.path) for e in kept], [e.label for e in kept], [e.row for e in kept], tally)


def _read_file(path: str, into: memoryview, time_ns: int) -> None:
    """Read a file, and check that its size and time have not changed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        try:
            done = 0
            while done < len(into) and (count := os.readv(descriptor, [into[done:]])):
                done += count
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
    if done < len(into) or status.st_size != len(into) or status.st_mtime_ns != time_ns:
        raise SourceError(f"{path}: the file changed during the import; start it again when nobody writes there")


def _walk(
    folder: str, inner: str, labels: dict[str, int] | None, label: int, above: tuple[tuple[int, int], ...]
) -> Iterator[_Entry]:
    """Yield the entries below a directory, in order; links are followed, except to a directory above."""
    directories: list[str] = []
    here = os.stat(os.path.join(folder, inner))
    above = (*above, (here.st_dev, here.st_ino))
    for entry in listed(os.path.join(folder, inner)):
        path = os.path.join(inner, entry.name)
        if entry.name.startswith("."):
            yield _Entry(path, reason="hidden")
            continue
        try:
            if entry.is_dir():
                directories.append(path)
                continue
            status = entry.stat()
        except FileNotFoundError:
            yield _Entry(path, reason="a link to nothing")
            continue
        except OSError as error:
            if error.errno == errno.ELOOP:
                yield _Entry(path, reason="a link to nothing")
                continue
            raise SourceError(f"{entry.path}: cannot be read ({error.strerror or error})") from error
        suffix = os.path.splitext(entry.name)[1].lower()
        reason = ""
        if not stat.S_ISREG(status.st_mode):
            reason = "not a file"
        elif inner and entry.name in METADATA_NAMES:
            reason = "metadata of a subdirectory; import that directory alone to read it"
        elif suffix not in IMAGE_SUFFIXES:
            reason = f"not an image by its name ({_text(suffix) or 'no extension'})"
        elif status.st_size > _MOST_BYTES:
            reason = "larger than 2 GiB"
        elif labels is not None and label < 0:
            reason = "not in the directory of a class"
        yield _Entry(path, 0 if reason else status.st_size, status.st_mtime_ns, label, reason=reason)
    for path in directories:
        below = os.stat(os.path.join(folder, path))
        if (below.st_dev, below.st_ino) in above:
            yield _Entry(path, reason="a link to a directory above it")
            continue
        yield from _walk(folder, path, labels, label if inner or labels is None else labels.get(path, -1), above)


def _listed(folder: str, metadata: FolderMetadata) -> Iterator[_Entry]:
    """Yield the files that the metadata names, in its order, then the images that it does not name."""
    for row, name in enumerate(metadata.names):
        path = os.path.normpath(name)
        if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir:
            raise SourceError(f"{metadata.path}: row {row} names {name!r:.200}, which is not in {folder}")
        try:
            status = os.stat(os.path.join(folder, path))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            yield _Entry(path, row=row, reason=f"named in {metadata.name}, but not there")
            continue
        except OSError as error:
            raise SourceError(f"{os.path.join(folder, path)}: cannot be read ({error.strerror or error})") from error
        reason = ""
        if not stat.S_ISREG(status.st_mode):
            reason = "not a file"
        elif status.st_size > _MOST_BYTES:
            reason = "larger than 2 GiB"
        yield _Entry(path, 0 if reason else status.st_size, status.st_mtime_ns, row=row, reason=reason)
    named = {os.path.normpath(name) for name in metadata.names}
    for entry in _walk(folder, "", None, -1, ()):
        if not entry.reason and entry.path not in named:
            yield _Entry(entry.path, time_ns=entry.time_ns, reason=f"not named in {metadata.name}")


def _classes(folder: str) -> tuple[list[str] | None, tuple[str, ...]]:
    """Return the names of classes (directories with images; None if directories are not classes), and notes."""
    directories: list[str] = []
    without: list[str] = []
    has_images = False
    for entry in listed(folder):
        if entry.name.startswith("."):
            continue
        if _is(entry.is_dir):
            (directories if _holds_images(folder, entry.name) else without).append(entry.name)
        elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and _is(entry.is_file):
            has_images = True
    if directories and not has_images and all(name.lower() in _SPLITS for name in directories):
        each = "; ".join(
            f"parquet-loader import images {os.path.join(folder, name)} OUT/{name}" for name in directories
        )
        raise SourceError(f"{folder}: {', '.join(directories)} are splits, not classes; import each: {each}")
    notes = [f"{name!r} holds no image, and is not a class" for name in without]
    if directories and has_images:
        notes.append("images lie next to directories, so directories are not classes, and there is no label column")
        return None, tuple(notes)
    return directories or None, tuple(notes)


def _is(of_kind: Callable[[], bool]) -> bool:
    """Return whether an entry is of a kind; False for a link to itself."""
    try:
        return of_kind()
    except OSError:
        return False


def _holds_images(folder: str, inner: str) -> bool:
    return any(not entry.reason for entry in _walk(folder, inner, None, -1, ()))


def _feed(digest: Any, entry: _Entry) -> None:
    digest.update(os.fsencode(f"{entry.path}\0{entry.size}\0{entry.time_ns}\0{entry.reason}\n"))


def _text(path: str) -> str:
    """Return a file name as text; bytes that are not UTF-8 become escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
