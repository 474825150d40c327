"""The Hub as a file system of pyarrow's: names a Hub, and reads small files. Data goes through `source.remote`."""

from __future__ import annotations

import posixpath
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common.storage.hub.address import HubAddress
from parquet_loader.common.storage.hub.api import HubApi, HubError
from parquet_loader.errors import ConfigurationError

_TIMEOUT_S = 30.0


class HubFileSystem(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Files of repositories, at paths like ``datasets/ORG/NAME@COMMIT/data/train.parquet``.

    Args:
        api: The Hub.
    """

    def __init__(self, api: HubApi) -> None:
        self.api = api

    def __eq__(self, other: object) -> bool:
        """Whether both are of the same Hub."""
        return isinstance(other, HubFileSystem) and other.api.endpoint == self.api.endpoint

    def __hash__(self) -> int:
        return hash(self.api.endpoint)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the name of the Hub."""
        return HubFileSystem, (self.api,)

    def get_type_name(self) -> str:
        """Return the name of this kind of file system."""
        return "hub"

    def normalize_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """Return the types and sizes of paths, from a listing of the directory of each."""
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> pafs.FileInfo:
        address = HubAddress.parse(path)
        if not address.path:
            return pafs.FileInfo(path, pafs.FileType.Directory)
        try:
            entries = self._listed(address, posixpath.dirname(address.path), recursive=False)
        except HubError as error:
            if error.is_missing_entry:
                return pafs.FileInfo(path, pafs.FileType.NotFound)
            raise
        return next((e for e in entries if e.path == path), pafs.FileInfo(path, pafs.FileType.NotFound))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Return the entries of a directory."""
        address = HubAddress.parse(selector.base_dir)
        try:
            return self._listed(address, address.path, recursive=selector.recursive)
        except HubError as error:
            if error.is_missing_entry and selector.allow_not_found:
                return []
            raise

    def _listed(self, address: HubAddress, folder: str, *, recursive: bool) -> list[pafs.FileInfo]:
        within = HubAddress(address.repository, address.revision, folder, is_explicit=True)
        url: str | None = self.api.tree_url(within, recursive=recursive)
        found: list[pafs.FileInfo] = []
        while url is not None:
            page, url = self.api.tree_page(url, within, _TIMEOUT_S)
            for entry in page:
                kind = pafs.FileType.File if entry.is_file else pafs.FileType.Directory
                found.append(pafs.FileInfo(f"{address.root}/{entry.path}", kind, size=entry.size_bytes))
        return found

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Return a file whose bytes are read at once."""
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Return a file whose bytes are read at once."""
        address = HubAddress.parse(path)
        try:
            with self.api.opened(self.api.file_url(address), address, _TIMEOUT_S) as (response, _):
                return pa.BufferReader(response.read())
        except HubError as error:
            if error.is_missing_entry:
                raise FileNotFoundError(f"hf://{path}: {error}") from None
            raise

    def _refuse(self, *given: Any) -> NoReturn:
        """Refuse to write."""
        path = [value for value in given if isinstance(value, str)][-1:]
        raise ConfigurationError(
            f"hf://{''.join(path)}: the Hub is only read; write to a local directory, and upload that with `hf upload`"
        )

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


def hub_of(filesystem: pafs.FileSystem) -> HubApi | None:
    """Return the Hub client of a filesystem, or None for other filesystems."""
    handler = getattr(filesystem, "handler", None)
    return handler.api if isinstance(handler, HubFileSystem) else None
