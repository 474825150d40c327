"""Reads, shuffles and processes windows ahead of the consumer, on threads or in a child process."""

from __future__ import annotations

from parquet_loader.engine.batch_processor import BatchProcessor, ProcessedBatch, Transform
from parquet_loader.engine.child.client import IsolatedEngine, ReadingProcess
from parquet_loader.engine.engine import Engine, EngineOptions, open_engine
from parquet_loader.engine.read_ahead import NextPlan, ReadAhead
from parquet_loader.engine.record import EngineRecord, Event, EventLog, Progress, Sample, SampleLog, events_of
from parquet_loader.engine.usage import EngineFigures, Usage
from parquet_loader.engine.window_task import WindowTask
from parquet_loader.engine.worker_pool import STAGES, Job

__all__ = [
    "STAGES",
    "BatchProcessor",
    "Engine",
    "EngineFigures",
    "EngineOptions",
    "EngineRecord",
    "Event",
    "EventLog",
    "IsolatedEngine",
    "Job",
    "NextPlan",
    "ProcessedBatch",
    "Progress",
    "ReadAhead",
    "ReadingProcess",
    "Sample",
    "SampleLog",
    "Transform",
    "Usage",
    "WindowTask",
    "events_of",
    "open_engine",
]
