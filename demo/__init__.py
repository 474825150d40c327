"""`make demo`: from CSV files to Parquet to a trained model, with the figures that matter on the way."""
