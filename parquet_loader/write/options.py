"""Options of every writer: sizes and codec."""

from __future__ import annotations

from dataclasses import dataclass

from parquet_loader.common import parse_bytes
from parquet_loader.errors import ConfigurationError

# Default sizes of row groups: for few columns, for each of many, and for very many.
_GROUP_BYTES = 8 * 2**20
_COLUMN_BYTES = 32 * 2**10
_MOST_GROUP_BYTES = 64 * 2**20

# The most bytes that are permuted at once: Arrow joins no more than 2 GiB of text, bytes or values of lists.
TAKE_BYTES = 2**30

CODECS = ("lz4", "snappy", "zstd", "none")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a data set is cut into files and row groups.

    Args:
        row_group_bytes: Size of a row group once decoded, as a number of bytes or text such as ``"8MiB"``. A loader
            reads whole row groups, one on each thread, and shuffles the rows of at least 8 of them together. None: 8
            MiB, or 32 KiB for each column if that is more, up to 64 MiB.
        file_bytes: A file is closed once it holds at least this many bytes, as stored.
        compression: Codec of the columns that it shrinks to at most 0.6 (tensors and packed groups: to a third):
            ``"lz4"`` (raw), ``"snappy"``, ``"zstd"``, or ``"none"`` for no column.

    The defaults rest on ``benchmarks/layout.py`` (two threads over row groups, page cache warm, two cores):

    - 40 float columns decode at 1.5, 4.0, 6.2, 6.5, 6.4 and 6.0 GB/s from row groups of 0.25, 1, 2, 4, 8 and 16 MiB;
      tensors of 16 KiB at 10.6, 15.5, 15.4, 15.2, 10.0 and 7.4 GB/s. 8 MiB is fast for both, small enough for many
      to mix in little memory, and large enough for a request to an object store. For wide tensors on a local disk,
      2 to 4 MiB decode faster; for distant stores 16 MiB cost fewer requests.
    - 1,000 float columns, shuffled and delivered: 255, 414 and 426 MB/s from row groups of 8, 32 and 64 MiB, because
      each column of each row group costs a few microseconds in every step.
    - Opening a file of 40 columns takes 0.15 ms, and 0.02 ms more for each row group: 512 MiB, or 64 row groups, is
      1.3 ms. Smaller files cost more requests, larger ones more work lost when a writer dies.
    - LZ4 that halves a column slows its decoding from 8 to 2 GB/s a thread, zstd to 1 GB/s; data that do not shrink
      still decode a fifth slower. So only columns that shrink well are compressed. Uncompressed tensors and packed
      groups are read directly into the window, with a third less CPU time an epoch than if LZ4 halves them.
    - The size of pages (64 KiB to 8 MiB) makes no difference; verifying their checksums slows tensors from 9 to
      2.8 GB/s a thread.
    """

    row_group_bytes: int | str | None = None
    file_bytes: int | str = "512MiB"
    compression: str = "lz4"

    def __post_init__(self) -> None:
        if self.row_group_bytes is not None:
            object.__setattr__(self, "row_group_bytes", parse_bytes(self.row_group_bytes, "row_group_bytes"))
        object.__setattr__(self, "file_bytes", parse_bytes(self.file_bytes, "file_bytes"))
        if self.compression not in CODECS:
            raise ConfigurationError(
                f"compression={self.compression!r}: expected one of {', '.join(map(repr, CODECS))}"
            )

    def group_bytes(self, columns: int) -> int:
        """Return the decoded size of a row group with this number of columns."""
        if self.row_group_bytes is not None:
            return int(self.row_group_bytes)
        return max(_GROUP_BYTES, least_group_bytes(columns))


def least_group_bytes(columns: int) -> int:
    """Return the least decoded size of a row group with this number of columns that is fast to read."""
    return min(columns * _COLUMN_BYTES, _MOST_GROUP_BYTES)
