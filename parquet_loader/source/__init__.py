"""From paths, URLs, directories and globs to the list of files that a source names."""

from parquet_loader.source.files import Beside, Entry, Lister, SourceFile, changed_since, seen
from parquet_loader.source.listing import Selection, Source, list_files
from parquet_loader.source.local import LocalLister
from parquet_loader.source.names import PARQUET_SUFFIXES

__all__ = [
    "PARQUET_SUFFIXES",
    "Beside",
    "Entry",
    "Lister",
    "LocalLister",
    "Selection",
    "Source",
    "SourceFile",
    "changed_since",
    "list_files",
    "seen",
]
