"""Values that every table format is resolved to: the files of one version, their names, constants and deleted rows."""

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
"""Whether values of a type in a file may be delivered as another type in the table; asked about leaf types."""


def _never(_: pa.DataType, __: pa.DataType) -> bool:
    return False


class TableFile(NamedTuple):
    """One data file of a table version.

    Attributes:
        path: Path within the file system.
        size_bytes: Its size as the table says; a file of another size is refused.
        deletes: Its deleted rows; None: there are none.
        rows: Its rows as the table says, deleted ones included; a file with other rows is refused. None: not told.
        modified_ns: When it was written as the table says. It identifies a remote file between versions.
    """

    path: str
    size_bytes: int
    deletes: Deletes | None = None
    rows: int | None = None
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Which version of which table a snapshot holds.

    Attributes:
        format: The format, such as ``"delta"``.
        root: How messages name the table.
        version: The version's number or id; states hold it.
        reopen: An expression that opens a version, for messages; ``{version}`` stands for the version.
        schema: The table's columns in their order, partition columns included; None: the files decide.
        removed: What may have removed a file of this version, for messages.
    """

    format: str
    root: str
    version: int | str
    reopen: str
    schema: pa.Schema | None = None
    removed: str = ""

    @property
    def name(self) -> str:
        """The version as states name it."""
        return f"{self.format} version {self.version}"

    @property
    def if_gone(self) -> str:
        """What an error says in addition if a file is gone."""
        text = f"version {self.version} of the table {self.root} needs it"
        return f"{text}; {self.removed}" if self.removed else text

    def reopening(self, name: str) -> str:
        """Return how to open the version that a state names."""
        return self.reopen.replace("{version}", name.removeprefix(f"{self.format} version "))


@dataclass(frozen=True, slots=True, eq=False)
class TableVersion:
    """One version of a table.

    Attributes:
        info: Which version of which table.
        filesystem: The file system of all files.
        files: The data files, in an order that depends on nothing but the version.
        names: How the columns are called in the files; None: the files' own names and types are delivered.
        constants: One row for each file. The columns, of the table's names and types, are those whose values files need
            not hold: partition values and defaults. A column that is neither here nor in a file is null in that file.
        constants_win: Whether constants are delivered even if a file has a column of that name.
        partitions: The constants that are partition values, and so those of all rows of each file, null included.
        promotes: Which types in files may be delivered as other types in the table.
        prefix: What makes a URL of a file's path.
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
    """What identifies a `deltalake.DeltaTable`: its version is read."""

    @property
    def table_uri(self) -> str: ...  # noqa: D102
    def version(self) -> int: ...  # noqa: D102


class PyIcebergTable(Protocol):
    """What identifies a `pyiceberg.table.Table`: its current snapshot is read."""

    metadata_location: str

    def current_snapshot(self) -> Any: ...  # noqa: D102


@runtime_checkable
class VersionedSource(Protocol):
    """A source that has versions, and one of them or the newest of each epoch, as a caller names them. Immutable."""

    @property
    def follow(self) -> bool:
        """Whether each epoch reads the newest version."""
        ...

    @property
    def name(self) -> str:
        """How messages name it, without secrets; equal on all ranks."""
        ...

    def at(self, version: int | str) -> VersionedSource:
        """Return the same source at a version that a `TableInfo` named, not followed."""
        ...

    def filesystem_of(self, filesystem: Any) -> pafs.FileSystem:
        """Return the file system of the source's files; nothing is read.

        Args:
            filesystem: The caller's ``filesystem=``, or None.
        """
        ...


@runtime_checkable
class TableSource(VersionedSource, Protocol):
    """A table and a version of it, as a caller names them. An immutable value."""

    def open_version(self, filesystem: Any, remote: RemoteOptions) -> TableVersion:
        """Return the version.

        Args:
            filesystem: The caller's ``filesystem=``, or None.
            remote: How files that are not local are fetched.

        Raises:
            SourceError: there is no such table or version, its metadata is damaged, or it uses a feature that is not
                supported.
        """
        ...


TableLike: TypeAlias = VersionedSource | DeltaLakeTable | PyIcebergTable
"""Tables that callers may pass as a source."""
