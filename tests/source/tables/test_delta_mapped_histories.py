"""Random histories of Delta tables with deletion vectors and mapped columns: all versions have the rows of a model.

Their logs are written by hand, because the package `deltalake` writes neither. It reads vectors and columns that are
mapped by name, and is asked, too.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parquet_loader import DeltaSource, ParquetDataset, Scalar, Schema, Text
from tests.source.tables.delta_logs import (
    add,
    arrow_of,
    assert_same,
    checkpoint_rows,
    column,
    commit,
    in_order,
    inline_vector,
    mapped,
    metadata,
    oracle,
    protocol,
    remove,
    stored_vectors,
)
from tests.support.examples import examples

MODES = (None, "name", "name", "id", "id")
OPERATIONS = (
    "append", "append", "append", "delete", "delete", "delete", "restore", "remove", "compact", "new", "drop", "rename",
    "exchange", "checkpoint",
)  # fmt: skip
PARTITIONS = ("a", "b/c=%20", "é", None)


@dataclass
class File:
    """A live file: its rows by the ids of columns, its partition, and which rows are deleted."""

    path: str
    rows: list[dict[int, int | None]]
    partition: str | None
    deleted: set[int] = field(default_factory=set)
    vector: dict[str, Any] | None = None

    @property
    def alive(self) -> list[dict[int, int | None]]:
        return [row for at, row in enumerate(self.rows) if at not in self.deleted]


class History:
    """A table, and the rows of each of its versions.

    Args:
        path: Where it is written.
        mode: How columns are mapped, or None.
        partitioned: Whether it has a partition column.
    """

    def __init__(self, path: Path, mode: str | None, *, partitioned: bool) -> None:
        self.path, self.mode, self.partitioned = path, mode, partitioned
        self.names = {1: "p", 2: "key", 3: "v"}  # by id
        self.physical = {1: "p", 2: "key", 3: "v"} if mode is None else {n: f"col-{n}" for n in (1, 2, 3)}
        self.last_id, self.written, self.key = 3, 0, 0
        self.files: list[File] = []
        self.versions: list[list[dict[str, Any]]] = []
        features = ["deletionVectors"] if mode is None else ["columnMapping", "deletionVectors"]
        self.commit(protocol(3, 7, features), self.metadata())

    def metadata(self) -> dict[str, Any]:
        fields = []
        for id_, name in self.names.items():
            type_ = "string" if id_ == 1 else "long"
            fields.append(column(name, type_) if self.mode is None else mapped(name, type_, id_, self.physical[id_]))
        options = {} if self.mode is None else {"delta.columnMapping.mode": self.mode}
        return metadata(fields, [self.names[1]] if self.partitioned else [], **options)

    def commit(self, *actions: Any) -> None:
        commit(self.path, len(self.versions), *actions)
        rows: list[dict[str, Any]] = []
        for file in self.files:
            for row in file.alive:
                found: dict[str, Any] = {name: row.get(id_) for id_, name in self.names.items()}
                rows.append({**found, self.names[1]: file.partition if self.partitioned else None})
        self.versions.append(rows)

    def written_file(self, rows: list[dict[int, int | None]], partition: str | None, rng: random.Random) -> Any:
        """Write a data file with the current columns, and return the action that adds it."""
        ids = [id_ for id_ in self.names if id_ > 1 or not self.partitioned]
        rng.shuffle(ids)
        fields, columns = [], []
        for id_ in ids:
            # Columns are found by their id, whatever their names in the file are.
            name = f"any {id_}" if self.mode == "id" else self.physical[id_]
            about = None if self.mode is None else {"PARQUET:field_id": str(id_)}
            fields.append(pa.field(name, pa.string() if id_ == 1 else pa.int64(), metadata=about))
            columns.append(pa.array([row.get(id_) for row in rows], fields[-1].type))
        path = f"{self.written}.parquet"
        self.written += 1
        self.files.append(File(path, rows, partition))
        table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        return add(self.path, path, table, row_group_size=rng.randint(1, 9), **self._partition(partition))

    def _partition(self, value: str | None) -> dict[str, Any]:
        return {"partitionValues": {self.physical[1]: value}} if self.partitioned else {}

    def _replaced(self, files: list[File], deleted: list[set[int]], rng: random.Random) -> None:
        """Commit other deletion vectors for some files."""
        before = [file.vector for file in files]
        kind = rng.choice(["inline", "relative", "absolute"])
        lists = [sorted(rows) for rows in deleted]
        vectors: list[Any] = [inline_vector(rows) for rows in lists]
        if kind != "inline":
            vectors = stored_vectors(self.path, lists, prefix=rng.choice(["", "ab"]), absolute=kind == "absolute")
        actions = []
        for file, old, rows, new in zip(files, before, deleted, vectors, strict=True):
            if rows == file.deleted:
                continue
            file.deleted, file.vector = rows, new if rows else None
            more = {} if file.vector is None else {"deletionVector": file.vector}
            actions.append(remove(file.path, **({} if old is None else {"deletionVector": old})))
            actions.append(add(self.path, file.path, **more, **self._partition(file.partition)))
        if actions:
            self.commit(*actions)

    def step(self, name: str, rng: random.Random) -> None:
        some = rng.sample(self.files, min(len(self.files), rng.randint(1, 3)))
        others = [id_ for id_ in self.names if id_ > 1]
        if name == "append":
            rows = []
            for _ in range(rng.randint(1, 25)):
                row: dict[int, int | None] = {id_: rng.choice([None, rng.randint(-(2**40), 2**40)]) for id_ in others}
                rows.append({**row, others[0]: self.key})
                self.key += 1
            self.commit(self.written_file(rows, rng.choice(PARTITIONS), rng))
        elif name == "delete" and some:
            share = rng.choice([0.05, 0.3, 0.9, 1])
            gone = [{at for at in range(len(file.rows)) if rng.random() < share} | file.deleted for file in some]
            self._replaced(some, gone, rng)
        elif name == "restore" and some:
            self._replaced(some, [{at for at in file.deleted if rng.random() < 0.5} for file in some], rng)
        elif name == "remove" and some:
            self.files = [file for file in self.files if file not in some]
            self.commit(*(self._removal(file) for file in some))
        elif name == "compact" and some:
            together = [file for file in self.files if file.partition == some[0].partition]
            self.files = [file for file in self.files if file not in together]
            rows = [row for file in together for row in file.alive]
            added = [self.written_file(rows, some[0].partition, rng)] if rows else []
            self.commit(*map(self._removal, together), *added)
        elif name == "new":
            self.last_id += 1
            free = {"a", "b", "c", "d", "e"} - set(self.names.values())
            if free:
                self.names[self.last_id] = rng.choice(sorted(free))
                # Without a mapping, a column that is added again has its old values.
                self.physical[self.last_id] = self.names[self.last_id] if self.mode is None else f"col-{self.last_id}"
                self.commit(self.metadata())
        elif name == "drop" and self.mode is not None and len(others) > 1:
            del self.names[rng.choice(others)]
            self.commit(self.metadata())
        elif name == "rename" and self.mode is not None:
            self.names[rng.choice(list(self.names))] = f"named {self.written} {len(self.versions)}"
            self.commit(self.metadata())
        elif name == "exchange" and self.mode is not None and len(others) > 1:
            one, other = rng.sample(others, 2)
            self.names[one], self.names[other] = self.names[other], self.names[one]
            self.commit(self.metadata())
        elif name == "checkpoint":
            version = len(self.versions) - 1
            log = self.path / "_delta_log"
            pq.write_table(arrow_of(checkpoint_rows(self.path, version)), log / f"{version:020}.checkpoint.parquet")

    @staticmethod
    def _removal(file: File) -> dict[str, Any]:
        return remove(file.path, **({} if file.vector is None else {"deletionVector": file.vector}))

    def check(self) -> None:
        for version, expected in enumerate(self.versions):
            source = DeltaSource(self.path, version)
            data = ParquetDataset(source)
            assert data.num_rows == len(expected)
            if expected:
                assert set(data.schema) == set(expected[0])
                fields: dict[str, Any] = {
                    name: Text(fill="null") if data.schema[name] == Text() else Scalar("int64", fill=-1)
                    for name in data.schema
                }
                assert_same(source, expected, Schema(fields), shuffle=version % 2 == 1)
        if self.mode != "id":
            assert in_order(oracle(self.path)) == in_order(self.versions[-1])


STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2**16)), min_size=1, max_size=10)


def check(mode: str | None, steps: list[tuple[str, int]], *, partitioned: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder) / "t", mode, partitioned=partitioned)
        history.step("append", random.Random(len(steps)))
        for name, number in steps:
            history.step(name, random.Random(number))
        history.check()


@settings(max_examples=examples(12), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(MODES), STEPS, st.booleans())
def test_versions_of_mapped_tables_with_vectors_have_the_rows_of_a_model(
    mode: str | None, steps: list[tuple[str, int]], partitioned: bool
) -> None:
    check(mode, steps, partitioned=partitioned)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(MODES), STEPS, st.booleans())
def test_versions_of_six_hundred_mapped_tables_with_vectors(
    mode: str | None, steps: list[tuple[str, int]], partitioned: bool
) -> None:
    check(mode, steps, partitioned=partitioned)
