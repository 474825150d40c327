"""The sequences of one epoch as a pure function of its plan and the lengths of documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from parquet_loader.common import IntArray, Stream, permutation
from parquet_loader.loader.tokens.lengths import DocumentLengths
from parquet_loader.plan import PACKING_METHODS, Division, Lengths, Overflow, Pack, Packed, Plan, count_bins, pack


@dataclass(frozen=True, slots=True)
class PackingRule:
    """How documents become sequences.

    Attributes:
        length, method, overflow: As in `pack`.
    """

    length: int
    method: Pack
    overflow: Overflow

    def __str__(self) -> str:
        return f"{PACKING_METHODS[self.method]} {self.overflow} {self.length}"


@dataclass(frozen=True)
class EpochPacking:
    """One epoch of one rank. All ranks plan the same windows and sequences, and each delivers a part of them.

    Attributes:
        plan: All documents of the epoch, in windows that are packed one by one.
        rule: How documents become sequences.
        lengths: The lengths of all documents.
        begins: int64 ``[windows + 1]``: sequences before each window; the last element is all of them.
        division: The sequences of this rank, which take the place of rows.
        batch_size: Sequences of a batch.
    """

    plan: Plan
    rule: PackingRule
    lengths: DocumentLengths
    begins: IntArray
    division: Division
    batch_size: int

    @property
    def steps(self) -> int:
        """Batches of this rank."""
        return self.division.batches

    @property
    def first(self) -> int:
        """This rank's first sequence."""
        return self.division.parts[0].first

    @property
    def stop(self) -> int:
        """The sequence after this rank's last one."""
        return self.first + min(self.division.delivered_rows, self.steps * self.batch_size)

    def begin_of(self, batch: int) -> int:
        """Return the first sequence of a batch."""
        return min(self.first + batch * self.batch_size, self.stop)

    def window_of(self, sequence: int) -> int:
        """Return the window that holds a sequence; for one after the last, the number of windows."""
        return int(np.searchsorted(self.begins, sequence, side="right")) - 1

    @cached_property
    def read_plan(self) -> Plan:
        """The plan up to the last window that this rank reads."""
        last = self.window_of(self.stop - 1) + 1 if self.stop > self.first else 0
        return replace(self.plan, stop_window=last)

    @property
    def figures_plan(self) -> Plan:
        """The plan with the number of batches that are delivered, and documents of a batch on average, for figures."""
        documents = self.plan.rows * self.batch_size // max(1, int(self.begins[-1]))
        return replace(self.read_plan, batches=self.steps, batch_size=max(1, documents))

    def ordered_lengths(self, window: int) -> Lengths:
        """Return the lengths of a window's documents in the order of delivery, int32 ``[rows]``."""
        lengths, order = self.lengths.of_window(self.plan, window), self.plan.order(window)
        return np.ascontiguousarray(lengths if order is None else lengths[order])

    def packed(self, window: int, lengths: Lengths) -> Packed:
        """Return the sequences of a window in the order of delivery, packed from `ordered_lengths`."""
        packed = pack(lengths, self.rule.length, self.rule.method, self.rule.overflow)
        if not self.plan.shuffle:
            return packed
        return packed.taken(permutation(packed.bins, self.plan.seed, Stream.SEQUENCES, self.plan.epoch, window))


def begins_of(plan: Plan, rule: PackingRule, lengths: DocumentLengths) -> IntArray:
    """Return the number of sequences before each window, int64 ``[windows + 1]``.

    The order of documents does not count, because the number of sequences depends on their lengths alone.
    """
    begins = np.zeros(plan.windows + 1, np.int64)
    for window in range(plan.windows):
        own = np.ascontiguousarray(lengths.of_window(plan, window))
        begins[window + 1] = begins[window] + count_bins(own, rule.length, rule.method, rule.overflow)
    return begins
