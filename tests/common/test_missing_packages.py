"""Import errors: a package that is not installed, and one that is broken."""

from __future__ import annotations

import importlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from parquet_loader import MissingPackageError
from parquet_loader.common import needs_package


def import_in(package: str, module: str) -> None:
    with needs_package(package, f"pip install {package}"):
        importlib.import_module(module)


def test_a_package_or_module_that_is_not_found_is_to_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_in_part").mkdir()  # as a package without its distribution, next to another of one namespace
    (tmp_path / "asks_for_part.py").write_text("from found_in_part import metrics")
    monkeypatch.syspath_prepend(tmp_path)
    for package, module in (
        ("not_found", "not_found"),
        ("found_in_part", "found_in_part.other"),
        ("found_in_part", "asks_for_part"),
    ):
        with pytest.raises(MissingPackageError, match=f"pip install {package}"):
            import_in(package, module)


def test_a_package_that_is_there_and_broken_keeps_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("broken_library", "from broken_library import native"),
        ("without_a_name", "from without_a_name import nothing"),
        ("needs_another", "import not_found_either"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    (tmp_path / "broken_library" / f"native{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)
    for name, error in (
        ("broken_library", "native"),
        ("without_a_name", "cannot import name 'nothing'"),
        ("needs_another", "not_found_either"),
    ):
        with pytest.raises(ImportError, match=error) as caught:
            import_in(name, name)
        assert not isinstance(caught.value, MissingPackageError)
