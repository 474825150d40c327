"""Columns as a file stores them to canonical columns: one type a field, no nulls."""
