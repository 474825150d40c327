"""On-disk cache of listings and footers of remote sources, so that the next start needs few requests.

Names in these files are checked: another user who can write to the directory must not make this process touch other
files.

A start lists the source again, several pages at a time, because the last listing tells where pages end. It reads only
the footers of files with a new size or ETag (or modification time, without ETags). The cache holds all others.

`NAME.snapshot` is a manifest with the offsets of the footers, and `NAME-RANDOM.footers` holds the footers. Files are
published atomically. A damaged or missing file is created again. Replaced footers are kept for an hour, because another
process may still read them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow.fs as pafs

from parquet_loader.common import (
    IntArray,
    RemoteOptions,
    check_private,
    identity_of,
    is_local,
    local_path,
    make_private,
    no_link,
    resolve,
    shown,
    without_secrets,
)
from parquet_loader.source.footers import StoredFooters
from parquet_loader.source.listing import Selection, Source
from parquet_loader.source.manifest import dump_snapshot, load_snapshot
from parquet_loader.source.opening import open_snapshot
from parquet_loader.source.snapshot import Snapshot

_KEPT_S = 3600.0


def open_remembered(
    source: Source, filesystem: Any, remote: RemoteOptions, selection: Selection | None = None
) -> Snapshot:
    """Return the snapshot of a source, and keep it in `remote.snapshot_cache` if the source is remote.

    Sources with signed URLs are not kept, because these are secrets and differ at each start.

    Raises:
        SourceError, ConfigurationError: as `open_snapshot`.
    """
    folder = local_path(str(remote.snapshot_cache))
    first = source[0] if isinstance(source, Sequence) and not isinstance(source, str | bytes) and source else source
    home = resolve(first, filesystem)[0]  # type: ignore[arg-type]
    if is_local(home):
        return open_snapshot(source, filesystem, remote=remote, selection=selection)
    if not remote.snapshot_cache_shared:
        with contextlib.suppress(OSError):  # then nothing is kept, as on a full disk
            make_private(folder)
        check_private(folder, "RemoteOptions(snapshot_cache=...)", "pass snapshot_cache_shared=True")
    path = os.path.join(folder, _name(source, home, selection) + ".snapshot")
    known = _loaded(path, home, remote)
    with _FooterWriter(folder, os.path.basename(path).removesuffix(".snapshot")) as read:
        snapshot = open_snapshot(source, filesystem, remote=remote, known=known, record=read.add, selection=selection)
        if any(file.path != shown(file.path) for file in snapshot.files):
            return snapshot
        if known is None or read.places or len(known.files) != len(snapshot.files):
            with contextlib.suppress(OSError):  # a full disk: the next start is as slow as this one
                _keep(path, snapshot, read, known)
    return snapshot


class _FooterWriter:
    """Writes footers as they are read, because those of a hundred thousand files are gigabytes.

    Args:
        folder: The directory of the cache.
        key: The prefix of the names of its files.
    """

    def __init__(self, folder: str, key: str) -> None:
        self._folder = folder
        self._key = key
        self._token = secrets.token_hex(4)
        self.temporary = os.path.join(folder, f".{key}-{self._token}")
        self.places: dict[int, tuple[int, int]] = {}
        self._out: BinaryIO | None = None
        self._failed: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._out is not None:
                self._out.close()  # writes the rest, and fails on a full disk
        with contextlib.suppress(OSError):
            os.unlink(self.temporary)

    def add(self, file: int, raw: bytes) -> None:
        """Write the footer of a file; `publish` raises the error if this fails."""
        try:
            if self._out is None:
                os.makedirs(self._folder, exist_ok=True)
                self._out = open(self.temporary, "xb")  # noqa: SIM115 (closed at the end)
            self.places[file] = self._out.tell(), len(raw)
            if self._failed is None:
                self._out.write(raw)
        except OSError as error:
            self._failed = error

    def publish(self) -> str:
        """Publish the file, and return its name. Raises `OSError` if it could not be written."""
        self.add(-1, b"")
        if self._out is not None:
            self._out.close()
        if self._failed is not None:
            raise self._failed
        name = f"{self._key}-{self._token}.footers"
        os.replace(self.temporary, os.path.join(self._folder, name))
        return name


def _name(source: Source, home: pafs.FileSystem, selection: Selection | None) -> str:
    entries = [source] if isinstance(source, str | os.PathLike) else list(source)
    told = [identity_of(home), *(without_secrets(str(entry)) for entry in entries)]
    if selection is not None and selection.split is not None:
        told.append(f"split={selection.split}")
    return hashlib.blake2b("\n".join(told).encode(), digest_size=16).hexdigest()


def _loaded(path: str, home: pafs.FileSystem, remote: RemoteOptions) -> Snapshot | None:
    key = os.path.basename(path).removesuffix(".snapshot")
    try:
        with open(path, "rb", opener=no_link) as opened, np.load(opened, allow_pickle=False) as stored:
            snapshot = load_snapshot(stored["manifest"].tobytes(), home, remote)
            footers, places = str(stored["footers"]), stored["places"]
            if not re.fullmatch(re.escape(key) + r"-[0-9a-f]{8}\.footers", footers):
                return None
            stored_at = os.path.join(os.path.dirname(path), footers)
            found = os.lstat(stored_at)
            is_whole = places.shape == (len(snapshot.files), 2) and places.min(initial=0) >= 0
            if not is_whole or not stat.S_ISREG(found.st_mode) or found.st_size != places.sum(axis=1).max(initial=0):
                return None
            with contextlib.suppress(OSError):  # the directory may be read-only
                os.utime(stored_at, follow_symlinks=False)  # marks it as in use
    except Exception:  # a damaged archive, array or schema can raise any error
        return None
    snapshot.footers.stored = StoredFooters(stored_at, places)
    return snapshot


def _keep(path: str, snapshot: Snapshot, read: _FooterWriter, known: Snapshot | None) -> None:
    folder = os.path.dirname(path)
    before = None if known is None else known.footers.stored
    numbers = {} if known is None else {file.lasting_path: number for number, file in enumerate(known.files)}
    for number, file in enumerate(snapshot.files):
        if number not in read.places and before is not None and file.lasting_path in numbers:
            read.add(number, before.read(numbers[file.lasting_path]) or b"")
    footers = read.publish()
    places: IntArray = np.array([read.places.get(n, (0, 0)) for n in range(len(snapshot.files))], np.int64)
    stream = io.BytesIO()
    manifest = np.frombuffer(dump_snapshot(snapshot), np.uint8)
    np.savez(stream, manifest=manifest, footers=np.array(footers), places=places)
    with open(read.temporary, "xb") as out:
        out.write(stream.getvalue())
    os.replace(read.temporary, path)
    snapshot.footers.stored = StoredFooters(os.path.join(folder, footers), places)
    _clean(folder, os.path.basename(path).removesuffix(".snapshot"), footers)


def _clean(folder: str, key: str, footers: str) -> None:
    """Remove files that no process reads any more, and unfinished files of killed processes."""
    oldest_s = time.time() - _KEPT_S
    for other in os.listdir(folder):
        is_ours = other.startswith((f"{key}-", f".{key}-"))
        if is_ours and other != footers:
            with contextlib.suppress(OSError):
                if os.stat(os.path.join(folder, other)).st_mtime < oldest_s:
                    os.unlink(os.path.join(folder, other))
