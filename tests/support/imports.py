"""What holds for imports of every format."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def assert_continues_after_an_interruption(
    run: Callable[[Path], Any], folder: Path, syncs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that an import which Ctrl-C ended continues, and writes the files of one that was not interrupted.

    Args:
        run: Imports to a directory, and returns the report.
        folder: An empty directory.
        syncs: Ctrl-C comes in place of this call of `os.fsync`, counted from 1.
        monkeypatch: Replaces `os.fsync`.
    """
    run(folder / "whole")
    files = {file.name: file.read_bytes() for file in (folder / "whole").iterdir()}
    real, left = os.fsync, syncs

    def interrupted(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(folder / "out")
    assert run(folder / "out").resumed_rows > 0
    assert {file.name: file.read_bytes() for file in (folder / "out").iterdir()} == files
