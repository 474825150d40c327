"""Defines the workloads: data sets by name, and how they are loaded. Imports only the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["scalar", "vector", "list", "text", "image"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column as every system delivers it.

    Attributes:
        name: Its name.
        dtype: numpy's name of the values' type.
        kind: ``"scalar"``: ``[rows]``; ``"vector"``: ``[rows, width]``; ``"list"`` and ``"text"`` (UTF-8 bytes):
            values end to end, and offsets; ``"image"``: ``[rows, height, width, 3]``, decoded from JPEG.
        width: Values a row; of lists and texts: the mean.
    """

    name: str
    dtype: str
    kind: Kind = "scalar"
    width: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes that one row takes in a batch (of lists and texts: in the mean, without offsets)."""
        return self.width * {"int8": 1, "uint8": 1, "int32": 4, "float32": 4}[self.dtype]


@dataclass(frozen=True, slots=True)
class DataSet:
    """Generated rows, the same in each of its layouts.

    Attributes:
        name: As on disk.
        rows: At full size.
        files: Number of files.
        row_group_rows: Of the first layout.
        columns: What a row holds.
        layouts: Ways of storing the same rows; the first is what other writers would write.
        about: One sentence for the report.
    """

    name: str
    rows: int
    files: int
    row_group_rows: int
    columns: tuple[Column, ...]
    layouts: tuple[str, ...]
    about: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in a batch."""
        return sum(column.row_bytes for column in self.columns)


@dataclass(frozen=True, slots=True)
class Workload:
    """A data set with a batch size and a window.

    Attributes:
        name: On the command line and in results.
        data: The data set.
        batch_size: Rows of a batch.
        window_rows: Rows that every system that can shuffle mixes at least.
        unit: What the report counts: ``"rows"`` or ``"bytes"``.
    """

    name: str
    data: DataSet
    batch_size: int
    window_rows: int
    unit: Literal["rows", "bytes"]


IMAGE_SIDE = 224
DENSE = tuple(f"d{i}" for i in range(13))
CATEGORIES = tuple(f"c{i}" for i in range(26))

TABULAR = DataSet(
    "tabular",
    4_000_000,
    8,
    50_000,
    (*(Column(n, "float32") for n in DENSE), *(Column(n, "int32") for n in CATEGORIES), Column("y", "int8")),
    ("default", "ours", "packed"),
    "13 float32, 26 skewed int32, 1 int8 label; row groups of 50,000 with pyarrow's default encodings, our writer's "
    "layout, and our writer's layout with the 13 and the 26 columns each stored packed",
)
SCIENCE = DataSet(
    "science",
    65_536,
    8,
    1024,
    (Column("x", "float32", "vector", 4096),),
    ("list", "raw"),
    "rows of 4,096 random float32, as lists with pyarrow's default encodings, and as our writer's raw tensors",
)
WIDE = DataSet(
    "wide",
    131_072,
    8,
    8192,
    tuple(Column(f"f{i}", "float32") for i in range(1000)),
    ("default", "ours"),
    "1,000 random float32 columns",
)
RAGGED = DataSet(
    "ragged",
    131_072,
    8,
    4096,
    (Column("tokens", "int32", "list", 1025), Column("y", "int8")),
    ("default", "ours"),
    "token lists of 50 to 2,000 int32 below 50,000, skewed, and an int8 label",
)
TEXT = DataSet(
    "text",
    524_288,
    8,
    16_384,
    (Column("text", "uint8", "text", 800),),
    ("default", "ours"),
    "texts of 10 to 250 words from a skewed vocabulary; batches hold UTF-8 bytes and offsets",
)
IMAGES = DataSet(
    "images",
    4096,
    8,
    512,
    (Column("image", "uint8", "image", IMAGE_SIDE * IMAGE_SIDE * 3), Column("y", "int32")),
    ("default",),
    "JPEGs of 224 x 224 and an int32 label; batches hold decoded pixels",
)

WORKLOADS = {
    w.name: w
    for w in (
        Workload("tabular", TABULAR, 4096, 200_000, "rows"),
        Workload("tabular-256", TABULAR, 256, 200_000, "rows"),
        Workload("science", SCIENCE, 256, 8192, "bytes"),
        Workload("wide", WIDE, 1024, 16_384, "bytes"),
        Workload("ragged", RAGGED, 256, 16_384, "bytes"),
        Workload("text", TEXT, 1024, 65_536, "bytes"),
        Workload("images", IMAGES, 64, 1024, "rows"),
    )
}
