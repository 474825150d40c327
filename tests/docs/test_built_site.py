"""The built site: nothing from other hosts, whole links, light pages, readable colours. Needs the extra `docs`."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from release import docs_site

ROOT = Path(__file__).parent.parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="a source distribution lacks some pages"),
    pytest.mark.filterwarnings("ignore"),  # of MkDocs and its plugins
]
MOST_PAGE_BYTES = 400_000  # the HTML of a page
MOST_SHARED_BYTES = 700_000  # style sheets and scripts that every page loads
CHROMIUM = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
VISITED = ("index.html", "quickstart.html", "reference/loading.html", "faq.html", "tutorials/first_training.html")


class Page(HTMLParser):
    """The resources that a page loads, its links, its ids, and its descriptions."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.pictures_without_text = 0
        self.language = self.description = self.title = ""
        self._is_title = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values["id"]} if "id" in values else set()
        self._is_title = tag == "title"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values or (tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload"}):
            self.loads.append(values.get("src") or values["href"])
        if tag == "img" and not values.get("alt"):
            self.pictures_without_text += 1
        if tag == "html":
            self.language = values.get("lang", "")
        if tag == "meta" and values.get("name") == "description":
            self.description = values.get("content", "")

    def handle_data(self, data: str) -> None:
        if self._is_title:
            self.title += data
            self._is_title = False


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("mkdocstrings", reason="needs the extra docs: pip install '.[docs]'")
    pytest.importorskip("material", reason="needs the extra docs: pip install '.[docs]'")
    directory = tmp_path_factory.mktemp("site")
    assert docs_site.build(directory / "site", directory / "pages") == 0
    yield directory / "site"
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(built.rglob("*.html"))}


def test_pages_load_nothing_from_other_hosts(pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if re.match(r"(\w+:)?//", load)} == set()


def test_links_and_sections_exist(built: Path, pages: dict[Path, Page]) -> None:
    broken = set()
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            target, _, anchor = link.partition("#")
            if re.match(r"\w+:|//", link) or path.name == "404.html":
                continue
            place = (path.parent / unquote(target)).resolve() if target else path
            if place.is_dir():
                place /= "index.html"
            if not place.is_file() or (anchor and place in pages and unquote(anchor) not in pages[place].ids):
                broken.add(f"{path.relative_to(built)}: {link}")
    assert not {link for link in broken if not link.endswith(("#__codelineno", "#"))}


def test_pages_are_light(built: Path, pages: dict[Path, Page]) -> None:
    heavy = {path.name: path.stat().st_size for path in pages if path.stat().st_size > MOST_PAGE_BYTES}
    assert heavy == {}
    shared = {(built / load) for load in pages[built / "index.html"].loads if not load.endswith((".png", ".svg"))}
    assert sum(path.stat().st_size for path in shared) < MOST_SHARED_BYTES


def test_pages_have_language_title_and_description(built: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert page.language == "en", path
        assert page.title, path
        if "files" not in path.parts and path.name != "404.html":
            assert page.description, path
        assert not page.pictures_without_text, path


def test_public_names_have_a_docstring_in_the_reference(built: Path, pages: dict[Path, Page]) -> None:
    ids = {identifier for path, page in pages.items() if path.parent.name == "reference" for identifier in page.ids}
    missing = [name for name in docs_site.public_names() if f"parquet_loader.{name}" not in ids]
    assert missing == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_the_contrast_of_wcag_aa_and_pages_fit_the_screen(
    built: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    script = (ROOT / "tests/docs/contrast.js").read_text(encoding="utf-8")
    for name in VISITED:
        page = (built / name).with_name(f"contrast_{Path(name).name}")
        page.write_text((built / name).read_text(encoding="utf-8") + f"<script>{script}</script>", encoding="utf-8")
        options = [f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900"]
        options += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
        done = subprocess.run([*CHROMIUM, *options, str(page)], check=True, timeout=100, capture_output=True, text=True)
        page.unlink()
        found = re.search(r"<<(\{.*\})>>", html.unescape(done.stdout))
        assert found, done.stdout[:500]
        result: dict[str, Any] = json.loads(found[1])
        assert result["texts"] > 50, name
        assert result["found"] == {}, name
        assert result["width"] <= result["window"], name
