"""Lists the files of a source: paths, URLs, directories and globs, always in the same order."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from parquet_loader.common import (
    PathLike,
    ReadOptions,
    UnreachableError,
    is_local,
    is_out_of_descriptors,
    named_columns,
    out_of_descriptors,
    read_expression,
    refused,
    resolve,
    shown,
    url_prefix,
)
from parquet_loader.errors import ConfigurationError, RemoteError, SourceError
from parquet_loader.source.file_types import (
    common_folder,
    glob_base,
    glob_regex,
    has_magic,
    hive_pairs,
    is_hidden,
    is_hive_folder,
    is_pattern,
    kind_of,
)
from parquet_loader.source.files import ListedFile, Lister, ListingContext, SourceFile
from parquet_loader.source.hub_configurations import MOST_BYTES, refuse_configurations
from parquet_loader.source.local import LocalLister
from parquet_loader.source.named_splits import ALL, select_split
from parquet_loader.source.tables.formats import (
    Table,
    first_table,
    format_of_marker,
    local_table_at,
    not_listed,
    remote_markers,
    tables_in,
)

Source: TypeAlias = PathLike | Sequence[PathLike]

# If some remote files are named as Parquet, the first and last bytes of at most this many others are read.
_MOST_ASKED = 256
_WITH_BUCKETS = ("s3://", "s3a://", "s3n://", "gs://", "gcs://", "abfs://", "abfss://")
# Most requests for metadata directories of tables above the source.
_MOST_MARKERS = 64
_SECOND_NS = 10**9


class FoundTableError(SourceError):
    """The files of a source belong to a table.

    Attributes:
        table: The table.
        is_all: Whether the source names the table's directory and nothing else.
    """

    def __init__(self, table: Table, message: str, *, is_all: bool) -> None:
        super().__init__(message)
        self.table = table
        self.is_all = is_all


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects which files of a source are read.

    Attributes:
        split: A split's name, ``"all"``, or None: everything, but files of different splits are refused.
        ignore_table_format: Read the files of tables as plain Parquet files.
        has_options: Whether the caller has the arguments `split` and `read_options`, so that messages may name them.
        reads_tables: Whether the caller reads tables of supported formats.
    """

    split: str | None = None
    ignore_table_format: bool = False
    has_options: bool = True
    reads_tables: bool = True


@dataclass(frozen=True, slots=True)
class _Found:
    """The files of one entry of a source.

    Attributes:
        name: The entry's name for messages.
        base: The directory that contains its files.
        is_directory: Whether the entry is a directory, not a glob or a file.
        files: Its files.
        listing_context: Other names in the listing.
        tables: Tables whose metadata is in the listing, by their directory.
        has_readme: Whether README.md is in the directory; None for local files.
    """

    name: str
    base: str
    is_directory: bool
    files: list[ListedFile]
    listing_context: ListingContext
    tables: dict[str, Table]
    has_readme: bool | None = None


def list_files(
    source: Source,
    filesystem: Any = None,
    lister_of: Callable[[pafs.FileSystem], Lister] = lambda _: LocalLister(),
    selection: Selection | None = None,
) -> tuple[pafs.FileSystem, tuple[SourceFile, ...], ListingContext]:
    """List the files of `source`, and other names in their directories, with the lister of their file system.

    Directories are listed recursively. Names that begin with ``.`` or ``_`` are skipped. Files named ``.parquet``,
    ``.parq`` or ``.pq`` are Parquet; files with a suffix of another format are ignored; for all others, the first and
    last bytes decide. Files of a directory or glob are sorted by path; entries of a list keep the order of the list.
    Directories named ``key=value`` become columns. If the source is a directory, these are the ones below it; for
    files, globs and lists they include the unbroken chain of such directories above.

    Raises:
        SourceError: there are no files, a path does not exist or cannot be listed, a file is named twice, files belong
            to a table of another format, or to different splits.
        ConfigurationError: `source` is not a path or a sequence of paths, or its paths are on different filesystems.
    """
    selection = selection or Selection()
    entries = [source] if not isinstance(source, Sequence) or isinstance(source, str | bytes) else list(source)
    if not entries:
        raise SourceError("the source is an empty list; pass at least one file or directory")
    home, named = _resolved(entries, filesystem)
    lister = lister_of(home)
    try:
        paths = lister.pinned([path for path, _ in named])
    except UnreachableError as error:
        raise RemoteError(f"{named[0][1]}: {error}") from None
    named = [(path, name) for path, (_, name) in zip(paths, named, strict=True)]
    markers: list[tuple[str, str]] = []
    if not is_local(home) and not selection.ignore_table_format:
        above = (marker for path, _ in named for marker in remote_markers(_listed(path)))
        markers = list(dict.fromkeys(above))[:_MOST_MARKERS]

    def refuse(table: Table) -> None:
        """Refuse the files of a table."""
        if not selection.ignore_table_format:
            is_named = len(named) == 1 and named[0][0].rstrip("/") == table.root.rstrip("/")
            message = table.reading_refusal(has_options=selection.has_options, is_read=selection.reads_tables)
            raise FoundTableError(table, message, is_all=is_named and table.has_metadata)

    def worked(thing: tuple[str, str] | int) -> _Found | Table | None:
        if isinstance(thing, int):
            return _table_by_marker(lister, *markers[thing])
        with _listing_errors(thing[1]):
            return _expand(lister, *thing, prefix=prefix, is_remote=not is_local(home), refuse=refuse)

    prefix, began_ns = url_prefix(home, str(entries[0])), time.time_ns()
    try:
        done = lister.each(worked, [*named, *range(len(markers))])
    except UnreachableError as error:
        raise RemoteError(f"{named[0][1]}: {error}") from None
    found = [one for one in done if isinstance(one, _Found)]
    pairs = [(file, entry) for entry in found for file in entry.files]
    partition_base = _partition_base(found)
    files = _source_files(pairs, partition_base, prefix, None if is_local(home) else began_ns)
    if not selection.ignore_table_format:
        tables = {one.root: one for one in done if isinstance(one, Table)}
        tables |= {root: table for entry in found for root, table in entry.tables.items()}
        with _listing_errors(named[0][1]):
            table = _table_of([file for file, _ in pairs], tables, is_local=is_local(home))
        if table is not None:
            refuse(table)
    source_base = common_folder([entry.base for entry in found])
    chosen = select_split(files, selection.split, source_base, has_options=selection.has_options)
    if selection.split != ALL:
        _refuse_configurations(lister, found, chosen)
    if len(chosen) < len(files):
        kept = {id(file) for file in chosen}
        pairs = [pair for pair, file in zip(pairs, files, strict=True) if id(file) in kept]
    files = _each_once(chosen, pairs)
    return home, tuple(files), _context(lister, found, pairs)


def _resolved(entries: Sequence[PathLike], filesystem: Any) -> tuple[pafs.FileSystem, list[tuple[str, str]]]:
    """Return the filesystem of all entries, and the path of each with its name for messages."""
    named: list[tuple[str, str]] = []
    resolved = [resolve(entry, filesystem) for entry in entries]
    home = resolved[0][0]
    for entry, (here, path) in zip(entries, resolved, strict=True):
        if not home.equals(here):
            names = shown(str(entry)), shown(str(entries[0]))
            raise ConfigurationError(
                f"{names[0]}: all paths of one source must be on one filesystem; {names[1]} is on another"
            )
        text = str(entry)
        named.append((path, shown(text if "://" in text else f"{url_prefix(here, text)}{text}")))
    return home, named


def _refuse_configurations(lister: Lister, found: Sequence[_Found], chosen: Sequence[SourceFile]) -> None:
    """Refuse directories whose README.md divides them into configurations of the Hub, if several are chosen."""

    @cache  # directories of a list often lie in one directory
    def head_of(path: str) -> bytes:
        return lister.each(partial(lister.head, most=MOST_BYTES), [path])[0]

    for entry in found:
        if entry.is_directory:
            refuse_configurations(entry.base, chosen, entry.has_readme, head_of)


def _context(lister: Lister, found: Sequence[_Found], pairs: Sequence[tuple[ListedFile, _Found]]) -> ListingContext:
    """Return the names in the listing that are not those of files, and the folder of all files."""
    contexts = [lister.context(), *(entry.listing_context for entry in found)]
    directories = tuple(base for context in contexts for base in context.directories)
    hidden = frozenset[str]().union(*(context.hidden for context in contexts))
    named_folders = {entry.base.rstrip("/") or entry.base for entry in found if entry.is_directory}
    folders = named_folders | {posixpath.dirname(file.path) for file, entry in pairs if not entry.is_directory}
    return ListingContext(directories, hidden, common_folder(sorted(folders)))


@contextmanager
def _listing_errors(name: str) -> Iterator[None]:
    """Turn an OSError of the body, or a path that pyarrow refuses, into an error that names what was not listed."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise SourceError(f"{name}: cannot be listed: {error}") from None
    except OSError as error:
        if is_out_of_descriptors(error):
            raise out_of_descriptors(f"{name}: cannot be listed", 1) from None
        raise refused(f"{name}: cannot be listed", error) from error


def _listed(path: str) -> str:
    return glob_base(path) if is_pattern(path) else path


def _expand(
    lister: Lister, path: str, name: str, *, prefix: str, is_remote: bool, refuse: Callable[[Table], None]
) -> _Found:
    seen = lister.look(path)
    if isinstance(seen, ListedFile):
        return _Found(name, posixpath.dirname(seen.path), False, [seen], ListingContext(), {})
    if seen:
        base, below = path, lister.below(path)
        table = tables_in((entry.path for entry in below), base).get(base.rstrip("/") or base) if is_remote else None
        if table is not None:  # the table may have no data files yet
            refuse(table)
        files = [entry for entry in below if _is_visible(entry.path, path)] if is_remote else below
        what = "the directory holds no Parquet files (names beginning with '.' or '_' are skipped)"
    elif is_pattern(path):
        base = glob_base(path)
        if lister.look(base) is not True:
            raise SourceError(f"{name}: matches nothing: the directory {shown(base)!r} does not exist")
        files = below = lister.matching(base, path)
        if is_remote:
            matches = re.compile(glob_regex(path)).match
            names_hidden = any(map(is_hidden, _parts_below(path, base)))
            files = [e for e in below if matches(e.path) and (names_hidden or _is_visible(e.path, base))]
        what = "the pattern matches no Parquet file" if files else "the pattern matches no file"
    else:
        if prefix in _WITH_BUCKETS:
            _check_bucket(lister, path)
        raise SourceError(f"{name}: no such file or directory")
    parquet = sorted(_parquet_of(lister, name, files, is_remote=is_remote), key=lambda entry: entry.path)
    if not parquet:
        others = f"; it holds {posixpath.basename(files[0].path)!r}" if files else ""
        converted = "; the Hub's own conversion to Parquet may be at revision @~parquet" if prefix == "hf://" else ""
        raise SourceError(f"{name}: {what}{others}{converted}")
    if not is_remote:  # metadata of local tables is looked up when it is needed
        return _Found(name, base, bool(seen), parquet, ListingContext(), {})
    hidden = frozenset(entry.path for entry in below if posixpath.basename(entry.path).startswith("_"))
    tables = tables_in((entry.path for entry in below), base)
    has_readme = any(entry.path == f"{base.rstrip('/')}/README.md" for entry in below)
    context = ListingContext((base.rstrip("/"),), hidden)
    return _Found(name, base, bool(seen), parquet, context, tables, has_readme)


def _check_bucket(lister: Lister, path: str) -> None:
    bucket = path.partition("/")[0]
    try:
        is_there = lister.look(bucket) is not None
    except (SourceError, OSError):  # the permission to read objects may not include the bucket
        return
    if not is_there:
        raise OSError(f"NoSuchBucket: the bucket {bucket!r} does not exist")


def _parquet_of(lister: Lister, name: str, files: list[ListedFile], *, is_remote: bool) -> list[ListedFile]:
    """Return the files that are Parquet by their names, or by their first and last bytes if the names are not clear."""
    named: list[ListedFile] = []
    unknown: list[ListedFile] = []
    for entry in files:
        kind = kind_of(posixpath.basename(entry.path))
        if kind != "other":
            (named if kind == "parquet" else unknown).append(entry)
    if is_remote and not named:  # reading their footers will show which are Parquet
        return [entry for entry in unknown if entry.size_bytes]
    if is_remote and len(unknown) > _MOST_ASKED:
        raise SourceError(
            f"{name}: {len(unknown)} files next to {len(named)} Parquet files may be Parquet by their names, such as "
            f"{shown(unknown[0].path)!r}; name those to read by a glob"
        )
    ends = lister.each(lister.ends, unknown) if unknown else []
    return named + [entry for entry, found in zip(unknown, ends, strict=True) if has_magic(found)]


def _is_visible(path: str, base: str) -> bool:
    return not any(is_hidden(part) for part in _parts_below(path, base))


def _parts_below(path: str, base: str) -> list[str]:
    return path[len(base) :].strip("/").split("/")


def _partition_base(found: Sequence[_Found]) -> str | None:
    """Return the directory below which ``key=value`` is a column; None if the source is a single directory."""
    if len(found) == 1 and found[0].is_directory:
        return None
    base = common_folder([entry.base for entry in found])
    while is_hive_folder(posixpath.basename(base)):
        base = posixpath.dirname(base)
    return base


def _source_files(
    pairs: Sequence[tuple[ListedFile, _Found]], partition_base: str | None, prefix: str, began_ns: int | None
) -> list[SourceFile]:
    of_folders: dict[str, tuple[tuple[str, str | None], ...]] = {}
    files: list[SourceFile] = []
    for entry, found in pairs:
        mtime_ns = entry.mtime_ns if began_ns is None else _modified_ns(entry, began_ns)
        folder = entry.path.rpartition("/")[0]
        if folder not in of_folders:
            base = found.base if partition_base is None else partition_base
            of_folders[folder] = _partitions(folder, base)
        files.append(SourceFile(entry.path, entry.size_bytes, mtime_ns, of_folders[folder], entry.etag, prefix))
    return files


def _modified_ns(entry: ListedFile, began_ns: int) -> int | None:
    """Return the modification time of a remote file, or a time at which no later file can have been modified.

    Some stores give no ETags, and no times or whole seconds. Then the time counts at which the listing began: all of
    it, or its fraction of a second if the file is so new that it may be replaced within its second.
    """
    given_ns = entry.mtime_ns
    if entry.etag is not None:
        return given_ns
    if given_ns is None:
        return began_ns
    is_new = given_ns % _SECOND_NS == 0 and given_ns > began_ns - 2 * _SECOND_NS
    return given_ns + began_ns % _SECOND_NS if is_new else given_ns


def _partitions(folder: str, base: str) -> tuple[tuple[str, str | None], ...]:
    pairs = hive_pairs(_parts_below(folder, base))
    try:
        "".join(text or "" for pair in pairs for text in pair).encode()
    except UnicodeEncodeError:
        raise SourceError(
            f"{folder}: the partition in the name of this directory is not UTF-8 after its escapes are decoded; "
            "rename the directory, and write a percent sign as %25, or set PYTHONUTF8=1 if only the locale of this "
            "process is not UTF-8"
        ) from None
    return pairs


def _table_by_marker(lister: Lister, root: str, name: str) -> Table | None:
    path = posixpath.join(root, name)
    try:
        if lister.look(path) is not True:
            return None
    except (SourceError, OSError):
        return None  # the permission to read the files may not include these directories
    if name != "metadata":
        return Table(format_of_marker(name), root)
    try:
        return tables_in((entry.path for entry in lister.below(path)), root).get(root)
    except UnreachableError:
        raise
    except (SourceError, OSError) as error:
        raise not_listed(path) from error


def _table_of(files: Sequence[ListedFile], tables: dict[str, Table], *, is_local: bool) -> Table | None:
    table = first_table((file.path for file in files), local_table_at if is_local else tables.get)
    if table is None and is_local:
        linked = [file.real for file in files if file.real not in (None, file.path)]
        table = first_table((path for path in linked if path is not None), local_table_at)
    return table


def _each_once(files: Sequence[SourceFile], pairs: Sequence[tuple[ListedFile, _Found]]) -> list[SourceFile]:
    """Return each file once, preferring a path without links.

    Raises:
        SourceError: two entries of a source name the same file, or it belongs to two partitions.
    """
    first: dict[object, int] = {}
    for number, (entry, found) in enumerate(pairs):
        at = first.setdefault(entry.identity, number)
        if at == number:
            continue
        other, other_found = pairs[at]
        if found is not other_found:
            same = "" if entry.path == other.path else f", as {shown(other.path)} too"
            raise SourceError(f"{files[number].name}: the source names this file twice{same}; name it once")
        if entry.is_linked == other.is_linked and files[at].partitions != files[number].partitions:
            raise SourceError(
                f"{files[number].name}: this is the same file as {files[at].name}, under another partition; "
                "remove one of the two, for each row is delivered once"
            )
        if other.is_linked and not entry.is_linked:
            first[entry.identity] = number
    kept = set(first.values())
    return [file for number, file in enumerate(files) if number in kept]


def selection_of(split: str | None, filters: pc.Expression | None, options: ReadOptions) -> Selection:
    """Return the selection for these arguments; filters over a column ``split`` apply to files of all splits."""
    if split is None and filters is not None and "split" in named_columns(read_expression(filters)):
        split = "all"
    return Selection(split, options.ignore_table_format)
