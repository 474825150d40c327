"""Rewriting a data set into the layout that loads fastest.

target    what the new files hold: fields, tensors, packed groups
stored    source files to stored columns; nulls at every level
passes    a sample, what footers say, all rows once
measure   the way of storing each column, and the size of row groups
scratch   temporary files that the next run removes if this one is killed
scatter   all rows in random order, in bounded memory
rates     how fast a data set loads
report    `RewriteReport`
rewrite   `rewrite_dataset`
"""

from __future__ import annotations

from parquet_loader.write.rewrite.load_benchmark import LoadRate
from parquet_loader.write.rewrite.report import ColumnReport, RewriteReport
from parquet_loader.write.rewrite.rewrite import rewrite_dataset

__all__ = ["ColumnReport", "LoadRate", "RewriteReport", "rewrite_dataset"]
