"""Everything known about a source before training: footers, a plan, and the figures of a short trial."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import (
    PROBLEM,
    IntArray,
    OutputOptions,
    ReadOptions,
    Shard,
    available_processors,
    format_count,
    is_local,
)
from parquet_loader.dataset import WindowNeeds, found_schema, is_carrying, open_dataset, resolve_source
from parquet_loader.errors import DataError, MemoryLimitError, ParquetLoaderError, SchemaError, SourceError
from parquet_loader.loader.batched import BatchedDataLoader, parts_of
from parquet_loader.loader.diagnosis import shuffle_figures, sorting_of, storage_figures
from parquet_loader.loader.epoch_plan import EpochPlan
from parquet_loader.loader.layout.columns import DeliveredColumn, StoredColumn, delivered_columns, stored_columns
from parquet_loader.loader.layout.dictionaries import mixed_encodings
from parquet_loader.loader.stats import LoaderStats, ShuffleFigures, StorageFigures
from parquet_loader.plan import mixing_score
from parquet_loader.read import count_nulls
from parquet_loader.schema import describe, infer_fields, nodes, policy_of
from parquet_loader.source import Snapshot, open_snapshot, selection_of, with_unischema

# A trial reads whole windows of thousands of rows: two of them tell sorted data from data in random order.
FEWEST_WINDOWS = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """A column that a loader refuses, or the reason why it refuses all columns.

    Attributes:
        column: Its name; None for all columns.
        reason: The error.
        nulls: Whether nulls are the reason, which a schema may allow.
    """

    column: str | None
    reason: str
    nulls: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of an epoch that was read for its figures.

    Attributes:
        share: The part of the epoch's row groups that was read, 0 to 1.
        decode_s: Processor seconds of reading and decoding that part.
        stats: All figures.
    """

    share: float
    decode_s: float
    stats: LoaderStats


@dataclass(frozen=True, slots=True)
class LayoutFacts:
    """The facts that the rules of `parquet_loader.loader.layout.rules` judge. Plain values.

    Attributes:
        source: The source, quoted for a shell.
        target: A path for a rewritten copy, quoted for a shell, and the option for the split.
        ranks, batch_size, memory_limit_bytes, num_threads: Arguments of the planned loader.
        rows: Rows that are not deleted.
        file_bytes: int64 ``[files]``, sizes of the files.
        is_local: Whether the files are local.
        opening_s: Seconds of listing and reading footers.
        group_rows, group_bytes: int64 ``[row groups with rows]``, rows in files, and bytes before compression.
        alive_rows: int64, rows of these row groups that are not deleted.
        table: The format of the table; None if the source is not a table.
        columns: The stored columns.
        delivered: The columns of a batch; empty if nothing can be loaded.
        problems: Columns that a loader refuses.
        mixed: Columns whose writer abandoned a dictionary; empty if pages were not checked.
        plan: The plan of one rank's epoch; None if no plan can be made.
        memory_error: The `MemoryLimitError` that prevents a plan, or "".
        row_bytes: Bytes of a decoded row.
        shuffling: The windows in which rows are shuffled.
        storage: How columns are stored, and the speed of codecs.
        kernels: Why the compiled kernels are not used; "" if they are.
        trial: A part of an epoch that was read; None without a trial.
        unreadable: The error that ended the trial.
    """

    source: str
    target: str
    ranks: int
    batch_size: int
    memory_limit_bytes: int
    num_threads: int
    rows: int
    file_bytes: IntArray
    is_local: bool
    opening_s: float
    group_rows: IntArray
    group_bytes: IntArray
    alive_rows: IntArray
    table: str | None = None
    columns: tuple[StoredColumn, ...] = ()
    delivered: tuple[DeliveredColumn, ...] = ()
    problems: tuple[Problem, ...] = ()
    mixed: frozenset[str] = field(default_factory=frozenset)
    plan: EpochPlan | None = None
    memory_error: str = ""
    row_bytes: float = 0.0
    shuffling: ShuffleFigures | None = None
    storage: StorageFigures | None = None
    kernels: str = ""
    trial: Trial | None = None
    unreadable: str = ""


def problems_of(snapshot: Snapshot) -> tuple[list[Problem], list[str] | None]:
    """Return the columns that a loader without a schema refuses, and the names of the others.

    The names are None if the schema fits all columns, and empty if nothing can be loaded.
    """
    problems, names, schema = list[Problem](), None, None
    try:
        snapshot, schema = with_unischema(snapshot, None)
        schema = found_schema(snapshot) if schema is None else schema
    except ParquetLoaderError as error:
        refused = _refused(snapshot)
        problems = [Problem(name, reason) for name, reason in refused.items()]
        every = dict.fromkeys(name for schema_ in snapshot.schemas for name in schema_.names)
        names = [name for name in [*every, *snapshot.partition_schema.names] if name not in refused]
        reason = "" if refused else str(error)
        if refused and names:
            try:
                schema = found_schema(snapshot, names)
            except ParquetLoaderError as another:
                reason = str(another)
        names = [] if schema is None else list(schema)
        problems += [Problem(None, reason)] if reason else []
    refusing = {name: of_batch for name, of_batch in (schema or {}).items() if policy_of(of_batch) == "refuse"}
    for name, count in count_nulls(snapshot, refusing).items():
        if count.nulls:
            reason = (
                f"holds {format_count(count.nulls, 'null')} ({count.share:.1%}), and "
                f"{describe(refusing[name], most_words=8)} refuses them; declare fill= or null='mask' in a schema"
            )
            problems.append(Problem(name, reason, nulls=True))
    return problems, names


def examine(
    source: str | list[str],
    *,
    split: str | None = None,
    ranks: int = 1,
    batch_size: int = 256,
    memory_limit_bytes: int = 2**30,
    read_options: ReadOptions | None = None,
    trial_s: float = 2.0,
) -> LayoutFacts:
    """Return the facts about a source for a shuffling loader.

    Args:
        source, split, batch_size, read_options: As in `BatchedDataLoader`.
        ranks: Number of ranks; the plan is that of rank 0.
        memory_limit_bytes: `memory_limit`.
        trial_s: Seconds for which a part of an epoch is read if files are local; 0 to read only footers.

    Raises:
        SourceError: There is nothing to read, or a file is not readable Parquet.
    """
    options = read_options or ReadOptions()
    began = time.perf_counter()
    snapshot = open_snapshot(source, remote=options.remote, selection=selection_of(split, None, options))
    opening_s = time.perf_counter() - began
    if not snapshot.rows:
        raise SourceError(f"{source if isinstance(source, str) else source[0]}: there are no rows to judge")
    columns = stored_columns(snapshot)
    problems, names = problems_of(snapshot)
    with_rows = np.flatnonzero(snapshot.row_group_rows > 0)
    facts = LayoutFacts(
        source=shlex.join([source] if isinstance(source, str) else source),
        target=_target(source) + (f" --split {shlex.quote(split)}" if split else ""),
        ranks=ranks,
        batch_size=batch_size,
        memory_limit_bytes=memory_limit_bytes,
        num_threads=min(8, available_processors()),
        rows=snapshot.rows,
        file_bytes=np.array([file.size_bytes for file in snapshot.files], np.int64),
        is_local=is_local(snapshot.filesystem),
        opening_s=opening_s,
        group_rows=snapshot.row_group_rows[with_rows],
        group_bytes=snapshot.row_group_bytes[with_rows],
        alive_rows=snapshot.alive[with_rows],
        table=None if snapshot.table is None else snapshot.table.format,
        columns=tuple(columns),
        problems=tuple(problems),
        mixed=mixed_encodings(snapshot, columns) if is_local(snapshot.filesystem) and trial_s else frozenset(),
        kernels=PROBLEM,
    )
    refused = {problem.column for problem in problems if problem.column is not None}
    wanted = None
    if refused or names is not None:
        every = list(found_schema(snapshot, names)) if names is not None and names else []
        every = every if names is not None else list(found_schema(snapshot))
        wanted = [name for name in every if name not in refused]
        if not wanted:
            return facts
    return _planned(facts, snapshot, wanted, options, trial_s)


def _planned(
    facts: LayoutFacts, snapshot: Snapshot, columns: list[str] | None, options: ReadOptions, trial_s: float
) -> LayoutFacts:
    """Add the facts from a loader's plan and from a trial."""
    try:
        dataset = open_dataset(
            resolve_source(snapshot, None, columns, options),
            filters=None,
            needs=WindowNeeds(facts.batch_size, shuffle=True),
            window_rows=None,
            memory_limit_bytes=facts.memory_limit_bytes,
            transform=False,
            read_options=options,
            skips=False,
            num_threads=facts.num_threads,
        )
    except MemoryLimitError as error:
        return replace(facts, memory_error=str(error))
    except (SchemaError, DataError) as error:
        return replace(facts, problems=(*facts.problems, Problem(None, str(error))))
    opened: Any = dataset
    loader = BatchedDataLoader(
        opened,
        facts.batch_size,
        shuffle=True,
        memory_limit=facts.memory_limit_bytes,
        shard=Shard(0, facts.ranks),
        num_threads=facts.num_threads,
        read_options=options,
        output_options=OutputOptions(format="numpy"),
    )
    with closing(loader):
        facts = replace(facts, delivered=tuple(delivered_columns(dataset.snapshot, dataset.reader)))
        try:
            plan = loader.plan()
        except MemoryLimitError as error:
            return replace(facts, memory_error=str(error))
        except (DataError, SourceError) as error:
            return replace(facts, unreadable=str(error))
        epoch = parts_of(loader).plan(0)
        facts = replace(
            facts,
            plan=plan,
            row_bytes=dataset.sizing.row.decoded,
            shuffling=shuffle_figures(
                dataset, epoch, None, sorting_of(dataset), mixing_score(epoch, dataset.counts), chooses_window=True
            ),
            storage=storage_figures(dataset, options),
        )
        if not trial_s or not facts.is_local:
            return facts
        try:
            trial = _try(loader, plan, trial_s)
        except (DataError, SourceError) as error:
            return replace(facts, unreadable=str(error))
        assert facts.shuffling is not None
        figures = parts_of(loader).figures
        assert figures is not None
        measured = figures.mixing.worst(FEWEST_WINDOWS)
        return replace(facts, trial=trial, shuffling=replace(facts.shuffling, measured=measured))


def _try(loader: BatchedDataLoader, plan: EpochPlan, seconds: float) -> Trial:
    """Read a part of an epoch; if it takes less than half of the time, read it again and return the second figures.

    In the first epoch of a small source, page faults take most of the time.
    """
    until = time.perf_counter() + seconds
    for _ in range(2):
        began = time.perf_counter()
        for _batch in loader:
            if time.perf_counter() > until:
                break
        if until - time.perf_counter() < time.perf_counter() - began:
            break
    stats = loader.stats()
    share = max(stats.row_groups / max(1, plan.row_groups), stats.rows / max(1, plan.rows))
    return Trial(min(1.0, max(share, 1e-9)), stats.cpu_s["read"], stats)


def _nodes_of(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    return chain.from_iterable(nodes(column.type, column.name) for column in schema)


def _refused(snapshot: Snapshot) -> dict[str, str]:
    """Return the columns whose types no tensor can hold, each with the reason."""
    found: dict[str, str] = {}
    inferred = [schema for schema in snapshot.schemas if not is_carrying(schema)]
    typed = {name for schema in inferred for name, type_ in _nodes_of(schema) if not pa.types.is_null(type_)}
    for schema in inferred:
        wanted = {name for name, type_ in _nodes_of(schema) if not pa.types.is_null(type_) or name not in typed}
        for column in schema:
            try:
                infer_fields(column, is_wanted=wanted.__contains__)
            except SchemaError as error:
                found.setdefault(column.name, str(error).removeprefix(f"column {column.name!r}").lstrip(": "))
    return found


def _target(source: str | list[str]) -> str:
    """Return a name for a rewritten copy next to the source."""
    path = source if isinstance(source, str) else ""
    path = path.rstrip("/" + os.sep)
    # Next to a partition's directory, the copy would be another partition of the same data set.
    if not path or any(c in path for c in "*?[=") or path in (".", ".."):
        return "TARGET"
    stem = path.removesuffix(".parquet")
    return shlex.quote(f"{stem}-fast")
