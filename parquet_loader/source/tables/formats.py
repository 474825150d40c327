"""Recognises directories of table formats (Delta, Iceberg and others) by file names, without opening a file.

`listing.py` refuses to read their files; `write/target.py` and `store/open.py` refuse to write into them.

Such tables keep deleted and replaced rows in Parquet files until these are cleaned up. The table's metadata says which
files and rows are current, so the Parquet files alone give other rows than the table has.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow.fs as pafs

from parquet_loader.common import is_local, look_up, shown
from parquet_loader.errors import SourceError


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A table format.

    Attributes:
        name: Its name with an article, for messages.
        export: Code that writes the table's own rows to a new directory; ``{root}`` stands for the table's directory.
        is_read: Whether this library reads tables of this format.
    """

    name: str
    export: str
    is_read: bool = False


DELTA = TableFormat(
    "a Delta table", "write_dataset(deltalake.DeltaTable('{root}').to_pyarrow_table(), ...)", is_read=True
)
ICEBERG = TableFormat(
    "an Iceberg table", "write_dataset(catalog.load_table('database.table').scan().to_arrow(), ...)", is_read=True
)
HUDI = TableFormat("a Hudi table", "write_spark(spark.read.format('hudi').load('{root}'), ...)")
PAIMON = TableFormat("a Paimon table", "write_spark(spark.read.format('paimon').load('{root}'), ...)")
DUCKLAKE = TableFormat("a DuckLake table", "write_dataset(duckdb.sql('FROM lake.table').to_arrow_table(), ...)")
HIVE = TableFormat("a transactional Hive table", "CREATE EXTERNAL TABLE ... STORED AS PARQUET AS SELECT in Hive")
SPARK_SINK = TableFormat("the output of a Spark streaming query", "write_spark(spark.read.parquet('{root}'), ...)")


@dataclass(frozen=True, slots=True)
class Table:
    """A recognised table.

    Attributes:
        format: Its format.
        root: Its directory, or that of a partition if more is not known.
        has_metadata: Whether its metadata is there; otherwise it was recognised by the name of a data file.
    """

    format: TableFormat
    root: str
    has_metadata: bool = True

    def reading_refusal(self, *, has_options: bool = True, is_read: bool = True) -> str:
        """Return the error message for reading its files.

        Args:
            has_options: Whether the caller has the argument `read_options`.
            is_read: Whether the caller reads tables of supported formats.
        """
        root = shown(self.root or ".")  # empty if the file system begins at the table
        anyway = ", or take every row of every file with ReadOptions(ignore_table_format=True)" if has_options else ""
        cure = f"export its rows with its own reader, such as {self.format.export.format(root=root)}"
        if is_read and self.format.is_read:
            cure = "pass the table's directory alone, which is read as the table"
            if not self.has_metadata:
                cure = "its metadata is not here: pass the directory that holds it alone, which is read as the table"
        what = f"this is {self.format.name}, whose files also hold rows that are deleted or replaced"
        return f"{root}: {what}; {cure}{anyway}"

    def writing_refusal(self, path: str) -> str:
        """Return the error message for writing to a directory."""
        if self.root.startswith(path.rstrip("/") + "/"):
            what = (
                f"the directory holds {self.format.name} in {shown(self.root)!r}, next to which no other files belong"
            )
        elif self.root == path:
            what = f"this is {self.format.name}, to which files written here would not belong"
        else:
            root = shown(self.root or ".")
            what = f"this lies within {self.format.name} in {root!r}, to which new files would not belong"
        return f"{shown(path)}: {what}; write to another directory, or use the table's own writer"


_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ICEBERG_FILE = r"[^/]+\.metadata\.json(?:\.gz)?|version-hint\.text|snap-\d+-\d+-[0-9a-f-]{36}\.avro"
_IN_ROOT = re.compile(
    r"(?:^|(?<=/))(?:(?P<delta>_delta_log)/|(?P<spark>_spark_metadata)/|(?P<hudi>\.hoodie)/|"
    r"(?P<hudi_partition>\.hoodie_partition_metadata)|"
    rf"(?P<iceberg>metadata)/(?:{_ICEBERG_FILE})$|"
    r"(?P<paimon_schema>schema)/schema-\d+$|(?P<paimon>(?:snapshot|manifest))/(?:snapshot|manifest)[^/]*$)"
)
"""Paths of metadata below a table's directory; the match begins at the end of that directory."""

_FORMATS = {"delta": DELTA, "spark": SPARK_SINK, "hudi": HUDI, "hudi_partition": HUDI, "iceberg": ICEBERG}

_OF_FOLDERS = re.compile(
    r"(?:^|(?<=/))(?:(?P<hive>(?:(?:delete_)?delta_\d{7,}_\d{7,}(?:_\d{4})?|base_\d{7,}(?:_v\d+)?)(?=/|$))|"
    r"(?P<ducklake>[^/]+\.ducklake\.files(?=/|$)))"
)
_OF_FILES = re.compile(
    rf"(?P<ducklake>ducklake-{_UUID}[^/]*\.parquet$)|(?P<paimon>(?:data|changelog)-{_UUID}-\d+\.)|"
    rf"(?P<hudi>{_UUID}(?:-\d+)?_\d+-\d+-\d+_\d{{14}}(?:\d{{3}})?\.parquet$)|"
    rf"(?P<iceberg>\d{{5}}-\d+-{_UUID}(?:(?:-\d+)?-\d{{5}})?(?:-deletes)?\.parquet$)"
)
"""Names of directories and data files that only one format uses."""

_BUCKET = re.compile(r"bucket-(?:\d+|postpone)")
_NAMED = {"hive": HIVE, "ducklake": DUCKLAKE, "paimon": PAIMON, "hudi": HUDI, "iceberg": ICEBERG}


def tables_in(paths: Iterable[str], base: str) -> dict[str, Table]:
    """Return the tables whose metadata is among the files below a directory, by their directory."""
    start = len(base.rstrip("/")) + 1 if base else 0
    found: dict[str, Table] = {}
    of_paimon: tuple[set[str], set[str]] = set(), set()
    for path in paths:
        match = _IN_ROOT.search(path, start)
        if match is None:
            continue
        root = path[: match.start()].rstrip("/") or path[: match.start()]
        kind = str(match.lastgroup)
        if kind in _FORMATS:
            found.setdefault(root, Table(_FORMATS[kind], root))
        else:
            of_paimon[kind == "paimon"].add(root)
    return found | {root: Table(PAIMON, root) for root in of_paimon[0] & of_paimon[1]}


def table_named_by(path: str) -> Table | None:
    """Return the table to which a data file belongs by its name, or None."""
    folder, _, name = path.rpartition("/")
    match = _OF_FILES.match(name)
    if match is None:
        return None
    if match.lastgroup == "paimon":
        folder, _, bucket = folder.rpartition("/")
        if not _BUCKET.fullmatch(bucket):
            return None
    return Table(_NAMED[str(match.lastgroup)], folder or "/", has_metadata=False)


def _table_named_by_folder(folder: str) -> Table | None:
    match = _OF_FOLDERS.search(folder)
    if match is None:
        return None
    end = match.end() if match.lastgroup == "ducklake" else match.start()
    return Table(_NAMED[str(match.lastgroup)], folder[:end].rstrip("/") or "/")


def first_table(paths: Iterable[str], table_at: Callable[[str], Table | None]) -> Table | None:
    """Return the table of the first file that belongs to one, or None.

    Args:
        paths: Data files.
        table_at: Returns the table with this directory, or None; called once for each directory above a file.
    """
    known: set[str] = set()
    for path in paths:
        table: Table | None = None
        own = folder = posixpath.dirname(path)
        is_new = own not in known
        while table is None and folder not in known:
            known.add(folder)
            table = table_at(folder)
            folder = posixpath.dirname(folder)
        table = table or (_table_named_by_folder(own) if is_new else None) or table_named_by(path)
        if table is not None:
            return table
    return None


def local_table_at(folder: str) -> Table | None:
    """Return the table whose directory this local directory is, or None.

    Raises:
        SourceError: this user may not list a directory of it that may hold a table's metadata.
    """
    if _is_directory(os.path.join(folder, ".hoodie")):
        return Table(HUDI, folder)
    for name, format_ in (("_delta_log", DELTA), ("_spark_metadata", SPARK_SINK)):
        names = _names_in(os.path.join(folder, name))
        if names or (names is None and _is_directory(os.path.join(folder, name))):
            return Table(format_, folder)
    parts = ["metadata"]
    if _is_directory(os.path.join(folder, "schema")):
        others = [name for name in ("snapshot", "manifest") if _is_directory(os.path.join(folder, name))]
        parts += ["schema", *others] if others else []
    inside = {name: _names_in(os.path.join(folder, name)) for name in parts}
    found = tables_in((f"{part}/{name}" for part, names in inside.items() for name in names or ()), "")
    if found:
        return Table(found[""].format, folder)
    hidden = [path for part, names in inside.items() if names is None and _is_directory(path := f"{folder}/{part}")]
    if hidden and folder != "/":
        raise not_listed(hidden[0])
    return None


def not_listed(path: str) -> SourceError:
    """Return the error that a directory cannot be listed, although it may hold the metadata of a table."""
    return SourceError(
        f"{shown(path)}: the directory cannot be listed, so it is unknown whether the files next to it belong to an "
        "Iceberg or Paimon table, which may have deleted some of their rows; let this user list it, or take every row "
        "of every file with ReadOptions(ignore_table_format=True)"
    )


def _names_in(folder: str) -> list[str] | None:
    """Return the names in a directory, none if it does not exist, or None if this user may not list it."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        return None


def _is_directory(path: str) -> bool:
    """Like `os.path.isdir`, but raise other errors than that of a missing path: the path may be a directory."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def remote_markers(path: str) -> list[tuple[str, str]]:
    """Return directories of metadata that may be above a path, and so are not in a listing below it.

    Each costs a request, so only those are returned to which a file, or a partition's directory, would belong.

    Returns:
        Pairs of a table's directory and the name of the directory of metadata in it.
    """
    if path.startswith(("http://", "https://")):
        return []  # HTTP has no listings
    root, below = posixpath.split(path)
    is_inside = "=" in below or re.search(r"\.(?:parquet|parq|pq)\b", below.lower()) is not None
    while "=" in posixpath.basename(root):
        root = posixpath.dirname(root)
        is_inside = True
    markers = [(root, "_delta_log"), (root, "_spark_metadata")] if is_inside else []
    if root and len(posixpath.basename(root)) == 2:  # may be a random prefix of Delta
        markers.append((posixpath.dirname(root), "_delta_log"))
    parts = path.split("/")
    markers += [("/".join(parts[:at]), "metadata") for at, part in enumerate(parts) if part == "data" and at]
    return [(root, name) for root, name in markers if root != "/"]


def table_to_write_to(filesystem: pafs.FileSystem, path: str, found: Iterable[str]) -> Table | None:
    """Return the table to which files written to a directory would belong, or None.

    Args:
        filesystem: The file system of the directory.
        path: The directory.
        found: All files below it.

    """
    files = list(found)
    tables = tables_in(files, path)
    table = next(iter(tables.values()), None) or first_table(files, lambda _: None)
    if table is not None:
        return table
    if is_local(filesystem):
        both = [os.path.join(path, "x"), os.path.join(os.path.realpath(path), "x")]
        return first_table(both, _table_to_write_at)
    for root, name in dict.fromkeys(remote_markers(f"{path}/x.parquet") + remote_markers(f"{path}.parquet")):
        with contextlib.suppress(OSError):  # the permission to write here may not include parent directories
            if name != "metadata" and look_up(filesystem, posixpath.join(root, name)).type == pafs.FileType.Directory:
                return Table(format_of_marker(name), root)
    return None


def _table_to_write_at(folder: str) -> Table | None:
    try:
        return local_table_at(folder)
    except SourceError:  # the permission to write here may not include the other directories
        return None


def format_of_marker(name: str) -> TableFormat:
    """Return the format whose directory of metadata has this name, as in `remote_markers`."""
    return {"_delta_log": DELTA, "_spark_metadata": SPARK_SINK, "metadata": ICEBERG}[name]
