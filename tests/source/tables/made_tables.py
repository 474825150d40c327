"""Table versions made by hand, for tests of what all table formats share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, OutputOptions
from parquet_loader.common import RemoteOptions
from parquet_loader.source import InlineVector, Names, TableFile, TableInfo, TableVersion, roaring_bytes


@dataclass(frozen=True)
class MadeTable:
    """A table source of one version."""

    version: TableVersion
    follow: bool = False
    name: str = "made"

    def at(self, version: int | str) -> MadeTable:
        assert version == self.version.info.version
        return self

    def filesystem_of(self, filesystem: Any) -> pafs.FileSystem:
        return filesystem or self.version.filesystem

    def open_version(self, filesystem: Any, remote: RemoteOptions) -> TableVersion:
        assert isinstance(remote, RemoteOptions)
        return self.version


def widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Allow the promotions of the tests."""
    kinds = pa.types
    numbers = kinds.is_integer(stored) and (kinds.is_integer(wanted) or kinds.is_floating(wanted))
    decimals = kinds.is_decimal(wanted) and (kinds.is_integer(stored) or kinds.is_decimal(stored))
    times = kinds.is_timestamp(wanted) and (kinds.is_timestamp(stored) or kinds.is_date(stored))
    return bool(numbers or decimals or times or (kinds.is_floating(stored) and kinds.is_float64(wanted)))


def deleting(*positions: int, known: bool = True) -> InlineVector:
    return InlineVector(roaring_bytes(np.array(sorted(positions), np.int64)), len(positions) if known else None)


def table(
    folder: Path,
    files: Sequence[tuple[pa.Table, Any]],
    schema: pa.Schema,
    *,
    names: Names | None = None,
    constants: Mapping[str, Sequence[Any]] | None = None,
    constants_win: bool = True,
    row_group_size: int = 4,
    number: int = 7,
    **options: Any,
) -> MadeTable:
    """Write files with their deleted rows, and return them as one version of a table."""
    made = []
    for position, (rows, deletes) in enumerate(files):
        path = folder / f"part-{position}.parquet"
        pq.write_table(rows, path, row_group_size=row_group_size, **options)
        made.append(TableFile(str(path), path.stat().st_size, deletes, rows.num_rows))
    fixed = None
    if constants is not None:
        fixed = pa.table({name: pa.array(values, schema.field(name).type) for name, values in constants.items()})
    info = TableInfo("made", str(folder), number, "MadeTable(version={version})", schema, "a cleaner removed it")
    version = TableVersion(
        info, pafs.LocalFileSystem(), tuple(made), names, fixed, constants_win=constants_win, promotes=widens
    )
    return MadeTable(version)


def rows_of(source: Any, batch_size: int = 3, **options: Any) -> list[dict[str, Any]]:
    """Return the rows that a loader delivers, as Python values."""
    rows: list[dict[str, Any]] = []
    options.setdefault("output_options", OutputOptions(format="numpy"))
    with BatchedDataLoader(source, batch_size, **options) as loader:
        for batch in loader:
            columns = {
                name: _plain(values.to_list() if hasattr(values, "to_list") else values)
                for name, values in batch.items()
            }
            rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list) else value
