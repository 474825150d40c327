"""Writing data sets: any batch to whole Parquet files, laid out for training.

options   sizes and codec
layout    how each column is stored
target    what is in the directory already
staging   hidden files, renamed when they are whole
publish   all files of a writer or none
packer    batches of any size to files of even row groups
writer    `DatasetWriter`, `write_dataset`

Jobs of many tasks, on the workers of a cluster:

lease     whether the process that began a job is alive
commit    how its files appear
job       `WriteJob`: what tasks write and report, and what of it is published
task      rows to files, on a worker
into_store  a job's files into a `SampleStore`
shuffle   all rows of a job in a seeded order
run       the steps of a job, whatever engine runs its tasks
vectors   Spark's ML vectors
dask, spark   `write_dask`, `write_spark`
"""

from __future__ import annotations

from parquet_loader.write.column_layout import Layout, choose_layout
from parquet_loader.write.jobs.job import WriteJob, remove_dead_jobs
from parquet_loader.write.jobs.task import write_partition
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.os_errors import reason, storage_errors
from parquet_loader.write.row_group_buffer import RowGroupBuffer
from parquet_loader.write.writer import DatasetWriter, WriteSummary, write_dataset

__all__ = [
    "DatasetWriter",
    "Layout",
    "RowGroupBuffer",
    "WriteJob",
    "WriteOptions",
    "WriteSummary",
    "choose_layout",
    "reason",
    "remove_dead_jobs",
    "storage_errors",
    "write_dataset",
    "write_partition",
]
