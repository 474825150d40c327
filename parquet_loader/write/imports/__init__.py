"""Imports data sets that are not Parquet: streaming, in bounded memory, resumable after an interruption.

importing  the journal of an import, and its publication
records    the interface of formats: chunks of rows, and the tally of skipped records
report     the result
images     folders of images
sharded    base class of formats with files of records; values: their fields, and their encoding
webdataset tars of samples
tfrecord   files of tf.train.Example; crc32c, protobuf: its checksums and messages
mosaicml   MDS shards
lmdb_database  LMDB
"""

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
