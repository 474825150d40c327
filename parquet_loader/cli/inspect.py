"""``parquet-loader inspect SOURCE`` (also ``info``): contents and layout of a data set, from footers.

Rows are read only for columns of lists whose footers do not show if all lists have one length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import numpy as np

from parquet_loader.cli.console import show_json, show_lines, show_table, working
from parquet_loader.cli.type_names import type_text
from parquet_loader.cli.version import kernels_line
from parquet_loader.common import PROBLEM, ReadOptions, format_bytes, format_count
from parquet_loader.dataset import OpenRows, open_rows, resolve_source
from parquet_loader.errors import ParquetLoaderError
from parquet_loader.loader.advice import FEWEST_TINY, TINY_ROW_GROUP_BYTES
from parquet_loader.loader.layout.columns import DeliveredColumn, StoredColumn, delivered_columns, stored_columns
from parquet_loader.loader.layout.facts import problems_of
from parquet_loader.schema import Field, describe
from parquet_loader.source import Selection, Snapshot, open_snapshot

# The least number of row groups in a window; with fewer, only neighbouring rows are mixed.
_FEWEST_ROW_GROUPS, _LARGE_BYTES = 4, 64 * 2**20


def _command(name: str) -> click.Command:
    @click.command(name, epilog=f"Example: parquet-loader {name} data/train --json")
    @click.argument("source", nargs=-1, required=True)
    @click.option("--split", help="The split to look at, or 'all'; default: everything, if it is one split.")
    @click.option("--ignore-table-format", is_flag=True, help="Read a table's files as plain Parquet.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    def command(source: tuple[str, ...], *, split: str | None, ignore_table_format: bool, as_json: bool) -> None:
        """Show the fields, row groups, columns and routes of SOURCE (files, directories, globs, tables or URLs)."""
        selection = Selection(split, ignore_table_format)
        with working("reading footers"):
            snapshot = open_snapshot(source[0] if len(source) == 1 else list(source), selection=selection)
            facts = facts_of(snapshot)
        if as_json:
            show_json(facts)
        else:
            _show(facts)

    return command


inspect, info = _command("inspect"), _command("info")


def _show(facts: dict[str, Any]) -> None:
    groups, table = facts["row_groups"], facts["table"]
    rows = f"{format_count(facts['rows'], 'row')} in {format_count(facts['files'], 'file')}"
    on_average = " each before compression, on average" if groups["count"] != 1 else " before compression"
    show_lines(
        f"{rows}, {format_bytes(facts['file_bytes'])}",
        f"{format_count(groups['count'], 'row group')} of {_range(groups['least_rows'], groups['most_rows'])}, "
        f"{format_bytes(groups['mean_bytes'])}{on_average}",
        *([_spread(groups)] if groups["count"] > 1 else []),
        *([f"{table['format']} table, version {table['version']}"] if table else []),
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
    if facts["delivered"]:
        show_lines("")
        show_table(["in a batch", "is", "route", "why no faster one"], map(_route_cells, facts["delivered"]))
    show_lines("")
    show_table(
        ["column", "type", "nulls", "codec", "encodings", "in file", "page index", "stored", "share", "of plain"],
        (_cells(column, facts) for column in facts["columns"]),
        numbers=frozenset({"stored", "share", "of plain"}),
    )


def _route_cells(column: dict[str, Any]) -> list[str]:
    routes = column["routes"]
    total = sum(route["row_groups"] for route in routes)
    names = [
        route["route"] if len(routes) == 1 else f"{route['route']} ({route['row_groups'] / total:.0%})"
        for route in routes
    ]
    return [
        column["name"],
        column["becomes"],
        ", ".join(dict.fromkeys(names)),
        "; ".join(dict.fromkeys(route["reason"] for route in routes if route["reason"])),
    ]


def _cells(column: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    indexed = column["page_index"]
    return [
        column["path"],
        column["type"],
        _nulls(column, facts["rows"]),
        ", ".join(column["codecs"]),
        ", ".join(column["encodings"]),
        ", ".join(column["parquet_types"]),
        "yes" if indexed == 1 else "no" if not indexed else f"{indexed:.0%}",
        format_bytes(column["stored_bytes"]),
        f"{column['stored_share']:.1%}",
        f"{column['stored_bytes'] / max(column['encoded_bytes'], 1):.2f}",
    ]


def _spread(groups: dict[str, Any]) -> str:
    least, median, most = (format_bytes(groups[f"{which}_bytes"]) for which in ("least", "median", "most"))
    return f"  median {format_count(round(groups['median_rows']), 'row')}; {least} to {most}, median {median}"


def _range(least: int, most: int) -> str:
    return format_count(most, "row") if least == most else f"{least:,} to {format_count(most, 'row')}"


def _nulls(column: dict[str, Any], rows: int) -> str:
    if not column["nullable"]:
        return "not null"
    if column["nulls"] is None:
        return "unknown"
    if not column["nulls"]:
        return "0"
    if column["is_nested"]:  # the count includes empty lists, and nulls within lists
        return f"at most {column['nulls']:,}"
    return f"{column['nulls']:,} ({column['nulls'] / max(rows, 1):.1%})"


def facts_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the value that `--json` prints; docs/cli.md explains the keys."""
    columns = stored_columns(snapshot)
    fields, problems, rows_read = _fields(snapshot)
    rows, nbytes = snapshot.row_group_rows, snapshot.row_group_bytes
    total = max(1, sum(column.stored_bytes for column in columns))
    delivered = [] if rows_read is None else delivered_columns(rows_read.reader.snapshot, rows_read.reader)
    return {
        "rows": snapshot.rows,
        "files": len(snapshot.files),
        "file_bytes": sum(file.size_bytes for file in snapshot.files),
        "table": None
        if snapshot.table is None
        else {"format": snapshot.table.format, "version": snapshot.table.version},
        "row_groups": {
            "count": snapshot.row_groups,
            "least_rows": int(rows.min(initial=2**62)) if len(rows) else 0,
            "median_rows": float(np.median(rows)) if len(rows) else 0.0,
            "most_rows": int(rows.max(initial=0)),
            "least_bytes": int(nbytes.min(initial=2**62)) if len(rows) else 0,
            "median_bytes": float(np.median(nbytes)) if len(rows) else 0.0,
            "most_bytes": int(nbytes.max(initial=0)),
            "mean_bytes": float(np.mean(nbytes)) if len(rows) else 0.0,
        },
        "partitions": snapshot.partition_schema.names,
        "kernels": PROBLEM,
        "notes": list(_notes(snapshot)),
        "fields": {name: describe(field, most_words=8) for name, field in fields.items()},
        "problem": problems[0]["reason"] if problems and not fields else None,
        "problems": problems,
        "delivered": [_delivered(column) for column in delivered],
        "columns": [_column(column, total) for column in columns],
    }


def _delivered(found: DeliveredColumn) -> dict[str, Any]:
    column = found.column
    return {
        "name": column.name,
        "kind": {"fixed": "tensor" if column.shape else "number", "list": "ragged"}.get(column.kind, column.kind),
        "dtype": None if column.dtype is None else str(column.dtype),
        "shape": list(column.shape),
        "becomes": found.becomes,
        "routes": [
            {"route": share.route, "reason": share.reason, "row_groups": share.row_groups} for share in found.routes
        ],
    }


def _column(column: StoredColumn, total_bytes: int) -> dict[str, Any]:
    return {
        "path": column.path,
        "type": " or ".join(dict.fromkeys(map(type_text, column.types))),
        "parquet_types": column.physical_types,
        "nullable": column.is_nullable,
        "nulls": column.nulls,
        "is_nested": column.is_nested,
        "encodings": column.encodings,
        "codecs": column.codecs,
        "page_index": column.indexed_chunks / column.chunks if column.chunks else 0.0,
        "statistics": column.bounded_chunks / column.chunks if column.chunks else 0.0,
        "dictionary_bytes": column.dictionary_bytes,
        "stored_bytes": column.stored_bytes,
        "encoded_bytes": column.encoded_bytes,
        "stored_share": column.stored_bytes / total_bytes,
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
            f"{format_count(count, 'row group')} of {format_bytes(nbytes / count)}: windows "
            "mix neighbouring rows only, and few threads can decode; parquet-loader rewrite makes smaller ones"
        )


def _fields(
    snapshot: Snapshot,
) -> tuple[dict[str, Field], list[dict[str, Any]], OpenRows | None]:
    """Return the delivered fields, the problems of other columns, and the opened rows if they can be opened."""
    refused, names = problems_of(snapshot)
    problems = [{"column": problem.column, "reason": problem.reason} for problem in refused]
    if names is not None and not names:
        return {}, problems, None
    opened, error = _opened(snapshot, names)
    problems += [{"column": None, "reason": error}] if error else []
    return {} if opened is None else dict(opened.schema), problems, opened


def _opened(snapshot: Snapshot, names: list[str] | None) -> tuple[OpenRows | None, str]:
    """Open these columns for reading; return None and the error if that fails."""
    options = ReadOptions()
    try:
        source = resolve_source(snapshot, None, names, options)
        return open_rows(source, filters=None, read_options=options, cache=None, skips=False, num_threads=1), ""
    except ParquetLoaderError as error:
        return None, str(error)
