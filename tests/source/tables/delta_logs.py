"""Delta tables for tests: reads them with the package `deltalake`, and writes by hand the logs that it cannot write."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyroaring
from deltalake import DeltaTable, QueryBuilder

from parquet_loader import Schema
from tests.source.tables.made_tables import rows_of

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def oracle(path: Path | str, version: int | None = None) -> list[dict[str, Any]]:
    """Return a version's rows as deltalake's own engine reads them."""
    table = DeltaTable(str(path), version=version)
    found = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    return [dict(row) for row in pa.RecordBatchReader.from_stream(found).read_all().to_pylist()]


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return rows in an order of their own, since a table has none."""
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


def filled(rows: Iterable[Mapping[str, Any]], schema: Schema) -> list[dict[str, Any]]:
    """Return rows with only the schema's columns, and its fill values instead of nulls."""
    return [
        {name: getattr(field, "fill", None) if row[name] is None else row[name] for name, field in schema.items()}
        for row in rows
    ]


def assert_same(source: Any, expected: Sequence[Mapping[str, Any]], schema: Schema, **options: Any) -> None:
    """Assert that a loader delivers these rows."""
    assert in_order(rows_of(source, 7, schema=schema, **options)) == in_order(filled(expected, schema))


# ---- logs written by hand


def commit(path: Path, version: int, *actions: Mapping[str, Any]) -> None:
    """Write a commit."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


def actions(path: Path, version: int) -> list[dict[str, Any]]:
    """Return a commit's actions."""
    return [json.loads(line) for line in (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()]


def column(name: str, type_: Any, **metadata: Any) -> dict[str, Any]:
    """Return a column of a schema."""
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def mapped(name: str, type_: Any, id_: int, physical: str) -> dict[str, Any]:
    """Return a column of a schema with a mapping."""
    about = {"delta.columnMapping.id": id_, "delta.columnMapping.physicalName": physical}
    return column(name, type_, **about)


def metadata(
    fields: Sequence[Mapping[str, Any]], partitions: Sequence[str] = (), **configuration: str
) -> dict[str, Any]:
    """Return an action `metaData`."""
    return {
        "metaData": {
            "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
            "partitionColumns": list(partitions),
            "configuration": dict(configuration),
            "createdTime": 1,
        }
    }


def protocol(reader: int = 1, writer: int = 2, features: Sequence[str] | None = None) -> dict[str, Any]:
    """Return an action `protocol`."""
    found: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if features is not None:
        found |= {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": found}


def add(path: Path, name: str, rows: pa.Table | None = None, **more: Any) -> dict[str, Any]:
    """Write a data file if rows are given, and return the action that adds it."""
    file = path / name
    if rows is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, file, row_group_size=more.pop("row_group_size", 8))
    size = file.stat().st_size
    fields = {"partitionValues": {}, "modificationTime": 1, "dataChange": True}
    return {"add": {"path": name, "size": size, **fields, **more}}


def remove(name: str, **more: Any) -> dict[str, Any]:
    """Return the action that removes a file."""
    return {"remove": {"path": name, "deletionTimestamp": 1, "dataChange": True, **more}}


def bitmap(positions: Iterable[int]) -> bytes:
    """Return the bytes of a deletion vector, made with pyroaring."""
    parts: dict[int, list[int]] = {}
    for position in positions:
        parts.setdefault(position >> 32, []).append(position & 0xFFFFFFFF)
    out = struct.pack("<iQ", 1681511377, len(parts))
    for high, low in sorted(parts.items()):
        made = pyroaring.BitMap(low)
        made.run_optimize()
        out += struct.pack("<I", high) + made.serialize()
    return out


def z85(data: bytes) -> str:
    """Return bytes as text in Base85, zeros added behind them to a multiple of four."""
    data += bytes(-len(data) % 4)
    out = ""
    for (word,) in struct.iter_unpack(">I", data):
        digits = ""
        for place in range(5):
            digits = _Z85[word // 85**place % 85] + digits
        out += digits
    return out


def inline_vector(positions: Sequence[int]) -> dict[str, Any]:
    """Return the description of a vector in the log."""
    data = bitmap(positions)
    return {"storageType": "i", "pathOrInlineDv": z85(data), "sizeInBytes": len(data), "cardinality": len(positions)}


def stored_vectors(
    folder: Path, vectors: Sequence[Sequence[int]], *, prefix: str = "", absolute: bool = False
) -> list[dict[str, Any]]:
    """Write a file of vectors, and return the description of each."""
    name = uuid.uuid4()
    file = folder / prefix / f"deletion_vector_{name}.bin"
    file.parent.mkdir(parents=True, exist_ok=True)
    out, described = b"\x01", []
    for positions in vectors:
        data = bitmap(positions)
        place = {"storageType": "p", "pathOrInlineDv": file.as_uri()}
        if not absolute:
            place = {"storageType": "u", "pathOrInlineDv": prefix + z85(name.bytes)}
        described.append({**place, "offset": len(out), "sizeInBytes": len(data), "cardinality": len(positions)})
        out += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    file.write_bytes(out)
    return described


# ---- checkpoints


def checkpoint_rows(path: Path, version: int) -> list[dict[str, Any]]:
    """Return the actions that a checkpoint of a version holds."""
    state: dict[str, dict[str, Any]] = {}
    for number in range(version + 1):
        for action in actions(path, number):
            for kind, body in action.items():
                if kind == "add":
                    state[f"add {body['path']}"] = action
                elif kind == "remove":
                    state.pop(f"add {body['path']}", None)
                elif kind in ("protocol", "metaData"):
                    state[kind] = action
    return list(state.values())


def arrow_of(rows: list[dict[str, Any]]) -> pa.Table:
    text_map = pa.map_(pa.string(), pa.string())
    vector = pa.struct(
        [
            ("storageType", pa.string()),
            ("pathOrInlineDv", pa.string()),
            ("offset", pa.int32()),
            ("sizeInBytes", pa.int32()),
            ("cardinality", pa.int64()),
        ]
    )
    types = {
        "add": pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", text_map),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
                ("stats", pa.string()),
                ("deletionVector", vector),
            ]
        ),
        "metaData": pa.struct(
            [
                ("id", pa.string()),
                ("format", pa.struct([("provider", pa.string()), ("options", text_map)])),
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", text_map),
            ]
        ),
        "protocol": pa.struct(
            [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("readerFeatures", pa.list_(pa.string())),
                ("writerFeatures", pa.list_(pa.string())),
            ]
        ),
        "checkpointMetadata": pa.struct([("version", pa.int64())]),
        "sidecar": pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]),
    }

    def plain(row: dict[str, Any], kind: str) -> Any:
        body = row.get(kind)
        if body is None:
            return None
        found = {n: list(v.items()) if n in ("partitionValues", "configuration") else v for n, v in body.items()}
        return found | {"format": {"provider": "parquet", "options": []}} if kind == "metaData" else found

    used = [kind for kind in types if any(kind in row for row in rows)]
    return pa.table({kind: pa.array([plain(row, kind) for row in rows], types[kind]) for kind in used})
