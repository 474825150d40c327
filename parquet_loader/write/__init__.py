"""Writes data sets: turns batches of any form into complete Parquet files, laid out for training."""

from __future__ import annotations

from parquet_loader.write.column_layout import Layout, choose_layout
from parquet_loader.write.jobs.job import WriteJob, remove_dead_jobs
from parquet_loader.write.jobs.task import write_partition
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.os_errors import reason, storage_errors
from parquet_loader.write.row_group_buffer import RowGroupBuffer
from parquet_loader.write.staging import StagedFile, fsync
from parquet_loader.write.writer import DatasetWriter, WriteSummary, write_dataset
