"""Rows of a data set by index: `row_reader` reads them, `map_dataset` wraps the reader for torch."""
