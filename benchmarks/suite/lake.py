"""Compares the loader with decoding alone, on the Parquet files that other programs write by default.

    python -m benchmarks.suite lake

Each row of the table is a kind of column, and each column a writer: pyarrow, Polars, DuckDB and Spark (if pyspark and
Java are installed). Our loader shuffles in windows and delivers batches of numpy arrays; the others only decode row
groups. Before the loader is timed, its rows are compared with pyarrow's, value by value. All systems take turns, each
in its own process; ratios are taken within rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.suite.processes import Worker, WorkerError
from benchmarks.suite.results import hardware, load, now, save, spread
from benchmarks.suite.systems.base import versions
from parquet_loader import BatchedDataLoader, Category, OutputOptions, Ragged, Scalar, Schema, Text

ROWS = 600_000
FILES = 3
ROW_GROUP_ROWS = 100_000
BATCH_SIZE = 4096
WINDOW_ROWS = 200_000
TIMEOUT_S = 600.0
SYSTEMS = ("ours", "pyarrow", "polars", "duckdb")
ABOUT = f"""Files as each program writes them by default, except for the codec or encodings that a row names. Our
loader shuffles in windows of {WINDOW_ROWS:,} rows and delivers batches of {BATCH_SIZE:,} rows as numpy arrays; the
others decode, and deliver nothing. *Processor* is the processor time in which pyarrow decodes the same columns, divided
by ours; *wall* is the same of elapsed time. Above 1, the loader shuffles and delivers in less time than pyarrow needs
to decode. Epochs after the first; *first epoch* is our first epoch's time divided by that of our later ones."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of column.

    Attributes:
        name: In tables.
        columns: Makes the columns of a file from its rows and random numbers.
        share: Rows of the data set as a share of `ROWS`.
        codec: If the row is about one; else each writer takes its own.
        pyarrow: Arguments of pyarrow's writer. A kind that has some is written by pyarrow alone.
        schema: The loader's schema; None if it infers one.
    """

    name: str
    columns: Callable[[int, np.random.Generator], dict[str, Any]]
    share: float = 1.0
    codec: str | None = None
    pyarrow: dict[str, Any] = field(default_factory=dict)
    schema: Schema | None = None


def numbers(rows: int, rng: np.random.Generator, nulls: float = 0.0) -> dict[str, Any]:
    """13 float32 columns, and 26 columns of int32 and int64 with few to many distinct values."""
    floats = {
        f"f{i}": pa.array(rng.random(rows, dtype=np.float32), mask=rng.random(rows) < nulls if nulls else None)
        for i in range(13)
    }
    limits = (10, 1000, 100_000, 2**30)
    integers = {f"i{i}": rng.integers(0, limits[i % 4], rows).astype((np.int32, np.int64)[i % 2]) for i in range(26)}
    return floats | integers


def numbers_with_nulls(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    return numbers(rows, rng, 0.05)


def decimals(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    kinds = (pa.decimal128(9, 2), pa.decimal128(18, 4), pa.decimal128(38, 6))
    return {
        f"d{i}": pa.array(rng.integers(-(10**6), 10**6, rows)).cast(pa.decimal128(38, 6)).cast(kinds[i % 3])
        for i in range(6)
    }


def times(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    start, span = 1_600_000_000_000_000, 10**14
    moments = {f"t{i}": pa.array(start + rng.integers(0, span, rows), pa.timestamp("us")) for i in range(6)}
    days = {f"day{i}": pa.array(rng.integers(15_000, 20_000, rows).astype(np.int32), pa.date32()) for i in range(2)}
    return moments | days


def booleans(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    return {f"b{i}": rng.random(rows) < (i + 1) / 20 for i in range(16)}


def short_strings(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    words = np.array(WORDS, dtype=object)
    return {f"s{i}": pa.array(words[rng.integers(0, 10 ** (i % 3 + 1), rows)], pa.string()) for i in range(6)}


def wide_numbers(rows: int, rng: np.random.Generator, nulls: float = 0.0) -> dict[str, Any]:
    return {f"d{i}": pa.array(rng.random(rows), mask=rng.random(rows) < nulls if nulls else None) for i in range(16)}


def wide_numbers_with_nulls(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    return wide_numbers(rows, rng, 0.1)


def structs(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    members = {**numbers(rows, rng), **short_strings(rows, rng)}
    names = ["f0", "f1", "f2", "i0", "i1", "i2", "s0", "s1"]
    return {"s": pa.StructArray.from_arrays([pa.array(members[name]) for name in names], names)}


def strings_with_nulls(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    columns = {}
    for i in range(3):
        lengths = rng.integers(5, 40, rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        letters = rng.integers(97, 123, int(offsets[-1])).astype(np.uint8)
        bits = np.packbits(rng.random(rows) >= 0.1, bitorder="little")
        buffers = [pa.py_buffer(bits), pa.py_buffer(offsets), pa.py_buffer(letters)]
        columns[f"s{i}"] = pa.StringArray.from_buffers(rows, buffers[1], buffers[2], buffers[0])
    return columns


def embeddings(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 768)
    return {"x": pa.ListArray.from_arrays(offsets, pa.array(rng.random(rows * 768, dtype=np.float32)))}


def lists(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    columns = {}
    for i in range(2):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 65, rows))]).astype(np.int32)
        values = pa.array(rng.integers(0, 50_000, int(offsets[-1])).astype(np.int32))
        columns[f"l{i}"] = pa.ListArray.from_arrays(pa.array(offsets), values)
    return columns


WORDS = [f"category {i:04d}" for i in range(1000)]
MASKED_TEXTS = Schema({f"s{i}": Text(null="mask") for i in range(3)})
V2 = {
    "data_page_version": "2.0",
    "use_dictionary": False,
    "column_encoding": {
        **{f"f{i}": "BYTE_STREAM_SPLIT" for i in range(13)},
        **{f"i{i}": "DELTA_BINARY_PACKED" for i in range(26)},
    },
}
DELTA_STRINGS = {
    "data_page_version": "2.0",
    "use_dictionary": False,
    "column_encoding": {f"s{i}": ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")[i % 2] for i in range(3)},
}
KINDS = (
    Kind("39 numbers, Snappy", numbers, codec="snappy"),
    Kind("39 numbers, 5 % nulls in floats, Snappy", numbers_with_nulls, codec="snappy"),
    Kind("39 numbers, zstd", numbers, codec="zstd"),
    Kind("39 numbers, 5 % nulls in floats, zstd", numbers_with_nulls, codec="zstd"),
    Kind("39 numbers, gzip", numbers, codec="gzip"),
    Kind("39 numbers, pages v2, DELTA_BINARY_PACKED and BYTE_STREAM_SPLIT", numbers, pyarrow=V2),
    Kind("6 decimals", decimals),
    Kind("6 timestamps, 2 dates", times),
    Kind("16 booleans", booleans),
    Kind("6 short strings, few distinct", short_strings, 0.5),
    Kind("3 strings of 5 to 40 bytes, 10 % nulls", strings_with_nulls, 0.5, schema=MASKED_TEXTS),
    Kind(
        "3 strings of 5 to 40 bytes, 10 % nulls, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY",
        strings_with_nulls,
        0.5,
        None,
        DELTA_STRINGS,
        MASKED_TEXTS,
    ),
    Kind("list<float> of 768", embeddings, 0.08),
    Kind("2 lists of 0 to 64 int32", lists, 0.5),
    Kind("16 float64 as float32", wide_numbers, 0.5, schema=Schema({f"d{i}": Scalar("float32") for i in range(16)})),
    Kind(
        "16 float64, 10 % nulls, masks",
        wide_numbers_with_nulls,
        0.5,
        schema=Schema({f"d{i}": Scalar("float64", null="mask") for i in range(16)}),
    ),
    Kind(
        "6 short strings, few distinct, as codes",
        short_strings,
        0.5,
        schema=Schema({f"s{i}": Category(WORDS) for i in range(6)}),
    ),
    Kind("6 numbers and 2 short strings in a struct", structs),
)


def write_pyarrow(kind: Kind, table: pa.Table, path: Path) -> None:
    codec = {} if kind.codec is None else {"compression": kind.codec}
    pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, **codec, **kind.pyarrow)


def write_polars(kind: Kind, table: pa.Table, path: Path) -> None:
    import polars as pl  # noqa: PLC0415  (a writer that may be absent)

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    codec: Any = {} if kind.codec is None else {"compression": kind.codec}
    frame.write_parquet(path, row_group_size=ROW_GROUP_ROWS, **codec)


def write_duckdb(kind: Kind, table: pa.Table, path: Path) -> None:
    import duckdb  # noqa: PLC0415  (a writer that may be absent)

    codec = "" if kind.codec is None else f", COMPRESSION {kind.codec}"
    with duckdb.connect() as connection:
        connection.register("written", table)
        connection.execute(f"COPY written TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE {ROW_GROUP_ROWS}{codec})")


SPARK = """
import sys
from pyspark.sql import SparkSession
source, target, codec = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
writer = spark.read.parquet(source).coalesce(1).write
(writer.option("compression", codec) if codec else writer).parquet(target)
"""


def write_spark(kind: Kind, table: pa.Table, path: Path) -> None:
    """Write a directory with Spark, from a file written by pyarrow."""
    source, target = path.with_suffix(".source"), path.with_suffix(".spark")
    pq.write_table(table, source, coerce_timestamps="us")
    command = [sys.executable, "-c", SPARK, str(source), str(target), kind.codec or ""]
    subprocess.run(command, check=True, capture_output=True)
    (written,) = target.glob("part-*.parquet")
    written.rename(path)
    source.unlink()
    shutil.rmtree(target)


WRITERS: dict[str, Callable[[Kind, pa.Table, Path], None]] = {
    "pyarrow": write_pyarrow,
    "polars": write_polars,
    "duckdb": write_duckdb,
    "spark": write_spark,
}


def written(kind: Kind, writer: str, rows: int, home: Path) -> Path:
    """Return the directory of a data set; write the data set if it is missing or incomplete."""
    folder = home / f"{KINDS.index(kind)}-{writer}-{rows}"
    marker = folder / "whole"
    if not marker.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number in range(FILES):
            rng = np.random.default_rng([number, KINDS.index(kind)])
            WRITERS[writer](kind, pa.table(kind.columns(rows // FILES, rng)), folder / f"{number}.parquet")
        marker.touch()
    return folder


def verify(kind: Kind, folder: Path) -> None:
    """Compare an epoch in order with the rows that pyarrow reads.

    Raises:
        AssertionError: a value, a length or a mask differs.
    """
    expected = pq.read_table(sorted(folder.glob("*.parquet"))).flatten()
    begin = 0
    with BatchedDataLoader(
        folder, 10_000, schema=kind.schema, output_options=OutputOptions(format="numpy"), window_rows=10_000
    ) as loader:
        for batch in loader:
            end = begin + len(next(iter(batch.values())))
            for name in expected.column_names:
                column = expected[name].slice(begin, end - begin).combine_chunks()
                compare(batch[name], column, name)
                if f"{name}_valid" in batch:
                    alive = column.is_valid().to_numpy(zero_copy_only=False)
                    np.testing.assert_array_equal(batch[f"{name}_valid"], alive, name)
            begin = end
    assert begin == len(expected), (begin, len(expected))


def compare(found: npt.NDArray[Any] | Ragged, column: pa.Array, name: str) -> None:
    """Compare a column of a batch with an Arrow array."""
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if is_text and not isinstance(found, Ragged):
        np.testing.assert_array_equal(found, pc.index_in(column, value_set=pa.array(WORDS)).to_numpy(), name)
    elif is_text:
        column = pc.fill_null(column.cast(pa.large_string()), "").cast(pa.large_binary())
        assert isinstance(found, Ragged)
        np.testing.assert_array_equal(found.lengths, pc.binary_length(column).to_numpy(), name)
        assert np.asarray(found.values).tobytes() == b"".join(column.to_pylist()), name
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        values = column.flatten().to_numpy(zero_copy_only=False)
        if isinstance(found, Ragged):
            np.testing.assert_array_equal(found.lengths, pc.list_value_length(column).to_numpy(), name)
            found = found.values
        np.testing.assert_array_equal(np.asarray(found).ravel(), values, name)
    else:
        delivered = np.asarray(found)
        filled = pc.fill_null(column, 0) if column.type == pa.float64() else column
        np.testing.assert_array_equal(delivered, numbers_of(filled).astype(delivered.dtype), name)


def numbers_of(column: pa.Array) -> npt.NDArray[Any]:
    """Return an Arrow array of numbers as the loader documents them."""
    if pa.types.is_decimal(column.type):
        return np.array([float(value) for value in column.to_pylist()])
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def measure(kind: Kind, folder: Path, rows: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return seconds and processor seconds of each system's epochs."""
    job = {
        "folder": str(folder),
        "rows": rows,
        "columns": [],
        "batch_size": BATCH_SIZE,
        "window_rows": WINDOW_ROWS,
        "threads": arguments.threads,
        "copies": str(folder),
    }
    options: dict[str, dict[str, Any]] = {
        "ours": {"numpy": True, "schema": None if kind.schema is None else kind.schema.to_json()},
        **{name: {"limit": name} for name in SYSTEMS[1:]},
    }
    logs, epochs = arguments.data / "lake" / "logs", {}
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(Path(sys.executable), logs / f"{name}.log")) for name in SYSTEMS}
        for name, worker in workers.items():
            module = "ours" if name == "ours" else "limits"
            worker.ask({"do": "open", "system": module, "job": {**job, "options": options[name]}}, TIMEOUT_S)
            epochs[name] = [worker.ask({"do": "epoch"}, TIMEOUT_S)]
        for number in range(arguments.rounds):
            for name in SYSTEMS if number % 2 == 0 else SYSTEMS[::-1]:
                epochs[name].append(workers[name].ask({"do": "epoch", "warms": True}, TIMEOUT_S))
    assert {epoch["rows"] for found in epochs.values() for epoch in found} == {rows}, "a system lost rows"
    return figures(epochs)


def figures(epochs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return rates and ratios; the first epoch of each system is separate."""
    later = {name: found[1:] for name, found in epochs.items()}
    out: dict[str, Any] = {
        name: {
            "rows_per_s": spread([epoch["rows"] / epoch["seconds"] for epoch in found]),
            "processor_s": spread([epoch["processor_s"] for epoch in found]),
        }
        for name, found in later.items()
    }
    for key in ("seconds", "processor_s"):
        pairs = zip(later["pyarrow"], later["ours"], strict=True)
        out[f"{key}_ratio"] = spread([arrow[key] / ours[key] for arrow, ours in pairs])
    out["first_epoch_ratio"] = epochs["ours"][0]["seconds"] / spread([e["seconds"] for e in later["ours"]])["median"]
    out["stages_s"] = later["ours"][-1]["figures"]["cpu_s"]
    return out


def outcome(kind: Kind, writer: str, rows: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write, verify and measure a case, or say why not."""
    try:
        folder = written(kind, writer, rows, arguments.data / "lake")
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        output = error.stderr.decode().strip()[-200:] if isinstance(error, subprocess.CalledProcessError) else ""
        return {"status": "unsupported", "reason": f"{writer}: {error} {output}".strip()}
    try:
        verify(kind, folder)
        return {"status": "ok", **measure(kind, folder, rows, arguments)}
    except (WorkerError, AssertionError) as error:
        return {"status": "failed", "reason": str(error)[:500]}


def chosen(arguments: argparse.Namespace) -> Iterator[tuple[Kind, str]]:
    for kind in KINDS:
        for writer in ("pyarrow",) if kind.pyarrow else WRITERS:
            if arguments.only in f"{kind.name}, {writer}":
                yield kind, writer


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default="", help="part of the name of a row, or of `row, writer`")
    parser.add_argument("--command", default="python -m benchmarks.suite lake")
    arguments = parser.parse_args(given)
    os.environ.setdefault("POLARS_MAX_THREADS", str(arguments.threads))
    cases: dict[str, Any] = {}
    path = arguments.results / "lake.json"
    for kind, writer in chosen(arguments):
        rows = max(FILES * 100, round(ROWS * arguments.scale * kind.share) // FILES * FILES)
        case: dict[str, Any] = {"kind": kind.name, "writer": writer, "rows": rows}
        cases[f"{kind.name}, {writer}"] = case = {**case, **outcome(kind, writer, rows, arguments)}
        print(f"{kind.name}, {writer}: {said(case)}", flush=True)
        about = {
            "about": ABOUT,
            "date": now(),
            "command": arguments.command,
            "rounds": arguments.rounds,
            "threads": arguments.threads,
            "hardware": hardware(),
            "versions": versions("pyarrow", "numpy", "polars", "duckdb", "pyspark"),
        }
        save(path, {**about, "cases": {**load(path).get("cases", {}), **cases}})


def said(case: dict[str, Any]) -> str:
    """Return a line for the terminal."""
    if case["status"] != "ok":
        return str(case["reason"])
    wall, processor = (case[key]["median"] for key in ("seconds_ratio", "processor_s_ratio"))
    stages = json.dumps({name: round(value, 3) for name, value in case["stages_s"].items()})
    rate = case["ours"]["rows_per_s"]["median"] / 1e6
    return f"{rate:.2f} M rows/s, wall {wall:.2f}, processor {processor:.2f}, {stages}"


if __name__ == "__main__":
    main()
