"""Lists local directories: follows links, finds each file once, and skips directories that cannot match a glob."""

from __future__ import annotations

import heapq
import os
import re
import stat
from contextlib import suppress

from parquet_loader.errors import SourceError
from parquet_loader.source.file_types import hive_pairs, is_hidden, kind_of, name_regex
from parquet_loader.source.files import ListedFile, Lister


class LocalLister(Lister):
    """Lists the local file system; see `Lister`. Hidden files are left out unless a glob names them.

    Args:
        include_hidden: List hidden files too.
    """

    def __init__(self, *, include_hidden: bool = False) -> None:
        self._include_hidden = include_hidden
        self._real_folders: dict[str, str] = {}

    def look(self, path: str) -> ListedFile | bool | None:
        """Return a file, True for a directory, or None.

        Raises:
            SourceError: it is a broken link, or neither a regular file nor a directory.
            OSError: the system call fails.
        """
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path):
                raise _broken(path) from None
            return None
        if stat.S_ISDIR(found.st_mode):
            return True
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path}: this is {_special(found.st_mode)}; pass a regular file or a directory")
        return _entry(path, found, self._real(path))

    def _real(self, path: str) -> str:
        """Return a file's path without links; the results for directories are cached."""
        if os.path.islink(path):
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        return os.path.join(self._real_folders[folder], name)

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory."""
        return _Walk(base, [], include_hidden=self._include_hidden).files()

    def matching(self, base: str, pattern: str) -> list[ListedFile]:
        """Return the files below a directory that match a glob, or are below a directory that does."""
        below = pattern[len(base) :].strip("/")
        include_hidden = any(is_hidden(name) for name in below.split("/"))
        return _Walk(base, below.split("/"), include_hidden=include_hidden).files()

    def ends(self, entry: ListedFile) -> tuple[bytes, bytes]:
        """Return the first and the last four bytes of a file."""
        with open(entry.path, "rb") as file:
            first = file.read(4)
            file.seek(max(0, entry.size_bytes - 4))
            return first, file.read(4)

    def head(self, path: str, most: int) -> bytes:
        """Return at most `most` of a file's first bytes; see `Lister`."""
        try:
            with open(path, "rb") as file:
                return file.read(most)
        except OSError:
            return b""


class _Walk:
    """One recursive search of a directory.

    A glob of `n` names is matched name by name by a state machine. A directory in state `i` has yet to match the names
    from `i` on; in state `n` it matched, and all files below it are found.

    Directories are searched first, then the targets of links, in the order of the links' paths. So a file is found by
    its own path if that matches, and the result does not depend on the file system's order.

    Args:
        base: The directory.
        names: The glob's names below it; empty for all files.
        include_hidden: Whether names that begin with ``.`` or ``_`` are found.
    """

    def __init__(self, base: str, names: list[str], *, include_hidden: bool) -> None:
        self._base = base
        self._patterns = [None if self._spans(names, i) else re.compile(name_regex(n)) for i, n in enumerate(names)]
        self._end = len(names)
        self._include_hidden = include_hidden
        self._links: list[tuple[str, str, frozenset[int]]] = []
        self._found: list[ListedFile] = []
        # By real path: the states in which it was searched, and the link that led to it first.
        self._searched: dict[str, set[int]] = {}
        self._through: dict[str, str] = {}

    @staticmethod
    def _spans(names: list[str], number: int) -> bool:
        return names[number] == "**" and number < len(names) - 1

    def files(self) -> list[ListedFile]:
        """Search, and return the matches."""
        self._search(self._base, os.path.realpath(self._base), self._with_skipped({0}))
        while self._links:
            self._follow(*heapq.heappop(self._links))
        return self._found

    def _with_skipped(self, numbers: set[int]) -> frozenset[int]:
        """Add the states after each ``**``, which may match no directory."""
        for number in range(self._end):
            if number in numbers and self._patterns[number] is None:
                numbers.add(number + 1)
        return frozenset(numbers)

    def _after(self, numbers: frozenset[int], name: str) -> frozenset[int]:
        reached: set[int] = set()
        for number in numbers:
            if number == self._end or self._patterns[number] is None:
                reached.add(number)
            elif self._patterns[number].fullmatch(name):  # type: ignore[union-attr]
                reached.add(number + 1)
        return self._with_skipped(reached)

    def _search(self, base: str, real_base: str, numbers: frozenset[int], *, is_linked: bool = False) -> None:
        folders = [(base, real_base, numbers)]
        while folders:
            folder, real, numbers = folders.pop()
            done = self._searched.setdefault(real, set())
            numbers = frozenset(numbers - done)
            if not numbers:
                continue
            done.update(numbers)
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        after = self._after(numbers, entry.name)
                        if not after or (is_hidden(entry.name) and not self._include_hidden):
                            continue
                        real_path = os.path.join(real, entry.name)
                        if entry.is_symlink():
                            heapq.heappush(self._links, (entry.path, real, after))
                        elif entry.is_dir():
                            folders.append((entry.path, real_path, after))
                        elif self._end in after and entry.is_file():
                            with suppress(FileNotFoundError):  # removed meanwhile
                                self._found.append(_entry(entry.path, entry.stat(), real_path, is_linked=is_linked))
            except FileNotFoundError:  # removed meanwhile
                if folder == self._base:
                    raise

    def _follow(self, link: str, real_folder: str, numbers: frozenset[int]) -> None:
        try:
            found = os.stat(link)
        except OSError as error:
            if isinstance(error, PermissionError):
                raise
            name = os.path.basename(link)
            if os.path.lexists(link) and not is_hidden(name) and kind_of(name) != "other":
                raise _broken(link) from None
            return
        real = os.path.realpath(link)
        if stat.S_ISREG(found.st_mode):
            if self._end in numbers:
                self._found.append(_entry(link, found, real, is_linked=True))
        elif stat.S_ISDIR(found.st_mode):
            if real == "/" or f"{real_folder}/".startswith(f"{real}/"):  # a parent, which would be searched forever
                numbers = frozenset(n for n in numbers if n < self._end and self._patterns[n] is not None)
            elif self._searched.get(real, set()) >= numbers:
                self._check_same_partitions(link, real)
            self._through.setdefault(real, link)
            self._search(link, real, numbers, is_linked=True)

    def _check_same_partitions(self, link: str, real: str) -> None:
        other = self._through.get(real)
        if other is not None and hive_pairs(other.split("/")) != hive_pairs(link.split("/")):
            raise SourceError(
                f"{link}: this is the same directory as {other}, under another partition; "
                "remove one of the links, for each row is delivered once"
            )


def _entry(path: str, found: os.stat_result, real: str, *, is_linked: bool = False) -> ListedFile:
    inode = (found.st_dev, found.st_ino) if found.st_nlink > 1 and found.st_ino else None
    return ListedFile(path, found.st_size, found.st_mtime_ns, None, real, inode, is_linked)


def _broken(link: str) -> SourceError:
    try:
        target = os.readlink(link)
    except OSError:
        target = "its target"
    return SourceError(f"{link}: the link leads nowhere: {target!r} is not there; repair or remove the link")


def _special(mode: int) -> str:
    """Return what a file is that is neither a regular file nor a directory."""
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"
