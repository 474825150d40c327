"""All ranks together against an oracle that reads with plain pyarrow: every row exactly once, in equal steps."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any, Literal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, Shard, ShardOptions
from tests.support import oracle
from tests.support.datasets import Layout, layouts, write_layout
from tests.support.examples import examples

KINDS = ("int8", "text", "ragged")
ONE_ROW = Layout(((), (0, 1), ()), KINDS)
FEW_ROW_GROUPS = Layout(((40,), (), (2, 0)), KINDS, seed=1)


@st.composite
def some_rows(draw: st.DrawFn) -> pc.Expression | None:
    """Filters that empty some files, or all, or none; ids number the rows file by file."""
    match draw(st.sampled_from(["none", "range", "range", "value", "text"])):
        case "range":
            first = draw(st.integers(-1, 300))
            return (pc.field("id") >= first) & (pc.field("id") < first + draw(st.integers(0, 200)))
        case "value":
            return pc.field("int8") > draw(st.integers(-128, 127))
        case "text":
            return pc.field("text") != ""
    return None


@settings(max_examples=examples(60))
@given(
    layout=layouts(kinds=KINDS, most_rows=200),
    filters=some_rows(),
    ranks=st.integers(1, 8),
    batch_size=st.one_of(st.integers(1, 9), st.integers(10, 100)),
    remainder=st.sampled_from(["drop", "pad"]),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    logical=st.booleans(),
)
@example(ONE_ROW, None, 8, 3, "pad", True, False, False)
@example(ONE_ROW, None, 8, 3, "drop", True, False, True)
@example(FEW_ROW_GROUPS, pc.field("id") < 40, 8, 2, "pad", True, False, False)
@example(FEW_ROW_GROUPS, pc.field("id") >= 40, 7, 1, "drop", False, True, False)
def test_all_ranks_together_deliver_the_rows_that_pyarrow_reads(
    layout: Layout,
    filters: pc.Expression | None,
    ranks: int,
    batch_size: int,
    remainder: Literal["drop", "pad"],
    shuffle: bool,
    drop_last: bool,
    logical: bool,
) -> None:
    if logical:  # every rank has the same number of logical shards, and so has every batch of its rows
        ranks, batch_size = 2 ** (ranks.bit_length() - 1), 8 * batch_size
    options = ShardOptions(remainder, logical_shards=8 if logical else None)
    steps: list[list[int]] = []
    seen: Counter[oracle.Row] = Counter()
    ids: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as root:
        write_layout(layout, root)
        whole = oracle.expected_columns(root, filters=filters)
        expected = Counter(oracle.rows_of_columns(whole))
        for rank in range(ranks):
            arguments: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last, "seed": 1}
            with BatchedDataLoader(
                root, batch_size, filters=filters, shard=Shard(rank, ranks), shard_options=options, **arguments
            ) as loader:
                batches = list(loader)
                assert len(batches) == len(loader)
            steps.append([oracle.batch_rows(batch) for batch in batches])
            if batches:
                columns = oracle.delivered_columns(batches)
                seen.update(oracle.rows_of_columns(columns))
                ids.update(columns["id"].values)
    assert all(own == steps[0] for own in steps)
    rows, delivered = expected.total(), seen.total()
    repeated = ids.total() - len(ids)
    left_out = rows - len(ids)
    assert set(seen) <= set(expected)
    assert ids.total() == delivered
    drops = remainder == "drop" or drop_last
    assert left_out < batch_size * ranks if drops and (ranks > 1 or drop_last or logical) else left_out == 0
    assert repeated < (8 if logical else ranks) if remainder == "pad" else repeated == 0
    if not left_out and not repeated:
        assert seen == expected


@pytest.mark.parametrize("window_rows", [None, 16])
@pytest.mark.parametrize("sizes", [(2, 3), (1,) * 13, (40, 41)])
def test_logical_shards_that_begin_at_one_row_of_a_remote_file_are_all_read(
    sizes: tuple[int, ...], window_rows: int | None
) -> None:
    rows = sum(sizes)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema({"id": pa.int64()})) as writer:
        for ids in np.split(np.arange(rows), np.cumsum(sizes)[:-1]):
            writer.write_table(pa.table({"id": ids}))
    memory = fsspec.filesystem("memory")
    memory.pipe(f"/shards-{rows}/a.parquet", sink.getvalue().to_pybytes())
    shards = len(sizes)  # shard 0 is padded by the first row of shard 1, which begins with a row group
    with BatchedDataLoader(
        f"shards-{rows}",
        shards,
        window_rows=window_rows,
        shard=Shard(0, 1),
        shard_options=ShardOptions("pad", logical_shards=shards),
        filesystem=pafs.PyFileSystem(pafs.FSSpecHandler(memory)),
    ) as loader:
        ids = np.concatenate([np.asarray(batch["id"]) for batch in loader])
    assert len(ids) == -(-rows // shards) * shards
    assert set(ids.tolist()) == set(range(rows))
