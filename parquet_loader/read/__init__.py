"""Reads one row group: chunk readers, row filters, the local cache."""
