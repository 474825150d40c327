"""Batches in notebooks: `%load_ext parquet_loader`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import wave
from collections import OrderedDict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from parquet_loader import (
    BatchedDataLoader,
    Image,
    OutputOptions,
    Ragged,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    write_dataset,
)
from parquet_loader.loader.sheet.notebook import batch_table


class Table(HTMLParser):
    """The cells of a table's lines, and the addresses of its images."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[list[str]] = []
        self.images: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.lines.append([])
        if tag in ("td", "th"):
            self.lines[-1].append("")
        if tag == "img":
            self.images.append(str(dict(attrs)["src"]))

    def handle_data(self, data: str) -> None:
        if self.lines and self.lines[-1]:
            self.lines[-1][-1] += data

    def line(self, name: str) -> list[str]:
        return next(line[1:] for line in self.lines if line[0] == name)


def table(batch: Any) -> Table:
    page = batch_table(batch)
    assert page is not None
    return Table(page)


SCHEMA = Schema(
    {
        "image": Image((64, 48, 3)),
        "vector": Tensor("float32", (16,)),
        "words": Text(),
        "tags": RaggedList("int32"),
        "label": Scalar("int64", null="mask"),
    }
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    pillow = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    pillow.new("RGB", (48, 64), (200, 30, 40)).save(out, "PNG")
    rows = [
        {
            "image": out.getvalue(),
            "vector": np.full(16, n, np.float32),
            "words": f"<b>row {n}</b>",
            "tags": list(range(n)),
            "label": None if n == 1 else n,
        }
        for n in range(6)
    ]
    path = str(tmp_path_factory.mktemp("notebook") / "data")
    write_dataset(rows, path, SCHEMA)
    return path


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_a_batch_shows_its_columns_and_first_rows(data: str, form: Any) -> None:
    with BatchedDataLoader(data, 6, output_options=OutputOptions(format=form)) as loader:
        found = table(next(iter(loader)))
    assert found.lines[0] == ["column", "in this batch", "row 0", "row 1", "row 2", "row 3"]
    assert found.line("image")[0] == "uint8 [6, 64, 48, 3]"
    assert len(found.images) == 4
    assert all(image.startswith("data:image/png;base64,") for image in found.images)
    assert found.line("vector")[0] == "float32 [6, 16]"
    assert found.tags.count("svg") == 4
    assert found.line("words")[1:] == [f"<b>row {n}</b>" for n in range(4)]
    assert found.line("tags")[4].startswith("int32 [3]: 0, 1, 2")
    assert found.line("label") == ["int64 [6]", "0", "null", "2", "3"]
    assert "script" not in found.tags


def test_columns_of_every_kind_are_described() -> None:
    batch = {
        "half": torch.ones(2, dtype=torch.bfloat16),
        "images": [np.zeros((32, 40, 3), np.uint8), np.zeros((20, 16, 3), np.uint8)],
        "nested": Ragged.from_list([Ragged.from_list([[1], [2, 3]]), Ragged.from_list([[4]])]),
        "raw": Ragged.from_list([b"\0\1", b""]),
        "wide": np.zeros((2, 1000, 800), np.uint8),
    }
    found = table(batch)
    assert found.line("half") == ["bfloat16 [2]", "1", "1"]
    assert found.line("images")[0] == "list of 2"
    assert found.line("nested")[0].startswith("Ragged")
    assert found.line("raw")[1:] == ["2 bytes: 00 01", "0 bytes"]
    assert len(found.images) == 4
    assert max(map(len, found.images)) < 2**14, "large pictures are drawn smaller"


class Endless:
    """An array of unknown length, as of a function that is traced."""

    dtype = np.dtype("float32")
    shape = (None, 3)


def test_values_that_cannot_be_read_are_described() -> None:
    batch = {
        "number": torch.arange(3),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.zeros(3, device="meta"),
        "conjugate": torch.full((3,), 2j).conj(),
        "float8": torch.ones(3).to(torch.float8_e4m3fn),
    }
    found = table(batch)
    assert found.line("number") == ["int64 [3]", "0", "1", "2"]
    assert found.line("sparse") == ["float32 [3, 3]"]
    assert found.line("meta") == ["float32 [3], meta"]
    assert found.line("conjugate")[1:] == ["-2j"] * 3
    assert found.line("float8")[1:] == ["1", "1", "1"]


def test_long_values_are_cut_before_they_are_written() -> None:
    long = np.arange(1_000_000)
    batch: dict[str, Any] = {
        "list": ["x" * 1_000_000, "\0\u202e"],
        "nested": Ragged(Ragged(long, np.arange(0, 1_000_001, 2)), np.array([0, 499_999, 500_000])),
        "wide": Ragged(Ragged(long, np.array([0, 999_000, 1_000_000])), np.array([0, 1, 2])),
        "series": np.full((2, 1_000_000), np.nan),
    }
    batch["series"][0, :2] = 1, np.inf
    page = batch_table(batch)
    assert page is not None
    assert len(page) < 2**14
    found = Table(page)
    assert found.line("list")[2] == r"\x00\u202e"
    assert found.line("nested")[1].startswith("[0, 1], [2, 3], [4, 5]")
    assert found.line("nested")[2] == "[999998, 999999]"
    assert found.line("wide")[1].startswith("[0, 1, 2, 3, ")
    assert found.tags.count("svg") == 2


def test_media_that_a_notebook_does_not_show_are_named() -> None:
    pillow = pytest.importorskip("PIL.Image")
    made = []
    for kind in ("TIFF", "PNG"):
        out = io.BytesIO()
        pillow.new("RGB", (16, 16)).save(out, kind)
        made.append(out.getvalue())
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setparams((1, 2, 48_000, 0, "NONE", ""))
        sound.writeframes(bytes(2**22))
    found = table({"x": np.zeros(3), "media": Ragged.from_list([out.getvalue(), *made])})
    assert "too large" not in found.line("media")[1]
    assert found.line("media")[2].startswith("tiff, ")
    assert len(found.images) == 1


def test_many_columns_and_no_rows() -> None:
    page = batch_table({f"c{n}": np.zeros((0, 3)) for n in range(100)})
    assert page is not None
    assert len(Table(page).lines) == 61
    assert "0 rows" in page
    assert "and 40 more columns" in page


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"a": 1},
        {"a": "text"},
        {"a": [1, 2]},
        {1: np.zeros(2)},
        {"a": np.zeros(2), "b": np.zeros(3)},
        {"a": np.float32(1)},
        {"a": {"b": np.zeros(2)}},
        OrderedDict(a=np.zeros(2)),
        {"a": torch.nn.Linear(2, 2)},
        {"a": pa.table({"x": [1, 2]})},
        {"a": np},
        {"a": torch.Tensor},
        {"a": Endless()},
    ],
)
def test_other_dicts_are_shown_as_before(other: Any) -> None:
    assert batch_table(other) is None


def test_ipython_shows_batches_once_the_extension_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    code = """
        from IPython.core.interactiveshell import InteractiveShell
        import numpy as np

        shell = InteractiveShell.instance()
        for magic in (None, "load_ext", "unload_ext"):
            if magic is not None:
                shell.run_line_magic(magic, "parquet_loader")
            for shown in ({"x": np.arange(3)}, {"depth": 3}):
                print(magic, sorted(shell.display_formatter.format(shown)[0]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=True, env=os.environ | {"IPYTHONDIR": str(tmp_path)},
    )  # fmt: skip
    plain, both = "['text/plain']", "['text/html', 'text/plain']"
    expected = [f"None {plain}", f"None {plain}", f"load_ext {both}", f"load_ext {plain}"]
    assert done.stdout.splitlines() == [*expected, f"unload_ext {plain}", f"unload_ext {plain}"]
