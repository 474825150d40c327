"""The files of a store: paths, names, writing and listing."""
