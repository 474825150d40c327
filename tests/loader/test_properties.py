"""What holds for every data set: each row exactly once, equal values, one order, full batches, bounded windows."""

from __future__ import annotations

import contextlib
import functools
import operator
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader
from parquet_loader.plan.epoch import Plan, plan_epoch
from tests.support import oracle
from tests.support.datasets import Layout, layouts, write_layout
from tests.support.examples import each_kind, examples

bounded = functools.partial(settings, deadline=None, suppress_health_check=[HealthCheck.too_slow])

BATCH_SIZES = st.one_of(st.integers(1, 9), st.integers(10, 500))
WINDOWS = st.one_of(st.none(), st.integers(1, 600))
FOUR_FILES = Layout(((100, 7), (60,), (), (3, 0, 40)), ("float", "text", "ragged"), seed=3)


@contextlib.contextmanager
def written(layout: Layout) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as root:
        write_layout(layout, root)
        yield root


def load(root: str, batch_size: int, **options: Any) -> list[dict[str, Any]]:
    """One epoch's batches."""
    with BatchedDataLoader(root, batch_size, **options) as loader:
        return list(loader)


def ids(batches: Sequence[Mapping[str, Any]]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


def window_rows_for(batch_size: int, window_rows: int | None) -> int | None:
    """A window holds at least one batch."""
    return None if window_rows is None else max(window_rows, batch_size)


# ---- each row exactly once -----------------------------------------------------------------------------------------


@bounded(max_examples=examples(60))
@given(
    layout=layouts(),
    batch_size=BATCH_SIZES,
    shuffle=st.booleans(),
    threads=st.sampled_from([None, 1, 2, 4]),
    window_rows=WINDOWS,
)
def test_every_row_arrives_exactly_once_with_equal_values(
    layout: Layout, batch_size: int, shuffle: bool, threads: int | None, window_rows: int | None
) -> None:
    with (
        written(layout) as root,
        BatchedDataLoader(
            root,
            batch_size,
            shuffle=shuffle,
            num_threads=threads,
            window_rows=window_rows_for(batch_size, window_rows),
        ) as loader,
    ):
        for _ in range(2):
            oracle.assert_epoch_equals(loader, root, ordered=not shuffle)


@each_kind
def test_every_kind_of_column_arrives_with_equal_values_in_every_batch_size(kinds: tuple[str, ...]) -> None:
    with written(Layout(((40, 1, 0), (30,)), kinds, seed=9)) as root:
        for batch_size in (1, 7, 71, 100):
            with BatchedDataLoader(root, batch_size, shuffle=True, window_rows=max(20, batch_size)) as loader:
                oracle.assert_epoch_equals(loader, root)


@bounded(max_examples=examples(15))
@given(layout=layouts(), batch_size=BATCH_SIZES, data=st.data())
def test_only_the_columns_asked_for_arrive(layout: Layout, batch_size: int, data: st.DataObject) -> None:
    names = ["id", *layout.kinds]
    columns = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    with written(layout) as root, BatchedDataLoader(root, batch_size, columns=columns) as loader:
        oracle.assert_epoch_equals(loader, root, ordered=True, columns=columns)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("source", ["directory", "glob", "list", "file url", "one file"])
def test_every_form_of_source_delivers_the_same_rows(source: str, shuffle: bool) -> None:
    with written(FOUR_FILES) as root:
        files = oracle.files_under(root)
        forms: dict[str, Any] = {
            "directory": root,
            "glob": f"{root}/part-*.parquet",
            "list": files,
            "file url": f"file://{root}",
            "one file": files[0],
        }
        expected = files[0] if source == "one file" else root
        with BatchedDataLoader(forms[source], 16, shuffle=shuffle) as loader:
            oracle.assert_epoch_equals(loader, expected, ordered=not shuffle)


# ---- order ---------------------------------------------------------------------------------------------------------


@bounded(max_examples=examples(20))
@given(layout=layouts(kinds=("text",)), batch_size=BATCH_SIZES, window_rows=WINDOWS, seed=st.integers(0, 2**32))
def test_the_order_is_the_same_for_any_number_of_threads(
    layout: Layout, batch_size: int, window_rows: int | None, seed: int
) -> None:
    with written(layout) as root:
        orders = {
            threads: ids(
                load(
                    root,
                    batch_size,
                    shuffle=True,
                    seed=seed,
                    num_threads=threads,
                    window_rows=window_rows_for(batch_size, window_rows),
                )
            )
            for threads in (1, 2, 4)
        }
    assert orders[1] == orders[2] == orders[4]


def test_with_a_window_given_the_order_is_the_same_for_any_memory_limit() -> None:
    with written(FOUR_FILES) as root:
        one, other = (
            ids(load(root, 8, shuffle=True, window_rows=50, memory_limit=limit)) for limit in ("64MiB", "2GiB")
        )
    assert one == other


def test_with_a_window_given_large_row_groups_mix_alike_for_any_memory_limit() -> None:
    with written(Layout(((6000,) * 8,), ("double",), seed=2)) as root:
        options: dict[str, Any] = {"shuffle": True, "window_rows": 3000}
        orders = [ids(load(root, 500, memory_limit=limit, **options)) for limit in ("5MiB", "16MiB", "1GiB")]
    assert orders[0] == orders[1] == orders[2]


@bounded(max_examples=examples(15))
@given(layout=layouts(kinds=("float",)), batch_size=BATCH_SIZES, seed=st.integers(0, 2**63 - 1))
def test_each_epoch_has_its_own_order_and_two_loaders_of_one_seed_agree(
    layout: Layout, batch_size: int, seed: int
) -> None:
    assume(layout.rows >= 20)
    with (
        written(layout) as root,
        BatchedDataLoader(root, batch_size, shuffle=True, seed=seed) as loader,
        BatchedDataLoader(root, batch_size, shuffle=True, seed=seed, num_threads=1) as twin,
    ):
        orders = [ids(list(loader)) for _ in range(3)]
        assert len({tuple(order) for order in orders}) == 3
        assert [ids(list(twin)) for _ in range(3)] == orders
        for epoch in (2, 0, 1):
            twin.set_epoch(epoch)
            assert ids(list(twin)) == orders[epoch]
        twin.set_epoch(1)
        assert [ids(list(twin)), ids(list(twin))] == orders[1:]


def test_another_seed_gives_another_order() -> None:
    with written(FOUR_FILES) as root:
        orders = {tuple(ids(load(root, 10, shuffle=True, seed=seed))) for seed in range(5)}
    assert len(orders) == 5


def test_an_abandoned_epoch_counts_as_one() -> None:
    with written(FOUR_FILES) as root, BatchedDataLoader(root, 10, shuffle=True) as loader:
        orders = [ids(load(root, 10, shuffle=True))]
        next(iter(loader))
        second = ids(list(loader))
        loader.set_epoch(0)
        assert ids(list(loader)) == orders[0]
        loader.set_epoch(1)
        assert ids(list(loader)) == second


def test_rows_of_any_place_can_land_in_the_first_batch() -> None:
    layout = Layout(((50,) * 4, (50,) * 4), (), seed=1)
    seen: set[int] = set()
    with written(layout) as root, BatchedDataLoader(root, 20, shuffle=True) as loader:
        for _ in range(60):
            iterator = iter(loader)
            seen.update(next(iterator)["id"].tolist())
            del iterator
    assert len(seen) > 350


def test_sorted_data_in_giant_row_groups_still_mixes() -> None:
    with tempfile.TemporaryDirectory() as root:
        label = np.repeat(np.arange(4, dtype="i4"), 5000)
        pq.write_table(pa.table({"label": label}), f"{root}/a.parquet", row_group_size=5000)
        with BatchedDataLoader(root, 500, shuffle=True, window_rows=2000) as loader:
            mixes = [len(batch["label"].unique()) for batch in loader]
    assert sum(mixes) / len(mixes) > 2.5


# ---- batches -------------------------------------------------------------------------------------------------------


@bounded(max_examples=examples(30))
@given(layout=layouts(kinds=()), batch_size=BATCH_SIZES, drop_last=st.booleans(), shuffle=st.booleans())
def test_every_batch_but_the_last_is_full_and_their_number_is_known(
    layout: Layout, batch_size: int, drop_last: bool, shuffle: bool
) -> None:
    window_rows = max(batch_size, 40)
    with (
        written(layout) as root,
        BatchedDataLoader(root, batch_size, shuffle=shuffle, drop_last=drop_last, window_rows=window_rows) as loader,
    ):
        expected = [batch_size] * (layout.rows // batch_size)
        if layout.rows % batch_size and not drop_last:
            expected.append(layout.rows % batch_size)
        assert len(loader) == len(expected)
        batches = list(loader)
        assert [oracle.batch_rows(batch) for batch in batches] == expected
        delivered = ids(batches)
        assert len(set(delivered)) == len(delivered) == sum(expected)
        assert set(delivered) <= set(range(layout.rows))


@bounded(max_examples=examples(15))
@given(layout=layouts(), batch_size=BATCH_SIZES, shuffle=st.booleans())
def test_batches_that_the_caller_keeps_never_change(layout: Layout, batch_size: int, shuffle: bool) -> None:
    with (
        written(layout) as root,
        BatchedDataLoader(root, batch_size, shuffle=shuffle, window_rows=max(batch_size, 30)) as loader,
    ):
        kept, seen = [], []
        for _ in range(3):
            for batch in loader:
                kept.append(batch)
                seen.append({name: oracle.column_of(value) for name, value in batch.items()})
    for batch, before in zip(kept, seen, strict=True):
        assert {name: oracle.column_of(value) for name, value in batch.items()} == before


@pytest.mark.parametrize("num_threads", [1, 3])
def test_batches_of_wide_rows_that_the_caller_keeps_never_change(num_threads: int) -> None:
    """Their memory is reused as soon as it is released, and never before."""
    layout = Layout(((40,) * 6, (25, 60)), ("wide", "wide_blob"), seed=6)
    with (
        written(layout) as root,
        BatchedDataLoader(root, 9, shuffle=True, window_rows=50, num_threads=num_threads) as loader,
    ):
        kept, seen = [], []
        for _ in range(4):
            for number, batch in enumerate(loader):
                if number % 3 == 0:
                    kept.append({name: value[2:5] for name, value in batch.items()})
                    seen.append({name: value[2:5].clone() for name, value in batch.items()})
            oracle.assert_epoch_equals(loader, root)
    for batch, before in zip(kept, seen, strict=True):
        for name, value in batch.items():
            assert value.numpy().tobytes() == before[name].numpy().tobytes()


def test_writing_into_a_batch_changes_no_other_batch() -> None:
    with written(FOUR_FILES) as root, BatchedDataLoader(root, 10, num_threads=2) as loader:
        delivered = []
        for batch in loader:
            delivered += batch["id"].tolist()
            batch["id"].fill_(-1)
            batch["ragged"].values.zero_()
        assert delivered == list(range(FOUR_FILES.rows))
        assert ids(list(loader)) == delivered


@pytest.mark.parametrize("kind", ["constant", "fixed", "fixed_blob"])
def test_lists_of_one_length_are_matrices(kind: str) -> None:
    with written(Layout(((40,), (30,)), (kind,))) as root:
        for batch in load(root, 10, shuffle=True):
            assert isinstance(batch[kind], torch.Tensor)
            assert tuple(batch[kind].shape) == (10, {"constant": 3, "fixed": 4, "fixed_blob": 5}[kind])


def test_tensors_are_contiguous() -> None:
    kinds = ("float", "flag", "constant", "fixed", "uint16", "ragged")
    with written(Layout(((40,), (30,)), kinds)) as root:
        for batch in load(root, 8, shuffle=True):
            for value in batch.values():
                tensors = [value] if isinstance(value, torch.Tensor) else [value.values, value.offsets]
                assert all(tensor.is_contiguous() for tensor in tensors)


def test_lists_that_only_average_to_one_length_stay_ragged() -> None:
    """Footers alone show four values for two rows in both row groups."""
    with tempfile.TemporaryDirectory() as root:
        lists = pa.array([[1, 2], [3, 4], [5], [6, 7, 8]], pa.list_(pa.int32()))
        pq.write_table(pa.table({"l": lists}), f"{root}/a.parquet", row_group_size=2)
        for batch_size in (1, 2, 4):
            with BatchedDataLoader(root, batch_size) as loader:
                oracle.assert_epoch_equals(loader, root, ordered=True)


# ---- transforms ----------------------------------------------------------------------------------------------------


@bounded(max_examples=examples(20))
@given(layout=layouts(), batch_size=BATCH_SIZES, shuffle=st.booleans(), window_rows=WINDOWS)
def test_a_transform_that_returns_its_columns_changes_nothing(
    layout: Layout, batch_size: int, shuffle: bool, window_rows: int | None
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "window_rows": window_rows_for(batch_size, window_rows)}
    with (
        written(layout) as root,
        BatchedDataLoader(root, batch_size, transform=lambda columns, rng: columns, **options) as loader,
    ):
        changed = oracle.assert_epoch_equals(loader, root, ordered=not shuffle)
        plain = load(root, batch_size, **options)
        oracle.assert_columns_equal(oracle.delivered_columns(changed), oracle.delivered_columns(plain), ordered=True)


def test_random_numbers_in_a_transform_are_the_same_for_any_threads_and_new_in_each_epoch() -> None:
    def transform(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": columns["id"], "noise": rng.integers(0, 2**62, len(columns["id"]))}

    seen: list[list[list[int]]] = []
    with written(FOUR_FILES) as root:
        for threads in (1, 2, 4):
            options: dict[str, Any] = {"shuffle": True, "transform": transform, "num_threads": threads, "seed": 3}
            with BatchedDataLoader(root, 16, window_rows=50, **options) as loader:
                seen.append([[n for batch in loader for n in batch["noise"].tolist()] for _ in range(2)])
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0][0] + seen[0][1])) == 2 * FOUR_FILES.rows


def test_a_transform_sees_the_rows_of_its_batch_as_numpy() -> None:
    def transform(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        assert isinstance(columns["id"], np.ndarray)
        assert all(isinstance(word, str) for word in columns["text"])
        return {"double": columns["id"] * 2, "length": np.array([len(word) for word in columns["text"]])}

    with written(FOUR_FILES) as root:
        plain = load(root, 16, shuffle=True)
        changed = load(root, 16, shuffle=True, transform=transform)
    for before, after in zip(plain, changed, strict=True):
        assert after["double"].tolist() == [2 * i for i in before["id"].tolist()]
        assert after["length"].tolist() == [len(word) for word in before["text"].to_list()]


# ---- filters -------------------------------------------------------------------------------------------------------

COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


@st.composite
def filters(draw: st.DrawFn) -> pc.Expression:
    """Expressions over `id`, a float with nulls and NaN, a text and a small integer."""
    compare = draw(st.sampled_from(COMPARISONS))
    leaf = draw(
        st.sampled_from(
            [
                compare(pc.field("id"), draw(st.integers(-1, 300))),
                compare(pc.field("int8"), draw(st.integers(-128, 127))),
                compare(pc.field("float_null"), draw(st.sampled_from([0.0, -0.5, 1.0, float("inf")]))),
                pc.field("float_null").is_null(nan_is_null=draw(st.booleans())),
                pc.field("float_null").is_valid(),
                pc.field("text").isin(draw(st.lists(st.sampled_from(["", "a1", "日本語3", "no such"]), min_size=1))),
                pc.field("flag"),
                pc.field("id").isin(draw(st.lists(st.integers(0, 100), min_size=1, max_size=5))),
            ]
        )
    )
    match draw(st.sampled_from(["leaf", "leaf", "and", "or", "not"])):
        case "and":
            return leaf & draw(filters())
        case "or":
            return leaf | draw(filters())
        case "not":
            return ~leaf
    return leaf


@bounded(max_examples=examples(50))
@given(
    layout=layouts(kinds=("int8", "float_null", "text", "flag", "ragged"), most_rows=200),
    expression=filters(),
    batch_size=BATCH_SIZES,
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_filters_keep_the_rows_that_pyarrow_keeps(
    layout: Layout, expression: pc.Expression, batch_size: int, shuffle: bool, drop_last: bool
) -> None:
    with (
        written(layout) as root,
        BatchedDataLoader(root, batch_size, filters=expression, shuffle=shuffle, drop_last=drop_last) as loader,
    ):
        expected = oracle.expected_columns(root, filters=expression)
        rows = len(expected["id"].values)
        assert len(loader) == (rows // batch_size if drop_last else -(-rows // batch_size))
        batches = list(loader)
        assert len(batches) == len(loader)
        if not drop_last:
            oracle.assert_columns_equal(oracle.delivered_columns(batches), expected, ordered=not shuffle)
        assert all(oracle.batch_rows(batch) == batch_size for batch in batches[:-1])


@each_kind
def test_a_filter_keeps_the_rows_of_every_kind_of_column(kinds: tuple[str, ...]) -> None:
    expression = (pc.field("id") > 13) & (pc.field("id") != 50)
    with (
        written(Layout(((40, 1, 0), (30,)), kinds, seed=10)) as root,
        BatchedDataLoader(root, 7, filters=expression, shuffle=True) as loader,
    ):
        oracle.assert_epoch_equals(loader, root, filters=expression)


def test_row_groups_with_nan_beyond_their_statistics_are_not_pruned() -> None:
    """Statistics leave NaN out, so they say nothing about rows that pass because of it."""
    with tempfile.TemporaryDirectory() as root:
        table = pa.table({"id": range(4), "x": [1.0, float("nan"), 2.0, 3.0]})
        pq.write_table(table, f"{root}/a.parquet", row_group_size=2)
        for expression in (~(pc.field("x") < 5), pc.field("x") != 1.0, ~(pc.field("x") >= 0), pc.is_nan(pc.field("x"))):
            with BatchedDataLoader(root, 2, filters=expression) as loader:
                oracle.assert_epoch_equals(loader, root, ordered=True, filters=expression)


def test_a_filter_may_use_columns_that_are_not_delivered() -> None:
    with written(FOUR_FILES) as root:
        for expression in (pc.field("float") > 0, pc.field("text") != ""):
            with BatchedDataLoader(root, 9, columns=["id"], filters=expression) as loader:
                oracle.assert_epoch_equals(loader, root, ordered=True, columns=["id"], filters=expression)


def test_a_filter_may_use_a_hive_partition() -> None:
    with tempfile.TemporaryDirectory() as root:
        table = pa.table({"id": range(60), "year": [2020 + i % 3 for i in range(60)], "kind": ["a", "b"] * 30})
        pq.write_to_dataset(table, root, partition_cols=["year", "kind"])
        for expression in (pc.field("year") >= 2021, (pc.field("kind") == "a") & (pc.field("id") < 40)):
            with BatchedDataLoader(root, 7, filters=expression, shuffle=True) as loader:
                oracle.assert_epoch_equals(loader, root, filters=expression)


def test_a_filter_on_a_nested_field_keeps_the_rows_that_pyarrow_keeps() -> None:
    with written(Layout(((30, 20),), ("struct",))) as root:
        expression = pc.field("struct", "id") > 0
        with BatchedDataLoader(root, 7, filters=expression) as loader:
            oracle.assert_epoch_equals(loader, root, ordered=True, filters=expression)


def test_row_groups_whose_statistics_rule_them_out_are_not_read() -> None:
    with written(Layout(((100,) * 10,), ("double",))) as root:
        with BatchedDataLoader(root, 10, filters=pc.field("id") >= 900) as loader:
            pruned = list(loader)
            few = loader.stats().bytes_read
        with BatchedDataLoader(root, 10) as loader:
            list(loader)
            everything = loader.stats().bytes_read
    assert ids(pruned) == list(range(900, 1000))
    assert few < everything / 2


def test_a_filter_that_keeps_nothing_is_an_empty_epoch() -> None:
    with written(FOUR_FILES) as root, BatchedDataLoader(root, 9, filters=pc.field("id") < 0) as loader:
        assert len(loader) == 0
        assert list(loader) == []


# ---- windows -------------------------------------------------------------------------------------------------------


@bounded(max_examples=examples(100))
@given(
    rows=st.lists(st.one_of(st.integers(0, 5), st.integers(0, 300)), max_size=20),
    window_rows=st.integers(1, 500),
    open_row_groups=st.integers(1, 12),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 5),
)
def test_a_plan_reads_every_row_once_in_bounded_windows(
    rows: list[int], window_rows: int, open_row_groups: int, shuffle: bool, seed: int, epoch: int
) -> None:
    def make() -> Plan:
        return plan_epoch(
            np.array(rows, dtype=np.int64),
            window_rows=window_rows,
            open_row_groups=open_row_groups,
            batch_size=8,
            drop_last=False,
            shuffle=shuffle,
            seed=seed,
            epoch=epoch,
        )

    plan = make()
    windows = list(plan)
    position = [0] * len(rows)
    for number, window in enumerate(windows):
        assert 0 < sum(piece.rows for piece in window) <= window_rows
        assert sum(piece.rows for piece in window) == plan.window_rows(number)
        for piece in window:
            # Forward only, without a gap: one streaming cursor a row group.
            assert piece.start == position[piece.row_group] < piece.stop
            position[piece.row_group] = piece.stop
        order = plan.order(number)
        if shuffle:
            assert order is not None
            assert sorted(order.tolist()) == list(range(plan.window_rows(number)))
        else:
            assert order is None
    assert position == rows
    assert plan.rows == sum(rows)
    if not shuffle:
        assert [p.row_group for w in windows for p in w] == sorted(p.row_group for w in windows for p in w)
    assert list(make()) == windows


@bounded(max_examples=examples(15))
@given(layout=layouts(kinds=("float",)), batch_size=st.integers(1, 50), window_rows=st.integers(50, 300))
def test_the_dry_run_tells_the_epoch_in_advance(layout: Layout, batch_size: int, window_rows: int) -> None:
    with (
        written(layout) as root,
        BatchedDataLoader(root, batch_size, shuffle=True, window_rows=window_rows) as loader,
    ):
        plan = loader.plan()
        assert plan.rows == layout.rows
        assert plan.steps == len(loader)
        assert sorted(ids(list(loader))) == list(range(layout.rows))
