"""Compiles the kernels when a wheel or an editable installation is built, if there is a C compiler.

Without a compiler, the package is built without kernels, and Arrow decodes everything. `release/wheels.py` builds for
several platforms: it sets PARQUET_LOADER_WHEEL to the path of a JSON file with the result of `Target.settings`. Then a
failed compilation is an error.
"""

from __future__ import annotations

import json
import os
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
        build = runpy.run_path(str(Path(self.root) / NATIVE / "build.py"))["build"]
        settings = os.environ.get("PARQUET_LOADER_WHEEL")
        if settings:
            self._for_target(build, json.loads(Path(settings).read_text()), build_data)
            return
        reason = build()
        if reason:
            self.app.display_warning(f"the kernels were not compiled, Arrow decodes everything: {reason}")
            return
        _add_kernels(build_data, sysconfig.get_platform().replace("-", "_").replace(".", "_"))

    def _for_target(self, build: Any, target: dict[str, Any], build_data: dict[str, Any]) -> None:
        if target["platform"] == "any":
            return
        codecs = Path(target["codecs"])
        reason = build(compiler=target["compiler"], codecs=codecs, options=tuple(target["options"]))
        if reason:
            raise RuntimeError(f"{target['platform']}: the kernels were not compiled: {reason}")
        _add_kernels(build_data, target["platform"])
        for licence in codecs.glob("*.txt"):
            build_data["force_include"][str(licence)] = str(NATIVE / "licences" / licence.name)

    def clean(self, versions: list[str]) -> None:  # noqa: ARG002 - the interface
        """Remove the compiled library."""
        (Path(self.root) / NATIVE / "kernels.so").unlink(missing_ok=True)


def _add_kernels(build_data: dict[str, Any], platform: str) -> None:
    build_data["artifacts"].append(str(NATIVE / "kernels.so"))
    build_data["pure_python"] = False
    build_data["tag"] = f"py3-none-{platform}"
