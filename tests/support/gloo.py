"""Scripts on several ranks of the real `torch.distributed`, with gloo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANG_S = 280

# One process imports torch and forks: a leader for each script, which forks its ranks. So all scripts of a test file
# pay for the import once.
SERVER = """
import json, os, runpy, sys
import torch, torch.distributed
import pyarrow.compute
import parquet_loader
from parquet_loader import BatchedDataLoader, ParquetLoaderError, ShardOptions

for line in sys.stdin:
    asked = json.loads(line)
    if asked["trains"]:
        import torch._dynamo  # as DistributedDataParallel does
    leader = os.fork()
    if not leader:
        os.setsid()  # with its ranks it can be killed alone
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(asked["directory"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = asked["arguments"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        break
    print(json.dumps({"leader": leader}), flush=True)
    print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])}), flush=True)
"""

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

_server: subprocess.Popen[str] | None = None


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
    file.write_text(SCRIPT.format(script=textwrap.indent(textwrap.dedent(script), "    "), timeout_s=timeout_s))
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    code = _run([str(file), root, str(folder), str(count)], os.environ | group, trains="DistributedData" in script)
    assert code == 0, f"the process that starts the ranks ended with {code}"
    return [
        Ended(code, *((folder / f"{rank}.{name}").read_text() for name in ("out", "err")))
        for rank, code in enumerate(json.loads((folder / "codes").read_text()))
    ]


def _run(arguments: list[str], environment: dict[str, str], *, trains: bool) -> int:
    """Run a script in a fork of the server, and return its exit code."""
    global _server
    if _server is None or _server.poll() is not None:
        _server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert _server.stdin is not None
    assert _server.stdout is not None
    asked = {"arguments": arguments, "directory": os.getcwd(), "environment": environment, "trains": trains}
    _server.stdin.write(json.dumps(asked) + "\n")
    _server.stdin.flush()
    leader = json.loads(_server.stdout.readline())["leader"]
    hangs = threading.Timer(HANG_S, os.killpg, (leader, signal.SIGKILL))
    hangs.start()
    try:
        return int(json.loads(_server.stdout.readline())["code"])
    except BaseException:  # the test's own time limit, for one
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        stop()
        raise
    finally:
        hangs.cancel()


def stop() -> None:
    """End the process that imported torch, if there is one."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.kill()
        server.communicate()


def on_ranks(count: int, root: str, script: str, folder: Path) -> list[Any]:
    """Run a script on that many ranks; return the JSON that each prints last."""
    ended = run_on_ranks(count, root, script, folder)
    assert [one.returncode for one in ended] == [0] * count, [one.stderr[-2000:] for one in ended]
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]
