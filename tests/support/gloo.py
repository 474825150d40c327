"""Scripts on several ranks of the real `torch.distributed`, with gloo."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.ports import unused_port
from tests.support.processes import forkserver

HANG_S = 280

# A rank ends in order: the objects of the script are freed and gloo's threads end with the group, before the
# interpreter does. A thread of gloo that frees a tensor while the interpreter ends asks for the GIL, is ended there,
# and takes the process with it ("terminate called without an active exception").
SCRIPT = """
import datetime, gc, json, os, sys, traceback
import torch, torch.distributed as dist
import pyarrow.compute as pc
from parquet_loader import BatchedDataLoader, ParquetLoaderError, ShardOptions

root, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


def main(rank, world):
{script}


def run(rank):
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{{folder}}/{{rank}}.{{name}}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.environ["RANK"] = str(rank)
    # In a file: the server of a first group might still answer ranks that make another one.
    group = dict(init_method=f"file://{{folder}}/ranks", rank=rank, world_size=count)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={timeout_s}), **group)
    dist.barrier()  # a script that ends this group at once would break connections that another rank still makes
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
    if not failed:  # freeing all of torch takes a second; test_endings.py shows that the interpreter ends
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    sys.exit(1)


ranks = []
for rank in range(count):
    ranks.append(os.fork())
    if not ranks[-1]:
        run(rank)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
with open(f"{{folder}}/codes", "w") as file:
    json.dump(codes, file)
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one rank's process ended."""

    returncode: int
    stdout: str
    stderr: str


def run_on_ranks(count: int, root: str, script: str, folder: Path, timeout_s: int = 240) -> list[Ended]:
    """Run a script on that many ranks; `timeout_s` is the time limit of their collectives."""
    file = folder / "script.py"
    (folder / "ranks").unlink(missing_ok=True)
    file.write_text(SCRIPT.format(script=textwrap.indent(textwrap.dedent(script), "    "), timeout_s=timeout_s))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}  # for scripts that make another group
    environment = os.environ | address | {"WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    code = _run([str(file), root, str(folder), str(count)], environment, trains="DistributedData" in script)
    said = [file.read_text()[-2000:] for file in sorted(folder.glob("*.err"))]
    assert code == 0, f"the process that starts the ranks ended with {code}; its ranks said: {said}"
    return [
        Ended(code, *((folder / f"{rank}.{name}").read_text() for name in ("out", "err")))
        for rank, code in enumerate(json.loads((folder / "codes").read_text()))
    ]


def _run(arguments: list[str], environment: dict[str, str], *, trains: bool) -> int:
    """Run a script in a process of its own, which forks its ranks, and return its exit code."""
    leader = forkserver().Process(target=_lead, args=(arguments, os.getcwd(), environment, trains))
    leader.start()
    try:
        leader.join(HANG_S)
    finally:  # the test's own time limit may have raised
        if leader.exitcode is None:
            assert leader.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)
            leader.kill()  # if it has no group yet
            leader.join()
    assert leader.exitcode is not None
    return leader.exitcode


def _lead(arguments: list[str], directory: str, environment: dict[str, str], trains: bool) -> None:
    os.setsid()  # with its ranks it can be killed alone
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    if trains:
        importlib.import_module("torch._dynamo")  # as DistributedDataParallel does, once for all ranks
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def on_ranks(count: int, root: str, script: str, folder: Path) -> list[Any]:
    """Run a script on that many ranks; return the JSON that each prints last."""
    ended = run_on_ranks(count, root, script, folder)
    assert [one.returncode for one in ended] == [0] * count, [one.stderr[-2000:] for one in ended]
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]
