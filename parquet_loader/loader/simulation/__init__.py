"""Predicts an epoch: its first batch, time, waits, memory, requests and cost."""
