"""Processes each in namespaces of its own, as on machines that share a directory.

Process ids repeat (each is number 1), host names differ, and each sees the directory under another path, by a mount of
its own. Linux, and the right to make namespaces (root).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

from tests.store import kills
from tests.support.doomed import say

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_PROCESSES = 0x20000, 0x4000000, 0x20000000
_BIND, _PRIVATE, _RECURSIVE = 0x1000, 0x40000, 0x4000
_PARENT_DEATH_SIGNAL = 1


def _call(name: str, *arguments: Any) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _unshare() -> None:
    _call("unshare", _NEW_MOUNTS | _NEW_HOST_NAME | _NEW_PROCESSES)
    _call("mount", None, b"/", None, _PRIVATE | _RECURSIVE, None)


def _mount(what: Path, where: Path) -> None:
    _call("mount", bytes(what), bytes(where), None, _BIND, None)


def refusal(path: Path) -> str | None:
    """Return why namespaces cannot be had here, or None."""
    hear, tell = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if not child:
        try:
            path.mkdir(parents=True)
            _unshare()
            _mount(path, path)
            socket.sethostname("machine")
            tell.send(None)
        except OSError as error:
            tell.send(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return str(why) if (why := hear.recv()) else None


def _on_machine(kind: str, path: str, number: int, log: str, inner: Any) -> None:
    """Fork into namespaces of its own and work there; end as that ends."""
    here = Path(path).parent / f"machine-{number}"
    (here / "store").mkdir(parents=True)
    _unshare()
    child = os.fork()
    if not child:
        _call("prctl", _PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        socket.sethostname(f"machine-{number}")
        _mount(Path(path), here / "store")
        say(log, host=socket.gethostname(), pid=os.getpid())
        kills.work(kind, str(here / "store"), number, log, kills.evictions(Path(path)))
        os._exit(0)
    inner.value = child
    os.waitpid(child, 0)


class Machine:
    """A process in namespaces of its own, used as `multiprocessing.Process`."""

    def __init__(self, kind: str, path: str, number: int, log: str) -> None:
        context = kills.starting()
        self._inner = context.Value("i", 0)
        self._outer = context.Process(target=_on_machine, args=(kind, path, number, log, self._inner))
        self._outer.start()

    @property
    def exitcode(self) -> int | None:
        code: int | None = self._outer.exitcode
        return code

    def join(self, timeout_s: float | None = None) -> None:
        self._outer.join(timeout_s)

    def kill(self) -> None:
        if self._inner.value:
            os.kill(self._inner.value, signal.SIGKILL)
        else:  # it has not come so far
            self._outer.kill()

    def close(self) -> None:
        self._outer.close()
