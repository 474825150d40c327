"""Puts all rows of a data set into random order, in bounded memory: scatters rows to files by a random key, then sorts.

A row's key is 64 random bits, from a stream that its row group and its position there select. Rows are delivered in the
order of their keys (equal keys, one pair in 2**64, in the order of the source). So the order is uniformly random, and a
function of the snapshot, the filters and the seed alone, independent of memory and the number of files.

A *bucket* is the set of rows whose keys begin with the same bits. First each row is appended to its bucket's file. Then
one bucket after another is read and sorted, and its file removed. A bucket that is larger than memory allows is
scattered again by the following bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import Stream, bit_generator

METHOD = "philox-sort-64"
_KEY_BITS = 64
_MOST_BITS = 10
# The least bytes of one append to a file: with less, Arrow's message headers (about 150 bytes a column) add up. Fewer
# files mean that buckets are divided more often.
_LEAST_APPEND_BYTES = 32 * 1024
_LEAST_APPEND_BYTES_PER_COLUMN = 2048
_KEY = "parquet_loader.key"

Keys = npt.NDArray[np.uint64]


class RowKeys:
    """The keys of one row group's rows, in the order of the rows.

    Method ``philox-sort-64``: the raw 64-bit words of `plan.bit_generator` for the stream `REWRITE`, epoch 0, with the
    row group's number in the snapshot as index; word ``i`` belongs to the i-th row that passes the filters.
    """

    def __init__(self, seed: int, row_group: int) -> None:
        self._bits = bit_generator(seed, Stream.REWRITE, 0, row_group)

    def take(self, rows: int) -> Keys:
        """Return the next keys, uint64 ``[rows]``."""
        return np.asarray(self._bits.random_raw(rows), np.uint64)


class Buckets:
    """Rows divided by the first bits of their keys. Used by one thread at a time.

    Memory: at most `buffer_bytes` of rows are buffered, three times that while they are written; sorting holds one
    bucket twice. Disk: all rows once, in Arrow's form, and 8 bytes a row; each bucket's file is removed after it is
    read.

    Args:
        schema: The schema of the tables.
        folder: The directory for files.
        name: The beginning of the files' names.
        total_bytes: The expected size of all rows.
        bucket_bytes: The intended size of a bucket; one of more than twice this size is divided again.
        buffer_bytes: The most bytes buffered in memory.
        used_bits: Number of leading bits that all keys here have in common.
    """

    def __init__(
        self,
        schema: pa.Schema,
        folder: str,
        name: str,
        *,
        total_bytes: int,
        bucket_bytes: int,
        buffer_bytes: int,
        used_bits: int = 0,
    ) -> None:
        self._schema = pa.schema([*schema, pa.field(_KEY, pa.uint64())])
        self._columns = len(schema)
        self._folder = folder
        self._name = name
        self._bucket_bytes = max(1, bucket_bytes)
        self._buffer_bytes = buffer_bytes
        self._used_bits = used_bits
        wanted = max(0, (max(total_bytes, 1) - 1) // self._bucket_bytes).bit_length()
        least = max(_LEAST_APPEND_BYTES, _LEAST_APPEND_BYTES_PER_COLUMN * len(schema))
        most = max(1, min(_MOST_BITS, (buffer_bytes // least).bit_length() - 1))
        self._bits = min(wanted, most, _KEY_BITS - used_bits)
        self._sizes: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self.spilled_bytes = 0

    def add(self, table: pa.Table, keys: Keys) -> None:
        """Add rows and their keys.

        Raises:
            OSError: The disk is full, or fails.
        """
        keyed = pa.Table.from_arrays([*table.columns, pa.array(keys)], schema=self._schema)
        self._waiting.append(keyed)
        self._waiting_bytes += keyed.nbytes
        if self._waiting_bytes >= self._buffer_bytes:
            self._flush()

    def sorted(self) -> Iterator[pa.Table]:
        """Yield all rows in the order of their keys; call it once, after the last `add`."""
        if not self._sizes:  # all rows fit into the buffer
            if self._waiting:
                waiting, self._waiting = pa.concat_tables(self._waiting), []
                yield self._in_order(waiting)
            return
        self._flush()
        for bucket in range(1 << self._bits):
            if bucket not in self._sizes:
                continue
            size, path = self._sizes.pop(bucket), self._path(bucket)
            is_divisible = self._rows[bucket] > 1 and self._used_bits + self._bits < _KEY_BITS
            if size > 2 * self._bucket_bytes and is_divisible:
                yield from self._divided(bucket, path, size)
            else:
                yield self._in_order(pa.Table.from_batches(self._read(path), self._schema))
                os.unlink(path)

    def _divided(self, bucket: int, path: str, size: int) -> Iterator[pa.Table]:
        inner = Buckets(
            pa.schema(list(self._schema)[: self._columns]),
            self._folder,
            f"{self._name}-{bucket}",
            total_bytes=size,
            bucket_bytes=self._bucket_bytes,
            buffer_bytes=self._buffer_bytes,
            used_bits=self._used_bits + self._bits,
        )
        for batch in self._read(path):
            table = pa.Table.from_batches([batch])
            inner.add(table.select(range(self._columns)), table.column(self._columns).to_numpy())
        os.unlink(path)
        self.spilled_bytes += inner.spilled_bytes
        yield from inner.sorted()

    def _in_order(self, table: pa.Table) -> pa.Table:
        keys = table.column(self._columns).to_numpy()
        order = pa.array(np.argsort(keys, kind="stable"))
        return table.select(range(self._columns)).combine_chunks().take(order)

    def _flush(self) -> None:
        """Append the buffered rows to their buckets' files."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = pa.concat_tables(self._waiting), [], 0
        waiting = waiting.combine_chunks()
        keys = waiting.column(self._columns).to_numpy()
        buckets = self._bucket_of(keys)
        order = np.argsort(buckets, kind="stable")
        bounds = np.searchsorted(buckets[order], np.arange((1 << self._bits) + 1))
        waiting = waiting.take(pa.array(order)).combine_chunks()
        for bucket in np.flatnonzero(np.diff(bounds)).tolist():
            start, stop = int(bounds[bucket]), int(bounds[bucket + 1])
            part = waiting.slice(start, stop - start)
            with open(self._path(bucket), "ab") as file:
                for batch in part.to_batches():
                    self.spilled_bytes += file.write(batch.serialize())
            self._sizes[bucket] = self._sizes.get(bucket, 0) + part.nbytes
            self._rows[bucket] = self._rows.get(bucket, 0) + len(part)

    def _bucket_of(self, keys: Keys) -> npt.NDArray[np.int64]:
        if not self._bits:
            return np.zeros(len(keys), np.int64)
        shifted = keys << np.uint64(self._used_bits)
        return (shifted >> np.uint64(_KEY_BITS - self._bits)).astype(np.int64)

    def _read(self, path: str) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(path) as file:
            size = file.size()
            while file.tell() < size:
                yield pa.ipc.read_record_batch(pa.ipc.read_message(file), self._schema)

    def _path(self, bucket: int) -> str:
        return os.path.join(self._folder, f"{self._name}-{bucket}.tmp")
