"""The sequences of one epoch as a pure function of its plan and the lengths of documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from parquet_loader.common import IntArray, Stream, permutation
from parquet_loader.loader.tokens.lengths import DocumentLengths
from parquet_loader.plan import (
    PACKING_METHODS,
    Division,
    Lengths,
    Overflow,
    Pack,
    Packed,
    Plan,
    Sharding,
    count_bins,
    count_by_length,
    pack,
    pack_by_length,
)


@dataclass(frozen=True, slots=True)
class PackingRule:
    """How documents become sequences.

    Ranks divide *bins*: sequences, or whole batches with ``"by_length"``, whose batches differ in their rows.

    Attributes:
        length, method, overflow: As in `pack`.
        batch_tokens, multiple: As in `pack_by_length`; 0 with the other methods.
    """

    length: int
    method: Pack
    overflow: Overflow
    batch_tokens: int = 0
    multiple: int = 0

    def pack(self, lengths: Lengths) -> Packed:
        """Pack the documents of a window."""
        if self.method == "by_length":
            return pack_by_length(lengths, self.length, self.overflow, self.batch_tokens, self.multiple)
        return pack(lengths, self.length, self.method, self.overflow)

    def count(self, lengths: Lengths) -> int:
        """Return the number of bins that `pack` makes."""
        if self.method == "by_length":
            return count_by_length(lengths, self.length, self.overflow, self.batch_tokens, self.multiple)
        return count_bins(lengths, self.length, self.method, self.overflow)

    def rows(self, packed: Packed) -> tuple[IntArray, IntArray]:
        """Return the pieces before each row, ``[rows + 1]``, and the rows before each bin, ``[bins + 1]``."""
        if self.method == "by_length":
            return np.arange(len(packed.document) + 1), packed.begins
        return packed.begins, np.arange(packed.bins + 1)

    def __str__(self) -> str:
        if self.method == "by_length":
            batch = f"{self.batch_tokens} {self.multiple}"
            return f"{PACKING_METHODS[self.method]} {self.overflow} {self.length} {batch}"
        return f"{PACKING_METHODS[self.method]} {self.overflow} {self.length}"


@dataclass(frozen=True)
class EpochPacking:
    """One epoch of one rank. All ranks plan the same windows and sequences, and each delivers a part of them.

    Attributes:
        plan: All documents of the epoch, in windows that are packed one by one.
        rule: How documents become sequences.
        lengths: The lengths of all documents.
        sharding: Divides sequences over ranks, as if they were rows.
        batch_size: Sequences of a batch.
        drop_last: As in the loader.
    """

    plan: Plan
    rule: PackingRule
    lengths: DocumentLengths
    sharding: Sharding
    batch_size: int
    drop_last: bool

    @cached_property
    def begins(self) -> IntArray:
        """int64 ``[windows + 1]``: sequences before each window; the last element counts all. 2 to 5 ns a document.

        The order of documents does not matter, because the number of sequences depends on their lengths alone.
        """
        begins = np.zeros(self.plan.windows + 1, np.int64)
        for window in range(self.plan.windows):
            own = np.ascontiguousarray(self.lengths.of_window(self.plan, window))
            begins[window + 1] = begins[window] + self.rule.count(own)
        return begins

    @property
    def sequences(self) -> int:
        """Sequences of the epoch, of all ranks together."""
        return int(self.begins[-1])

    @cached_property
    def _division(self) -> Division:
        return self.sharding.divide(self.sequences, self.batch_size, drop_last=self.drop_last)

    @property
    def steps(self) -> int:
        """Batches of this rank."""
        return self._division.batches

    @property
    def rows(self) -> int:
        """Sequences of this rank."""
        return min(self._division.delivered_rows, self.steps * self.batch_size)

    def ranges_of(self, batch: int) -> list[tuple[int, int]]:
        """Return the sequences of a batch as ranges ``(start, stop)``; `stop` is exclusive.

        With logical shards, batch ``b`` of all ranks together has the sequences from ``b * B * ranks`` on. If too few
        are left for the last batch, each shard takes the same number, and the last shards repeat sequences of others.
        """
        first = batch * self.batch_size
        rows = min(self.batch_size, self.rows - first)
        parts = self._division.parts
        if self.sharding.options.logical_shards is None:
            return [(parts[0].first + first, parts[0].first + first + rows)]
        ranks, share = self.sharding.shard.world_size, rows // len(parts)
        before = first * ranks
        begins = [before + min(part.number * share, self.sequences - before - share) for part in parts]
        if begins[-1] - begins[0] == rows - share:
            return [(begins[0], begins[0] + rows)]
        return [(begin, begin + share) for begin in begins]

    def consecutive(self, first: int, stop: int) -> IntArray:
        """Return the bounds of full batches that follow each other.

        Args:
            first: The first batch.
            stop: The sequence at which the last one ends at the latest.

        Returns:
            int64 ``[batches + 1]``: the first sequence of each batch, and the end of the last. No batches with logical
            shards.
        """
        if self.sharding.options.logical_shards is not None:
            return np.empty(0, np.int64)
        begin, size = self.ranges_of(first)[0][0], self.batch_size
        return begin + size * np.arange(min((stop - begin) // size, self.rows // size - first) + 1)

    def window_of(self, sequence: int) -> int:
        """Return the window that holds a sequence."""
        return int(np.searchsorted(self.begins, sequence, side="right")) - 1

    def read_plan(self, first_batch: int) -> Plan:
        """Return the plan of the windows that this rank reads, from the first window of `first_batch` on."""
        if first_batch >= self.steps:
            return replace(self.plan, start_window=0, stop_window=0)
        begin, end = self.ranges_of(first_batch)[0][0], self.ranges_of(self.steps - 1)[-1][1]
        return replace(self.plan, start_window=self.window_of(begin), stop_window=self.window_of(end - 1) + 1)

    @property
    def figures_plan(self) -> Plan:
        """The plan with the number of batches delivered, and the mean number of documents in a batch, for figures."""
        documents = self.plan.rows * self.batch_size // max(1, self.sequences)
        return replace(self.read_plan(0), batches=self.steps, batch_size=max(1, documents))

    def ordered_lengths(self, window: int) -> Lengths:
        """Return the lengths of a window's documents in the order of delivery, int32 ``[rows]``."""
        lengths, order = self.lengths.of_window(self.plan, window), self.plan.order(window)
        return np.ascontiguousarray(lengths if order is None else lengths[order])

    def packed(self, window: int, lengths: Lengths) -> Packed:
        """Return the sequences of a window in the order of delivery, packed from `ordered_lengths`."""
        packed = self.rule.pack(lengths)
        if not self.plan.shuffle:
            return packed
        return packed.taken(permutation(packed.bins, self.plan.seed, Stream.SEQUENCES, self.plan.epoch, window))


class KeptPackings:
    """The sequences of epochs, of which the last two are kept: those of a running epoch and the next one.

    Any thread may use it; two that ask for an epoch at once may both pack it. It does not refer to the loader.

    Args:
        packed: Packs the epoch of a plan.
    """

    def __init__(self, packed: Callable[[Plan], EpochPacking]) -> None:
        self._packed = packed
        self._kept: dict[int, EpochPacking] = {}

    def __call__(self, epoch: int, planned: Callable[[], Plan]) -> EpochPacking:
        """Return the sequences of an epoch.

        Args:
            epoch: The epoch.
            planned: Returns its plan.
        """
        found = self._kept.get(epoch)
        if found is None:
            found = self._packed(planned())
            last = list(self._kept.items())[-1:]
            self._kept = {**dict(last), epoch: found}
        return found
