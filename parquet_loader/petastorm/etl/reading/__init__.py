"""Reads the row groups of a data set as stored columns, and makes Petastorm's rows and batches from them.

The readers share `read.RowGroupReader` with the engine, but not its windows. A window holds canonical columns, which
cannot represent all values that Petastorm delivers: decimals, nulls, text of any shape, complex numbers, dates as
objects. And Petastorm works by row groups: in batches, n-grams, parts and predicates.
"""
