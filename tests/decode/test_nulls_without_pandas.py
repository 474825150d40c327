"""Nulls are replaced without importing pandas, which pyarrow's own conversions do: it would delay the first batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader.common import fill_null

READ = """
    import sys
    from parquet_loader import BatchedDataLoader, Bytes, OutputOptions, RaggedList, Scalar, Schema, Text

    filled = {"i": Scalar("int64", fill=1), "s": Text(fill="x"), "y": Bytes(fill=b"x"), "h": Scalar("float16", fill=1)}
    masked = {
        "i": Scalar("int64", null="mask"),
        "b": Scalar("bool", null="mask"),
        "s": Text(null="mask"),
        "l": RaggedList("int32", null="mask"),
    }
    for fields in filled, masked:
        with BatchedDataLoader(
            sys.argv[1], 3, schema=Schema(fields), output_options=OutputOptions(format="numpy")
        ) as loader:
            assert sum(len(batch["i"]) for batch in loader) == 6
    print(sorted({"pandas", "torch"}.intersection(sys.modules)))
"""


def test_a_loader_of_columns_with_nulls_imports_no_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    columns = {
        "i": [1, None] * 3,
        "b": [True, None] * 3,
        "s": ["a", None] * 3,
        "y": [b"a", None] * 3,
        "l": pa.array([[1, 2], None] * 3, pa.list_(pa.int32())),
        "h": pa.array([np.float16(1), None] * 3, pa.float16()),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    command = [sys.executable, "-c", dedent(READ), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout == "[]\n", ended.stderr


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
