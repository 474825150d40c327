"""Imports data sets that are not Parquet: streaming, in bounded memory, resumable after an interruption."""

from __future__ import annotations

from parquet_loader.write.imports.images import import_images
from parquet_loader.write.imports.lmdb_database import import_lmdb
from parquet_loader.write.imports.mosaicml import import_mosaicml
from parquet_loader.write.imports.report import ImportReport, SkippedRecords
from parquet_loader.write.imports.tfrecord import import_tfrecord
from parquet_loader.write.imports.webdataset import import_webdataset

__all__ = [
    "ImportReport",
    "SkippedRecords",
    "import_images",
    "import_lmdb",
    "import_mosaicml",
    "import_tfrecord",
    "import_webdataset",
]
