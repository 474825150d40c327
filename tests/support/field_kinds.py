"""Every kind of field in one schema, and rows for it in plain Python values, as any engine can hold them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import Bytes, Category, Group, Image, RaggedList, Scalar, Schema, Tensor, Text

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6360000000020001"
    "48afa4710000000049454e44ae426082"
)

KINDS = Schema(
    {
        "id": Scalar("int64"),
        "score": Scalar("float32", null="mask"),
        "small": Scalar("int16"),
        "flag": Scalar("bool"),
        "price": Scalar(pa.decimal128(10, 2)),
        "stamp": Scalar(pa.timestamp("us")),
        "day": Scalar(pa.date32()),
        "vector": Tensor("float32", (2, 3)),
        "pixels": Tensor("uint8", (4,), fill=0),
        "listed": Tensor("int32", (3,), storage="list"),
        "tags": RaggedList("int32"),
        "words": RaggedList(Text()),
        "text": Text(fill=""),
        "blob": Bytes(),
        "kind": Category(("a", "b", "c"), fill="a"),
        "image": Image((1, 1, 1)),
        "columns": Group(["x", "y"], Scalar("float32")),
        "packed": Group(["p", "q"], Scalar("float32", fill=-1), storage="packed"),
    }
)


def kind_rows(count: int) -> list[dict[str, Any]]:
    """Rows of plain Python values for `KINDS`."""
    rng = np.random.default_rng(3)
    return [
        {
            "id": i,
            "score": None if i % 5 == 0 else i / 4,
            "small": i % 300,
            "flag": i % 2 == 0,
            "price": Decimal(i) / 4,
            "stamp": dt.datetime(2020, 1, 1) + dt.timedelta(hours=i, microseconds=i),  # noqa: DTZ001
            "day": dt.date(2020, 1, 1) + dt.timedelta(days=i),
            "vector": rng.standard_normal((2, 3)).astype("f4").tolist(),
            "pixels": None if i % 7 == 0 else [i % 256, 1, 2, 3],
            "listed": [i, -i, 0],
            "tags": list(range(i % 4)),
            "words": ["wörd"] * (i % 3),
            "text": None if i % 6 == 0 else f"täxt {i}",
            "blob": bytes([i % 256]) * (i % 5),
            "kind": None if i % 9 == 0 else "abc"[i % 3],
            "image": PNG,
            "x": float(i),
            "y": i / 2,
            "p": None if i % 8 == 0 else i / 8,
            "q": -float(i),
        }
        for i in range(count)
    ]


def stored(directory: Path | str) -> pa.Table:
    """What a data set holds, in the order of `id`."""
    files = sorted(Path(directory).rglob("*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    assert all(table.schema.equals(KINDS.arrow_schema(), check_metadata=True) for table in tables)
    return pa.concat_tables(tables).sort_by("id").combine_chunks()
