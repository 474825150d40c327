"""From paths, URLs, directories and globs to the list of files that a source names."""

from parquet_loader.source.file_types import PARQUET_SUFFIXES
from parquet_loader.source.files import ListedFile, Lister, ListingContext, SourceFile, changed_since, seen
from parquet_loader.source.listing import Selection, Source, list_files
from parquet_loader.source.local import LocalLister

__all__ = [
    "PARQUET_SUFFIXES",
    "ListedFile",
    "Lister",
    "ListingContext",
    "LocalLister",
    "Selection",
    "Source",
    "SourceFile",
    "changed_since",
    "list_files",
    "seen",
]
