"""Lists repositories of the Hugging Face Hub: one commit and one listing for each, for any number of paths."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from parquet_loader.common import HubAddress, HubApi, HubEntry, HubError
from parquet_loader.errors import RemoteError, SourceError
from parquet_loader.source.file_types import PARQUET_SUFFIXES, common_folder, glob_base, is_pattern
from parquet_loader.source.files import ListedFile, ListingContext
from parquet_loader.source.remote.backoff import Backoff
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.remote_lister import RemoteLister
from parquet_loader.source.remote.task_group import side_by_side

T = TypeVar("T")

_REPOSITORIES_AT_ONCE = 8


@dataclass(slots=True)
class _Tree:
    """What is known of a repository at one commit.

    Attributes:
        address: The repository and commit.
        files: Files by path within the repository.
        folders: Directories by path; the repository itself is ``""``.
        listed: Directories listed with everything below them.
        listed_flat: Directories listed without what is below them.
    """

    address: HubAddress
    files: dict[str, HubEntry] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {""})
    listed: list[str] = field(default_factory=list)
    listed_flat: set[str] = field(default_factory=set)

    def add(self, entries: Sequence[HubEntry]) -> None:
        """Add the entries of a listing."""
        for entry in entries:
            folder = posixpath.dirname(entry.path) if entry.is_file else entry.path
            if entry.is_file:
                self.files[entry.path] = entry
            while folder not in self.folders:
                self.folders.add(folder)
                folder = posixpath.dirname(folder)

    def covers(self, path: str) -> bool:
        """Whether everything at and below a path is known."""
        return any(_is_within(path, folder) for folder in self.listed)


class HubLister(RemoteLister):
    """Lists repositories.

    Args:
        fetcher: See `RemoteLister`.
        api: The Hub.
    """

    def __init__(self, fetcher: Fetcher, api: HubApi) -> None:
        super().__init__(fetcher)
        self._api = api
        self._trees: dict[str, _Tree] = {}

    def pinned(self, paths: Sequence[str]) -> list[str]:
        """Return the paths with the commit for each revision, and list their repositories; see `source.Lister`.

        Raises:
            SourceError: a repository or revision does not exist, or may not be read.
            RemoteError: the Hub does not answer.
        """
        addresses = [HubAddress.parse(path) for path in paths]
        groups: dict[tuple[str, str, bool], list[int]] = {}
        for number, address in enumerate(addresses):
            groups.setdefault((address.repository, address.revision, address.is_explicit), []).append(number)
        members = list(groups.values())

        async def resolved(group: list[int]) -> list[HubAddress]:
            return await self._resolved([addresses[member] for member in group])

        work = partial(side_by_side, resolved, members, _REPOSITORIES_AT_ONCE)
        for group, done in zip(members, self.fetcher.run(self._reached(work)), strict=True):
            for member, address in zip(group, done, strict=True):
                addresses[member] = address
        return [str(address) for address in addresses]

    async def _resolved(self, named: Sequence[HubAddress]) -> list[HubAddress]:
        """Return addresses in one repository with the commit of its revision; list what they name."""
        typed = named[0]
        try:
            commit = await self._commit(typed)
        except HubError as error:
            other = [address.without_organization for address in named]
            if not error.is_missing_repository or None in other:
                raise _refused(typed, error) from None
            named = [address for address in other if address is not None]
            try:
                commit = await self._commit(named[0])
            except HubError:
                raise _refused(typed, error) from None
        pinned = [HubAddress(commit.repository, commit.revision, one.path, is_explicit=True) for one in named]
        root = pinned[0].root
        tree = self._trees.setdefault(root, _Tree(HubAddress(commit.repository, commit.revision, is_explicit=True)))
        folder = common_folder([_folder_of(address.path) for address in pinned])
        if not tree.covers(folder):
            try:
                await self._list(tree, folder)
            except HubError as error:
                raise _refused(pinned[0], error) from None
        return pinned

    async def _commit(self, address: HubAddress) -> HubAddress:
        return await self._asked(address, partial(self._api.commit_of, address, self.fetcher.options.stall_s))

    async def _list(self, tree: _Tree, folder: str) -> None:
        """List a repository; if that takes several pages, list only the directory that is needed."""
        url: str | None = self._api.tree_url(tree.address, recursive=True)
        entries, url = await self._page(str(url), tree.address)
        if url is not None and folder:
            within = HubAddress(tree.address.repository, tree.address.revision, folder, is_explicit=True)
            try:
                entries, url = await self._page(self._api.tree_url(within, recursive=True), within)
            except HubError as error:
                if not error.is_missing_entry:
                    raise
                entries, url = [], None
        else:
            folder = ""
        while True:
            tree.add(entries)
            if url is None:
                break
            before = url
            entries, url = await self._page(url, tree.address)
            if url == before:
                raise HubError("the pages of the listing do not end; check HF_ENDPOINT")
        tree.listed.append(folder)

    async def _page(self, url: str, address: HubAddress) -> tuple[list[HubEntry], str | None]:
        stall_s = self.fetcher.options.stall_s
        return await self._asked(address, partial(self._api.tree_page, url, address, stall_s))

    async def _asked(self, address: HubAddress, ask: Callable[[], T]) -> T:
        """Return the response to a request; retry transient failures until the deadline."""
        loop = asyncio.get_running_loop()
        began_s, attempts, backoff = loop.time(), 0, Backoff()
        deadline_s = self.fetcher.options.deadline_s
        while True:
            attempts += 1
            try:
                return await self.fetcher.call(ask)
            except HubError as error:
                if not error.is_transient:
                    raise
                wait_s = backoff.next_s(error.wait_s)
                if loop.time() + wait_s >= began_s + deadline_s + backoff.asked_s:
                    raise RemoteError(
                        f"hf://datasets/{address.repository}: {attempts} attempts in {loop.time() - began_s:.1f} s "
                        f"without success, the last: {error}; RemoteOptions(deadline_s=...) sets how long requests "
                        "are retried"
                    ) from None
            await asyncio.sleep(wait_s)

    def look(self, path: str) -> ListedFile | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        address = HubAddress.parse(path)
        tree = self._tree(address)
        folder = posixpath.dirname(address.path)
        if not tree.covers(address.path) and address.path not in tree.folders and folder not in tree.listed_flat:
            listing = partial(self._list_flat, tree, folder)
            self._run(tree, self.fetcher.once((address.root, folder), listing))
        if address.path in tree.folders:
            return True
        entry = tree.files.get(address.path)
        return None if entry is None else _listed(tree, entry)

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory; see `source.Lister`."""
        address = HubAddress.parse(base)
        tree = self._tree(address)
        if not tree.covers(address.path):
            self._run(tree, self._list(tree, address.path))
        return [_listed(tree, entry) for path, entry in tree.files.items() if _is_within(path, address.path)]

    def context(self) -> ListingContext:
        """Return what is known of the repositories; see `source.Lister`."""
        directories = [f"{root}/{folder}".rstrip("/") for root, tree in self._trees.items() for folder in tree.listed]
        hidden = [
            f"{root}/{path}"
            for root, tree in self._trees.items()
            for path in tree.files
            if posixpath.basename(path).startswith("_")
        ]
        return ListingContext(tuple(directories), frozenset(hidden))

    async def _list_flat(self, tree: _Tree, folder: str) -> None:
        """List a directory, but not what is below it."""
        if folder in tree.listed_flat:
            return
        within = HubAddress(tree.address.repository, tree.address.revision, folder, is_explicit=True)
        url: str | None = self._api.tree_url(within, recursive=False)
        while url is not None:
            try:
                entries, url = await self._page(url, within)
            except HubError as error:
                if not error.is_missing_entry:
                    raise
                entries, url = [], None
            tree.add(entries)
        tree.listed_flat.add(folder)

    def _tree(self, address: HubAddress) -> _Tree:
        own = HubAddress(address.repository, address.revision, is_explicit=True)
        return self._trees.setdefault(address.root, _Tree(own))

    def _run(self, tree: _Tree, work: object) -> None:
        try:
            self.fetcher.run(work)  # type: ignore[arg-type]
        except HubError as error:
            raise _refused(tree.address, error) from None


def _listed(tree: _Tree, entry: HubEntry) -> ListedFile:
    return ListedFile(f"{tree.address.root}/{entry.path}", entry.size_bytes, None, entry.content_id)


def _folder_of(path: str) -> str:
    """Return the directory that has to be listed for a path."""
    if is_pattern(path):
        return glob_base(path)
    return posixpath.dirname(path) if path.lower().endswith(PARQUET_SUFFIXES) else path


def _is_within(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _refused(address: HubAddress, error: HubError) -> SourceError:
    revision = "" if address.revision == "main" else f"@{address.revision}"
    return SourceError(f"hf://datasets/{address.repository}{revision}: {error}")
