"""Readers to test with."""
