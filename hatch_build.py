"""Compiles the kernels while a wheel is built, or an editable installation, where there is a C compiler.

Without one the package is built all the same: Arrow then decodes everything.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("parquet_loader", "native", "kernels.c")
LIBRARY = SOURCE.with_suffix(".so")
FLAGS = ("-O3", "-shared", "-fPIC", "-fno-strict-aliasing")


class Kernels(BuildHookInterface[Any]):
    """Builds `LIBRARY`, and marks the wheel as one for this platform and any Python 3."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface
        """Compile before files are collected."""
        reason = compiled(Path(self.root))
        if reason:
            self.app.display_warning(f"{SOURCE} was not compiled, Arrow decodes everything: {reason}")
            return
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def clean(self, versions: list[str]) -> None:  # noqa: ARG002 - the interface
        """Remove what `initialize` made."""
        (Path(self.root) / LIBRARY).unlink(missing_ok=True)


def compiled(root: Path) -> str | None:
    """Make the library in a source tree; return why that could not be done, or None."""
    if os.name != "posix" or sys.byteorder != "little":
        return "this platform has no kernels"
    (root / LIBRARY).unlink(missing_ok=True)  # of another machine, or of older source
    reason = "there is no C compiler"
    names = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    with tempfile.TemporaryDirectory(dir=root / LIBRARY.parent) as folder:
        made = Path(folder) / LIBRARY.name
        for name in dict.fromkeys(filter(None, names)):
            # Older compilers and other C libraries know no code for several targets.
            for more in ((), ("-DONE_TARGET",)):
                command = [*shlex.split(name), *FLAGS, *more, str(root / SOURCE), "-o", str(made)]
                try:
                    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
                except subprocess.CalledProcessError as error:
                    reason = f"{shlex.join(command)}: {error.stderr.strip()[-500:]}"
                except (OSError, subprocess.TimeoutExpired) as error:
                    reason = reason if isinstance(error, FileNotFoundError) else str(error)
                else:
                    made.replace(root / LIBRARY)
                    return None
    return reason
