"""Tables as sources: each format is resolved to a `TableVersion`, of which `open_snapshot` makes a snapshot."""
