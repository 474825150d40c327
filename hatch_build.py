"""Compiles the kernels while a wheel is built, or an editable installation, where there is a C compiler.

Without one the package is built all the same: Arrow then decodes everything.
"""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("parquet_loader", "common", "native")


class Kernels(BuildHookInterface[Any]):
    """Builds the library, and marks the wheel as one for this platform and any Python 3."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface
        """Compile before files are collected."""
        reason = runpy.run_path(str(Path(self.root) / NATIVE / "build.py"))["build"]()
        if reason:
            self.app.display_warning(f"the kernels were not compiled, Arrow decodes everything: {reason}")
            return
        build_data["artifacts"].append(str(NATIVE / "kernels.so"))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def clean(self, versions: list[str]) -> None:  # noqa: ARG002 - the interface
        """Remove what `initialize` made."""
        (Path(self.root) / NATIVE / "kernels.so").unlink(missing_ok=True)
