"""Old names work for a time and warn: at the caller's line, with the replacement and the version that removes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parquet_loader import ParquetLoaderDeprecationWarning
from parquet_loader.common import explains_keywords, renamed_keywords, warn_deprecated


@renamed_keywords("0.4", rows="batch_size")
@explains_keywords({})
def load(path: str, *, batch_size: int = 1) -> tuple[str, int]:
    return path, batch_size


class Writer:
    @renamed_keywords("0.4", rows="batch_size")
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size


def call(work: Any, *args: Any, **kwargs: Any) -> Any:
    """Call without mypy, which knows only the new names."""
    return work(*args, **kwargs)


def test_the_old_keyword_works_and_warns() -> None:
    expected = r"load\(rows=\.\.\.\) is deprecated and will be removed in version 0\.4; use batch_size="
    with pytest.warns(ParquetLoaderDeprecationWarning, match=expected):
        assert call(load, "a", rows=3) == ("a", 3)
    with pytest.warns(ParquetLoaderDeprecationWarning, match=r"Writer\(rows=\.\.\.\)"):
        assert call(Writer, rows=3).batch_size == 3


def test_the_new_keyword_does_not_warn() -> None:
    assert load("a", batch_size=3) == ("a", 3)


def test_old_and_new_keyword_together_are_refused() -> None:
    with pytest.raises(TypeError, match=r"load: rows= is the old name of batch_size=; pass batch_size= only"):
        call(load, "a", rows=3, batch_size=3)


def test_an_unknown_keyword_is_still_explained() -> None:
    with pytest.raises(TypeError, match="batch_size"):
        call(load, "a", batch_sise=3)


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
