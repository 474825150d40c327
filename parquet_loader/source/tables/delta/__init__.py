"""Delta Lake: replays a table's log to the files of one version."""
