"""Makes a loader's state from plain JSON values, and checks that a state belongs to a loader.

The state names a batch by its number in an epoch. The plan determines the rows of that batch, so the state holds no
data. It holds the inputs of the plan as short text and digests, so that a state of other batches is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from parquet_loader.common import PERMUTATION_METHOD, IntArray
from parquet_loader.dataset import Dataset, digest
from parquet_loader.errors import ResumeError
from parquet_loader.plan import WINDOW_METHOD, Sharding
from parquet_loader.source import Snapshot, TableInfo

STATE_VERSION = 1
SHOWN_CHARACTERS = 160
OF_FILES = frozenset({"table", "files", "rows", "window_rows", "open_row_groups"})
"""The keys of an identity that depend on the files; they differ between epochs of a source that changes."""

Identity = Mapping[str, Any]


def described(values: Sequence[str] | str) -> str:
    """Return short text unchanged; else the beginning of the text, and a digest of all of it."""
    text = values if isinstance(values, str) else ", ".join(values)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    count = "" if isinstance(values, str) else f"{len(values)}: "
    return f"{count}{text[:SHOWN_CHARACTERS]}... ({digest(text.encode())})"


def files_identity(snapshot: Snapshot) -> str:
    """Return text that identifies a snapshot's files: a digest of relative names, sizes and footers.

    The common directory and the times of writing do not count, so a copy elsewhere has the same identity.
    """
    paths = [file.path for file in snapshot.files]
    above = len(os.path.commonpath([os.path.dirname(path) for path in paths])) if paths else 0
    names = json.dumps([[path[above:], file.size_bytes] for path, file in zip(paths, snapshot.files, strict=True)])
    arrays = (snapshot.row_group_file, snapshot.row_group_rows, snapshot.row_group_bytes)
    footers = np.ascontiguousarray(snapshot.file_digest, dtype="<u8").tobytes()
    parts = [names.encode(), footers, *(np.ascontiguousarray(a, dtype="<i8").tobytes() for a in arrays)]
    if snapshot.deleted is not None:
        parts.append(snapshot.deleted.digest())
    summary = digest(*parts)
    return f"{len(paths)} files, {snapshot.row_groups} row groups, {snapshot.rows} rows ({summary})"


def counts_identity(counts: IntArray) -> str:
    """Return text that identifies the rows that pass a filter: their number, and a digest of the counts."""
    return f"{int(counts.sum())} ({digest(np.ascontiguousarray(counts, dtype='<i8').tobytes())})"


def order_identity(
    dataset: Dataset,
    sharding: Sharding,
    filters: pc.Expression | None,
    *,
    batch_size: int,
    drop_last: bool,
    shuffle: bool,
    seed: int,
) -> dict[str, Any]:
    """Return everything that the order of rows, and so a state, depends on; arguments as in `BatchedDataLoader`."""
    table = dataset.snapshot.table
    return {
        **({} if table is None else {"table": table.name}),
        "files": files_identity(dataset.snapshot),
        "filters": None if filters is None else described(str(filters)),
        "rows": counts_identity(dataset.counts),
        "columns": described(list(dataset.schema)),
        "schema": digest(dataset.schema.to_json().encode()),
        "order": f"{PERMUTATION_METHOD} {WINDOW_METHOD}",
        "shuffle": shuffle,
        "seed": seed,
        "window_rows": dataset.sizing.window_rows,
        "open_row_groups": dataset.sizing.open_row_groups,
        "drop_last": drop_last,
        **sharding.identity(batch_size, drop_last=drop_last),
    }


def make_state(identity: Identity, epoch: int, batch: int, left_out: int) -> dict[str, Any]:
    """Return a state.

    Args:
        identity: See `order_identity`; plain JSON values.
        epoch, batch: The next batch to deliver.
        left_out: Row groups left out of this epoch so far because of errors.
    """
    state = {"version": STATE_VERSION, "epoch": epoch, "batch": batch, **identity}
    if left_out and batch:
        state["left_out"] = left_out
    return state


def check_state(
    state: Any,
    identity: Identity,
    batches: int,
    but: frozenset[str] = frozenset(),
    table: TableInfo | None = None,
) -> tuple[int, int]:
    """Check a state against this loader, and return the epoch and batch at which it continues.

    Args:
        state: The argument of `load_state_dict`.
        identity: As in `make_state`.
        batches: Number of batches of an epoch.
        but: Names of the identity that are not compared.
        table: The table version that this loader reads, if it reads one.

    Raises:
        ResumeError: It is not a state, or belongs to another loader; the message names the difference.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        hint = "; pass json.loads of this text" if isinstance(state, str | bytes) else ""
        raise ResumeError(f"expected a result of state_dict(), found {state!r:.80}{hint}")
    if state["version"] != STATE_VERSION:
        raise ResumeError(
            f"the state has version {state['version']!r}, this release reads version {STATE_VERSION}; "
            "resume with the release that wrote it, or call set_epoch(n) to begin an epoch without the state"
        )
    differing = [
        f"{name.replace('_', ' ')}: {state.get(name)!r} in the state, {identity.get(name)!r} here"
        for name in dict.fromkeys([*identity, *state])
        if name not in ("version", "epoch", "batch", "left_out", "snapshot", *but)
        and state.get(name) != identity.get(name)
    ]
    if differing:
        named = state.get("table")
        cure = "construct the loader as it was"
        if table is not None and isinstance(named, str) and named != table.name and "table" not in but:
            cure = f"open the state's version: {table.reopening(named)}"
        elif "ranks" in state and "ranks" in identity and state["ranks"] != identity["ranks"]:
            cure += " (only a state of ShardOptions(logical_shards=...) resumes on another number of ranks)"
        raise ResumeError(
            f"the state does not match this loader: {'; '.join(differing)}; "
            f"{cure}, or call set_epoch(n) to begin an epoch without the state"
        )
    position = state.get("epoch"), state.get("batch")
    for name, value, most in zip(("epoch", "batch"), position, (2**62, batches), strict=True):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise ResumeError(f"the state's {name} is {value!r}: expected a number from 0 to {most}")
    if state.get("left_out"):
        raise ResumeError(
            f"{state['left_out']} row groups were skipped before the state was taken (on_error='skip'), so its batch "
            f"number does not identify a row; call set_epoch({position[0]}) to begin that epoch again"
        )
    return state["epoch"], state["batch"]
