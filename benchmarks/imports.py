"""Compares importing a folder of images, copying it, and packing it into Parquet without checks.

    python -m benchmarks.imports FOLDER [--images 50000] [--rounds 2]

The folder has 100 classes of files of 20 to 100 KB: the header of a JPEG and random bytes, which are not decoded. Each
in its own process, the following take turns: `parquet-loader import images`, `cp -r`, and a loop that reads each file
and writes row groups of 32 MiB with pyarrow. Prints wall time and processor time. Needs disk space for four times the
bytes of the images, and removes its files at the end.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image as PillowImage

PACK = """
import sys, os, pyarrow as pa, pyarrow.parquet as pq
source, out = sys.argv[1:]
os.makedirs(out)
schema = pa.schema([("image", pa.binary()), ("label", pa.string()), ("path", pa.string())])
options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
with pq.ParquetWriter(out + "/0.parquet", schema, **options) as writer:
    rows, nbytes = [], 0
    def flush():
        if rows:
            writer.write_table(pa.table([list(column) for column in zip(*rows)], schema=schema), len(rows))
        rows.clear()
    for name in sorted(os.path.join(folder, f) for folder, _, files in os.walk(source) for f in files):
        with open(name, "rb") as file:
            data = file.read()
        rows.append((data, os.path.basename(os.path.dirname(name)), name))
        nbytes += len(data)
        if nbytes > 32 << 20:
            flush()
            nbytes = 0
    flush()
"""


def make(folder: Path, images: int) -> int:
    """Write the images, and return their bytes."""
    rng = np.random.default_rng(0)
    out = io.BytesIO()
    PillowImage.fromarray(np.zeros((8, 8, 3), np.uint8)).save(out, "JPEG")
    header, noise = out.getvalue(), rng.bytes(2**26)
    for number in range(100):
        (folder / f"class{number:03d}").mkdir(parents=True)
    sizes = rng.integers(20_000, 100_001, images)
    for number, (size, begin) in enumerate(zip(sizes, rng.integers(0, 2**26 - 100_001, images), strict=True)):
        path = folder / f"class{number % 100:03d}" / f"{number:06d}.jpg"
        path.write_bytes(header + number.to_bytes(8, "little") + noise[begin : begin + size - len(header) - 8])
    return int(sizes.sum())


def run(command: list[str]) -> tuple[float, float]:
    """Run a command; return elapsed and processor seconds."""
    os.sync()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    elapsed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    source, out = given.folder / "source", given.folder / "out"
    commands = {
        "import": [sys.executable, "-m", "parquet_loader", "import", "images", str(source), str(out)],
        "cp -r": ["cp", "-r", str(source), str(out)],
        "packing": [sys.executable, "-c", PACK, str(source), str(out)],
    }
    try:
        print(f"{make(source, given.images) / 1e9:.2f} GB")
        for _ in range(given.rounds):
            for name, command in commands.items():
                elapsed, processor = run(command)
                print(f"{name:8} {elapsed:.1f} s, processor {processor:.1f} s", flush=True)
                shutil.rmtree(out)
    finally:
        shutil.rmtree(source, ignore_errors=True)


if __name__ == "__main__":
    main()
