"""Everything known before the first epoch: schema, row counts, memory budget."""
