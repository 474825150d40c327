"""The code of `make demo`: from CSV files to Parquet to a trained model, with the main figures of each step."""
