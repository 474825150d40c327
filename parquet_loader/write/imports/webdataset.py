"""`import_webdataset`: tars of samples to Parquet. Files of one key are a row; their extensions are its columns.

Files such as ``.txt`` and ``.json`` become text, files such as ``.cls`` numbers, and ``.npy`` tensors; the bytes of all
others stay unchanged. Pickles are refused: nothing that is read is executed.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from parquet_loader.common import SIGNATURE_BYTES, PathLike
from parquet_loader.errors import SourceError
from parquet_loader.write.imports.importing import run_import
from parquet_loader.write.imports.report import ImportReport
from parquet_loader.write.imports.sharded import Record, ShardedSource, files_of, opener_of
from parquet_loader.write.imports.values import Digits, is_image_alone
from parquet_loader.write.options import WriteOptions

KEY = "__key__"

_NAME = re.compile(r"((?:.*/|)[^./]+)\.([^/]+)", re.DOTALL)
_NUMBERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))
_PICKLES = frozenset(("pkl", "pickle", "pyd", "pth", "pt", "ckpt", "joblib"))
_MOST_BYTES = 2**31 - 2**20


def import_webdataset(
    source: PathLike,
    target: PathLike,
    *,
    columns: Sequence[str] | None = None,
    options: WriteOptions | None = None,
    progress: bool = False,
) -> ImportReport:
    """Import the tars of a WebDataset into a new directory, or continue the import that was interrupted.

    The columns are ``__key__`` and one for each extension; dots in an extension become underscores. The tars are read
    twice: once to find the columns and their types, once for the rows.

    Args:
        source: A tar, a directory of tars, or a pattern; tars may be compressed by gzip, bzip2 or xz.
        target: Directory of the data set: a local one, which does not exist or is empty.
        columns: Names to import; default: all.
        options: Sizes and codec.
        progress: Show a progress bar (needs tqdm).

    Raises:
        SourceError: A tar cannot be read, is truncated, holds a pickle, or has changed since the interrupted run.
        WriteError: The target is not empty, or the file system refuses.
    """
    return run_import(WebDatasetSource(source, columns), target, options=options, progress=progress)


class WebDatasetSource(ShardedSource):
    """Tars of samples."""

    format = "webdataset"

    def find_files(self) -> list[str]:
        """Return the tars."""
        return files_of(self.path, (".tar", ".tgz"), "tars")

    def records(self, path: str, *, scans: bool) -> Iterator[Record]:
        """Yield the samples of a tar: consecutive files with one key."""
        try:
            yield from self._samples(path, scans=scans)
        except tarfile.TarError as error:
            raise SourceError(f"{path}: not a whole tar ({error})") from error

    def _samples(self, path: str, *, scans: bool) -> Iterator[Record]:
        key, nbytes = "", 0
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for name, member, data in _members(path):
            found = _NAME.fullmatch(name)
            if not member.isreg() or found is None or os.path.basename(name).startswith("__"):
                if not member.isdir():
                    yield Record({}, 0, name, "not a file" if not member.isreg() else "its name has no extension")
                continue
            if found[1] != key:
                if len(values) > 1:
                    yield Record(values, nbytes)
                key, values, nbytes = found[1], {KEY: found[1]}, 0
                if key in seen:
                    raise SourceError(f"{path}: the files of sample {key!r} do not follow each other")
                seen.add(key)
            extension = found[2].lower()
            column = extension.replace(".", "_")
            if not self.wants(column):
                continue
            if column in values:
                raise SourceError(f"{path}: sample {key!r} has two files for column {column!r}")
            if member.size > _MOST_BYTES:
                raise SourceError(f"{path}: {name} is larger than 2 GiB, the most that a row may hold")
            last = extension.rpartition(".")[2]
            values[column] = _value(f"{path}: {name}", last, member.size, data, scans=scans)
            nbytes += member.size
        if len(values) > 1:
            yield Record(values, nbytes)


def _value(where: str, extension: str, size: int, file: Any, *, scans: bool) -> Any:
    if extension in _PICKLES:
        raise SourceError(
            f"{where}: a pickle (.{extension}) is never loaded, because it may run code; leave it out by --columns, or "
            "write such columns as .npy or .json"
        )
    head = _bytes(where, file, min(size, SIGNATURE_BYTES))
    if scans and is_image_alone(head):
        return head
    data = head + _bytes(where, file, size - len(head))
    if extension in _NUMBERS:
        return Digits(data)
    if extension == "npy":
        try:
            return np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError, SyntaxError, MemoryError, tokenize.TokenError) as error:
            raise SourceError(f"{where}: not an array that is imported ({error})") from None
    return data


def _bytes(where: str, file: Any, count: int) -> bytes:
    data: bytes = file.read(count)
    if len(data) < count:
        raise SourceError(f"{where}: the tar is truncated")
    return data


def _members(path: str) -> Iterator[tuple[str, tarfile.TarInfo, Any]]:
    """Yield name, header and open file (None if it is not a file) of each entry of a tar; refuse a truncated tar."""
    with open(path, "rb") as raw:
        opener = opener_of(raw.read(6)) or open
    with opener(path, "rb") as file, tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # else `tar` keeps all members in memory
            # Bytes of a name that are not UTF-8 are surrogates; they become escapes.
            name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            name = name.removeprefix("./")
            yield name, member, tar.extractfile(member) if member.isreg() else None
        _check_end(path, file, tar.offset)


def _check_end(path: str, file: Any, offset: int) -> None:
    """Check that only blocks of zeros follow the last entry, as in every complete tar."""
    file.seek(offset)
    end = b""
    is_zero = False
    while part := file.read(2**20):
        end = part
        is_zero = not any(part)
        if not is_zero:
            break
    if not end:
        raise SourceError(f"{path}: the tar is truncated: the blocks at its end are missing")
    if not is_zero:
        raise SourceError(f"{path}: more data follow the end of the tar, or it is damaged there; write one tar a file")
