"""Reads the row groups of a data set as stored columns, and makes Petastorm's rows and batches of them.

The readers share `read.RowGroupReader` with the engine, but not its windows. A window holds canonical columns, which
lack what Petastorm delivers: decimals, nulls, text of any shape, complex numbers, dates as objects. And Petastorm's
unit is the row group: its batches, n-grams, parts and predicates.
"""
