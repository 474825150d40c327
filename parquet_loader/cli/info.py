"""``parquet-loader info SOURCE``: contents and layout of a data set, from footers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np
import pyarrow as pa

from parquet_loader.cli.console import show_json, show_lines, show_table
from parquet_loader.cli.type_names import type_text
from parquet_loader.cli.version import kernels_line
from parquet_loader.common import PROBLEM, format_bytes
from parquet_loader.dataset import found_schema, is_carrying
from parquet_loader.errors import ParquetLoaderError, SchemaError
from parquet_loader.loader.advice import FEWEST_TINY, TINY_ROW_GROUP_BYTES
from parquet_loader.schema import Schema, describe, infer_fields, plain_type, policy_of
from parquet_loader.source import Metadata, Selection, Snapshot, open_snapshot, with_unischema

# The least number of row groups in a window; with fewer, only neighbouring rows are mixed.
_FEWEST_ROW_GROUPS, _LARGE_BYTES = 4, 64 * 2**20


@click.command(epilog="Example: parquet-loader info data/train --json")
@click.argument("source", nargs=-1, required=True)
@click.option("--split", help="The split to look at, or 'all'; default: everything, if it is one split.")
@click.option("--ignore-table-format", is_flag=True, help="Take the files of a Delta or other table as they lie.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(source: tuple[str, ...], *, split: str | None, ignore_table_format: bool, as_json: bool) -> None:
    """Show the fields, files, row groups and columns of SOURCE (files, directories, globs or URLs)."""
    selection = Selection(split, ignore_table_format)
    snapshot = open_snapshot(source[0] if len(source) == 1 else list(source), selection=selection)
    facts = _facts(snapshot)
    if as_json:
        show_json(facts)
        return
    groups = facts["row_groups"]
    show_lines(
        f"{facts['rows']:,} rows in {facts['files']} files, {format_bytes(facts['file_bytes'])}",
        f"{groups['count']} row groups of {_range(groups['least_rows'], groups['most_rows'])} rows, "
        f"{format_bytes(groups['mean_bytes'])} each before compression, on average",
        *([f"partitions: {', '.join(facts['partitions'])}"] if facts["partitions"] else []),
        f"kernels: {kernels_line()}",
        *(f"note: {note}" for note in facts["notes"]),
    )
    if facts["fields"]:
        show_lines("", "delivered as:", *(f"  {name}: {text}" for name, text in facts["fields"].items()))
    if facts["problems"]:
        show_lines("", "would be refused:" if facts["fields"] else "cannot be loaded as it is:")
        for problem in facts["problems"]:
            first, *others = problem["reason"].splitlines() or [""]
            head = "" if problem["column"] is None else f"{problem['column']}: "
            show_lines(f"  {head}{first}", *(f"    {line.strip()}" for line in others))
    show_lines("")
    show_table(
        ["column", "type", "nulls", "codec", "encodings", "stored", "of plain"],
        (
            [
                c["path"],
                c["type"],
                _nulls(c, facts["rows"]),
                ", ".join(c["codecs"]),
                ", ".join(c["encodings"]),
                format_bytes(c["stored_bytes"]),
                f"{c['stored_bytes'] / max(c['encoded_bytes'], 1):.2f}",
            ]
            for c in facts["columns"]
        ),
        numbers=frozenset({"stored", "of plain"}),
    )


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _nulls(column: dict[str, Any], rows: int) -> str:
    if not column["nullable"]:
        return "not null"
    if column["nulls"] is None:
        return "unknown"
    if not column["nulls"]:
        return "0"
    if column["is_nested"]:  # counts nulls and empty lists alike, and nulls within lists
        return f"at most {column['nulls']:,}"
    return f"{column['nulls']:,} ({column['nulls'] / max(rows, 1):.1%})"


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    columns = _columns(snapshot)
    fields, problems = _fields(snapshot, columns)
    rows = snapshot.row_group_rows
    return {
        "rows": snapshot.rows,
        "files": len(snapshot.files),
        "file_bytes": sum(file.size_bytes for file in snapshot.files),
        "row_groups": {
            "count": snapshot.row_groups,
            "least_rows": int(rows.min(initial=2**62)) if len(rows) else 0,
            "most_rows": int(rows.max(initial=0)),
            "mean_bytes": float(np.mean(snapshot.row_group_bytes)) if len(rows) else 0.0,
        },
        "partitions": snapshot.partition_schema.names,
        "kernels": PROBLEM,
        "notes": list(_notes(snapshot)),
        "fields": {name: describe(field, most_words=8) for name, field in fields.items()},
        "problem": problems[0]["reason"] if problems and not fields else None,
        "problems": problems,
        "columns": columns,
    }


def _notes(snapshot: Snapshot) -> Iterator[str]:
    """Return warnings about row groups that make loading slow or mixing poor."""
    nbytes, count = int(snapshot.row_group_bytes.sum()), snapshot.row_groups
    if count >= FEWEST_TINY and nbytes / count < TINY_ROW_GROUP_BYTES:
        yield (
            f"row groups are small, {format_bytes(nbytes / count)} on average: each costs time of its own; "
            "parquet-loader rewrite makes larger ones"
        )
    if 0 < count < _FEWEST_ROW_GROUPS and nbytes > _LARGE_BYTES:
        yield (
            f"{'one row group' if count == 1 else f'{count} row groups'} of {format_bytes(nbytes / count)}: windows "
            "mix neighbouring rows only, and few threads can decode; parquet-loader rewrite makes smaller ones"
        )


def _fields(snapshot: Snapshot, columns: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return how each column is delivered, or why it would be refused."""
    schema, problems = None, list[dict[str, Any]]()
    try:
        snapshot, schema = with_unischema(snapshot, None)
        schema = found_schema(snapshot) if schema is None else schema
    except ParquetLoaderError as error:
        refused = _refused(snapshot)
        problems = [{"column": name, "reason": reason} for name, reason in refused.items()]
        schema, others = _without(snapshot, refused) if refused else (None, str(error))
        problems += [{"column": None, "reason": others}] if others else []
    found = {column["path"]: column for column in columns}
    for name, field in (schema or {}).items():
        column = found.get(name)
        if column is not None and column["nulls"] and not column["is_nested"] and policy_of(field) == "refuse":
            problems.append(
                {
                    "column": name,
                    "reason": f"holds {column['nulls']:,} nulls ({column['nulls'] / max(snapshot.rows, 1):.1%}), and "
                    f"{describe(field, most_words=8)} refuses them; declare fill= or null='mask' in a schema",
                }
            )
    return dict(schema or {}), problems


def _refused(snapshot: Snapshot) -> dict[str, str]:
    """Return the columns whose types no tensor can hold, each with the reason."""
    found: dict[str, str] = {}
    for schema in snapshot.schemas:
        for field in schema if not is_carrying(schema) else ():
            try:
                infer_fields(field)
            except SchemaError as error:
                found.setdefault(field.name, str(error).removeprefix(f"column {field.name!r}").lstrip(": "))
    return found


def _without(snapshot: Snapshot, refused: dict[str, str]) -> tuple[Schema | None, str]:
    """Return the schema of the other columns, or None and the error."""
    names = dict.fromkeys(name for schema in snapshot.schemas for name in schema.names)
    others = [name for name in [*names, *snapshot.partition_schema.names] if name not in refused]
    if not others:
        return None, ""
    try:
        return found_schema(snapshot, others), ""
    except ParquetLoaderError as error:
        return None, str(error)


def _columns(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return figures of each column: one entry for each leaf of a struct, and one for a whole list."""
    found: dict[str, dict[str, Any]] = {}
    for number in range(len(snapshot.files)):
        footer = snapshot.footers.get(number)
        first = 0
        for name, type_, nullable, leaves in _leaves(snapshot.schema_of(number), footer.paths):
            column = found.setdefault(
                name,
                {
                    "path": name,
                    "type": [],
                    "nullable": False,
                    "nulls": 0,
                    "is_nested": leaves > 1 or pa.types.is_nested(plain_type(type_)) if type_ is not None else True,
                    "encodings": [],
                    "codecs": [],
                    "stored_bytes": 0,
                    "encoded_bytes": 0,
                },
            )
            text = "" if type_ is None else type_text(type_)
            column["type"] += [text] if text not in column["type"] else []
            column["nullable"] |= nullable
            for group in range(footer.num_row_groups):
                for leaf in range(first, first + leaves):
                    _add(column, footer, group, leaf)
            first += leaves
    for column in found.values():
        column["type"] = " or ".join(column["type"])
    return list(found.values())


def _add(column: dict[str, Any], footer: Metadata, group: int, leaf: int) -> None:
    chunk = footer.chunk(group, leaf)
    column["stored_bytes"] += chunk.stored_bytes
    column["encoded_bytes"] += chunk.encoded_bytes
    codec = chunk.codec_name.lower()
    column["codecs"] += [codec] if codec not in column["codecs"] else []
    column["encodings"] += [
        e for e in chunk.encoding_names if e not in column["encodings"] and e not in ("RLE", "BIT_PACKED")
    ]
    nulls = footer.null_count(group, leaf)
    column["nulls"] = None if nulls is None or column["nulls"] is None else column["nulls"] + nulls


def _leaves(schema: pa.Schema, paths: Sequence[str]) -> list[tuple[str, pa.DataType | None, bool, int]]:
    """Return name, type, whether it may hold nulls, and number of leaves, of each column in a file's order."""
    columns = [column for field in schema for column in _flat(field, "", is_nullable=False)]
    if sum(leaves for _, _, _, leaves in columns) != len(paths):
        return [(path, None, True, 1) for path in paths]
    return columns


def _flat(field: pa.Field, prefix: str, *, is_nullable: bool) -> Iterator[tuple[str, pa.DataType, bool, int]]:
    name, nullable = prefix + field.name, is_nullable or field.nullable
    if pa.types.is_struct(field.type) and field.type.num_fields:
        for child in field.type:
            yield from _flat(child, f"{name}.", is_nullable=nullable)
    else:
        yield name, field.type, nullable, _count(field.type)


def _count(type_: pa.DataType) -> int:
    """Return how many leaves a type has in Parquet."""
    type_ = plain_type(type_)
    return sum(_count(type_.field(i).type) for i in range(type_.num_fields)) if type_.num_fields else 1
