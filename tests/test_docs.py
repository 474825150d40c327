"""What the pages say is true: every Python block runs as it stands, and every link leads somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import unittest.mock
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / folder / "README.md" for folder in ("", "parquet_loader", "benchmarks", "release")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES = [page for page in PAGES if page.exists()]
# Pages about packages of others.
NEEDS = {
    "accelerate.md": ("accelerate",),
    "audio.md": ("soundfile", "soxr"),
    "augmentation.md": ("torchvision", "albumentations", "kornia", "PIL"),
    "grain.md": ("grain",),
    "maxtext.md": ("grain",),
    "keras.md": ("keras",),
    "iceberg.md": ("pyiceberg", "sqlalchemy"),
    "ignite.md": ("ignite",),
    "jax.md": ("jax",),
    "lightning.md": ("lightning",),
    "orbax.md": ("jax", "orbax.checkpoint"),
    "ray.md": ("ray",),
    "scikit-learn.md": ("sklearn",),
    "tensorflow.md": ("tensorflow", "keras"),
    "tfdata.md": ("tensorflow",),
    "torchdata.md": ("torchdata",),
    "torchtitan.md": ("torchtitan",),
    "transformers.md": ("transformers", "accelerate"),
    "video.md": ("av",),
}
# Blocks marked with a package run if it is installed; no extra brings these.
OPTIONAL = ("datasets", "fbgemm_gpu", "maxtext", "streaming", "tokenizers")
OF_EVERY_DAY = ("audio.md", "iceberg.md", "torchdata.md", "video.md")
# Trains three times on a cluster of Ray. The library has no code for Ray: ranks and states are those of torch.
SLOW = ("ray.md",)
LANGUAGES = {"python", "python spark", *(f"python {package}" for package in OPTIONAL), "sh", "text", "json"}
FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)(?P<target>[^)#]+)(?:#[^)]*)?\)")


def blocks(page: Path) -> list[tuple[str, int, str]]:
    """Language, first line and code of each fenced block."""
    text = page.read_text(encoding="utf-8")
    return [(m["language"], text[: m.start("code")].count("\n"), m["code"]) for m in FENCE.finditer(text)]


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def params(page: Path) -> Any:
    marks: list[pytest.MarkDecorator] = []
    if page.name in NEEDS:
        marks.append(pytest.mark.filterwarnings("ignore"))  # warnings of others
    if page.name in NEEDS and page.name not in OF_EVERY_DAY:
        marks += [pytest.mark.frameworks, pytest.mark.timeout(600)]
    if page.name in SLOW:
        marks.append(pytest.mark.slow)
    return pytest.param(page, marks=marks, id=relative(page))


def is_missing(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is None
    except ModuleNotFoundError:
        return True


@pytest.mark.parametrize("page", [params(page) for page in PAGES])
def test_python_blocks_run_in_order_in_an_empty_directory(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = [package for package in NEEDS.get(page.name, ()) if is_missing(package)]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install '.[frameworks]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's own is 15: on a busy machine its workers hardly come to run
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would spin while they wait for processors that other tests use
    try:
        with unittest.mock.patch.dict(os.environ):  # examples set credentials
            run(page, {"python", *(f"python {package}" for package in OPTIONAL if not is_missing(package))})
    finally:
        torch.set_num_threads(threads)  # of this thread, and of all later ones


WITH_SPARK = [page for page in PAGES if any(language == "python spark" for language, _, _ in blocks(page))]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")
@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("page", WITH_SPARK, ids=relative)
def test_blocks_for_spark_run_among_the_others(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(path).resolve()) for path in [str(ROOT), *sys.path]))
    run(page, {"python", "python spark"})["spark"].stop()


def run(page: Path, languages: set[str]) -> dict[str, Any]:
    """Run a page's blocks in the working directory, and return the names they made."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for language, line, code in blocks(page):
        if language in languages:
            # The empty lines make a traceback name the line of the page.
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
    return namespace


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_no_python_block_hides_behind_another_name(page: Path) -> None:
    assert {language for language, _, _ in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    missing = [m["target"] for m in LINK.finditer(text) if not (page.parent / m["target"]).exists()]
    assert not missing
