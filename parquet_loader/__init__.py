"""Feed deep-learning training from Parquet."""
