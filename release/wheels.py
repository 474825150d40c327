"""Builds the source distribution and the wheels of all platforms into `dist/`, and checks them.

    python release/wheels.py [--platform PLATFORM ...] [--out dist]

Needs Linux on x86-64, gcc, and the packages of `release/requirements.txt`, whose clang (`ziglang`) compiles for the
other platforms. The kernels are loaded with `ctypes`, so one wheel serves all versions of Python 3. libdeflate and zstd
are linked in: their sources come from source distributions on the package index, by the digests below.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
KERNELS = "parquet_loader/common/native/kernels.so"
LICENCES = ("parquet_loader/common/native/licences/libdeflate.txt", "parquet_loader/common/native/licences/zstd.txt")
# These flags, with --gc-sections, leave out unused functions: all of zstd's compression.
FLAGS = ("-ffunction-sections", "-fdata-sections", "-g0", "-s")
# The codecs must not export their functions: otherwise they would use those of another copy in the same process.
EXPORTED = re.compile(rb'__attribute__ ?\(\(visibility ?\("default"\)\)\)')


@dataclass(frozen=True)
class Source:
    """A C library whose sources come from the source distribution of another project."""

    library: str
    project: str
    version: str
    sha256: str
    folder: str
    files: tuple[str, ...]
    licence: str


SOURCES = (
    Source(
        library="zstd",
        project="zstandard",
        version="0.25.0",
        sha256="7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b",
        folder="zstd",
        files=("zstd.c",),
        licence="LICENSE",
    ),
    Source(
        library="libdeflate",
        project="deflate",
        version="0.9.0",
        sha256="962e0a6f1ea3a94b900a8ea0ce138fa92bfcbafda5b86367104a259ffcd3462b",
        folder="libdeflate",
        files=(
            *("*.h", "lib/*.h", "lib/arm/*.h", "lib/x86/*.h", "lib/riscv/*.h", "lib/*/cpu_features.c"),
            *("lib/crc32.c", "lib/deflate_decompress.c", "lib/gzip_decompress.c", "lib/utils.c"),
        ),
        licence="COPYING",
    ),
)


@dataclass(frozen=True)
class Target:
    """A platform tag, and the compiler settings for it.

    On x86-64, gcc compiles: zig's clang would use its own `memcpy`, which costs large rows a sixth more processor time.
    The symbols that gcc's library needs exist since glibc 2.14.
    """

    platform: str
    compiler: str
    linking: tuple[str, ...] = ("-Wl,--gc-sections",)
    file: str = ""

    def settings(self, codecs: Path) -> dict[str, object]:
        """Return the settings for `release/hatch_build.py`."""
        options = [*FLAGS, *self.linking]
        return {"platform": self.platform, "compiler": self.compiler, "options": options, "codecs": str(codecs)}


def zig(target: str) -> str:
    """Return the command of zig's clang for a target, which includes the oldest supported version of the system."""
    return f"{sys.executable} -m ziglang cc -target {target}"


# Without -install_name, a library contains the path at which it was linked.
MACOS = ("-Wl,-dead_strip", "-Wl,-install_name,@rpath/kernels.so")
TARGETS = (
    Target("manylinux_2_17_x86_64", "gcc", file=r"ELF 64-bit LSB shared object, x86-64"),
    Target("manylinux_2_17_aarch64", zig("aarch64-linux-gnu.2.17"), file=r"ELF 64-bit LSB shared object, ARM aarch64"),
    Target("macosx_11_0_arm64", zig("aarch64-macos.11.0"), MACOS, r"Mach-O 64-bit arm64"),
    Target("macosx_11_0_x86_64", zig("x86_64-macos.11.0"), MACOS, r"Mach-O 64-bit x86_64"),
    Target("any", ""),  # for every other platform: Arrow decodes everything
)


def fetch(source: Source, folder: Path, codecs: Path) -> None:
    """Put the sources of a library into `codecs/<library>`, and its licence next to that folder."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    run([*pip, "--no-build-isolation", "--dest", str(folder), f"{source.project}=={source.version}"])
    archive = folder / f"{source.project}-{source.version}.tar.gz"
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != source.sha256:
        sys.exit(f"{archive.name}: its SHA-256 is {found}, not {source.sha256}; nothing is built from it")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    top = folder / f"{source.project}-{source.version}" / source.folder
    for pattern in source.files:
        for path in top.glob(pattern):
            copy = codecs / source.library / path.relative_to(top)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(EXPORTED.sub(b"", path.read_bytes()))
    shutil.copyfile(top / source.licence, codecs / f"{source.library}.txt")


def run(command: Sequence[str], **variables: str) -> str:
    """Run a command in the root of the repository; return its output. A failure ends this program."""
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


def check(wheel: Path, target: Target) -> str:
    """Check the contents of a wheel; return a summary, or end this program."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        if target.platform == "any":
            wrong = names & {KERNELS, *LICENCES}
            return f"no kernels, {len(names)} files" if not wrong else sys.exit(f"{wheel.name} holds {sorted(wrong)}")
        missing = {KERNELS, *LICENCES} - names
        if missing:
            sys.exit(f"{wheel.name} lacks {sorted(missing)}")
        with tempfile.TemporaryDirectory() as folder:
            kind = run(["file", "--brief", packed.extract(KERNELS, folder)])
        if tempfile.gettempdir().encode() in packed.read(KERNELS):
            sys.exit(f"{wheel.name}: the kernels name a path of this machine")
    if not re.match(target.file, kind):
        sys.exit(f"{wheel.name}: the kernels are {kind}")
    if target.platform.startswith("manylinux"):
        shown = run([sys.executable, "-m", "auditwheel", "show", str(wheel)])
        if f'"{target.platform}"' not in shown:
            sys.exit(f"{wheel.name}: auditwheel sees another platform:\n{shown}")
    return f"kernels, {len(names)} files"


def main() -> None:
    """Build and check the source distribution and the wheels, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = [target.platform for target in TARGETS]
    parser.add_argument("--platform", action="append", choices=known, help="may be repeated; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit("release/wheels.py runs on Linux on x86-64, from where it builds for all platforms")
    out: Path = given.out.resolve()
    for old in (*out.glob("*.whl"), *out.glob("*.tar.gz")):
        old.unlink()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run([sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(out), "."])
        (archive,) = out.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        checkout = str(folder / archive.name.removesuffix(".tar.gz"))  # wheels are built from the source distribution
        codecs = folder / "codecs"
        codecs.mkdir()
        for source in SOURCES:
            fetch(source, folder, codecs)
        for target in TARGETS:
            if given.platform and target.platform not in given.platform:
                continue
            settings = folder / "target.json"
            settings.write_text(json.dumps(target.settings(codecs)))
            before = set(out.glob("*.whl"))
            command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), checkout]
            run(command, PARQUET_LOADER_WHEEL=str(settings))
            (wheel,) = set(out.glob("*.whl")) - before
            print(f"{wheel.name}: {check(wheel, target)}", flush=True)
    print(run([sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir()))]), end="")


if __name__ == "__main__":
    main()
