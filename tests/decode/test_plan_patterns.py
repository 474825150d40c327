"""The plan of a row group that is made from that of another one equals a plan of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, OutputOptions, Schema
from parquet_loader.common import IS_BUILT
from parquet_loader.decode import ChunkPlan, open_chunks
from parquet_loader.decode.native.decodable import DecodableChunks, Line
from parquet_loader.loader.batched import parts_of

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="without kernels no plan is made from another one")

ROWS = 40


def table(seed: int, nulls: str = "", strings: int = 3) -> pa.Table:
    """Return columns of all flat kinds; `nulls` names those with nulls."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "i": rng.integers(0, 100, ROWS),
        "b": rng.integers(0, 2, ROWS).astype(bool),
        "f": rng.normal(size=ROWS).astype(np.float32),
        "n": rng.integers(0, 100, ROWS).astype(np.int16),
        "t": rng.integers(0, 10**15, ROWS).astype("M8[us]"),
        "s": [f"text {n}" for n in rng.integers(0, strings, ROWS)],
    }
    masks = {name: rng.random(ROWS) < 0.3 if name in nulls else None for name in columns}
    return pa.table({name: pa.array(values, mask=masks[name]) for name, values in columns.items()})


def plans_of(root: Path, **options: Any) -> dict[int, tuple[ChunkPlan, ChunkPlan]]:
    """Return the plan of each row group as one epoch makes it, and one made for that row group alone."""
    output = OutputOptions(format="numpy")
    with (
        pytest.MonkeyPatch.context() as patch,
        BatchedDataLoader(root, 10, num_threads=1, output_options=output, **options) as loader,
    ):
        patch.setattr("parquet_loader.engine.read_scheduler.TOGETHER_BYTES", 0)
        assert sum(1 for _ in loader) == len(loader)
        chunks = parts_of(loader).dataset.reader.chunks
        found = {}
        for (index, selection), plan in chunks._plans._entries.items():
            ref = chunks._snapshot.row_group(index)
            footer = chunks._snapshot.footer_of(ref, selection.columns, chunks=True, arrow=False)
            schema = chunks._snapshot.stored_schemas[ref.schema_number]
            path, routes, windows = ref.file.path, selection.routes, selection.window_routes
            opened = open_chunks(path, routes, windows, footer, schema, ref.rows)
            opened.close()
            found[index] = plan, opened.plan
        return found


def described(chunks: DecodableChunks) -> tuple[Any, ...]:
    return chunks.names, chunks.types, chunks.lines.tolist()


def check(found: dict[int, tuple[ChunkPlan, ChunkPlan]]) -> None:
    for made, own in found.values():
        assert described(made.straight) == described(own.straight)
        assert described(made.kernel) == described(own.kernel)
        assert made.kernel.nullable == own.kernel.nullable  # to the window, nulls are found as the rows are decoded
        assert (made.arrow, made.raw, made.stored_bytes) == (own.arrow, own.raw, own.stored_bytes)
        assert (made.deferred, made.is_native, made.groups) == (own.deferred, own.is_native, own.groups)
        assert made.masks.keys() == own.masks.keys()
        are_numbers = [name not in own.fills.viewed for name in own.straight.names]  # others hold addresses
        assert made.fills.values[are_numbers].tobytes() == own.fills.values[are_numbers].tobytes()
        viewed = ({name: held.tobytes() for name, held in plan.fills.viewed.items()} for plan in (made, own))
        assert next(viewed) == next(viewed)


def test_row_groups_that_differ_only_in_places_share_a_pattern(tmp_path: Path) -> None:
    for number in range(3):
        one = pa.concat_tables([table(seed) for seed in range(4 * number, 4 * number + 4)])
        pq.write_table(one.slice(0, 150), tmp_path / f"{number}.parquet", row_group_size=ROWS)
    found = plans_of(tmp_path)
    check(found)
    assert len(found) == 12
    assert len({id(made.fills) for made, _ in found.values()}) == 1  # one plan was made from scratch
    assert (
        len({made.straight.lines[0, Line.VALUES] for made, _ in found.values()}) == 2
    )  # the last of a file has fewer rows


def test_row_groups_with_and_without_empty_lists_share_a_pattern(tmp_path: Path) -> None:
    for number, shortest in enumerate([1, 0]):  # a footer counts empty lists as nulls
        lists = [[row] * (shortest + row % 3) for row in range(4 * ROWS)]
        pq.write_table(pa.table({"l": lists}), tmp_path / f"{number}.parquet", row_group_size=ROWS)
    chunks = [pq.read_metadata(file).row_group(0).column(0) for file in tmp_path.iterdir()]
    assert {chunk.statistics.null_count > 0 for chunk in chunks} == {False, True}
    found = plans_of(tmp_path)
    check(found)
    assert len(found) == 8
    assert len({id(made.fills) for made, _ in found.values()}) == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(
        st.tuples(
            st.sampled_from(["", "i", "fs", "bnt"]),
            st.sampled_from(["snappy", "zstd", "none"]),
            st.booleans(),
            st.sampled_from(["1.0", "2.0"]),
            st.integers(1, 3),
        ),
        min_size=2,
        max_size=5,
    ),
    nulls=st.sampled_from(["fill", "mask"]),
)
def test_a_plan_equals_one_made_for_its_row_group(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[tuple[str, str, bool, str, int]], nulls: Any
) -> None:
    root = tmp_path_factory.mktemp("data")
    for number, (with_nulls, codec, has_words, version, groups) in enumerate(kinds):
        one = pa.concat_tables([table(seed, with_nulls, 3 if has_words else 1000) for seed in range(groups)])
        options: dict[str, Any] = {"compression": codec, "use_dictionary": has_words, "data_page_version": version}
        pq.write_table(one, root / f"{number}.parquet", row_group_size=ROWS, **options)
    found = plans_of(root, schema=Schema.infer(root, nulls=nulls))
    check(found)
    assert len(found) == sum(kind[-1] for kind in kinds)


@pytest.mark.parametrize("order", [1, -1])
def test_files_that_store_one_type_in_two_ways_share_no_pattern(tmp_path: Path, order: int) -> None:
    one = pa.table({"i": range(ROWS), "t": pa.array(range(ROWS), pa.timestamp("ns"))})
    for number, is_int96 in enumerate([False, True][::order]):
        pq.write_table(one, tmp_path / f"{number}.parquet", use_deprecated_int96_timestamps=is_int96, row_group_size=10)
    found = plans_of(tmp_path)
    check(found)
    assert len({id(made.fills) for made, _ in found.values()}) > 1
