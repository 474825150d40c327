"""Loaders deliver audio and video: values, order, errors and files that rows name."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import (
    Audio,
    BatchedDataLoader,
    DataError,
    DatasetWriter,
    ParquetDataset,
    Scalar,
    Schema,
    SchemaError,
    Shard,
    Video,
    write_dataset,
)
from parquet_loader.decode.media import decode_audio
from parquet_loader.errors import OpenFilesError, RemoteError, SystemReadError
from tests.support.media import decode_frames, numbers_of, sound, tones, video
from tests.support.slow_files import SlowFile

for package, extra in (("soundfile", "audio"), ("soxr", "audio"), ("av", "video")):
    pytest.importorskip(package, reason=f"the extra `{extra}` is not installed")

SIZE = (48, 272)
RATE = 8000


def recording(number: int) -> bytes:
    return sound(tones(0.1 + 0.02 * number, 16000, seed=number), 16000, "FLAC" if number % 2 else "WAV")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 rows: recordings, videos and their numbers."""
    path = tmp_path_factory.mktemp("recordings") / "data"
    schema = Schema({"sound": Audio(RATE), "film": Video(2, SIZE), "id": Scalar("int64")})
    videos = [video(20 + 3 * number) for number in range(4)]
    with DatasetWriter(path, schema) as writer:
        rows = range(24)
        writer.write(
            {"sound": [recording(n) for n in rows], "film": [videos[n % 4] for n in rows], "id": np.arange(24)}
        )
    return path


def cut(**options: Any) -> Schema:
    return Schema(
        {
            "sound": Audio(RATE, seconds=0.1, at="random"),
            "film": Video(2, SIZE, step=3, clips=2),
            "id": Scalar("int64"),
            **options,
        }
    )


def rows_of(batches: Iterator[dict[str, Any]]) -> dict[int, tuple[bytes, int, list[float], bytes]]:
    found = {}
    for batch in batches:
        for row, number in enumerate(batch["id"].tolist()):
            assert number not in found
            found[number] = (
                batch["sound"][row].numpy().tobytes(),
                int(batch["sound_length"][row]),
                batch["film_time"][row].flatten().tolist(),
                batch["film"][row].numpy().tobytes(),
            )
    return found


def test_batches_hold_the_samples_and_frames_of_their_rows(data: Path) -> None:
    with BatchedDataLoader(data, 5, shuffle=True, seed=3) as loader:  # by the schema in the files
        for batch in loader:
            assert list(batch) == ["sound", "film", "film_time", "id"]
            numbers = batch["id"].tolist()
            assert batch["film"].shape == (len(numbers), 2, *SIZE, 3)
            assert batch["film"].dtype == torch.uint8
            for row, number in enumerate(numbers):
                expected, _ = decode_audio(recording(number), Audio(RATE), 0)
                assert np.array_equal(batch["sound"][row].numpy(), expected)
                shown = numbers_of(batch["film"][row].numpy())
                assert shown == (batch["film_time"][row] * 30).round().int().tolist()


def test_a_row_is_cut_alike_on_any_rank_in_any_batch_and_after_a_resume(data: Path) -> None:
    def loader(size: int, **options: Any) -> BatchedDataLoader:
        return BatchedDataLoader(data, size, schema=cut(), shuffle=True, seed=7, **options)

    with loader(5) as one:
        epochs = [rows_of(iter(one)), rows_of(iter(one))]
    assert all(len(epoch) == 24 for epoch in epochs)
    assert sum(epochs[0][n][2] == epochs[1][n][2] for n in range(24)) < 8  # other clips in each epoch

    with loader(3, num_threads=1, isolation="process", window_rows=6) as other:
        assert rows_of(iter(other)) == epochs[0]
    halves: dict[int, Any] = {}
    for rank in range(2):
        with loader(4, shard=Shard(rank, 2)) as half:
            halves |= rows_of(iter(half))
    assert halves == epochs[0]
    with loader(5) as first, loader(5) as second:
        iterator = iter(first)
        begun = rows_of(iter([next(iterator), next(iterator)]))
        state = first.state_dict()
        second.load_state_dict(state)
        assert begun | rows_of(iter(second)) == epochs[0]
    with BatchedDataLoader(data, 5, schema=cut(), shuffle=True, seed=8) as seeded:
        assert rows_of(iter(seeded)) != epochs[0]


def test_other_columns_come_in_the_same_order_with_and_without_random_clips(data: Path) -> None:
    def order(schema: Schema) -> list[int]:
        with BatchedDataLoader(data, 5, schema=schema, shuffle=True, seed=1) as loader:
            return [number for batch in loader for number in batch["id"].tolist()]

    regular = Schema({"film": Video(2, SIZE, at="regular"), "id": Scalar("int64")})
    assert order(regular) == order(Schema({"film": Video(2, SIZE), "id": Scalar("int64")}))


def test_transform_gets_recordings_and_what_belongs_to_them(data: Path) -> None:
    def mean(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        assert columns["film_time"].dtype == np.float64
        return {"mean": columns["film"].mean((1, 2, 3, 4, 5)), "length": columns["sound_length"]}

    with BatchedDataLoader(data, 6, schema=cut(), transform=mean) as loader:
        assert [batch["mean"].shape for batch in loader] == [(6,)] * 4


def test_nulls_are_masked_or_filled(tmp_path: Path) -> None:
    masked = Schema(
        {"s": Audio(RATE, seconds=0.1, null="mask"), "r": Audio(RATE, null="mask"), "v": Video(2, SIZE, null="mask")}
    )
    rows = [{"s": recording(1), "r": recording(1), "v": video(4)}, {"s": None, "r": None, "v": None}]
    write_dataset(rows, tmp_path / "masked", masked)
    with BatchedDataLoader(tmp_path / "masked", 2) as loader:
        batch = next(iter(loader))
    for name in ("s", "r", "v"):
        assert batch[f"{name}_valid"].tolist() == [True, False]
    assert batch["s_length"].tolist() == [800, 0]
    assert batch["r"].lengths.tolist() == [960, 0]
    assert not batch["s"][1].any()
    assert not batch["v"][1].any()
    assert batch["v_time"][1].isnan().all()
    filled = Schema({"s": Audio(RATE, seconds=0.1, fill=recording(5))})
    with BatchedDataLoader(tmp_path / "masked", 2, schema=filled) as loader:
        assert next(iter(loader))["s_length"].tolist() == [800, 800]


def test_structs_of_bytes_and_path_are_recordings(tmp_path: Path) -> None:
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": recording(n), "path": f"{n}.wav"} for n in range(3)], struct)
    features = {"audio": {"_type": "Audio", "sampling_rate": 16000}, "id": {"dtype": "int64", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"audio": column, "id": [0, 1, 2]}).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "hub.parquet")
    for schema in (Schema({"audio": Audio(RATE)}), Schema({"audio": Audio(RATE)}, extra="infer")):
        with BatchedDataLoader(tmp_path / "hub.parquet", 3, schema=schema) as loader:
            batch = next(iter(loader))
        assert batch["audio"].lengths.tolist() == [800, 960, 1120]
        assert list(batch) == (["audio", "id"] if schema.extra == "infer" else ["audio"])


@pytest.fixture
def referenced(tmp_path: Path) -> Path:
    """Rows that name files of the data set."""
    schema = Schema({"s": Audio(RATE, storage="path"), "v": Video(2, SIZE, storage="path"), "id": Scalar("int64")})
    rows = [{"s": f"media/{n}.wav", "v": f"media/{n}.mp4", "id": n} for n in range(6)]
    write_dataset(rows, tmp_path / "data", schema)
    (tmp_path / "data" / "media").mkdir()
    for number in range(6):
        (tmp_path / "data" / "media" / f"{number}.wav").write_bytes(recording(number))
        (tmp_path / "data" / "media" / f"{number}.mp4").write_bytes(video(30 + number))
    return tmp_path / "data"


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_rows_may_name_files_relative_to_the_data_set(referenced: Path, isolation: Any) -> None:
    with BatchedDataLoader(referenced, 3, shuffle=True, isolation=isolation) as loader:
        for batch in loader:
            for row, number in enumerate(batch["id"].tolist()):
                assert np.array_equal(batch["s"][row].numpy(), decode_audio(recording(number), Audio(RATE), 0)[0])
                times = batch["v_time"][row].tolist()
                assert np.array_equal(batch["v"][row].numpy(), decode_frames(video(30 + number), times)[0])


def test_rows_that_name_the_same_film_open_it_once_an_epoch(referenced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema({"v": Video(2, SIZE, storage="path"), "id": Scalar("int64")})
    rows = [{"v": f"media/{n % 2}.mp4", "id": n % 2} for n in range(12)]
    write_dataset(rows, referenced / "shared", schema)
    shutil.copytree(referenced / "media", referenced / "shared" / "media")
    av = pytest.importorskip("av")
    films = [video(30), video(31)]
    opened = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal opened
        opened += 1
        return known(*args, **options)

    known = av.open
    monkeypatch.setattr(av, "open", counted)
    with BatchedDataLoader(referenced / "shared", 3, seed=2, num_threads=1) as loader:
        batches = list(loader)
    assert opened == 2
    if os.path.isdir("/proc/self/fd"):
        assert not [path for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if path.endswith(".mp4")]
    for batch in batches:
        for row, film in enumerate(batch["id"].tolist()):
            expected, _ = decode_frames(films[film], batch["v_time"][row].tolist())
            assert np.array_equal(batch["v"][row].numpy(), expected)


@pytest.mark.slow  # the next test decodes in these processes, too
def test_processes_that_transform_decode_the_same_recordings(referenced: Path) -> None:
    def first(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": columns["id"], "time": columns["v_time"], "pixels": columns["v"].reshape(len(columns["v"]), -1)}

    found = []
    for workers in (0, 2):
        with BatchedDataLoader(referenced, 3, shuffle=True, transform=first, transform_workers=workers) as loader:
            found.append({n: x for b in loader for n, x in zip(b["id"].tolist(), b["pixels"], strict=True)})
    assert all(torch.equal(found[0][number], found[1][number]) for number in range(6))


def test_processes_that_transform_share_the_memory_of_open_decoders(referenced: Path) -> None:
    def most(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        caches = [found for found in gc.get_objects() if type(found).__name__ == "VideoDecoderCache"]
        return {"most_bytes": np.full(len(columns["id"]), max(cache._most_bytes for cache in caches))}

    with BatchedDataLoader(referenced, 3, transform=most, transform_workers=2, memory_limit="64MiB") as loader:
        assert next(iter(loader))["most_bytes"].tolist() == [2**21] * 3


def test_absolute_paths_and_urls_may_name_files_of_the_data_set(referenced: Path) -> None:
    names = [f"{referenced}/media/1.wav", f"file://{referenced}/media/1.wav", "media/1.wav"]
    pq.write_table(pa.table({"s": names}), referenced / "more.parquet")
    schema = Schema({"s": Audio(RATE, storage="path")})
    with BatchedDataLoader(referenced / "more.parquet", 3, schema=schema) as loader:
        sounds = next(iter(loader))["s"]
    for row in range(3):
        assert np.array_equal(sounds[row].numpy(), decode_audio(recording(1), Audio(RATE), 0)[0])


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../outside.wav", "media/../../outside.wav", "file:///a.wav", "", "link.wav"]
)
def test_paths_out_of_the_data_set_are_refused(referenced: Path, path: str) -> None:
    (referenced.parent / "outside.wav").write_bytes(recording(0))
    os.symlink(referenced.parent / "outside.wav", referenced / "link.wav")
    pq.write_table(pa.table({"s": [path]}), referenced / "more.parquet")
    schema = Schema({"s": Audio(RATE, storage="path")})
    with (
        BatchedDataLoader(referenced / "more.parquet", 1, schema=schema) as loader,
        pytest.raises(DataError, match=r"column 's'.*(relative path|leads out of the data set)"),
    ):
        next(iter(loader))


def test_a_missing_file_names_the_row_and_the_file(referenced: Path) -> None:
    (referenced / "media" / "4.mp4").unlink()
    with BatchedDataLoader(referenced, 6) as loader, pytest.raises(DataError, match=r"row 4, column 'v'.*4\.mp4"):
        next(iter(loader))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_or_a_directory_is_no_file_of_a_row(referenced: Path) -> None:
    os.mkfifo(referenced / "pipe.wav")
    pq.write_table(pa.table({"s": ["pipe.wav", "media/1.wav", "media"]}), referenced / "more.parquet")
    schema = Schema({"s": Audio(RATE, storage="path")})
    with BatchedDataLoader(referenced / "more.parquet", 3, schema=schema, on_error="skip_row") as loader:
        batch = next(iter(loader))
        assert [r.row for r in loader.stats().first_replaced] == [0, 2]
    assert batch["s"].lengths.tolist() == [len(decode_audio(recording(1), Audio(RATE), 0)[0])] * 3


def test_a_file_that_a_store_lacks_is_replaced_and_a_store_that_fails_is_an_error(referenced: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    store = fsspec.filesystem("memory")
    store.put(str(referenced), "/recordings", recursive=True)
    try:
        store.rm("/recordings/media/4.wav")
        wrapped = pafs.PyFileSystem(pafs.FSSpecHandler(store))
        options: dict[str, Any] = {"columns": ["s"], "on_error": "skip_row", "filesystem": wrapped}
        with BatchedDataLoader("/recordings", 6, **options) as loader:
            next(iter(loader))
            assert [r.row for r in loader.stats().first_replaced] == [4]
        with pytest.MonkeyPatch.context() as patched:

            def failing(path: str, *args: Any, **options: Any) -> Any:
                if path.endswith("3.wav"):
                    raise OSError("the store is not reached")
                return known(path, *args, **options)

            known = store.open
            patched.setattr(store, "open", failing)
            with (
                BatchedDataLoader("/recordings", 6, **options) as loader,
                pytest.raises(RemoteError, match=r"media/3\.wav.*not reached"),
            ):
                next(iter(loader))
    finally:
        store.rm("/recordings", recursive=True)


@pytest.mark.parametrize("column", ["s", "v"])
@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, SystemReadError), (errno.EMFILE, OpenFilesError), (errno.EACCES, SystemReadError)]
)
def test_failures_of_the_system_replace_no_row(
    referenced: Path, monkeypatch: pytest.MonkeyPatch, column: str, number: int, kind: type[Exception]
) -> None:
    name, where = f"media/4.{'wav' if column == 's' else 'mp4'}", "pread" if number == errno.EIO else "open"
    broken: set[int] = set()
    known: dict[str, Any] = {"open": os.open, "pread": os.pread}

    def opening(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith(name) and where == "open":
            raise OSError(number, os.strerror(number), path)
        file: int = known["open"](path, *args, **options)
        (broken.add if str(path).endswith(name) else broken.discard)(file)
        return file

    def reading(file: int, *args: Any) -> bytes:
        if file in broken:
            raise OSError(number, os.strerror(number))
        data: bytes = known["pread"](file, *args)
        return data

    with BatchedDataLoader(referenced, 6, columns=[column], on_error="skip_row", num_threads=1) as loader:
        monkeypatch.setattr(os, "open", opening)
        monkeypatch.setattr(os, "pread", reading)
        with pytest.raises(kind, match=r"media/4\."):
            next(iter(loader))


def test_damage_names_the_row(tmp_path: Path) -> None:
    schema = Schema({"s": Audio(RATE), "id": Scalar("int64")})
    write_dataset([{"s": recording(n)[: 300 if n == 2 else None], "id": n} for n in range(4)], tmp_path / "d", schema)
    with (
        BatchedDataLoader(tmp_path / "d", 4) as loader,
        pytest.raises(DataError, match=r"column 's', row 2 .*truncated"),
    ):
        next(iter(loader))


def test_damaged_rows_are_replaced_and_counted(tmp_path: Path) -> None:
    schema = Schema({"s": Audio(RATE, seconds=0.1), "v": Video(1, SIZE), "id": Scalar("int64")})
    bad = {2: "s", 5: "v"}
    rows = [{"s": recording(n), "v": video(4 + n), "id": n} for n in range(8)]
    for number, name in bad.items():
        rows[number][name] = b"damaged" * 20
    write_dataset(rows, tmp_path / "d", schema)
    with BatchedDataLoader(tmp_path / "d", 4, on_error="skip_row") as loader:
        batches = list(loader)
        assert loader.stats().replaced_rows == 2
    assert [batch["id"].tolist() for batch in batches] == [[0, 1, 3, 3], [4, 6, 6, 7]]
    assert torch.equal(batches[0]["s"][2], batches[0]["s"][3])
    assert torch.equal(batches[1]["v_time"][1], batches[1]["v_time"][2])


def test_rows_by_index_hold_recordings(data: Path) -> None:
    rows = ParquetDataset(data).rows()
    assert np.array_equal(rows[3]["sound"], decode_audio(recording(3), Audio(RATE), 0)[0])


def test_a_name_of_a_column_that_belongs_to_a_recording_is_refused() -> None:
    with pytest.raises(SchemaError, match="also delivers the column 'a_length'"):
        Schema({"a": Audio(RATE, seconds=1), "a_length": Scalar("int64")})
    with pytest.raises(SchemaError, match="also delivers the column 'v_time'"):
        Schema({"v": Video(1, SIZE), "v_time": Scalar("float64")})


def test_a_schema_of_recordings_survives_a_footer() -> None:
    schema = Schema(
        {
            "a": Audio(RATE, seconds=1.5, channels=2, at="random", null="mask"),
            "b": Audio(RATE, storage="path", missing="x.wav"),
            "v": Video(2, (8, 16), step=2, clips=3, at="regular", fill=b"x"),
        }
    )
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("form", [{"storage": "path"}, {"ranges": True}])
def test_files_of_a_tar_archive_are_read_one_at_a_time(tmp_path: Path, form: dict[str, Any]) -> None:
    implementation = pytest.importorskip("fsspec.implementations.tar")

    schema = Schema({"film": Video(2, SIZE, **form), "id": Scalar("int64")})
    films = [video(20 + number) for number in range(12)]
    for number, film in enumerate(films):
        value = f"{number}.mp4" if form.get("storage") else film
        write_dataset([{"film": value, "id": number}], tmp_path / "data" / f"{number:02}", schema)
        (tmp_path / "data" / f"{number}.mp4").write_bytes(film)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(tmp_path / "data", "data")
    fs = pafs.PyFileSystem(pafs.FSSpecHandler(implementation.TarFileSystem(SlowFile(packed.getvalue()))))
    found = []
    for source, options in (("data", {"filesystem": fs, "num_threads": 4}), (tmp_path / "data", {})):
        with BatchedDataLoader(source, 3, schema=schema, **options) as loader:
            found.append([(batch["id"].tolist(), batch["film"].numpy().tobytes()) for batch in loader])
    assert len(found[0]) == 4
    assert found[0] == found[1]
