"""Judges the layout of a source by its footers: what costs time or spoils the shuffle."""
