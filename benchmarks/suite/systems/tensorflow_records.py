"""tf.data over TFRecord: shuffled files, a shuffle buffer of a window's rows, examples parsed batch by batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf
import torch

from benchmarks.suite.systems.base import Batch, Job, System, Unsupported, copy_once

PACKAGES = ("tensorflow-cpu", "numpy", "torch")


class TensorFlowRecords(System):
    """Each row an `Example` with one bytes feature a column."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        if job.kinds != {"vector"}:
            raise Unsupported("only the science workload is converted to TFRecord")
        tf.config.threading.set_intra_op_parallelism_threads(job.threads)
        tf.config.threading.set_inter_op_parallelism_threads(job.threads)
        folder = copy_once(job.copies / "tfrecord", self._write)
        files = tf.data.Dataset.list_files(str(folder / "*.tfrecord"), shuffle=True)
        data = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=job.threads)
        data = data.shuffle(job.window_rows).batch(job.batch_size)
        self.data = data.map(self._parse, num_parallel_calls=job.threads).prefetch(2)

    def _parse(self, examples: Any) -> Any:
        wanted = {column.name: tf.io.FixedLenFeature([], tf.string) for column in self.job.columns}
        parsed = tf.io.parse_example(examples, wanted)
        return {
            column.name: tf.reshape(tf.io.decode_raw(parsed[column.name], column.dtype), [-1, column.width])
            for column in self.job.columns
        }

    def _write(self, folder: Path) -> None:
        folder.mkdir()
        for number, path in enumerate(self.job.files):
            with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer, pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    array = file.read_row_group(group)["x"].combine_chunks()
                    for row in array.flatten().to_numpy().reshape(len(array), -1).astype(np.float32):
                        feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[row.tobytes()]))
                        example = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
                        writer.write(example.SerializeToString())

    def epoch(self) -> Iterator[Batch]:
        for batch in self.data:
            yield {
                name: torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(value))
                for name, value in batch.items()
            }


def open_system(job: Job) -> System:
    """Open it."""
    return TensorFlowRecords(job)
