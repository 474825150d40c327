"""Builds indexes of row groups, stores them in the metadata of a data set, and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from parquet_loader.common import in_threads
from parquet_loader.petastorm.errors import PetastormMetadataError
from parquet_loader.petastorm.etl.dataset_metadata import add_to_metadata
from parquet_loader.petastorm.etl.pickled import dump_indexes
from parquet_loader.petastorm.etl.reading.dataset import RowGroups, find_metadata, source_of
from parquet_loader.petastorm.etl.reading.decoding import decode_columns
from parquet_loader.petastorm.etl.rowgroup_indexers import RowGroupIndexerBase
from parquet_loader.source import INDEX_KEY, UNISCHEMA_KEY


def build_rowgroup_index(
    dataset_url: str,
    spark_context: Any,  # noqa: ARG001  (threads read the row groups)
    indexers: Sequence[RowGroupIndexerBase],
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
) -> None:
    """Index the row groups of a data set, and store the indexes in its metadata.

    Raises:
        PetastormMetadataError: the data set carries no Unischema.
        ValueError: a row group has no rows, or a column does not exist.
    """
    source, home = source_of(dataset_url)
    dataset = RowGroups(source, home)
    if not dataset.is_petastorm:
        raise PetastormMetadataError(f"{dataset_url}: the data set carries no Unischema")
    columns = sorted({column for indexer in indexers for column in indexer.column_names})
    unknown = set(columns) - set(dataset.unischema.fields)
    if unknown:
        raise ValueError(f"{dataset_url}: there is no field {', '.join(sorted(unknown))} to index")

    reader = dataset.reader(columns)

    def index(row_group: int) -> list[Any]:
        wanted = dataset.snapshot.row_group(row_group)
        decoded = decode_columns(reader.read(wanted), dataset.unischema, wanted.name)
        rows = [dict(zip(decoded, values, strict=True)) for values in zip(*decoded.values(), strict=True)]
        built = deepcopy(list(indexers))
        for indexer in built:
            indexer.build_index(rows, row_group)
        return built

    total = list(indexers)
    with dataset.opened():
        for built in in_threads(index, range(dataset.snapshot.row_groups), 4, "parquet_loader-petastorm"):
            total = [one + other for one, other in zip(total, built, strict=True)]
    found = find_metadata(dataset.snapshot, UNISCHEMA_KEY)
    assert found is not None
    add_to_metadata(dataset.snapshot.filesystem, found[0], {INDEX_KEY: dump_indexes({i.index_name: i for i in total})})


def get_row_group_indexes(dataset_url: str) -> Mapping[str, RowGroupIndexerBase]:
    """Return the indexes of a data set by name.

    Raises:
        PetastormMetadataError: it carries none.
    """
    source, home = source_of(dataset_url)
    return RowGroups(source, home).indexes()
