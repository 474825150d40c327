"""The parent's side of a measured process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.suite.places import ROOT


class WorkerError(Exception):
    """The process failed, ended, or took too long; the message says which, and gives the path of its output."""


class WorkerUnsupported(Exception):
    """The system cannot do this; the message says why."""


class Worker:
    """A process that runs one system, in its own process group, which `close` ends."""

    def __init__(self, python: Path, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        theirs_in, self._requests = os.pipe()
        self._answers, theirs_out = os.pipe()
        self._rest = b""
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONNOUSERSITE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.suite.worker", str(theirs_in), str(theirs_out)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs_in, theirs_out),
                cwd=ROOT,
                env=variables,
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            WorkerError: no good answer came within `timeout_s`.
            WorkerUnsupported: the system cannot do it.
        """
        with contextlib.suppress(BrokenPipeError):  # it ended; the missing answer tells
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._line(request["do"], timeout_s))
        if "unsupported" in answer:
            raise WorkerUnsupported(answer["unsupported"])
        if "error" in answer:
            raise WorkerError(f"{answer['error']} (output: {self.log})")
        return answer

    def _line(self, what: str, timeout_s: float) -> bytes:
        until = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise WorkerError(f"{what}: no answer within {timeout_s:.0f} s (output: {self.log})")
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                code = self._process.wait()
                raise WorkerError(f"{what}: the process ended with code {code} (output: {self.log})")
            self._rest += piece
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def close(self, grace_s: float = 10.0) -> None:
        """Let the process end, and kill the rest of its group."""
        if self._requests < 0:
            return
        os.close(self._requests)
        os.close(self._answers)
        self._requests = self._answers = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(10.0 if kind is None else 0.5)
