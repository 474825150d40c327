"""A contact sheet: a few rows of a source as a page or a picture."""

from __future__ import annotations

from parquet_loader.loader.sheet.cells import Sheet, sheet_of
from parquet_loader.loader.sheet.page import page_of
from parquet_loader.loader.sheet.picture import picture_of

__all__ = ["Sheet", "page_of", "picture_of", "sheet_of"]
