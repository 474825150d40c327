"""Writes the metadata of a data set (`materialize_dataset`) and reads them (`get_schema_from_dataset_url`)."""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader.common import resolve
from parquet_loader.errors import ParquetLoaderError
from parquet_loader.petastorm.errors import PetastormMetadataError, PetastormMetadataGenerationError
from parquet_loader.petastorm.etl.pickled import dump_unischema
from parquet_loader.petastorm.etl.reading.dataset import RowGroups, source_of
from parquet_loader.petastorm.unischema import Unischema
from parquet_loader.source import ROW_GROUPS_KEY, UNISCHEMA_KEY, Selection, open_snapshot, read_file_schema

_HADOOP_OPTIONS = (
    "parquet.summary.metadata.level",
    "parquet.summary.metadata.propagate-errors",
    "parquet.block.size.row.check.min",
    "parquet.row-group.size.row.check.min",
    "parquet.block.size",
)


@contextlib.contextmanager
def materialize_dataset(
    spark: Any,
    dataset_url: str,
    schema: Unischema,
    row_group_size_mb: int | None = None,
    use_summary_metadata: bool = False,
    filesystem_factory: Any = None,
) -> Iterator[None]:
    """Configure Spark for the writes in the `with` block, and write Petastorm's metadata when it ends.

    This library and Petastorm can both read the data set.

    Args:
        spark: The Spark session.
        dataset_url: Where the block writes.
        schema: The schema of the rows.
        row_group_size_mb: Size of row groups in MiB; None: Spark's own.
        use_summary_metadata: Let Spark write ``_metadata``.
        filesystem_factory: A function that returns the filesystem of the URL; None: as the URL says.

    Raises:
        PetastormMetadataGenerationError: the block wrote no readable data set.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = {key: hadoop.get(key) for key in _HADOOP_OPTIONS}
    hadoop.set("parquet.summary.metadata.level", "ALL" if use_summary_metadata else "NONE")
    hadoop.setBoolean("parquet.summary.metadata.propagate-errors", True)
    hadoop.setInt("parquet.block.size.row.check.min", 3)
    hadoop.setInt("parquet.row-group.size.row.check.min", 3)
    if row_group_size_mb:
        hadoop.setInt("parquet.block.size", row_group_size_mb * 2**20)
    try:
        yield
        write_metadata(dataset_url, schema, filesystem_factory() if filesystem_factory is not None else None)
    finally:
        for key, value in before.items():
            if value is None:
                hadoop.unset(key)
            else:
                hadoop.set(key, value)


def write_metadata(dataset_url: str, schema: Unischema, filesystem: Any = None) -> None:
    """Write the schema, and the number of row groups of each file, to the metadata of a data set.

    Raises:
        PetastormMetadataGenerationError: there is no readable data set.
    """
    source, home = source_of(dataset_url, filesystem)
    try:
        snapshot = open_snapshot(source, home, selection=Selection(split="all", has_options=False, reads_tables=False))
    except ParquetLoaderError as error:
        raise PetastormMetadataGenerationError(f"{dataset_url}: no metadata were written: {error}") from error
    root = _root_of(dataset_url, snapshot.filesystem, home)
    counts = {
        posixpath.relpath(file.path, root): snapshot.footers.get(number).num_row_groups
        for number, file in enumerate(snapshot.files)
    }
    found = {UNISCHEMA_KEY: dump_unischema(schema), ROW_GROUPS_KEY: json.dumps(counts).encode("ascii")}
    add_to_metadata(snapshot.filesystem, root, found, snapshot.schemas[0])


def _root_of(dataset_url: str, filesystem: pafs.FileSystem, home: Any) -> str:
    path = resolve(dataset_url.rstrip("/"), None)[1] if home is None else source_of(dataset_url, home)[0]
    if filesystem.get_file_info(path).type != pafs.FileType.Directory:
        raise PetastormMetadataGenerationError(f"{dataset_url}: not a directory; metadata are written into a directory")
    return str(path)


def add_to_metadata(
    filesystem: pafs.FileSystem, root: str, values: Mapping[bytes, bytes], schema: pa.Schema | None = None
) -> None:
    """Add keys and values to the ``_common_metadata`` of a data set, atomically; create the file if need be."""
    path = posixpath.join(root, "_common_metadata")
    if filesystem.get_file_info(path).type == pafs.FileType.File:
        base = read_file_schema(filesystem, path).parquet.to_arrow_schema()
    elif schema is not None:
        base = schema
    else:
        raise PetastormMetadataError(f"{root}: there is no _common_metadata")
    merged = base.with_metadata({**(base.metadata or {}), **values})
    partial = posixpath.join(root, "._common_metadata.partial")
    with filesystem.open_output_stream(partial) as file:
        pq.write_metadata(merged, file)
    filesystem.move(partial, path)
    crc = posixpath.join(root, "._common_metadata.crc")  # Hadoop's checksum of the old file
    with contextlib.suppress(OSError):
        filesystem.delete_file(crc)


def get_schema_from_dataset_url(
    dataset_url_or_urls: Any,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> Unischema:
    """Return the Unischema of a Petastorm data set.

    Raises:
        PetastormMetadataError: it carries none.
        DataError: it is refused.
    """
    source, home = source_of(dataset_url_or_urls, filesystem, storage_options)
    dataset = RowGroups(source, home)
    if not dataset.is_petastorm:
        raise PetastormMetadataError(
            f"{dataset_url_or_urls}: the data set carries no Unischema; write it within materialize_dataset(), "
            "or read it with make_batch_reader"
        )
    return dataset.unischema


def infer_or_load_unischema(dataset_url_or_urls: Any, filesystem: Any = None) -> Unischema:
    """Return the Unischema of a data set, or one inferred from its columns."""
    source, home = source_of(dataset_url_or_urls, filesystem)
    return RowGroups(source, home).unischema
