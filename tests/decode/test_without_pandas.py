"""Columns are read and written without importing pandas, as pyarrow does, which would delay the first batch."""

from __future__ import annotations

import io
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from textwrap import dedent

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

from parquet_loader.common import fill_null, from_numpy, text_array

READ = """
    import sys
    from parquet_loader import BatchedDataLoader, Bytes, Category, Image, OutputOptions, RaggedList, Scalar, Schema
    from parquet_loader import ParquetDataset, Tensor, Text

    options = OutputOptions(format="numpy")
    filled = {"i": Scalar("int64", fill=1), "s": Text(fill="x"), "y": Bytes(fill=b"x"), "h": Scalar("float16", fill=1)}
    filled |= {"n": Scalar("float64", fill=float("nan")), "m": Scalar("int32", missing=1)}
    masked = {
        "i": Scalar("int64", null="mask"),
        "b": Scalar("bool", null="mask"),
        "s": Text(null="mask"),
        "l": RaggedList("int32", null="mask"),
        "d": Scalar("float64", null="mask"),
        "t": Tensor("float32", (2,), null="mask"),
    }
    converted = {
        "i": Scalar("int64", fill=1),
        "c": Category(["a", "b"], unknown="b"),
        "n": Scalar("float32", null="mask"),
        "w": RaggedList(Text()),
        "part": Text(),
    }
    cropped = {"i": Scalar("int64", fill=1), "p": Image(size=4, crop="random"), "part": Text()}
    for fields in filled, masked, converted, cropped:
        with BatchedDataLoader(sys.argv[1], 3, schema=Schema(fields), output_options=options) as loader:
            assert sum(len(batch["i"]) for batch in loader) == 6
    rows = ParquetDataset(sys.argv[1], schema=Schema(cropped)).take([4, 1], output_options=options)
    assert rows["p"].shape == (2, 4, 4, 3)
    print(sorted({"pandas", "torch"}.intersection(sys.modules)))
"""


def test_a_loader_imports_no_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    png = io.BytesIO()
    PillowImage.fromarray(np.zeros((8, 8, 3), np.uint8)).save(png, "PNG")
    columns = {
        "i": [1, None] * 3,
        "b": [True, None] * 3,
        "s": ["a", None] * 3,
        "y": [b"a", None] * 3,
        "l": pa.array([[1, 2], None] * 3, pa.list_(pa.int32())),
        "h": pa.array([np.float16(1), None] * 3, pa.float16()),
        "n": [0.5, None] * 3,
        "d": pa.array([Decimal("0.5"), None] * 3, pa.decimal128(5, 2)),
        "t": [[0.5, 1.5], None] * 3,
        "c": ["a", "z"] * 3,
        "w": [["a", "b"], []] * 3,
        "p": [png.getvalue()] * 6,
    }
    (tmp_path / "part=x").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "part=x" / "a.parquet", row_group_size=2)
    assert _run(READ, tmp_path) == "[]\n"


WRITE = """
    import sys
    import numpy as np
    from parquet_loader import OutputOptions, ParquetDataset, Ragged, SampleStore, Scalar, Schema, Tensor, write_dataset

    schema = Schema({"i": Scalar("int32"), "f": Scalar("float32"), "b": Scalar("bool"), "x": Tensor("uint8", (2,))})
    batch = {"i": np.arange(6), "f": np.ones(6, "f4"), "b": np.ones(6, "?"), "x": np.ones((6, 2), "u1")}
    with SampleStore(sys.argv[1] + "/store", schema=schema, max_bytes="1GB").writer() as writer:
        writer.write(batch)
    write_dataset({**batch, "l": [np.arange(n) for n in range(6)]}, sys.argv[1] + "/a")
    rows = ParquetDataset(sys.argv[1] + "/a").take([4, 1], output_options=OutputOptions(format="numpy"))
    assert rows["i"].tolist() == [4, 1] and rows["l"][0].tolist() == [0, 1, 2, 3]
    print(sorted({"pandas", "torch"}.intersection(sys.modules)))
"""


def test_writers_of_arrays_and_readers_of_single_rows_import_no_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    assert _run(WRITE, tmp_path) == "[]\n"


def _run(program: str, path: Path) -> str:
    command = [sys.executable, "-c", dedent(program), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
def test_numpy_arrays_become_those_of_pyarrow(dtype: str) -> None:
    values = np.arange(20).astype(dtype)
    for some in values[:0], values, values[3:], values[::2], values[::-1]:
        made = from_numpy(some)
        made.validate(full=True)
        assert made.equals(pa.array(some))


@pytest.mark.parametrize("texts", [[], [None], ["é", None, "", "ab"]])
def test_texts_become_those_of_pyarrow(texts: list[str | None]) -> None:
    assert text_array(texts).equals(pa.array(texts, pa.string()))


FILLS = [
    (pa.int8(), -128),
    (pa.uint64(), 2**64 - 1),
    (pa.float32(), 0.1),
    (pa.float32(), -1),
    (pa.float64(), -0.0),
    (pa.float64(), float("inf")),
    (pa.large_binary(), b"a\0"),
    (pa.large_binary(), b""),
    (pa.bool_(), True),
    (pa.large_string(), "é"),
    (pa.timestamp("us"), 5),
]


@pytest.mark.parametrize(("type_", "fill"), FILLS)
def test_nulls_of_any_type_are_filled_as_arrow_does(type_: pa.DataType, fill: object) -> None:
    array = pa.array([None, None], type_)
    assert fill_null(array, fill).equals(pc.fill_null(array, pa.scalar(fill, type_)))


@pytest.mark.parametrize(("type_", "fill"), [(pa.int8(), 300), (pa.uint8(), -1), (pa.int64(), 2**70)])
def test_a_number_that_does_not_fit_is_an_error(type_: pa.DataType, fill: float) -> None:
    with pytest.raises((pa.ArrowException, OverflowError)):
        fill_null(pa.array([None], type_), fill)
