"""A page that was changed anywhere gives the values that pyarrow reads from it, or an error, and never other values."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parquet_loader.common import IS_BUILT
from parquet_loader.common.native.build import build
from tests.support.fuzz_pages import SANITIZERS, VECTORS
from tests.support.mutated_pages import faults, faults_of_conversions, faults_with_deletes

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("count", [150, pytest.param(500, marks=pytest.mark.slow)])
def test_changed_pages_give_the_values_of_pyarrow_or_an_error(tmp_path: Path, count: int) -> None:
    found, both = faults(tmp_path, count, seed=0)
    assert not found
    assert both > 0.3 * count


@pytest.mark.parametrize("count", [70, pytest.param(200, marks=pytest.mark.slow)])
def test_changed_pages_give_the_values_that_arrow_converts_or_an_error(tmp_path: Path, count: int) -> None:
    found, both = faults_of_conversions(tmp_path, count, seed=0)
    assert not found
    assert both > 0.15 * count


@pytest.mark.parametrize("count", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_changed_pages_give_the_rows_of_pyarrow_that_are_not_deleted_or_an_error(tmp_path: Path, count: int) -> None:
    found, both = faults_with_deletes(tmp_path, count, seed=0)
    assert not found
    assert both > 0.3 * count


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("check", [faults, faults_of_conversions, faults_with_deletes])
def test_many_changed_pages_give_the_values_of_pyarrow_or_an_error(tmp_path: Path, check: Any) -> None:
    found, both = check(tmp_path, 10_000, seed=1)
    assert not found
    assert both > 3000


def in_a_process(count: int, **environment: str) -> None:
    command = [sys.executable, "-m", "tests.support.mutated_pages", str(count), "2"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_without_kernels_changed_pages_give_the_values_of_pyarrow_or_an_error(count: int) -> None:
    in_a_process(count, PARQUET_LOADER_NATIVE="0")


def library_of(compiler: str, name: str) -> str:
    asked = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"gcc has no {name}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
def test_changed_pages_make_the_kernels_touch_no_byte_that_is_not_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc, whose address sanitizer this needs")
    library = tmp_path / "kernels.so"
    monkeypatch.setenv("CC", compiler)
    assert build(library, options=SANITIZERS + VECTORS) is None
    in_a_process(
        5000,
        # Arrow's exceptions are thrown through the sanitizer, which has to find the C++ library first.
        LD_PRELOAD=" ".join(library_of(compiler, name) for name in ("libasan.so", "libstdc++.so")),
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",
        PARQUET_LOADER_KERNELS=str(library),
    )
