"""Data sets on file systems of several kinds, for tests of jobs; light, for drivers to import."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader import Scalar, Schema, Tensor, WriteOptions
from parquet_loader.write.jobs.job import WriteJob
from parquet_loader.write.jobs.task import write_partition

SCHEMA = Schema({"id": Scalar("int64"), "vector": Tensor("float32", (4,))})
SMALL = WriteOptions(row_group_bytes="1KiB", file_bytes="8KiB")


def rows(first: int, stop: int) -> dict[str, Any]:
    ids = np.arange(first, stop)
    return {"id": ids, "vector": np.repeat(ids[:, None], 4, axis=1).astype("f4")}


class ObjectStore(pafs.FileSystemHandler):  # type: ignore[misc]
    """A store without rename of directories, as pyarrow sees one, kept in a local directory."""

    def __init__(self, root: str) -> None:
        self.fs = pafs.SubTreeFileSystem(root, pafs.LocalFileSystem())
        self.fail_after: int | None = None
        self.before: Callable[[str, str], None] = lambda operation, path: None  # may raise, or end the process

    def get_type_name(self) -> str:
        return "object-store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self.fs.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> Any:
        return self.fs.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.fs.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.fs.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self.fs.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.before("delete", path)
        self.fs.delete_file(path)

    def move(self, source: str, target: str) -> None:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise OSError("the connection was reset")
        self.fs.move(source, target)

    def copy_file(self, source: str, target: str) -> None:
        self.fs.copy_file(source, target)

    def open_input_stream(self, path: str) -> Any:
        return self.fs.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self.fs.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.before("write", path)
        return self.fs.open_output_stream(path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = object.__hash__


class Hdfs(ObjectStore):
    """HDFS, as pyarrow's client for it behaves, kept in a local directory.

    A directory is renamed in one step. Nothing is renamed over what is there: to a directory's name means into it, and
    pyarrow deletes a file first if another is to take its place. There are no locks.
    """

    def get_type_name(self) -> str:
        return "hdfs"

    def move(self, source: str, target: str) -> None:
        kinds = [info.type for info in self.fs.get_file_info([source, target])]
        if kinds[1] == pafs.FileType.Directory:
            target = f"{target}/{os.path.basename(source)}"
            kinds[1] = self.fs.get_file_info(target).type
        if kinds == [pafs.FileType.File] * 2:
            self.fs.delete_file(target)
            kinds[1] = pafs.FileType.NotFound
        parent = self.fs.get_file_info(os.path.dirname(target) or ".").type
        if kinds[1] != pafs.FileType.NotFound or parent != pafs.FileType.Directory:
            raise OSError(f"cannot rename {source} to {target}")
        super().move(source, target)


class Place:
    """A data set on one kind of file system."""

    def __init__(self, kind: str, root: Path) -> None:
        self.root = root
        self.local = root / "set"
        self.handler = {"hdfs": Hdfs}.get(kind, ObjectStore)(str(root))
        self.filesystem: Any = {
            "local": None,
            "subtree": pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem()),
            "objects": pafs.PyFileSystem(self.handler),
            "hdfs": pafs.PyFileSystem(self.handler),
        }[kind]
        self.path = str(self.local) if kind == "local" else "set"

    def job(self, mode: Any = "error", options: WriteOptions = SMALL) -> WriteJob:
        return WriteJob(self.path, SCHEMA, mode=mode, options=options, filesystem=self.filesystem)

    def write(self, first: int, stop: int, mode: Any = "error") -> None:
        with self.job(mode) as job:
            job.commit(write_partition(job.spec, 0, rows(first, stop)))

    def ids(self) -> list[int]:
        """The rows that readers see."""
        seen = [
            p for p in self.local.rglob("*.parquet")
            if not any(part.startswith((".", "_")) for part in p.relative_to(self.local).parts)
        ]  # fmt: skip
        return sorted(i for file in seen for i in pq.read_table(file)["id"].to_pylist())

    def leftovers(self) -> list[str]:
        return sorted(p.name for p in self.root.rglob("*") if p.name.startswith((".", "_")))
