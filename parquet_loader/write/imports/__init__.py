"""Imports of data sets that are not Parquet: streaming, in bounded memory, continued after an interruption.

importing  the journal of an import, and its publication
records    what every format hands to it: chunks of rows, and the tally of what was skipped
report     the result
images     folders of images
"""

from __future__ import annotations

from parquet_loader.write.imports.images import import_images
from parquet_loader.write.imports.report import ImportReport, SkippedRecords

__all__ = ["ImportReport", "SkippedRecords", "import_images"]
