"""MDS shards become rows with the same values, compressed or not; damage and pickles are refused by name."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import Bytes, Encoded, Image, ParquetDataset, RaggedList, Scalar, SourceError, Tensor, Text
from parquet_loader.write import WriteOptions
from parquet_loader.write.imports import import_mosaicml
from tests.support.imports import assert_continues_after_an_interruption

JPEG = b"\xff\xd8\xff\xe0"
SMALL = WriteOptions(row_group_bytes=700, file_bytes=1500)
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "zstd:3": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
    "br": lambda data: bytes(pa.Codec("brotli").compress(data, asbytes=True)),
    "snappy": lambda data: bytes(pa.Codec("snappy").compress(data, asbytes=True)),
    "gz": gzip.compress,
    "bz2": bz2.compress,
}
ENCODINGS = {
    "id": "int",
    "kind": "uint8",
    "score": "float32",
    "exact": "float64",
    "text": "str",
    "about": "json",
    "photo": "jpeg:90",
    "blob": "bytes",
    "big": "str_int",
    "price": "str_decimal",
    "ratio": "str_float",
    "fixed": "ndarray:int16:2,3",
    "typed": "ndarray:float32",
    "any": "ndarray",
    "raw": "pil",
}
SIZES = {"id": 8, "kind": 1, "score": 4, "exact": 8, "fixed": 12}


def array_of(array: Any, *, typed: bool) -> bytes:
    """As MDS writes arrays whose shape it does not know: types by number, then dimensions and the width of sizes."""
    codes = {"float32": 34, "uint16": 16}
    head = b"" if typed else bytes([codes[array.dtype.name]])
    return bytes(head + bytes([array.ndim << 2 | 1]) + np.array(array.shape, "<u2").tobytes() + array.tobytes())


def stored(number: int) -> dict[str, bytes]:
    return {
        "id": struct.pack("<q", number - 3),
        "kind": bytes([number]),
        "score": struct.pack("<f", number / 2),
        "exact": struct.pack("<d", number / 3),
        "text": f"ü{number}".encode(),
        "about": json.dumps({"n": number}).encode(),
        "photo": JPEG + bytes([number] * 20),
        "blob": b"\xff" + bytes(number % 4),
        "big": str(number * 10**17).encode(),
        "price": f"{number}.50".encode(),
        "ratio": str(number / 7).encode(),
        "fixed": np.full((2, 3), number, "<i2").tobytes(),
        "typed": array_of(np.arange(number % 3 + 1, dtype=np.float32), typed=True),
        "any": array_of(np.full((number % 2 + 1, number % 3 + 1), number, np.uint16), typed=False),
        "raw": struct.pack("<3I", 4, 2, 3) + b"RGB" + bytes([number]) * 24,
    }


def expected(number: int) -> dict[str, Any]:
    values = stored(number)
    return {
        "id": number - 3,
        "kind": number,
        "score": number / 2,
        "exact": number / 3,
        "text": f"ü{number}",
        "about": values["about"].decode(),
        "photo": values["photo"],
        "blob": values["blob"],
        "big": number * 10**17,
        "price": f"{number}.50",
        "ratio": number / 7,
        "fixed": values["fixed"],
        "typed": list(range(number % 3 + 1)),
        "raw": bytes([number]) * 24,
    }


def sample_of(values: dict[str, bytes], sizes: dict[str, int]) -> bytes:
    head = b"".join(struct.pack("<I", len(value)) for name, value in values.items() if name not in sizes)
    return head + b"".join(values.values())


def shard_of(samples: list[bytes]) -> bytes:
    config = b'{"version": 2}'
    first = 4 * (len(samples) + 2) + len(config)
    offsets = np.cumsum([first, *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + offsets.tobytes() + config + b"".join(samples)


def write(
    folder: Path,
    shards: list[list[dict[str, bytes]]],
    encodings: dict[str, str],
    compression: str | None = None,
    sizes: dict[str, int] = SIZES,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for number, samples in enumerate(shards):
        data = shard_of([sample_of(values, sizes) for values in samples])
        name = f"shard.{number:05}.mds"
        raw = {"basename": name, "bytes": len(data), "hashes": {"sha1": hashlib.sha1(data).hexdigest(), "xxh64": "0"}}
        packed = None
        if compression:
            data = COMPRESSORS[compression](data)
            name += f".{compression.partition(':')[0]}"
            packed = {"basename": name, "bytes": len(data), "hashes": {"sha1": hashlib.sha1(data).hexdigest()}}
        (folder / name).write_bytes(data)
        index.append(
            {
                "format": "mds",
                "version": 2,
                "samples": len(samples),
                "compression": compression,
                "column_names": list(encodings),
                "column_encodings": list(encodings.values()),
                "column_sizes": [sizes.get(name) for name in encodings],
                "size_limit": 2**26,
                "raw_data": raw,
                "zip_data": packed,
                "hashes": ["sha1"],
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": index}))
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write(tmp_path / "mds", [[stored(n) for n in range(s * 8, s * 8 + 8)] for s in range(3)], ENCODINGS)


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.concat_tables([pq.read_table(f) for f in sorted(path.iterdir())]).to_pylist()
    return rows


def test_samples_become_rows_in_order(shards: Path, tmp_path: Path) -> None:
    report = import_mosaicml(shards, tmp_path / "out", options=SMALL)
    assert report.rows == 24
    found = rows_of(tmp_path / "out")
    arrays = [row.pop("any") for row in found]
    assert found == [expected(number) for number in range(24)]
    assert all(array.startswith(b"\x93NUMPY") for array in arrays)
    assert dict(ParquetDataset(str(tmp_path / "out")).schema) == {
        "id": Scalar("int64"),
        "kind": Scalar("uint8"),
        "score": Scalar("float32"),
        "exact": Scalar("float64"),
        "text": Text(),
        "about": Text(),
        "photo": Image(),
        "blob": Bytes(),
        "big": Scalar("int64"),
        "price": Text(),
        "ratio": Scalar("float64"),
        "fixed": Tensor("int16", (2, 3)),
        "typed": RaggedList("float32"),
        "any": Encoded("uint16", (None, None), "npy"),
        "raw": Tensor("uint8", (2, 4, 3)),
    }


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_compressed_shards_are_read(compression: str, tmp_path: Path) -> None:
    samples = [stored(number) for number in range(5)]
    folder = write(tmp_path / "mds", [samples[:3], samples[3:]], ENCODINGS, compression)
    import_mosaicml(folder, tmp_path / "out", columns=["id", "photo"])
    assert [row["id"] for row in rows_of(tmp_path / "out")] == [-3, -2, -1, 0, 1]
    packed = next(folder.glob("shard.00001*"))
    whole = packed.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], bytes([whole[0] ^ 255]) + whole[1:]):
        packed.write_bytes(damaged)
        with pytest.raises(SourceError, match=r"shard\.00001"):
            import_mosaicml(folder, tmp_path / "other")


def test_pickles_are_refused_by_name_unless_left_out(tmp_path: Path) -> None:
    values = {"id": struct.pack("<q", 1), "thing": pickle.dumps(object)}
    folder = write(tmp_path / "mds", [[values]], {"id": "int", "thing": "pkl"})
    with pytest.raises(SourceError, match="column 'thing': pickles are never loaded"):
        import_mosaicml(folder, tmp_path / "out")
    import_mosaicml(folder, tmp_path / "out", columns=["id"])
    assert rows_of(tmp_path / "out") == [{"id": 1}]


def test_unknown_encodings_and_formats_are_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "mds", [[{"x": b"1"}]], {"x": "list[jpeg]"})
    with pytest.raises(SourceError, match=r"column 'x': the encoding 'list\[jpeg\]' is unknown"):
        import_mosaicml(folder, tmp_path / "out")
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["format"] = "jsonl"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=r"index.json: not an index of MDS shards \(format 'jsonl'"):
        import_mosaicml(folder, tmp_path / "out")


def test_damaged_bytes_are_found_by_the_hash_or_the_layout(tmp_path: Path) -> None:
    folder = write(tmp_path / "mds", [[{"id": struct.pack("<q", n), "b": b"x" * n} for n in range(3)]],
                   {"id": "int", "b": "bytes"})  # fmt: skip
    path = folder / "shard.00000.mds"
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SourceError, match="its sha1 is"):
            import_mosaicml(folder, tmp_path / "out")
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["hashes"] = {}
    (folder / "index.json").write_text(json.dumps(index))
    for at in (0, 4, 8, 12, 16):  # the count, and the offsets
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SourceError, match=r"shard\.00000\.mds"):
            import_mosaicml(folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["../secret.mds", "/etc/passwd", "a/b.mds"])
def test_names_of_files_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "mds", [[{"id": struct.pack("<q", 1)}]], {"id": "int"})
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = name
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match="is not the name of a file"):
        import_mosaicml(folder, tmp_path / "out")


@pytest.mark.parametrize(
    "damage",
    [
        {"raw_data": {"basename": "shard.00000.mds.gz", "bytes": "many"}},
        {"raw_data": {"basename": "shard.00000.mds.gz", "bytes": 100, "hashes": 1.5}},
        {"column_names": [1]},
        {"column_encodings": [None]},
    ],
)
def test_values_of_another_type_in_the_index_are_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "mds", [[{"id": struct.pack("<q", 1)}]], {"id": "int"}, "gz")
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0] |= damage
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=r"index\.json: not an index of MDS shards"):
        import_mosaicml(folder, tmp_path / "out")


def test_a_directory_of_splits_names_them(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / "mds" / split, [[{"id": struct.pack("<q", 1)}]], {"id": "int"})
    with pytest.raises(SourceError, match=r"no index\.json.*import each of train, val"):
        import_mosaicml(tmp_path / "mds", tmp_path / "out")


def test_interrupted_the_same_call_finishes_with_the_same_files(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports").mkdir()

    def run(target: Path) -> Any:
        return import_mosaicml(shards, target, options=SMALL)

    assert_continues_after_an_interruption(run, tmp_path / "imports", 8, monkeypatch)
