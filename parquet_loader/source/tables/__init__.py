"""Resolves tables of each format to a `TableVersion`, from which `open_snapshot` makes a snapshot."""
