"""Transforms for a reading process, which imports this module, and neither torch nor pytest with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
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


def returned_unchanged(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    columns["double"] *= -1.0
    return columns


def crashing(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Crash, while a process that it forked keeps all files open."""
    if 55 in columns["id"]:
        if not os.fork():
            time.sleep(90)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSEGV)
    return columns


def in_several_processes(
    folder: str, processes: int, columns: dict[str, Any], _: np.random.Generator
) -> dict[str, Any]:
    """Return when `processes` processes have begun a call; each creates a file in `folder`.

    The first batch, whose first `id` is 0, returns at once: further ones begin when it has shown how large it is.
    """
    Path(folder, str(os.getpid())).touch()
    processes = processes if columns["id"][0] else 1
    end = time.monotonic() + 60
    while len(os.listdir(folder)) < processes:
        if time.monotonic() > end:
            raise TimeoutError(f"{os.listdir(folder)} run transform, not {processes} processes")
        time.sleep(0.001)
    return {"id": columns["id"], "process": np.full(len(columns["id"]), os.getpid())}


def endless(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    while True:
        time.sleep(0.1)


def two_views(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": np.concatenate([columns["id"]] * 2), "drawn": rng.random(2 * len(columns["id"]))}


def as_many_as_the_second(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return {"id": columns["id"], "half": columns["id"][::2]}


def unchanged(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return columns


def twice_the_last(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return {"id": np.resize(columns["id"], 2 * len(columns["id"]) if len(columns["id"]) < 16 else 16)}


def fails_at_55(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    if 55 in columns["id"]:
        return {"id": 1 // 0}  # the line of the transform
    return columns


def four_times_as_large(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return {name: array.astype("f4") for name, array in columns.items()}
