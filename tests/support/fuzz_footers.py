"""Loads files whose footers were altered, under a cap on memory and time.

    python -m tests.support.fuzz_footers --count 10000

A load has to end in rows or in the library's own error that names the file. Whatever else happens ends the run, with
the number of the case, which `--first` repeats: a crash, another error, memory beyond the cap, a load that takes long.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, MemoryLimitError, OutputOptions, ParquetLoaderError, SchemaError
from parquet_loader.cli.inspect import facts_of
from parquet_loader.source.opening import open_snapshot
from tests.support import footers
from tests.support.fuzz_metadata import cap_memory

CAP_BYTES = 2**30
LONGEST_S = 30
NUMBERS = (-1, 0, 1, 2, 7, 8, 9, 100, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, -(2**31), -(2**63))


def originals(folder: Path) -> list[bytes]:
    """Small files of different kinds."""
    numbers = pa.table({"a": pa.array(range(60), pa.int32()), "b": [float(n) for n in range(60)]})
    mixed = numbers.append_column("s", pa.array(["x", None, "yy"] * 20)).append_column("l", pa.array([[1, 2]] * 60))
    nested = numbers.append_column("d", pa.array([{"x": n, "y": {"z": [n]}} for n in range(60)]))
    kinds: list[tuple[pa.Table, dict[str, Any]]] = [
        (numbers, {"compression": "none", "use_dictionary": False}),
        (numbers, {"compression": "zstd", "store_schema": False}),
        (mixed, {"compression": "snappy"}),
        (mixed, {"compression": "gzip", "data_page_version": "2.0", "version": "1.0"}),
        (nested, {"write_page_index": True}),
    ]
    found = []
    for table, options in kinds:
        pq.write_table(table, folder / "original", row_group_size=20, **options)
        found.append((folder / "original").read_bytes())
    return found


def altered(original: bytes, rng: random.Random) -> bytes:
    """A file with another footer: bytes changed at random, or values in its structure."""
    body, footer = footers.split(original)
    if rng.random() < 0.4:
        changed = bytearray(footer)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            at = rng.randrange(len(changed))
            match rng.randrange(4):
                case 0:
                    changed[at] ^= 1 << rng.randrange(8)
                case 1:
                    changed[at] = rng.randrange(256)
                case 2:
                    del changed[at : at + rng.randrange(1, 4)]
                case _:
                    changed[at:at] = rng.randbytes(rng.randrange(1, 4))
        return footers.join(body, bytes(changed))
    decoded = copy.deepcopy(footers.decode(footer))
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice(list(_changes(decoded)))(rng)
    return footers.join(body, footers.encode(decoded))


def _changes(fields: footers.ThriftStruct) -> Iterator[Callable[[random.Random], None]]:
    """What can be done to one value of a struct, or of those below it."""

    def put(field: int, kind: int) -> Callable[[random.Random], None]:
        def change(rng: random.Random) -> None:
            value = fields[field][1]
            if rng.random() < 0.15:
                del fields[field]
            elif kind in (footers.I16, footers.I32, footers.I64):
                fields[field] = (kind, rng.choice((*NUMBERS, value + 1, value - 1, value * 2)))
            elif kind == footers.BINARY:
                fields[field] = (
                    kind,
                    rng.choice((b"", value[:-1], value + b"\0", rng.randbytes(len(value)), b"a" * 300)),
                )
            elif kind in (footers.LIST, footers.SET):
                head, items = value[:1], value[1:]
                fields[field] = (kind, head + rng.choice(([], items[:-1], items + items[-1:], items[::-1])))

        return change

    for field, (kind, value) in list(fields.items()):
        yield put(field, kind)
        if kind == footers.STRUCT:
            yield from _changes(value)
        elif kind in (footers.LIST, footers.SET) and value[:1] == [footers.STRUCT]:
            for inner in value[1:]:
                yield from _changes(inner)


def load(path: Path, **arguments: Any) -> int:
    """Load all that can be loaded; return the number of rows."""
    options = OutputOptions(format="numpy")
    try:
        with BatchedDataLoader(
            path, 16, num_threads=1, memory_limit="64MiB", output_options=options, **arguments
        ) as loader:
            return sum(len(next(iter(batch.values()))) for batch in loader)
    except ParquetLoaderError as error:
        if isinstance(error, MemoryError) or not (
            path.name in str(error) or isinstance(error, MemoryLimitError | SchemaError)  # about arguments
        ):
            raise AssertionError("memory ran out, or no file is named") from error
        return -1


def fuzz(first: int, count: int, seed: int) -> tuple[int, int]:
    """Load so many altered files; return how many gave rows, and how many were refused."""
    read, refused = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        files = originals(Path(folder))
        path = Path(folder) / "altered.parquet"
        path.write_bytes(files[0])
        assert load(path) == 60
        cap_memory(CAP_BYTES)
        for number in range(first, first + count):
            rng = random.Random(f"{seed} {number}")
            path.write_bytes(altered(rng.choice(files), rng))
            print(number, flush=True)
            faulthandler.dump_traceback_later(LONGEST_S, exit=True)
            try:
                ways: list[dict[str, Any]] = [
                    {},
                    {"filters": pc.field("a") > 30},
                    {"on_error": "skip", "columns": ["b"]},
                ]
                rows = load(path, **rng.choice(ways))
                if rng.random() < 0.1:
                    facts_of(open_snapshot(path))
            except ParquetLoaderError:
                rows = -1
            except BaseException as error:
                raise AssertionError(f"case {number} of seed {seed}: {error!r}") from error
            faulthandler.cancel_dump_traceback_later()
            read, refused = read + (rows >= 0), refused + (rows < 0)
    return read, refused


def main() -> None:
    """Read the arguments, fuzz, print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    read, refused = fuzz(arguments.first, arguments.count, arguments.seed)
    print(f"{arguments.count} altered footers: {read} loaded, {refused} refused", file=sys.stderr)


if __name__ == "__main__":
    main()
