"""Options that few need: small frozen values, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parquet_loader.errors import ConfigurationError
from parquet_loader.types import check_int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read.

    Attributes:
        verify_checksums: Check each page against its CRC where the writer stored one. Costs up to three quarters of
            the speed on tensors, little on compressed columns.
        memory_map: Map local files, and let Arrow decode from there. A file that is truncated while it is mapped ends
            the process (SIGBUS): only for files that nobody rewrites.

    Either leaves all decoding to Arrow, where uncompressed columns without nulls are otherwise read from local files
    straight to their places.
    """

    verify_checksums: bool = False
    memory_map: bool = False

    def __post_init__(self) -> None:
        for name in ("verify_checksums", "memory_map"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"ReadOptions({name}={getattr(self, name)!r}): expected True or False")


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What batches are made of.

    Attributes:
        row_numbers: Name of a further column, int64, that says where each row comes from: its number in the data set,
            counted from 0 over all files in their order, before any filter. `BatchedDataLoader.locate` turns it into
            file, row group and row.
        format: What columns come as: ``"torch"`` tensors, or ``"numpy"`` arrays of the same shapes and dtypes, for
            which torch need not be installed, and is never imported.
    """

    row_numbers: str | None = None
    format: Literal["torch", "numpy"] = "torch"

    def __post_init__(self) -> None:
        if self.format not in ("torch", "numpy"):
            raise ConfigurationError(f"OutputOptions(format={self.format!r}): expected 'torch' or 'numpy'")
        if self.row_numbers is not None and (not isinstance(self.row_numbers, str) or not self.row_numbers):
            raise ConfigurationError(f"OutputOptions(row_numbers={self.row_numbers!r}): expected a column's name")


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """How rows are divided over ranks. All ranks get the same number of batches, unless ``"uneven"`` is asked for.

    Attributes:
        remainder: What becomes of rows that do not come out even. ``"drop"``: every rank gets full batches only, and
            less than one batch of all ranks together is left out, with `shuffle` other rows in each epoch. ``"pad"``:
            every row is delivered, and fewer rows than there are ranks are delivered twice. ``"uneven"``: every row
            exactly once; ranks may differ by a batch, and then collectives such as those of DDP wait for ever. None:
            ``"drop"`` with `drop_last`, else ``"pad"``.
        logical_shards: Divide the epoch into so many shards instead, of which ranks take whole ones, with as many rows
            of each in every batch. Then, as long as ``batch_size`` times the number of ranks stays the same, batches
            with the same number hold the same rows, all ranks taken together, on any number of ranks that divides this.
        fewest_ranks: With `logical_shards`, the smallest number of ranks that the job will run on: its `memory_limit`
            has to do for that many.
    """

    remainder: Literal["drop", "pad", "uneven"] | None = None
    logical_shards: int | None = None
    fewest_ranks: int = 1

    def __post_init__(self) -> None:
        if self.remainder not in (None, "drop", "pad", "uneven"):
            raise ConfigurationError(
                f"ShardOptions(remainder={self.remainder!r}): expected 'drop', 'pad', 'uneven' or None"
            )
        check_int("ShardOptions fewest_ranks", self.fewest_ranks, 1, 2**20)
        if self.logical_shards is None:
            return
        check_int("ShardOptions logical_shards", self.logical_shards, 1, 2**20)
        if self.remainder == "uneven":
            raise ConfigurationError(
                "ShardOptions(remainder='uneven', logical_shards=...): logical shards are equally long; "
                "choose 'drop' or 'pad'"
            )
        if self.logical_shards % self.fewest_ranks:
            raise ConfigurationError(
                f"ShardOptions(fewest_ranks={self.fewest_ranks}): does not divide logical_shards={self.logical_shards}"
            )
