"""`rewrite_dataset`: copies a data set into the layout that loads fastest."""

from __future__ import annotations

from parquet_loader.write.rewrite.report import ColumnReport, RewriteReport
from parquet_loader.write.rewrite.rewrite import rewrite_dataset

__all__ = ["ColumnReport", "RewriteReport", "rewrite_dataset"]
