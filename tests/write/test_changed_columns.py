"""A job whose columns have changed is told all differences and what to do, and so is who reads a struct as an image."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, Image, Scalar, Schema, SchemaError, write_dataset


def test_appending_changed_columns_names_all_differences_and_the_other_way(tmp_path: Path) -> None:
    old = Schema({"id": Scalar("int32"), "x": Scalar("float32"), "gone": Scalar("int8")})
    new = Schema({"id": Scalar("int64"), "x": Scalar("float64"), "new": Scalar("int8")})
    write_dataset({"id": [1], "x": [0.5], "gone": [1]}, tmp_path / "a", old)
    rows = {"id": [2], "x": [1.5], "new": [2]}
    with pytest.raises(SchemaError) as caught:
        write_dataset(rows, tmp_path / "a", new, mode="append")
    for part in (
        "column 'id' is Scalar('int32') there, and would be Scalar('int64')",
        "column 'x' is Scalar('float32') there, and would be Scalar('float64')",
        "would add column 'new', which is not there",
        "needs column 'gone', which the new schema lacks",
        "load both with a schema= whose fields have one type for both, missing=<value> for new columns, and aliases=",
    ):
        assert part in str(caught.value)
    write_dataset(rows, tmp_path / "b", new)
    both = Schema({"id": Scalar("int64"), "x": Scalar("float32"), "new": Scalar("int8", missing=0)})
    with BatchedDataLoader(tmp_path, batch_size=2, schema=both) as loader:
        batch = next(iter(loader))
    assert [batch[name].tolist() for name in both] == [[1, 2], [0.5, 1.5], [0, 2]]


def test_a_struct_read_as_an_image_names_its_member(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table({"image": [{"path": None, "data": b"..."}]}), file)
    with pytest.raises(SchemaError, match=r"cannot be read as Image\(\); name its member instead: 'image\.data'"):
        BatchedDataLoader(file, batch_size=1, schema=Schema({"image": Image()}))


def test_a_loader_given_as_a_train_dataset_names_the_method_to_override(tmp_path: Path) -> None:
    write_dataset({"id": [1]}, tmp_path / "a")
    with BatchedDataLoader(tmp_path / "a", 1) as loader, pytest.raises(TypeError, match="get_train_dataloader"):
        loader[0]
