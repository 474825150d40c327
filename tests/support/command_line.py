"""Commands as a shell runs them, without a new interpreter for each."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from unittest import mock

from parquet_loader.cli import run


def run_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: its exit status, and what it wrote to Python's stdout and stderr."""
    command = ["parquet-loader", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "argv", command):
        try:
            run()
        except SystemExit as ended:
            status = ended.code
        else:
            raise AssertionError("a command ends by SystemExit")
    assert isinstance(status, int)
    return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())
