"""Compiles the kernels if there is a C compiler, during installation or by hand.

    python parquet_loader/common/native/build.py

Wheels link the sources of libdeflate and zstd (`codecs`). Without them, the kernels look for the system's libraries
when they are loaded. This module imports nothing but Python's own, so it runs before the package can be imported.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("src")
LIBRARY = Path(__file__).with_name("kernels.so")
FLAGS = (
    "-O3",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-Werror=implicit-function-declaration",
)
NO_PLATFORM = "this platform has no kernels"


def digest() -> str:
    """Return a digest of the C source, by which a library built from other source is recognised."""
    whole = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.[ch]")):
        whole.update(path.name.encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def build(
    library: Path = LIBRARY, *, options: tuple[str, ...] = (), compiler: str | None = None, codecs: Path | None = None
) -> str | None:
    """Compile the library; return None, or the reason why it failed.

    Args:
        library: The file to write; an older one is replaced, or removed if this fails.
        options: More options for the compiler, after the default ones.
        compiler: The only command to try, for whatever platform it compiles; None tries those of this platform.
        codecs: A folder with the sources of `libdeflate` and `zstd` to link in.
    """
    try:
        library.unlink(missing_ok=True)
        if compiler is None and (os.name != "posix" or sys.byteorder != "little"):
            return NO_PLATFORM
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            commands = compilers() if compiler is None else [compiler]
            return _compile(commands, library, Path(folder) / library.name, options, codecs)
    except (OSError, ValueError) as error:  # nothing can be written there, or $CC is not a command
        return str(error)


def compilers() -> list[str]:
    """Return the commands to try as C compilers; a command may include options."""
    names = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    return list(dict.fromkeys(filter(None, names)))


def _compile(
    commands: list[str], library: Path, made: Path, options: tuple[str, ...], codecs: Path | None
) -> str | None:
    reason = "there is no C compiler"
    sources = [str(path) for path in sorted(SOURCE.rglob("*.c"))]
    if codecs is not None:
        options = (*options, "-DBUNDLED_CODECS")
        sources += [str(path) for path in sorted(codecs.rglob("*.c"))]
    for name in commands:
        # Older compilers and other C libraries do not support functions compiled for several targets.
        for more in ((), ("-DONE_TARGET",)):
            flags = (*FLAGS, *options, *more, f'-DDIGEST="{digest()}"')
            command = [*shlex.split(name), *flags, *sources, "-o", str(made)]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=300)
            except subprocess.CalledProcessError as error:
                reason = f"{shlex.join(command)}: {error.stderr.strip()[-500:]}"
            except FileNotFoundError:
                break
            except (OSError, subprocess.TimeoutExpired) as error:
                reason = str(error)
            else:
                made.replace(library)
                return None
    return reason


if __name__ == "__main__":
    problem = build()
    if problem:
        sys.exit(f"the kernels were not compiled: {problem}")
    sys.stdout.write(f"compiled {LIBRARY}\n")
