"""Without torch every public name can be imported; names that need torch raise ImportError when they are called."""

from __future__ import annotations

import subprocess
import sys

import pytest

import parquet_loader

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise {error}

sys.meta_path.insert(0, Blocked())
import parquet_loader
"""
MISSING = "ModuleNotFoundError(\"No module named 'torch'\", name=name)"
BROKEN = "OSError('libcudart.so.12: cannot open shared object file: No such file or directory')"


def run(code: str, error: str = MISSING) -> str:
    """Run code in a new process in which importing torch fails."""
    program = BLOCKED.format(error=error) + code
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOOKS = """
from parquet_loader import *
assert all([hasattr(parquet_loader, name) for name in [*dir(parquet_loader), *parquet_loader.__all__]])
import inspect; inspect.getmembers(parquet_loader)
import inspect; [inspect.getdoc(getattr(parquet_loader, name)) for name in parquet_loader.__all__]
import rlcompleter; rlcompleter.Completer(vars()).attr_matches('parquet_loader.P')
import pickle; [pickle.loads(pickle.dumps(getattr(parquet_loader, n))) for n in parquet_loader.__all__]
import copy; [copy.deepcopy(getattr(parquet_loader, name)) for name in parquet_loader.__all__]
assert not isinstance(1, parquet_loader.ParquetIterable)
"""


MESSAGE = """
try:
    parquet_loader.ParquetIterable(None)
except ImportError as error:
    print(error)
"""
NAMES = """
parquet_loader.SampleStore
names = dir(parquet_loader)
assert len(names) == len(set(names)) and set(parquet_loader.__all__) <= set(names)
assert not hasattr(parquet_loader, 'BatchDataLoader')
"""


@pytest.mark.parametrize("error", [MISSING, pytest.param(BROKEN, marks=pytest.mark.slow)], ids=["missing", "broken"])
def test_names_can_be_looked_at_and_help_describes_them(error: str) -> None:
    assert "class ParquetIterable" in run(f"{NAMES}{LOOKS}help(parquet_loader)", error)


@pytest.mark.parametrize("error", [MISSING, pytest.param(BROKEN, marks=pytest.mark.slow)], ids=["missing", "broken"])
def test_calling_a_name_that_needs_torch_names_the_extra_and_the_reason(error: str) -> None:
    message = run(MESSAGE, error)
    assert message.startswith("ParquetIterable needs torch, which cannot be imported (")
    assert ("No module named 'torch'" if error == MISSING else "libcudart.so.12") in message
    assert message.endswith("pip install 'torch-parquet-loader[torch]'\n")


def test_dir_names_each_name_once() -> None:
    assert len(dir(parquet_loader)) == len(set(dir(parquet_loader)))
