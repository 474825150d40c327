"""Computes ratios between entries of one workload, paired by round, and compares them with the aims. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio of rates.

    Attributes:
        workload: Where both were measured.
        ours, other: Entries.
        aim: The least that was aimed at.
        text: What the ratio says.
    """

    workload: str
    ours: str
    other: str
    aim: float
    text: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times `other`'s rate `ours`'s is.

    Attributes:
        median, least, most: Over the rounds.
        paired: Whether both were measured in one run, round by round; otherwise medians were divided.
    """

    median: float
    least: float
    most: float
    paired: bool


CLAIMS = (
    Claim("tabular", "ours", "decode", 1, "default layout, batch 4096, compared with decoding alone"),
    Claim("tabular", "ours-200k", "decode", 1, "the same with windows of 200,000 rows"),
    Claim("tabular", "ours", "petastorm", 18, "compared with Petastorm"),
    Claim("tabular", "ours", "torch-0", 6, "compared with the torch DataLoader by hand"),
    Claim("tabular", "ours-ours", "ours", 1.5, "our layout compared with the default layout"),
    Claim("tabular", "ours-packed", "ours", 2.5, "our layout with packed groups compared with the default layout"),
    Claim("tabular-256", "ours", "decode", 0.75, "batch 256 in 40 tensors compared with decoding alone"),
    Claim("tabular-256", "ours-grouped", "decode", 0.95, "batch 256 in two matrices compared with decoding alone"),
    Claim("science", "ours", "copy", 0.55, "raw tensors compared with a memory copy on one thread"),
    Claim("science", "ours", "petastorm", 60, "raw tensors compared with Petastorm, which reads lists"),
    Claim("science", "ours", "tfrecord", 5, "raw tensors compared with tf.data over TFRecord"),
    Claim("science", "ours-list", "decode-list", 1, "lists of other writers compared with decoding them alone"),
    Claim("wide", "ours", "decode", 1, "1,000 columns compared with decoding alone"),
    Claim("ragged", "ours", "decode", 1, "token lists compared with decoding alone"),
    Claim("ragged", "ours", "lance", 1, "token lists compared with Lance's scan"),
    Claim("text", "ours", "lance", 1.3, "texts compared with Lance's scan"),
    Claim("text", "ours-ours", "decode-ours", 0.6, "texts in our layout compared with decoding them alone"),
    Claim("images", "ours", "decode-jpeg", 0.95, "images compared with decoding the same JPEGs alone"),
)


def ratio(entries: Mapping[str, Mapping[str, Any]], ours: str, other: str) -> Ratio | None:
    """Divide the rates of two entries; None where one has none."""
    first, second = entries.get(ours, {}), entries.get(other, {})
    if first.get("status") != "ok" or second.get("status") != "ok":
        return None
    rates, others = first["bytes_per_s"], second["bytes_per_s"]
    paired = first["run"]["date"] == second["run"]["date"] and len(rates["all"]) == len(others["all"])
    if not paired:
        return Ratio(
            rates["median"] / others["median"], rates["min"] / others["max"], rates["max"] / others["min"], False
        )
    pairs = [a / b for a, b in zip(rates["all"], others["all"], strict=True)]
    return Ratio(statistics.median(pairs), min(pairs), max(pairs), True)


def faster_peers(entries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return peers faster than our fastest entry on the first layout they share, as (name, times), fastest first."""
    if entries.get("ours", {}).get("status") != "ok":
        return []
    found = []
    for name, entry in entries.items():
        if entry["role"] == "peer" and entry["status"] == "ok":
            times = ratio(entries, name, "ours")
            if times is not None and times.median > 1:
                found.append((name, times.median))
    return sorted(found, key=lambda pair: -pair[1])
