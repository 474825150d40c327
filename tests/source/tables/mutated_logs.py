"""Changes bytes of a table's metadata, and compares the delivered rows with the rows of the table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from parquet_loader import ParquetLoaderError

Change: TypeAlias = tuple[bytes, bytes]
"""A file's bytes before and after."""


@dataclass
class Outcomes:
    """The results: counts by kind of file, and the changes that led to other rows, with kind and name."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    other: list[tuple[str, str, Change]] = field(default_factory=list)


def mutate(
    files: Mapping[str, Sequence[Path]], rows_of: Callable[[], Any], times: int, seed: int, outcomes: Outcomes
) -> None:
    """Change a byte of a file of each kind, or cut the file off, that many times; each change is undone."""
    generator = random.Random(seed)
    wanted = rows_of()
    for kind, paths in files.items():
        for _ in range(times):
            path = generator.choice(list(paths))
            raw = path.read_bytes()
            changed = bytearray(raw)
            at, how = generator.randrange(len(raw)), generator.random()
            if how < 0.6:
                changed[at] ^= 1 << generator.randrange(8)
            elif how < 0.9:
                changed[at] = generator.randrange(256)
            else:
                del changed[at:]
            if changed == raw:
                continue
            path.write_bytes(changed)
            try:
                is_same = rows_of() == wanted
            except ParquetLoaderError:
                outcomes.counts[kind, "refused"] += 1
            else:
                outcomes.counts[kind, "same" if is_same else "other"] += 1
                if not is_same:
                    outcomes.other.append((kind, path.name, (raw, bytes(changed))))
            finally:
                path.write_bytes(raw)
