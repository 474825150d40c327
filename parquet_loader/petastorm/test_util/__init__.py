"""Readers for tests."""
