"""The catalog of published files, from their footers; each footer is read once, because files never change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import IntArray, in_threads, system_error
from parquet_loader.errors import SourceError
from parquet_loader.source import FooterCache, Snapshot, SourceFile, read_footer
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import StorePaths
from parquet_loader.store.files.stored_file import FOOTER_KEY, StoredFile

_FOOTERS_IN_PARALLEL = 16
_FEW = 64  # reading this many footers takes less time than starting threads


@dataclass(frozen=True, slots=True, eq=False)
class CatalogEntry:
    """The facts in the footer of one file.

    Attributes:
        file: The file.
        source: The file as readers list it.
        group_rows, group_bytes, group_unencoded_bytes: Rows and bytes of each row group, see `Metadata`.
        schema: Its columns; files of the same columns share one object.
        digest: The digest of the footer.
    """

    file: StoredFile
    source: SourceFile
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    group_unencoded_bytes: tuple[int, ...]
    schema: pa.Schema
    digest: int


class FileCatalog:
    """The known facts of published files, by name. Any thread may use it.

    Args:
        paths: The paths of the store.
        identity: The store's identity; files of other stores are refused, even if their names match.
    """

    def __init__(self, paths: StorePaths, identity: str) -> None:
        self._paths = paths
        self._identity = identity
        self._known: dict[str, CatalogEntry] = {}
        self._refused: dict[str, str] = {}
        self._schemas: dict[bytes, pa.Schema] = {}
        self._filesystem = pafs.LocalFileSystem()

    @property
    def refused(self) -> Mapping[str, str]:
        """Files that have a published file's name but do not belong to the store, each with the reason."""
        return MappingProxyType(dict(self._refused))

    def examine_all(self, names: Iterable[str]) -> list[CatalogEntry]:
        """Return the facts of the present files, as `examine` does, and forget all other files."""
        wanted = dict.fromkeys(names)
        for known in (self._known, self._refused):
            for name in list(known):
                if name not in wanted:
                    known.pop(name, None)
        return self.examine(wanted)

    def examine(self, names: Iterable[str]) -> list[CatalogEntry]:
        """Return the facts of these files, in this order, without files that are gone or refused.

        Reads footers that were not read before, and again those of refused files, which may have been repaired.
        """
        found = {name: self._known.get(name) for name in names}  # other threads may forget files meanwhile
        new = [name for name, known in found.items() if known is None]
        if len(new) > _FEW:
            most = min(_FOOTERS_IN_PARALLEL, 2 * (os.cpu_count() or 1))
            footers = in_threads(self._footer, new, most, "parquet_loader-footers")
        else:
            footers = [self._footer(name) for name in new]
        for name, footer in zip(new, footers, strict=True):
            self._refused.pop(name, None)
            if isinstance(footer, str):
                self._refused[name] = footer
            elif footer is not None:
                found[name] = self._known[name] = footer
        return [known for known in found.values() if known is not None]

    def forget(self, names: Iterable[str]) -> None:
        """Forget these files."""
        for name in names:
            self._known.pop(name, None)

    def snapshot(self, files: Sequence[CatalogEntry], copies: Sequence[IntArray] | None = None) -> Snapshot:
        """Return the files as a loader reads them.

        Args:
            files: The files, in their order.
            copies: How often each row group is listed, int64 ``[row groups]`` for each file; None for once.
        """
        groups = np.fromiter((len(f.group_rows) for f in files), np.int64, len(files))
        file = np.repeat(np.arange(len(files)), groups)
        number = np.arange(len(file)) - np.repeat(np.cumsum(groups) - groups, groups)
        rows = np.fromiter(chain.from_iterable(f.group_rows for f in files), np.int64, len(file))
        sizes = np.fromiter(chain.from_iterable(f.group_bytes for f in files), np.int64, len(file))
        unencoded = np.fromiter(chain.from_iterable(f.group_unencoded_bytes for f in files), np.int64, len(file))
        if copies is not None:
            times = np.concatenate([np.zeros(0, np.int64), *copies])
            file, number, rows, sizes, unencoded = (np.repeat(a, times) for a in (file, number, rows, sizes, unencoded))
        sources = tuple(f.source for f in files)
        digests = np.fromiter((f.digest for f in files), np.uint64, len(files))
        schemas = list({id(f.schema): f.schema for f in files}.values())
        numbers = {id(schema): number for number, schema in enumerate(schemas)}
        return Snapshot(
            filesystem=self._filesystem,
            files=sources,
            schemas=tuple(schemas),
            file_schema=np.fromiter((numbers[id(f.schema)] for f in files), np.int32, len(files)),
            file_digest=digests,
            row_group_file=file.astype(np.int32),
            row_group_number=number.astype(np.int32),
            row_group_rows=rows,
            row_group_bytes=sizes,
            row_group_unencoded_bytes=unencoded,
            partition_schema=pa.schema([]),
            footers=FooterCache(self._filesystem, sources, digests),
        )

    def _footer(self, name: str) -> CatalogEntry | str | None:
        """Return the facts in the footer, the reason why the file is refused, or None if it is gone.

        Runs on several threads.

        Raises:
            SystemReadError: The system could not read the file.
        """
        path = self._paths.file(name)
        parsed = FileName.parse(name)
        assert parsed is not None
        try:
            found = os.stat(path)
            source = SourceFile(path, found.st_size, found.st_mtime_ns)
            read = read_footer(self._filesystem, source)
            footer = read.parsed
            about = json.loads(footer.schema.key_values.get(FOOTER_KEY, b"null"))
            if not isinstance(about, dict) or about.get("store") != self._identity:
                return "its footer does not name this store"
        except FileNotFoundError:
            return None
        except (SourceError, OSError, ValueError, pa.ArrowException) as error:
            failure = system_error(path, error)
            if failure is not None and os.path.lexists(path):
                raise failure from error  # the file may be sound
            return str(error) if os.path.lexists(path) else None
        file = StoredFile(
            name=name,
            path=path,
            sequence=parsed.sequence,
            published_s=parsed.published_us / 1e6,
            rows=footer.num_rows,
            size_bytes=found.st_size,
            writer=parsed.writer,
            priority=_number(about.get("priority")),
            metadata=_texts(about.get("metadata")),
        )
        rows, sizes = tuple(footer.row_group_rows.tolist()), tuple(footer.row_group_bytes.tolist())
        unencoded = tuple(footer.row_group_unencoded_bytes.tolist())
        schema = self._schemas.setdefault(footer.schema.arrow.serialize().to_pybytes(), footer.schema.arrow)
        return CatalogEntry(file, source, rows, sizes, unencoded, schema, read.digest)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _texts(value: Any) -> Mapping[str, str]:
    return MappingProxyType({str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {})
