"""Files that are not local: bytes fetched in good time, whatever the store and the line do meanwhile."""
