"""Reads single rows of row groups by their pages, and caches decoded pages within a limit.

The values equal those of `RowGroupReader`: kernels or Arrow decode the pages of each column as a small file, and the
rows become canonical columns by the same steps. Maps, lists of structs, and chunks whose page headers contradict the
footer are read from the beginning of their column chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray, LruCache, ReadOptions, from_numpy, in_order, is_shortage
from parquet_loader.decode import (
    READ_ERRORS,
    BeyondNanosecondsError,
    PageFileSchema,
    PageMap,
    RawFile,
    begins_within_row,
    check_pages,
    chunk_bounds,
    decode_pages,
    file_of_pages,
    indexed_pages,
    leaf_chains,
    opening_page,
    page_file_buffer,
    page_file_schema,
    walked_pages,
)
from parquet_loader.errors import DataError, ParquetLoaderError
from parquet_loader.read.column_chunks import ColumnSelection
from parquet_loader.read.int96 import beyond_nanoseconds
from parquet_loader.read.row_group_reader import RowGroupReader
from parquet_loader.read.view_types import without_views
from parquet_loader.schema import heads
from parquet_loader.source import ByteRange, Fetcher, FileSchema, Metadata, RowGroupRef, SparseFile

# Most bytes of a column chunk's pages that are read and decoded together.
_AT_ONCE_BYTES = 8 * 2**20
# Remote column chunks of up to this size are fetched as a whole to find their page headers.
_WALKED_IN_MEMORY_BYTES = 8 * 2**20
# A remote page header is fetched with this many bytes after it.
_REMOTE_HEADER_BYTES = 2**12
_LONGEST_INDEX_BYTES = 2**28
# About how many decoded bytes are cached as one page, for columns that are read from the beginning.
_WHOLE_BYTES = 8 * 2**20
_MOST_WHOLE_ROWS = 65536


@dataclass(frozen=True, slots=True)
class PageColumn:
    """A column of the files of one schema, for reads of single rows.

    Attributes:
        name: Its name in the file.
        asked: The names to read, of the column or its parts.
        leaves: The leaf columns; empty if the column is read from the beginning of its column chunks.
        is_kernel: Whether kernels may decode it.
    """

    name: str
    asked: tuple[str, ...]
    leaves: tuple[PageFileSchema, ...]
    is_kernel: bool


class _Page(NamedTuple):
    """A decoded page.

    Attributes:
        array: Its rows.
        numbers: The same as a numpy array, if they are numbers without nulls; it selects rows in a tenth of the time.
    """

    array: pa.Array
    numbers: npt.NDArray[Any] | None

    @classmethod
    def of(cls, array: pa.Array) -> _Page:
        """Return the page of an array; views become plain text and bytes."""
        array = without_views(array)
        type_, numbers = array.type, None
        is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_temporal(type_)
        if is_number and not array.null_count and type_.bit_width in (8, 16, 32, 64):
            width = type_.bit_width // 8
            numbers = np.frombuffer(array.buffers()[1], f"u{width}", len(array), array.offset * width)
        return cls(array, numbers)

    def take(self, rows: IntArray) -> pa.Array | npt.NDArray[Any]:
        """Return a copy of some rows."""
        return self.array.take(from_numpy(rows)) if self.numbers is None else self.numbers[rows]


class _Step(NamedTuple):
    """The rows of one column of one row group."""

    row_group: RowGroupRef
    column: PageColumn
    rows: IntArray


def _has_fixed_size_list(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _has_fixed_size_list(type_.storage_type)
    return pa.types.is_fixed_size_list(type_) or any(
        _has_fixed_size_list(type_.field(n).type) for n in range(type_.num_fields)
    )


class PageReader:
    """Reads rows by their numbers in row groups. Any thread may use it.

    It caches decoded pages and locations of pages within a limit. It holds no file and no thread between calls: each
    call starts its own threads, and ends them before it returns.

    Args:
        reader: Reads whole row groups of the same columns.
        options: How to read.
        cache_bytes: Limit for the cached pages and locations.
        num_threads: The most threads of a call; for remote files `RemoteOptions.max_requests` if that is more.
    """

    def __init__(self, reader: RowGroupReader, options: ReadOptions, cache_bytes: int, num_threads: int) -> None:
        self._reader = reader
        self._snapshot = reader.snapshot
        self._options = options
        self._num_threads = num_threads
        self._pages = LruCache(cache_bytes - cache_bytes // 4)
        self._places = LruCache(cache_bytes // 4)
        self._columns_of: dict[tuple[int, bytes], tuple[PageColumn, ...]] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of the cached pages and locations."""
        return self._pages.size + self._places.size

    def close(self) -> None:
        """Release the cache."""
        self._pages.clear()
        self._places.clear()

    def positions(self, row_group: RowGroupRef, numbers: IntArray, passing: int) -> IntArray:
        """Return the positions in a row group of some of the rows that are alive and pass the filter.

        Args:
            row_group: The row group.
            numbers: int64, the numbers of the wanted rows, counting rows that are alive and pass the filter.
            passing: The number of rows that are alive and pass the filter.

        Raises:
            DataError, SourceError: as in `RowGroupReader.count`; or the number of rows differs from `passing`.
        """
        if passing == row_group.rows:
            return numbers
        key = row_group.index, "passing"
        known: npt.NDArray[np.uint32] | None = self._places.get(key)
        if known is None:
            found = self._reader.passing_rows(row_group)
            if found is None or len(found) != passing:
                held = row_group.rows if found is None else len(found)
                raise DataError(f"{row_group.name}: {held} rows pass the filter, and {passing} did when it was opened")
            known = found.astype(np.uint32)
            self._places.put(key, known, known.nbytes)
        return known[numbers].astype(np.int64)

    def read(self, wanted: Sequence[tuple[RowGroupRef, IntArray]]) -> list[pa.RecordBatch]:
        """Return rows of row groups, with the column types of the table that the files belong to.

        Args:
            wanted: Row groups, and the numbers of their rows, sorted and without duplicates.

        Raises:
            DataError, SourceError: as in `RowGroupReader.read`.
        """
        columns = [self._columns(row_group) for row_group, _ in wanted]
        steps = [
            _Step(row_group, column, rows)
            for (row_group, rows), own in zip(wanted, columns, strict=True)
            for column in own
        ]
        arrays = self._done(steps)
        found, at = [], 0
        for (row_group, rows), own in zip(wanted, columns, strict=True):
            parts = [part for done in arrays[at : at + len(own)] for part in done]
            at += len(own)
            if not parts:
                parts = [("", pa.nulls(len(rows)))]
            batch = pa.RecordBatch.from_arrays([array for _, array in parts], names=[name for name, _ in parts])
            conform = self._reader.conforms[row_group.schema_number]
            found.append(conform.batch(batch) if conform else batch)
        return found

    def _done(self, steps: Sequence[_Step]) -> list[list[tuple[str, pa.Array]]]:
        """Return the columns of each step; those that read files run in parallel."""
        done: list[Any] = [self._kept(step) for step in steps]
        missing = [number for number, found in enumerate(done) if found is None]
        if not missing:
            return done
        remote = self._snapshot.remote
        threads = self._num_threads
        by_file = {steps[number].row_group.file_number: steps[number].row_group for number in missing}
        # A file that has been replaced is not opened: a named pipe in its place would never answer.
        self._check_unchanged(by_file.values())
        if remote is None:
            self._run(done, steps, missing, threads, None)
        else:
            threads = max(threads, remote.options.max_requests)
            with remote.fetcher(remote.options.max_requests) as fetcher:
                self._run(done, steps, missing, threads, fetcher)
        self._check_unchanged(by_file.values())  # before values are delivered
        return done

    def _check_unchanged(self, row_groups: Iterable[RowGroupRef]) -> None:
        """Check that the files of these row groups have not changed since their footers were read."""
        for row_group in row_groups:
            self._reader.chunks.check_unchanged(row_group)

    def _run(
        self, done: list[Any], steps: Sequence[_Step], missing: Sequence[int], threads: int, fetcher: Fetcher | None
    ) -> None:
        threads = min(threads, len(missing))
        if threads == 1:
            for number in missing:
                done[number] = self._read(steps[number], fetcher)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="parquet_loader-rows") as pool:
            try:
                found = in_order(pool, lambda number: self._read(steps[number], fetcher), missing)
                for number, arrays in zip(missing, found, strict=True):
                    done[number] = arrays
            except BaseException:
                if fetcher is not None:
                    fetcher.close(wait=False)
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    # ---- columns

    def _columns(self, row_group: RowGroupRef) -> tuple[PageColumn, ...]:
        """Return the columns that are read of a row group's file."""
        schema = self._snapshot.footers.get(row_group.file_number).schema
        key = row_group.schema_number, schema.elements
        known = self._columns_of.get(key)
        if known is None:
            known = self._columns_of[key] = self._divided(row_group, schema)
        return known

    def _divided(self, row_group: RowGroupRef, schema: FileSchema) -> tuple[PageColumn, ...]:
        asked = self._reader.chunks.columns_read(row_group)
        routes = {route.stored: route for route in self._reader.routes(row_group)}
        chains = leaf_chains(schema)
        leaves_of: dict[str, list[int]] = {}
        for leaf, name in enumerate(schema.names):
            for head in heads(name):
                leaves_of.setdefault(head, []).append(leaf)
        groups: dict[int, list[str]] = {}
        is_clear = len(set(schema.names)) == len(schema.names)
        for name in asked:
            tops = list(dict.fromkeys(chains[leaf][1][0] for leaf in leaves_of.get(name, ())))
            is_clear = is_clear and len(tops) == 1
            groups.setdefault(tops[0] if tops else -1, []).append(name)
        if not is_clear:
            return (PageColumn("", tuple(asked), (), is_kernel=False),)
        found, whole = list[PageColumn](), list[str]()
        for top, names in groups.items():
            leaves = sorted({leaf for name in names for leaf in leaves_of[name]})
            schemas = [page_file_schema(schema, leaf, chains[leaf]) for leaf in leaves]
            parts = tuple(part for part in schemas if part is not None)
            is_repeated = any(schema.leaves[leaf].max_repetition_level for leaf in leaves)
            if len(parts) < len(leaves) or (is_repeated and len(leaves) > 1):
                whole += names
                continue
            field = schema.arrow.field(top)
            is_kernel = len(leaves) == 1 and names == [field.name] and routes[field.name].decoder == "kernel"
            found.append(PageColumn(field.name, tuple(names), parts, is_kernel=is_kernel))
        if whole:
            found.append(PageColumn("", tuple(whole), (), is_kernel=False))
        return tuple(found)

    # ---- one column of one row group

    def _kept(self, step: _Step) -> list[tuple[str, pa.Array]] | None:
        """Return a column's rows if all of them are in cached pages; else None."""
        if not step.column.leaves:
            return None
        found = []
        for leaf in step.column.leaves:
            array = self._kept_rows(step, leaf)
            if array is None:
                return None
            found.append(array)
        return [(step.column.name, _joined(found))]

    def _kept_rows(self, step: _Step, leaf: PageFileSchema) -> pa.Array | None:
        pages = self._places.get((step.row_group.index, leaf.leaf))
        if not isinstance(pages, PageMap):
            return None
        by_page = list(_by_page(pages, step.rows))
        kept = self._pages.get_all(_keys(step, leaf, pages, by_page))
        if any(page is None for page in kept):
            return None
        return _side_by_side([page.take(rows) for page, (_, rows) in zip(kept, by_page, strict=True)], kept[0])

    def _read(self, step: _Step, fetcher: Fetcher | None) -> list[tuple[str, pa.Array]]:
        column, row_group = step.column, step.row_group
        try:
            if column.leaves:
                arrays = self._leaves_rows(step, fetcher)
                if arrays is not None:
                    return [(column.name, _joined(arrays))]
            return self._rows_from_the_beginning(step)
        except ParquetLoaderError:
            raise
        except BeyondNanosecondsError as error:
            raise beyond_nanoseconds(f"{row_group.name}, column {column.asked[0]!r}", error.seconds) from None
        except READ_ERRORS as error:
            raise self._reader.explained(row_group, column.asked, error) from error

    def _leaves_rows(self, step: _Step, fetcher: Fetcher | None) -> list[pa.Array] | None:
        """Return rows of a column's leaf columns, from the local cache if it has an undamaged copy."""
        cache = self._reader.chunks.cache
        path = None
        if cache is not None:
            path = cache.local_path(step.row_group, self._reader.chunks.columns_read(step.row_group))
        try:
            return self._leaves_rows_from(step, fetcher, path)
        except READ_ERRORS as error:
            if cache is None or path is None or isinstance(error, ParquetLoaderError) or is_shortage(error):
                raise
            cache.invalidate(path)
        return self._leaves_rows_from(step, fetcher, None)

    def _leaves_rows_from(self, step: _Step, fetcher: Fetcher | None, cached: str | None) -> list[pa.Array] | None:
        footer = self._snapshot.footers.get(step.row_group.file_number)
        found = list[pa.Array]()
        with _Source(step.row_group, footer, fetcher, cached) as source:
            for leaf in step.column.leaves:
                array = self._leaf_rows(step, leaf, source)
                if array is None:
                    return None
                found.append(array)
        return found

    def _leaf_rows(self, step: _Step, leaf: PageFileSchema, source: _Source) -> pa.Array | None:
        """Return rows of a leaf column; None if the rows of its pages cannot be determined."""
        key = step.row_group.index, leaf.leaf
        for is_index_trusted in (True, False):
            pages = self._places.get(key)
            if pages is None or not is_index_trusted:
                pages = self._mapped(step, leaf, source, is_index_trusted=is_index_trusted)
                self._places.put(key, pages or "none", 512 if pages is None else pages.nbytes)
            if not isinstance(pages, PageMap):
                return None
            if pages.continues is not None and self._has_fixed_size_lists(step):
                return None  # Arrow would refuse a page that begins within a row
            found = self._rows_of_pages(step, leaf, pages, source)
            if found is not None:
                return found
        return None

    def _has_fixed_size_lists(self, step: _Step) -> bool:
        schema = self._snapshot.stored_schemas[step.row_group.schema_number]
        return _has_fixed_size_list(schema.field(step.column.name).type)

    def _rows_of_pages(self, step: _Step, leaf: PageFileSchema, pages: PageMap, source: _Source) -> pa.Array | None:
        """Return rows of a leaf column; None if its pages do not hold the expected rows."""
        by_page = list(_by_page(pages, step.rows))
        keys = _keys(step, leaf, pages, by_page)
        kept: list[_Page | None] = self._pages.get_all(keys)
        missing = [number for number, page in enumerate(kept) if page is None]
        # Rows are copied from each part at once, so that few pages are held in addition to the cached ones.
        taken: list[Any] = [
            None if page is None else page.take(rows) for page, (_, rows) in zip(kept, by_page, strict=True)
        ]
        one = next((page for page in kept if page is not None), None)
        del kept
        for some in _in_parts(missing, [int(pages.stops[p] - pages.starts[p]) for p, _ in by_page], pages):
            arrays = self._decoded(step, leaf, pages, [by_page[number][0] for number in some], source)
            if arrays is None:
                return None
            for number, array in zip(some, arrays, strict=True):
                one = _Page.of(array)
                taken[number] = one.take(by_page[number][1])
                self._pages.put(keys[number], one, one.array.get_total_buffer_size() + 256)
        assert one is not None
        return _side_by_side(taken, one)

    def _mapped(self, step: _Step, leaf: PageFileSchema, source: _Source, *, is_index_trusted: bool) -> PageMap | None:
        """Return the pages of a column chunk; None if their rows cannot be determined.

        For local files the headers are always read, because they cannot be wrong about the rows of flat columns.
        """
        row_group, footer = step.row_group, source.footer
        chunk, original = footer.readable(row_group.number, leaf.leaf), footer.chunk(row_group.number, leaf.leaf)
        has_index = original.index_at > 0 and 0 < original.index_bytes <= _LONGEST_INDEX_BYTES
        has_index = has_index and original.index_at + original.index_bytes <= footer.file_bytes
        if is_index_trusted and has_index and (source.is_remote or chunk.leaf.max_repetition_level):
            index = source.read(original.index_at, original.index_at + original.index_bytes)
            found = indexed_pages(index, chunk, original.data_at, row_group.rows)
            if found is not None:
                return found
        if source.is_remote and chunk.stored_bytes > _WALKED_IN_MEMORY_BYTES:
            return walked_pages(source.peek, footer.file_bytes, chunk, row_group.rows, source.read)
        bounds = chunk_bounds(footer, row_group.number, [leaf.leaf])
        if not source.is_remote:
            check_pages(source.path, bounds)
            return walked_pages(source.descriptor, footer.file_bytes, chunk, row_group.rows, source.read)
        memory = source.fetched(chunk.start, min(chunk.start + chunk.stored_bytes, footer.file_bytes))
        check_pages(memory, bounds)
        return walked_pages(memory, footer.file_bytes, chunk, row_group.rows, partial(_bytes_of, memory))

    def _decoded(
        self, step: _Step, leaf: PageFileSchema, pages: PageMap, wanted: Sequence[int], source: _Source
    ) -> list[pa.Array] | None:
        """Return the rows that begin in each of these pages; None if there are not as many as expected."""
        row_group, footer = step.row_group, source.footer
        chunk, original = footer.readable(row_group.number, leaf.leaf), footer.chunk(row_group.number, leaf.leaf)
        first, last = wanted[0], wanted[-1]
        taken = list(wanted) if pages.continues is None else list(range(first, pages.unit_of(last) + 1))
        # Some writers split a row of lists over two pages of the index: the next page shows whether the row continues.
        is_doubtful = chunk.leaf.max_repetition_level > 0 and pages.values is None
        behind = {page + 1 for page in taken if page + 1 < len(pages.starts)}.difference(taken) if is_doubtful else ()
        spans = [(int(pages.starts[page]), int(pages.stops[page])) for page in (*taken, *sorted(behind))]
        dictionary = b"" if pages.dictionary is None else self._dictionary(step, leaf, pages.dictionary, source)
        opening = opening_page(chunk) if pages.continues is not None and pages.continues[first] else b""
        before = dictionary + opening
        ends = list(accumulate((stop - start for start, stop in spans), initial=len(before)))
        data, at = page_file_buffer(len(before), ends[-1] - len(before))
        data[at : at + len(before)] = np.frombuffer(before, np.uint8)
        source.read_into(spans, data[at + len(before) :])
        begun = (data[at + start : at + stop].tobytes() for start, stop in pairwise(ends))
        if is_doubtful and any(begins_within_row(page, chunk) is not False for page in begun):
            return None
        file = file_of_pages(data[: at + ends[len(taken)]], len(dictionary), chunk)
        counts = np.diff(pages.first_rows)[taken]
        if file is None or len(file.starts) != len(taken) + bool(opening):
            return None
        if not chunk.leaf.max_repetition_level and (file.values != counts).any():
            return None
        if pages.continues is None:
            if ((file.rows >= 0) & (file.rows != counts)).any():
                return None
            rows = counts.tolist()
        else:
            # The row of the opening page, rows that begin in the requested page, and those in pages of its last row.
            rows = [int(pages.continues[first]), int(counts[0]), int(counts[1:].sum())]
        schema = self._snapshot.stored_schemas[row_group.schema_number]
        arrays = decode_pages(
            leaf,
            file,
            footer,
            original,
            rows,
            (step.column.name, schema) if step.column.is_kernel else None,
            verify_checksums=self._options.verify_checksums,
        )
        return arrays if arrays is None or pages.continues is None else arrays[1:2]

    def _dictionary(self, step: _Step, leaf: PageFileSchema, span: tuple[int, int], source: _Source) -> bytes:
        """Return the bytes of a dictionary page."""
        key = step.row_group.index, leaf.leaf, -1
        known: bytes | None = self._pages.get(key)
        if known is None:
            known = source.read(*span)
            self._pages.put(key, known, len(known) + 256)
        return known

    # ---- columns that are read from the beginning

    def _rows_from_the_beginning(self, step: _Step) -> list[tuple[str, pa.Array]]:
        reader, row_group, asked = self._reader, step.row_group, step.column.asked
        row_bytes = max(1, reader.chunks.encoded_bytes(row_group, asked) // max(1, row_group.rows))
        batch_rows = max(64, min(_MOST_WHOLE_ROWS, _WHOLE_BYTES // row_bytes))
        number_of = step.rows // batch_rows
        numbers, firsts = np.unique(number_of, return_index=True)
        parts = dict(zip(numbers.tolist(), np.split(step.rows, firsts[1:]), strict=True))
        found: dict[int, pa.RecordBatch] = {}
        for number, rows in parts.items():
            batch = self._pages.get((row_group.index, asked, number))
            if batch is not None:
                found[number] = batch.take(from_numpy(rows - number * batch_rows))
        if len(found) < len(parts):
            self._pass_over(step, batch_rows, parts, found)
        table = pa.Table.from_batches([found[number] for number in parts]).combine_chunks()
        return [
            (name, pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0))
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]

    def _pass_over(
        self, step: _Step, batch_rows: int, parts: dict[int, IntArray], found: dict[int, pa.RecordBatch]
    ) -> None:
        """Decode column chunks up to the last wanted row, and copy the wanted rows that were not found in the cache."""
        reader, row_group, asked = self._reader, step.row_group, step.column.asked
        routes = tuple(route for route in reader.routes(row_group) if route.stored in asked)
        selection = ColumnSelection(asked, routes)
        location = reader.chunks.locate_forward(row_group, asked)
        last, first_row = max(parts), 0
        with reader.chunks.opened(row_group, selection, location, lambda _: batch_rows) as opened:
            for number, stored in enumerate(reader.stored_batches(row_group, selection, location, opened)):
                batch = pa.RecordBatch.from_arrays(list(map(without_views, stored.columns)), names=stored.schema.names)
                if len(batch) != min(batch_rows, row_group.rows - first_row):
                    raise DataError(
                        f"{row_group.name}: the pages hold other rows than the footer says; the file is damaged"
                    )
                if number in parts and number not in found:
                    found[number] = batch.take(from_numpy(parts[number] - first_row))
                self._pages.put((row_group.index, asked, number), batch, batch.get_total_buffer_size() + 256)
                first_row += len(batch)
                if number == last:
                    break
        if len(found) < len(parts):
            reader.check_rows(row_group, first_row)


class _Source:
    """The bytes of one file, for one thread; opened at the first read, and closed at the end of the ``with`` block.

    Args:
        row_group: A row group of the file.
        footer: The file's footer.
        fetcher: Fetches from the file if it is remote; else None.
        cached: A local file with the row group's column chunks at the same offsets, or None.
    """

    def __init__(self, row_group: RowGroupRef, footer: Metadata, fetcher: Fetcher | None, cached: str | None) -> None:
        self._row_group = row_group
        self._fetcher = fetcher
        self._file: RawFile | None = None
        self.footer = footer
        self.path = row_group.file.path if cached is None else cached
        self.is_remote = fetcher is not None and cached is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> RawFile:
        if self._file is None:
            self._file = RawFile(self.path)
        return self._file

    @property
    def descriptor(self) -> int:
        """The descriptor of a local file."""
        return self._opened.descriptor

    def peek(self, at: int, nbytes: int) -> bytes:
        """Return at least `nbytes` bytes of a remote file from offset `at` on; fewer at its end."""
        return self.read(at, min(at + max(nbytes, _REMOTE_HEADER_BYTES), self.footer.file_bytes))

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two offsets."""
        out = np.empty(stop - start, np.uint8)
        self.read_into([(start, stop)], out)
        return out.tobytes()

    def read_into(self, spans: Sequence[tuple[int, int]], out: npt.NDArray[np.uint8]) -> None:
        """Read spans of the file to consecutive memory; adjacent spans are read at once."""
        joined: list[list[int]] = []
        for start, stop in spans:
            if joined and joined[-1][1] == start:
                joined[-1][1] = stop
            else:
                joined.append([start, stop])
        sizes = np.cumsum([stop - start for start, stop in joined]).tolist()
        views = [out[size - (stop - start) : size] for size, (start, stop) in zip(sizes, joined, strict=True)]
        if self.is_remote:
            assert self._fetcher is not None
            ranges = [ByteRange(start, stop) for start, stop in joined]
            self._fetcher.run(self._fetcher.read_all(self._row_group.file, ranges, views))
            return
        for (start, _), view in zip(joined, views, strict=True):
            self._opened.read(start, view)

    def fetched(self, start: int, stop: int) -> pa.Buffer:
        """Return a sparse buffer of a remote file with the fetched bytes between two offsets."""
        assert self._fetcher is not None
        span = ByteRange(start, stop)
        sparse = SparseFile(self.footer.file_bytes, [span])
        self._fetcher.run(self._fetcher.read_all(self._row_group.file, [span], [sparse.view(span)]))
        return sparse.buffer


def _bytes_of(memory: pa.Buffer, start: int, stop: int) -> bytes:
    data: bytes = memory.slice(start, stop - start).to_pybytes()
    return data


def _keys(
    step: _Step, leaf: PageFileSchema, pages: PageMap, by_page: Iterable[tuple[int, IntArray]]
) -> list[tuple[int, int, int]]:
    """Return the cache keys of pages. They contain the offsets, because numbers change if an index turns out wrong."""
    return [(step.row_group.index, leaf.leaf, int(pages.starts[page])) for page, _ in by_page]


def _by_page(pages: PageMap, rows: IntArray) -> Iterable[tuple[int, IntArray]]:
    """Yield the pages in which rows begin, each with the numbers of these rows within the page."""
    page_of = np.searchsorted(pages.first_rows, rows, side="right") - 1
    cuts = np.flatnonzero(np.diff(page_of)) + 1
    firsts = pages.first_rows[page_of]
    local = rows - firsts
    return zip(page_of[np.concatenate([[0], cuts])].tolist(), np.split(local, cuts), strict=True)


def _in_parts(numbers: Sequence[int], sizes: Sequence[int], pages: PageMap) -> Iterable[list[int]]:
    """Divide pages into parts of limited size; pages that begin within a row are read one by one."""
    some: list[int] = []
    nbytes = 0
    for number in numbers:
        if some and (pages.continues is not None or nbytes + sizes[number] > _AT_ONCE_BYTES):
            yield some
            some, nbytes = [], 0
        some.append(number)
        nbytes += sizes[number]
    if some:
        yield some


def _side_by_side(taken: Sequence[Any], page: _Page) -> pa.Array:
    """Return rows of several pages of a column as one array; `page` is one of these pages."""
    if not all(isinstance(some, np.ndarray) for some in taken):
        arrays = [_as_array(some, page) if isinstance(some, np.ndarray) else some for some in taken]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    return _as_array(np.concatenate(taken), page)


def _as_array(numbers: npt.NDArray[Any], page: _Page) -> pa.Array:
    return pa.Array.from_buffers(page.array.type, len(numbers), [None, pa.py_buffer(numbers)], 0)


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Join structs whose leaf columns were read separately to one array."""
    if len(parts) == 1:
        return parts[0]
    children: dict[str, list[pa.Array]] = {}
    fields: dict[str, pa.Field] = {}
    for part in parts:
        field = part.type.field(0)
        children.setdefault(field.name, []).append(part.field(0))
        fields.setdefault(field.name, field)
    joined = {name: _joined(own) for name, own in children.items()}
    mask = parts[0].is_null() if parts[0].null_count else None
    types = [fields[name].with_type(array.type) for name, array in joined.items()]
    return pa.StructArray.from_arrays([*joined.values()], fields=types, mask=mask)
