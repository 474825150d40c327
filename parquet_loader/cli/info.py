"""``parquet-loader info SOURCE``: what a data set holds and how it is stored, from footers alone."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from parquet_loader.cli.console import show_json, show_lines, show_table
from parquet_loader.delivered import found_schema
from parquet_loader.errors import ParquetLoaderError
from parquet_loader.footers import schema_of
from parquet_loader.schema.base import describe
from parquet_loader.snapshot import Snapshot, open_snapshot
from parquet_loader.types import format_bytes
from parquet_loader.unischema.hook import with_unischema


@click.command()
@click.argument("source", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(source: tuple[str, ...], *, as_json: bool) -> None:
    """Show the fields, files, row groups and columns of SOURCE (files, directories, globs or URLs)."""
    snapshot = open_snapshot(source[0] if len(source) == 1 else list(source))
    facts = _facts(snapshot)
    if as_json:
        show_json(facts)
        return
    groups = facts["row_groups"]
    show_lines(
        f"{facts['rows']:,} rows in {facts['files']} files, {format_bytes(facts['file_bytes'])}",
        f"{groups['count']} row groups of {groups['least_rows']:,} to {groups['most_rows']:,} rows, "
        f"{format_bytes(groups['mean_bytes'])} each before compression, on average",
        *([f"partitions: {', '.join(facts['partitions'])}"] if facts["partitions"] else []),
        "",
        "delivered as:" if facts["fields"] else f"cannot be loaded as it is: {facts['problem']}",
    )
    show_lines(*(f"  {name}: {text}" for name, text in facts["fields"].items()), "")
    show_table(
        ["column", "type", "nulls", "encodings", "codec", "stored", "of plain"],
        (
            [
                c["path"],
                c["type"],
                "nullable" if c["nullable"] else "not null",
                ", ".join(c["encodings"]),
                ", ".join(c["codecs"]),
                format_bytes(c["stored_bytes"]),
                f"{c['stored_bytes'] / max(c['encoded_bytes'], 1):.2f}",
            ]
            for c in facts["columns"]
        ),
        numbers=frozenset({"stored", "of plain"}),
    )


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    try:
        snapshot, schema = with_unischema(snapshot, None)
        schema = found_schema(snapshot) if schema is None else schema
        fields, problem = {n: describe(f, most_words=8) for n, f in schema.items()}, None
    except ParquetLoaderError as error:
        fields, problem = {}, str(error)
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
        "fields": fields,
        "problem": problem,
        "columns": _columns(snapshot),
    }


def _columns(snapshot: Snapshot) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for number in range(len(snapshot.files)):
        footer = snapshot.footers.get(number)
        schema = schema_of(footer)
        for i in range(footer.num_columns):
            leaf = schema.column(i)
            empty = {"path": leaf.path, "type": "", "nullable": False, "encodings": [], "codecs": []}
            column = found.setdefault(leaf.path, empty | {"stored_bytes": 0, "encoded_bytes": 0})
            logical = str(leaf.logical_type)
            column["type"] = leaf.physical_type if logical == "None" else f"{leaf.physical_type} {logical}"
            column["nullable"] |= leaf.max_definition_level > leaf.max_repetition_level
            for group in range(footer.num_row_groups):
                chunk = footer.row_group(group).column(i)
                column["stored_bytes"] += chunk.total_compressed_size
                column["encoded_bytes"] += chunk.total_uncompressed_size
                column["codecs"] += [c for c in [chunk.compression.lower()] if c not in column["codecs"]]
                column["encodings"] += [
                    e for e in chunk.encodings if e not in column["encodings"] and e not in ("RLE", "BIT_PACKED")
                ]
    return list(found.values())
