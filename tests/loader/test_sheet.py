"""Contact sheets show what rows hold, load and run nothing, and trust nothing that a file holds."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import re
import shutil
import subprocess
import wave
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    Bytes,
    Category,
    Image,
    ParquetDataset,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    write_dataset,
)
from parquet_loader.loader.sheet import page_of, picture_of, sheet_of
from parquet_loader.schema import encode_array

EVIL = "</style><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b[31m&\"'"
ROWS = 12


def sound(seconds: float = 0.25, rate: int = 8000) -> bytes:
    samples = (np.sin(np.arange(int(seconds * rate)) / 3) * 20_000).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return out.getvalue()


SOUND = sound()
RED = np.full((20, 30, 3), (200, 30, 40), np.uint8)
CLIP = np.arange(6 * 12 * 16 * 3).reshape(6, 12, 16, 3).astype(np.uint8)
SCHEMA = Schema(
    {
        "image": Image(),
        "sound": Bytes(),
        "label": Scalar("int64", names=["cat", EVIL]),
        "word": Category(["x", "y"]),
        EVIL: Text(),
        "maybe": Scalar("float32", null="mask"),
        "clip": Tensor("uint8", (6, 12, 16, 3)),
        "wave": Tensor("float32", (50,)),
        "tokens": RaggedList("int32"),
        "taken": Scalar("timestamp[us]"),
        "raw": Bytes(),
    }
)


def row(number: int) -> dict[str, Any]:
    return {
        "image": RED,
        "sound": SOUND,
        "label": number % 2,
        "word": "y",
        EVIL: EVIL,
        "maybe": None if number % 2 else 0.5,
        "clip": CLIP,
        "wave": np.linspace(0, number, 50, dtype=np.float32),
        "tokens": list(range(number % 5)),
        "taken": dt.datetime(2024, 1, 2, 3, 4, 5),  # noqa: DTZ001
        "raw": b"\x00\x01",
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("PIL")
    path = tmp_path_factory.mktemp("data") / "<b>'&"
    write_dataset((row(number) for number in range(ROWS)), path, SCHEMA)
    return str(path)


class Page(HTMLParser):
    """Collects the elements of a page, and the addresses that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_shows_every_kind_of_value(source: str) -> None:
    sheet = sheet_of(source, rows=3, seed=1)
    kinds = {name: cell.kind for name, cell in sheet.cells[0].items()}
    assert kinds == {
        "image": "image",
        "sound": "audio",
        "label": "text",
        "word": "text",
        EVIL: "text",
        "maybe": "text",
        "clip": "frames",
        "wave": "series",
        "tokens": "text",
        "taken": "text",
        "raw": "text",
    }
    for number, cells in zip(sheet.numbers, sheet.cells, strict=True):
        assert cells["label"].text.startswith(f"{number % 2} (")
        assert cells["word"].text == "1 (y)"
        assert cells["maybe"].text == ("null" if number % 2 else "0.5")
        assert cells["taken"].text == "2024-01-02T03:04:05.000000"
        assert cells["sound"].media == (SOUND,)
        assert "0.25 s, 8,000 Hz, 1 channel" in cells["sound"].text
        assert cells["raw"].text == "2 bytes: 00 01"
    page = Page(page_of(sheet))
    assert page.tags.count("article") == 3
    assert page.tags.count("audio") == 3
    assert page.tags.count("img") == 3 * (1 + 4)
    batches = {name: batch for name, _, batch in sheet.columns}
    assert batches["image"] == "a list of uint8 [?, ?, 3]"
    assert batches["clip"] == "uint8 [rows, 6, 12, 16, 3]"


def test_frames_and_pictures_are_the_arrays_themselves(source: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    sheet = sheet_of(source, rows=1, seed=0)
    frames = [np.asarray(pillow.open(io.BytesIO(media))) for media in sheet.cells[0]["clip"].media]
    assert [frame.tolist() for frame in frames] == [CLIP[at].tolist() for at in (0, 1, 3, 5)]
    (image,) = sheet.cells[0]["image"].media
    assert np.asarray(pillow.open(io.BytesIO(image))).tolist() == RED.tolist()


def test_the_page_runs_nothing_and_loads_nothing(source: str) -> None:
    text = page_of(sheet_of(source, rows=4, seed=0))
    page = Page(text)
    assert "script" not in page.tags
    assert page.handlers == []
    assert page.loads
    assert all(re.match(r"data:(image|audio|video)/[a-z]+;base64,[A-Za-z0-9+/=]+$", url) for url in page.loads)
    assert "default-src 'none'" in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert any("<script>alert(1)</script>" in part for part in page.texts), "shown as text"


def test_rows_are_drawn_by_the_seed(source: str) -> None:
    first, again, other = (sheet_of(source, rows=5, seed=seed) for seed in (3, 3, 4))
    assert page_of(first) == page_of(again)
    assert first.numbers != other.numbers
    assert len(set(first.numbers)) == 5
    everything = sheet_of(source, rows=100, seed=0)
    assert everything.numbers == tuple(range(ROWS))


def test_values_are_those_of_their_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(1000)}), tmp_path / "a.parquet", row_group_size=37)
    sheet = sheet_of(str(tmp_path), rows=50, seed=5)
    assert [cells["id"].text for cells in sheet.cells] == [str(number) for number in sheet.numbers]


def test_lists_of_lists_and_maps_of_text_are_shown(tmp_path: Path) -> None:
    pairs = pa.array([[("a", 1)], [("b", 2), ("c", 3)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"lists": [[[1], [2, 3]], []], "pairs": pairs}), tmp_path / "a.parquet")
    first, second = sheet_of(str(tmp_path), rows=2, seed=0).cells
    assert [first["lists"].text, second["lists"].text] == ["[1], [2, 3]", ""]
    assert [first["pairs.key"].text, second["pairs.key"].text] == ["a", "b, c"]


def test_damaged_and_unknown_media_do_not_stop_the_sheet(tmp_path: Path) -> None:
    values = [b"\xff\xd8\xffcut", b"RIFF\0\0\0\0WAVEcut", b"\x89PNG\r\n\x1a\n", b"", b"II*\0tiff"]
    values += [b"\0\0\0\x18ftypmp42"]
    pq.write_table(pa.table({"blob": pa.array([*values, None], pa.binary())}), tmp_path / "a.parquet")
    sheet = sheet_of(str(tmp_path), rows=7, seed=0)
    assert [cells["blob"].kind for cells in sheet.cells] == [
        "image",
        "audio",
        "image",
        "text",
        "image",
        "video",
        "text",
    ]
    assert sheet.cells[6]["blob"].text == "null"
    assert "data:image/tiff" not in page_of(sheet), "browsers do not show it"
    pytest.importorskip("PIL")
    assert picture_of(sheet).startswith(b"\x89PNG")


def test_large_media_are_named_and_not_embedded(tmp_path: Path) -> None:
    table = pa.table({"blob": pa.array([b"\xff\xd8\xff" + bytes(9 * 2**20)], pa.binary())})
    pq.write_table(table, tmp_path / "a.parquet")
    sheet = sheet_of(str(tmp_path), rows=1, seed=0)
    assert sheet.cells[0]["blob"].text == "jpeg, 9.0 MiB, too large to embed"
    assert len(page_of(sheet)) < 10_000


def test_hub_images_in_structs_and_images_with_nulls_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    png = encode_array(RED, "png")
    table = pa.table({"image": [{"bytes": png, "path": "a.png"}, {"bytes": png, "path": None}], "n": [1, None]})
    pq.write_table(table, tmp_path / "a.parquet")
    sheet = sheet_of(str(tmp_path), rows=2, seed=0)
    images = [cell for cells in sheet.cells for cell in cells.values() if cell.kind == "image"]
    assert [image.media for image in images] == [(png,), (png,)]
    assert [cells["n"].text for cells in sheet.cells] == ["1", "null"]


def test_the_picture_shows_the_image(source: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    picture = np.asarray(pillow.open(io.BytesIO(picture_of(sheet_of(source, rows=2, seed=0)))))
    assert np.count_nonzero((picture == (200, 30, 40)).all(axis=2)) == 2 * 20 * 30


def test_the_command_writes_a_page_or_a_picture(source: str, tmp_path: Path) -> None:
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from tests.support.command_line import run_here

    done = run_here("sample", source, "--out", tmp_path / "sheet.html", "--rows", 2, "--seed", 7, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["rows"], len(report["shown"])) == (0, ROWS, 2)
    assert (tmp_path / "sheet.html").read_text(encoding="utf-8") == page_of(sheet_of(source, rows=2, seed=7))
    assert run_here("sample", source, "--out", tmp_path / "sheet.png", "--columns", "image,label").returncode == 0
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert run_here("sample", source, "--out", tmp_path / "sheet.gif").returncode == 2
    refused = run_here("sample", tmp_path / "nowhere", "--out", tmp_path / "other.html")
    assert (refused.returncode, refused.stdout) == (1, "")
    refused = run_here("sample", source, "--out", tmp_path / "none" / "other.html", "--rows", 1)
    assert refused.returncode == 1
    assert f"error: {tmp_path}/none/other.html: cannot be written in {tmp_path}/none" in refused.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sheet.html", "sheet.png"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium (Debian: apt-get install chromium)")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), pytest.param("dark", 500, marks=pytest.mark.slow)])
def test_chromium_draws_the_sheet(source: str, tmp_path: Path, scheme: str, width: int) -> None:
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "sheet.html").write_text(page_of(sheet_of(source, rows=3, seed=0)), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}", f"--window-size={width},2600"]
    picture = tmp_path / "page.png"
    subprocess.run([*command, f"--screenshot={picture}", str(tmp_path / "sheet.html")], check=True, timeout=100,
                   capture_output=True)  # fmt: skip
    pixels = np.asarray(pillow.open(picture).convert("RGB")).astype(int)
    assert (pixels[0, 0].mean() > 200) == (scheme == "light")
    red = (abs(pixels - (200, 30, 40)) < 12).all(axis=2)
    assert red.sum() > 1_000, "the images are drawn"
    blue = (40, 102, 208) if scheme == "light" else (110, 163, 255)
    assert (pixels == blue).all(axis=2).sum() > 1_000, "the waves are drawn"
    card = np.flatnonzero(np.any(red, axis=0))
    assert card.max() < width - 15, "nothing is cut off at the right"


def test_schemas_and_data_sets_have_a_table_in_notebooks(source: str) -> None:
    data = ParquetDataset(source)
    for html in (data.schema._repr_html_(), data._repr_html_()):
        page = Page(html)
        assert page.tags.count("tr") == 1 + len(SCHEMA)
        assert "script" not in page.tags
    assert f"{ROWS} rows" in data._repr_html_()


def test_embedded_media_are_the_stored_bytes(source: str) -> None:
    urls = Page(page_of(sheet_of(source, rows=1, seed=0, columns=["sound"]))).loads
    assert [base64.b64decode(url.partition(",")[2]) for url in urls] == [SOUND]
