"""The list of files of one epoch: serialised for other ranks, and stored for the states that name it.

A list under ``snapshots/`` is written once, under the store's lock, and never changes. The newest lists are kept, and
those that a hold names. A hold is a file under ``holds/``: a line of JSON, and the names of the files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.fs as pafs

from parquet_loader.common import IntArray, remove_file, replace_file
from parquet_loader.errors import SourceError
from parquet_loader.source import FooterCache, Snapshot, SourceFile, dump_snapshot, load_snapshot
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import StorePaths, names_in, share_record

KEPT_LISTS = 64
_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, eq=False)
class FileList:
    """The files of one epoch.

    Attributes:
        identity: The name of the snapshot: a hash of its files, and with weights also of the row groups' repeats.
        snapshot: The files, in their order, as a loader reads them.
        times: int64 ``[files]``: how often each file's rows are delivered in the epoch, rounded up.
        arrived: int64 ``[files]``: the first epoch of the loader that saw each file.
        about: The loader's own data about these files; None if the list was not kept for a state.
        gone: int64: positions of files that no longer exist.
    """

    identity: str
    snapshot: Snapshot
    times: IntArray
    arrived: IntArray
    about: bytes | None
    gone: IntArray

    @property
    def names(self) -> list[str]:
        """The files' names."""
        return [os.path.basename(file.path) for file in self.snapshot.files]

    def dump(self, about: bytes | None = None) -> bytes:
        """Return the list as bytes, with names instead of paths, because machines may mount a directory elsewhere."""
        texts = {"names": "\n".join(self.names).encode(), "identity": self.identity.encode(), "about": about or b""}
        sizes = np.fromiter((file.size_bytes for file in self.snapshot.files), np.int64, len(self.times))
        times = np.fromiter((file.mtime_ns or 0 for file in self.snapshot.files), np.int64, len(self.times))
        arrays: dict[str, Any] = {"times": self.times, "arrived": self.arrived, "sizes": sizes, "changed": times}
        arrays |= {name: np.frombuffer(zlib.compress(text, 1), np.uint8) for name, text in texts.items()}
        arrays["snapshot"] = np.frombuffer(dump_snapshot(replace(self.snapshot, files=())), np.uint8)
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    @classmethod
    def load(cls, data: bytes, paths: StorePaths) -> FileList:
        """Return the list from its bytes, with the present state of the files.

        Raises:
            SourceError: The list is damaged.
        """
        filesystem = pafs.LocalFileSystem()
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            snapshot = load_snapshot(arrays["snapshot"].tobytes(), filesystem)
            texts = {name: zlib.decompress(arrays[name].tobytes()) for name in ("names", "identity", "about")}
            names = texts["names"].decode().split("\n")
            known = list(zip(names, arrays["sizes"].tolist(), arrays["changed"].tolist(), strict=True))
        except (ValueError, KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise SourceError(f"{paths.snapshots}: a list of files is damaged: {error}") from error
        unknown = [name for name in names if not FileName.parse(name)]
        if unknown:
            raise SourceError(f"{paths.snapshots}: a list of files is damaged: it names {unknown[0]!r}")
        files: list[SourceFile] = []
        gone: list[int] = []
        for number, (name, size, changed) in enumerate(known):
            path = paths.file(name)
            try:
                files.append(SourceFile(path, size, os.stat(path).st_mtime_ns))
            except FileNotFoundError:
                files.append(SourceFile(path, size, changed))
                gone.append(number)
        return cls(
            texts["identity"].decode(),
            replace(snapshot, files=tuple(files), footers=FooterCache(filesystem, tuple(files), snapshot.file_digest)),
            arrays["times"].astype(np.int64),
            arrays["arrived"].astype(np.int64),
            texts["about"] or None,
            np.array(gone, np.int64),
        )


def keep_list(paths: StorePaths, name: str, data: bytes) -> None:
    """Keep a list, and remove the oldest ones beyond `KEPT_LISTS`; called in a transaction."""
    path = os.path.join(paths.snapshots, name)
    is_new = not os.path.exists(path)
    if is_new:
        replace_file(path, data)
        share_record(path)
    else:
        os.utime(path)
    ages: dict[str, int] = {}
    for other in names_in(paths.snapshots):
        with contextlib.suppress(FileNotFoundError):
            ages[other] = os.stat(os.path.join(paths.snapshots, other)).st_mtime_ns
    newest = max(ages.values(), default=0)
    if ages.pop(name, newest) < newest:  # the clock was set back
        with contextlib.suppress(PermissionError):  # another user's list
            os.utime(path, ns=(newest + 1, newest + 1))
    if is_new:
        held = {hold.partition("-")[0] for hold in names_in(paths.holds)}
        for other in sorted(ages, key=lambda other: ages[other])[: 1 - KEPT_LISTS]:
            if other not in held:
                remove_file(os.path.join(paths.snapshots, other))


def read_list(paths: StorePaths, name: str) -> bytes | None:
    """Return a kept list; None if no list has this name."""
    if not is_list_name(name):
        return None
    try:
        with open(os.path.join(paths.snapshots, name), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def is_list_name(name: object) -> bool:
    """Return whether this is a valid name of a list; it comes from a state, and becomes part of a path."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class HeldState:
    """Files that `SampleStore.hold` keeps for a loader's state.

    Attributes:
        snapshot: The snapshot that the state names.
        epoch, batch: The state's position.
        since_s: The beginning of the hold, in seconds since 1970.
        files: Number of files held.
        gone_files: Number of files of the snapshot that were already gone.
    """

    snapshot: str
    epoch: int
    batch: int
    since_s: float
    files: int
    gone_files: int

    @property
    def is_sound(self) -> bool:
        """Whether its values are valid; they may come from a file that others can write, and form a path."""
        numbers = (self.epoch, self.batch, self.files, self.gone_files)
        return is_list_name(self.snapshot) and all(type(n) is int and n >= 0 for n in numbers)

    @property
    def name(self) -> str:
        """Its name under ``holds/``."""
        return f"{self.snapshot}-{self.epoch}-{self.batch}"


def write_hold(paths: StorePaths, held: HeldState, names: Sequence[str]) -> None:
    """Hold files from now on; called in a transaction."""
    about = {name: getattr(held, name) for name in HeldState.__slots__}
    text = "\n".join([json.dumps(about), *names, ""])
    path = os.path.join(paths.holds, held.name)
    replace_file(path, text.encode("utf-8"))
    share_record(path)


def read_holds(paths: StorePaths) -> list[HeldState]:
    """Return the holds, the oldest first."""
    found: list[HeldState] = []
    for name in names_in(paths.holds):
        with (
            contextlib.suppress(OSError, ValueError, TypeError),
            open(os.path.join(paths.holds, name), encoding="utf-8") as file,
        ):
            held = HeldState(**json.loads(file.readline()))
            if held.is_sound and held.name == name:
                found.append(held)
    return sorted(found, key=lambda held: held.since_s)
