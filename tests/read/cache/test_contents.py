"""The command line shows the contents of a cache, and removes only these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from parquet_loader import LocalCache, SourceError
from parquet_loader.cli import commands
from parquet_loader.read.cache.inspect import clear
from tests.read.cache.remote import copies, disk_bytes, open_loader, read_epoch, write_data


def test_a_cache_is_shown_and_emptied_while_it_is_used(tmp_path: Path) -> None:
    root, cache = write_data(tmp_path / "far").parent, tmp_path / "cache"
    with open_loader(root, LocalCache(cache, "100MB")) as loader:
        first = read_epoch(loader)
        told = CliRunner().invoke(commands, ["cache", "info", str(cache), "--json"], catch_exceptions=False)
        found = json.loads(told.output)
        assert (found["row_groups"], found["files"], found["loaders"], found["unfinished"]) == (12, 3, 1, 0)
        assert found["bytes"] <= disk_bytes(cache) <= found["bytes"] + 100 * 4096
        assert 0 < found["oldest_use_s"] <= found["latest_use_s"]
        (cache / "notes.txt").write_text("mine")
        told = CliRunner().invoke(commands, ["cache", "clear", str(cache)], catch_exceptions=False)
        assert "removed 12 row groups" in told.output
        assert copies(cache) == []
        assert (cache / "notes.txt").read_text() == "mine"
        loader.set_epoch(0)
        assert read_epoch(loader) == first
        assert len(copies(cache)) == 12
    told = CliRunner().invoke(commands, ["cache", "info", str(cache)], catch_exceptions=False)
    assert "12 row groups of 3 files" in told.output
    assert "0 running loaders" in told.output


def test_where_there_is_no_cache_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no local cache"):
        clear(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
