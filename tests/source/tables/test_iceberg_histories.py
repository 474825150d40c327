"""Random histories of Iceberg tables: all snapshots have the rows that were written, and that pyiceberg reads."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable
from pyiceberg.types import DecimalType, NestedField

from parquet_loader import ParquetDataset
from parquet_loader.source.tables.iceberg import IcebergSource
from tests.source.tables.iceberg_rows import counted, delivered
from tests.source.tables.iceberg_tables import HandTable, Row, Version

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**62), 2**62),
    "float": st.integers(-1000, 1000).map(lambda n: n / 4),
    "double": st.integers(-(2**40), 2**40).map(lambda n: n / 4),
    "string": st.sampled_from(["", "a", "a b", "x/y=z", "100%", "é", "null", "\\"]),
    "date": st.dates(dt.date(1950, 1, 1), dt.date(2050, 1, 1)),
    "timestamp": st.datetimes(dt.datetime(1950, 1, 1), dt.datetime(2050, 1, 1)),  # noqa: DTZ001
    "decimal(9, 2)": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "decimal(15, 2)": st.integers(-(10**14), 10**14).map(lambda n: Decimal(n).scaleb(-2)),
}
_FIRST_TYPES = ["int", "float", "string", "date", "decimal(9, 2)"]
_PROMOTED: dict[str, Any] = {"int": "long", "float": "double", "decimal(9, 2)": DecimalType(15, 2), "date": "timestamp"}
_NAMES = ["a", "b", "c", "d", "e"]


def compare(source: IcebergSource, names: Sequence[str], expected: Sequence[Sequence[Any]]) -> None:
    """Compare the rows of a source with others."""
    data = ParquetDataset(source)
    assert data.num_rows == len(expected)
    if expected:
        assert counted(delivered(source, names)) == counted(expected)


class WrittenByHand(RuleBasedStateMachine):
    """Tables with deletes by position and by vector, written by `HandTable`."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.for_pyiceberg = True

    @initialize(
        version=st.sampled_from([1, 2, 2, 3, 3]),
        part=st.booleans(),
        bounds=st.sampled_from([None, "full", "truncated"]),
    )
    def make(self, version: Version, part: bool, bounds: Literal["full", "truncated"] | None) -> None:
        self.table = HandTable(
            self.folder / "table",
            [("key", "long"), ("part", "string"), ("a", "int")],
            version=version,
            partition_by=[("part", "identity")] if part else [],
        )
        self.table.bounds = bounds
        self.table.write_metadata()

    def _row(self, data: st.DataObject) -> Row:
        return {
            field.field_id: data.draw(st.none() | _VALUES[str(field.field_type)]) for field in self.table.schema.fields
        }

    @rule(data=st.data(), count=st.integers(1, 12), row_group_rows=st.integers(1, 8))
    def insert(self, data: st.DataObject, count: int, row_group_rows: int) -> None:
        self.table.insert([self._row(data) for _ in range(count)], row_group_rows=row_group_rows)

    @precondition(lambda self: self.table.version > 1 and self.table.files)
    @rule(data=st.data(), together=st.booleans())
    def delete(self, data: st.DataObject, together: bool) -> None:
        files = data.draw(st.lists(st.sampled_from(sorted(self.table.files)), min_size=1, max_size=3, unique=True))
        chosen = {
            path: data.draw(st.sets(st.integers(0, self.table.files[path].count - 1), min_size=1)) for path in files
        }
        self.table.delete(chosen, together=together)

    @precondition(lambda self: self.table.files)
    @rule(data=st.data(), rewrite=st.booleans())
    def remove(self, data: st.DataObject, rewrite: bool) -> None:
        path = data.draw(st.sampled_from(sorted(self.table.files)))
        deleted = self.table.deleted(path)
        left = [row for at, row in enumerate(self.table.files[path].rows) if at not in deleted]
        schema = self.table.schema
        for row in left:
            for field in schema.fields:
                if field.field_id not in row and field.initial_default is not None:
                    row[field.field_id] = field.initial_default
        typed = [{f.field_id: self._typed(row.get(f.field_id), f) for f in schema.fields} for row in left]
        added = self.table.write_data(typed) if rewrite and left else []
        self.table.commit(added=added, removed=[path])

    @staticmethod
    def _typed(value: Any, field: NestedField) -> Any:
        is_date = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
        if str(field.field_type) == "timestamp" and is_date:
            return dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001
        return value

    @rule()
    def merge(self) -> None:
        self.table.commit(merge=True)

    @rule(data=st.data(), name=st.sampled_from(_NAMES), kind=st.sampled_from(_FIRST_TYPES), with_default=st.booleans())
    def add(self, data: st.DataObject, name: str, kind: str, with_default: bool) -> None:
        if name not in self.table.schema.column_names:
            default = data.draw(_VALUES[kind]) if with_default and self.table.version == 3 else None
            self.for_pyiceberg = self.for_pyiceberg and default is None
            self.table.add(name, _type(kind), at=data.draw(st.integers(0, 2)), default=default)
            self.table.write_metadata()

    @rule(data=st.data(), name=st.sampled_from(_NAMES))
    def rename(self, data: st.DataObject, name: str) -> None:
        old = data.draw(st.sampled_from(self.table.schema.column_names))
        if name not in self.table.schema.column_names:
            self.table.replace(old, name=name)
            self.table.write_metadata()

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.table.schema.column_names))
        used = {part.source_id for spec in self.table.specs for part in spec.fields}
        if len(self.table.schema.fields) > 1 and self.table.schema.find_field(name).field_id not in used:
            self.table.drop(name)
            self.table.write_metadata()

    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        field = data.draw(st.sampled_from(self.table.schema.fields))
        kind = str(field.field_type)
        used = {part.source_id for spec in self.table.specs for part in spec.fields}
        if kind == "date" and (self.table.version < 3 or field.field_id in used):
            return
        if kind in _PROMOTED:
            self.for_pyiceberg = self.for_pyiceberg and kind != "date"
            self.table.replace(field.name, field_type=_PROMOTED[kind])
            self.table.write_metadata()

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        self.table.reorder(data.draw(st.permutations(self.table.schema.column_names)))
        self.table.write_metadata()

    @rule(data=st.data())
    def repartition(self, data: st.DataObject) -> None:
        fields = [f for f in self.table.schema.fields if str(f.field_type) in ("int", "long", "string", "date")]
        if fields:
            field = data.draw(st.sampled_from(fields))
            transform = data.draw(st.sampled_from(["identity", "bucket[3]", "void"]))
            self.table.partition_by([(field.name, transform)])
            self.table.write_metadata()

    def teardown(self) -> None:
        try:
            if hasattr(self, "table"):
                self._check()
        finally:
            shutil.rmtree(self.folder)

    def _check(self) -> None:
        static = StaticTable.from_metadata(str(self.table.metadata_file))
        for snapshot in self.table.snapshots[-4:]:
            schema = self.table.schemas[snapshot.schema_id]
            names = [field.name for field in schema.fields]
            expected = self.table.expected(snapshot, schema)
            compare(IcebergSource(self.table.root, snapshot_id=snapshot.number), names, expected)
            if self.for_pyiceberg:
                scanned = static.scan(snapshot_id=snapshot.number).to_arrow().to_pylist()
                assert counted(list(row.values()) for row in scanned) == counted(expected)
        if self.table.snapshots:
            names = [field.name for field in self.table.schema.fields]
            compare(IcebergSource(self.table.root), names, self.table.expected())


def _type(kind: str) -> Any:
    return DecimalType(9, 2) if kind.startswith("decimal") else kind


class WrittenByPyiceberg(RuleBasedStateMachine):
    """Tables that `pyiceberg` writes: rows are replaced by copy on write."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.catalog = SqlCatalog("test", uri="sqlite:///:memory:", warehouse=f"file://{self.folder}")
        self.catalog.create_namespace("db")
        self.keys = 0
        self.has_void = False

    @initialize(version=st.sampled_from(["1", "2"]), part=st.booleans())
    def make(self, version: str, part: bool) -> None:
        schema = pa.schema([("key", pa.int64()), ("part", pa.string()), ("a", pa.int32())])
        self.table = self.catalog.create_table("db.t", schema, properties={"format-version": version})
        if part:
            with self.table.update_spec() as spec:
                spec.add_identity("part")

    def _rows(self, data: st.DataObject, count: int) -> pa.Table:
        schema = self.table.schema().as_arrow()
        columns = []
        for field, arrow in zip(self.table.schema().fields, schema, strict=True):
            if field.name == "key":
                columns.append(pa.array(range(self.keys, self.keys + count), arrow.type))
            else:
                value = st.none() | _VALUES[str(field.field_type)]
                columns.append(pa.array(data.draw(st.lists(value, min_size=count, max_size=count)), arrow.type))
        self.keys += count
        return pa.table(columns, schema=schema)

    @rule(data=st.data(), count=st.integers(1, 8))
    def append(self, data: st.DataObject, count: int) -> None:
        self.table.append(self._rows(data, count))

    @rule(data=st.data(), count=st.integers(1, 4), least=st.integers(0, 20))
    def overwrite(self, data: st.DataObject, count: int, least: int) -> None:
        self.table.overwrite(self._rows(data, count), overwrite_filter=f"key >= {least}")

    @rule(first=st.integers(0, 30), length=st.integers(1, 8))
    def delete(self, first: int, length: int) -> None:
        if self.table.current_snapshot() is not None:
            self.table.delete(f"key >= {first} and key < {first + length}")

    @rule(data=st.data(), count=st.integers(1, 4))
    def upsert(self, data: st.DataObject, count: int) -> None:
        if self.table.current_snapshot() is not None:
            self.keys = max(0, self.keys - 2)
            rows = self._rows(data, count)
            if len(self.table.schemas()) == 1:  # pyiceberg mixes up columns of files with older schemas
                self.table.upsert(rows, join_cols=["key"])

    @rule(name=st.sampled_from(_NAMES), kind=st.sampled_from(_FIRST_TYPES))
    def add(self, name: str, kind: str) -> None:
        if name not in self.table.schema().column_names:
            field = NestedField(99, "x", _type(kind))
            with self.table.update_schema() as update:
                update.add_column(name, field.field_type)

    @rule(name=st.sampled_from(_NAMES))
    def drop_or_rename(self, name: str) -> None:
        names = self.table.schema().column_names
        other = next((found for found in _NAMES if found not in names), None)
        if name in names:
            with self.table.update_schema() as update:
                if other is None:
                    update.delete_column(name)
                else:
                    update.rename_column(name, other)

    @rule(name=st.sampled_from(_NAMES))
    def promote(self, name: str) -> None:
        if name in self.table.schema().column_names:
            kind = str(self.table.schema().find_field(name).field_type)
            if kind in _PROMOTED and kind != "date":
                field = NestedField(99, "x", _PROMOTED[kind])
                with self.table.update_schema() as update:
                    update.update_column(name, field.field_type)

    @rule()
    def repartition(self) -> None:
        parts = [part.name for part in self.table.spec().fields if str(part.transform) == "identity"]
        with self.table.update_spec() as spec:
            if parts:
                spec.remove_field(parts[0])
                self.has_void = self.table.format_version == 1
            elif not self.has_void:  # next to which pyiceberg takes no other of the same column
                spec.add_identity("part")

    def teardown(self) -> None:
        try:
            if hasattr(self, "table"):
                self._check()
        finally:
            self.catalog.close()
            shutil.rmtree(self.folder)

    def _check(self) -> None:
        for snapshot in self.table.snapshots()[-4:]:
            scanned = self.table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
            source = IcebergSource(self.table, snapshot_id=snapshot.snapshot_id)
            compare(source, scanned.column_names, [list(row.values()) for row in scanned.to_pylist()])
        scanned = self.table.scan().to_arrow()
        compare(IcebergSource(self.table), scanned.column_names, [list(row.values()) for row in scanned.to_pylist()])


_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def run(machine: type[RuleBasedStateMachine], part: int, histories: int, steps: int) -> None:
    chosen = settings(
        max_examples=histories,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=_CHECKS,
    )
    run_state_machine_as_test(seed(part)(type(machine.__name__, (machine,), {})), settings=chosen)


_OF_PYICEBERG = pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")


@_OF_PYICEBERG
@pytest.mark.parametrize(
    ("machine", "histories"),
    [
        (WrittenByHand, 3),
        (WrittenByPyiceberg, 1),
        pytest.param(WrittenByHand, 10, marks=pytest.mark.slow),
        pytest.param(WrittenByPyiceberg, 4, marks=pytest.mark.slow),
    ],
)
def test_the_rows_of_all_snapshots_of_a_few_histories(machine: Any, histories: int) -> None:
    run(machine, 0, histories, 8)


@_OF_PYICEBERG
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(1, 11))
@pytest.mark.parametrize("machine", [WrittenByHand, WrittenByPyiceberg])
def test_the_rows_of_all_snapshots_of_many_histories(machine: Any, part: int) -> None:
    run(machine, part, 50, 15)
