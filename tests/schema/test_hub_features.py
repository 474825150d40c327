"""Features that `datasets` writes into footers are understood: classes, images, audio, arrays of fixed shape.

`data/hub_features.parquet` was written by datasets 5.2.0 and pyarrow 26.0.1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    Bytes,
    Category,
    DataError,
    Image,
    ParquetDataset,
    RaggedList,
    Scalar,
    Schema,
    SchemaError,
    Tensor,
    rewrite_dataset,
    write_dataset,
)

WRITTEN = Path(__file__).parent / "data" / "hub_features.parquet"


def batch_of(source: Any, **options: Any) -> dict[str, Any]:
    with BatchedDataLoader(source, 64, **options) as loader:
        return dict(next(iter(loader)))


def written(path: Path, columns: dict[str, pa.Array], features: Any) -> Path:
    metadata = {b"huggingface": features if isinstance(features, bytes) else as_json(features)}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


def as_json(features: dict[str, Any]) -> bytes:
    return json.dumps({"info": {"features": features}}).encode()


def value(dtype: str) -> dict[str, str]:
    return {"dtype": dtype, "_type": "Value"}


IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def test_a_file_of_datasets_is_read_as_its_features_say() -> None:
    schema = ParquetDataset(WRITTEN).schema
    nan = float("nan")
    expected = {
        "label": Scalar("int64", names=("cat", "dog")),
        "image": Bytes(),
        "images": RaggedList(Bytes()),
        "audio": Bytes(),
        "seq": RaggedList("int32"),
        "fixed": Tensor("float32", (3,), fill=nan, storage="list"),
        "labels": RaggedList(Scalar("int64", names=("a", "b", "c"))),
        "seqdict.a": RaggedList("int32"),
        "a2": Tensor("float32", (2, 3), fill=nan, storage="list"),
        "a3": Tensor("uint8", (2, 3, 4), storage="list"),
        "a4": Tensor("int16", (2, 1, 1, 2), storage="list"),
        "a5": Tensor("bool", (1, 2, 1, 1, 2), storage="list"),
        "dyn": RaggedList(Tensor("int32", (3,), storage="list")),
        "struct.y": Scalar("int64", names=("u", "w")),
        "fixfix": Tensor("int16", (2, 2), storage="list"),
    }
    assert {name: schema[name] for name in expected} == expected
    assert not [name for name in schema if name.endswith((".path", ".bytes"))]


def test_its_values_are_those_that_were_written() -> None:
    batch = batch_of(WRITTEN)
    assert batch["label"].tolist() == [0, 1, 0, 1, 0, 1]
    assert batch["fixed"].tolist() == [[i, 1, 2] for i in range(6)]
    for name, shape in {"a2": (2, 3), "a3": (2, 3, 4), "a4": (2, 1, 1, 2)}.items():
        assert batch[name].tolist() == [np.full(shape, i).tolist() for i in range(6)]
    assert batch["a5"].shape == (6, 1, 2, 1, 1, 2)
    assert [tensor.tolist() for tensor in batch["dyn"].to_list()] == [[[i] * 3] * (i + 1) for i in range(6)]
    assert batch["fixfix"].tolist() == [[[1, 2], [3, 4]]] * 6
    assert batch["audio"].to_list() == [b"RIFF%d" % i for i in range(6)]
    assert all(data.startswith(b"\x89PNG") for data in batch["image"].to_list())
    assert [len(images) for images in batch["images"].to_list()] == [0, 1, 2, 0, 1, 2]
    assert batch["tr.de"].to_list() == ["ja"] * 6


def test_an_image_is_decoded_if_the_schema_says_so() -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    schema = Schema({"image": Image((4, 4, 3))}, extra="infer")
    batch = batch_of(WRITTEN, schema=schema, columns=["image", "label"])
    assert batch["image"].shape == (6, 4, 4, 3)
    assert batch["image"][0].flatten().tolist() == list(range(48))


def test_the_members_of_an_image_are_read_if_they_are_named() -> None:
    batch = batch_of(WRITTEN, columns=["image.path", "image.bytes"])
    assert batch["image.path"].to_list() == [f"{i}.png" for i in range(6)]
    assert batch["image.bytes"].to_list() == batch_of(WRITTEN, columns=["image"])["image"].to_list()


def test_an_image_that_is_only_a_path_is_an_error_that_names_it(tmp_path: Path) -> None:
    images = pa.array([{"bytes": b"1", "path": None}, {"bytes": None, "path": "two.png"}], IMAGE)
    path = written(tmp_path / "a.parquet", {"image": images}, {"image": {"_type": "Image"}})
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, column 'image', row 1: .*only a path"):
        batch_of(path)
    batch = batch_of(path, schema=Schema({"image": Bytes(null="mask")}))
    assert (batch["image"].to_list(), batch["image_valid"].tolist()) == ([b"1", b""], [True, False])


def test_a_label_without_a_name_is_delivered(tmp_path: Path) -> None:
    label = {"names": ["no", "yes"], "_type": "ClassLabel"}
    path = written(tmp_path / "a.parquet", {"label": pa.array([1, -1, 0])}, {"label": label})
    assert batch_of(path)["label"].tolist() == [1, -1, 0]


def test_names_are_kept_when_files_are_rewritten(tmp_path: Path) -> None:
    rewrite_dataset(WRITTEN, tmp_path / "copy", columns=["label", "a2"])
    data = ParquetDataset(tmp_path / "copy")
    assert data.schema["label"] == Scalar("int64", names=("cat", "dog"))
    assert Schema.from_json(data.schema.to_json()) == data.schema


def test_files_without_features_are_read_like_those_with_them(tmp_path: Path) -> None:
    label = {"names": ["no", "yes"], "_type": "ClassLabel"}
    written(tmp_path / "a.parquet", {"label": pa.array([1])}, {"label": label})
    pq.write_table(pa.table({"label": [0]}), tmp_path / "b.parquet")
    assert ParquetDataset(tmp_path).schema["label"] == Scalar("int64", names=("no", "yes"))
    assert batch_of(tmp_path)["label"].tolist() == [1, 0]


def test_files_whose_classes_differ_are_not_mixed(tmp_path: Path) -> None:
    for name, names in {"a": ["no", "yes"], "b": ["yes", "no"]}.items():
        label = {"names": names, "_type": "ClassLabel"}
        written(tmp_path / f"{name}.parquet", {"label": pa.array([1])}, {"label": label})
    with pytest.raises(SchemaError, match="'label' differs"):
        batch_of(tmp_path)
    assert batch_of(tmp_path, schema=Schema({"label": Scalar("int64")}))["label"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "features",
    [
        b"not json",
        b"[]",
        b'{"info": 3}',
        b"[" * 20_000,
        as_json({"x": {"_type": "Unheard"}, "y": {"_type": "Array2D", "shape": [2, 2], "dtype": "int64"}}),
        as_json({"x": {"_type": "ClassLabel", "names": "ab"}, "y": {"_type": "Image"}}),
        as_json({"x": {"_type": "Array2D", "shape": ["a", None]}, "y": [value("string"), value("string")]}),
        as_json({"x": {"_type": "List", "feature": value("int64"), "length": 3}, "y": 3}),
        as_json({"x": {"a": {"_type": "ClassLabel", "names": ["n"]}}, "y": {"_type": ["List"]}}),
    ],
)
def test_features_that_are_unknown_or_do_not_fit_say_nothing(tmp_path: Path, features: bytes) -> None:
    path = written(tmp_path / "a.parquet", {"x": pa.array([1, 2]), "y": pa.array([[1], [2, 3]])}, features)
    assert dict(ParquetDataset(path).schema) == {"x": Scalar("int64"), "y": RaggedList("int64")}
    assert batch_of(path)["x"].tolist() == [1, 2]


CLASSES = {"_type": "ClassLabel", "names": ["cat", "dog", "emu"]}
CODES = Schema({"label": Category(["cat", "dog", "emu"], storage="codes")})


@pytest.mark.parametrize("words", [("cat", "dog", "emu"), ("emu", "dog", "cat"), ("ant", "bee", "emu", "dog", "cat")])
@pytest.mark.parametrize("name", ["label", "animal.kind"])
@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_category_reads_labels_by_the_names_of_their_classes(
    tmp_path: Path, words: tuple[str, ...], name: str, is_rewritten: bool
) -> None:
    labels = pa.array([0, 2, 1, 2])
    columns = {"label": labels, "animal": pa.StructArray.from_arrays([labels], ["kind"])}
    source = written(tmp_path / "a.parquet", columns, as_json({"label": CLASSES, "animal": {"kind": CLASSES}}))
    if is_rewritten:
        rewrite_dataset(source, tmp_path / "rewritten")
        source = tmp_path / "rewritten"
    expected = [words.index(word) for word in ("cat", "emu", "dog", "emu")]
    for column, aliases in ((name, ()), ("other", (name,))):
        schema = Schema({column: Category(words, aliases=aliases)})
        assert batch_of(source, schema=schema)[column].tolist() == expected
        if name == "label":
            of_emus = batch_of(source, schema=schema, filters=[(column, "==", "emu")])
            assert of_emus[column].tolist() == [words.index("emu")] * 2


def test_a_category_is_written_by_the_names_of_classes_and_of_codes(tmp_path: Path) -> None:
    schema = Schema({"label": Category(["emu", "dog", "cat"], fill="dog")})
    by_class = pa.table({"label": [0, 2, 1, None]}).replace_schema_metadata(
        {b"huggingface": as_json({"label": CLASSES})}
    )
    write_dataset({"label": ["cat", "emu", "dog", "dog"]}, tmp_path / "codes", CODES)
    by_code = pq.read_table(tmp_path / "codes")
    assert by_code["label"].to_pylist() == [0, 2, 1, 1]
    plain = [pa.table({"label": ["cat", "emu"]}), {"label": np.array([1, 1])}]
    forms: list[Any] = [by_class, by_code, by_class.to_reader(), [by_class], iter([by_code]), by_class.to_batches()]
    forms += [[by_code.to_reader()], pads.dataset(tmp_path / "codes").scanner(), [by_class[:1], by_code[1:]], plain]
    for number, data in enumerate(forms):
        write_dataset(data, tmp_path / str(number), schema)
        assert batch_of(tmp_path / str(number))["label"].tolist() == [2, 0, 1, 1], number
    with pytest.raises(DataError, match=r"field 'label', row 5: the code 3 is not in the vocabulary"):
        write_dataset([by_code, by_class.set_column(0, "label", pa.array([0, 3, 0, 0]))], tmp_path / "more", schema)


def test_tables_of_an_iterable_have_the_schema_of_the_first(tmp_path: Path) -> None:
    write_dataset({"label": ["cat", "emu"]}, tmp_path / "codes", CODES)
    write_dataset({"label": ["cat", "emu"]}, tmp_path / "other", Schema({"label": Category(["emu", "cat"])}))
    write_dataset(
        {"label": ["cat", "emu"]}, tmp_path / "more", Schema({"label": Category(["emu", "cat"], storage="codes")})
    )
    write_dataset([pq.read_table(tmp_path / name) for name in ("codes", "other", "more")], tmp_path / "all")
    assert ParquetDataset(tmp_path / "all").schema == CODES
    assert batch_of(tmp_path / "all")["label"].tolist() == [0, 2] * 3


def test_members_are_written_by_the_names_of_their_classes(tmp_path: Path) -> None:
    nested = pa.table({"s": [{"label": 0}, {"label": 2}]}).replace_schema_metadata(
        {b"huggingface": as_json({"s": {"label": CLASSES}})}
    )
    write_dataset(nested, tmp_path, Schema({"s.label": Category(["emu", "dog", "cat"])}))
    assert batch_of(tmp_path)["s.label"].tolist() == [2, 0]


def test_a_class_that_a_category_lacks_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"label": pa.array([0, 2])}, as_json({"label": CLASSES}))
    with pytest.raises(DataError, match=r"column 'label', row 1: holds 'emu', which is not among the 2 words"):
        batch_of(path, schema=Schema({"label": Category(["cat", "dog"])}))
    assert batch_of(path, schema=Schema({"label": Category([2, 0])}))["label"].tolist() == [1, 0]


def test_lists_of_one_length_are_tensors_whatever_their_type_in_the_file(tmp_path: Path) -> None:
    columns = {"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32()))}
    for kind in ("List", "Sequence"):
        features = {"x": {"feature": value("int32"), "length": 2, "_type": kind}}
        path = written(tmp_path / "a.parquet", columns, features)
        assert batch_of(path)["x"].tolist() == [[1, 2], [3, 4]]


def test_a_row_of_another_shape_than_the_features_say_is_an_error(tmp_path: Path) -> None:
    columns = {"x": pa.array([[[1, 2]], [[3]]], pa.list_(pa.list_(pa.int32())))}
    features = {"x": {"shape": [1, 2], "dtype": "int32", "_type": "Array2D"}}
    with pytest.raises(DataError, match=r"column 'x', row 1"):
        batch_of(written(tmp_path / "a.parquet", columns, features))


def test_images_inside_lists_of_structs_are_bytes(tmp_path: Path) -> None:
    page = pa.struct([("scan", IMAGE), ("number", pa.int32())])
    columns = {"pages": pa.array([[{"scan": {"bytes": b"ab", "path": None}, "number": 1}], []], pa.list_(page))}
    features = {"pages": [{"scan": {"_type": "Image"}, "number": value("int32")}]}
    batch = batch_of(written(tmp_path / "a.parquet", columns, features))
    assert batch["pages.scan"].to_list() == [[b"ab"], []]
    assert [n.tolist() for n in batch["pages.number"].to_list()] == [[1], []]


def test_names_of_a_scalar_are_checked() -> None:
    with pytest.raises(ValueError, match="expected a list of str"):
        Scalar("int64", names="ab")
    with pytest.raises(ValueError, match="only integers have names"):
        Scalar("float32", names=["a"])
