"""What was found out about a source that is not local, kept in plain files, so that the next start asks for little.

A start lists the source again, several pages at a time, since it is known where they end, and reads the footers of
those files alone whose size or ETag (or, where there is none, time) is another. The footers of all lie beside it.

`NAME.snapshot` is a manifest and the places of footers, `NAME-RANDOM.footers` the footers as they are in the files. A
file appears whole or not at all; what is damaged or missing is found out again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.fs as pafs

from parquet_loader.filesystem import is_local, resolve
from parquet_loader.footers import StoredFooters
from parquet_loader.manifest import dump_snapshot, load_snapshot
from parquet_loader.options import RemoteOptions
from parquet_loader.redact import without_secrets
from parquet_loader.snapshot import Snapshot, open_snapshot
from parquet_loader.source import Source
from parquet_loader.types import IntArray


def open_remembered(source: Source, filesystem: Any, remote: RemoteOptions) -> Snapshot:
    """Return the snapshot of a source, and keep it in `remote.snapshot_cache` where the source is not local.

    Signed URLs are secrets, and others the next time: what has such names is not kept.

    Raises:
        SourceError, ConfigurationError: as `open_snapshot`.
    """
    folder = os.path.expanduser(str(remote.snapshot_cache))
    first = source[0] if isinstance(source, Sequence) and not isinstance(source, str | bytes) and source else source
    home = resolve(first, filesystem)[0]  # type: ignore[arg-type]
    if is_local(home):
        return open_snapshot(source, filesystem, remote=remote)
    path = os.path.join(folder, _name(source, home) + ".snapshot")
    known = _loaded(path, home, remote)
    read: dict[int, bytes] = {}
    snapshot = open_snapshot(source, filesystem, remote=remote, known=known, record=read.__setitem__)
    if any(file.path != file.name for file in snapshot.files):
        return snapshot
    if known is None or read or len(known.files) != len(snapshot.files):
        with contextlib.suppress(OSError):  # a full disk: the next start is as slow as this one
            _keep(path, snapshot, read, known)
    return snapshot


def _name(source: Source, home: pafs.FileSystem) -> str:
    entries = [source] if isinstance(source, str | os.PathLike) else list(source)
    told = [home.type_name, *(without_secrets(str(entry)) for entry in entries)]
    with contextlib.suppress(Exception):
        told.append(str(home.__reduce__()[1][0].get("endpoint_override", "")))
    return hashlib.blake2b("\n".join(told).encode(), digest_size=16).hexdigest()


def _loaded(path: str, home: pafs.FileSystem, remote: RemoteOptions) -> Snapshot | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            snapshot = load_snapshot(stored["manifest"].tobytes(), home, remote)
            footers, places = str(stored["footers"]), stored["places"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if places.shape != (len(snapshot.files), 2):
        return None
    snapshot.footers.stored = StoredFooters(os.path.join(os.path.dirname(path), footers), places)
    return snapshot


def _keep(path: str, snapshot: Snapshot, read: dict[int, bytes], known: Snapshot | None) -> None:
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    token = secrets.token_hex(4)
    key = name.removesuffix(".snapshot")
    footers = f"{key}-{token}.footers"
    places: IntArray = np.zeros((len(snapshot.files), 2), np.int64)
    before = None if known is None else known.footers.stored
    numbers = {} if known is None else {file.path: number for number, file in enumerate(known.files)}
    temporary = os.path.join(folder, f".{token}")
    try:
        with open(temporary, "wb") as out:
            for number, file in enumerate(snapshot.files):
                raw = read.get(number)
                if raw is None and before is not None and file.path in numbers:
                    raw = before.read(numbers[file.path])
                places[number] = out.tell(), len(raw or b"")
                out.write(raw or b"")
        os.replace(temporary, os.path.join(folder, footers))
        stream = io.BytesIO()
        manifest = np.frombuffer(dump_snapshot(snapshot), np.uint8)
        np.savez(stream, manifest=manifest, footers=np.array(footers), places=places)
        with open(temporary, "wb") as out:
            out.write(stream.getvalue())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    snapshot.footers.stored = StoredFooters(os.path.join(folder, footers), places)
    for other in os.listdir(folder):
        if other.startswith(key) and other.endswith(".footers") and other != footers:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, other))
