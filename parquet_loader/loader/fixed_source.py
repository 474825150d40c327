"""Lists a source for loaders that plan from all of its rows, and so need one that does not change."""

from __future__ import annotations

from typing import Any

from parquet_loader.dataset import ListedDataset, check_left_to_dataset, settings_of
from parquet_loader.errors import UnsupportedError
from parquet_loader.loader.live_source import LiveSource
from parquet_loader.source import VersionedSource, table_source


def list_fixed(source: Any, planned: str, **arguments: Any) -> ListedDataset:
    """List a source, or return it if it is listed.

    Args:
        source: As in `BatchedDataLoader`.
        planned: The reason why rows must not change, for error messages: "samples are planned from all rows".
        arguments: Arguments of `ListedDataset`. With a listed source, only `shard` may be given.

    Raises:
        ConfigurationError: An argument is given that a listed source determines.
        UnsupportedError: The source changes between epochs, or row groups may be skipped.
    """
    if isinstance(source, ListedDataset):
        own = {name: value for name, value in arguments.items() if name != "shard"}
        check_left_to_dataset(source, "raise", **own)
        if settings_of(source).on_error == "skip":
            raise UnsupportedError(f"on_error='skip': {planned}, so none may be missing; use on_error='raise'")
        return source
    given = table_source(source)
    if given.follow if isinstance(given, VersionedSource) else isinstance(given, LiveSource):
        raise UnsupportedError(
            f"the source changes from epoch to epoch, and {planned}; pass a fixed list of files, or one version of a "
            "table"
        )
    return ListedDataset(given, **arguments)
