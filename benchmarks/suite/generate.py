"""Write a data set in one of its layouts, from a seed.

    python -m benchmarks.suite.generate NAME ROWS LAYOUT DIRECTORY

Runs in the environment of our own loader, and writes the files to ``DIRECTORY/LAYOUT``. ``DIRECTORY/LAYOUT.json`` is
written last, so its existence shows that the files are complete. It has the checksum of the rows as read by plain
pyarrow.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.suite.checksum import Checksum
from benchmarks.suite.workloads import CATEGORIES, DENSE, IMAGE_SIDE, WORKLOADS, DataSet
from parquet_loader import DatasetWriter, Group, RaggedList, Scalar, Schema, Tensor, Text

DATA_SETS = {w.data.name: w.data for w in WORKLOADS.values()}


def tabular(rows: int, rng: np.random.Generator) -> pa.Table:
    columns: dict[str, Any] = {name: rng.random(rows, dtype=np.float32) for name in DENSE}
    columns |= {name: np.minimum(rng.zipf(1.3, rows), 10**6).astype(np.int32) for name in CATEGORIES}
    return pa.table(columns | {"y": rng.integers(0, 2, rows).astype(np.int8)})


def science(rows: int, rng: np.random.Generator) -> pa.Table:
    values = pa.array(rng.random(rows * 4096, dtype=np.float32))
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 4096)
    return pa.table({"x": pa.ListArray.from_arrays(offsets, values)})


def wide(rows: int, rng: np.random.Generator) -> pa.Table:
    return pa.table({f"f{i}": rng.random(rows, dtype=np.float32) for i in range(1000)})


def ragged(rows: int, rng: np.random.Generator) -> pa.Table:
    offsets = np.concatenate([[0], np.cumsum(rng.integers(50, 2001, rows))]).astype(np.int32)
    tokens = (50_000 * rng.random(offsets[-1]) ** 3).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    return pa.table({"tokens": lists, "y": rng.integers(0, 2, rows).astype(np.int8)})


def text(rows: int, rng: np.random.Generator) -> pa.Table:
    vocabulary_rng = np.random.default_rng(12)
    letters = vocabulary_rng.integers(97, 123, (20_000, 12)).astype(np.uint8)
    vocabulary = [bytes(w[:n]).decode() for w, n in zip(letters, vocabulary_rng.integers(2, 12, 20_000), strict=True)]
    vocabulary[7::50] = [word.replace("a", "ä").replace("o", "日") for word in vocabulary[7::50]]
    counts = rng.integers(10, 251, rows)
    words = np.array(vocabulary, dtype=object)[(20_000 * rng.random(int(counts.sum())) ** 4).astype(np.int64)]
    bounds = np.concatenate([[0], np.cumsum(counts)]).tolist()
    return pa.table({"text": [" ".join(words[a:b]) for a, b in itertools.pairwise(bounds)]})


def images(rows: int, rng: np.random.Generator) -> pa.Table:
    from PIL import Image  # noqa: PLC0415  (only this data set needs it)

    encoded = []
    for _ in range(rows):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BICUBIC), np.int16)
        grain = rng.integers(-16, 17, (IMAGE_SIDE, IMAGE_SIDE, 1), dtype=np.int16)
        out = io.BytesIO()
        Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
        encoded.append(out.getvalue())
    return pa.table({"image": pa.array(encoded, pa.binary()), "y": rng.integers(0, 1000, rows).astype(np.int32)})


MAKERS: dict[str, Callable[[int, np.random.Generator], pa.Table]] = {
    "tabular": tabular,
    "science": science,
    "wide": wide,
    "ragged": ragged,
    "text": text,
    "images": images,
}


def our_schema(data: DataSet, layout: str) -> Schema:
    """Return the arguments of our writer."""
    if layout == "packed":
        return Schema(
            {
                "dense": Group(DENSE, Scalar("float32"), storage="packed"),
                "categories": Group(CATEGORIES, Scalar("int32"), storage="packed"),
                "y": Scalar("int8"),
            }
        )
    fields: dict[str, Any] = {}
    for column in data.columns:
        if column.kind == "vector":
            fields[column.name] = Tensor(column.dtype, (column.width,))
        elif column.kind == "list":
            fields[column.name] = RaggedList(column.dtype)
        else:
            fields[column.name] = Text() if column.kind == "text" else Scalar(column.dtype)
    return Schema(fields)


def pieces(data: DataSet, rows: int) -> Iterator[Iterator[pa.Table]]:
    """Yield each file as its row groups; the rows depend on nothing but the data set's name and size."""
    bounds = np.linspace(0, rows, data.files + 1).astype(int)

    def groups(file: int) -> Iterator[pa.Table]:
        rng = np.random.default_rng([file, *data.name.encode()])
        left = int(bounds[file + 1] - bounds[file])
        while left:
            yield MAKERS[data.name](min(left, data.row_group_rows), rng)
            left -= min(left, data.row_group_rows)

    return (groups(file) for file in range(data.files))


def write(data: DataSet, rows: int, layout: str, folder: Path) -> None:
    """Write all files of a layout."""
    if layout != data.layouts[0]:
        with DatasetWriter(folder, our_schema(data, layout)) as writer:
            for file in pieces(data, rows):
                for table in file:
                    writer.write(table)
        return
    folder.mkdir(parents=True)
    for number, file in enumerate(pieces(data, rows)):
        first = next(file, None)
        if first is None:
            continue
        with pq.ParquetWriter(folder / f"{number}.parquet", first.schema) as writer:
            writer.write_table(first)
            for table in file:
                writer.write_table(table)


def expected(data: DataSet, folder: Path) -> tuple[Checksum, int]:
    """Read the first layout back with plain pyarrow, and add it up; return the bytes of its batches too."""
    checksum, delivered_bytes = Checksum(data.columns), 0
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                columns = plain_columns(data, file.read_row_group(group))
                checksum.add(columns)
                delivered_bytes += sum((v[0] if isinstance(v, tuple) else v).nbytes for v in columns.values())
    return checksum, delivered_bytes


def plain_columns(data: DataSet, table: pa.Table) -> dict[str, Any]:
    """Return a table of the first layout as numpy arrays."""
    out: dict[str, Any] = {}
    for column in data.columns:
        array = table[column.name].combine_chunks()
        if column.kind == "scalar":
            out[column.name] = array.to_numpy(zero_copy_only=False)
        elif column.kind == "vector":
            out[column.name] = array.flatten().to_numpy().reshape(len(array), column.width)
        elif column.kind == "list":
            out[column.name] = (array.flatten().to_numpy(), array.offsets.to_numpy() - array.offsets[0].as_py())
        elif column.kind == "text":
            encoded = [value.encode() for value in array.to_pylist()]
            bounds = np.concatenate([[0], np.cumsum([len(e) for e in encoded])])
            out[column.name] = (np.frombuffer(b"".join(encoded), np.uint8), bounds)
        else:
            out[column.name] = np.stack([decode_image(value) for value in array.to_pylist()])
    return out


def decode_image(encoded: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    from PIL import Image  # noqa: PLC0415  (only this data set needs it)

    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))


def generate(data: DataSet, rows: int, layout: str, home: Path) -> None:
    """Write a layout unless it is there whole."""
    folder, marker = home / layout, home / f"{layout}.json"
    if marker.exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    write(data, rows, layout, folder)
    if layout == data.layouts[0]:
        checksum, delivered_bytes = expected(data, folder)
        assert checksum.rows == rows
        rows_say = {"checksum": str(checksum), "delivered_bytes": delivered_bytes}
    else:
        first = json.loads((home / f"{data.layouts[0]}.json").read_text())
        rows_say = {name: first[name] for name in ("checksum", "delivered_bytes")}
    about = {
        "rows": rows,
        **rows_say,
        "stored_bytes": sum(path.stat().st_size for path in folder.glob("*.parquet")),
    }
    partial = marker.with_name(f".{marker.name}.{os.getpid()}")
    partial.write_text(json.dumps(about, indent=1) + "\n")
    partial.replace(marker)


if __name__ == "__main__":
    generate(DATA_SETS[sys.argv[1]], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
