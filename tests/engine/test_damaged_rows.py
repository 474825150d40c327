"""`on_error="skip_row"`: a row with damaged media is replaced by another row of its batch, and counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    Bytes,
    DataError,
    Encoded,
    Image,
    OutputOptions,
    ParquetDataset,
    Scalar,
    Schema,
    Shard,
    Text,
)

PillowImage = pytest.importorskip("PIL.Image", reason="Pillow decodes images")

DAMAGED = (3, 17, 18, 19)
SIZE = (4, 5, 3)
NUMPY = OutputOptions(format="numpy")


def picture(number: int) -> bytes:
    out = io.BytesIO()
    PillowImage.fromarray(np.full(SIZE, number, np.uint8)).save(out, "PNG")
    return out.getvalue()


def array(number: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.full((1, 2), number, np.int32))
    return out.getvalue()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """40 rows in four row groups of two files; the images of some are damaged, and the array of row 30."""
    rows = range(40)
    table = pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "name": [f"n{row}" for row in rows],
            "image": [b"damaged" if row in DAMAGED else picture(row) for row in rows],
            "array": [b"damaged" if row == 30 else array(row) for row in rows],
        }
    )
    (tmp_path / "data").mkdir()
    for file in range(2):
        part = table.slice(20 * file, 20)
        pq.write_table(part, tmp_path / "data" / f"{file}.parquet", row_group_size=10)
    return tmp_path / "data"


SCHEMA = Schema({
    "id": Scalar("int64"), "name": Text(), "image": Image(SIZE), "array": Encoded("int32", (1, None), "npy")
})  # fmt: skip


def batches(source: Any, size: int = 8, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    options = {"schema": SCHEMA, "on_error": "skip_row", "output_options": NUMPY, **options}
    with BatchedDataLoader(source, size, **options) as loader:
        return list(loader), loader.stats()


def check_rows(batch: dict[str, Any]) -> None:
    """All columns of a row are those of one sound row."""
    for at, number in enumerate(batch["id"].tolist()):
        assert batch["name"][at] == f"n{number}"
        assert (batch["image"][at] == number).all()
        assert (batch["array"][at] == number).all()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_damaged_rows_are_replaced_by_the_next_sound_row_of_their_batch(source: Path, isolation: str) -> None:
    found, stats = batches(source, isolation=isolation)
    ids = [batch["id"].tolist() for batch in found]
    assert ids[0] == [0, 1, 2, 4, 4, 5, 6, 7]
    assert ids[2] == [16, 20, 20, 20, 20, 21, 22, 23]
    assert ids[3] == [24, 25, 26, 27, 28, 29, 31, 31]
    for batch in found:
        check_rows(batch)
    assert stats.replaced_rows == 5
    where = [(Path(row.file).name, row.row_group, row.row) for row in stats.first_replaced]
    assert sorted(where) == [("0.parquet", 0, 3), ("0.parquet", 1, 7), ("0.parquet", 1, 8), ("0.parquet", 1, 9),
                             ("1.parquet", 1, 0)]  # fmt: skip
    assert "column 'image': 7 bytes that are not a readable" in stats.first_replaced[0].reason
    assert "replaced 5 damaged rows by others of their batches" in str(stats)


def test_the_last_row_of_a_batch_is_replaced_by_its_first_sound_row(source: Path) -> None:
    found, _ = batches(source, 20, columns=["id", "image"], schema=Schema({"id": SCHEMA["id"], "image": Image(SIZE)}))
    assert found[0]["id"][17:].tolist() == [0, 0, 0]


def test_images_of_any_size_are_replaced_too(source: Path) -> None:
    found, stats = batches(source, schema=Schema({"id": SCHEMA["id"], "image": Image()}))
    assert [int(image[0, 0, 0]) for image in found[0]["image"]] == [0, 1, 2, 4, 4, 5, 6, 7]
    assert not np.shares_memory(found[0]["image"][3], found[0]["image"][4])
    assert stats.replaced_rows == 4


def test_ranks_have_equal_steps_and_the_order_is_that_without_damage(source: Path) -> None:
    order: Any = {"shuffle": True, "seed": 5, "window_rows": 20}
    as_bytes = Schema({"id": SCHEMA["id"], "image": Bytes()})
    steps = []
    for rank in range(2):
        shard = Shard(rank, 2)
        with BatchedDataLoader(source, 4, schema=as_bytes, output_options=NUMPY, shard=shard, **order) as loader:
            expected = [batch["id"].tolist() for batch in loader]
        found, _ = batches(source, 4, shard=shard, **order)
        steps.append(len(found))
        for batch, ids in zip(found, expected, strict=True):
            check_rows(batch)
            sound = [number not in (*DAMAGED, 30) for number in ids]
            assert batch["id"][sound].tolist() == [number for number in ids if number not in (*DAMAGED, 30)]
    assert steps[0] == steps[1]


def test_resuming_repeats_the_same_rows(source: Path) -> None:
    options: Any = {"schema": SCHEMA, "on_error": "skip_row", "output_options": NUMPY, "shuffle": True, "seed": 1}
    with BatchedDataLoader(source, 4, **options) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        rest = [batch["id"].tolist() for batch in iterator]
    with BatchedDataLoader(source, 4, **options) as loader:
        loader.load_state_dict(state)
        assert [batch["id"].tolist() for batch in loader] == rest


def test_a_run_that_met_damage_can_go_on_with_skip_row(source: Path) -> None:
    """Windows, and so the state, are the same."""
    options: Any = {"schema": SCHEMA, "output_options": NUMPY, "shuffle": True, "seed": 1}
    with BatchedDataLoader(source, 2, **options) as loader:
        with pytest.raises(DataError):
            list(loader)
        state = loader.state_dict()
    with BatchedDataLoader(source, 2, on_error="skip_row", **options) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 20 - state["batch"]


def test_row_numbers_are_those_of_the_rows_delivered(source: Path) -> None:
    found, _ = batches(source, output_options=OutputOptions(format="numpy", row_numbers="n"))
    for batch in found:
        assert batch["n"].tolist() == batch["id"].tolist()


def test_numbers_of_rows_are_not_delivered_unless_asked_for(source: Path) -> None:
    seen: list[list[str]] = []

    def transform(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        seen.append(list(columns))
        return columns

    found, _ = batches(source, transform=transform)
    assert {tuple(names) for names in seen} == {("id", "name", "image", "array")}
    assert list(found[0]) == ["id", "name", "image", "array"]


def test_a_batch_without_a_sound_row_is_an_error_that_names_a_row(source: Path) -> None:
    with pytest.raises(DataError, match=r"0\.parquet, row group 1, row 7, column 'image': 7 bytes that are not"):
        batches(source, 1, filters=[("id", ">=", 17)])


def test_without_skip_row_the_error_is_raised(source: Path) -> None:
    with pytest.raises(DataError, match=r"column 'image', row 3 of batch 0: 7 bytes that are not a readable"):
        batches(source, on_error="raise")


def test_rows_by_index_raise_the_error_of_the_row(source: Path) -> None:
    with ParquetDataset(source, SCHEMA, on_error="skip_row").rows(output_options=NUMPY) as rows:
        assert rows.take([2, 4])["id"].tolist() == [2, 4]
        with pytest.raises(DataError, match="row group 0, row 3, column 'image'"):
            rows.take([2, 3])


def test_damaged_pages_are_errors_under_skip_row(source: Path) -> None:
    footer = pq.read_metadata(source / "1.parquet").row_group(1).column(0)
    with (source / "1.parquet").open("r+b") as file:
        file.seek(footer.dictionary_page_offset or footer.data_page_offset)
        file.write(b"\xff" * 40)
    with pytest.raises(DataError, match="row group 1"):
        batches(source)


def test_processes_of_transform_replace_the_same_rows(source: Path) -> None:
    def doubled(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        return {**columns, "twice": columns["id"] * 2}

    found, stats = batches(source, transform=doubled, transform_workers=1)
    assert found[2]["twice"].tolist() == [2 * number for number in (16, 20, 20, 20, 20, 21, 22, 23)]
    assert stats.replaced_rows == 5
    with pytest.raises(DataError, match=r"row group 1, row 7, column 'image'"):
        batches(source, 1, transform=doubled, transform_workers=1, filters=[("id", ">=", 17)])
