"""`TokenLoader`: packed sequences against plain Python, over ranks, states and forms of files."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    ArgumentTypeError,
    ConfigurationError,
    DataError,
    MemoryLimitError,
    MixedLoader,
    OutputOptions,
    ParquetDataset,
    ParquetIterable,
    RaggedList,
    ResumeError,
    Scalar,
    Schema,
    SchemaError,
    Shard,
    ShardOptions,
    TokenLoader,
    UnsupportedError,
)
from parquet_loader.loader.tokens.documents import PIECE_BYTES
from tests.support.examples import examples, grid

NUMPY = OutputOptions(format="numpy")
LENGTHS = [5, 0, 17, 3, 40, 1, 8, 8, 2, 31, 16, 9, 64, 7, 0, 12, 16, 33, 4, 20]


def write(folder: Path, lengths: Sequence[int], *, files: int = 2, group: int = 4, id_type: Any = None) -> list[Any]:
    """Write documents; token number `t` of the data set is `t`, so each token tells where it is from."""
    folder.mkdir(exist_ok=True)
    ends = np.cumsum([0, *lengths])
    documents = [list(range(a, b)) for a, b in pairwise(ends.tolist())]
    for number, some in enumerate(np.array_split(np.arange(len(documents)), files)):
        rows = [documents[i] for i in some]
        table = pa.table(
            {
                "input_ids": pa.array(rows, pa.list_(id_type or pa.int32())),
                "weight": pa.array([[t / 2 for t in row] for row in rows], pa.list_(pa.float32())),
                "source": [f"s{i}" for i in some],
                "number": pa.array(some.tolist(), pa.int64()),
                "length": pa.array([len(row) for row in rows], pa.int32()),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=group)
    return documents


def rows_of(batches: Any) -> list[Any]:
    """Each sequence as a tuple of its pieces, each the tuple of its tokens."""
    found = []
    for batch in batches:
        for ids, documents in zip(batch["input_ids"], batch["document_ids"], strict=True):
            pieces = [d for d in np.unique(documents) if d >= 0]
            found.append(tuple(tuple(int(t) for t in ids[documents == d]) for d in pieces))
    return found


def tokens_of(rows: Any) -> list[int]:
    return sorted(token for row in rows for piece in row for token in piece)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


@settings(max_examples=examples(25))
@given(
    lengths=st.lists(st.integers(0, 12) | st.integers(0, 80), min_size=1, max_size=40),
    length=st.integers(1, 40),
    method=st.sampled_from(["best_fit", "concat", "none"]),
    overflow=st.sampled_from(["split", "crop", "drop"]),
    shuffle=st.booleans(),
    batch_size=st.integers(1, 7),
)
def test_each_kept_token_is_delivered_once_with_its_label_position_and_columns(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    length: int,
    method: Any,
    overflow: Any,
    shuffle: bool,
    batch_size: int,
) -> None:
    folder = tmp_path_factory.mktemp("documents")
    documents = write(folder, lengths)
    of_token = {token: number for number, document in enumerate(documents) for token in document}
    kept = [d if overflow == "split" or len(d) <= length else d[: length * (overflow == "crop")] for d in documents]
    with TokenLoader(
        folder, length=length, batch_size=batch_size, pack=method, overflow=overflow, shuffle=shuffle, seed=3,
        window_rows=max(batch_size, 10), carry=["weight", "number"], num_threads=1, output_options=NUMPY, padding=-7,
    ) as loader:  # fmt: skip
        batches = list(loader)
        assert len(batches) == loader.stats().batches
    assert tokens_of(rows_of(batches)) == [t for d in kept for t in d]
    for batch in batches:
        ids, labels, at = batch["input_ids"], batch["labels"], batch["document_ids"]
        assert ids.shape == (len(ids), length)
        assert 0 < len(ids) <= batch_size
        is_padding = at < 0
        assert (ids[is_padding] == -7).all()
        assert (labels[is_padding] == -100).all()
        assert np.array_equal(batch["weight"], np.where(is_padding, 0, ids / 2))
        pieces = [(r, ids[r][at[r] == d], d) for r in range(len(ids)) for d in np.unique(at[r]) if d >= 0]
        assert [d for *_, d in pieces] == list(range(len(pieces)))
        assert batch["seq_lens"].tolist() == [len(tokens) for _, tokens, _ in pieces]
        for row, tokens, d in pieces:
            assert np.array_equal(tokens, np.arange(tokens[0], tokens[0] + len(tokens)))  # of one document, in order
            number = of_token[tokens[0]]
            assert batch["number"][d] == number
            assert batch["position_ids"][row][at[row] == d].tolist() == list(range(len(tokens)))
            last = int(np.flatnonzero(at[row] == d)[-1])
            following = last + 1 if last + 1 < length and at[row][last + 1] >= 0 else None
            expected = [*tokens[1:], -100 if following is None else ids[row][following]]
            if tokens[-1] != documents[number][-1]:
                expected[-1] = tokens[-1] + 1  # the document's next token is in another sequence
            assert labels[row][at[row] == d].tolist() == expected
        flat, ends = at.reshape(-1), batch["cu_seqlens"]
        assert (ends[0], ends[-1]) == (0, ids.size)
        assert ends.tolist() == sorted({*ends.tolist()})
        changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
        row_ends = np.arange(length, ids.size, length)
        assert ends[1:-1].tolist() == np.union1d(changes, row_ends).tolist()
        assert batch["max_seqlen"] == np.diff(ends).max()


def test_sequences_without_shuffle_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "d", [4, 4, 6, 2, 10, 3])
    with TokenLoader(tmp_path / "d", length=8, batch_size=2, output_options=NUMPY) as loader:
        assert rows_of(loader) == [
            ((0, 1, 2, 3), (4, 5, 6, 7)),
            ((8, 9, 10, 11, 12, 13), (14, 15)),
            ((16, 17, 18, 19, 20, 21, 22, 23),),
            ((24, 25), (26, 27, 28)),
        ]


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
        3,
        pytest.param(4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("drop_last", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ranks_get_equally_many_batches_of_the_same_sequences(tmp_path: Path, ranks: int, drop_last: bool) -> None:
    write(tmp_path / "d", LENGTHS)
    arguments: dict[str, Any] = {
        "length": 16,
        "shuffle": True,
        "window_rows": 8,
        "output_options": NUMPY,
        "num_threads": 1,
    }
    with TokenLoader(tmp_path / "d", batch_size=1, **arguments) as whole:
        for epoch in range(2):
            expected = rows_of(whole)
            parts = []
            for rank in range(ranks):
                with TokenLoader(
                    tmp_path / "d", batch_size=3, drop_last=drop_last, shard=Shard(rank, ranks), **arguments
                ) as loader:
                    loader.set_epoch(epoch)
                    steps = len(loader)
                    assert loader.plan().steps == steps
                    batches = list(loader)
                    assert len(batches) == steps
                    parts.append((steps, rows_of(batches)))
            assert len({(steps, len(rows)) for steps, rows in parts}) == 1
            delivered = [row for _, rows in parts for row in rows]
            if drop_last:
                assert set(delivered) <= set(expected)
                assert len(delivered) == len(expected) // (3 * ranks) * 3 * ranks
            else:
                assert set(delivered) == set(expected)
                assert len(delivered) == -(-len(expected) // ranks) * ranks


@grid(
    "remainder, drop_last",
    ["drop", "pad"],
    [False, True],
    everyday=lambda remainder, drop_last: drop_last and remainder == "drop",
)
def test_with_logical_shards_the_order_does_not_depend_on_the_number_of_ranks(
    tmp_path: Path, drop_last: bool, remainder: Any
) -> None:
    documents = write(tmp_path / "d", LENGTHS)

    def make(rank: int, ranks: int) -> TokenLoader:
        return TokenLoader(
            tmp_path / "d", length=16, batch_size=6 // ranks, shuffle=True, window_rows=8, seed=2, num_threads=1,
            drop_last=drop_last, output_options=NUMPY, shard=Shard(rank, ranks),
            shard_options=ShardOptions(logical_shards=6, remainder=remainder),
        )  # fmt: skip

    def steps(ranks: int, state: dict[str, Any] | None) -> tuple[list[list[Any]], list[dict[str, Any]]]:
        """Return the sequences of each step of all ranks, and the state after each step."""
        by_rank, states = [], []
        for rank in range(ranks):
            with make(rank, ranks) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                batches = []
                states = [loader.state_dict()]
                for number, batch in enumerate(loader):
                    assert len(loader.lineage(number if state is None else state["batch"] + number).tokens) == len(
                        batch["seq_lens"]
                    )
                    batches.append(rows_of([batch]))
                    states.append(loader.state_dict())
                by_rank.append(batches)
        assert len({len(batches) for batches in by_rank}) == 1
        return [[row for own in step for row in own] for step in zip(*by_rank, strict=True)], states

    expected, states = steps(1, None)
    if remainder == "pad" and not drop_last:
        assert {t for step in expected for t in tokens_of(step)} == {t for d in documents for t in d}
    for ranks in (2, 3, 6):
        found, others = steps(ranks, None)
        assert found == expected
        assert others == states
    for batch, (ranks, state) in enumerate(zip((3, 2, 6), states, strict=False)):
        found, _ = steps(ranks, state)
        assert found == expected[batch:]


def test_errors_about_memory_name_the_limit_that_was_given_and_one_that_suffices(tmp_path: Path) -> None:
    write(tmp_path / "d", [2000] * 400, group=50)
    arguments: dict[str, Any] = {"length": 512, "batch_size": 16, "window_rows": 400}
    with pytest.raises(MemoryLimitError) as refused:
        TokenLoader(tmp_path / "d", **arguments, memory_limit="12MiB")
    assert str(refused.value).startswith("memory_limit=12.0 MiB cannot hold")
    named = re.search(r"use memory_limit=(\d+)MiB or more$", str(refused.value))
    assert named is not None
    with pytest.raises(MemoryLimitError, match="cannot hold"):
        TokenLoader(tmp_path / "d", **arguments, memory_limit=f"{int(named[1]) - 2}MiB")
    with TokenLoader(tmp_path / "d", **arguments, memory_limit=f"{named[1]}MiB") as loader:
        assert len(list(loader)) == len(loader)


def test_packing_of_short_documents_counts_towards_the_memory_limit(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    lists = pa.ListArray.from_arrays(np.arange(100_001, dtype=np.int32) * 2, np.zeros(200_000, np.int32))
    pq.write_table(pa.table({"input_ids": lists}), tmp_path / "short" / "0.parquet", row_group_size=1000)
    limit = 16 * 2**20
    arguments: dict[str, Any] = {"length": 64, "batch_size": 4, "memory_limit": limit, "output_options": NUMPY}
    with TokenLoader(tmp_path / "short", **arguments) as loader:
        sizing = loader._dataset.sizing
        assert 0.7 * 0.4 * limit < sizing.window_rows * (sizing.row.in_windows + PIECE_BYTES) <= 0.4 * limit


def test_batches_are_written_by_the_workers_within_the_memory_limit(tmp_path: Path) -> None:
    write(tmp_path / "d", [200] * 400, group=50)
    with TokenLoader(
        tmp_path / "d", length=512, batch_size=4, shuffle=True, window_rows=50, memory_limit="4MiB", carry=["weight"],
        output_options=NUMPY,
    ) as loader:  # fmt: skip
        for _ in range(2):
            batches = len(list(loader))
            stats = loader.stats()
            assert batches == stats.batches > 30
            assert stats.cpu_s["process"] > 0
            assert 0 < stats.peak_bytes <= stats.memory_limit_bytes == 4 * 2**20


def test_columns_of_documents_count_as_bytes_of_batches(tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(np.zeros(400 * 1024, np.float32), 1024)
    table = pa.table({"input_ids": pa.array([[1, 2]] * 400, pa.list_(pa.int32())), "vector": vectors})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    with TokenLoader(
        tmp_path, length=80, batch_size=10, carry=["vector"], memory_limit="16MiB", output_options=NUMPY
    ) as loader:
        (batch,) = loader
        stats = loader.stats()
    # The window and the batch, which is a copy of it.
    assert 2 * batch["vector"].nbytes <= stats.peak_bytes <= stats.memory_limit_bytes


def test_the_next_epoch_is_read_ahead_and_is_the_same(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS)
    arguments = dict[str, Any](
        length=16, batch_size=2, shuffle=True, window_rows=6, output_options=NUMPY, shard=Shard(1, 2)
    )
    with TokenLoader(tmp_path / "d", **arguments) as ahead, TokenLoader(tmp_path / "d", **arguments) as fresh:
        for epoch in range(3):
            found = rows_of(ahead)
            assert ahead._ahead[0].plan.epoch == epoch + 1
            assert ahead._ahead[0].has_begun
            fresh.seek(epoch, 0)
            assert rows_of(fresh) == found


def test_a_batch_of_many_windows_is_the_same_with_any_number_of_threads(tmp_path: Path) -> None:
    write(tmp_path / "d", [3, 0, 2, 0, 0, 5, 1] * 12, group=7)
    arguments = dict[str, Any](length=16, batch_size=4, shuffle=True, window_rows=4, output_options=NUMPY)
    found = []
    for threads in (1, 2, 5):
        with TokenLoader(tmp_path / "d", num_threads=threads, **arguments) as loader:
            assert loader.plan().windows >= 3 * loader.plan().steps
            found.append(list(loader))
    for others in found[1:]:
        assert all(same(one, other) for one, other in zip(found[0], others, strict=True))


def test_a_rank_whose_documents_are_few_does_not_end_early(tmp_path: Path) -> None:
    """One long document and many short ones: the rows of some ranks hold next to no tokens."""
    write(tmp_path / "d", [400] + [1] * 30, group=1)
    found = []
    for rank in range(4):
        with TokenLoader(
            tmp_path / "d", length=10, batch_size=2, shard=Shard(rank, 4), window_rows=4, output_options=NUMPY
        ) as loader:
            found.append([len(batch["input_ids"]) for batch in loader])
    assert found[0] == found[1] == found[2] == found[3]
    assert sum(map(sum, found)) >= 43


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_resume_at_each_batch_gives_the_rest(tmp_path: Path, method: Any) -> None:
    write(tmp_path / "d", LENGTHS)

    def make() -> TokenLoader:
        return TokenLoader(
            tmp_path / "d", length=16, batch_size=2, shuffle=True, seed=5, pack=method, window_rows=6,
            carry=["source", "weight"], num_threads=1, shard=Shard(1, 2),
        )  # fmt: skip

    with make() as loader, make() as other:
        epochs = [list(loader), list(loader), list(loader)]
        loader.set_epoch(1)
        iterator = iter(loader)
        for done in range(len(epochs[1]) + 1):
            state = json.loads(json.dumps(loader.state_dict()))
            assert len(json.dumps(state)) <= 1024
            other.load_state_dict(state)
            rest = epochs[1][done:] or epochs[2]
            assert len(other) == (len(epochs[1]) if done < len(epochs[1]) else len(epochs[2]))
            resumed = list(other)
            assert len(resumed) == len(rest)
            for one, two in zip(resumed, rest, strict=True):
                assert one["source"] == two["source"]
                assert same(*({k: v for k, v in b.items() if k != "source"} for b in (one, two)))
            next(iterator, None)
        other.seek(1, 1)
        assert same(*({k: v for k, v in b.items() if k != "source"} for b in (next(iter(other)), epochs[1][1])))


@pytest.mark.slow
def test_a_child_process_and_threads_give_the_same_batches(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS, id_type=pa.uint16())
    arguments: dict[str, Any] = {
        "length": 16,
        "batch_size": 4,
        "shuffle": True,
        "window_rows": 6,
        "carry": ["source", "weight"],
    }
    with (
        TokenLoader(tmp_path / "d", **arguments) as threads,
        TokenLoader(tmp_path / "d", isolation="process", num_threads=1, **arguments) as process,
    ):
        for _ in range(2):
            for one, two in zip(threads, process, strict=True):
                assert one.pop("source").to_list() == two.pop("source").to_list()
                assert same(one, two)


def block_of(array: Any) -> Any:
    """The memory of which an array is a part."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_batches_are_in_blocks_of_one_size_however_many_a_window_has(tmp_path: Path) -> None:
    """A block of another size is new memory, and takes longer to write than one that is used again."""
    lengths = np.random.default_rng(0).integers(1, 64, 2000).tolist()
    write(tmp_path / "d", lengths, group=100)
    with TokenLoader(
        tmp_path / "d", length=32, batch_size=2, shuffle=True, window_rows=150, output_options=NUMPY,
    ) as loader:  # fmt: skip
        blocks = {id(block): block for block in (block_of(batch["input_ids"]) for batch in loader)}
    sizes = [block.nbytes for block in blocks.values()]
    assert len(sizes) > 20
    # Jobs that have far fewer batches than others, because another one took part of a window, have blocks of their own.
    assert sizes.count(max(sizes)) > 0.7 * len(sizes)
    assert max(sizes) == 32 * 2 * 32 * 32  # 32 batches of 2 sequences of 32 tokens, which take 32 bytes at most


def test_batches_that_are_kept_are_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS * 5)
    with TokenLoader(tmp_path / "d", length=16, batch_size=2, output_options=NUMPY, window_rows=10) as loader:
        kept = list(loader)
        assert tokens_of(rows_of(kept)) == list(range(sum(LENGTHS) * 5))


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint16(), pa.int64(), pa.uint64(), pa.uint32()])
def test_ids_of_any_integer_type_and_documents_of_one_length(tmp_path: Path, kind: Any) -> None:
    write(tmp_path / "d", [8] * 12, id_type=kind)
    with TokenLoader(tmp_path / "d", length=20, batch_size=2, carry=["weight"], output_options=NUMPY) as loader:
        batches = list(loader)
    assert tokens_of(rows_of(batches)) == list(range(96))
    assert all(np.array_equal(b["weight"], np.where(b["document_ids"] < 0, 0, b["input_ids"] / 2)) for b in batches)
    assert all(b["input_ids"].dtype == b["labels"].dtype == np.int64 for b in batches)


def test_keys_choose_what_a_batch_has_and_leave_the_order_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS * 3)
    arguments: dict[str, Any] = {"length": 16, "batch_size": 3, "shuffle": True, "window_rows": 12, "carry": ["source"]}
    with TokenLoader(tmp_path / "d", **arguments, output_options=NUMPY) as whole:
        expected = list(whole)
        state = whole.state_dict()
    for keys in (["input_ids"], ["max_seqlen", "input_ids", "labels"], ["document_ids", "input_ids", "cu_seqlens"]):
        with TokenLoader(tmp_path / "d", **arguments, output_options=NUMPY, keys=keys) as some:
            found = list(some)
            some.load_state_dict(state)
        assert len(found) == len(expected)
        assert all(set(batch) == {*keys, "source"} for batch in found)
        assert all(same(batch, {n: b[n] for n in batch}) for batch, b in zip(found, expected, strict=True))


def test_lists_of_one_length_carry_lists_that_are_read_as_lists_of_any_length(tmp_path: Path) -> None:
    write(tmp_path / "d", [8] * 60, files=6)
    schema = Schema({"weight": RaggedList(Scalar("float32"))}, extra="infer")
    with TokenLoader(
        tmp_path / "d", length=20, batch_size=2, carry=["weight"], schema=schema, shuffle=True, output_options=NUMPY
    ) as loader:
        batches = list(loader)
    assert tokens_of(rows_of(batches)) == list(range(480))
    assert all(np.array_equal(b["weight"], np.where(b["document_ids"] < 0, 0, b["input_ids"] / 2)) for b in batches)


def test_columns_are_carried_beside_empty_documents_however_their_lists_are_read(tmp_path: Path) -> None:
    # Kernels write the tokens, with a gap for each empty document; Arrow reads the booleans.
    rows: list[list[int]] = [[], [1, 2, 3], [], [4], [5, 6], []]
    masks = pa.array([[t % 2 == 0 for t in row] for row in rows], pa.list_(pa.bool_()))
    pq.write_table(pa.table({"input_ids": rows, "mask": masks}), tmp_path / "a.parquet", row_group_size=2)
    with TokenLoader(tmp_path, length=3, batch_size=2, carry=["mask"], output_options=NUMPY) as loader:
        batches = list(loader)
    assert tokens_of(rows_of(batches)) == [1, 2, 3, 4, 5, 6]
    assert all(np.array_equal(b["mask"], (b["document_ids"] >= 0) & (b["input_ids"] % 2 == 0)) for b in batches)


def test_the_name_of_a_struct_carries_its_members(tmp_path: Path) -> None:
    meta = pa.array([{"stars": 1, "weight": [0.5, 0.25, 2.0]}, {"stars": 2, "weight": [1.0, 4.0]}])
    pq.write_table(pa.table({"input_ids": [[1, 2, 3], [4, 5]], "meta": meta}), tmp_path / "a.parquet")
    for source in (tmp_path, ParquetDataset(tmp_path)):
        with TokenLoader(source, length=5, batch_size=1, carry=["meta"], output_options=NUMPY) as loader:
            (batch,) = loader
        assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5]]
        assert batch["meta.weight"].tolist() == [[0.5, 0.25, 2.0, 1.0, 4.0]]
        assert batch["meta.stars"].tolist() == [1, 2]


def test_labels_do_not_cross_documents_on_request(tmp_path: Path) -> None:
    write(tmp_path / "d", [3, 2, 5])
    with TokenLoader(
        tmp_path / "d", length=4, batch_size=9, pack="concat", mask_boundaries=True, output_options=NUMPY
    ) as loader:
        (batch,) = loader
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, -100, 4], [-100, 6, 7, 8], [9, -100, -100, -100]]


def test_a_column_of_lengths_takes_the_place_of_reading_tokens(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS)
    arguments: dict[str, Any] = {
        "length": 16,
        "batch_size": 4,
        "shuffle": True,
        "window_rows": 6,
        "output_options": NUMPY,
    }
    with (
        TokenLoader(tmp_path / "d", **arguments) as one,
        TokenLoader(tmp_path / "d", lengths="length", **arguments) as two,
    ):
        assert all(same(a, b) for a, b in zip(one, two, strict=True))
        state = one.state_dict()
        two.load_state_dict(state)
        assert "length" not in next(iter(two))


def test_a_wrong_length_names_the_row(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2], [3], [4, 5, 6]], "length": [2, 1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")
    with (
        TokenLoader(tmp_path, length=4, batch_size=1, lengths="length") as loader,
        pytest.raises(DataError, match=r"a\.parquet.*row 2 .*'length' says 2 tokens, column 'input_ids' has 3"),
    ):
        list(loader)


@pytest.mark.parametrize("wrong", [-1, 2**31, 2**63])
def test_a_length_that_no_document_has_names_the_row(tmp_path: Path, wrong: int) -> None:
    kind = pa.uint64() if wrong > 0 else pa.int64()
    table = pa.table({"input_ids": [[1], [1, 2], [3], [4, 5]], "length": pa.array([1, 2, 1, wrong], kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    with pytest.raises(DataError, match=rf"a\.parquet, row group 1, row 0 .*column 'length' says {wrong} tokens"):
        TokenLoader(tmp_path, length=4, batch_size=1, lengths="length")


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", [pa.list_(pa.uint64()), pa.list_(pa.uint64(), 2)])
def test_an_unsigned_token_that_does_not_fit_int64_names_the_row(tmp_path: Path, kind: Any, shuffle: bool) -> None:
    largest = 2**63 - 1
    ids = [[5, largest], [1, 0], [7, largest + 1], [2, 3]]
    pq.write_table(pa.table({"input_ids": pa.array(ids, kind)}), tmp_path / "a.parquet", row_group_size=3)
    arguments: dict[str, Any] = {"length": 2, "batch_size": 1, "shuffle": shuffle, "output_options": NUMPY}
    message = rf"a\.parquet, row group 0, row 2 .*'input_ids' has the token {largest + 1}, which does not fit int64"
    with TokenLoader(tmp_path, **arguments) as loader, pytest.raises(DataError, match=message):
        list(loader)
    pq.write_table(pa.table({"input_ids": pa.array(ids[:2], kind)}), tmp_path / "a.parquet")
    with TokenLoader(tmp_path, **arguments) as loader:
        assert sorted(batch["input_ids"].tolist() for batch in loader) == [[[1, 0]], [[5, largest]]]


def test_columns_that_are_not_aligned_name_the_row(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2], [3], [4, 5, 6]], "mask": [[1, 1], [], [1, 1, 1]]})
    pq.write_table(table, tmp_path / "a.parquet")
    with (
        TokenLoader(tmp_path, length=4, batch_size=1, carry=["mask"]) as loader,
        pytest.raises(DataError, match=r"row 1 .*'mask' has 0 values for 1 tokens"),
    ):
        list(loader)


@settings(max_examples=examples(20))
@given(
    lengths=st.lists(st.integers(0, 12) | st.integers(0, 80), min_size=1, max_size=40),
    length=st.integers(1, 40),
    more=st.integers(0, 100),
    multiple=st.none() | st.integers(1, 9),
    overflow=st.sampled_from(["split", "crop", "drop"]),
    shuffle=st.booleans(),
    ranks=st.integers(1, 3),
)
def test_batches_by_length_hold_as_many_documents_as_fit_on_equally_many_steps(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    length: int,
    more: int,
    multiple: int | None,
    overflow: Any,
    shuffle: bool,
    ranks: int,
) -> None:
    folder = tmp_path_factory.mktemp("documents")
    documents = write(folder, lengths)
    kept = [d if overflow == "split" or len(d) <= length else d[: length * (overflow == "crop")] for d in documents]
    rounds = multiple or 1
    limit = -(-length // rounds) * rounds + more
    steps, delivered = [], []
    for rank in range(ranks):
        with TokenLoader(
            folder, length=length, batch_tokens=limit, pack="by_length", overflow=overflow, shuffle=shuffle, seed=4,
            pad_to_multiple=multiple, window_rows=12, carry=["weight", "number"], num_threads=2, output_options=NUMPY,
            shard=Shard(rank, ranks),
        ) as loader:  # fmt: skip
            plan = loader.plan()
            batches = list(loader)
            if batches:
                assert [len(loader.lineage(n, 0).tokens) for n in range(len(batches))] == [
                    len(batch["seq_lens"]) for batch in batches
                ]
        assert len(batches) == plan.steps
        assert sum(len(batch["input_ids"]) for batch in batches) == plan.rows
        positions = sum(batch["input_ids"].size for batch in batches)
        if ranks == 1:
            assert plan.fill == pytest.approx(sum(map(len, kept)) / max(1, positions))
        steps.append(len(batches))
        for batch in batches:
            rows, width = batch["input_ids"].shape
            sizes = batch["seq_lens"].tolist()
            assert (len(sizes), rows * width) <= (rows, limit)
            assert sizes == sorted(sizes, reverse=True)
            assert width == -(-sizes[0] // rounds) * rounds
            assert np.array_equal(batch["weight"], np.where(batch["document_ids"] < 0, 0, batch["input_ids"] / 2))
            assert batch["cu_seqlens"][-1] == rows * width
        delivered += batches
    assert len(set(steps)) == 1
    tokens = tokens_of(rows_of(delivered))
    assert set(tokens) == {t for d in kept for t in d}
    if ranks == 1:
        assert len(tokens) == len(set(tokens))


def test_batches_by_length_resume_and_come_from_a_process_too(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS)
    arguments = dict[str, Any](
        length=32, batch_tokens=64, pack="by_length", shuffle=True, window_rows=8, output_options=NUMPY
    )
    with TokenLoader(tmp_path / "d", **arguments) as loader, TokenLoader(tmp_path / "d", **arguments) as other:
        expected = list(loader)
        assert len({batch["input_ids"].shape for batch in expected}) > 3
        loader.set_epoch(0)
        batches = iter(loader)
        for done in range(len(expected)):
            other.load_state_dict(loader.state_dict())
            assert all(same(a, b) for a, b in zip(other, expected[done:], strict=True))
            next(batches)
    with TokenLoader(tmp_path / "d", isolation="process", **arguments) as isolated:
        assert all(same(a, b) for a, b in zip(isolated, expected, strict=True))
    with (
        TokenLoader(tmp_path / "d", **{**arguments, "batch_tokens": 65}) as wider,
        pytest.raises(ResumeError, match="packing"),
    ):
        wider.load_state_dict(loader.state_dict())


def test_rows_that_filters_exclude_are_not_packed(tmp_path: Path) -> None:
    documents = write(tmp_path / "d", LENGTHS)
    wanted = [t for i, d in enumerate(documents) if i % 3 == 0 for t in d]
    numbers = list(range(0, len(documents), 3))
    for filters in (pc.field("number").isin(numbers), [("number", "in", numbers)]):
        with TokenLoader(tmp_path / "d", length=16, batch_size=4, filters=filters, output_options=NUMPY) as loader:
            assert tokens_of(rows_of(loader)) == wanted
            assert loader.plan().tokens == len(wanted)
    data = ParquetDataset(tmp_path / "d", filters=pc.field("number").isin(numbers))
    with TokenLoader(data, length=16, batch_size=4, output_options=NUMPY) as loader:
        assert tokens_of(rows_of(loader)) == wanted


def test_no_documents_give_no_batches(tmp_path: Path) -> None:
    write(tmp_path / "d", [0, 0, 0])
    with TokenLoader(tmp_path / "d", length=16, batch_size=4) as loader:
        assert (len(loader), list(loader), loader.plan().fill) == (0, [], 0.0)
    with TokenLoader(tmp_path / "d", length=16, batch_size=4, filters=[("number", ">", 99)]) as loader:
        assert list(loader) == []


def test_rows_that_are_packed_already_keep_their_documents(tmp_path: Path) -> None:
    """Packed Parquet as NeMo and Megatron write it: ids, a loss mask, and the first token of each document."""
    rows = [list(range(10)), list(range(10, 18)), list(range(18, 27))]
    starts = [[0, 3, 7], [0], [0, 8]]
    masks = [[int(t % 2) for t in row] for row in rows]
    pq.write_table(
        pa.table({"input_ids": rows, "loss_mask": masks, "seq_start_id": starts}), tmp_path / "packed.parquet"
    )
    with TokenLoader(
        tmp_path, length=10, batch_size=3, pack="none", boundaries="seq_start_id", carry=["loss_mask"],
        mask_boundaries=True, output_options=NUMPY,
    ) as loader:  # fmt: skip
        (batch,) = loader
    assert batch["input_ids"].tolist() == [rows[0], [*rows[1], 0, 0], [*rows[2], 0]]
    assert batch["loss_mask"].tolist() == [masks[0], [*masks[1], 0, 0], [*masks[2], 0]]
    assert batch["seq_lens"].tolist() == [3, 4, 3, 8, 8, 1]
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 1, 1, 1, 1, 2, 2, 2], [3] * 8 + [-1] * 2, [4] * 8 + [5, -1]]
    assert batch["labels"][0].tolist() == [1, 2, -100, 4, 5, 6, -100, 8, 9, -100]
    with TokenLoader(
        tmp_path, length=4, batch_size=50, boundaries="seq_start_id", output_options=NUMPY
    ) as loader:  # packed once more
        assert tokens_of(rows_of(loader)) == list(range(27))
    none = pa.array([[], []], pa.list_(pa.int32()))
    pq.write_table(pa.table({"input_ids": [[1, 2], [3]], "seq_start_id": none}), tmp_path / "packed.parquet")
    with TokenLoader(
        tmp_path, length=4, batch_size=2, pack="none", boundaries="seq_start_id", output_options=NUMPY
    ) as loader:
        assert next(iter(loader))["seq_lens"].tolist() == [2, 1]
    pq.write_table(pa.table({"input_ids": [[1, 2]], "seq_start_id": [[0, 3]]}), tmp_path / "packed.parquet")
    with (
        TokenLoader(tmp_path, length=10, batch_size=3, boundaries="seq_start_id") as loader,
        pytest.raises(DataError, match=r"'seq_start_id' has \[0, 3\]; expected rising numbers"),
    ):
        list(loader)


def test_batches_are_as_wide_as_a_multiple_on_request(tmp_path: Path) -> None:
    write(tmp_path / "d", [3, 9, 2, 5, 17, 1])
    with TokenLoader(
        tmp_path / "d", length=64, batch_size=2, pack="none", pad_to_multiple=4, output_options=NUMPY
    ) as loader:
        assert [batch["input_ids"].shape for batch in loader] == [(2, 12), (2, 8), (2, 20)]


def test_a_batch_that_is_wider_than_its_sequences_counts_as_wide_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS)
    wide: dict[str, Any] = {"length": 20, "pad_to_multiple": 16, "output_options": NUMPY}
    with TokenLoader(tmp_path / "d", batch_tokens=100, **wide) as loader:
        assert {batch["input_ids"].shape for batch in loader} == {(3, 32)}
    with pytest.raises(MemoryLimitError, match=r"a batch takes 8\.0 MiB"):
        TokenLoader(tmp_path / "d", length=20, batch_size=2, pad_to_multiple=2**17, memory_limit="16MiB")


def test_lineage_names_the_documents_of_a_batch(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS)
    stored = {p.name: pq.ParquetFile(p) for p in sorted((tmp_path / "d").iterdir())}
    with TokenLoader(
        tmp_path / "d", length=16, batch_size=3, shuffle=True, window_rows=6, output_options=NUMPY, shard=Shard(1, 2)
    ) as loader:
        for number, batch in enumerate(loader):
            seen = loader.lineage(number, epoch=0)
            pieces = zip(seen.paths, seen.row_groups, seen.rows, seen.first_tokens, seen.tokens, strict=True)
            found = [
                stored[Path(path).name].read_row_group(group)["input_ids"][row].as_py()[first : first + count]
                for path, group, row, first, count in pieces
            ]
            at = batch["document_ids"]
            assert found == [batch["input_ids"][at == d].tolist() for d in range(at.max() + 1)]
            assert seen.sequences.tolist() == [int(np.argwhere(at == d)[0][0]) for d in range(at.max() + 1)]
        with pytest.raises(ConfigurationError, match="batch"):
            loader.lineage(10_000)


def test_the_plan_tells_what_packing_does(tmp_path: Path) -> None:
    write(tmp_path / "d", [10, 30, 20])
    with TokenLoader(tmp_path / "d", length=20, batch_size=1, output_options=NUMPY) as loader:
        plan = loader.plan()
        assert (plan.steps, plan.sequences, plan.documents, plan.tokens) == (3, 3, 3, 60)
        assert (plan.fill, plan.split_share, plan.cropped_share) == (1.0, 1 / 3, 0.0)
        assert plan.documents_per_sequence == 4 / 3
    with TokenLoader(tmp_path / "d", length=20, batch_size=1, overflow="crop") as loader:
        assert (loader.plan().cropped_share, loader.plan().split_share) == (10 / 60, 0)
    with TokenLoader(tmp_path / "d", length=25, batch_size=1, pack="concat") as loader:
        assert (loader.plan().sequences, loader.plan().split_share) == (3, 2 / 3)


@pytest.mark.parametrize(
    "change", [{"length": 15}, {"pack": "concat"}, {"overflow": "crop"}, {"batch_size": 3}, {"seed": 1}]
)
def test_a_state_of_other_sequences_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write(tmp_path / "d", LENGTHS)
    arguments: dict[str, Any] = {"length": 16, "batch_size": 2, "shuffle": True, "window_rows": 8}
    with TokenLoader(tmp_path / "d", **arguments) as one, TokenLoader(tmp_path / "d", **(arguments | change)) as two:
        next(iter(one))
        two.seek(0, 2)
        with pytest.raises(ResumeError, match="does not match"):
            two.load_state_dict(one.state_dict())
        assert two.state_dict()["batch"] == 2


def test_a_pickled_loader_continues(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS)
    with TokenLoader(tmp_path / "d", length=16, batch_size=2, shuffle=True, output_options=NUMPY) as loader:
        expected = [list(loader), list(loader)]
        loader.seek(1, 2)
        copy = pickle.loads(pickle.dumps(loader))
        with copy:
            rest = list(copy)
        assert len(rest) == len(expected[1]) - 2
        assert all(same(a, b) for a, b in zip(rest, expected[1][2:], strict=True))


def test_wrong_uses_say_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "d", LENGTHS)
    d, fits = tmp_path / "d", dict[str, Any](length=16, batch_size=2)
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ConfigurationError, "give one of them", {"length": 16}),
        (ConfigurationError, "give one of them", {**fits, "batch_tokens": 64}),
        (ConfigurationError, "at least one sequence", {"length": 16, "batch_tokens": 8}),
        (ConfigurationError, "pack", {**fits, "pack": "first_fit"}),
        (ConfigurationError, "give batch_tokens", {**fits, "pack": "by_length"}),
        (
            ConfigurationError,
            "at least one sequence of 24",
            {
                "length": 17,
                "pack": "by_length",
                "batch_tokens": 20,
                "pad_to_multiple": 8,
            },
        ),
        (ConfigurationError, "overflow", {**fits, "overflow": "wrap"}),
        (ConfigurationError, "length", {**fits, "length": 0}),
        (ConfigurationError, "in the batch already", {**fits, "carry": ["input_ids"]}),
        (SchemaError, "list of integers", {**fits, "tokens": "weight"}),
        (SchemaError, "list of integers", {**fits, "tokens": "number"}),
        (SchemaError, r"list of integers in each row, found Text\(\)$", {**fits, "boundaries": "source"}),
        (ConfigurationError, "this column has the tokens; name", {**fits, "boundaries": "input_ids"}),
        (ConfigurationError, "'input_ids' among them", {**fits, "keys": ["labels"]}),
        (ConfigurationError, "expected some of", {**fits, "keys": ["input_ids", "source"]}),
        (ConfigurationError, "expected some of", {**fits, "keys": [["input_ids"]]}),
        (ConfigurationError, "expected some of", {**fits, "keys": 1}),
        (SchemaError, "missing", {**fits, "carry": ["missing"]}),
        (ArgumentTypeError, "carry='source': expected a list", {**fits, "carry": "source"}),
        (TypeError, "there is no argument 'seq_len'; length=<tokens> sets", {"seq_len": 16, "batch_size": 2}),
        (TypeError, "there is no argument 'batchsize'. Did you mean 'batch_size'", {"length": 16, "batchsize": 2}),
        (SchemaError, "lengths are integers", {**fits, "lengths": "source"}),
        (UnsupportedError, "same number of sequences", {**fits, "shard_options": ShardOptions(remainder="uneven")}),
        (ConfigurationError, "divided evenly", {**fits, "shard_options": ShardOptions(logical_shards=4)}),
        (MemoryLimitError, "a batch takes", {"length": 2**16, "batch_size": 64, "memory_limit": "256MiB"}),
        (UnsupportedError, "lineage", {**fits, "output_options": OutputOptions(row_numbers="n")}),
        (UnsupportedError, "choose format='torch' or", {**fits, "output_options": OutputOptions(format="jax")}),
        (MemoryLimitError, "memory_limit", {**fits, "memory_limit": 40}),
    ]
    for kind, text, arguments in wrong:
        with pytest.raises(kind, match=text):
            TokenLoader(d, **arguments)
    pq.write_table(pa.table({"input_ids": [[1]], "share": [0.5]}), tmp_path / "shares.parquet")
    with pytest.raises(SchemaError, match="has neither; name one of integers or lists"):
        TokenLoader(tmp_path / "shares.parquet", lengths="share", **fits)
    with pytest.raises(UnsupportedError, match="skip"):
        TokenLoader(ParquetDataset(d, on_error="skip"), **fits)
    with TokenLoader(d, **fits) as loader, pytest.raises(ConfigurationError, match="batch"):
        loader.seek(0, len(loader))
    with TokenLoader(d, **fits, shuffle=True) as loader, pytest.raises(UnsupportedError, match="differ by a few"):
        MixedLoader({"d": loader}, {"d": 1}, stop="repeat")
    with TokenLoader(d, length=16, batch_tokens=50) as loader:
        assert loader.batch_size == 3
        assert [len(b["input_ids"]) for b in ParquetIterable(loader)] == [len(b["input_ids"]) for b in loader]
