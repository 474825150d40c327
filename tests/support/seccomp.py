"""Refuses system calls, as the seccomp profile of a container does (Linux)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# Numbers on x86-64 and on ARM.
CALLS = {
    "getpriority": (140, 141),
    "memfd_create": (319, 279),
    "pidfd_open": (434, 434),
    "prlimit64": (302, 261),
    "sched_getaffinity": (204, 123),
    "sched_getscheduler": (145, 120),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "socketpair": (53, 199),
}
_MACHINES = ("x86_64", "aarch64")
IS_POSSIBLE = hasattr(os, "memfd_create") and platform.machine() in _MACHINES
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _SKIP_UNLESS, _RETURN = 0x20, 0x15, 0x06
_ERROR, _ALLOW = 0x00050000, 0x7FFF0000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def refuse(*names: str) -> None:
    """Let these system calls fail with EPERM, for ever: in this thread, the threads it starts, and child processes."""
    lines = [(_LOAD, 0, 0, 0)]
    for name in names:
        lines += [(_SKIP_UNLESS, 0, 1, CALLS[name][_MACHINES.index(platform.machine())])]
        lines += [(_RETURN, 0, 0, _ERROR | errno.EPERM)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    program = _Program(len(lines), b"".join(struct.pack("HBBI", *line) for line in lines))
    library = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if library.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
