"""The common form of all table formats: the files of one version, their names, constants and deleted rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import RemoteOptions
from parquet_loader.source.tables.deletes import Deletes
from parquet_loader.source.tables.names import Names

Promotes: TypeAlias = Callable[[pa.DataType, pa.DataType], bool]
"""Returns whether a type in a file may be delivered as another type in the table; called for leaf types."""


def _never(_: pa.DataType, __: pa.DataType) -> bool:
    return False


class TableFile(NamedTuple):
    """One data file of a table version.

    Attributes:
        path: Path within the file system.
        size_bytes: Its size in the table's metadata; a file of another size is refused.
        deletes: Its deleted rows, or None.
        rows: Its number of rows in the table's metadata, including deleted ones, or None; a file with another number is
            refused.
        modified_ns: Its time of writing in the table's metadata. It identifies a remote file between versions.
    """

    path: str
    size_bytes: int
    deletes: Deletes | None = None
    rows: int | None = None
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class TableInfo:
    """The table and version of a snapshot.

    Attributes:
        format: The format, such as ``"delta"``.
        root: The table's name for messages.
        version: The version's number or id; states hold it.
        reopen: An expression that opens a version, for messages; ``{version}`` stands for the version.
        schema: The table's columns in order, including partition columns; None takes the columns of the files.
        removed: Possible reasons for a missing file of this version, for messages.
    """

    format: str
    root: str
    version: int | str
    reopen: str
    schema: pa.Schema | None = None
    removed: str = ""

    @property
    def name(self) -> str:
        """The name of the version in states."""
        return f"{self.format} version {self.version}"

    @property
    def if_gone(self) -> str:
        """Addition to the error message if a file is gone."""
        text = f"version {self.version} of the table {self.root} needs it"
        return f"{text}; {self.removed}" if self.removed else text

    def reopening(self, name: str) -> str:
        """Return an expression that opens the version in a state."""
        return self.reopen.replace("{version}", name.removeprefix(f"{self.format} version "))


@dataclass(frozen=True, slots=True, eq=False)
class TableVersion:
    """One version of a table.

    Attributes:
        info: The table and the version.
        filesystem: The file system of all files.
        files: The data files, in an order that depends only on the version.
        names: The columns' names in files; None delivers the files' own names and types.
        constants: One row for each file, with columns that files may lack, by the table's names and types: partition
            values and defaults. A column that is neither here nor in a file is null in that file.
        constants_win: Whether constants are delivered even if a file has a column of that name.
        partitions: The constants that are partition values, so that they hold for all rows of a file, also if null.
        promotes: Decides which types in files may be delivered as other types in the table.
        prefix: The prefix that makes a file's path a URL.
        directory: The table's directory in the file system; its files may lie elsewhere.
    """

    info: TableInfo
    filesystem: pafs.FileSystem
    files: tuple[TableFile, ...]
    names: Names | None = None
    constants: pa.Table | None = None
    constants_win: bool = True
    partitions: frozenset[str] = frozenset()
    promotes: Promotes = field(default=_never)
    prefix: str = ""
    directory: str = ""


class DeltaLakeTable(Protocol):
    """The attributes that identify a `deltalake.DeltaTable`; the table's version is read."""

    @property
    def table_uri(self) -> str: ...  # noqa: D102
    def version(self) -> int: ...  # noqa: D102


class PyIcebergTable(Protocol):
    """The attributes that identify a `pyiceberg.table.Table`; its current snapshot is read."""

    metadata_location: str

    def current_snapshot(self) -> Any: ...  # noqa: D102


@runtime_checkable
class VersionedSource(Protocol):
    """A source with versions: one of them, or the newest at each epoch. Immutable."""

    @property
    def follow(self) -> bool:
        """Whether each epoch reads the newest version."""
        ...

    @property
    def name(self) -> str:
        """Its name for messages, without secrets; equal on all ranks."""
        ...

    def at(self, version: int | str) -> VersionedSource:
        """Return the same source, not followed, at a version from a `TableInfo`."""
        ...

    def filesystem_of(self, filesystem: Any) -> pafs.FileSystem:
        """Return the file system of the source's files; reads nothing.

        Args:
            filesystem: The caller's ``filesystem=``, or None.
        """
        ...


@runtime_checkable
class TableSource(VersionedSource, Protocol):
    """A table and a version of it, named by the caller. Immutable."""

    def open_version(self, filesystem: Any, remote: RemoteOptions) -> TableVersion:
        """Return the version.

        Args:
            filesystem: The caller's ``filesystem=``, or None.
            remote: How remote files are fetched.

        Raises:
            SourceError: there is no such table or version, its metadata is damaged, or it uses a feature that is not
                supported.
        """
        ...


TableLike: TypeAlias = VersionedSource | DeltaLakeTable | PyIcebergTable
"""Tables that callers may pass as a source."""
