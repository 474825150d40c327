"""The modules of `schemas/` are examples for users: each has one schema, which a file's footer preserves."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from parquet_loader import Schema

MODULES = sorted(p.stem for p in (Path(__file__).parents[2] / "schemas").glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_module_defines_one_schema_that_its_footer_form_restores(name: str) -> None:
    values = vars(importlib.import_module(f"schemas.{name}")).values()
    (schema,) = (value for value in values if isinstance(value, Schema))
    assert Schema.from_arrow(schema.arrow_schema()) == schema
