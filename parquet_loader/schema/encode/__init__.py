"""Converts callers' batches of any form to Arrow tables in a schema's stored form.

sources                    splits a batch of any form into slices of rows
containers                 data sets of other libraries as batches, or an error that names an alternative
inputs                     one column of any form, as numpy array, Arrow array, list or `Ragged`
lossless                   casts that keep every value
columns, tensors, images, blobs   a column as its field stores it
leaves                     splits nested columns into their leaves
tables                     `to_table`, `iter_tables`
"""

from __future__ import annotations

from parquet_loader.schema.encode.tables import (
    SLICE_BYTES,
    complete_schema,
    encode_columns,
    infer_schema,
    iter_tables,
    to_table,
)

__all__ = ["SLICE_BYTES", "complete_schema", "encode_columns", "infer_schema", "iter_tables", "to_table"]
