"""Transforms of scripts in processes: what they print, errors of odd classes, and scripts that processes import."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader import BatchedDataLoader, TransformError, write_dataset
from parquet_loader.engine.child.process import packed_error, unpacked_error
from parquet_loader.errors import ReadingProcessError
from tests.engine.test_isolation import numbered
from tests.support.processes import needs_transform_processes

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="other processes need Linux (memfd)")


def output_of(script: str, path: Path, folder: Path | None = None) -> str:
    (path / "script.py").write_text(script, encoding="utf-8")
    known = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    known.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, str(path / "script.py"), numbered(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=known, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


PRINTING = """
import sys
from parquet_loader import BatchedDataLoader, OutputOptions

def printing(columns, rng):
    print("called with", len(columns["id"]))
    return columns

options = OutputOptions(format="numpy")
with BatchedDataLoader(sys.argv[1], 100, transform=printing, output_options=options, OPTIONS) as loader:
    assert len(list(loader)) == 3
"""


@pytest.mark.parametrize(
    "options", ["transform_workers=1", pytest.param("isolation='process'", marks=pytest.mark.slow)]
)
def test_what_transform_prints_reaches_a_pipe_and_modules_of_the_working_directory_are_not_imported(
    tmp_path: Path, options: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("json", "socket", "numpy"):
        (elsewhere / f"{name}.py").write_text("raise ImportError('of another project')\n", encoding="utf-8")
    script = PRINTING.replace("OPTIONS", options)
    assert output_of(script, tmp_path, elsewhere).splitlines() == ["called with 100"] * 3


CLOSING = """
import os
for stream in range(3):
    os.close(stream)  # as a daemon does; its next files get the descriptors 0, 1 and 2
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("transform_workers=1", marks=needs_transform_processes),
        pytest.param("isolation='process'", marks=pytest.mark.slow),
    ],
)
def test_a_transform_may_print_if_the_standard_streams_are_closed(tmp_path: Path, options: str) -> None:
    script = PRINTING.replace("OPTIONS", options).replace("options = ", f"{CLOSING}\noptions = ")
    assert output_of(script, tmp_path) == ""


SPAWNING = """
import multiprocessing
import sys
from parquet_loader import BatchedDataLoader, OutputOptions

class Unlucky(Exception):
    pass

FACTOR = 2

def doubled(columns, rng):
    if FACTOR in columns["id"]:
        return {"id": columns["id"] * FACTOR}
    raise Unlucky(int(columns["id"][0]))

def train(source, options):
    options = {"transform": doubled, "output_options": OutputOptions(format="numpy"), **options}
    with BatchedDataLoader(source, 100, **options) as loader:
        try:
            for batch in loader:
                print(batch["id"].sum())
        except Unlucky as error:
            print(error.args)

if __name__ == "__main__":
    for options in ({"transform_workers": 1}, {"isolation": "process"}):
        process = multiprocessing.get_context("spawn").Process(target=train, args=(sys.argv[1], options))
        process.start()
        process.join()
"""


@pytest.mark.slow
def test_transforms_and_errors_of_a_script_work_in_processes_that_are_spawned(tmp_path: Path) -> None:
    assert output_of(SPAWNING, tmp_path).splitlines() == [str(sum(range(100)) * 2), "(100,)"] * 2


class WithoutText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    number: int


class Exiting(Exception):
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return sys.exit, (3,)


class WithoutTruth(Exception):
    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (WithoutText(), WithoutText, None),
        (WithoutTruth("yes"), WithoutTruth, "yes"),
        (Frozen(3), ReadingProcessError, "Frozen: 3"),
        (Exiting("no"), ReadingProcessError, "Exiting: no"),
        (KeyError("a"), KeyError, "'a'"),
    ],
    ids=["without text", "without truth", "frozen", "exits when it is unpickled", "plain"],
)
def test_errors_of_any_class_are_sent(error: Exception, kind: type, text: str | None) -> None:
    received = unpacked_error(packed_error(error, "another process"))
    assert type(received) is kind
    assert text is None or str(received) == text
    assert "in another process" in "".join(received.__notes__)


@pytest.mark.parametrize("error", [WithoutText(), WithoutTruth()], ids=["without text", "without truth"])
def test_errors_of_any_class_are_raised_as_themselves(tmp_path: Path, error: Exception) -> None:
    def fails(columns: Any, rng: Any) -> Any:
        raise error

    write_dataset({"a": np.arange(10)}, tmp_path)
    with BatchedDataLoader(tmp_path, 10, transform=fails) as loader, pytest.raises(type(error)) as raised:
        next(iter(loader))
    assert raised.value is error
    assert raised.value.__notes__[0].startswith("raised by transform in batch ")


def test_a_transform_whose_iterator_has_ended_is_named(tmp_path: Path) -> None:
    numbers = iter(range(1))
    write_dataset({"a": np.arange(10)}, tmp_path)
    with BatchedDataLoader(tmp_path, 10, transform=lambda columns, rng: {"a": columns["a"] + next(numbers)}) as loader:
        assert len(list(loader)) == 1
        with pytest.raises(TransformError, match="transform in batch 0 of epoch 1: raised StopIteration") as raised:
            list(loader)
    assert isinstance(raised.value.__cause__, StopIteration)
