"""Locks on files: a forked child does not hold, wait for, or write under the locks of its parent."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from parquet_loader.common import FileLock, LockedFile, is_locked


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_while_a_thread_writes_does_not_wait_for_that_thread(tmp_path: Path) -> None:
    lock = LockedFile(str(tmp_path / "lock"), b"parent")
    writes, ends = threading.Event(), threading.Event()

    def write() -> None:
        with lock._guard:
            writes.set()
            ends.wait()

    thread = threading.Thread(target=write)
    thread.start()
    writes.wait()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        lock.write(b"child ", 0)
        lock.resize(0)
        os._exit(1 if lock.has_its_name or lock.is_here else 0)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ends.set()
        thread.join()
    assert (tmp_path / "lock").read_bytes() == b"parent"
    assert is_locked(lock.path)
    lock.close()
    assert not is_locked(lock.path)


def test_closing_a_lock_ignores_the_writes_that_a_network_file_system_only_then_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = LockedFile(str(tmp_path / "lock"), b"lease")
    close = os.close

    def close_on_a_full_disk(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    (tmp_path / "ledger").touch()
    ledger = FileLock(str(tmp_path / "ledger"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_on_a_full_disk)
        lock.close()
        with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):  # its writes matter after it is closed
            ledger.close()
    assert not is_locked(lock.path)
