"""Prints the public names of Petastorm's modules, and the arguments that they take, as JSON.

It runs with Petastorm 0.13.1 (make_petastorm.py says how to install it), and imports nothing of this library:

    python tests/interop/petastorm_signatures.py > tests/fixtures/petastorm/signatures.json
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import warnings
from typing import Any

# What scripts import. Those with TensorFlow need it to be installed to be looked at.
MODULES = [
    "",
    "cache",
    "codecs",
    "errors",
    "etl",
    "etl.dataset_metadata",
    "etl.rowgroup_indexers",
    "etl.rowgroup_indexing",
    "generator",
    "local_disk_cache",
    "ngram",
    "predicates",
    "pytorch",
    "reader",
    "selectors",
    "spark",
    "spark_utils",
    "test_util.reader_mock",
    "transform",
    "unischema",
    "utils",
    "weighted_sampling_reader",
]


def arguments_of(callable_: Any) -> list[str] | None:
    """Return the names of the arguments, in their order; None where they cannot be told."""
    try:
        return [name for name in inspect.signature(callable_).parameters if name != "self"]
    except (TypeError, ValueError):
        return None


def names_of(package: str, module: str) -> dict[str, Any]:
    """Return the classes and functions that a module defines or offers, with their arguments and methods."""
    found: dict[str, Any] = {}
    loaded = importlib.import_module(f"{package}.{module}" if module else package)
    for name, value in vars(loaded).items():
        own = str(getattr(value, "__module__", "")).startswith(package)
        if name.startswith("_") or not own or not callable(value):
            continue
        if not (module in ("", "spark") or value.__module__ == loaded.__name__):
            continue  # imported for its own use
        found[name] = {"arguments": arguments_of(value)}
        if inspect.isclass(value):
            methods = {n: getattr(value, n) for n in dir(value) if not n.startswith("_")}
            found[name]["methods"] = {n: arguments_of(m) if callable(m) else None for n, m in methods.items()}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    json.dump({module: names_of("petastorm", module) for module in MODULES}, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
