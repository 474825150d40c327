"""Scripts on several ranks of the real `torch.distributed`, with gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANG_S = 280

# One process imports torch and forks, so that all ranks together pay for the import once. A rank ends in order: the
# objects of the script are freed and gloo's threads end with the group, before the interpreter does. A thread of gloo
# that frees a tensor while the interpreter ends asks for the GIL, is ended there, and takes the process with it
# ("terminate called without an active exception").
SCRIPT = """
import datetime, gc, json, os, sys, traceback
import torch, torch.distributed as dist
import pyarrow.compute as pc
from parquet_loader import BatchedDataLoader, ParquetLoaderError, ShardOptions
if {trains}:
    import torch._dynamo  # as DistributedDataParallel does

root, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


def main(rank, world):
{script}


def run(rank):
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{{folder}}/{{rank}}.{{name}}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={timeout_s}))
    failed = False
    try:
        main(rank, count)
    except Exception:
        traceback.print_exc()
        failed = True
    gc.collect()
    if dist.is_initialized():
        if not failed:
            dist.barrier()  # nobody leaves while another rank is in a collective
        dist.destroy_process_group()
    sys.exit(failed)


ranks = []
for rank in range(count):
    ranks.append(os.fork())
    if not ranks[-1]:
        run(rank)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]))
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one rank's process ended."""

    returncode: int
    stdout: str
    stderr: str


def run_on_ranks(count: int, root: str, script: str, folder: Path, timeout_s: int = 240) -> list[Ended]:
    """Run a script on that many ranks; `timeout_s` is the time limit of their collectives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = folder / "script.py"
    body = textwrap.indent(textwrap.dedent(script), "    ")
    file.write_text(SCRIPT.format(script=body, timeout_s=timeout_s, trains="DistributedDataParallel" in script))
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(file), root, str(folder), str(count)],
        env=os.environ | group, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=HANG_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    return [
        Ended(code, *((folder / f"{rank}.{name}").read_text() for name in ("out", "err")))
        for rank, code in enumerate(json.loads(out))
    ]


def on_ranks(count: int, root: str, script: str, folder: Path) -> list[Any]:
    """Run a script on that many ranks; return the JSON that each prints last."""
    ended = run_on_ranks(count, root, script, folder)
    assert [one.returncode for one in ended] == [0] * count, [one.stderr[-2000:] for one in ended]
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]
