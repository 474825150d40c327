"""Kernels that are compiled for the oldest processors only give the same results as those for this processor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parquet_loader.common import KERNELS
from parquet_loader.common.native.build import SOURCE, build, compilers

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(KERNELS is None, reason="the kernels were not compiled: no C compiler at hand")
@pytest.mark.skipif(
    not any(shutil.which(command.partition(" ")[0]) for command in compilers()), reason="there is no C compiler"
)
@pytest.mark.slow
def test_processors_without_vector_instructions_get_the_same_pixels_and_permutations(tmp_path: Path) -> None:
    """Repeats other tests with such kernels."""
    library = tmp_path / "kernels.so"
    assert build(library, options=("-DONE_TARGET",)) is None
    chosen = "resized_as or no_byte_more or permuted_as or random_words"
    files = "tests/decode/media/test_resizing.py", "tests/common/test_permutations.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *files]
    environment = {**os.environ, "PARQUET_LOADER_KERNELS": str(library)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert "skipped" not in ended.stdout, ended.stdout[-400:]


def test_kernels_are_chosen_by_instructions_and_not_by_the_model_of_the_processor() -> None:
    """Virtual machines with the model of a Skylake server may lack AVX-512, and gcc does not check that."""
    header = (SOURCE / "kernels.h").read_text()
    assert "target_clones(" in header
    assert "arch=" not in header.partition("target_clones(")[2].partition("\n")[0]
