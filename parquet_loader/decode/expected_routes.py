"""Predicts the routes of a row group's column chunks from the footer, with the reason why each is not a faster one.

It uses the functions by which `open_chunks` decides. The pages of a chunk may still lead to another route.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

from parquet_loader.decode.native.decodable import decodable_columns, is_known_bytes
from parquet_loader.decode.opened_chunks import RAW_BYTES
from parquet_loader.decode.plain_pages import why_not_raw
from parquet_loader.decode.routes import OF_BROKEN_GROUP, ColumnRoute, broken_groups, holds_rows
from parquet_loader.source import ReadableChunk, RowGroupFooter

# From the fastest to the slowest.
RouteName: TypeAlias = Literal["constant", "pages to window", "kernel to window", "kernel", "arrow"]


class ChunkRoute(NamedTuple):
    """The route of a column chunk to the window.

    Attributes:
        name: ``"constant"``: nothing is read. ``"pages to window"``: the system copies plain pages to the window.
            ``"kernel to window"``: a kernel decodes to the window. ``"kernel"``: a kernel decodes to an array, which is
            converted. ``"arrow"``: Arrow decodes.
        reason: Why it is not a faster route; "" if this is the fastest.
    """

    name: RouteName
    reason: str


def chunk_routes(
    routes: Sequence[ColumnRoute], footer: RowGroupFooter, schema: pa.Schema, rows: int, *, is_local: bool
) -> dict[str, ChunkRoute]:
    """Return the expected route of each delivered column of a row group, if no row is filtered out.

    Args:
        routes: The routes of the file's columns.
        footer: The footer's entries for these columns.
        schema: The Arrow schema of the file.
        rows: Rows of the row group.
        is_local: Whether the file is local.
    """
    raw, no_raw = set[str](), dict[str, str]()
    for route in routes:
        if route.window == "pages":
            no_raw[route.stored] = _why_not_pages(route, footer, rows, is_local=is_local)
            raw |= set() if no_raw[route.stored] else {route.stored}
        elif route.window and route.source.column is not None and holds_rows(route.source.column):
            no_raw[route.stored] = "it is a list" if route.source.is_list_of_row else "it is nullable"
    to_window = [r for r in routes if r.window and r.decoder == "kernel" and r.stored not in raw]
    forms = {r.stored: r.source.form for r in to_window}
    not_straight, not_kernel = dict[str, str](), dict[str, str]()
    straight = set(decodable_columns(footer, [r.stored for r in to_window], schema, rows, forms, not_straight).names)
    broken = broken_groups(straight, routes)
    apart = {r.stored for r in to_window if r.source.group in broken}
    not_straight |= dict.fromkeys(straight & apart, OF_BROKEN_GROUP)
    straight -= apart
    others = [r.stored for r in routes if r.decoder == "kernel" and r.stored not in raw | straight]
    kernel = set(decodable_columns(footer, others, schema, rows, None, not_kernel).names)
    found = dict[str, ChunkRoute]()
    for route in routes:
        stored = route.stored
        if not stored:
            way = ChunkRoute("constant", route.reason)
        elif stored in raw:
            way = ChunkRoute("pages to window", "")
        elif stored in straight:
            way = ChunkRoute("kernel to window", no_raw.get(stored, ""))
        elif stored in kernel:
            way = ChunkRoute("kernel", not_straight.get(stored) or route.reason)
        elif _is_only_for_window(route):
            way = ChunkRoute("arrow", not_straight.get(stored) or route.reason)
        else:
            way = ChunkRoute("arrow", not_kernel.get(stored) or route.reason)
        found[route.source.name] = way
    return found


def _is_only_for_window(route: ColumnRoute) -> bool:
    """Return whether kernels decode a column to the window or not at all: text, bytes and members of structs."""
    field = route.source.field
    return route.source.is_member or (field is not None and is_known_bytes(field.type))


def _why_not_pages(route: ColumnRoute, footer: RowGroupFooter, rows: int, *, is_local: bool) -> str:
    field, chunks = route.source.field, footer.chunks[route.stored]
    if not is_local:
        return "the file is not local"
    assert field is not None
    if field.type.byte_width * rows < RAW_BYTES:
        return f"its column chunks are smaller than {RAW_BYTES // 1024} KiB"
    if len(chunks) != 1 or not isinstance(chunks[0], ReadableChunk):
        return "the footer describes it wrongly"
    return why_not_raw(chunks[0], chunks[0].leaf, field.type)
