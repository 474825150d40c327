"""Rows that name files, parts of files, or hold their bytes, as Parquet's logical type FILE does."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import (
    BatchedDataLoader,
    Bytes,
    DataError,
    Image,
    ParquetDataset,
    Scalar,
    Schema,
    SchemaError,
    Video,
)
from parquet_loader.decode import BlobProblem
from parquet_loader.engine.referenced_files import path_of_uri, relative_path
from tests.source.test_later_annotations import FILE, annotated
from tests.support.examples import grid
from tests.support.media import numbers_of, video

PillowImage: Any = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")

TYPE = pa.struct(
    {
        "uri": pa.string(),
        "offset": pa.int64(),
        "size": pa.int64(),
        "content_type": pa.string(),
        "checksum": pa.string(),
        "inline": pa.binary(),
    }
)
SCHEMA = Schema({"image": Image((4, 5, 3), storage="path"), "id": Scalar("int64")})


def png(number: int) -> bytes:
    out = io.BytesIO()
    PillowImage.fromarray(pixels(number)).save(out, "PNG")
    return out.getvalue()


def pixels(number: int) -> Any:
    return np.full((4, 5, 3), (number, 2 * number, 3 * number), np.uint8)


def written(folder: Path, references: Sequence[dict[str, Any] | None], type_: pa.DataType = TYPE) -> Path:
    """Write rows of references next to the files that they name: ``media/pack`` has images 0 to 4 one after another."""
    (folder / "data" / "media").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "media" / "a b.png").write_bytes(png(7))
    (folder / "data" / "media" / "pack").write_bytes(b"".join(map(png, range(5))))
    (folder / "outside.png").write_bytes(png(9))
    table = pa.table({"image": pa.array(references, type_), "id": range(len(references))})
    annotated(folder / "data" / "a.parquet", table, "image", FILE)
    return folder / "data"


def part(number: int) -> dict[str, Any]:
    """Return a reference to one image of the pack."""
    begin = sum(len(png(n)) for n in range(number))
    return {"uri": "media/pack", "offset": begin, "size": len(png(number)), "content_type": "image/png"}


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_rows_name_files_and_parts_of_files_or_hold_the_bytes(tmp_path: Path, isolation: Any) -> None:
    references = [
        part(3),
        {"uri": "media/a%20b.png"},
        {"uri": "./media/pack", "size": len(png(0))},
        {"inline": png(6)},
        {"inline": png(5), **part(1)},
        {"uri": (tmp_path / "data" / "media" / "a%20b.png").as_uri().replace("%25", "%")},
        {"uri": str(tmp_path / "data" / "media" / "pack"), "offset": part(4)["offset"], "size": part(4)["size"]},
    ]
    data = written(tmp_path, references)
    with BatchedDataLoader(data, 3, schema=SCHEMA, shuffle=True, isolation=isolation) as loader:
        found = {n: image for batch in loader for n, image in zip(batch["id"].tolist(), batch["image"], strict=True)}
    for row, number in enumerate([3, 7, 0, 6, 5, 7, 4]):
        assert np.array_equal(found[row].numpy(), pixels(number)), row
    by_index = ParquetDataset(data, schema=SCHEMA)[[0, 3]]
    assert torch.equal(by_index["image"], torch.stack([found[0], found[3]]))


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ({"uri": "../outside.png"}, "expected a relative path"),
        ({"uri": "media/%2E%2E/%2E%2E/outside.png"}, "expected a relative path"),
        ({"uri": "file:///etc/hostname"}, "leads out of the data set"),
        ({"uri": "/etc/hostname"}, "leads out of the data set"),
        ({"uri": "//host/media/pack"}, "leads out of the data set|not one of a file below"),
        ({"uri": "s3://bucket/media/pack"}, "not one of a file below the data set; expected a relative one, or file"),
        ({"uri": "media/pack?version=2"}, "has a query or a fragment"),
        ({"uri": "http://[broken"}, "is not a URI"),
        ({"uri": "media/none.png"}, "cannot be opened"),
        ({"uri": "media/pack", "offset": 3}, r"has the offset 3 of .* and no size"),
        ({"uri": "media/pack", "offset": -1, "size": 9}, "9 bytes at offset -1"),
        ({"uri": "media/pack", "offset": 1, "size": -9}, "-9 bytes at offset 1"),
        ({"uri": "media/pack", "offset": 2**62, "size": 2**62}, "at offset 4611686018427387904"),
        ({"offset": 0, "size": 9}, "names no file"),
        ({"uri": "", "size": 9}, "names no file"),
        ({"inline": b""}, "0 bytes that are not a readable"),
    ],
)
def test_references_that_are_not_valid_name_their_row(tmp_path: Path, reference: dict[str, Any], reason: str) -> None:
    data = written(tmp_path, [part(0), reference, part(2)])
    with (
        BatchedDataLoader(data, 3, schema=SCHEMA) as loader,
        pytest.raises(DataError, match=rf"column 'image'.*{reason}"),
    ):
        next(iter(loader))
    with BatchedDataLoader(data, 3, schema=SCHEMA, on_error="skip_row") as loader:
        batch = next(iter(loader))
        assert [row.row for row in loader.stats().first_replaced] == [1]
    assert np.array_equal(batch["image"][1].numpy(), pixels(2))


@pytest.mark.parametrize(
    "text", ["\0f", "\0fa\0b\0media/pack", "\0f-\0\0media/pack", "\0f" + "9" * 5000 + "\0\0media/pack"]
)
def test_paths_that_begin_like_packed_references_name_their_row(tmp_path: Path, text: str) -> None:
    pq.write_table(pa.table({"image": [text], "id": [0]}), tmp_path / "a.parquet")
    with (
        BatchedDataLoader(tmp_path, 1, schema=SCHEMA) as loader,
        pytest.raises(DataError, match=r"column 'image', row 0 .*: the path .* is not one of a file below"),
    ):
        next(iter(loader))


def test_nulls_are_refused_filled_or_masked(tmp_path: Path) -> None:
    data = written(tmp_path, [part(1), None])
    with BatchedDataLoader(data, 2, schema=SCHEMA) as loader, pytest.raises(DataError, match="row 1: is null"):
        next(iter(loader))
    masked = Schema({"image": Image((4, 5, 3), storage="path", null="mask")})
    with BatchedDataLoader(data, 2, schema=masked) as loader:
        batch = next(iter(loader))
    assert batch["image_valid"].tolist() == [True, False]
    assert not batch["image"][1].any()


def test_a_field_of_bytes_reads_the_bytes_that_rows_hold(tmp_path: Path) -> None:
    data = written(tmp_path, [{"inline": png(n)} for n in range(3)], pa.struct({"inline": pa.large_binary()}))
    for field in (Image((4, 5, 3)), Image((4, 5, 3), storage="path")):
        with BatchedDataLoader(data, 3, schema=Schema({"image": field})) as loader:
            assert np.array_equal(next(iter(loader))["image"][2].numpy(), pixels(2))
    with BatchedDataLoader(data, 3, schema=Schema({"image": Bytes()})) as loader:
        assert next(iter(loader))["image"].to_list() == [png(n) for n in range(3)]


def test_a_null_among_members_does_not_count_several_times(tmp_path: Path) -> None:
    data = written(tmp_path, [part(0), {"inline": png(2)}])
    schema = Schema({"image": Image((4, 5, 3))})
    with (
        BatchedDataLoader(data, 2, schema=schema) as loader,
        pytest.raises(DataError, match="as statistics do not say"),
    ):
        next(iter(loader))


def test_a_field_of_bytes_over_references_says_how_to_read_them(tmp_path: Path) -> None:
    data = written(tmp_path, [{"uri": "media/pack"}], pa.struct({"uri": pa.string()}))
    with pytest.raises(SchemaError, match="storage='path' reads the files that it names"):
        BatchedDataLoader(data, 1, schema=Schema({"image": Image()}))


def test_references_of_a_store_are_below_its_directory(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    data = written(tmp_path, [part(2), {"uri": "memory://references/media/pack"}])
    store = fsspec.filesystem("memory")
    store.put(str(data), "/references", recursive=True)
    try:
        wrapped = pafs.PyFileSystem(pafs.FSSpecHandler(store))
        options: dict[str, Any] = {"schema": SCHEMA, "filesystem": wrapped, "on_error": "skip_row"}
        with BatchedDataLoader("/references", 2, **options) as loader:
            batch = next(iter(loader))
            assert [row.row for row in loader.stats().first_replaced] == [1]
        assert np.array_equal(batch["image"][0].numpy(), pixels(2))
    finally:
        store.rm("/references", recursive=True)


FILE_SYSTEMS: dict[str, Any] = {
    "s3": lambda: pafs.S3FileSystem(anonymous=True, region="us-east-1"),
    "azure": lambda: pafs.AzureFileSystem("account"),
    "local": pafs.LocalFileSystem,
}


@pytest.mark.parametrize(
    ("make", "uri", "path"),
    [
        ("s3", b"s3://bucket/set/a%20b/1.png", "a b/1.png"),
        ("s3", b"s3a://bucket/set/1.png", "1.png"),
        ("s3", b"a//1.png", "a//1.png"),
        ("s3", b"s3://bucket/settings/1.png", None),
        ("s3", b"s3://other/set/1.png", None),
        ("s3", b"/bucket/set/1.png", None),
        ("s3", b"gs://bucket/set/1.png", None),
        ("s3", b"file:///bucket/set/1.png", None),
        ("azure", b"abfss://bucket@account.dfs.core.windows.net/set/1.png", "1.png"),
        ("local", b"file://localhost/bucket/set/1.png", None),
        ("local", b"a%2Fb.png", "a/b.png"),
        ("local", b"caf\xc3\xa9.png", "caf\xe9.png"),
        ("local", b"caf\xe9.png", None),
        ("local", b"a\nb.png", None),
        ("local", b" a.png", None),
    ],
)
def test_uris_become_paths_below_the_directory(make: str, uri: bytes, path: str | None) -> None:
    filesystem = FILE_SYSTEMS[make]()
    if path is not None:
        assert path_of_uri(uri, "bucket/set", filesystem) == path
        return
    with pytest.raises(
        BlobProblem, match=r"leads out of the data set|is not one of a file below|is not a URI|control character"
    ):
        path_of_uri(uri, "bucket/set", filesystem)


@pytest.mark.parametrize(
    ("make", "name", "path"),
    [
        ("s3", "s3://bucket/set/a%20b/1.png", "a%20b/1.png"),
        ("s3", "s3a://bucket/set/1.png", "1.png"),
        ("s3", "s3://bucket/settings/1.png", None),
        ("s3", "s3://bucket/set/", None),
        ("s3", "gs://bucket/set/1.png", None),
        ("s3", "bucket/set/1.png", None),
        ("s3", "/bucket/set/1.png", None),
        ("azure", "abfss://bucket@account.dfs.core.windows.net/set/1.png", "1.png"),
        ("local", "/bucket/set/a b.png", "a b.png"),
        ("local", "file:///bucket/set/1.png", "1.png"),
        ("local", "/bucket/set/../1.png", "../1.png"),
        ("local", "/bucket/1.png", None),
        ("local", "s3://bucket/set/1.png", None),
        ("local", "bucket/set/1.png", None),
        ("local", "a.png", None),
    ],
)
def test_absolute_names_become_relative_below_the_directory(make: str, name: str, path: str | None) -> None:
    root = "/bucket/set" if make == "local" else "bucket/set"
    assert relative_path(name, root, FILE_SYSTEMS[make]()) == (name if path is None else path)


def test_clips_are_read_from_a_part_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="the extra `video` is not installed")
    film = video(40)
    data = written(tmp_path, [{"uri": "media/films", "offset": 1000, "size": len(film)}, {"inline": film}])
    (data / "media" / "films").write_bytes(bytes(1000) + film + bytes(500))
    schema = Schema({"image": Video(3, (48, 272), step=2, storage="path")})
    with BatchedDataLoader(data, 2, schema=schema) as loader:
        batch = next(iter(loader))
    shown = [numbers_of(clip.numpy()) for clip in batch["image"]]
    assert shown == (batch["image_time"] * 30).round().int().tolist()


@grid(
    "kind, isolation",
    ["hive", "delta", "list"],
    ["thread", "process"],
    everyday=lambda kind, isolation: isolation == "thread",
)
def test_paths_are_relative_to_the_data_set_if_it_has_one_partition(tmp_path: Path, kind: str, isolation: Any) -> None:
    table = pa.table({"image": ["media/4.png"], "id": [0], "day": ["monday"]})
    root, source = tmp_path / "set", None
    if kind == "delta":
        delta = pytest.importorskip("deltalake", reason="deltalake is not installed")
        delta.write_deltalake(root, table, partition_by=["day"])
    else:
        pq.write_to_dataset(table, root, partition_cols=["day"])
        source = [root / "day=monday"] if kind == "list" else None
    place = root / "day=monday" if kind == "list" else root
    (place / "media").mkdir()
    (place / "media" / "4.png").write_bytes(png(4))
    with BatchedDataLoader(source or root, 1, schema=SCHEMA, isolation=isolation) as loader:
        assert np.array_equal(next(iter(loader))["image"][0].numpy(), pixels(4))


def test_structs_without_the_annotation_are_references_by_their_members(tmp_path: Path) -> None:
    data = written(tmp_path, [part(1)])
    pq.write_table(pa.table({"image": pa.array([part(4)], TYPE), "id": [1]}), data / "b.parquet")
    with BatchedDataLoader(data, 2, schema=SCHEMA) as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch["image"].numpy(), np.stack([pixels(1), pixels(4)]))
