"""Scripts on several ranks of the real `torch.distributed`, with gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANG_S = 280

# A process ends in order: what the script made is let go of, and with the group gloo's threads end, before the
# interpreter does. A thread of gloo's that lets go of a tensor while the interpreter ends asks for Python's lock, is
# ended there, and takes the process with it ("terminate called without an active exception").
SCRIPT = """
import datetime, gc, json, os, sys, traceback
import torch, torch.distributed as dist
import pyarrow.compute as pc
from parquet_loader import BatchedDataLoader, ParquetLoaderError, ShardOptions

root = sys.argv[1]


def main(rank, world):
{script}


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={timeout_s}))
failed = False
try:
    main(dist.get_rank(), dist.get_world_size())
except Exception:
    traceback.print_exc()
    failed = True
gc.collect()
if dist.is_initialized():
    if not failed:
        dist.barrier()  # nobody leaves while another rank is in a collective
    dist.destroy_process_group()
sys.exit(failed)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one rank's process ended."""

    returncode: int
    stdout: str
    stderr: str


def run_on_ranks(count: int, root: str, script: str, folder: Path, timeout_s: int = 240) -> list[Ended]:
    """Run a script on so many ranks; `timeout_s` is the time limit of their collectives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = folder / "script.py"
    body = textwrap.indent(textwrap.dedent(script), "    ")
    file.write_text(SCRIPT.format(script=body, timeout_s=timeout_s))
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(file), root],
            env={**environment, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=HANG_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [Ended(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


def on_ranks(count: int, root: str, script: str, folder: Path) -> list[Any]:
    """Run a script on so many ranks; return the JSON that each prints last."""
    ended = run_on_ranks(count, root, script, folder)
    assert [one.returncode for one in ended] == [0] * count, [one.stderr[-2000:] for one in ended]
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]
