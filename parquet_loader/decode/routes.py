"""Decides how each column travels from the file to the window: once for each file schema, for everyone who reads.

What a column chunk turns out to be (encoded, compressed, with nulls) is known only when it is opened. A chunk that
cannot take its column's route takes the next one: pages to the window, a kernel, Arrow.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import pyarrow as pa

from parquet_loader.common import IS_BUILT, PROBLEM, ReadOptions
from parquet_loader.decode.columns import Column
from parquet_loader.decode.native.column_reader import is_known_type
from parquet_loader.decode.plain_pages import IS_POSSIBLE

# A row at least this wide is copied to its place as soon as it is decoded; narrower ones are put into order a window at
# a time. Measured: numpy places rows of 256 bytes and more about as fast as memory can be written.
WIDE_BYTES = 256
# Rows of this many bytes are numbers to the kernels. Without kernels Arrow puts them into order: measured on 40
# columns, one call for all of them takes 0.6 of the time of numpy's take of each.
WORD_BYTES = (1, 2, 4, 8)
# Arrow makes a dictionary anew for every batch, which pays if each of its words stands for that many rows. Measured:
# with 1,000 words in 4 columns it takes a third of the processor time, with 100,000 in batches of 8,000 rows twice as
# much.
ROWS_OF_A_WORD = 8


class Arrangement(Enum):
    """How a window puts the rows of a canonical column into order.

    Attributes:
        DIRECT: Each row is copied to its place as soon as it is decoded.
        STAGED: Rows of bytes of one width wait next to one another until all of a window are there.
        SCALAR: Numbers wait the same way; one kernel call puts many columns into order.
        RAGGED: Rows of bytes of varying length wait the same way.
        GATHERED: Arrow's arrays wait, and Arrow puts them into order.
    """

    DIRECT = "direct"
    STAGED = "staged"
    SCALAR = "scalar"
    RAGGED = "ragged"
    GATHERED = "gathered"


def arrangement_of(column: Column, *, kernels: bool = IS_BUILT) -> Arrangement:
    """Return how a window puts the rows of a column into order, with or without kernels."""
    if column.is_ragged:
        return Arrangement.RAGGED
    width = column.row_bytes
    if width is not None and pa.types.is_fixed_size_binary(column.arrow_type):
        if width >= WIDE_BYTES:
            return Arrangement.DIRECT
        if width not in WORD_BYTES:
            return Arrangement.STAGED
    return Arrangement.SCALAR if kernels and width is not None else Arrangement.GATHERED


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """The column of a file that a delivered column, or a part of one, is made of.

    Attributes:
        name: Of the delivered column; of a group in columns, the member's.
        stored: The name passed to the Parquet reader; None: the files have no such column.
        field: The file's column, if it is a whole column of the top level.
        column: The canonical column that values of its type are delivered as, without a change; None: there are always
            changes, as for categories, masks, members of groups, and columns of another name.
        words: Size of the vocabulary, for words of a category that Arrow can read as positions in a dictionary.
    """

    name: str
    stored: str | None
    field: pa.Field | None
    column: Column | None = None
    words: int = 0

    @property
    def is_as_stored(self) -> bool:
        """Whether values, if none is null, are delivered as the file holds them."""
        return self.column is not None and self.field is not None and self.field.type == self.column.arrow_type

    @property
    def is_always_as_stored(self) -> bool:
        """Whether all values are: the file's schema allows no nulls."""
        return self.is_as_stored and self.field is not None and not self.field.nullable


@dataclass(frozen=True, slots=True)
class ColumnRoute:
    """How a column of the files of one Arrow schema travels.

    Attributes:
        source: The column.
        window: How its values come to the window without an array in between, if all rows of a row group are wanted:
            ``"pages"``: the system copies them from plain pages; ``"kernel"``: a kernel decodes them there. None: they
            do not.
        decoder: What decodes it otherwise; None: nothing is read.
        reason: Why it takes no faster route; "" if there is none.
        dictionary_rows: Arrow reads it as a dictionary in batches of at least this many rows; 0: it does not.
    """

    source: ColumnSource
    window: Literal["pages", "kernel"] | None
    decoder: Literal["kernel", "arrow"] | None
    reason: str = ""
    dictionary_rows: int = 0

    @property
    def stored(self) -> str:
        """What the Parquet reader is asked for; "" if nothing is read."""
        return self.source.stored or ""

    @property
    def word(self) -> str:
        """The route in a few words."""
        return f"{self.window} to window" if self.window else self.decoder or "constant"


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
    """Return how the columns that are read of the files of one Arrow schema travel.

    Args:
        sources: What the delivered columns are made of.
        columns: What the Parquet reader is asked for, for these and besides.
        filtered: Those that a filter compares.
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
    return tuple(found)


def _route(
    source: ColumnSource, forbidden: str, missing: str, *, pages: bool
) -> tuple[Literal["pages", "kernel"] | None, Literal["kernel", "arrow"] | None, str]:
    field, column = source.field, source.column
    if source.stored is None:
        return None, None, "the files have no such column"
    if field is None:
        return None, "arrow", "it is not a column of the top level"
    if not is_known_type(field.type):
        return None, "arrow", f"{field.type} is not a number or bytes of one width"
    if forbidden:
        return None, "arrow", forbidden
    decoder: Literal["kernel", "arrow"] = "arrow" if missing else "kernel"
    if column is None or not source.is_as_stored:
        return None, decoder, missing or "values are not delivered as the file holds them"
    if arrangement_of(column, kernels=not missing) in (Arrangement.DIRECT, Arrangement.STAGED):
        if source.is_always_as_stored and pages:
            return "pages", decoder, ""
        return None, decoder, "the file's schema allows nulls" if field.nullable else "the system lacks preadv"
    return (None, decoder, missing) if missing else ("kernel", decoder, "")
