"""Canonical rows to one window of shuffled arrays, in leased memory."""
