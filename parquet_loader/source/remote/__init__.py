"""Fetches byte ranges of remote files: concurrent requests, retries, hedging and listings."""
