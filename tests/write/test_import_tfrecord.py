"""TFRecord files of examples become rows with the same values; every damaged byte is found by a checksum."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import Bytes, Image, ParquetDataset, RaggedList, Scalar, SourceError, Tensor, Text
from parquet_loader.write import WriteOptions
from parquet_loader.write.imports import import_tfrecord
from parquet_loader.write.imports.crc32c import crc32c, crc32c_in_python
from parquet_loader.write.imports.protobuf import WireError, fields_of, varints_of
from tests.support.imports import assert_continues_after_an_interruption

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = WriteOptions(row_group_bytes=500, file_bytes=1200)


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Any, *, packed: bool = True) -> bytes:
    """As TensorFlow writes a list: bytes, floats or integers."""
    if isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if isinstance(values[0], float):
        raw = [struct.pack("<f", value) for value in values]
        return field(2, field(1, b"".join(raw)) if packed else b"".join(b"\x0d" + one for one in raw))
    numbers = [varint(value) for value in values]
    return field(3, field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + one for one in numbers))


def example(features: dict[str, Any], **options: Any) -> bytes:
    entries = [
        field(1, name.encode()) + field(2, feature(values, **options) if len(values) else b"")
        for name, values in features.items()
    ]
    return field(1, b"".join(field(1, entry) for entry in entries))


def masked(data: bytes) -> bytes:
    checksum = crc32c_in_python(data, len(data))
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frames(records: list[bytes]) -> bytes:
    heads = [struct.pack("<Q", len(data)) for data in records]
    return b"".join(head + masked(head) + data + masked(data) for head, data in zip(heads, records, strict=True))


def values_of(number: int) -> dict[str, Any]:
    return {
        "image/encoded": [PNG + bytes([number] * 20)],
        "label": [number - 5],
        "name": [f"nameü{number}".encode()],
        "embedding": [float(number), 0.5, -1.0],
        "boxes": [float(n) for n in range(number % 3)],
        "tags": [f"t{n}".encode() for n in range(number % 4)],
        "blob": [b"\xff" + bytes([number])],
    }


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    folder.mkdir()
    for file in range(2):
        content = frames([example(values_of(number)) for number in range(file * 10, file * 10 + 10)])
        (folder / f"train.tfrecord-{file:05}-of-00002").write_bytes(content)
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.concat_tables([pq.read_table(f) for f in sorted(path.iterdir())]).to_pylist()
    return rows


def expected(number: int) -> dict[str, Any]:
    values = values_of(number)
    return {
        "image/encoded": values["image/encoded"][0],
        "label": number - 5,
        "name": f"nameü{number}",
        "embedding": struct.pack("<3f", *values["embedding"]),
        "boxes": values["boxes"],
        "tags": [tag.decode() for tag in values["tags"]],
        "blob": values["blob"][0],
    }


def test_examples_become_rows_in_order(records: Path, tmp_path: Path) -> None:
    report = import_tfrecord(records, tmp_path / "out", options=SMALL)
    found = rows_of(tmp_path / "out")
    assert found == [{name: expected(n)[name] for name in found[0]} for n in range(20)]
    assert report.rows == 20
    assert dict(ParquetDataset(str(tmp_path / "out")).schema) == {
        "image/encoded": Image(),
        "label": Scalar("int64"),
        "name": Text(),
        "embedding": Tensor("float32", (3,)),
        "blob": Bytes(),
        "tags": RaggedList(Text()),
        "boxes": RaggedList("float32"),
    }


@pytest.mark.parametrize("packs", [gzip.compress, zlib.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_read(packs: Any, tmp_path: Path) -> None:
    content = frames([example(values_of(number)) for number in range(30)])
    (tmp_path / "x.tfrecord").write_bytes(packs(content))
    import_tfrecord(tmp_path / "x.tfrecord", tmp_path / "out", columns=["label"])
    assert rows_of(tmp_path / "out") == [{"label": number - 5} for number in range(30)]
    (tmp_path / "x.tfrecord").write_bytes(packs(content)[:-30])
    with pytest.raises(SourceError, match=r"x\.tfrecord"):
        import_tfrecord(tmp_path / "x.tfrecord", tmp_path / "cut")


def test_a_length_like_the_beginning_of_a_gzip_file_is_a_length(tmp_path: Path) -> None:
    data = example({"b": [bytes(0x8B1F - 23)]})
    assert len(data) == 0x8B1F
    (tmp_path / "x.tfrecord").write_bytes(frames([data]))
    import_tfrecord(tmp_path / "x.tfrecord", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [{"b": bytes(0x8B1F - 23)}]


def test_lists_of_one_that_some_records_lack_are_null_and_other_lists_are_empty(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"one": [1], "many": [1, 2]}, {"one": [], "many": []}, {"many": [3]}]
    (tmp_path / "x.tfrecord").write_bytes(frames([example(features) for features in records]))
    import_tfrecord(tmp_path / "x.tfrecord", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [
        {"one": 1, "many": [1, 2]},
        {"one": None, "many": []},
        {"one": None, "many": [3]},
    ]


def test_lists_that_are_not_packed_and_extreme_numbers_are_read(tmp_path: Path) -> None:
    numbers = [0, 1, -1, 127, 128, 2**63 - 1, -(2**63), 300]
    for packed in (True, False):
        content = frames([example({"n": numbers, "f": [1.5, -0.0, float("inf")]}, packed=packed)])
        (tmp_path / f"x{packed}.tfrecord").write_bytes(content)
        import_tfrecord(tmp_path / f"x{packed}.tfrecord", tmp_path / f"out{packed}")
        (row,) = rows_of(tmp_path / f"out{packed}")
        assert np.frombuffer(row["n"], np.int64).tolist() == numbers
        assert np.frombuffer(row["f"], np.float32).tolist() == [1.5, -0.0, float("inf")]


def test_the_checksums_are_those_of_tensorflow() -> None:
    """The usual check value of CRC-32C, and the first record of event files, whose length is 24."""
    assert crc32c(b"123456789", 9) == crc32c_in_python(b"123456789", 9) == 0xE3069283
    assert masked(b"\x18" + bytes(7)) == b"\xa3\x7fK\x22"


@given(st.binary(max_size=100))
def test_the_kernel_and_python_have_the_same_checksum(data: bytes) -> None:
    for length in {len(data), len(data) // 2}:
        assert crc32c(data, length) == crc32c_in_python(data, length)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_packed_numbers_are_read_as_they_were_written(numbers: list[int]) -> None:
    assert varints_of(memoryview(b"".join(map(varint, numbers)))).tolist() == numbers


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    for read in (lambda: list(fields_of(memoryview(data))), lambda: varints_of(memoryview(data))):
        with contextlib.suppress(WireError):
            read()


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    whole = frames([example({"n": [number], "b": [b"x" * 9]}) for number in range(2)])
    path = tmp_path / "x.tfrecord"
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=r"x\.tfrecord"):
            import_tfrecord(path, tmp_path / "out")
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        if cut != len(whole) // 2:  # a file of one whole record
            with pytest.raises(SourceError, match=r"x\.tfrecord: record [01]: "):
                import_tfrecord(path, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.tfrecord"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (field(1, b"") + field(2, field(1, b"")), "SequenceExample, which is not imported"),
        (b"\xff" * 20, "is not a tf.train.Example"),
        (b"just some text", "is not a tf.train.Example"),
        (example({"n": [1]}) + b"\x08\x01", "is not a tf.train.Example"),
    ],
)
def test_other_records_are_refused_by_name(record: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(frames([example({"n": [1]}), record]))
    with pytest.raises(SourceError, match=f"record 1.*{message}"):
        import_tfrecord(tmp_path / "x.tfrecord", tmp_path / "out")


def test_records_without_any_feature_are_nothing_to_import(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(frames([example({}), example({})]))
    with pytest.raises(SourceError, match="nothing to import: none of the 2 records has a value"):
        import_tfrecord(tmp_path / "x.tfrecord", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["x.tfrecord"]


def test_a_missing_source_names_the_files_expected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"expected TFRecord files: .* or a pattern such as 'x-\*\.tfrecord'"):
        import_tfrecord(tmp_path / "none", tmp_path / "out")


def test_a_feature_without_a_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(frames([example({"n": [1]}), example({"": [1]})]))
    with pytest.raises(SourceError, match=r"x\.tfrecord: record 1 has a value whose name is empty"):
        import_tfrecord(tmp_path / "x.tfrecord", tmp_path / "out")


def test_features_of_several_types_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(frames([example({"n": [1]}), example({"n": [1.5]})]))
    with pytest.raises(
        SourceError, match=r"x\.tfrecord: record 1, column 'n': holds float32, and earlier records hold int64"
    ):
        import_tfrecord(tmp_path / "x.tfrecord", tmp_path / "out")


def test_interrupted_the_same_call_finishes_with_the_same_files(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports").mkdir()

    def run(target: Path) -> Any:
        return import_tfrecord(records, target, options=SMALL)

    assert_continues_after_an_interruption(run, tmp_path / "imports", 7, monkeypatch)


def test_the_command_imports_examples(records: Path, tmp_path: Path) -> None:
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from tests.support.command_line import run_here

    done = run_here("import", "tfrecord", records, tmp_path / "out", "--columns", "label", "--json")
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 20)
    assert run_here("import", "tfrecord", tmp_path, tmp_path / "none").returncode == 1
