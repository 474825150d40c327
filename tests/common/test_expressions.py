"""An expression that Arrow pickled is read back as the tree from which it was built."""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, Category, ConfigurationError, Schema, split, split_rows
from parquet_loader.common import Call, FieldRef, Literal, named_columns, nodes, read_expression

X, THREE = FieldRef(("x",)), Literal(pa.scalar(3))


@pytest.mark.parametrize(
    ("expression", "tree"),
    [
        (pc.field("x"), X),
        (pc.scalar(3), THREE),
        (pc.field("x") > 3, Call("greater", (X, THREE), None)),
        (pc.field("x", "y") > 3, Call("greater", (FieldRef(("x", "y")), THREE), None)),
        (pc.field('a "b" (c == d)') > 3, Call("greater", (FieldRef(('a "b" (c == d)',)), THREE), None)),
        (~(pc.field("x") == 'é\n"'), Call("invert", (Call("equal", (X, Literal(pa.scalar('é\n"'))), None),), None)),
        (
            (pc.field("x") < 3) & (pc.field("x") < 3) | pc.field("x"),
            Call("or_kleene", (Call("and_kleene", (Call("less", (X, THREE), None),) * 2, None), X), None),
        ),
    ],
)
def test_calls_columns_and_literals_are_read_in_order(expression: pc.Expression, tree: Any) -> None:
    assert read_expression(expression) == tree


def test_options_are_those_of_their_call() -> None:
    tree = read_expression(pc.field("x").isin([1.5, None]) & pc.field("y").is_null(nan_is_null=True))
    assert isinstance(tree, Call)
    listed, is_null = tree.arguments
    assert isinstance(listed, Call)
    assert isinstance(is_null, Call)
    assert listed.options is not None
    assert listed.options["value_set"].as_py() == [1.5, None]
    assert is_null.options is not None
    assert is_null.options["nan_is_null"].as_py() is True
    assert tree.options is None


def test_deep_expressions_are_read() -> None:
    tree = read_expression(functools.reduce(operator.or_, [pc.field(f"c{n % 7}") == n for n in range(3000)]))
    assert named_columns(tree) == [f"c{n}" for n in range(7)]
    assert sum(isinstance(node, Literal) for node in nodes(tree)) == 3000


def test_columns_that_are_numbered_are_refused_as_filters_since_files_differ(tmp_path: Path) -> None:
    """Without this check, `pc.field(0) > 6` would pass no row."""
    pq.write_table(pa.table({"a": range(10), "b": range(10)}), tmp_path / "a.parquet")
    with pytest.raises(ConfigurationError, match=r"name columns, as in pc.field\('label'\)"):
        BatchedDataLoader(str(tmp_path), 4, filters=pc.field(0) > 6)


@pytest.mark.parametrize(
    ("column", "latest"),
    [
        ("time", pa.scalar(2**62, pa.timestamp("us", "UTC"))),
        ("day", pa.scalar(2**31 - 1, pa.date32())),
        ("zoned", pa.scalar(50, pa.timestamp("us", "No/Such_Zone"))),
    ],
)
def test_times_that_python_has_no_value_for_are_compared(tmp_path: Path, column: str, latest: pa.Scalar) -> None:
    time = pa.array(range(100), pa.timestamp("us", "UTC"))
    day = pa.array(range(100), pa.date32())
    table = pa.table({"time": time, "day": day, "zoned": time, "f": pa.array([0.5] * 100), "word": ["a"] * 100})
    pq.write_table(table, tmp_path / "a.parquet")
    schema = Schema.infer(str(tmp_path))
    for given in (None, Schema({**schema, "word": Category(["a"])})):
        with BatchedDataLoader(str(tmp_path), 8, schema=given, filters=pc.field(column) < latest) as loader:
            assert loader.plan().rows == (50 if column == "zoned" else 100)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (split_rows(0.5, 1), "(parquet_loader.positions-1:rows/1:0 >= 9223372036854775808)"),
        (split_rows(0.5, 1, 7, unit="file"), "(parquet_loader.positions-1:file:7 >= 9223372036854775808)"),
        (split_rows(0.5, 1, unit=20), "(parquet_loader.positions-1:rows/20:0 >= 9223372036854775808)"),
        (split("a:b", 0.5, 1, 3, text=True), "(parquet_loader.splitmix-bytes-1:3:a:b >= 9223372036854775808)"),
    ],
)
def test_filters_are_called_in_states_as_ever(chosen: pc.Expression, text: str) -> None:
    assert str(chosen) == text


def test_a_filter_may_come_before_a_split(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(100), "user": [f"u{n % 10}" for n in range(100)]}), tmp_path / "a.parquet")

    def rows(chosen: pc.Expression) -> set[int]:
        with BatchedDataLoader(str(tmp_path), 8, columns=["n"], filters=chosen) as loader:
            return {row for batch in loader for row in batch["n"].tolist()}

    for one in (split_rows(0, 0.5), split("user", 0, 0.5, text=True), split("n", 0, 0.5)):
        large = pc.field("n") > 50
        assert rows(large & one) == rows(one & large) == {row for row in rows(one) if row > 50}
