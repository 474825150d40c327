"""The files of a store: where they lie, their names, how they are written and listed."""
