"""Converts callers' batches of any form to Arrow tables in a schema's stored form.

sources                    splits a batch of any form into slices of rows
containers                 data sets of other libraries as batches, or an error that names an alternative
inputs                     one column of any form, as numpy array, Arrow array, list or `Ragged`
lossless                   casts that keep every value
columns, tensors, images, blobs   a column as its field stores it
leaves                     splits nested columns into their leaves
tables                     `to_table`, `iter_tables`
"""
