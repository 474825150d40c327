"""Servers quote an ETag in some responses only; the content is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pytest

from parquet_loader import BatchedDataLoader, SourceError, write_dataset

fsspec: Any = pytest.importorskip("fsspec")


class _Store(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined, unused-ignore]
    """A directory whose listing has bare ETags, as rclone's has, and whose single answers have them in quotes."""

    protocol = "etags"
    cachable = False

    def __init__(self, root: str, single: str) -> None:
        super().__init__()
        self._at = Path(root)
        self._single = single

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entries = [
            {"name": f"{path}/{p.name}", "size": p.stat().st_size, "type": "file", "ETag": "abc"}
            for p in sorted((self._at / path).iterdir())
        ]
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        place = self._at / path
        if place.is_dir():
            return {"name": path, "size": 0, "type": "directory"}
        if not place.exists():
            raise FileNotFoundError(path)
        return {"name": path, "size": place.stat().st_size, "type": "file", "ETag": self._single}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return (self._at / self._strip_protocol(path)).open(mode)


def _rows(root: Path, single: str) -> int:
    filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(_Store(str(root), single)))
    with BatchedDataLoader("train", 16, filesystem=filesystem) as loader:
        return sum(len(batch["x"]) for batch in loader)


def test_an_etag_in_quotes_is_the_same_etag(tmp_path: Path) -> None:
    write_dataset({"x": np.arange(100)}, tmp_path / "train")
    assert _rows(tmp_path, '"abc"') == 100


def test_another_etag_is_another_file(tmp_path: Path) -> None:
    write_dataset({"x": np.arange(100)}, tmp_path / "train")
    with pytest.raises(SourceError, match="has changed since it was listed"):
        _rows(tmp_path, '"abd"')
