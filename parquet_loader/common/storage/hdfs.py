"""Prepares a process for pyarrow's HDFS client, which is Hadoop's own, in Java: libhdfs starts a JVM.

- A JVM installs its own handlers of SIGINT, SIGTERM and SIGHUP, and would end the process at Ctrl-C without a
  `KeyboardInterrupt`. Python's handlers are restored.
- A JVM does not survive a fork. In the child each call into it waits for threads that do not exist, and so does closing
  a connection. Use in a forked child is refused, and the child never closes the connections that it inherited.
- If the namenode does not answer, pyarrow reports that the path does not exist. Listing tells the two cases apart.
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
# As errno, what libhdfs gives for a Java exception that it has no number for.
_NO_NUMBER = 255
_MOST_ATTEMPTS = 8

# Of this process: all connections, by identity, and the process that the JVM belongs to.
_connections: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_java_pid: int | None = None


def is_hdfs(filesystem: pafs.FileSystem) -> bool:
    """Whether a filesystem is pyarrow's own for HDFS, or a directory of it."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        filesystem = filesystem.base_fs
    return bool(filesystem.type_name == "hdfs")


def unwrapped(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """Return pyarrow's filesystem for HDFS if fsspec's, which wraps it, was wrapped again; else the same."""
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
    """Return a URL as pyarrow wants it: a missing host, which stands for the one in Hadoop's settings, has a name."""
    return f"hdfs://default{url.removeprefix('hdfs://')}" if url.startswith("hdfs:///") else url


def check_process(made_in: int | None = None) -> None:
    """Refuse a process that was forked from one that had a JVM.

    Args:
        made_in: The process in which a filesystem was made; None: the one in which the first was.

    Raises:
        SourceError: this is such a process.
    """
    owner = _java_pid if made_in is None else made_in
    if owner is not None and owner != os.getpid():
        raise SourceError(
            "HDFS cannot be read in a process that was forked from one that has used it: Hadoop's client is a JVM, "
            "which does not live through a fork. Start worker processes with multiprocessing_context='spawn' or "
            "'forkserver', or let isolation='process' take the place of a DataLoader with workers"
        )


def note(filesystem: pafs.FileSystem) -> None:
    """Take note of a connection, whoever made it, and let Python have its signals again; nothing for other filesystems.

    Signals can be had back in the main thread alone.
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
    """Return what to say if no connection could be made."""
    first = str(reason).split("\n")[0].rstrip(".:")
    lacks = "" if os.environ.get("CLASSPATH") else ", which is not set"
    return SourceError(
        f"{url}: Hadoop's client cannot be used ({first}). It takes libhdfs.so, in ARROW_LIBHDFS_DIR or in lib/native "
        "below HADOOP_HOME; a Java runtime, in JAVA_HOME; and Hadoop's jars in CLASSPATH"
        f"{lacks} (export CLASSPATH=$(hadoop classpath --glob)). What Java says of it is on standard error"
    )


def answered(error: OSError) -> OSError:
    """Return an error of libhdfs with a message that says where to find its reason."""
    if error.errno != _NO_NUMBER:
        return error
    return OSError(
        "HDFS does not answer: the namenode cannot be reached, or refuses; what Hadoop's client says of it is on "
        "standard error"
    )


def look_up(filesystem: pafs.FileSystem, path: str) -> pafs.FileInfo:
    """Return what a path names.

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
    raise OSError(f"{path}: HDFS lists it and does not find it")


def list_directory(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    """Return what lies in a directory, without what lies below; nothing if it does not exist. Raises as `look_up`."""
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
