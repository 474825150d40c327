"""A real HDFS on this machine: a namenode and a datanode, processes of their own, and what a client needs of them.

hdfs_environment.sh makes the folder with Hadoop's jars and libhdfs; the environment's HADOOP_FOLDER names it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

START_S = 240
_JAVA_TYPES = ("lang", "net", "nio", "util")
_JAVA_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _JAVA_TYPES),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)
_SETTINGS = {
    "dfs.replication": "1",
    "dfs.permissions.enabled": "false",
    "dfs.webhdfs.enabled": "false",
    "dfs.namenode.http-address": "localhost:0",
    "dfs.datanode.address": "localhost:0",
    "dfs.datanode.ipc.address": "localhost:0",
    "dfs.datanode.http.address": "localhost:0",
    "dfs.namenode.fs-limits.min-block-size": "1024",
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.edits.noeditlogchannelflush": "true",
}
_LOGGING = """
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{HH:mm:ss} %p %c{2}: %m%n
"""


def missing() -> str | None:
    """Say what a test of HDFS lacks here, or None."""
    folder = os.environ.get("HADOOP_FOLDER")
    if not folder:
        return "HADOOP_FOLDER names no folder that tests/support/hdfs_environment.sh made"
    lacking = [name for name in ("jars", "libhdfs.so") if not os.path.exists(os.path.join(folder, name))]
    if lacking:
        return f"HADOOP_FOLDER={folder} has no {lacking[0]}: tests/support/hdfs_environment.sh makes it"
    return None if shutil.which("java") or os.environ.get("JAVA_HOME") else "no Java runtime"


def client_environment() -> dict[str, str]:
    """Return what the environment of a process that speaks to HDFS needs.

    The client is the newest there is: that of an installed pyspark, or else the server's own.
    """
    folder = os.path.abspath(os.environ["HADOOP_FOLDER"])
    jars = Path(folder, "jars")
    names = ["*.jar"]
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        jars = Path(spark.origin).parent / "jars"
        names = ["hadoop-client-*.jar", "slf4j-api-*.jar", "jcl-over-slf4j-*.jar", "commons-logging-*.jar"]
    found = sorted(str(path) for name in names for path in jars.glob(name))
    return {
        "CLASSPATH": os.pathsep.join(found),
        "ARROW_LIBHDFS_DIR": folder,
        "LIBHDFS_OPTS": "-Xmx256m",
        "JAVA_HOME": _java_home(),
    }


def client_version() -> str:
    """Return the version of Hadoop that the client is of."""
    return re.findall(r"hadoop-(?:client-api|common)-([\d.]+)\.jar", client_environment()["CLASSPATH"])[0]  # type: ignore[no-any-return]


class Daemon:
    """A process of Hadoop's whose log is read as it comes.

    Threads: one, ``hdfs-log``, which ends with the process.

    Args:
        java_class: Its main class.
        conf: The directory of its settings.
        ready: What its log says once it can be used.
    """

    def __init__(self, java_class: str, conf: Path, ready: str) -> None:
        jars = os.path.join(os.path.abspath(os.environ["HADOOP_FOLDER"]), "jars", "*")
        command = [_java(), *_JAVA_OPTIONS, "-cp", f"{conf}{os.pathsep}{jars}", java_class]
        self.log: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, name="hdfs-log", daemon=True)
        self._reader.start()
        self.wait_for(ready)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.log.append(line)
                self._changed.notify_all()
        with self._changed:
            self.log.append("the process has ended")
            self._changed.notify_all()

    def wait_for(self, pattern: str) -> None:
        """Wait until a line of the log matches."""
        with self._changed:
            over = re.compile(f"{pattern}|the process has ended").search
            assert self._changed.wait_for(lambda: any(map(over, self.log)), START_S), "".join(self.log[-30:])
            assert any(map(re.compile(pattern).search, self.log)), "".join(self.log[-60:])

    def lines(self, pattern: str) -> list[str]:
        """Return the lines so far that match."""
        with self._changed:
            return [line for line in self.log if re.search(pattern, line)]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the process for the length of a ``with`` block: it keeps its connections, and answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Cluster:
    """A namenode and a datanode, in a directory of their own.

    Args:
        root: The directory, which exists and is empty.

    Attributes:
        url: Of the root of its files, without a slash at the end.
        conf: The directory of its settings.
        namenode, datanode: The processes.
    """

    def __init__(self, root: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.url = f"hdfs://localhost:{port}"
        self.conf = conf = root / "conf"
        for name in ("hdfs", "datanode"):
            (conf / "webapps" / name).mkdir(parents=True)
        self._write(conf / "core-site.xml", {"fs.defaultFS": self.url})
        places = {"dfs.namenode.name.dir": root / "name", "dfs.datanode.data.dir": root / "data"}
        self._write(conf / "hdfs-site.xml", _SETTINGS | {name: path.as_uri() for name, path in places.items()})
        (conf / "log4j.properties").write_text(_LOGGING)
        os.environ.setdefault("HADOOP_USER_NAME", "tester")
        namenode = "org.apache.hadoop.hdfs.server.namenode.NameNode"
        jars = os.path.join(os.path.abspath(os.environ["HADOOP_FOLDER"]), "jars", "*")
        command = [_java(), *_JAVA_OPTIONS, "-cp", f"{conf}{os.pathsep}{jars}", namenode, "-format", "-nonInteractive"]
        subprocess.run(command, check=True, capture_output=True, timeout=START_S)
        self.namenode = Daemon(namenode, conf, "NameNode RPC up at")
        self.datanode = Daemon(
            "org.apache.hadoop.hdfs.server.datanode.DataNode", conf, "Successfully sent block report"
        )

    @staticmethod
    def _write(path: Path, settings: Mapping[str, str]) -> None:
        entries = (f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
        path.write_text(f"<configuration>{''.join(entries)}</configuration>")

    def renames_to(self, path: str) -> list[str]:
        """Return the sources of all renames whose target was a path or below it, as the namenode wrote them down."""
        lines = self.namenode.lines(rf"cmd=rename\s.*\sdst={re.escape(path)}(/\S*)?\s")
        return [re.findall(r"src=(\S+)", line)[0] for line in lines]

    def close(self) -> None:
        """End both processes."""
        self.datanode.kill()
        self.namenode.kill()


@contextmanager
def cluster_in(root: Path) -> Iterator[Cluster]:
    """Yield a cluster that ends with the ``with`` block."""
    cluster = Cluster(root)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for the tests of a module that says ``cluster = hdfs.cluster``, amid the environment of a client."""
    before = dict(os.environ)
    os.environ.update(client_environment())
    try:
        with cluster_in(tmp_path_factory.mktemp("hdfs")) as running:
            yield running
    finally:
        os.environ.clear()
        os.environ.update(before)


def _java_home() -> str:
    found = shutil.which("java")
    return os.environ.get("JAVA_HOME") or str(Path(os.path.realpath(found or "java")).parent.parent)


def _java() -> str:
    return os.path.join(_java_home(), "bin", "java")
