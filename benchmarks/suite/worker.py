"""The measured process: opens one system, then runs an epoch on each command.

    python -m benchmarks.suite.worker REQUESTS_FD ANSWERS_FD

Requests and answers are lines of JSON on two separate pipes, because systems may print to standard output. The process
ends when the pipe of requests is closed.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from benchmarks.suite.checksum import Checksum, ChecksumError
from benchmarks.suite.systems.base import Batch, Job, System, Unsupported, versions

_PR_SET_PDEATHSIG = 1


def main() -> None:
    # Whatever ends the parent ends this process too, in the middle of an epoch as well.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with os.fdopen(int(sys.argv[1])) as requests, os.fdopen(int(sys.argv[2]), "w") as answers:
        system: System | None = None
        for line in requests:
            request = json.loads(line)
            try:
                if request["do"] == "open":
                    system, answer = _open(request)
                else:
                    assert system is not None
                    if request.get("warms"):
                        _epoch(system)
                    answer = {"checksum": _checksum, "epoch": _epoch}[request["do"]](system)
            except Unsupported as reason:
                answer = {"unsupported": str(reason)}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        if system is not None:
            system.close()


def _open(request: Mapping[str, Any]) -> tuple[System, dict[str, Any]]:
    if request.get("cores"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request["cores"]])
    module = importlib.import_module(f"benchmarks.suite.systems.{request['system']}")
    began = time.perf_counter()
    system: System = module.open_system(Job.from_json(request["job"]))
    seconds = time.perf_counter() - began
    used = {"python": platform.python_version(), **versions(*module.PACKAGES)}
    return system, {"open_s": seconds, "versions": used}


def _epoch(system: System) -> dict[str, Any]:
    rows = batches = 0
    processor_s = time.process_time()
    first_s = 0.0
    began = time.perf_counter()
    for batch in system.epoch():
        if not batches:
            first_s = time.perf_counter() - began
        batches += 1
        rows += _length(next(iter(batch.values())))
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "first_batch_s": first_s,
        "rows": rows,
        "batches": batches,
        "processor_s": time.process_time() - processor_s,
        "figures": system.figures(),
    }


def _checksum(system: System) -> dict[str, Any]:
    checksum = Checksum(system.job.columns)
    for batch in system.checked_epoch():
        checksum.add(_arrays(batch) if system.delivers_tensors else batch)
    return {"rows": checksum.rows, "checksum": str(checksum) if checksum.rows else None}


def _length(value: Any) -> int:
    offsets = value[1] if isinstance(value, tuple | list) else getattr(value, "offsets", None)
    return len(value) if offsets is None else len(offsets) - 1


def _arrays(batch: Batch) -> dict[str, Any]:
    """Return a batch's tensors as numpy arrays.

    Raises:
        ChecksumError: a value in it is not a tensor.
    """
    import torch  # noqa: PLC0415  (the limits do without)

    def array(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            raise ChecksumError(f"column {name}: expected a tensor, got {type(value).__name__}")
        return value.numpy()

    out: dict[str, Any] = {}
    for name, value in batch.items():
        pair = value if isinstance(value, tuple | list) else None  # torch's `DataLoader` makes lists of tuples
        if hasattr(value, "offsets") and hasattr(value, "lengths") and not isinstance(value, torch.Tensor):
            pair = (value.values, value.offsets)
        out[name] = array(name, value) if pair is None else tuple(array(name, part) for part in pair)
    return out


if __name__ == "__main__":
    main()
