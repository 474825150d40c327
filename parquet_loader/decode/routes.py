"""Decides, once for each file schema, which decoder moves each column from the file to the window.

The encoding, codec and nulls of a column chunk are known only when it is opened. A chunk that cannot take its column's
route takes the next one in this order: pages to the window, a kernel, Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

import numpy as np
import pyarrow as pa

from parquet_loader.common import IS_BUILT, PROBLEM, ReadOptions
from parquet_loader.decode.columns import Column, number_type
from parquet_loader.decode.native.decodable import (
    RowDemand,
    WindowForm,
    can_convert,
    is_known_bytes,
    is_known_list,
    is_known_type,
)
from parquet_loader.decode.native.vocabulary import Vocabulary
from parquet_loader.decode.plain_pages import IS_POSSIBLE

# Rows at least this wide are copied to their slots as soon as they are decoded; narrower ones are ordered a window at a
# time. Measured: numpy scatters rows of 256 bytes and more at about memory bandwidth.
WIDE_BYTES = 256
# The kernels treat rows of these widths as numbers.
WORD_BYTES = (1, 2, 4, 8)
# Arrow builds a new dictionary for every batch, which pays off if each word occurs in this many rows. Measured: with
# 1,000 words in 4 columns it takes a third of the processor time, with 100,000 in batches of 8,000 rows twice as much.
ROWS_OF_A_WORD = 8
OF_BROKEN_GROUP = "another member of its group cannot be decoded to the window"


class Arrangement(Enum):
    """How a window orders the rows of a canonical column.

    Attributes:
        DIRECT: Each row is copied to its final slot as soon as it is decoded.
        NARROW: Numbers and short rows are staged in a buffer until all rows of the window are decoded. One kernel call
            orders many columns.
        RAGGED: Variable-width bytes are staged likewise; nested lists in several columns, see `nested_lists.py`.
    """

    DIRECT = "direct"
    NARROW = "narrow"
    RAGGED = "ragged"


def holds_rows(column: Column) -> bool:
    """Return whether values are rows of bytes of one width that is not a number's."""
    return pa.types.is_fixed_size_binary(column.arrow_type) and column.row_bytes not in (None, *WORD_BYTES)


def arrangement_of(column: Column) -> Arrangement:
    """Return how a window orders the rows of a column."""
    if column.row_bytes is None:
        return Arrangement.RAGGED
    return Arrangement.DIRECT if holds_rows(column) and column.row_bytes >= WIDE_BYTES else Arrangement.NARROW


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """The file's column from which a delivered column, or one member of a group, is made.

    Attributes:
        name: Name of the delivered column or member.
        stored: The name to read; None if the files have no such column.
        field: The file's column, if it is a top-level column, or a member of structs that is a list of numbers or not
            nested, or a number in a list of structs, which is a list of numbers here; else None.
        column: The canonical column, if values of its type are delivered unchanged; None if they are always converted,
            as for columns of another name.
        words: Size of the vocabulary of a category whose words Arrow can read as a dictionary; else 0.
        fill: The bytes of a delivered row that replaces a null; None if nulls are refused, or if rows are wider than a
            number and not byte arrays.
        mask: The mask that is delivered with a number or byte array; "" without one.
        refuses_nulls: Whether a null is an error.
        type: The type of a field of numbers, with the unit of times; else None.
        group: The group of which it is a member, if kernels may decode its members to be interleaved; else "".
        vocabulary: The vocabulary of a category of text, if kernels may look up the words; else None.
    """

    name: str
    stored: str | None
    field: pa.Field | None
    column: Column | None = None
    words: int = 0
    fill: bytes | None = None
    refuses_nulls: bool = False
    type: pa.DataType | None = None
    mask: str = ""
    group: str = ""
    vocabulary: Vocabulary | None = None

    @property
    def is_as_stored(self) -> bool:
        """Whether a column of the file without nulls is delivered unchanged, as a column, and without a mask."""
        return self._is_of_type and not self.mask and not self.group and not self.is_member

    @property
    def is_member(self) -> bool:
        """Whether it is a member of a struct, or has a dot in its name."""
        return self.stored is not None and "." in self.stored

    @property
    def _is_of_type(self) -> bool:
        return self.column is not None and self.field is not None and self.field.type == self.column.arrow_type

    @property
    def is_as_decoded(self) -> bool:
        """Whether values are delivered as kernels decode them: booleans as bytes, numbers in the delivered type."""
        column, field = self.column, self.field
        is_boolean = column is not None and column.dtype == np.bool_ and not column.shape
        is_bits = is_boolean and field is not None and pa.types.is_boolean(field.type)
        is_same = self._is_of_type or is_bits or self.is_same_time or self.are_lists
        is_converted = self.converted is not None or self.vocabulary is not None
        return is_same or is_converted or self.is_list_of_row or self.are_byte_arrays

    @property
    def converted(self) -> pa.DataType | None:
        """The type in which kernels deliver numbers of another type, alone or in lists; None for all other values."""
        column, field = self.column, self.field
        if column is None or column.dtype is None or column.dtype == np.bool_ or field is None:
            return None
        if self.are_lists or self.is_list_of_row:
            stored = field.type.value_type
        elif column.kind == "fixed" and not column.shape:
            stored = field.type
        else:
            return None
        delivered = number_type(column.dtype)
        type_, t = self.type, pa.types
        is_number = type_ is None or t.is_integer(type_) or t.is_floating(type_)
        are_decimals = type_ is not None and t.is_decimal(type_) and t.is_decimal(stored)
        return delivered if (is_number or are_decimals) and can_convert(stored, delivered) else None

    @property
    def is_same_time(self) -> bool:
        """Whether the file holds dates or times in the delivered unit."""
        stored, wanted = None if self.field is None else self.field.type, self.type
        if self.column is None or stored is None or wanted is None or not pa.types.is_temporal(stored):
            return False
        if pa.types.is_timestamp(stored) and pa.types.is_timestamp(wanted):
            return bool(stored.unit == wanted.unit)
        return bool(stored == wanted)

    @property
    def are_byte_arrays(self) -> bool:
        """Whether the file holds text or bytes that are delivered unchanged."""
        column, field = self.column, self.field
        if column is None or field is None or column.kind not in ("text", "bytes", "image"):
            return False
        return column.is_ragged and is_known_bytes(field.type)

    @property
    def are_lists(self) -> bool:
        """Whether the file holds lists of numbers that are delivered as lists of any length."""
        column, field = self.column, self.field
        if column is None or field is None or column.item is None or not column.is_ragged:
            return False
        if not is_known_list(field.type) or pa.types.is_fixed_size_list(field.type) or column.item.shape:
            return False
        stored, delivered = field.type.value_type, column.item.arrow_type
        return bool(stored == delivered or can_convert(stored, delivered))

    @property
    def is_list_of_row(self) -> bool:
        """Whether a row of several numbers is stored as a list, whose length and nulls only the footer can show."""
        column, field = self.column, self.field
        if column is None or field is None or not column.shape or not is_known_list(field.type):
            return False
        assert column.dtype is not None
        size = math.prod(column.shape)
        is_as_long = not pa.types.is_fixed_size_list(field.type) or field.type.list_size == size
        stored, delivered = field.type.value_type, number_type(column.dtype)
        return bool(is_as_long and (stored == delivered or can_convert(stored, delivered)))

    @property
    def form(self) -> WindowForm:
        """How a kernel delivers the column to the window."""
        column, demand, is_text = self.column, None, False
        number = self.converted
        if column is not None and self.are_byte_arrays:
            demand, is_text = RowDemand(0, self.refuses_nulls, self.fill is not None), column.kind == "text"
        elif column is not None and self.vocabulary is not None:
            number = column.arrow_type
        elif column is not None and column.shape and (self.fill is None or self.is_list_of_row):
            demand = RowDemand(math.prod(column.shape), self.refuses_nulls)
        member = self.field.type if self.field is not None and self.is_member else None
        return WindowForm(demand, number, is_text, self.vocabulary, member)

    @property
    def is_always_as_stored(self) -> bool:
        """Whether all values are delivered unchanged, because the file's schema allows no nulls."""
        return self.is_as_stored and self.field is not None and not self.field.nullable


@dataclass(frozen=True, slots=True)
class ColumnRoute:
    """How a column of the files of one Arrow schema is decoded.

    Attributes:
        source: The column.
        window: How values are written directly to the window's buffers, without an Arrow array. ``"pages"``: the system
            copies them from plain pages. ``"kernel"``: a kernel decodes them there. None: not at all. It is not used if
            the filter needs the column to drop rows of a row group.
        decoder: The decoder to arrays, if `window` cannot be used; None if nothing is read.
        reason: Why there is no faster route; "" if this is the fastest.
        dictionary_rows: The least rows of a batch that Arrow reads as a dictionary; 0 for never.
        stored: The name to read; "" if nothing is read.
    """

    source: ColumnSource
    window: Literal["pages", "kernel"] | None
    decoder: Literal["kernel", "arrow"] | None
    reason: str = ""
    dictionary_rows: int = 0
    stored: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stored", self.source.stored or "")

    @property
    def word(self) -> str:
        """The route in a few words."""
        return f"{self.window} to window" if self.window else self.decoder or "constant"


def broken_groups(stored: Collection[str], routes: Iterable[ColumnRoute]) -> set[str]:
    """Return the groups that have a member whose column is not one of `stored`."""
    return {route.source.group for route in routes if route.source.group and route.stored not in stored}


def routes_of(
    sources: Collection[ColumnSource],
    columns: Collection[str],
    filtered: Collection[str],
    schema: pa.Schema,
    options: ReadOptions,
    *,
    kernels: bool = IS_BUILT,
    pages: bool = IS_POSSIBLE,
) -> tuple[ColumnRoute, ...]:
    """Return the routes of the columns read from the files of one Arrow schema.

    Args:
        sources: The sources of the delivered columns.
        columns: The names to read; there may be more of them than sources.
        filtered: The columns that a filter compares.
        schema: The Arrow schema of the files.
        options: How to read.
        kernels: Whether there are kernels.
        pages: Whether the system can read into several buffers at once.
    """
    own = {field.name: field for field in schema}
    read = {source.stored for source in sources}
    others = [ColumnSource(name, name, own.get(name)) for name in columns if name not in read]
    forbidden = "verify_checksums=True" if options.verify_checksums else ""
    missing = "" if kernels else f"there are no kernels: {PROBLEM or 'switched off'}"
    found = []
    for source in [*sources, *others]:
        window, decoder, reason = _route(source, forbidden, missing, pages=pages)
        dictionary_rows = 0 if source.stored in filtered else ROWS_OF_A_WORD * source.words
        found.append(ColumnRoute(source, window, decoder, reason, dictionary_rows))
    broken = broken_groups({route.stored for route in found if route.window}, found)
    return tuple(
        replace(route, window=None, reason=OF_BROKEN_GROUP) if route.window and route.source.group in broken else route
        for route in found
    )


def _route(
    source: ColumnSource, forbidden: str, missing: str, *, pages: bool
) -> tuple[Literal["pages", "kernel"] | None, Literal["kernel", "arrow"] | None, str]:
    """Return `ColumnRoute.window`, `decoder` and `reason` of a column.

    Args:
        source: The column.
        forbidden: The option that leaves all decoding to Arrow; "" if there is none.
        missing: Why the kernels are missing; "" if they are not.
        pages: As in `routes_of`.
    """
    field, column = source.field, source.column
    if source.stored is None:
        return None, None, "the files have no such column"
    if field is None:
        return None, "arrow", "it is nested, and not a list of numbers"
    if is_known_bytes(field.type) and not source.are_byte_arrays and source.vocabulary is None:
        return None, "arrow", "its values are converted"
    if not (is_known_type(field.type) or is_known_list(field.type) or is_known_bytes(field.type)):
        return None, "arrow", f"{field.type} is not a number, text, bytes, or a list of numbers"
    if forbidden:
        return None, "arrow", forbidden
    decoder: Literal["kernel", "arrow"] = "arrow" if missing else "kernel"
    if column is None or not source.is_as_decoded:
        return None, decoder, missing or "its values are converted"
    if holds_rows(column) and source.is_always_as_stored and pages:
        return "pages", decoder, ""
    return (None, decoder, missing) if missing else ("kernel", decoder, "")
