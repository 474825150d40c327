"""Rarely needed options: small frozen dataclasses, validated once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from parquet_loader.common.units import parse_bytes
from parquet_loader.common.validation import check_int, is_number
from parquet_loader.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How remote files are fetched: from object stores, HTTP and HDFS. No option changes the order of rows.

    Attributes:
        max_requests: Most requests in flight. An epoch begins with a few, and adds more while that makes it faster.
            Requests that `hedge` repeats are not counted.
        request_bytes: Largest request. A row group's columns are fetched as one range, or as several of this size in
            parallel.
        stall_s: Seconds without a byte after which a request is aborted and repeated.
        deadline_s: Seconds that one range may take, with all attempts and the waits between them. Waits because
            `max_requests` are in flight are not counted.
        hedge: Repeat a request that takes several times as long as others, and use the first answer. At most one
            request in twenty is repeated, or one at a time.
        snapshot_cache: A local directory that keeps the listing and the footers of each source. The next start reads
            footers only of files that are new or changed by size or ETag. Created with mode 0700.
        snapshot_cache_shared: Use `snapshot_cache` even if it belongs to another user or others may write to it.
            Anyone who can write there can change which data is read.
        connections: The client for S3, Google Cloud Storage, Azure and HTTP: ``"obstore"``, or ``"native"``, the
            filesystem itself, which makes one more request for each file. None: obstore if it is installed.
    """

    max_requests: int = 64
    request_bytes: int | str = "16MiB"
    stall_s: float = 15.0
    deadline_s: float = 120.0
    hedge: bool = True
    snapshot_cache: str | os.PathLike[str] | None = None
    connections: Literal["obstore", "native"] | None = None
    snapshot_cache_shared: bool = False

    def __post_init__(self) -> None:
        check_int("RemoteOptions max_requests", self.max_requests, 1, 4096)
        object.__setattr__(self, "request_bytes", parse_bytes(self.request_bytes, "RemoteOptions request_bytes"))
        for name in ("stall_s", "deadline_s"):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value < 1e9:
                raise ConfigurationError(f"RemoteOptions({name}={value!r}): expected a positive number of seconds")
            object.__setattr__(self, name, float(value))
        _check_bools(self, "hedge", "snapshot_cache_shared")
        if self.snapshot_cache is not None and not isinstance(self.snapshot_cache, str | os.PathLike):
            raise ConfigurationError(f"RemoteOptions(snapshot_cache={self.snapshot_cache!r}): expected a directory")
        if self.connections not in (None, "obstore", "native"):
            raise ConfigurationError(
                f"RemoteOptions(connections={self.connections!r}): expected 'obstore', 'native' or None"
            )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read.

    Attributes:
        verify_checksums: Check each page against its CRC if the writer stored one. Costs up to three quarters of
            the speed on tensors, little on compressed columns.
        remote: How remote files are fetched.
        ignore_table_format: Read the files of a Delta, Iceberg or other table as plain Parquet files. This also
            delivers rows that the table has deleted or replaced; use it only if there are none.

    With `verify_checksums` Arrow decodes everything: the kernels and the zero-copy path are disabled.
    """

    verify_checksums: bool = False
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    ignore_table_format: bool = False

    def __post_init__(self) -> None:
        _check_bools(self, "verify_checksums", "ignore_table_format")
        if not isinstance(self.remote, RemoteOptions):
            raise ConfigurationError(f"ReadOptions(remote={self.remote!r:.80}): expected RemoteOptions")


Format: TypeAlias = Literal["torch", "numpy", "arrow", "pandas", "polars", "jax", "tensorflow"]
FORMATS: tuple[str, ...] = get_args(Format)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The form of batches.

    Attributes:
        row_numbers: Name of an additional int64 column with the number of each row in the data set, counted from 0 over
            all files in their order, before any filter. `BatchedDataLoader.locate` turns it into file, row group and
            row.
        format: ``"torch"``: a dict of tensors. ``"numpy"``: a dict of arrays of the same shapes and dtypes.
            ``"arrow"``: a `pyarrow.Table`; ``"pandas"``, ``"polars"``: a data frame. ``"jax"``: a dict of JAX arrays.
            ``"tensorflow"``: a dict of eager tensors; `BatchedDataLoader.to_tf` returns a `tf.data.Dataset` instead.
            torch is imported for its own format only.
        sharding: With ``"jax"``, a `jax.sharding.Sharding` that divides the first axis of batches over the devices of
            all processes. A loader's `batch_size` is the rows of one process, and its `shard` follows from the
            sharding: processes whose devices hold the same rows read the same rows.
        shuffle_on_device: Copy whole windows to the device and permute their rows there, rather than batch by batch.
            The order is the same. Windows with media, or with a `transform`, are still copied batch by batch. With
            ``device="cpu"`` rows are permuted on the CPU in the same way, for tests.
        decode_on_device: Decode, crop, resize and normalise JPEGs on the device. Rows, crops and flips are the same;
            pixels differ by a few levels. For fields of one delivered size, without `transform` and without
            ``on_error="skip_row"``; otherwise the workers decode. With ``device="cpu"`` the CPU runs the same
            operations, for tests.
        device_memory_limit: With `shuffle_on_device` or `decode_on_device`, the most bytes to use on the GPU; needed
            are two windows and the memory to permute them, or a few batches and the memory to decode them. An int, or
            text such as ``"1GiB"``; None: no limit.
        pin_memory: Use page-locked memory for batches that go to a GPU. With False, copies are slower and do not
            overlap with the training step.
        into: Tensors of the caller, ``[batch_size, ...]``, by column name. Each delivered batch is copied into them
            and consists of them, so the next batch overwrites it. For CUDA graphs, which read the same memory at each
            replay.
    """

    row_numbers: str | None = None
    format: Format = "torch"
    sharding: Any = None
    shuffle_on_device: bool = False
    decode_on_device: bool = False
    device_memory_limit: int | str | None = None
    pin_memory: bool = True
    into: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            expected = " or ".join((", ".join(map(repr, FORMATS[:-1])), repr(FORMATS[-1])))
            raise ConfigurationError(f"OutputOptions(format={self.format!r}): expected {expected}")
        if self.sharding is not None and self.format != "jax":
            raise ConfigurationError(
                f"OutputOptions(format={self.format!r}, sharding=...): only format='jax' has shardings"
            )
        _check_bools(self, "shuffle_on_device", "decode_on_device", "pin_memory")
        uses_device = self.shuffle_on_device or self.decode_on_device or self.device_memory_limit is not None
        if self.format != "torch" and uses_device:
            raise ConfigurationError(
                f"OutputOptions(format={self.format!r}): shuffle_on_device, decode_on_device and device_memory_limit "
                "are for tensors; leave them out"
            )
        if self.into is not None and (self.format != "torch" or not isinstance(self.into, Mapping)):
            raise ConfigurationError(
                f"OutputOptions(format={self.format!r}, into={type(self.into).__name__}): expected a dict of tensors "
                "by column name, with format='torch'"
            )
        if self.device_memory_limit is not None:
            limit = parse_bytes(self.device_memory_limit, "OutputOptions device_memory_limit")
            object.__setattr__(self, "device_memory_limit", limit)
        if self.row_numbers is not None and (not isinstance(self.row_numbers, str) or not self.row_numbers):
            raise ConfigurationError(f"OutputOptions(row_numbers={self.row_numbers!r}): expected a column's name")


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """How rows are divided over ranks. All ranks get the same number of batches, except with ``"uneven"``.

    Attributes:
        remainder: How rows that do not divide evenly are treated. ``"drop"``: every rank gets full batches only; fewer
            rows than one batch on every rank are left out, with `shuffle` different ones in each epoch. ``"pad"``:
            every row is delivered, and fewer rows than there are ranks are delivered twice. ``"uneven"``: every row
            exactly once; ranks may differ by a batch, and then collectives such as those of DDP wait forever. None:
            ``"drop"`` with `drop_last`, else ``"pad"``.
        logical_shards: Divide the epoch into this many shards. Each rank takes whole shards, and each of its batches
            has the same number of rows of each. If ``batch_size`` times the number of ranks is constant, batch n of all
            ranks together holds the same rows on any number of ranks that divides this.
        fewest_ranks: With `logical_shards`, the smallest number of ranks that the job will run on: `memory_limit` has
            to suffice for it.
    """

    remainder: Literal["drop", "pad", "uneven"] | None = None
    logical_shards: int | None = None
    fewest_ranks: int = 1

    def __post_init__(self) -> None:
        if self.remainder not in (None, "drop", "pad", "uneven"):
            raise ConfigurationError(
                f"ShardOptions(remainder={self.remainder!r}): expected 'drop', 'pad', 'uneven' or None"
            )
        fewest = check_int("ShardOptions fewest_ranks", self.fewest_ranks, 1, 2**20)
        object.__setattr__(self, "fewest_ranks", fewest)
        if self.logical_shards is None:
            return
        logical = check_int("ShardOptions logical_shards", self.logical_shards, 1, 2**20)
        object.__setattr__(self, "logical_shards", logical)
        if self.remainder == "uneven":
            raise ConfigurationError(
                "ShardOptions(remainder='uneven', logical_shards=...): logical shards are equally long; "
                "choose 'drop' or 'pad'"
            )
        if self.logical_shards % self.fewest_ranks:
            raise ConfigurationError(
                f"ShardOptions(fewest_ranks={self.fewest_ranks}): does not divide logical_shards={self.logical_shards}"
            )


def _check_bools(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not isinstance(value, bool):
            raise ConfigurationError(f"{type(options).__name__}({name}={value!r}): expected True or False")
