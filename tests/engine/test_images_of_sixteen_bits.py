"""A PNG of 16 bits a channel is refused by `Image`, in color as in grey, when it is written and when it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, Bytes, DataError, Encoded, Image, Schema, write_dataset
from parquet_loader.schema import encode_array

PIXELS = (np.arange(60).reshape(4, 5, 3) * 1000).astype(np.uint16)
GREY, COLOR = encode_array(PIXELS[:, :, 0], "png"), encode_array(PIXELS, "png")
ALPHA = encode_array(np.concatenate([PIXELS, PIXELS[:, :, :1]], axis=2), "png")
CASES = [
    (GREY, "Encoded('uint16', (None, None), 'png') reads it"),
    (COLOR, "Encoded('uint16', (None, None, 3), 'png') reads it"),
    (ALPHA, "Bytes() reads it"),
]


@pytest.mark.parametrize(("data", "advice"), CASES, ids=["grey", "color", "alpha"])
def test_writing_refuses_it(data: bytes, advice: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        write_dataset(
            {"image": [encode_array(np.zeros((2, 2, 3), np.uint8), "png"), data]},
            tmp_path / "data",
            Schema({"image": Image()}),
        )
    assert "row 1: the image is a PNG of 16 bits a channel, which uint8 cannot hold; " in str(caught.value)
    assert str(caught.value).endswith(advice)


@pytest.mark.parametrize(("data", "advice"), CASES, ids=["grey", "color", "alpha"])
@pytest.mark.parametrize("shape", [(None, None, 3), (4, 5, 3), (None, None, 1)])
def test_reading_refuses_it(
    data: bytes, advice: str, shape: tuple[int | None, int | None, int], tmp_path: Path
) -> None:
    pq.write_table(pa.table({"image": [data]}), tmp_path / "a.parquet")
    with (
        BatchedDataLoader(tmp_path / "a.parquet", 1, schema=Schema({"image": Image(shape)})) as loader,
        pytest.raises(DataError) as caught,
    ):
        next(iter(loader))
    assert "a PNG of 16 bits a channel" in str(caught.value)
    assert str(caught.value).endswith(advice)


def test_what_the_error_names_reads_every_bit(tmp_path: Path) -> None:
    schema = Schema(
        {
            "grey": Encoded("uint16", (None, None), "png"),
            "color": Encoded("uint16", (None, None, 3), "png"),
            "alpha": Bytes(),
        }
    )
    write_dataset([{"grey": GREY, "color": COLOR, "alpha": ALPHA}], tmp_path / "data", schema)
    with BatchedDataLoader(tmp_path / "data", 1) as loader:
        batch = next(iter(loader))
    assert (batch["grey"][0].numpy() == PIXELS[:, :, 0]).all()
    assert (batch["color"][0].numpy() == PIXELS).all()
    assert batch["alpha"][0] == ALPHA
