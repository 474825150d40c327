"""A process warns once about missing kernels, with the reason, the cost and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import parquet_loader as pl
from parquet_loader.common.native.bindings import IS_BUILT

SCRIPT = """
import sys, warnings
import numpy as np
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader import BatchedDataLoader, OutputOptions

NUMPY = OutputOptions(format="numpy")  # imports no torch

if __name__ == "__main__":
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for isolation in ("thread", "process") if sys.platform == "linux" else ("thread",):
            with BatchedDataLoader(sys.argv[1], 100, isolation=isolation, output_options=NUMPY) as loader:
                assert sum(len(batch["x"]) for batch in loader) == 1000
                figures = loader.stats()
    for warning in caught:
        print(warning.category.__name__, "|", warning.filename == sys.argv[0], "|", warning.message)
    print("kernels not used: " in str(figures), "|", figures.to_dict()["kernels"])
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    pl.write_dataset({"x": list(range(1000))}, folder / "data")
    (folder / "script.py").write_text(SCRIPT)
    return folder / "script.py"


def run(script: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PARQUET_LOADER_")} | variables
    return subprocess.run(
        [sys.executable, *options, str(script), str(script.parent / "data")],
        env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def test_a_loader_warns_once_in_a_process_and_says_why_what_it_costs_and_what_to_run(script: Path) -> None:
    done = run(script, PARQUET_LOADER_KERNELS=str(script.parent / "nothing.so"))
    assert done.returncode == 0, done.stderr
    line, figures = done.stdout.splitlines()
    assert line.startswith("PerformanceWarning | True | the compiled kernels of parquet_loader are missing: ")
    assert "not compiled when the package was installed" in line
    assert "twice the processor time" in line
    assert line.endswith("build.py")
    assert figures.startswith("True | it was not compiled when the package was installed")
    assert "kernels" not in done.stderr, "the process that reads says nothing of its own"


@pytest.mark.slow  # test_native.py loads such libraries
def test_kernels_of_other_source_or_that_do_not_load_are_missing_too(script: Path) -> None:
    (script.parent / "broken.so").write_bytes(b"no library")
    done = run(script, PARQUET_LOADER_KERNELS=str(script.parent / "broken.so"))
    assert "missing: it cannot be loaded: " in done.stdout


def test_a_package_in_an_archive_is_to_be_installed(script: Path) -> None:
    archive = pl.package_archive(script.parent / "package.zip")
    done = run(script, PYTHONPATH=archive)
    line, figures = done.stdout.splitlines()
    assert "missing: the package is imported from an archive" in line
    assert line.endswith("; install the package to use them")
    assert figures == "True | the package is imported from an archive, from which the system loads no library"


@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        pytest.param({}, "False | \n", marks=pytest.mark.slow),
        ({"PARQUET_LOADER_NATIVE": "0"}, "True | PARQUET_LOADER_NATIVE=0 is set\n"),
    ],
    ids=["there", "switched off"],
)
def test_kernels_that_are_there_or_switched_off_still_say_nothing(
    script: Path, variables: dict[str, str], said: str
) -> None:
    done = run(script, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_the_warning_is_silenced_by_its_class_where_warnings_are_errors(script: Path) -> None:
    missing = {"PARQUET_LOADER_KERNELS": str(script.parent / "nothing.so")}
    data = str(script.parent / "data")
    options = "output_options=OutputOptions(format='numpy')"
    body = "from parquet_loader import BatchedDataLoader, OutputOptions\n"
    body += f"BatchedDataLoader({data!r}, 100, {options}).close()\n"
    ignoring = "import warnings, parquet_loader\nwarnings.simplefilter('ignore', parquet_loader.PerformanceWarning)\n"
    (script.parent / "strict.py").write_text(body)
    (script.parent / "filtered.py").write_text(ignoring + body)
    assert "PerformanceWarning: the compiled" in run(script.parent / "strict.py", "-Werror", **missing).stderr
    assert run(script.parent / "filtered.py", "-Werror", **missing).returncode == 0
