"""What a writer can be told about the files it makes."""

from __future__ import annotations

from dataclasses import dataclass

from parquet_loader.errors import ConfigurationError
from parquet_loader.types import parse_bytes

CODECS = ("lz4", "snappy", "zstd", "none")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a data set is cut into files and row groups.

    Args:
        row_group_bytes: Size of a row group once decoded, as a number of bytes or text such as ``"8MiB"``. A loader
            reads whole row groups, one on each thread, and shuffles the rows of at least 8 of them together.
        file_bytes: A file is closed once it holds at least this many bytes, as stored.
        compression: Codec for the columns that it shrinks to six tenths or less: ``"lz4"`` (raw),
            ``"snappy"``, ``"zstd"``, or ``"none"`` for no column.

    The defaults are measured by ``benchmarks/layout.py``.
    """

    row_group_bytes: int | str = "8MiB"
    file_bytes: int | str = "512MiB"
    compression: str = "lz4"

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_group_bytes", parse_bytes(self.row_group_bytes, "row_group_bytes"))
        object.__setattr__(self, "file_bytes", parse_bytes(self.file_bytes, "file_bytes"))
        if self.compression not in CODECS:
            raise ConfigurationError(
                f"compression={self.compression!r}: expected one of {', '.join(map(repr, CODECS))}"
            )
