"""Tars of samples become rows with the same bytes; damage, pickles and broken order are refused by name."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    Bytes,
    Encoded,
    Image,
    OutputOptions,
    ParquetDataset,
    RaggedList,
    Scalar,
    SourceError,
    Tensor,
    Text,
)
from parquet_loader.write import WriteOptions
from parquet_loader.write.imports import import_webdataset

JPEG = b"\xff\xd8\xff\xe0"
SMALL = WriteOptions(row_group_bytes=600, file_bytes=1500)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def tar_of(members: list[tuple[str, bytes]], *, ended: bool = True) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        end = tar.offset
    return out.getvalue() if ended else out.getvalue()[:end]


def sample(number: int) -> list[tuple[str, bytes]]:
    rng = np.random.default_rng(number)
    return [
        (f"train/{number:04}.JPG", JPEG + rng.bytes(50)),
        (f"train/{number:04}.cls", f"{number % 5}\n".encode()),
        (f"train/{number:04}.txt", f"caption {number} ü".encode()),
        (f"train/{number:04}.meta.json", json.dumps({"n": number}).encode()),
        (f"train/{number:04}.npy", npy(np.arange(4, dtype=np.float32) + number)),
        (f"train/{number:04}.bin", rng.bytes(20)),
    ]


def row(number: int) -> dict[str, Any]:
    values = {name.partition(".")[2]: content for name, content in sample(number)}
    return {
        "__key__": f"train/{number:04}",
        "jpg": values["JPG"],
        "cls": number % 5,
        "txt": f"caption {number} ü",
        "meta_json": values["meta.json"].decode(),
        "npy": (np.arange(4, dtype=np.float32) + number).tobytes(),
        "bin": values["bin"],
    }


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(3):
        members = [member for number in range(shard * 10, shard * 10 + 10) for member in sample(number)]
        (folder / f"train-{shard:06}.tar").write_bytes(tar_of(members))
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.concat_tables([pq.read_table(f) for f in sorted(path.iterdir())]).to_pylist()
    return rows


def test_files_of_one_key_are_a_row_in_the_order_of_the_tars(shards: Path, tmp_path: Path) -> None:
    report = import_webdataset(shards, tmp_path / "out", options=SMALL)
    assert rows_of(tmp_path / "out") == [row(number) for number in range(30)]
    assert (report.rows, report.skipped) == (30, ())
    schema = ParquetDataset(str(tmp_path / "out")).schema
    assert dict(schema) == {
        "__key__": Text(),
        "jpg": Image(),
        "cls": Scalar("int64"),
        "txt": Text(),
        "meta_json": Text(),
        "npy": Tensor("float32", (4,)),
        "bin": Bytes(),
    }


def test_a_pattern_and_compressed_tars_and_chosen_columns(shards: Path, tmp_path: Path) -> None:
    first = shards / "train-000000.tar"
    (shards / "packed.tar.gz").write_bytes(gzip.compress(first.read_bytes()))
    first.unlink()
    import_webdataset(shards / "*.gz", tmp_path / "out", columns=["cls"])
    assert rows_of(tmp_path / "out") == [{"__key__": f"train/{n:04}", "cls": n % 5} for n in range(10)]
    with pytest.raises(SourceError, match=r"no record has png; there are __key__, cls, .*jpg"):
        import_webdataset(shards, tmp_path / "other", columns=["cls", "png"])
    with pytest.raises(SourceError, match=r"no record has png; there are .*cls"):
        import_webdataset(shards, tmp_path / "other", columns=["png"])


def test_values_that_some_samples_lack_are_null(tmp_path: Path) -> None:
    members = [("a.jpg", JPEG), ("a.cls", b"1"), ("b.cls", b"2"), ("c.jpg", JPEG), ("c.txt", b"x")]
    (tmp_path / "x.tar").write_bytes(tar_of(members))
    import_webdataset(tmp_path / "x.tar", tmp_path / "out")
    assert [(r["jpg"], r["cls"], r["txt"]) for r in rows_of(tmp_path / "out")] == [
        (JPEG, 1, None),
        (None, 2, None),
        (JPEG, None, "x"),
    ]
    fields = ParquetDataset(str(tmp_path / "out")).schema
    assert {name: field.null for name, field in fields.items()} == {
        "__key__": "refuse",
        "jpg": "mask",
        "cls": "mask",
        "txt": "mask",
    }


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ([b"7", b"-8\n"], Scalar("int64")),
        ([b"7", b"007"], Text()),
        ([b"7", b"dog"], Text()),
        ([b"7", b"\xff"], Bytes()),
        ([b"7", b"9223372036854775808"], Text()),
    ],
)
def test_numbers_are_numbers_if_all_of_them_are_written_so(values: list[bytes], field: Any, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of([(f"{n}.cls", value) for n, value in enumerate(values)]))
    import_webdataset(tmp_path / "x.tar", tmp_path / "out")
    assert ParquetDataset(str(tmp_path / "out")).schema["cls"] == field
    found = [r["cls"] for r in rows_of(tmp_path / "out")]
    kept: Any = {Scalar: int, Text: bytes.decode, Bytes: bytes}[type(field)]
    assert found == [kept(value) for value in values]


@pytest.mark.parametrize("reverses", [False, True])
@pytest.mark.parametrize(
    ("value", "field"),
    [
        (b"P1 is the first patient", Text()),
        (b"P6 " + "é".encode() * 20, Text()),
        (b"GIF89a is the name of a format", Text()),
        (b"P6 is text up to here, and no further: \xff", Bytes()),
    ],
)
def test_text_that_begins_like_an_image_is_inspected_to_its_end(
    value: bytes, field: Any, reverses: bool, tmp_path: Path
) -> None:
    texts = [value, b"plain text"][:: -1 if reverses else 1]
    (tmp_path / "x.tar").write_bytes(tar_of([(f"{n}.txt", text) for n, text in enumerate(texts)]))
    import_webdataset(tmp_path / "x.tar", tmp_path / "out")
    assert ParquetDataset(str(tmp_path / "out")).schema["txt"] == field
    assert pq.read_table(tmp_path / "out").column("txt").cast(pa.binary()).to_pylist() == texts


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        ([np.float32(1), np.float32(2)], Scalar("float32")),
        ([np.zeros(3, "i2"), np.zeros(4, "i2")], RaggedList("int16")),
        ([np.zeros((3, 2)), np.zeros((4, 2))], RaggedList(Tensor("float64", (2,)))),
        ([np.zeros((3, 2), "u1"), np.zeros((4, 5), "u1")], Encoded("uint8", (None, None), "npy")),
    ],
)
def test_arrays_take_the_narrowest_field_that_holds_all(arrays: list[Any], field: Any, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of([(f"{n}.npy", npy(array)) for n, array in enumerate(arrays)]))
    import_webdataset(tmp_path / "x.tar", tmp_path / "out")
    data = ParquetDataset(str(tmp_path / "out"))
    assert data.schema["npy"] == field
    (batch,) = data.batches(2, output_options=OutputOptions(format="numpy"))
    for found, array in zip(batch["npy"], arrays, strict=True):
        assert np.asarray(found).tolist() == np.asarray(array).tolist()


@pytest.mark.parametrize(
    "array", [np.array(["text"]), np.zeros(2, "c8"), np.zeros(2, [("x", "i4")]), np.zeros(1, "M8[s]")]
)
def test_arrays_of_other_types_are_refused_by_name(array: Any, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of([("a.npy", npy(array))]))
    with pytest.raises(SourceError, match=r"x.tar: column 'npy': arrays of \S+ are not imported"):
        import_webdataset(tmp_path / "x.tar", tmp_path / "out")


@pytest.mark.parametrize("replaced", [b"\0", b"-", b"'", b"("])
def test_an_array_with_a_damaged_header_is_refused(replaced: bytes, tmp_path: Path) -> None:
    content = npy(np.zeros(3)).replace(b"{", replaced, 1)
    (tmp_path / "x.tar").write_bytes(tar_of([("a.npy", content)]))
    with pytest.raises(SourceError, match=r"x.tar: a.npy: not an array that is imported"):
        import_webdataset(tmp_path / "x.tar", tmp_path / "out")


def test_an_array_that_claims_more_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    head = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,)}"
    (tmp_path / "x.tar").write_bytes(tar_of([("a.npy", head.ljust(127) + b"\n")]))
    with pytest.raises(SourceError, match=r"x.tar: a.npy: not an array that is imported"):
        import_webdataset(tmp_path / "x.tar", tmp_path / "out")


def test_keys_that_are_not_utf8_become_escapes(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of([("ü\udcff.txt", b"x")]))
    import_webdataset(tmp_path / "x.tar", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [{"__key__": "ü\\xff", "txt": "x"}]


def test_entries_that_are_no_samples_are_counted(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in (("folder", tarfile.DIRTYPE), ("link.jpg", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        for name in ("README", "._a.jpg", "./a.jpg", "a."):
            info = tarfile.TarInfo(name)
            info.size = len(JPEG)
            tar.addfile(info, io.BytesIO(JPEG))
    (tmp_path / "x.tar").write_bytes(out.getvalue())
    report = import_webdataset(tmp_path / "x.tar", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [{"__key__": "a", "jpg": JPEG}]
    assert {(s.reason, s.examples) for s in report.skipped} == {
        ("not a file", ("x.tar: link.jpg",)),
        ("its name has no extension", ("x.tar: README", "x.tar: ._a.jpg", "x.tar: a.")),
    }


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/executed-by-a-pickle",)


@pytest.mark.parametrize("name", ["a.pkl", "a.x.pth", "a.npy"])
def test_pickles_are_refused_by_name_and_never_loaded(name: str, tmp_path: Path) -> None:
    content = npy(np.array([Evil()], object)) if name.endswith("npy") else pickle.dumps(Evil())
    (tmp_path / "x.tar").write_bytes(tar_of([("a.cls", b"1"), (name, content)]))
    with pytest.raises(SourceError, match=f"x.tar: {name}"):
        import_webdataset(tmp_path / "x.tar", tmp_path / "out")
    assert not Path("/tmp/executed-by-a-pickle").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.tar"]
    import_webdataset(tmp_path / "x.tar", tmp_path / "out", columns=["cls"])
    assert rows_of(tmp_path / "out") == [{"__key__": "a", "cls": 1}]


WHOLE = tar_of([member for number in range(3) for member in sample(number)])


@pytest.mark.parametrize("cut", [100, 700, 1500, 3000, 5000, "end"])
@pytest.mark.parametrize("packs", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_truncated_tar_is_an_error(cut: int | str, packs: Any, tmp_path: Path) -> None:
    content = tar_of([member for number in range(3) for member in sample(number)], ended=False)
    content = packs(content) if cut == "end" else packs(content)[: int(cut)]
    if cut != "end" and int(cut) >= len(packs(WHOLE)):
        pytest.skip("the compressed tar is shorter")
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(SourceError, match=r"x\.tar"):
        import_webdataset(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_headers_and_tars_behind_tars_are_errors(tmp_path: Path) -> None:
    damaged = bytearray(WHOLE)
    damaged[2 * 1024 + 10] ^= 1
    for content in (bytes(damaged), WHOLE + WHOLE):
        (tmp_path / "x.tar").write_bytes(content)
        with pytest.raises(SourceError, match=r"x\.tar: more data follow the end of the tar, or it is damaged"):
            import_webdataset(tmp_path / "x.tar", tmp_path / "out")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["a.jpg", "b.jpg", "a.cls"], "files of sample 'a' do not follow each other"),
        (["a.jpg", "a.JPG"], "two files for column 'jpg'"),
        (["a.x.y", "a.x_y"], "two files for column 'x_y'"),
    ],
)
def test_samples_that_cannot_be_told_apart_are_errors(members: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of([(name, JPEG) for name in members]))
    with pytest.raises(SourceError, match=message):
        import_webdataset(tmp_path / "x.tar", tmp_path / "out")


def test_interrupted_at_any_step_the_same_call_finishes_with_the_same_files(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, real, resumed = tmp_path / "whole", os.fsync, 0
    import_webdataset(shards, whole, options=SMALL)
    files = {file.name: file.read_bytes() for file in whole.iterdir()}
    for at in range(3, 3 * len(files), 2):
        left = [at]

        def interrupted(descriptor: int, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            real(descriptor)

        out = tmp_path / f"out{at}"
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            import_webdataset(shards, out, options=SMALL)
        monkeypatch.setattr(os, "fsync", real)
        resumed += import_webdataset(shards, out, options=SMALL).resumed_rows > 0
        assert {file.name: file.read_bytes() for file in out.iterdir()} == files
    assert resumed > 2


def test_a_shard_that_changed_between_two_runs_is_refused(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.fsync, [8]

    def interrupted(descriptor: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            import_webdataset(shards, tmp_path / "out", options=SMALL)
    os.utime(shards / "train-000002.tar", ns=(1, 1))
    with pytest.raises(SourceError, match="changed since its import was interrupted"):
        import_webdataset(shards, tmp_path / "out", options=SMALL)


def test_the_command_imports_tars(shards: Path, tmp_path: Path) -> None:
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from tests.support.command_line import run_here

    done = run_here("import", "webdataset", shards, tmp_path / "out", "--columns", "jpg, cls", "--json")
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 30)
    assert set(rows_of(tmp_path / "out")[0]) == {"__key__", "jpg", "cls"}
