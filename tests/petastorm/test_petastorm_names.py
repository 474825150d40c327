"""The names of Petastorm's modules are here, with the same arguments in the same order."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from tests.interop.petastorm_signatures import MODULES, arguments_of
from tests.support import petastorm_oracle as oracle

# Functions of Petastorm's own that take an object of an old pyarrow, or serve its reader only.
LEFT_OUT = {
    ("etl.dataset_metadata", "get_schema"),
    ("etl.dataset_metadata", "load_row_groups"),
    ("etl.rowgroup_indexing", "PieceInfo"),
    ("reader", "normalize_dataset_url_or_urls"),
    ("utils", "add_to_dataset_metadata"),
    ("utils", "run_in_subprocess"),
}
# What took such an object takes the URL of the data set, or an Arrow schema.
CHANGED = {
    ("etl.dataset_metadata", "infer_or_load_unischema"),
    ("etl.rowgroup_indexing", "get_row_group_indexes"),
    ("unischema", "Unischema", "from_arrow_schema"),
}
WITH_INSTANCES = {("reader", "Reader", "batched_output")}


def begins_with(found: list[str] | None, wanted: list[str]) -> bool:
    """Whether arguments equal Petastorm's; more may follow, and the names of `**` arguments do not matter."""
    return found is not None and all(
        theirs in (ours, "kargs") for ours, theirs in zip(found[: len(wanted)], wanted, strict=True)
    )


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_petastorms_names_and_arguments(module: str) -> None:
    wanted: dict[str, Any] = json.loads((oracle.FIXTURES / "signatures.json").read_text())[module]
    assert wanted, "nothing was written down"
    ours = importlib.import_module(f"parquet_loader.petastorm.{module}" if module else "parquet_loader.petastorm")
    for name, facts in wanted.items():
        if (module, name) in LEFT_OUT:
            assert not hasattr(ours, name), f"{name} is there now: take it off the list"
            continue
        found = getattr(ours, name)
        if facts["arguments"] is not None and (module, name) not in CHANGED:
            assert begins_with(arguments_of(found), facts["arguments"]), name
        for method, arguments in facts.get("methods", {}).items():
            if (module, name, method) in CHANGED | WITH_INSTANCES:
                continue
            assert hasattr(found, method), f"{name}.{method}"
            if arguments is not None:
                assert begins_with(arguments_of(getattr(found, method)), arguments), f"{name}.{method}"
