"""Starts and ends the library's child processes, and sends their errors to the parent."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from parquet_loader.common import is_out_of_descriptors, out_of_descriptors, raise_limit, signal_name
from parquet_loader.errors import ReadingProcessError

# Niceness of the child, so that training wins if both need the processor. On two processors, a training loop busy in
# Python lost 4 to 7 percent of its time to two reading threads, and almost none with this niceness.
NICENESS = 5
KILLED_S = 5.0
_POLL_PARENT_MS = 250
# Names of the script as a module; a process that `multiprocessing` spawns imports it by the second name.
SCRIPT_MODULES = ("__main__", "__mp_main__")
_ORIGINAL = "_pickled_error"
_STDOUT, _STDERR = 1, 2
# The exit code of a process that could not start its thread; `EX_OSERR` of <sysexits.h>. A transform may exit with it.
_NO_THREAD = 71
# File descriptors that a start needs: a socket pair, and those that `subprocess` opens.
_START_DESCRIPTORS = 6
# `sys.path` is replaced before any import: it begins with the working directory, whose files may shadow modules.
# Imports leave next to no garbage; to look for it takes a tenth of their time.
_START = """
import gc, sys
gc.disable()
sys.path[:] = sys.argv[3:]
if sys.stdout is not None:
    sys.stdout.reconfigure(line_buffering=True)  # the process is killed, or ends without flushing
from {module} import main
gc.enable()
main(int(sys.argv[1]), int(sys.argv[2]))
"""


def start_process(
    option: str, module: str, *, has_own_group: bool = True, environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start an interpreter that calls a module's `main` with a socket and this process's id; return it and our socket.

    A plain subprocess needs no main guard, and works in notebooks and in daemonic workers. Call this while SIGINT is
    deferred.

    Args:
        option: The loader's argument that asks for the process; error messages begin with it.
        module: The name of the module.
        has_own_group: Whether it leads a process group of its own, so that Ctrl-C at a terminal does not reach it.
        environment: Its environment; None for that of this process.

    Raises:
        ReadingProcessError: It cannot be started, or this program is frozen and has no interpreter.
        OpenFilesError: This process may open no more files.
    """
    # A frozen program would start itself, and its copy another one, without end.
    if not sys.executable or getattr(sys, "frozen", False):
        raise ReadingProcessError(
            f"{option}: there is no Python interpreter to start: sys.executable is {sys.executable!r}"
            f"{', a frozen program' if sys.executable else ''}; leave this option out"
        )
    try:
        ours, theirs = _socket_pair()
    except OSError as error:
        raise _not_started(option, error) from error
    number = theirs.fileno()
    command = [
        sys.executable,
        "-c",
        _START.format(module=module),
        str(number),
        str(os.getpid()),
        *(path for path in sys.path if isinstance(path, str)),
    ]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=_inherited_or_null(_STDOUT),
            stderr=_inherited_or_null(_STDERR),
            pass_fds=[number],
            process_group=0 if has_own_group else None,
            env=environment,
        )
    except OSError as error:
        ours.close()
        raise _not_started(option, error) from error
    finally:
        theirs.close()
    return process, ours


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return a socket pair whose descriptors are not those of standard streams.

    If this process has closed its standard streams, new files get their descriptors; `print` would write to the socket.
    """
    low: list[socket.socket] = []
    try:
        while True:
            ours, theirs = socket.socketpair()
            if min(ours.fileno(), theirs.fileno()) > _STDERR:
                return ours, theirs
            low += ours, theirs
    finally:
        for end in low:
            end.close()


def _inherited_or_null(stream: int) -> int | None:
    """Return how the child opens a standard stream: as this process, or as the null device if it is closed here."""
    with suppress(OSError):
        if os.get_inheritable(stream):  # not of another file that has its descriptor
            return None
    return subprocess.DEVNULL


def reap(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for a process that was killed or has ended, and return its exit code.

    None after `KILLED_S`: a process in an uninterruptible system call, or on an overloaded machine, ends later.
    """
    try:
        return process.wait(KILLED_S)
    except subprocess.TimeoutExpired:
        return None


def death(process: subprocess.Popen[bytes], name: str) -> ReadingProcessError:
    """Reap a process that has ended by itself; return an error with its exit code or signal.

    Args:
        process: The process.
        name: What the process is; the error message begins with it.
    """
    code = reap(process)
    how = f"with exit code {code}"
    if code is not None and code < 0:
        how = f"killed by {signal_name(-code)} (exit code {code})"
    hint = "; the system may have been out of memory" if code == -signal.SIGKILL else ""
    if code == _NO_THREAD:
        hint = (
            ": if no code of yours ends it with this code, it could start no thread; allow the process more threads "
            "(ulimit -u) or memory (ulimit -v)"
        )
    return ReadingProcessError(f"{name} has ended, {how}{hint}", code)


def _not_started(option: str, error: OSError) -> Exception:
    where = f"{option}: no process can be started"
    if is_out_of_descriptors(error):
        return out_of_descriptors(where, _START_DESCRIPTORS)
    return ReadingProcessError(f"{where}: {error}")


def serve(socket_number: int, parent: int, answer: Callable[[socket.socket], None]) -> None:
    """Answer messages in this process until its parent closes its end of the socket or dies.

    Args:
        socket_number: The file descriptor of the socket.
        parent: The id of the process that started this one. It handles SIGINT; this process ignores it.
        answer: Answers messages one after another, in the main thread.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=socket_number)
    try:
        Thread(target=_end_with, args=(end, parent), name="parquet_loader-parent", daemon=True).start()
    except RuntimeError:
        os._exit(_NO_THREAD)
    raise_limit()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        answer(end)
    os._exit(0)  # does not wait for other threads


def _end_with(end: socket.socket, parent: int) -> None:
    """End this process when its parent ends or closes its end of the socket."""
    waiting = select.poll()
    waiting.register(end, select.POLLRDHUP)
    timeout: int | None = None
    try:
        waiting.register(os.pidfd_open(parent), select.POLLIN)
    except (AttributeError, OSError):
        timeout = _POLL_PARENT_MS  # old or simulated kernels have no pidfd
    while os.getppid() == parent and not waiting.poll(timeout):
        pass
    os._exit(0)


def packed_error(error: BaseException, place: str = "the child process that reads") -> bytes:
    """Pickle an error with this process's traceback as a note, for `unpacked_error`."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be made"
    try:
        note = f"in {place}:\n{''.join(traceback.format_exception(error))}"
    except Exception:  # the class is the caller's, and may raise any error
        note = f"in {place}:\n{''.join(traceback.format_tb(error.__traceback__))}"
    with suppress(Exception):  # an error may allow no attributes
        error.add_note(note)
    as_text = ReadingProcessError(f"{type(error).__name__}: {text}")
    as_text.add_note(note)
    return pickle.dumps((vars(error).get(_ORIGINAL) or _pickled(error), as_text))


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an error; return None if it cannot be pickled or unpickled.

    A class from the caller's script or notebook arrived here by value. Its errors are pickled by the name of the class,
    because the caller has the class itself.
    """
    kind, script = type(error), sys.modules["__main__"]
    if kind.__module__ in SCRIPT_MODULES and not hasattr(script, kind.__qualname__):
        sys.modules.setdefault(kind.__module__, script)
        setattr(script, kind.__qualname__, kind)
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)  # noqa: S301 - pickled above
    except BaseException:  # the class is the caller's, and may raise any error
        return None
    return packed


def unpacked_error(packed: bytes) -> BaseException:
    """Return the error in `packed`; if it cannot be unpickled here, a `ReadingProcessError` with its text.

    That error keeps the pickled one, because a parent of this process may be able to unpickle it.
    """
    pickled, as_text = pickle.loads(packed)  # noqa: S301 - of our own process
    error: BaseException = as_text
    if pickled is not None:
        vars(as_text)[_ORIGINAL] = pickled
        with suppress(Exception):
            error = pickle.loads(pickled)  # noqa: S301 - likewise
    return error
