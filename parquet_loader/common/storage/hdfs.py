"""Prepares a process for pyarrow's HDFS client, which is Hadoop's own, in Java: libhdfs starts a JVM.

- A JVM installs its own handlers of SIGINT, SIGTERM and SIGHUP; Ctrl-C would end the process without a
  `KeyboardInterrupt`. So Python's handlers are restored.
- A JVM does not survive a fork. In the child each call into it, also closing a connection, waits for threads that do
  not exist. So use in a forked child is refused, and the child never closes inherited connections.
- If the namenode does not answer, pyarrow reports that the path does not exist. Listing the path distinguishes the two.
"""

from __future__ import annotations

import ctypes
import os
import signal
import weakref
from threading import current_thread, main_thread
from typing import Any

import pyarrow.fs as pafs

from parquet_loader.errors import SourceError

SCHEMES = ("hdfs", "viewfs")

_TAKEN_BY_JAVA = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# The errno of libhdfs for a Java exception without a number of its own.
_NO_NUMBER = 255
_MOST_ATTEMPTS = 8

# All connections of this process, by identity, and the process that the JVM belongs to.
_connections: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_java_pid: int | None = None


def is_hdfs(filesystem: pafs.FileSystem) -> bool:
    """Whether a filesystem is pyarrow's own HDFS client, or a directory within it."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        filesystem = filesystem.base_fs
    return bool(filesystem.type_name == "hdfs")


def unwrapped(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """Return pyarrow's HDFS filesystem if fsspec's wrapper of it was wrapped again; else `filesystem`."""
    wrapped = getattr(getattr(filesystem, "handler", None), "fs", None)
    inner = getattr(wrapped, "fs", None)
    return inner if isinstance(inner, pafs.FileSystem) and is_hdfs(inner) else filesystem


def url_of(filesystem: pafs.FileSystem, path: str) -> str:
    """Return the URL of a path."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        path, filesystem = f"{filesystem.base_path}{path}", filesystem.base_fs
    made = filesystem.__reduce__()[1][0]
    scheme, _, host = made["host"].rpartition("://")
    host = "" if host == "default" else host
    port = f":{made['port']}" if host and made["port"] else ""
    return f"{scheme or 'hdfs'}://{host}{port}/{path.lstrip('/')}"


def connectable(url: str) -> str:
    """Return a URL as pyarrow expects it: a missing host, the one in Hadoop's settings, becomes "default"."""
    return f"hdfs://default{url.removeprefix('hdfs://')}" if url.startswith("hdfs:///") else url


def check_process(made_in: int | None = None) -> None:
    """Refuse a process that was forked from one that had a JVM.

    Args:
        made_in: The process in which the filesystem was created; None: the one that created the first filesystem.

    Raises:
        SourceError: this process is a fork of that one.
    """
    owner = _java_pid if made_in is None else made_in
    if owner is not None and owner != os.getpid():
        raise SourceError(
            "HDFS cannot be read in a process that was forked from one that has used it: Hadoop's client is a JVM, "
            "which does not survive a fork. Start worker processes with multiprocessing_context='spawn' or "
            "'forkserver', or use isolation='process' instead of a DataLoader with workers"
        )


def note(filesystem: pafs.FileSystem) -> None:
    """Register an HDFS connection, and restore Python's signal handlers; does nothing for other filesystems.

    Python can set signal handlers on the main thread only.
    """
    global _java_pid
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        filesystem = filesystem.base_fs
    if filesystem.type_name != "hdfs" or id(filesystem) in _connections:
        return
    _connections[id(filesystem)] = filesystem
    if _java_pid is None:
        _java_pid = os.getpid()
        if current_thread() is main_thread():
            for number in _TAKEN_BY_JAVA:
                handler = signal.getsignal(number)
                if callable(handler):
                    signal.signal(number, handler)


def refusal(url: str, reason: object) -> SourceError:
    """Return the error for a failed connection."""
    first = str(reason).split("\n")[0].rstrip(".:")
    lacks = "" if os.environ.get("CLASSPATH") else ", which is not set"
    return SourceError(
        f"{url}: Hadoop's client cannot be used ({first}). It needs libhdfs.so, in ARROW_LIBHDFS_DIR or in lib/native "
        "below HADOOP_HOME; a Java runtime, in JAVA_HOME; and Hadoop's jars in CLASSPATH"
        f"{lacks} (export CLASSPATH=$(hadoop classpath --glob)). Java's message is on standard error"
    )


def answered(error: OSError) -> OSError:
    """Return an error of libhdfs; if it has no number, with a message that says where to find the reason."""
    if error.errno != _NO_NUMBER:
        return error
    return OSError(
        "HDFS does not answer: the namenode cannot be reached, or refuses; the message of Hadoop's client is on "
        "standard error"
    )


def look_up(filesystem: pafs.FileSystem, path: str) -> pafs.FileInfo:
    """Return the type, size and time of a path.

    Raises:
        OSError: the namenode did not answer, or refused.
    """
    for _ in range(_MOST_ATTEMPTS):
        info = filesystem.get_file_info(path)
        if info.type != pafs.FileType.NotFound:
            return info
        try:
            filesystem.get_file_info(pafs.FileSelector(path))
        except FileNotFoundError:
            return info
        except OSError as error:
            raise answered(error) from None
    raise OSError(f"{path}: HDFS lists it, but does not find it")


def list_directory(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    """Return the entries of one directory; none if it does not exist. Raises as `look_up`."""
    try:
        return filesystem.get_file_info(pafs.FileSelector(path))  # type: ignore[no-any-return]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise answered(error) from None


def _keep_connections() -> None:
    for connection in _connections.valuerefs():
        if (kept := connection()) is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_keep_connections)
