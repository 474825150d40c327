"""Batches on a device: copies, windows that it permutes, and pinned memory. Imports torch."""
