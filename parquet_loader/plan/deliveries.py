"""Finds the batch that completes each file, and the rank that counts it. Pure functions of a plan."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from parquet_loader.common import BoolArray, IntArray
from parquet_loader.plan.epoch import Plan


def batches_until_done(plan: Plan, row_group_file: IntArray, files: int) -> IntArray:
    """Return for each file the number of batches after which no resume reads it again, int64 ``[files]``.

    A resume at an earlier batch reads the file's last window again. So these are the batches up to the last one with a
    row of that window.

    Args:
        plan: The epoch.
        row_group_file: int32 ``[row groups]``, as in `Snapshot`.
        files: Number of files.
    """
    done = np.zeros(files, np.int64)
    if not plan.windows:
        return done
    ends = [part.window_ends(plan.begins) for part in plan.parts]
    batches = np.minimum(-(-np.sum(ends, axis=0)[1:] // plan.batch_size), plan.batches)
    for part, end in zip(plan.parts, ends, strict=True):
        if not part.rows:
            continue
        is_large = part.rows >= 2**31 or part.ramp_rows  # products of two or three row numbers exceed int64
        exact = end.astype(object) if is_large else end
        for lane, (low, high) in enumerate(pairwise(part.lanes)):
            first, stop = part.first + low, part.first + high
            groups = slice(np.searchsorted(plan.begins, first, "right") - 1, np.searchsorted(plan.begins, stop, "left"))
            last = np.minimum(plan.begins[1:][groups], stop) - 1 - part.first
            read = (low + part.lane_rows(lane, exact)).astype(np.int64)
            window = np.minimum(np.searchsorted(read, last, side="right"), plan.windows) - 1  # rows left out come last
            np.maximum.at(done, row_group_file[plan.row_group[groups]], batches[window])
    return done


def counted_here(plan: Plan, row_group_file: IntArray, files: int) -> BoolArray:
    """Return the files whose deliveries this rank counts, bool ``[files]``; each file is counted by one rank.

    A file is counted by the rank that reads the file's first row in the order of the epoch.

    Args:
        plan: This rank's plan of the epoch.
        row_group_file: int32 ``[row groups]``, as in `Snapshot`.
        files: Number of files.
    """
    total = int(plan.begins[-1]) if len(plan.begins) else 0
    first = np.full(files, max(0, total - 1), np.int64)
    np.minimum.at(first, row_group_file[plan.row_group], plan.begins[: len(plan.row_group)])
    here = np.zeros(files, np.bool_)
    for part in plan.parts:
        here |= (first >= part.first) & (first < part.stop)
    return here
