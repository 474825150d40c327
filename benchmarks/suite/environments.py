"""Builds a virtual environment for each system, from the pins in benchmarks/requirements/.

pip installs ``<name>.txt``, and then ``<name>.no-deps.txt``, if it exists, without dependencies, because Petastorm's
dependencies conflict with torch's. In ``ours``, the checkout itself is installed, so that its kernels are compiled.
``lake`` is ``ours`` with the programs whose files the study *lake* reads.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite.places import REQUIREMENTS, ROOT

_NATIVE = ROOT / "parquet_loader" / "common" / "native"
COMPILED = (_NATIVE / "build.py", *sorted((_NATIVE / "src").rglob("*.[ch]")))
PYTHON_OF = {"petastorm": "3.11"}  # pyarrow 14, numpy 1 and pandas 2.1 have wheels for it
PINS_OF = {"lake": ("ours", "lake")}
WITH_CHECKOUT = ("ours", "lake")


class BuildError(Exception):
    """An environment cannot be built; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment.

    Attributes:
        name: Of its requirements.
        folder: Where it is.
    """

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def requirements(self) -> tuple[Path, ...]:
        """Files of pins, in the order in which they are installed."""
        names = PINS_OF.get(self.name, (self.name,))
        files = (REQUIREMENTS / f"{name}{kind}.txt" for name in names for kind in ("", ".no-deps"))
        return tuple(path for path in files if path.exists())

    @property
    def is_built(self) -> bool:
        """Whether it was built whole from the pins as they are now."""
        stamp = self.folder / "built"
        return stamp.exists() and stamp.read_text() == self._digest()

    def build(self) -> None:
        """Build it unless it is there.

        Raises:
            BuildError: there is no fitting interpreter, or pip failed; its output is shown.
        """
        if self.is_built:
            return
        interpreter = _interpreter(PYTHON_OF.get(self.name))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._call([interpreter, "-m", "venv", str(self.folder)])
        for path in self.requirements:
            pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(path)]
            self._call([*pip, "--no-deps"] if path.name.endswith(".no-deps.txt") else pip)
        if self.name in WITH_CHECKOUT:
            self._call([str(self.python), "-m", "pip", "install", "--quiet", "--no-deps", "--editable", str(ROOT)])
        (self.folder / "built").write_text(self._digest())

    def _digest(self) -> str:
        sources = (*self.requirements, *(COMPILED if self.name in WITH_CHECKOUT else ()))
        return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()

    def _call(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise BuildError(f"environment {self.name}: {' '.join(command)} failed:\n{said}")


def _interpreter(wanted: str | None) -> str:
    if wanted is None or sys.version_info[:2] == tuple(map(int, wanted.split("."))):
        return sys.executable
    found = shutil.which(f"python{wanted}")
    if found is None:
        raise BuildError(f"python{wanted} is needed and not on the PATH")
    return found
