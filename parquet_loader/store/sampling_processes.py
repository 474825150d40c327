"""Runs a user's sampling function in several processes that write to the store, and restarts those that die."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from parquet_loader.common import (
    check_int,
    format_bytes,
    holds_exclusive,
    signal_name,
    starting_threads,
    unfit_call,
    uninterrupted,
)
from parquet_loader.errors import ConfigurationError, LoaderStateError, ParquetLoaderError, SystemReadError, WriteError
from parquet_loader.store.writer import StoreWriter
from parquet_loader.store.writer_state import WrittenRows

SampleFunction = Callable[..., Iterator[Any]]

_REPORT_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_STEADY_S = 60.0  # a process that lived this long is restarted at once
_GRACE_S = 20.0
_LOOK_S = 0.5  # poll interval for ended processes, if the system has no pidfd


@dataclass(frozen=True, slots=True)
class SamplerStatus:
    """One sampling process.

    Attributes:
        number: Its number, from 0.
        pid: Process id; None while no process runs.
        rows, bytes: Rows and bytes published by all processes of this number.
        rows_per_s: Rate over the life of the running process.
        dropped_rows: Rows dropped because the store was full.
        waited_s: Seconds spent waiting for space.
        starts: How often a process was started.
        last_error: How the latest failed process ended; None if none failed.
        is_done: Whether its function has finished.
    """

    number: int
    pid: int | None = None
    rows: int = 0
    bytes: int = 0
    rows_per_s: float = 0.0
    dropped_rows: int = 0
    waited_s: float = 0.0
    starts: int = 0
    last_error: str | None = None
    is_done: bool = False

    def __str__(self) -> str:
        state = "done" if self.is_done else f"process {self.pid}" if self.pid else "none at the moment"
        error = f", last error: {self.last_error}" if self.last_error else ""
        return (
            f"sampler {self.number}: {state}, {self.rows} rows, {format_bytes(self.bytes)}, "
            f"{self.rows_per_s:.0f} rows/s, {self.starts} starts{error}"
        )


@dataclass(slots=True)
class _Sampler:
    """One number's process, as the supervising thread sees it."""

    status: SamplerStatus
    process: Any = None
    pidfd: int | None = None  # signals its end, even if processes that it has forked still run
    reports: Connection | None = None
    stop: Connection | None = None
    began: float = 0.0
    counted: WrittenRows = field(default_factory=WrittenRows)  # of the running process
    before: WrittenRows = field(default_factory=WrittenRows)  # of earlier processes
    pause_s: float = 0.0  # before the last restart
    start_at: float = 0.0
    has_told: bool = False  # whether the running process has reported its error


@dataclass(slots=True)
class _Supervised:
    """The state shared by the supervising thread and the caller; does not refer to the `Samplers` object."""

    open_writer: Callable[[], StoreWriter]
    function: SampleFunction
    arguments: tuple[Any, ...]
    wake: Connection
    woken: Connection
    samplers: list[_Sampler]
    error: BaseException | None = None
    is_over: bool = False
    changed: threading.Condition = field(
        default_factory=threading.Condition
    )  # owns `status` of all, `error` and `is_over`


class Samplers:
    """Runs ``function(number, *arguments)`` in several processes; made by `SampleStore.sample`.

    The function yields batches; the process writes each to the store. A process that dies, or whose function raises, is
    restarted: at once if it has lived for a minute, else after a pause that doubles from 0.1 to 30 seconds. A process
    whose function ends is done.

    Processes are spawned, so the function has to be importable, and a script needs ``if __name__ == "__main__":``. One
    thread of this process, ``parquet_loader-samplers``, supervises them. `stop`, the end of a ``with`` block, garbage
    collection and the exit of the interpreter stop them: each publishes its rows and ends. If this process is killed,
    they notice by a pipe, and do the same.
    """

    def __init__(
        self,
        open_writer: Callable[[], StoreWriter],
        function: SampleFunction,
        processes: int,
        arguments: tuple[Any, ...],
    ) -> None:
        if not callable(function):
            raise ConfigurationError(
                f"function={function!r:.80}: expected a function (number, ...) that yields batches"
            )
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError) as error:
            raise ConfigurationError(
                f"function={function!r:.80}: cannot be sent to another process: {error}; define it at the top level of "
                "a module, and pass what it needs in arguments="
            ) from error
        script = sys.modules["__main__"]
        if getattr(function, "__module__", None) == "__main__" and getattr(script, "__file__", None) is None:
            raise ConfigurationError(
                f"function={function!r:.80}: is defined in a notebook, at a prompt or by python -c, where no other "
                "process can import it; define it in a module"
            )
        if (unfit := unfit_call(function, 0, *arguments)) is not None:
            raise ConfigurationError(
                f"arguments={arguments!r:.80}: {function!r:.80} is called with (number, *arguments), and {unfit}; pass "
                "what it takes after the number"
            )
        check_int("processes", processes, 1, 4096)
        woken, wake = multiprocessing.Pipe(duplex=False)
        samplers = [_Sampler(SamplerStatus(number)) for number in range(processes)]
        self._shared = _Supervised(open_writer, function, tuple(arguments), wake, woken, samplers)
        self._thread = threading.Thread(
            target=_supervise, args=(self._shared,), name="parquet_loader-samplers", daemon=True
        )
        self._finalizer = weakref.finalize(self, _stop, self._shared, self._thread, os.getpid())
        try:
            with starting_threads("sampling processes"):
                uninterrupted(self._thread.start)
        except SystemReadError:
            self._finalizer.detach()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __str__(self) -> str:
        return "\n".join(map(str, self.status()))

    def status(self) -> list[SamplerStatus]:
        """Return the status of each process.

        Raises:
            LoaderStateError: The supervising thread has failed.
        """
        with self._shared.changed:
            if self._shared.error is not None:
                raise LoaderStateError(f"the samplers have ended: {self._shared.error}") from self._shared.error
            return [sampler.status for sampler in self._shared.samplers]

    @property
    def is_done(self) -> bool:
        """Whether every function has finished."""
        return all(status.is_done for status in self.status())

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until every function has finished; return whether they have."""
        self._thread.join(timeout_s)
        return self.is_done

    def wait_for(self, condition: Callable[[list[SamplerStatus]], bool], timeout_s: float | None = None) -> bool:
        """Wait until the processes meet a condition or all have ended; return whether they meet it.

        Args:
            condition: Called with the result of `status` whenever that changes.
            timeout_s: The longest wait in seconds; None for no limit.

        Raises:
            LoaderStateError: The supervising thread has failed.
        """
        with self._shared.changed:
            self._shared.changed.wait_for(lambda: condition(self.status()) or self._shared.is_over, timeout_s)
            return condition(self.status())

    def stop(self) -> list[SamplerStatus]:
        """Let each process publish its rows and end, and return a summary of each; idempotent."""
        self._finalizer()
        return self.status()


def _stop(shared: _Supervised, thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():
        return
    with contextlib.suppress(OSError):  # the thread has ended already
        shared.wake.send_bytes(b"stop")
    # A garbage collection may run this while the store's lock is held, and the processes need that lock to end.
    if thread is not threading.current_thread() and not holds_exclusive():
        thread.join()


def _supervise(shared: _Supervised) -> None:
    """The work of the supervising thread: start, watch, restart, and finally stop the processes."""
    try:
        while not all(s.status.is_done for s in shared.samplers):
            now = time.monotonic()
            for sampler in shared.samplers:
                if sampler.process is None and not sampler.status.is_done and now >= sampler.start_at:
                    _start(shared, sampler)
            if _listen(shared, [shared.woken], _until_next_start(shared, now)):
                break
        _end_all(shared)
    except BaseException as error:
        with shared.changed:
            shared.error = error
            shared.changed.notify_all()
        _end_all(shared)
    finally:
        with shared.changed:
            shared.is_over = True
            shared.changed.notify_all()
        shared.woken.close()
        shared.wake.close()


def _until_next_start(shared: _Supervised, now: float) -> float | None:
    waiting = [s.start_at - now for s in shared.samplers if s.process is None and not s.status.is_done]
    return max(0.0, min(waiting)) if waiting else None


def _start(shared: _Supervised, sampler: _Sampler) -> None:
    context = multiprocessing.get_context("spawn")
    reports, report = context.Pipe(duplex=False)
    stopped, stop = context.Pipe(duplex=False)
    status = sampler.status
    process = context.Process(
        target=_run,
        args=(shared.open_writer, shared.function, status.number, shared.arguments, report, stopped),
        name=f"parquet_loader-sampler-{status.number}",
    )
    try:
        process.start()
    finally:
        report.close()
        stopped.close()
    sampler.process, sampler.reports, sampler.stop = process, reports, stop
    assert process.pid is not None
    with contextlib.suppress(AttributeError, OSError):  # an older or a simulated kernel
        sampler.pidfd = os.pidfd_open(process.pid)
    sampler.began, sampler.counted = time.monotonic(), WrittenRows()
    with shared.changed:
        shared.changed.notify_all()
        sampler.status = replace(status, pid=process.pid, starts=status.starts + 1, rows_per_s=0.0)
        sampler.has_told = False


def _listen(shared: _Supervised, others: list[Connection], timeout_s: float | None) -> bool:
    """Wait for a report or the end of a process, and record it; return whether one of `others` is readable.

    Processes that a sampler has forked keep its pipe of reports open, and the one that `multiprocessing` watches, so
    neither signals the sampler's end.
    """
    running = [sampler for sampler in shared.samplers if sampler.process is not None]
    by_report = {sampler.reports: sampler for sampler in running if sampler.reports is not None}
    pidfds = [sampler.pidfd for sampler in running if sampler.pidfd is not None]
    if len(pidfds) < len(running):
        timeout_s = _LOOK_S if timeout_s is None else min(timeout_s, _LOOK_S)
    ready = wait([*by_report, *pidfds, *others], timeout_s)
    for handle in ready:
        if isinstance(handle, Connection) and handle in by_report:
            _take_report(shared, by_report[handle])
    for sampler in running:
        if not sampler.process.is_alive():
            _note_end(shared, sampler)
    return any(handle in others for handle in ready)


def _take_report(shared: _Supervised, sampler: _Sampler) -> None:
    assert sampler.reports is not None
    try:
        kind, value = sampler.reports.recv()
    except (EOFError, OSError):
        sampler.reports.close()
        sampler.reports = None
        return
    with shared.changed:
        shared.changed.notify_all()
        if kind == "error":
            sampler.status = replace(sampler.status, last_error=value)
            sampler.has_told = True
        elif kind == "done":
            sampler.status = replace(sampler.status, is_done=True)
        else:
            sampler.counted = value
            done = sampler.before + value
            sampler.status = replace(
                sampler.status,
                rows=done.rows,
                bytes=done.bytes,
                dropped_rows=done.dropped_rows,
                waited_s=done.waited_s,
                rows_per_s=value.rows / max(1e-9, time.monotonic() - sampler.began),
            )


def _note_end(shared: _Supervised, sampler: _Sampler) -> None:
    """Read the last reports of an ended process, and schedule its restart."""
    while sampler.reports is not None and sampler.reports.poll():
        _take_report(shared, sampler)
    if sampler.reports is not None:  # a process that the sampler has forked keeps the other end open
        sampler.reports.close()
    if sampler.pidfd is not None:
        os.close(sampler.pidfd)
    if sampler.stop is not None:
        sampler.stop.close()
    sampler.reports = sampler.pidfd = sampler.stop = None
    process, sampler.process = sampler.process, None
    process.join()
    sampler.before, sampler.counted = sampler.before + sampler.counted, WrittenRows()
    now = time.monotonic()
    sampler.pause_s = next_pause_s(sampler.pause_s, now - sampler.began)
    sampler.start_at = now + sampler.pause_s
    with shared.changed:
        shared.changed.notify_all()
        status = replace(sampler.status, pid=None, rows_per_s=0.0)
        if process.exitcode < 0 and not sampler.has_told:
            status = replace(status, last_error=f"killed by {signal_name(-process.exitcode)}")
        elif process.exitcode and not sampler.has_told:
            status = replace(status, last_error=f"exit code {process.exitcode}")
        sampler.status = status
    process.close()


def next_pause_s(pause_s: float, lived_s: float) -> float:
    """Return the pause before a restart; arguments are the pause before the last start, and the life since then."""
    return 0.0 if lived_s >= _STEADY_S else min(max(_FIRST_PAUSE_S, 2 * pause_s), _LONGEST_PAUSE_S)


def _end_all(shared: _Supervised) -> None:
    """Ask every process to end, and kill those that do not end in time."""
    for sampler in shared.samplers:
        if sampler.stop is not None:
            with contextlib.suppress(OSError):
                sampler.stop.send_bytes(b"stop")
    deadline = time.monotonic() + _GRACE_S
    while any(s.process is not None for s in shared.samplers):
        for sampler in shared.samplers:
            if sampler.process is not None and time.monotonic() >= deadline:
                sampler.process.kill()
        _listen(shared, [], max(0.1, deadline - time.monotonic()))


def _run(
    open_writer: Callable[[], StoreWriter],
    function: SampleFunction,
    number: int,
    arguments: tuple[Any, ...],
    report: Connection,
    stopped: Connection,
) -> None:
    """The work of a sampling process: write the function's batches until it ends or is stopped."""
    is_stopped = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then stops this process
    try:
        writer = open_writer()
        with starting_threads("a sampling process"):
            threading.Thread(
                target=_wait_for_stop, args=(writer, stopped, is_stopped), name="parquet_loader-stop", daemon=True
            ).start()
        reported = 0.0
        with writer:
            for batch in function(number, *arguments):
                writer.write(batch)
                if time.monotonic() - reported >= _REPORT_S:
                    reported = time.monotonic()
                    _tell(report, "count", writer.done)
                if is_stopped.is_set():
                    break
        _tell(report, "count", writer.done)
        if not is_stopped.is_set():
            _tell(report, "done", None)
    except BaseException as error:
        if is_stopped.is_set() and isinstance(error, WriteError):
            return  # the writer waited for space, and was stopped
        where = "" if isinstance(error, ParquetLoaderError) else f"{type(error).__name__}: "
        _tell(report, "error", f"{where}{error}")
        raise


def _wait_for_stop(writer: StoreWriter, stopped: Connection, is_stopped: threading.Event) -> None:
    """Wait for the message to stop or for the parent's death; then end a wait for space."""
    with contextlib.suppress(OSError):
        stopped.poll(None)
    is_stopped.set()
    writer.stop_waiting()


def _tell(report: Connection, kind: str, value: Any) -> None:
    with contextlib.suppress(OSError):  # the parent is gone
        report.send((kind, value))
