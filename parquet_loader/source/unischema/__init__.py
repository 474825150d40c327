"""Reads the metadata that Petastorm writes next to its files, without unpickling it."""
