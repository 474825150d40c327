"""The ground under every other package: file systems, locks, ranks, validation. Knows nothing of Parquet."""
