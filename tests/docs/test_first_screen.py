"""The first screen of the README says what to install, import and run; links to sections lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_SCREEN = "\n".join(README.splitlines()[:30])
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "design"]
USER_PAGES = [ROOT / "README.md", *(page for page in DOCS if page.name != "benchmarks.md")]
SECTIONS = [*USER_PAGES, ROOT / "docs" / "benchmarks.md", ROOT / "benchmarks" / "README.md"]


def test_the_first_screen_names_distribution_import_and_command() -> None:
    assert f"`{PROJECT['name']}`" in FIRST_SCREEN
    assert "| import | `parquet_loader` |" in FIRST_SCREEN
    (command,) = PROJECT["scripts"]
    assert f"| command | `{command}`" in FIRST_SCREEN
    assert "pip install '.[torch]'" in FIRST_SCREEN


def test_the_first_screen_names_versions_and_platforms() -> None:
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in FIRST_SCREEN
    versions = dict(requirement.split(">=") for requirement in PROJECT["dependencies"])
    assert f"pyarrow {versions['pyarrow']} or newer, numpy {versions['numpy']} or newer" in FIRST_SCREEN
    torch = PROJECT["optional-dependencies"]["torch"][0].removeprefix("torch>=")
    assert f"PyTorch {torch} or newer" in FIRST_SCREEN
    assert "Linux" in FIRST_SCREEN


def test_the_extras_that_the_readme_names_exist() -> None:
    named = re.search(r"Other extras: (.*)\.", README)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named[1])) < set(PROJECT["optional-dependencies"])


def test_the_readme_says_what_a_bug_report_holds() -> None:
    report = README.split("## Report a bug")[1].split("\n## ")[0]
    for part in ("traceback", "parquet-loader --version", "print(loader)", "loader.stats()"):
        assert part in report


def test_user_pages_hold_no_tables_of_measured_rates() -> None:
    rate = re.compile(r"^\|.*\d (?:GB/s|MB/s|M rows/s|images/s)", re.MULTILINE)
    assert [page.name for page in USER_PAGES if rate.search(page.read_text(encoding="utf-8"))] == []


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", SECTIONS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_sections_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        other = (page.parent / target).resolve() if target else page
        headings = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE)
        if anchor not in {slug(heading) for heading in headings}:
            broken.append(f"{target}#{anchor}")
    assert not broken
