"""Opens the column chunks of one row group: each on the first of its column's routes that it can take.

The result of the decision is a `ChunkPlan`, which callers keep for the next epoch if the file does not change. Most row
groups of a data set differ only in offsets and sizes, so a `PlanPattern` makes their plans from the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from parquet_loader.common import IntArray
from parquet_loader.decode.native.column_reader import Fills, NativeChunks
from parquet_loader.decode.native.decodable import DecodableChunks, Line, decodable_columns, is_known_bytes
from parquet_loader.decode.native.page_check import check_pages
from parquet_loader.decode.page_headers import bounds_of_chunks
from parquet_loader.decode.plain_pages import RawColumn, RawFile, RawPages, raw_pages
from parquet_loader.decode.routes import ColumnRoute, broken_groups
from parquet_loader.source import ChunkPattern, ReadableChunk, RowGroupFooter

# Smaller column chunks are left to Arrow, which reads many in one call.
RAW_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The route of each column chunk of a row group.

    Of the routes to the window, ``"pages"`` leads to `raw` and ``"kernel"`` to `straight`; see `ColumnRoute.window`.
    The other chunks are decoded to arrays: `kernel` and `arrow`.

    Attributes:
        raw: Locations of the pages that the system copies to the window.
        straight: Chunks that a kernel decodes to the window.
        fills: The values that replace nulls in these.
        kernel: Chunks that a kernel decodes to arrays.
        arrow: Names to pass to Arrow; the page headers of these chunks are checked.
        stored_bytes: Bytes of all of them in the file.
        masks: For each mask of a straight column: the column, and the address that the view of a null has; 0 for a
            column of numbers.
        groups: The members of each group that straight columns form.
        deferred: Columns that stay in the file until their rows are written to a window: raw and straight ones, their
            masks, and groups instead of their members.
        is_native: Whether kernels decode all chunks.
    """

    raw: Mapping[str, RawPages]
    straight: DecodableChunks
    fills: Fills
    kernel: DecodableChunks
    arrow: tuple[str, ...]
    stored_bytes: int
    masks: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    deferred: frozenset[str] = field(init=False)
    is_native: bool = field(init=False)

    def __post_init__(self) -> None:
        members = frozenset(chain.from_iterable(self.groups.values()))
        deferred = frozenset((*self.raw, *self.straight.names, *self.masks, *self.groups))
        object.__setattr__(self, "deferred", deferred - members)
        has_kernel_columns = bool(self.straight.names or self.kernel.names)
        object.__setattr__(self, "is_native", has_kernel_columns and not self.raw and not self.arrow)


@dataclass(frozen=True, slots=True)
class PlanPattern:
    """A plan that serves other row groups with the same columns: only offsets, sizes and numbers of rows differ.

    Measured with 39 columns, it saves 0.3 ms of Python for each row group that is read for the first time.

    Attributes:
        plan: The plan of the first row group: kernels decode all columns.
        chunks: Its column chunks.
        straight, kernel: The number in `chunks` of each chunk of `ChunkPlan.straight` and `ChunkPlan.kernel`.
    """

    plan: ChunkPlan
    chunks: ChunkPattern
    straight: Sequence[int]
    kernel: Sequence[int]

    @classmethod
    def of(cls, plan: ChunkPlan, routes: Sequence[ColumnRoute], footer: RowGroupFooter) -> PlanPattern | None:
        """Return the pattern of a plan; None if the plans of other row groups may differ in more.

        Args:
            plan: The plan.
            routes: The routes of which it consists.
            footer: The footer's entries for its columns.
        """
        parts = plan.straight, plan.kernel
        are_single = all(len(chunks) == 1 for chunks in footer.chunks.values())
        # The pages of a column may take a route of their own in a larger row group.
        may_be_pages = any(route.window == "pages" for route in routes)
        if footer.pattern is None or not plan.is_native or not are_single or may_be_pages:
            return None
        numbers = {name: number for number, name in enumerate(footer.chunks)}
        straight, kernel = ([numbers[name] for name in part.names] for part in parts)
        takes_nulls, row_values = footer.pattern.takes_nulls.copy(), footer.pattern.row_values.copy()
        for part, columns in zip(parts, (straight, kernel), strict=True):
            are_lists, per_row = part.lines[:, Line.ELEMENT_LEVEL], part.lines[:, Line.ROW_VALUES]
            row_values[columns] = np.where(are_lists, 0, np.maximum(per_row, 1))
        # The kernel finds nulls of lists of any length in the pages: the footer counts empty lists, too.
        per_row = row_values[straight]
        takes_nulls[straight] = (plan.fills.are_given & (per_row == 1)) | (per_row == 0)
        chunks = footer.pattern._replace(takes_nulls=takes_nulls, row_values=row_values)
        return cls(plan, chunks, straight, kernel)

    @property
    def is_straight(self) -> bool:
        """Whether kernels decode all columns to the window."""
        return not self.plan.kernel.names

    def lines_at(self, extents: IntArray, rows: IntArray) -> IntArray:
        """Return `DecodableChunks.lines` of several row groups, for `WholeRowGroups`; the pattern `is_straight`.

        Args:
            extents: Those of `ChunkPattern.extents`.
            rows: Rows of each, int64 ``[row groups]``.
        """
        return self.plan.straight.moved(extents[:, self.straight], rows[:, None]).lines

    def plan_at(self, extents: IntArray, rows: int) -> ChunkPlan:
        """Return the plan of another row group.

        Args:
            extents: Its own of `ChunkPattern.extents`.
            rows: Rows of the row group.
        """
        return replace(
            self.plan,
            straight=self.plan.straight.moved(extents[self.straight], rows),
            kernel=self.plan.kernel.moved(extents[self.kernel], rows),
            stored_bytes=int((extents[:, 1] - extents[:, 0]).sum()),
        )


class OpenChunks:
    """Open column chunks of one row group. Used by one thread at a time; the caller of `open_chunks` closes it.

    Args:
        plan: The route of each.
        source, listed: As in `open_chunks`.
        file: The file, if it is open for `ChunkPlan.raw`.

    Attributes:
        plan: The route of each.
        raw, straight, kernel: The open chunks of each route, or None.
        lists: The columns of `straight` that are lists of any length, with the most bytes that their elements take.
        is_as_listed: Whether kernels read all chunks, of the listed file; after `close`: whether it is still there,
            unchanged.
        pattern: The pattern of a new plan, if it has one.
    """

    def __init__(
        self, plan: ChunkPlan, source: str | pa.Buffer | None, file: RawFile | None, listed: tuple[int, int]
    ) -> None:
        self.plan = plan
        self._file = file
        self.raw: dict[str, RawColumn] = {}
        self.straight: NativeChunks | None = None
        self.kernel: NativeChunks | None = None
        self.lists: Mapping[str, int] = {}
        self.is_as_listed = False
        self.pattern: PlanPattern | None = None
        try:
            if plan.raw:
                assert isinstance(source, str)
                file = self._file = file or RawFile(source)
                self.raw = {name: RawColumn(file, pages) for name, pages in plan.raw.items()}
            if source is not None and plan.straight.names:
                self.straight = NativeChunks(source, plan.straight, plan.fills, listed)
                self.lists = self.straight.most_list_bytes
            if source is not None and plan.kernel.names:
                self.kernel = NativeChunks(source, plan.kernel, None, listed)
            self.is_as_listed = self._are_as_listed()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close files and release all buffers; idempotent."""
        for part in (self._file, self.straight, self.kernel):
            if part is not None:
                part.close()
        self.is_as_listed = self._are_as_listed()

    def _are_as_listed(self) -> bool:
        parts = [part for part in (self.straight, self.kernel) if part is not None]
        return self.plan.is_native and bool(parts) and all(part.is_as_listed for part in parts)


def open_chunks(
    source: str | pa.Buffer | None,
    routes: Sequence[ColumnRoute],
    window_routes: Collection[str],
    footer: RowGroupFooter | None,
    schema: pa.Schema,
    rows: int,
    known: ChunkPlan | None = None,
    listed: tuple[int, int] = (-1, -1),
    matched: tuple[PlanPattern, IntArray] | None = None,
) -> OpenChunks:
    """Open column chunks of a row group, and check the page headers of those that are left to Arrow.

    Args:
        source: A path, or the file's bytes in memory; None for chunks that are streamed to Arrow, whose headers are
            checked as they arrive.
        routes: The routes of their columns.
        window_routes: Which values of `ColumnRoute.window` may be used; other columns are decoded to arrays. Lists of
            any length also need ``"lists"``, which is for row groups whose rows are written to one window in one step.
        footer: The footer's entries for these columns; None if `known` or `matched` is given.
        schema: The Arrow schema of the file.
        rows: Rows of the row group.
        known: The plan of an earlier call, if the file does not change.
        listed: The file's size in bytes and modification time in nanoseconds when it was listed, for
            `OpenChunks.is_as_listed`.
        matched: The pattern that the row group follows, and its extents for `PlanPattern.plan_at`; or None.

    Raises:
        FalseClaimError, MetadataError: a column chunk cannot be read.
        OSError, MemoryError: it cannot be opened.
    """
    if matched is not None:
        pattern, extents = matched
        known = pattern.plan_at(extents, rows)
    if known is not None:
        return OpenChunks(known, source, None, listed)
    assert footer is not None
    wide = _wide_columns(routes, window_routes, rows)
    file = RawFile(source) if wide and isinstance(source, str) else None
    try:
        raw = {} if file is None else _raw_columns(file, wide, footer, rows)
        plan = _plan_of(source, routes, window_routes, footer, schema, rows, raw)
        opened = OpenChunks(plan, source, file, listed)
        opened.pattern = PlanPattern.of(plan, routes, footer)
        return opened
    except BaseException:
        if file is not None:
            file.close()
        raise


def _plan_of(
    source: str | pa.Buffer | None,
    routes: Sequence[ColumnRoute],
    window_routes: Collection[str],
    footer: RowGroupFooter,
    schema: pa.Schema,
    rows: int,
    raw: Mapping[str, RawPages],
) -> ChunkPlan:
    """Return the plan of a row group, and check the page headers of chunks that are left to Arrow.

    Args:
        source, routes, window_routes, footer, schema, rows: As in `open_chunks`.
        raw: As in `ChunkPlan`.
    """
    straight, whole = _straight_columns(routes, window_routes if source is not None else (), footer, schema, rows, raw)
    groups = dict[str, list[str]]()
    for route in whole:
        if route.source.group:
            groups.setdefault(route.source.group, []).append(route.stored)
    given = {r.stored: r.source.fill for r in routes if r.source.fill is not None}
    byte_arrays = {n for n, type_ in zip(straight.names, straight.types, strict=True) if is_known_bytes(type_)}
    fills = Fills.of_columns(straight.names, given, byte_arrays)
    nulls = {name: null.ctypes.data for name, null in fills.viewed.items()}
    masks = {r.source.mask: (r.stored, nulls.get(r.stored, 0)) for r in whole if r.source.mask}
    to_window = {*raw, *straight.names}
    others = [route for route in routes if route.stored and route.stored not in to_window]
    kernel_names = [r.stored for r in others if r.decoder == "kernel"] if source is not None else []
    kernel = decodable_columns(footer, kernel_names, schema, rows)
    arrow = tuple(dict.fromkeys(r.stored for r in others if r.stored not in kernel.names))
    if arrow and source is not None:
        check_pages(source, bounds_of_chunks(footer, arrow))
    return ChunkPlan(raw, straight, fills, kernel, arrow, footer.stored_bytes, masks, groups)


def _raw_columns(
    file: RawFile, wide: Mapping[str, pa.DataType], footer: RowGroupFooter, rows: int
) -> dict[str, RawPages]:
    """Return the pages of those of the `wide` columns that the system can copy to the window."""
    raw = dict[str, RawPages]()
    for name, type_ in wide.items():
        (chunk,) = footer.chunks[name]
        pages = raw_pages(file, chunk, chunk.leaf, rows, type_) if isinstance(chunk, ReadableChunk) else None
        if pages is not None:
            raw[name] = pages
    return raw


def _straight_columns(
    routes: Sequence[ColumnRoute],
    window_routes: Collection[str],
    footer: RowGroupFooter,
    schema: pa.Schema,
    rows: int,
    raw: Collection[str],
) -> tuple[DecodableChunks, list[ColumnRoute]]:
    """Return the chunks that a kernel decodes to the window, and their routes; of a group, all members or none.

    Args:
        routes, window_routes, footer, schema, rows: As in `open_chunks`.
        raw: The columns that the system copies to the window.
    """
    to_window = [r for r in routes if r.window and r.decoder == "kernel" and r.stored not in raw]
    to_window = [
        r for r in to_window if "kernel" in window_routes and ("lists" in window_routes or not r.source.are_lists)
    ]
    to_window = _in_whole_groups(to_window, routes)
    forms = {r.stored: r.source.form for r in to_window}

    def decodable(some: Sequence[ColumnRoute]) -> DecodableChunks:
        return decodable_columns(footer, [r.stored for r in some], schema, rows, forms)

    straight = decodable(to_window)
    there = set(straight.names)
    whole = _in_whole_groups([r for r in to_window if r.stored in there], routes)
    return (decodable(whole) if len(whole) < len(there) else straight), whole


def _in_whole_groups(some: Sequence[ColumnRoute], routes: Sequence[ColumnRoute]) -> list[ColumnRoute]:
    """Return those of `some` of the routes that belong to no group, or to one whose members are all among them."""
    broken = broken_groups({route.stored for route in some}, routes)
    return [route for route in some if route.source.group not in broken]


def _wide_columns(routes: Sequence[ColumnRoute], window_routes: Collection[str], rows: int) -> dict[str, pa.DataType]:
    """Return the columns whose chunks are large enough to inspect their pages, with their types."""
    fields = [r.source.field for r in routes if r.window == "pages" and r.window in window_routes and r.source.field]
    return {field.name: field.type for field in fields if field.type.byte_width * rows >= RAW_BYTES}
