"""Reads, shuffles and processes windows ahead of the consumer, on threads or in a child process."""

from __future__ import annotations

from parquet_loader.engine.batch_processor import BatchProcessor, ProcessedBatch, Transform
from parquet_loader.engine.child.client import IsolatedEngine, ReadingProcess
from parquet_loader.engine.child.packed_transform import PackedTransform
from parquet_loader.engine.child.transforms import TransformProcesses, check_transform_workers, transform_option
from parquet_loader.engine.cut_batches import CutBatches, HeldWindow, batches_at_once
from parquet_loader.engine.encoded_images import EncodedImages
from parquet_loader.engine.engine import (
    WINDOWS_AHEAD,
    Engine,
    EngineOptions,
    transform_processes,
)
from parquet_loader.engine.kept_engine import KeptEngine
from parquet_loader.engine.read_ahead import NextPlan, ReadAhead
from parquet_loader.engine.recordings import RowError
from parquet_loader.engine.referenced_files import LocalFile, ReferencedFiles, files_named_by
from parquet_loader.engine.transform_results import RowsOut
from parquet_loader.engine.usage import EngineFigures, Usage
from parquet_loader.engine.window_media import WindowMedia
from parquet_loader.engine.window_task import WindowTask
from parquet_loader.engine.workers.epoch_workers import STAGES, Job
from parquet_loader.engine.workers.nvtx_ranges import Mark, marking
from parquet_loader.engine.workers.record import EngineRecord, Event, EventLog, Progress, Sample, SampleLog, events_of
