"""Changes pages for as long as is asked, and compares the loader with pyarrow, under gcc's sanitizers if there is gcc.

    python -m tests.support.fuzz_pages [--seconds 600] [--seed 0] [--plain]

Each round draws new changes from its seed, by which `faults` finds them again, `faults_of_conversions` with columns in
other types, and `faults_with_deletes` with rows that a Delta table deletes. A fault is a value that pyarrow does not
read, a page that pyarrow refuses and the loader does not, or an access out of bounds. `--plain`: without sanitizers,
about three times faster.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parquet_loader.common.native.build import build
from tests.support.mutated_pages import faults, faults_of_conversions, faults_with_deletes

FILES_A_ROUND = 2000
# With one target there are no functions that the system's loader chooses, which would run before the sanitizer does.
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DONE_TARGET")
# The loops of the processors of most users, which the kernels choose by themselves.
VECTORS = ("-DHAS_TARGETS",) if platform.machine() == "x86_64" and sys.platform == "linux" else ()


def sanitized(folder: Path) -> dict[str, str]:
    """Build the kernels with sanitizers; return the environment of a process that uses them."""
    compiler = shutil.which("gcc")
    if compiler is None:
        sys.exit("there is no gcc, whose sanitizers this needs; --plain runs without")
    os.environ["CC"] = compiler
    problem = build(folder / "kernels.so", options=SANITIZERS + VECTORS)
    if problem:
        sys.exit(f"the kernels were not compiled: {problem}")
    # Arrow's exceptions are thrown through the sanitizer, which has to find the C++ library first.
    asked = ([compiler, f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so"))
    found = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for command in asked]
    return {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PARQUET_LOADER_KERNELS": str(folder / "kernels.so"),
    }


def fuzz(seconds: float, seed: int) -> None:
    """Run rounds until the time is over or there is a fault."""
    end, files, both = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for check in (faults, faults_of_conversions, faults_with_deletes):
                found, read = check(Path(folder), FILES_A_ROUND, seed)
                if found:
                    sys.exit(f"{check.__name__}, seed {seed}:\n" + "\n".join(found))
                files, both = files + FILES_A_ROUND, both + read
            seed += 1
            print(f"{files:,} files, {both:,} of them read by both, no fault; next seed {seed}", flush=True)


def main() -> None:
    """Fuzz in this process, or in one that preloads the sanitizers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    if options.plain:
        fuzz(options.seconds, options.seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.support.fuzz_pages", "--plain"]
        command += ["--seconds", str(options.seconds), "--seed", str(options.seed)]
        sys.exit(subprocess.run(command, env={**os.environ, **sanitized(Path(folder))}, check=False).returncode)


if __name__ == "__main__":
    main()
