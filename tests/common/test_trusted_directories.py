"""A user who can write to a shared directory cannot make another user's process touch or delete files elsewhere."""

from __future__ import annotations

import glob
import io
import json
import os
import stat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    LocalCache,
    OutputOptions,
    ReadOptions,
    RemoteOptions,
    SampleStore,
    Scalar,
    Schema,
    write_dataset,
)
from parquet_loader.common.storage.trust import is_plain_name, is_within
from parquet_loader.errors import ConfigurationError, ResumeError, WriteError
from parquet_loader.loader.frames.frame_cache import keep
from parquet_loader.petastorm.cache import LocalDiskCache
from parquet_loader.store.files.file_lists import HeldState
from parquet_loader.write.jobs.job import remove_dead_jobs

NUMPY = OutputOptions(format="numpy")
LOCAL = pafs.LocalFileSystem()


@pytest.fixture
def bucket(tmp_path: Path) -> pafs.FileSystem:
    """Stand for an object store that holds 100 rows in ``train``."""
    os.makedirs(tmp_path / "bucket" / "train")
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "bucket" / "train" / "a.parquet")
    return pafs.SubTreeFileSystem(str(tmp_path / "bucket"), LOCAL)


def load(store: pafs.FileSystem, remote: RemoteOptions | None = None, cache: LocalCache | None = None) -> int:
    options = ReadOptions(remote=remote or RemoteOptions())
    with BatchedDataLoader(
        "train", 10, filesystem=store, read_options=options, output_options=NUMPY, cache=cache
    ) as loader:
        return sum(len(batch["id"]) for batch in loader)


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A file of the user that does not belong to a cache."""
    os.makedirs(tmp_path / "home")
    path = tmp_path / "home" / "thesis.tex"
    path.write_text("ten years of work" * 100, encoding="utf-8")
    os.utime(path, ns=(0, 0))
    return path


def untouched(path: Path) -> bool:
    return path.exists() and path.stat().st_mtime_ns == 0 and path.read_text("utf-8") == "ten years of work" * 100


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../home/thesis.tex", "{home}/thesis.tex", "link.footers", "", "..", "a\0b"])
def test_a_snapshot_names_only_its_own_footers(
    tmp_path: Path, bucket: pafs.FileSystem, thesis: Path, name: str
) -> None:
    remote = RemoteOptions(snapshot_cache=tmp_path / "shared")
    assert load(bucket, remote) == 100
    os.symlink(thesis, tmp_path / "shared" / "link.footers")
    (path,) = glob.glob(f"{tmp_path}/shared/*.snapshot")
    with np.load(path, allow_pickle=False) as stored:
        manifest, places = stored["manifest"], stored["places"].copy()
    places[0] = 0, os.path.getsize(thesis)
    stream = io.BytesIO()
    np.savez(stream, manifest=manifest, footers=np.array(name.format(home=thesis.parent)), places=places)
    Path(path).write_bytes(stream.getvalue())
    assert load(bucket, remote) == 100
    assert untouched(thesis)


def test_a_link_in_the_place_of_the_footers_is_not_followed(
    tmp_path: Path, bucket: pafs.FileSystem, thesis: Path
) -> None:
    remote = RemoteOptions(snapshot_cache=tmp_path / "shared")
    load(bucket, remote)
    (path,) = glob.glob(f"{tmp_path}/shared/*.footers")
    thesis.write_bytes(Path(path).read_bytes())
    os.utime(thesis, ns=(0, 0))
    os.unlink(path)
    os.symlink(thesis, path)
    assert load(bucket, remote) == 100
    assert thesis.stat().st_mtime_ns == 0


def test_a_link_in_the_place_of_a_ledger_is_not_written_through(
    tmp_path: Path, bucket: pafs.FileSystem, thesis: Path
) -> None:
    os.makedirs(tmp_path / "cache")
    os.symlink(thesis, tmp_path / "cache" / "ledger")
    with pytest.warns(RuntimeWarning, match="cache"):
        assert load(bucket, cache=LocalCache(tmp_path / "cache", "1MB")) == 100
    assert untouched(thesis)


def test_a_hold_names_nothing_outside_the_store(tmp_path: Path, thesis: Path) -> None:
    store = SampleStore(tmp_path / "store", schema=Schema({"x": Scalar("int64")}))
    with store.writer() as writer:
        writer.write({"x": np.arange(3)})
    holds = tmp_path / "store" / ".store" / "holds"
    os.makedirs(holds / "x-")
    told = {"snapshot": "x", "epoch": "/../../../../home/thesis", "batch": 0, "since_s": 0.0, "files": 0}
    target = thesis.rename(thesis.parent / "thesis-0")
    (holds / "forged").write_text(json.dumps(told | {"gone_files": 0}) + "\n", encoding="utf-8")
    assert store.holds() == []
    forged = HeldState("x", "/../../../../home/thesis", 0, 0.0, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(ResumeError, match="no hold has the name"):
        store.release(forged)
    assert untouched(target)


@pytest.mark.parametrize("how", ["absolute", "dots", "link"])
@pytest.mark.parametrize("step", ["publish", "remove"])
def test_a_journal_removes_nothing_outside_its_data_set(tmp_path: Path, thesis: Path, step: str, how: str) -> None:
    data = tmp_path / "data"
    write_dataset({"x": np.arange(3)}, data)
    os.symlink(thesis.parent, data / "link")
    path = {"absolute": str(thesis), "dots": f"{data}/../home/thesis.tex", "link": f"{data}/link/thesis.tex"}[how]
    job = data / f".job-{'0' * 32}"
    os.makedirs(job)
    (job / "journal.json").write_text(json.dumps({"step": step, "paths": [path]}), encoding="utf-8")
    with pytest.raises(WriteError, match=r"journal of an unfinished job names .*thesis\.tex.*; nothing was removed"):
        remove_dead_jobs(LOCAL, str(data))
    assert untouched(thesis)


def test_a_journal_still_removes_what_lies_in_its_data_set(tmp_path: Path) -> None:
    data = tmp_path / "data"
    os.makedirs(data / "part=1")
    os.symlink(data, tmp_path / "link")
    old = [data / "a.parquet", data / "part=1" / "b.parquet"]
    for file in old:
        file.write_bytes(b"old")
    job = data / f".job-{'0' * 32}"
    os.makedirs(job)
    (job / "journal.json").write_text(json.dumps({"step": "remove", "paths": [*map(str, old)]}), encoding="utf-8")
    remove_dead_jobs(LOCAL, str(tmp_path / "link"))
    assert not any(file.exists() for file in [*old, job])


def test_a_frame_is_kept_without_following_links(tmp_path: Path, thesis: Path) -> None:
    os.makedirs(tmp_path / "frames")
    os.symlink(thesis, tmp_path / "frames" / "abc.keep")
    with pytest.raises(OSError, match="symbolic links"):
        keep(tmp_path / "frames", "abc", os.makedirs, forever=True)
    assert untouched(thesis)
    keep(tmp_path / "frames", "abc", os.makedirs, forever=False).delete()


@pytest.mark.parametrize(
    ("name", "is_plain"),
    [
        *((name, True) for name in ("a", "a.b-c", "é", "x" * 255)),
        *((name, False) for name in ("x" * 256, "", ".", "..", "a/b", "/a", "a\\b", "a\0", 3, None)),
    ],
)
def test_a_plain_name_stays_in_its_directory(name: object, is_plain: bool) -> None:
    assert is_plain_name(name) is is_plain


@pytest.mark.parametrize(
    ("path", "is_inside"),
    [
        *((path, True) for path in ("a/b/c", "a/b/c/d")),
        *((path, False) for path in ("a/b", "a/b/", "a/bc", "a/b/../c", "a/b//c", "a/b/./c", "/a/b/c", "a/b/c\0", 7)),
    ],
)
def test_a_path_within_a_folder_has_no_way_out(path: object, is_inside: bool) -> None:
    assert is_within(path, "a/b") is is_inside


# ---- directories ---------------------------------------------------------------------------------------------------


def test_a_cache_that_is_made_is_private(tmp_path: Path, bucket: pafs.FileSystem) -> None:
    load(bucket, RemoteOptions(snapshot_cache=tmp_path / "snapshots"), LocalCache(tmp_path / "cache", "1MB"))
    LocalDiskCache(str(tmp_path / "petastorm"), 10**6)
    for name in ("snapshots", "cache", "petastorm"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o700, name


def test_a_private_cache_is_used(tmp_path: Path, bucket: pafs.FileSystem) -> None:
    os.makedirs(tmp_path / "cache", mode=0o755)
    assert load(bucket, cache=LocalCache(tmp_path / "cache", "1MB")) == 100
    assert os.path.exists(tmp_path / "cache" / "ledger")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o2770, 0o702])
def test_a_cache_that_others_may_write_to_is_refused(tmp_path: Path, bucket: pafs.FileSystem, mode: int) -> None:
    path = tmp_path / "cache"
    os.makedirs(path)
    os.chmod(path, mode)
    told = rf"{path}, which belongs to user .* and has mode {mode:04o}; .*chmod 700"
    with pytest.raises(ConfigurationError, match=rf"LocalCache.*{told}.*shared=True"):
        load(bucket, cache=LocalCache(path, "1MB"))
    with pytest.raises(ConfigurationError, match=rf"snapshot_cache.*{told}.*snapshot_cache_shared=True"):
        load(bucket, RemoteOptions(snapshot_cache=path))
    with pytest.raises(ConfigurationError, match=rf"cache_location.*{told}"):
        LocalDiskCache(str(path), 10**6)
    assert os.listdir(path) == []


def test_a_cache_of_another_user_is_refused(
    tmp_path: Path, bucket: pafs.FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.makedirs(tmp_path / "cache", mode=0o755)
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    else:
        os.chown(tmp_path / "cache", 4242, 4242)
    with pytest.raises(ConfigurationError, match=r"which belongs to user .* and has mode 0755"):
        load(bucket, cache=LocalCache(tmp_path / "cache", "1MB"))


def test_a_shared_cache_is_used_if_the_caller_says_so(tmp_path: Path, bucket: pafs.FileSystem) -> None:
    path = tmp_path / "cache"
    os.makedirs(path)
    os.chmod(path, 0o2770)
    remote = RemoteOptions(snapshot_cache=path, snapshot_cache_shared=True)
    assert load(bucket, remote, LocalCache(path, "1MB", shared=True)) == 100
    assert os.path.exists(path / "ledger")
    assert glob.glob(f"{path}/*.snapshot")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o2770
    LocalDiskCache(str(path), 10**6, shared=True)
