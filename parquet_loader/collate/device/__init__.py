"""Batches on a device: copies, permutation of windows, and pinned memory. Imports torch."""
