"""Stores results as JSON: one file per workload, into which entries are merged as they are measured."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def now() -> str:
    """Return the time in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def hardware() -> dict[str, Any]:
    """Return the machine's description."""
    return {
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
    }


def _first(path: str, key: str) -> str:
    try:
        with open(path, encoding="utf-8") as info:
            return next((line.split(":")[1].strip() for line in info if line.startswith(key)), "")
    except OSError:
        return ""


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return median, extremes and all values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": list(values)}


def load(path: Path) -> dict[str, Any]:
    """Return a file of results, or an empty one."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(path: Path, results: Mapping[str, Any]) -> None:
    """Write results whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def merge(path: Path, about: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Put new entries into a file of results; those measured at another size of the data are dropped."""
    old = load(path)
    kept = old.get("entries", {}) if old.get("rows") == about["rows"] else {}
    save(path, {**about, "entries": {**kept, **entries}})
