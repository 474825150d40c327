"""Old names work for a time and warn: at the caller's line, with the replacement and the version that removes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parquet_loader import ParquetLoaderDeprecationWarning
from parquet_loader.common import warn_deprecated


def test_a_name_warns_at_the_line_that_uses_it() -> None:
    with pytest.warns(ParquetLoaderDeprecationWarning, match="a is deprecated .*; use b") as seen:
        warn_deprecated("a", "b", "0.4")
    assert seen[0].filename == __file__


def test_python_shows_the_warning_to_scripts_that_import_the_code_that_warns(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(
        "from parquet_loader.common import warn_deprecated\nwarn_deprecated('a', 'b', '0.4')\n", encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import training"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert "training.py:2: ParquetLoaderDeprecationWarning: a is deprecated" in done.stderr
