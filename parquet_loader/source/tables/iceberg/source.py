"""`IcebergSource`: a table of Apache Iceberg, resolved to the files and deleted rows of one snapshot."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import RemoteOptions, needs_package, resolve, shown, url_prefix
from parquet_loader.errors import ConfigurationError, SourceError
from parquet_loader.source.tables.iceberg.locations import (
    GONE,
    TableStore,
    filesystem_of,
    is_metadata_file,
    newest_metadata,
    read_metadata,
)
from parquet_loader.source.tables.iceberg.manifests import ManifestEntry
from parquet_loader.source.tables.iceberg.plan import PlannedFile, plan_files
from parquet_loader.source.tables.iceberg.position_deletes import check_dangling, deletes_by_file
from parquet_loader.source.tables.iceberg.schema import arrow_schema_of, defaults_of, names_of, promotes, scalar_of
from parquet_loader.source.tables.metadata_files import refuse_hub
from parquet_loader.source.tables.table_version import TableFile, TableInfo, TableVersion

_VERSIONS = (1, 2, 3)
_MAIN = "main"
_NO_SNAPSHOT = -1
_NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True, slots=True)
class IcebergSource:
    """A table of Apache Iceberg as a source. Needs `pyiceberg`.

    Args:
        table: A `pyiceberg.table.Table`; with `catalog` a table's identifier, such as ``"db.sales"``; else a path or
            URL of a table's directory, of which the metadata file with the largest version number is read, or of a
            metadata file.
        catalog: A `pyiceberg` catalog, or the name of one that its configuration knows.
        snapshot_id: The snapshot to read; default: the table's current one.
        ref: A branch or a tag to read instead.
        follow: Read the newest snapshot in each epoch.

    Raises:
        ConfigurationError: the arguments contradict each other.
    """

    table: Any
    catalog: Any = None
    snapshot_id: int | None = None
    ref: str | None = None
    follow: bool = False
    _pinned: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.snapshot_id, np.integer):  # as in data frames of a table's history
            object.__setattr__(self, "snapshot_id", int(self.snapshot_id))
        if self.snapshot_id is not None and (
            isinstance(self.snapshot_id, bool) or not isinstance(self.snapshot_id, int)
        ):
            raise ConfigurationError(f"IcebergSource(snapshot_id=...) is an int, not {type(self.snapshot_id).__name__}")
        if self.ref is not None and not isinstance(self.ref, str):
            raise ConfigurationError(f"IcebergSource(ref=...) is a str, not {type(self.ref).__name__}")
        if self.snapshot_id is not None and self.ref is not None:
            raise ConfigurationError("IcebergSource: snapshot_id and ref name two snapshots; give one of them")
        if self.snapshot_id is not None and self.follow:
            raise ConfigurationError(
                "IcebergSource: follow=True reads the newest snapshot, and snapshot_id one that stays; give one of them"
            )
        if self.catalog is not None and is_table(self.table):
            raise ConfigurationError("IcebergSource: a table has its catalog; give catalog with an identifier only")
        if self.catalog is None and not is_table(self.table) and not isinstance(self.table, str | os.PathLike):
            raise ConfigurationError(
                "IcebergSource: the table is a pyiceberg Table, a path or URL, or with catalog= an identifier, not "
                f"{type(self.table).__name__}"
            )

    def at(self, version: int | str) -> IcebergSource:
        """Return the same table at a snapshot of it, with the schema that it is read with now."""
        pinned = replace(self, follow=False)
        object.__setattr__(pinned, "_pinned", int(version))
        return pinned

    def filesystem_of(self, filesystem: Any = None) -> pafs.FileSystem:
        """Return the file system of the table's files."""
        if self._is_path:
            return resolve(self.table, filesystem)[0]
        return self._store_of(self._loaded(), filesystem).filesystem

    def open_version(self, filesystem: Any = None, remote: RemoteOptions | None = None) -> TableVersion:  # noqa: ARG002
        """Return the snapshot's files; data files are not opened.

        Raises:
            MissingPackageError: `pyiceberg` is not installed.
            SourceError: the table cannot be read, or needs a feature that is not supported.
            ConfigurationError: `filesystem` is not a pyarrow filesystem, or the catalog does not have the table.
        """
        check_installed()
        if self._is_path:
            home, path = resolve(self.table, filesystem)
            typed = os.fspath(self.table)
            store = TableStore(home, shown(typed if "://" in typed else f"{url_prefix(home, typed)}{path}"))
            refuse_hub(home, store.name)
            return self._version(store, _metadata_at(store, path), prefix=url_prefix(home, typed))
        table = self._loaded()
        store = self._store_of(table, filesystem)
        location = table.metadata.location
        return self._version(store, table.metadata, prefix=url_prefix(store.filesystem, location))

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"IcebergSource({self._called})"

    @property
    def _is_path(self) -> bool:
        return self.catalog is None and not is_table(self.table)

    @property
    def _called(self) -> str:
        """How code names the table."""
        if is_table(self.table):
            return "table"
        called = repr(os.fspath(self.table) if isinstance(self.table, os.PathLike) else self.table)
        if self.catalog is None:
            return shown(called)
        return f"{called}, catalog={self.catalog!r}" if isinstance(self.catalog, str) else f"{called}, catalog=catalog"

    def _loaded(self) -> Any:
        """Return the table as `pyiceberg` knows it; with `follow` as its catalog knows it now."""
        check_installed()
        if is_table(self.table):
            if not self.follow:
                return self.table
            if type(self.table).__name__ == "StaticTable":
                raise ConfigurationError(
                    "IcebergSource(follow=True): a StaticTable stays as it is; pass the table from its catalog, or its "
                    "directory"
                )
            catalog, name = self.table.catalog, self.table.name()
        else:
            catalog, name = self.catalog, self.table
            if isinstance(catalog, str):
                try:
                    catalog = importlib.import_module("pyiceberg.catalog").load_catalog(catalog)
                except ValueError as error:
                    raise ConfigurationError(f"IcebergSource(catalog={self.catalog!r}): {error}") from error
        missing: Any = importlib.import_module("pyiceberg.exceptions")
        try:
            return catalog.load_table(name)
        except (missing.NoSuchTableError, missing.NoSuchNamespaceError) as error:
            raise SourceError(f"{name}: the catalog has no such table: {error}") from error

    def _store_of(self, table: Any, filesystem: Any) -> TableStore:
        location = table.metadata.location
        home = filesystem_of(table.io, location) if filesystem is None else resolve(location, filesystem)[0]
        name = ".".join(table.name())
        return TableStore(home, name if type(table).__name__ != "StaticTable" else shown(location))

    def _version(self, store: TableStore, metadata: Any, *, prefix: str) -> TableVersion:
        table = store.name
        _check(table, metadata)
        snapshot, schema = self._snapshot(table, metadata)
        version = _NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id
        names = names_of(schema, metadata.properties.get(_NAME_MAPPING), table)
        columns = arrow_schema_of(schema, table)
        planned: list[PlannedFile] = []
        dangling: list[ManifestEntry] = []
        if snapshot is not None:
            sequences = {one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots}
            unpartitioned = {
                spec.spec_id
                for spec in metadata.partition_specs
                if all(str(field.transform) == "void" for field in spec.fields)
            }
            planned, dangling = plan_files(
                table, metadata.format_version, snapshot, sequences, unpartitioned, store.read
            )
        deletes = deletes_by_file(table, planned, store)
        check_dangling(dangling, planned, store)
        constants, partitions = _constants(table, metadata, schema, columns, planned)
        info = TableInfo(
            format="iceberg",
            root=table,
            version=version,
            reopen=f"IcebergSource({self._called}, snapshot_id={{version}})",
            schema=columns,
            removed=GONE,
        )
        return TableVersion(
            info=info,
            filesystem=store.filesystem,
            files=tuple(
                TableFile(
                    path=store.path_of(file.entry.location),
                    size_bytes=file.entry.size_bytes,
                    deletes=deletes.get(file.entry.location),
                    rows=file.entry.rows,
                )
                for file in planned
            ),
            names=names,
            constants=constants,
            partitions=partitions,
            constants_win=False,
            promotes=promotes,
            prefix=prefix,
            directory=store.path_of(metadata.location) if planned else "",
        )

    def _snapshot(self, table: str, metadata: Any) -> tuple[Any, Any]:
        """Return the snapshot to read, None if the table has none yet, and its schema.

        As in the reference implementation, a branch is read with the table's schema, a tag or snapshot with the schema
        that it was written with.
        """
        named = f"snapshot {self.snapshot_id}"
        number, has_own_schema = self.snapshot_id, self.snapshot_id is not None
        if self.ref is not None:
            ref = metadata.refs.get(self.ref)
            if ref is None and self.ref != _MAIN:
                known = ", ".join(map(repr, sorted(metadata.refs))) or "none"
                raise SourceError(f"{table}: there is no branch or tag {self.ref!r}; there are: {known}")
            number = None if ref is None else ref.snapshot_id
            has_own_schema = ref is not None and str(ref.snapshot_ref_type) == "tag"
            named = f"{'tag' if has_own_schema else 'branch'} {self.ref!r} with snapshot {number}"
        elif number is None:
            number = metadata.current_snapshot_id
            named = f"the current snapshot {number}"
        if self._pinned is not None:
            number = None if self._pinned == _NO_SNAPSHOT else self._pinned
            named = f"snapshot {number}"
        if number is None:
            return None, metadata.schema()
        snapshot = metadata.snapshot_by_id(number)
        if snapshot is None:
            raise SourceError(
                f"{table}: {named} is not in the table's metadata; it may have expired. The table has "
                f"{len(metadata.snapshots)} snapshots{_newest(metadata)}"
            )
        schema = metadata.schema()
        if has_own_schema and snapshot.schema_id is not None:
            schema = metadata.schema_by_id(snapshot.schema_id)
            if schema is None:
                raise SourceError(f"{table}: the metadata lack the schema {snapshot.schema_id} of {named}")
        return snapshot, schema


def is_table(value: Any) -> bool:
    """Whether a value is a `pyiceberg.table.Table`, without importing `pyiceberg`."""
    return any(kind.__module__ == "pyiceberg.table" and kind.__name__ == "Table" for kind in type(value).__mro__)


def check_installed() -> None:
    """Raise MissingPackageError: `pyiceberg` is not installed."""
    with needs_package("pyiceberg", "an Iceberg table needs pyiceberg: pip install 'torch-parquet-loader[iceberg]'"):
        importlib.import_module("pyiceberg.table")


def _metadata_at(store: TableStore, path: str) -> Any:
    file = path if is_metadata_file(path) else newest_metadata(store, path)
    found = read_metadata(store, file)
    version = found.get("format-version")
    if version not in _VERSIONS:
        raise _unknown_version(store.name, version)
    _refuse_types(store.name, found)
    if found.get("encryption-keys"):
        raise _encrypted(store.name)
    try:
        return importlib.import_module("pyiceberg.table.metadata").TableMetadataUtil.parse_obj(found)
    except Exception as error:  # raised by pydantic or pyiceberg
        reason = str(error).replace("\n", " ")
        raise SourceError(f"{shown(file)}: pyiceberg cannot read this metadata file: {reason}") from error


def _refuse_types(table: str, metadata: Mapping[str, Any]) -> None:
    """Refuse types that `pyiceberg` would refuse without naming the column."""
    schemas = metadata.get("schemas") or [metadata.get("schema") or {}]
    for schema in schemas:
        if isinstance(schema, dict):
            for field in schema.get("fields") or ():
                if isinstance(field, dict) and _has_variant(field.get("type")):
                    raise SourceError(
                        f"{table}: column {field.get('name')!r} holds values of the type variant, which this library "
                        "does not read"
                    )


def _has_variant(type_: Any) -> bool:
    if isinstance(type_, dict):
        inner = [field.get("type") for field in type_.get("fields") or () if isinstance(field, dict)]
        return any(map(_has_variant, [*inner, *(type_.get(key) for key in ("element", "key", "value"))]))
    return bool(type_ == "variant")


def _check(table: str, metadata: Any) -> None:
    """Refuse a table that needs what this library does not have, or whose metadata contradict themselves."""
    if metadata.format_version not in _VERSIONS:
        raise _unknown_version(table, metadata.format_version)
    if metadata.properties.get("encryption.key-id") or getattr(metadata, "encryption_keys", None):
        raise _encrypted(table)
    main = metadata.refs.get(_MAIN)
    if main is not None and main.snapshot_id != metadata.current_snapshot_id:
        raise SourceError(
            f"{table}: the metadata are damaged: the current snapshot is {metadata.current_snapshot_id}, and that of "
            f"the branch 'main' {main.snapshot_id}"
        )


def _unknown_version(table: str, version: object) -> SourceError:
    return SourceError(
        f"{table}: this is an Iceberg table of the format version {version}; this library reads the versions 1 to 3"
    )


def _encrypted(table: str) -> SourceError:
    return SourceError(f"{table}: the table is encrypted, which this library does not read")


def _newest(metadata: Any) -> str:
    newest = max(metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms, default=None)
    return "" if newest is None else f", the newest of which is {newest.snapshot_id}"


def _constants(
    table: str, metadata: Any, schema: Any, columns: pa.Schema, planned: Sequence[PlannedFile]
) -> tuple[pa.Table | None, frozenset[str]]:
    """Return values for columns that files may lack, and of which columns all files tell the partition value."""
    defaults = defaults_of(schema, table)
    by_id = {field.field_id: field.name for field in schema.fields}
    identities = {
        spec.spec_id: {
            field.field_id: by_id[field.source_id]
            for field in spec.fields
            if str(field.transform) == "identity" and field.source_id in by_id
        }
        for spec in metadata.partition_specs
    }
    wanted = [
        name
        for name in columns.names
        if name in defaults or any(name in found.values() for found in identities.values())
    ]
    if not wanted:
        return None, frozenset()
    rows: list[dict[str, pa.Scalar]] = []
    known: dict[Any, dict[str, pa.Scalar]] = {}
    for file in planned:
        entry = file.entry
        fields = identities.get(entry.spec_id)
        if fields is None:
            raise SourceError(f"{entry.location}: the metadata lack the partition spec {entry.spec_id} of this file")
        key = entry.spec_id, entry.partition, entry.partition_types
        if key not in known:
            values = dict(defaults)
            for (number, stored), value in zip(entry.partition_types, entry.partition, strict=True):
                name = fields.get(number)
                if name is not None:
                    values[name] = scalar_of(value, stored, columns.field(name).type, table, name)
            known[key] = values
        rows.append(known[key])
    arrays = [pa.array([row.get(name) for row in rows], columns.field(name).type) for name in wanted]
    everywhere = [frozenset(identities[spec].values()) for spec in {file.entry.spec_id for file in planned}]
    partitions = frozenset(wanted).intersection(*everywhere)
    return pa.table(arrays, schema=pa.schema([columns.field(name).with_nullable(True) for name in wanted])), partitions
