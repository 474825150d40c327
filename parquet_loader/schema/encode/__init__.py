"""Converts callers' batches of any form to Arrow tables in a schema's stored form."""
