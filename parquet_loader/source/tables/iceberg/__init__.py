"""Tables of Apache Iceberg: `IcebergSource` resolves one to the files, columns and deleted rows of a snapshot."""

from parquet_loader.source.tables.iceberg.locations import is_metadata_file
from parquet_loader.source.tables.iceberg.source import IcebergSource, is_table

__all__ = ["IcebergSource", "is_metadata_file", "is_table"]
