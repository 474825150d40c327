"""Numbers that are delivered in another type than the file has: cast by kernels, as Arrow casts them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    DataError,
    Group,
    OutputOptions,
    Ragged,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
)
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.decode import NotDecodedError
from parquet_loader.decode.converters import convert
from parquet_loader.decode.encoded_columns import ValueProblem
from parquet_loader.decode.native.column_reader import Fills
from parquet_loader.decode.native.decodable import WindowForm, decodable_columns
from tests.support.chunks import read_in_steps
from tests.support.examples import examples
from tests.support.footers import metadata_of

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="the kernels are not compiled")

TYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)] + ["float32", "float64"]


def near(power: int) -> st.SearchStrategy[int]:
    return st.builds(lambda sign, by: sign * 2**power + by, st.sampled_from([-1, 1]), st.integers(-2, 2))


INTEGERS = st.integers(-300, 300) | st.sampled_from([7, 8, 15, 16, 24, 25, 31, 32, 53, 54, 63, 64]).flatmap(near)


def values(type_: str) -> st.SearchStrategy[Any]:
    if type_.startswith("float"):
        width = int(type_[5:])
        floats = st.floats(width=width) | INTEGERS.map(float)  # type: ignore[arg-type]
        return floats.map(np.dtype(type_).type)
    limits = np.iinfo(type_)
    return INTEGERS.filter(lambda n: limits.min <= n <= limits.max)


@settings(max_examples=examples(300), deadline=None)
@given(
    data=st.data(),
    stored=st.sampled_from(TYPES),
    delivered=st.sampled_from(TYPES),
    nulls=st.booleans(),
    repeats=st.sampled_from([1, 1, 300]),
    options=st.sampled_from([{}, {"use_dictionary": False}, {"use_dictionary": False, "data_page_version": "2.0"}]),
    page_bytes=st.sampled_from([64, 2**20]),
    steps=st.lists(st.integers(1, 900), max_size=3),
)
def test_kernels_cast_numbers_as_arrow_does_or_leave_them_to_it(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    stored: str,
    delivered: str,
    nulls: bool,
    repeats: int,
    options: dict[str, Any],
    page_bytes: int,
    steps: list[int],
) -> None:
    if stored == delivered:
        return
    one = st.none() | values(stored) if nulls else values(stored)
    some = data.draw(st.lists(one, min_size=1, max_size=12))
    if data.draw(st.booleans()):  # values that probably fit
        some = [n if n is None or n in range(128) else type(n)(7) for n in some]
    array = pa.array(some * repeats, pa.from_numpy_dtype(stored))
    path = tmp_path_factory.mktemp("casts") / "a.parquet"
    pq.write_table(
        pa.table({"x": array}), path, data_page_size=page_bytes, write_batch_size=max(1, page_bytes // 16), **options
    )
    footer, type_ = metadata_of(path), pa.from_numpy_dtype(delivered)
    described = footer.of_row_group(0, ("x",), chunks=True, arrow=False)
    chunks = decodable_columns(described, ["x"], footer.schema.arrow, len(array), {"x": WindowForm(number=type_)})
    assert chunks.names == ["x"]
    field = Scalar(delivered, fill=5)
    out = np.zeros(len(array), delivered)
    fills = Fills.of_columns(["x"], {"x": np.array(5, delivered).tobytes()})

    try:
        expected = convert(pa.chunked_array([array]), field).to_numpy()
    except ValueProblem:
        with pytest.raises(NotDecodedError):
            read_in_steps(path, chunks, fills, out, steps)
        return
    read_in_steps(path, chunks, fills, out, steps)
    assert out.tobytes() == np.ascontiguousarray(expected).tobytes()


def batches(path: Path, schema: Schema, **options: Any) -> dict[str, Any]:
    with BatchedDataLoader(
        path, 100, schema=schema, output_options=OutputOptions(format="numpy"), window_rows=1000, **options
    ) as loader:
        found = [dict(batch) for batch in loader]
    return {
        name: (Ragged.cat if isinstance(array, Ragged) else np.concatenate)([batch[name] for batch in found])
        for name, array in found[0].items()
    }


@pytest.mark.parametrize("filters", [None, [("n", ">", 20)]])
def test_columns_groups_and_rows_are_delivered_in_the_types_of_the_schema(tmp_path: Path, filters: Any) -> None:
    rng = np.random.default_rng(0)
    lists = [rng.random(n % 5).tolist() for n in range(3000)]
    table = pa.table(
        {
            "n": range(3000),
            "x": rng.random(3000),
            "few": rng.integers(0, 9, 3000),
            "a": rng.random(3000),
            "b": pa.array(rng.integers(0, 100, 3000), pa.int16()),
            "row": pa.array([[i, i + 0.5, i + 1 / 3] for i in range(3000)]),
            "list": lists,
            "money": pa.array(np.arange(3000) * 10).cast(pa.decimal128(38, 2)),
            "some": pa.array(np.arange(3000) / 3, mask=np.arange(3000) % 7 == 0),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700, data_page_size=3000, write_batch_size=60)
    schema = Schema(
        {
            "x": Scalar("float32"),
            "few": Scalar("uint8"),
            "g": Group({"a": Scalar("float32"), "b": Scalar("float32")}),
            "row": Tensor("float32", (3,)),
            "money": Scalar("float32"),
            "list": RaggedList("float32"),
            "some": Scalar("float32", null="mask", fill=-1),
        }
    )
    found, first = batches(tmp_path, schema, filters=filters), 21 if filters else 0
    expected = {name: np.asarray(table[name].to_numpy()[first:]) for name in ("x", "few", "a", "b")}
    np.testing.assert_array_equal(found["x"], expected["x"].astype(np.float32))
    np.testing.assert_array_equal(found["few"], expected["few"].astype(np.uint8))
    both = np.stack([expected["a"], expected["b"]], axis=1)
    np.testing.assert_array_equal(found["g"], both.astype(np.float32))
    rows = np.array(table["row"].to_pylist()[first:])
    np.testing.assert_array_equal(found["row"], rows.astype(np.float32))
    np.testing.assert_array_equal(found["money"], np.arange(first, 3000, dtype=np.float32) * 10)
    assert found["list"].offsets.tolist() == np.cumsum([0, *map(len, lists[first:])]).tolist()
    np.testing.assert_array_equal(found["list"].values, np.concatenate(lists[first:]).astype(np.float32))
    valid = np.arange(first, 3000) % 7 != 0
    np.testing.assert_array_equal(found["some_valid"], valid)
    some = np.where(valid, np.arange(first, 3000) / 3, -1)
    np.testing.assert_array_equal(found["some"], some.astype(np.float32))
    dtypes = {name: (array.values if name == "list" else array).dtype.name for name, array in found.items()}
    assert dtypes == {
        **dict.fromkeys(["x", "g", "row", "money", "list", "some"], "float32"),
        "few": "uint8",
        "some_valid": "bool",
    }


@pytest.mark.parametrize("bad", [300, -1])
def test_a_number_that_does_not_fit_names_its_row(tmp_path: Path, bad: int) -> None:
    pq.write_table(pa.table({"x": [1] * 150 + [bad] + [2] * 20}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=f"column 'x', row 150: the value {bad} does not fit uint8"):
        batches(tmp_path, Schema({"x": Scalar("uint8")}))


def test_decimals_become_the_nearest_float32_without_kernels_too() -> None:
    decimals = pa.chunked_array([pa.array([Decimal("-0.10"), Decimal("0.36"), None], pa.decimal128(9, 2))])
    found = convert(decimals, Scalar("float32", fill=1.5))
    assert found.to_pylist() == np.array([-0.1, 0.36, 1.5], np.float32).tolist()


@pytest.mark.parametrize("decimal", [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2)], ids=str)
@pytest.mark.parametrize("integer", ["uint32", "int64", "uint64"])
def test_decimals_of_every_width_become_integers(decimal: pa.DataType, integer: str) -> None:
    decimals = pa.chunked_array([pa.array([Decimal(7), Decimal("73.00"), None], decimal)])
    assert convert(decimals, Scalar(integer, fill=1)).to_pylist() == [7, 73, 1]
    with pytest.raises(ValueProblem, match=r"the value Decimal\('7.50'\) does not fit"):
        convert(pa.chunked_array([pa.array([Decimal("7.50")], decimal)]), Scalar(integer))


@pytest.mark.parametrize("integer", ["int16", "uint64"])
def test_integers_that_float16_rounds_are_refused(tmp_path: Path, integer: str) -> None:
    pq.write_table(pa.table({"x": pa.array([2048, 2049, 1], integer)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column 'x', row 1: the value 2049 does not fit halffloat"):
        batches(tmp_path, Schema({"x": Scalar("float16")}))
    exact = pa.chunked_array([pa.array([2048, None], integer)])
    assert convert(exact, Scalar("float16", fill=2)).to_pylist() == [2048, 2]
