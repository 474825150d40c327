"""Transforms for a reading process, which imports this module, and neither torch nor pytest with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from parquet_loader.schema import Ragged


def doubled(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return {**columns, "twice": columns["id"] * 2}


def of_all_kinds(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    rows = len(next(iter(columns.values())))
    lists = Ragged(np.arange(rows), np.arange(rows + 1))
    return {**columns, "drawn": rng.random(rows), "lists": lists, "words": np.array(["é"] * rows, object)}


def unequal(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"few": np.arange(3)}


class OddError(Exception):
    """Cannot be made again from what is pickled of it."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"odd {one} and {other}")


def failing(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    raise OddError(1, 2)
