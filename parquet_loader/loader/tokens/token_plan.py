"""`TokenPlan`: figures of an epoch of sequences, computed from the lengths of documents before anything is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parquet_loader.loader.epoch_plan import EpochPlan
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.plan import total_pieces, total_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlan(EpochPlan):
    """Figures of an epoch of a `TokenLoader`, known before it begins.

    `rows` is the number of sequences that this rank delivers. The attributes below count all ranks together.

    Attributes:
        sequences: Sequences of the epoch.
        documents: Documents with at least one token.
        tokens: Tokens of all documents.
        fill: Share of the sequences' positions that hold a token; the others are padding.
        split_share: Share of the documents that are in more than one sequence.
        cropped_share: Share of the tokens that are left out because their document is longer than a sequence.
        documents_per_sequence: Documents in a sequence on average, counting parts of documents.
    """

    sequences: int
    documents: int
    tokens: int
    fill: float
    split_share: float
    cropped_share: float
    documents_per_sequence: float


def token_plan(packing: EpochPacking, base: EpochPlan, predicted_peak_bytes: int) -> TokenPlan:
    """Return the figures of an epoch.

    Args:
        packing: Its sequences.
        base: The figures of its windows, as if documents were delivered.
        predicted_peak_bytes: As in `EpochPlan`.
    """
    rule, tokens = packing.rule, packing.lengths.tokens
    sequences, documents = packing.sequences, int(np.count_nonzero(tokens))
    pieces = total_pieces(tokens, rule.length, rule.overflow)
    split = int(np.count_nonzero(tokens > rule.length)) if rule.overflow == "split" else 0
    rows, positions = packing.rows, sequences * rule.length
    if rule.method == "by_length":
        sequences, rows, positions = pieces, *_rows_and_positions(packing)
    if rule.method == "concat":  # documents are cut wherever a sequence ends
        pieces = split = 0
        for window in range(packing.plan.windows):
            packed = packing.packed(window, packing.ordered_lengths(window))
            pieces += len(packed.document)
            split += int(np.count_nonzero(np.bincount(packed.document) > 1))
    total, delivered = int(tokens.sum(dtype=np.int64)), total_tokens(tokens, rule.length, rule.overflow)
    figures = {name: getattr(base, name) for name in EpochPlan.__dataclass_fields__}
    figures |= {"rows": rows, "predicted_peak_bytes": predicted_peak_bytes}
    return TokenPlan(
        **figures,
        sequences=sequences,
        documents=documents,
        tokens=total,
        fill=delivered / max(1, positions),
        split_share=split / max(1, documents),
        cropped_share=(total - delivered) / max(1, total),
        documents_per_sequence=pieces / max(1, sequences),
    )


def _rows_and_positions(packing: EpochPacking) -> tuple[int, int]:
    """Return the rows of this rank's batches, and the positions of all batches, including padding."""
    rows, widths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for window in range(packing.plan.windows):
        packed = packing.packed(window, packing.ordered_lengths(window))
        rows.append(np.diff(packed.begins))
        longest = np.maximum.reduceat(packed.tokens, packed.begins[:-1]) if packed.bins else np.zeros(0, np.int64)
        widths.append(-(-longest.astype(np.int64) // packing.rule.multiple) * packing.rule.multiple)
    all_rows = np.concatenate(rows)
    own = [all_rows[low:high].sum() for step in range(packing.steps) for low, high in packing.ranges_of(step)]
    return int(sum(own)), int((all_rows * np.concatenate(widths)).sum())
