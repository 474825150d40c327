"""The documentation site: the nav names every page, links lead somewhere, and the API reference has every public name.

The pages are staged here without MkDocs; tests of the built site need the extra `docs`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import parquet_loader
from release import docs_site

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="a source distribution lacks some pages")


@pytest.fixture(scope="module")
def site() -> docs_site.Site:
    return docs_site.stage(ROOT)


def test_the_nav_names_every_page(site: docs_site.Site) -> None:
    assert not site.unlisted, f"mkdocs.yml: add these pages of docs/ to a group of `nav`: {', '.join(site.unlisted)}"


def test_the_nav_names_each_page_once_and_none_that_is_missing(site: docs_site.Site) -> None:
    named = docs_site.paths_of(site.nav)
    assert sorted(named) == sorted(set(named))
    assert not set(named) - set(site.pages)


def test_a_page_that_the_nav_does_not_name_is_still_on_the_site(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "parquet_loader").mkdir()
    (tmp_path / "parquet_loader/__init__.py").write_text('__all__ = ["Schema"]', encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nnav:\n  - Home: index.md\n  - 'z*.md'\n", encoding="utf-8")
    (tmp_path / "docs/index.md").write_text("# Home\n\nSee [new](new.md#b) and [x](../x.py).\n", encoding="utf-8")
    (tmp_path / "docs/new.md").write_text("# A new page\n\nBack to [home](index.md).\n", encoding="utf-8")
    (tmp_path / "x.py").write_text("pass\n", encoding="utf-8")
    site = docs_site.stage(tmp_path)
    assert site.nav == [{"Home": "index.md"}, {"More": [{"A new page": "new.md"}]}]
    assert site.pages["index.md"] == "# Home\n\nSee [new](new.md#b) and [x](files/x.py.md).\n"
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nnav:\n  - Home: index.md\n  - '*.md'\n", encoding="utf-8")
    assert docs_site.stage(tmp_path).nav == [{"Home": "index.md"}, {"A new page": "new.md"}]
    (tmp_path / "docs/new.md").unlink()
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nnav:\n  - New: new.md\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"^mkdocs.yml: nav names pages that do not exist: new.md$"):
        docs_site.stage(tmp_path)


def test_links_of_staged_pages_lead_to_staged_pages(site: docs_site.Site, tmp_path: Path) -> None:
    docs_site.write(site, tmp_path / "pages")
    missing = []
    for path, text in site.pages.items():
        for link in docs_site.LINK.finditer(docs_site.FENCE.sub("", text)):
            target = link["target"]
            if target and ":" not in target and not (tmp_path / "pages" / path).parent.joinpath(target).is_file():
                missing.append(f"{path}: {target}")
    assert not missing


def test_every_public_name_is_once_in_the_reference(site: docs_site.Site) -> None:
    pages = "\n".join(text for path, text in site.pages.items() if path.startswith("reference/"))
    named = re.findall(r"^::: parquet_loader\.(\w+)$", pages, re.MULTILINE)
    assert sorted(named) == sorted(parquet_loader.__all__)


def test_pictures_have_a_version_for_light_and_one_for_dark(site: docs_site.Site, tmp_path: Path) -> None:
    docs_site.write(site, tmp_path)
    assert "](images/windows.light.svg#only-light)![" in site.pages["shuffling.md"]
    light, dark = ((tmp_path / f"images/windows.{mode}.svg").read_text(encoding="utf-8") for mode in ("light", "dark"))
    assert ".bg{fill:#0d1117}" in dark
    assert ".bg{fill:#0d1117}" not in light
    assert "@media" not in light + dark


def test_the_index_for_language_models_names_every_page_with_its_first_sentence(site: docs_site.Site) -> None:
    text = docs_site.llms_txt(site)
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\)(: .+)?$", text, re.MULTILINE)
    named = [re.sub(r"^(reference/.*)\.md$", r"\1.html", path) for path in docs_site.paths_of(site.nav)]
    assert [path for path, _ in links] == [path for path in named if path != "index.md"]
    assert "[SKILL.md](skill/parquet-loader/SKILL.md)" in text
    assert "skill/parquet-loader/SKILL.md" in site.pages
    assert "[Quickstart](quickstart.md): This page writes a data set and trains on it." in text


def test_the_skill_for_coding_agents_is_short_and_names_what_exists(site: docs_site.Site) -> None:
    skill = (ROOT / "docs/skill/parquet-loader/SKILL.md").read_text(encoding="utf-8")
    head, body = re.match(r"---\n(.*?)\n---\n(.*)", skill, re.DOTALL).groups()  # type: ignore[union-attr]
    assert re.findall(r"^(\w+):", head, re.MULTILINE) == ["name", "description"]
    assert len(head) < 1024
    assert len(body.splitlines()) < 100
    names = set(re.findall(r"`([A-Z]\w+)[`(]", body))
    assert names <= {*parquet_loader.__all__, "DistributedSampler"}
