"""`TokenLoader`: batches of token sequences, packed from documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow.fs as pafs

from parquet_loader.collate import Batch, Output
from parquet_loader.common import (
    LOADER_KEYWORDS,
    OutputOptions,
    ReadOptions,
    Shard,
    ShardOptions,
    check_bool,
    check_choice,
    check_columns,
    check_int,
    explains_keywords,
    format_bytes,
    parse_bytes,
)
from parquet_loader.dataset import Dataset, ListedDataset, ReservedMemory, WindowNeeds
from parquet_loader.engine import Engine, NextPlan, Usage, batches_at_once
from parquet_loader.errors import MemoryLimitError, UnsupportedError
from parquet_loader.loader.batched import BatchedDataLoader
from parquet_loader.loader.column_scan import ScanOptions
from parquet_loader.loader.epoch_plan import figures_of_plan
from parquet_loader.loader.epochs.epoch_figures import EpochEngine
from parquet_loader.loader.epochs.resumable_epochs import unchanged_on_error
from parquet_loader.loader.loader_source import list_fixed
from parquet_loader.loader.stats import LoaderStats, with_index
from parquet_loader.loader.tokens.arguments import (
    batching,
    check_supported,
    chosen_keys,
    columns_read,
    roles,
    value_bytes,
    widest,
)
from parquet_loader.loader.tokens.document_source import DocumentSource, document_source
from parquet_loader.loader.tokens.documents import PIECE_BYTES, BatchForm, WindowPacker
from parquet_loader.loader.tokens.epoch_packing import EpochPacking, KeptPackings
from parquet_loader.loader.tokens.lengths import check_lengths_fit
from parquet_loader.loader.tokens.lineage import BatchLineage, lineage_of
from parquet_loader.loader.tokens.packed_output import PackedOutput
from parquet_loader.loader.tokens.sequence_scheduler import SequenceScheduler
from parquet_loader.loader.tokens.sequences import BatchWriter, token_bytes
from parquet_loader.loader.tokens.token_plan import TokenPlan, token_plan
from parquet_loader.loader.tokens.tokenizing import encoder_of
from parquet_loader.plan import Division, Overflow, Pack, Plan, everything, total_pieces, total_tokens
from parquet_loader.read import Filters, LocalCache
from parquet_loader.schema import Schema
from parquet_loader.source import Snapshot, Source, TableLike
from parquet_loader.window import Allocator

if TYPE_CHECKING:
    import torch

# Batches made ahead: their bytes, the least and the most batches, and the divisor of the memory limit for their share.
_AHEAD_BYTES = 48 * 2**20
_LEAST_AHEAD, _MOST_AHEAD = 4, 64
_AHEAD_SHARE = 8


# Names of the length in other libraries.
_LENGTH_KEYWORDS = dict.fromkeys(
    ("seq_len", "seq_length", "sequence_length", "max_length", "max_seq_length", "block_size"),
    "length=<tokens> sets the length of a sequence",
)


class TokenLoader(BatchedDataLoader):
    """Iterate over batches of token sequences of one length, packed from documents of a list column.

    A batch is a dict: ``input_ids`` and ``labels``, int64 ``[B, L]``; ``position_ids`` and ``document_ids``, int32
    ``[B, L]``; ``seq_lens`` and ``cu_seqlens``, int32; ``max_seqlen``, an int; and the columns of `carry`. A *piece* is
    the part of one document in one sequence; `document_ids` are numbers of pieces in the batch, and -1 for padding.

    Documents are packed inside each window of shuffled rows, by their lengths alone. So the sequences do not depend on
    the number of ranks, every rank gets the same number of batches, and a state holds no tokens. The constructor reads
    the lengths once, from the column `lengths` or from `tokens` itself. They take 4 bytes a document of `memory_limit`.
    With `shuffle`, epochs may differ by a few batches; ``len(loader)`` belongs to the epoch that `state_dict` names.

    Epochs, states, ranks, threads and memory are as in `BatchedDataLoader`.

    Args:
        source: As in `BatchedDataLoader`, except a `SampleStore`.
        tokens: The column of token ids: a list of integers; or with `tokenizer`, the column of text.
        length: Tokens of a sequence, L.
        batch_size: Sequences of a batch, B.
        batch_tokens: Tokens of a batch, including padding, instead of `batch_size`; B is the number of sequences that
            fit. With ``pack="by_length"``, B differs between batches.
        pack: ``"best_fit"``: documents share a sequence so that little padding is left. ``"concat"``: documents are
            concatenated and cut wherever a sequence is full. ``"none"``: each sequence has one document.
            ``"by_length"``: each sequence has one document, and a batch has documents of similar length: as many as fit
            into `batch_tokens`, padded to the longest. Ranks then divide whole batches, and `batch_size` is 1.
        overflow: What happens to a document of more than `length` tokens: ``"split"`` delivers every token once;
            ``"crop"`` delivers the first `length`; ``"drop"`` leaves the document out.
        tokenizer: Turns text into tokens in the background: a `tokenizers.Tokenizer`, the path of a
            ``tokenizer.json``, a fast tokenizer of transformers, or `TokenizerOptions` with special tokens. Without
            `lengths`, all documents are tokenized once by the constructor, to count their tokens.
        lengths: A column of integers with the number of tokens of each document; then the constructor need not read
            the tokens. A wrong number raises `DataError` when the document is read.
        boundaries: For rows that are already packed: a column of lists with the first token of each document in the
            row, such as ``seq_start_id``.
        carry: Further columns. Lists with a number for each token (a loss mask) are packed like the tokens, with 0 as
            padding; other columns (a source, an id) are delivered for each piece.
        mask_boundaries: Whether the label of a document's last token is -100, not the next document's first token.
        padding: The token that fills a sequence.
        pad_to_multiple: Makes batches as wide as their longest sequence, rounded up to a multiple of this, instead of
            `length`.
        keys: The names in a batch in addition to `carry`, among them ``"input_ids"``; None for all. The others are not
            computed. The order does not depend on `keys`.
        schema, filters, split, shuffle, seed, window_rows, drop_last: As in `BatchedDataLoader`. `window_rows` counts
            documents; `drop_last` concerns sequences.
        device, memory_limit, shard, num_threads, isolation: As in `BatchedDataLoader`.
        filesystem, progress, read_options, cache: As in `BatchedDataLoader`.
        shard_options: As in `BatchedDataLoader`, for sequences that do not divide evenly.
        output_options: The format, tensors or numpy arrays.

    Raises:
        SchemaError: A column does not have the type that its argument needs.
        ConfigurationError, SourceError, MemoryLimitError, UnsupportedError: As in `BatchedDataLoader`.
    """

    _slices_windows = False

    @explains_keywords(LOADER_KEYWORDS | _LENGTH_KEYWORDS)
    def __init__(
        self,
        source: Source | TableLike | ListedDataset,
        tokens: str = "input_ids",
        *,
        length: int,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        pack: Pack = "best_fit",
        overflow: Overflow = "split",
        tokenizer: Any = None,
        lengths: str | None = None,
        boundaries: str | None = None,
        carry: Sequence[str] | None = None,
        mask_boundaries: bool = False,
        padding: int = 0,
        pad_to_multiple: int | None = None,
        keys: Sequence[str] | None = None,
        schema: Schema | None = None,
        filters: Filters | None = None,
        split: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window_rows: int | None = None,
        drop_last: bool = False,
        device: str | torch.device | None = None,
        memory_limit: int | str = "1GiB",
        shard: Shard | None = None,
        num_threads: int | None = None,
        isolation: Literal["thread", "process"] = "thread",
        filesystem: pafs.FileSystem | None = None,
        progress: bool = False,
        read_options: ReadOptions | None = None,
        cache: LocalCache | None = None,
        shard_options: ShardOptions | None = None,
        output_options: OutputOptions | None = None,
    ) -> None:
        self._own_arguments = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "__class__", "source", "filesystem", "shard", "schema", "split", "cache")
        }
        check_choice("pack", pack, ("best_fit", "concat", "none", "by_length"))
        check_choice("overflow", overflow, ("split", "crop", "drop"))
        check_int("length", length, 1, 2**24)
        check_int("padding", padding, -(2**63), 2**63 - 1)
        check_bool("mask_boundaries", mask_boundaries)
        check_bool("progress", progress)
        if pad_to_multiple is not None:
            check_int("pad_to_multiple", pad_to_multiple, 1, 2**24)
        self._rule, batch_size = batching(length, pack, overflow, batch_size, batch_tokens, pad_to_multiple)
        carried = check_columns(carry if carry is not None and len(carry) else None, "carry") or []
        columns = columns_read(tokens, boundaries, carried, lengths)
        delivered_keys = chosen_keys(keys)
        encoder = None if tokenizer is None else encoder_of(tokenizer)
        check_supported(encoder, boundaries, isolation, shard_options, output_options)
        self._own_arguments["tokenizer"] = encoder
        self._tokenizer = None if encoder is None else encoder.identity
        self._limit_bytes = limit = parse_bytes(memory_limit)
        if isinstance(source, DocumentSource):
            documents = source
        else:
            documents = document_source(
                list_fixed(
                    source,
                    "sequences are planned from the lengths of all documents",
                    schema=schema,
                    columns=None if isinstance(source, ListedDataset) else columns,
                    split=split,
                    filesystem=filesystem,
                    read_options=read_options,
                    cache=cache,
                    shard=shard,
                ),
                columns,
                tokens,
                lengths,
                encoder,
                ScanOptions(filters, shard, limit, num_threads, isolation, progress),
            )
        opened: Any = documents.dataset
        self._lengths, self._origin = documents.lengths, documents.origin
        if self._origin is not None:  # the cache holds tokens, and only those of rows that pass
            encoder, filters = None, None
        aligned, others = roles(opened.schema, tokens, boundaries, carried, is_text=tokenizer is not None)
        self._form = BatchForm(
            tokens=tokens,
            lengths=documents.lengths_column,
            boundaries=boundaries,
            token_columns=aligned,
            document_columns=others,
            masks_boundaries=mask_boundaries,
            padding=padding,
            multiple=self._rule.multiple or pad_to_multiple,
            encoder=encoder,
            keys=delivered_keys,
        )
        position_bytes = token_bytes(delivered_keys) + sum(value_bytes(opened.schema[name]) for name in aligned)
        positions = self._rule.batch_tokens or batch_size * widest(length, pad_to_multiple)
        self._batch_bytes = positions * position_bytes
        self._batches_ahead = _batches_ahead(self._batch_bytes, limit)
        super().__init__(
            opened,
            batch_size,
            filters=filters,
            shuffle=shuffle,
            seed=seed,
            window_rows=window_rows,
            drop_last=drop_last,
            device=device,
            memory_limit=max(1, limit - self._own_bytes),
            shard=shard,
            num_threads=num_threads,
            isolation=isolation,
            progress=progress,
            read_options=read_options if isinstance(opened, Dataset) else None,
            shard_options=shard_options,
            output_options=output_options,
        )
        check_lengths_fit(self._dataset.counts, self._lengths)

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self._rule.length

    @property
    def _own_bytes(self) -> int:
        """The part of the memory limit for lengths, batches ahead, and the block of the last batch delivered."""
        return _own_bytes(self._lengths.tokens.nbytes, self._batch_bytes, self._limit_bytes)

    def _counters(self) -> LoaderStats:
        return with_index(super()._counters(), self._lengths.tokens.nbytes, self._limit_bytes)

    def __len__(self) -> int:
        """Return the number of batches on each rank in the epoch that `state_dict` names."""
        last = self._described_epoch()
        return self._packing(self._next_epoch if last is None else last.position[0]).steps

    def __repr__(self) -> str:
        tokens = int(self._lengths.tokens.sum(dtype=np.int64))
        part = f"rank {self.shard.rank} of {self.shard.world_size}: " if self.shard.world_size > 1 else ""
        return (
            f"TokenLoader({len(self._lengths.tokens)} documents, {tokens} tokens, {part}{len(self)} batches of "
            f"{self._rule.batch_tokens or f'{self.batch_size} x {self.length}'}, {self._rule}"
            f"{', closed' if self._closed else ''})"
        )

    def plan(self) -> TokenPlan:
        """Return figures of the next epoch; reads no more than `window_rows` does."""
        self._check_open()
        packing = self._packing(self._position[0])
        figures = figures_of_plan(packing.figures_plan, self._dataset, self.num_threads)
        packed_bytes = int(self._packing_row_bytes * packing.plan.largest_window_rows)
        return token_plan(packing, figures, figures.predicted_peak_bytes + self._own_bytes + packed_bytes)

    def lineage(self, batch: int, epoch: int | None = None) -> BatchLineage:
        """Return the documents of a batch; reads nothing.

        Args:
            batch: Number of the batch in the epoch.
            epoch: The epoch; default: the one that `state_dict` names.

        Raises:
            ConfigurationError: The epoch has no such batch.
        """
        last = self._described_epoch()
        current = self._next_epoch if last is None else last.position[0]
        packing = self._packing(current if epoch is None else check_int("epoch", epoch, 0, 2**63 - 1))
        check_int("batch", batch, 0, max(0, packing.steps - 1))
        return lineage_of(packing, batch, self._dataset.snapshot, self._origin)

    def seek(self, epoch: int, batch: int) -> None:
        """Start the next iteration at a batch of an epoch; at most two windows are read for its first batch.

        Raises:
            ConfigurationError: the epoch has no such batch.
        """
        epoch = check_int("epoch", epoch, 0, 2**63 - 1)
        self._set_position(epoch, check_int("batch", batch, 0, max(0, self._packing(epoch).steps - 1)))

    def _accept_state(self, state: dict[str, Any]) -> tuple[int, int]:
        self._end_for_state()
        epoch = state.get("epoch") if isinstance(state, dict) else None
        with unchanged_on_error(self):
            if isinstance(epoch, int) and not isinstance(epoch, bool) and 0 <= epoch <= 2**62:
                self._set_position(epoch, 0)  # so that `len` returns the batches of the state's epoch
            return super()._accept_state(state)

    def _begin_part(self, epoch: int, first_batch: int, worker: int, workers: int) -> Iterator[Batch]:
        if workers > 1:
            raise UnsupportedError(
                f"num_workers={workers}: worker {worker} would pack documents by itself; use num_workers=0, because "
                "the loader reads in the background anyway"
            )
        with self._begin_lock():
            self._end_previous()
            plan = self._plan(epoch)
            return self._begin(plan, min(first_batch, plan.batches), self._output)

    # ------------------------------------------------------------------ called by the base class

    @property
    def _steps_differ(self) -> bool:
        return self.shuffle

    def _steps_of(self, epoch: int) -> int:
        return self._packing(epoch).steps

    def _size(self) -> int:
        return total_tokens(self._lengths.tokens, self._rule.length, self._rule.overflow)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        tokenizer = {} if self._tokenizer is None else {"tokenizer": self._tokenizer}
        origin = {} if self._origin is None else self._origin.identity
        return {**super()._identity, "packing": str(self._rule), **tokenizer, **origin}

    @cached_property
    def _memory(self) -> Allocator:
        """The allocator of batches."""
        return self._output.allocator(_blocks_bytes(self._batches_ahead, self._batch_bytes))

    def _use(self, dataset: Dataset) -> None:
        super()._use(dataset)
        self._packings = KeptPackings(
            partial(
                EpochPacking, rule=self._rule, lengths=self._lengths, sharding=self._sharding,
                batch_size=self.batch_size, drop_last=self.drop_last,
            )
        )  # fmt: skip

    def _window_needs(self) -> WindowNeeds:
        own_bytes = partial(_own_bytes, self._lengths.tokens.nbytes, self._batch_bytes)
        reserved = ReservedMemory(self._limit_bytes, own_bytes, "lengths of documents and batches of sequences")
        return WindowNeeds(1, self.shuffle, packing_row_bytes=self._packing_row_bytes, reserved=reserved)

    @property
    def _packing_row_bytes(self) -> float:
        """Bytes that packing takes for each document of a window, on average."""
        tokens, rule = self._lengths.tokens, self._rule
        pieces = total_pieces(tokens, rule.length, rule.overflow)
        return PIECE_BYTES * pieces / max(1, len(tokens))

    def _division(self) -> Division:
        return everything(self._dataset.rows, 1, drop_last=False)

    def _next_plan(self, division: Division, epoch: int) -> NextPlan:
        return NextPlan(division, 1, False, self.shuffle, self.seed, epoch)

    def _packing(self, epoch: int) -> EpochPacking:
        """Return the sequences of an epoch."""
        return self._packings(epoch, lambda: self._next_plan(self._division(), epoch)(self._dataset))

    def _plan(self, epoch: int, division: Division | None = None) -> Plan:  # noqa: ARG002
        return self._packing(epoch).figures_plan

    def _parts_of_epoch(self) -> _PartsOfEpoch:
        return _PartsOfEpoch(
            self._engines(), self._form, self._dataset.snapshot, self.length, self._memory, self._batch_bytes,
            self._batches_ahead,
        )  # fmt: skip

    def _plan_of(self, engine_ahead: Engine) -> Plan:
        return self._plan(engine_ahead.plan.epoch)

    def _engine(self, plan: Plan, first_batch: int = 0, next_plan: NextPlan | None = None) -> EpochEngine:  # noqa: ARG002
        packing = self._packing(plan.epoch)
        if self._reading_process is not None:  # the next epoch may begin in any window, so the child reads none ahead
            return super()._engine(packing.read_plan(first_batch))
        return self._parts_of_epoch().engine(packing, first_batch, is_first=self._figures is None)

    def _opener(self) -> Callable[[Plan], Engine]:
        return partial(_opened_ahead, self._packings, self._parts_of_epoch())

    def _output_of(self, plan: Plan, first_batch: int, output: Output) -> Output:
        parts = self._parts_of_epoch()
        return PackedOutput(parts.packer(self._packing(plan.epoch)), parts.writer, first_batch, output)

    def _copied(self) -> tuple[type[BatchedDataLoader], Any, dict[str, Any]]:
        return (
            TokenLoader,
            DocumentSource(self._dataset, self._lengths, self._form.lengths, self._origin),
            self._own_arguments,
        )


@dataclass(frozen=True, slots=True)
class _PartsOfEpoch:
    """The parts that make the batches of an epoch; does not refer to the loader.

    Attributes:
        engines: Opens an engine.
        form, length, memory: As in `BatchWriter`.
        snapshot: As in `WindowPacker`.
        batch_bytes, most_ahead: As in `SequenceScheduler`.
    """

    engines: partial[Engine]
    form: BatchForm
    snapshot: Snapshot
    length: int
    memory: Allocator
    batch_bytes: int
    most_ahead: int

    def packer(self, packing: EpochPacking) -> WindowPacker:
        return WindowPacker(packing, self.form, self.snapshot)

    @property
    def writer(self) -> BatchWriter:
        at_once = batches_at_once(self.most_ahead, self.batch_bytes)
        return BatchWriter(self.form, self.length, self.memory, self.batch_bytes, at_once)

    def engine(self, packing: EpochPacking, first_batch: int = 0, *, is_first: bool = False) -> Engine:
        return self.engines(
            packing.read_plan(first_batch),
            first_batch=0,
            is_first=is_first,
            batches=partial(self._scheduler, packing, first_batch),
            scattered=self.form.scattered,
        )

    def _scheduler(self, packing: EpochPacking, first_batch: int, usage: Usage) -> SequenceScheduler:
        return SequenceScheduler(
            self.packer(packing), self.writer, first_batch, self.batch_bytes, self.most_ahead, usage
        )


def _opened_ahead(packings: KeptPackings, parts: _PartsOfEpoch, plan: Plan) -> Engine:
    """Open the engine of the next epoch; refers to no loader, so that a worker that calls it keeps none alive."""
    return parts.engine(packings(plan.epoch, lambda: plan))


def _batches_ahead(batch_bytes: int, limit_bytes: int) -> int:
    """Return the number of batches made ahead.

    Raises:
        MemoryLimitError: Two batches take more than half of the memory limit.
    """
    if 4 * batch_bytes > limit_bytes:
        raise MemoryLimitError(
            f"memory_limit={format_bytes(limit_bytes)}: a batch takes {format_bytes(batch_bytes)}, and two may take at "
            f"most half of it; pass at least {format_bytes(4 * batch_bytes)}, or choose a smaller batch"
        )
    return _ahead(batch_bytes, limit_bytes)


def _ahead(batch_bytes: int, limit_bytes: int) -> int:
    wanted = min(max(_LEAST_AHEAD, _AHEAD_BYTES // batch_bytes), _MOST_AHEAD)
    return max(1, min(wanted, limit_bytes // _AHEAD_SHARE // batch_bytes))


def _own_bytes(lengths_bytes: int, batch_bytes: int, limit_bytes: int) -> int:
    """Return the bytes of a limit for lengths and batches."""
    return lengths_bytes + _blocks_bytes(_ahead(batch_bytes, limit_bytes), batch_bytes)


def _blocks_bytes(ahead: int, batch_bytes: int) -> int:
    """Return the bytes of batches ahead and of the block of the last batch delivered."""
    return (ahead + batches_at_once(ahead, batch_bytes)) * batch_bytes
