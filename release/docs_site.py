"""Build the documentation site in site/: stage the pages, add the API reference, run MkDocs. No network is needed.

`python release/docs_site.py` builds. `python release/docs_site.py stage` writes build/docs/pages only.

A page of docs/ keeps its path. Pages of other folders (`OTHER_PAGES`) get one; links between pages are rewritten. A
linked file that is not a page is staged under files/, so that each link of the site leads to the site.
"""

from __future__ import annotations

import ast
import fnmatch
import logging
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
STAGED = Path("build/docs/pages")
OTHER_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "measurements.md",
    "parquet_loader/README.md": "inside.md",
    "release/README.md": "release.md",
}
HOME = {"README.md": "index.md"}  # docs/index.md is the site's home
FENCE = re.compile(r"^(?P<fence>```+)[^\n]*\n.*?^(?P=fence)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s#]*)(?P<anchor>#[^()\s]*)?\)")
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n(?P<rules>.*?)\n\}\n", re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".cff": "yaml", ".md": "markdown"}
PLACEHOLDER = "reference/"  # of the API reference in the nav

# The pages of the API reference. The last page lists public names that are on none of these.
REFERENCE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "loading": (
        "Load",
        "Data sets, loaders, and the division of their rows. [Quickstart](../quickstart.md) has examples.",
        (
            "ParquetDataset", "BatchedDataLoader", "Batch", "Shard", "split", "split_rows", "LoadedRows", "RowGroup",
        ),
    ),
    "more_loaders": (
        "Other loaders",
        "[Mixtures](../mixing.md), [rows by index](../rows.md), and loaders of data frames.",
        (
            "MixedLoader", "RowReader", "ParquetRows", "ParquetIterable", "from_pandas", "from_dask", "from_spark",
            "ConvertedLoader",
        ),
    ),
    "sequences": (
        "Sequences",
        "[Token sequences](../tokens.md) for language models, and samples of rows of [episodes](../episodes.md).",
        ("TokenLoader", "TokenizerOptions", "EpisodeLoader", "Episodes", "LeRobotDataset"),
    ),
    "options": (
        "Options",
        "Arguments for [remote files](../remote.md), [ranks](../distributed.md), tables and the [cache](../cache.md).",
        (
            "ReadOptions", "RemoteOptions", "ShardOptions", "OutputOptions", "LocalCache", "DeltaSource",
            "HubSource", "IcebergSource",
        ),
    ),
    "schema": (
        "Schemas and columns",
        "The fields of a schema, and columns whose rows vary in length. [Types and nulls](../types.md) explains them.",
        (
            "Schema", "Scalar", "Tensor", "Group", "Category", "RaggedList", "Text", "Bytes", "Image", "Audio",
            "Video", "Encoded", "Ragged",
        ),
    ),
    "writing": (
        "Write",
        "Writers and jobs. See [file layout](../layout.md) and [Dask and Spark jobs](../jobs.md).",
        (
            "write_dataset", "DatasetWriter", "WriteOptions", "WriteSummary", "rewrite_dataset", "RewriteReport",
            "ColumnReport", "write_dask", "write_spark", "JobSummary", "package_archive",
        ),
    ),
    "store": (
        "Sample store",
        "A data set that grows while training reads it. See [the store](../store.md).",
        (
            "SampleStore", "StoreOptions", "StoreSettings", "StoreWriter", "StoreStatus", "StoredFile", "WrittenRows",
            "Samplers", "SamplerStatus", "AtMost", "RecentFirst", "WeightedStore", "Arrival", "Evicted", "HeldState",
        ),
    ),
    "figures": (
        "Plans and statistics",
        "The figures of an epoch, before and after it. [Tuning](../tuning.md) explains them.",
        (
            "EpochPlan", "TokenPlan", "MixingScore", "MixingFigures", "SortingFigures", "LoaderStats", "Finding",
            "ShuffleFigures", "StorageFigures", "CodecFigures", "SlowColumns", "SkippedRowGroup", "ReplacedRow",
            "RemoteFigures", "CacheStats", "SourceChange", "BatchLineage", "EpisodePlan",
            "DeviceFigures",
        ),
    ),
    "errors": (
        "Errors",
        "All errors are a `ParquetLoaderError`. [Errors](../errors.md) lists messages and remedies.",
        (
            "ParquetLoaderError", "ConfigurationError", "ArgumentTypeError", "MissingPackageError",
            "MissingDeviceError", "SourceError", "SchemaError", "DataError", "MemoryLimitError", "TransformError",
            "WriteError", "UnfinishedCommitError", "StoreFullError", "UnsupportedError", "OpenFilesError",
            "OutOfMemoryError", "SystemReadError", "RemoteError", "ReadingProcessError", "ResumeError",
            "LoaderStateError", "PerformanceWarning", "ParquetLoaderDeprecationWarning",
        ),
    ),
    "petastorm": (
        "Petastorm's names",
        "The readers of `parquet_loader.petastorm`. See [moving from Petastorm](../petastorm.md).",
        ("petastorm.make_reader", "petastorm.make_batch_reader", "petastorm.TransformSpec"),
    ),
}  # fmt: skip


@dataclass
class Site:
    """The staged pages, by path: first those of the nav, then the others."""

    config: dict[str, Any]
    nav: list[Any]
    pages: dict[str, str] = field(default_factory=dict)  # path of a staged page -> Markdown
    raw: dict[str, Path] = field(default_factory=dict)  # path of a staged file -> its source
    unlisted: list[str] = field(default_factory=list)  # pages of docs/ that the nav does not name


def read_config(root: Path = ROOT) -> dict[str, Any]:
    """Return mkdocs.yml, without the objects that its tags name."""
    text = re.sub(r"!!python/\S+", "", (root / "mkdocs.yml").read_text(encoding="utf-8"))
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def public_names(root: Path = ROOT) -> list[str]:
    """Return the names of `__all__`, without importing the package."""
    tree = ast.parse((root / "parquet_loader/__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "__all__" for name in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    raise AssertionError("parquet_loader/__init__.py has no __all__")


def paths_of(nav: Any) -> list[str]:
    """Return the pages that a nav names, in its order."""
    if isinstance(nav, str):
        return [nav]
    items = nav.values() if isinstance(nav, dict) else nav
    return [path for item in items for path in paths_of(item)]


def title_of(markdown: str) -> str:
    """Return the text of the first heading."""
    heading = re.search(r"^# (.+)$", FENCE.sub("", markdown), re.MULTILINE)
    return heading[1].replace("`", "") if heading else "Untitled"


def lead_of(markdown: str) -> str:
    """Return the first sentence after the title, without markup."""
    text = FENCE.sub("", markdown).split("\n# ", 1)[-1]
    for paragraph in text.split("\n\n")[1:]:
        if paragraph.strip() and paragraph.lstrip()[0] not in "#|<!-:`":
            plain = LINK.sub(lambda link: link["text"], paragraph.strip().replace("\n", " ")).replace("`", "")
            return re.split(r"(?<=[.?!]) (?=[A-Z`])", plain.replace("**", ""))[0].rstrip(":")
    return ""


def stage(root: Path = ROOT) -> Site:
    """Return the site's pages, with their links rewritten; nothing is written."""
    config = read_config(root)
    site = Site(config, [])
    docs = root / "docs"
    sources = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md"))}
    sources |= {path: root / source for source, path in OTHER_PAGES.items() if (root / source).exists()}
    places = {source.relative_to(root).as_posix(): path for path, source in sources.items()} | HOME
    linked: set[str] = set()
    for path, source in sources.items():
        site.pages[path] = _rewritten(source.read_text(encoding="utf-8"), source, path, root, places, linked)
    for name in sorted(linked):
        _add_file(site, root / name, name)
    for folder in ("assets", "images"):
        files = [path for path in sorted((docs / folder).rglob("*")) if path.is_file() and path.suffix != ".md"]
        site.raw |= {path.relative_to(docs).as_posix(): path for path in files}
    reference = _reference(root)
    site.pages |= {f"reference/{name}.md": text for name, (_, text) in reference.items()}
    named = set(paths_of(config["nav"]))
    nav = _expanded(config["nav"], {path: text for path, text in site.pages.items() if path not in named})
    named = set(paths_of(nav))
    own = [path for path in sources if path not in OTHER_PAGES.values() and not path.startswith("skill/")]
    site.unlisted = [path for path in own if path not in named]
    entries = [{title: f"reference/{name}.md"} for name, (title, _) in reference.items()]
    site.nav = _filled(nav, entries)
    absent = [path for path in paths_of(site.nav) if path not in site.pages]
    if absent:
        raise SystemExit(f"mkdocs.yml: nav names pages that do not exist: {', '.join(absent)}")
    if site.unlisted:
        site.nav.append({"More": [{title_of(site.pages[path]): path} for path in site.unlisted]})
    site.pages = {path: site.pages[path] for path in dict.fromkeys([*paths_of(site.nav), *site.pages])}
    return site


def write(site: Site, target: Path) -> None:
    """Write the staged pages into an empty directory."""
    shutil.rmtree(target, ignore_errors=True)
    for path, page in site.pages.items():
        text = page
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        if not text.startswith("---\n"):
            description = lead_of(text).replace("\\", "").replace('"', "'")
            hide = "hide: [navigation, toc]\n" if path == "index.md" else ""
            text = f'---\ndescription: "{description}"\n{hide}---\n\n{text}'
        (target / path).write_text(text, encoding="utf-8")
    for path, source in site.raw.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / path)
        dark = DARK.search(source.read_text(encoding="utf-8")) if source.suffix == ".svg" else None
        if dark:  # the site's own switch chooses the colours, not the system's setting
            text = source.read_text(encoding="utf-8")
            stem = (target / path).with_suffix("")
            Path(f"{stem}.light.svg").write_text(DARK.sub("", text), encoding="utf-8")
            Path(f"{stem}.dark.svg").write_text(DARK.sub(lambda media: media["rules"] + "\n", text), encoding="utf-8")


def llms_txt(site: Site) -> str:
    """Return the index for language models (llmstxt.org): each page of the nav with its first sentence, as Markdown."""
    lines = [f"# {site.config['site_name']}", "", f"> {site.config['site_description']}", ""]
    lines += ["Each link is a page as Markdown. [SKILL.md](skill/parquet-loader/SKILL.md) is a short guide.", ""]
    for group in site.nav:
        (title, entries), *_ = group.items()
        if isinstance(entries, str):
            continue
        lines += [f"## {title}", ""]
        for path in paths_of(entries):
            if path.startswith("reference/"):  # MkDocs makes these pages from docstrings, so they have no Markdown
                lines.append(f"- [{title_of(site.pages[path])}]({path[:-3]}.html)")
                continue
            lead = lead_of(site.pages[path])
            lines.append(f"- [{title_of(site.pages[path])}]({path}){': ' + lead if lead else ''}")
        lines.append("")
    return "\n".join(lines)


def build(target: Path = ROOT / "site", staged: Path = ROOT / STAGED, root: Path = ROOT) -> int:
    """Stage and build; return the exit code."""
    from mkdocs.commands.build import build as run_mkdocs  # noqa: PLC0415 - staging does without
    from mkdocs.config import load_config  # noqa: PLC0415
    from mkdocs.exceptions import Abort  # noqa: PLC0415

    started = time.perf_counter()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    site = stage(root)
    write(site, staged)
    for path in site.unlisted:
        print(f"note: docs/{path} is in no group of mkdocs.yml; it is listed under More")
    os.chdir(root)
    config = load_config("mkdocs.yml", nav=site.nav, docs_dir=str(staged), site_dir=str(target))
    config.plugins.on_startup(command="build", dirty=False)
    try:
        run_mkdocs(config)
    except Abort as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        config.plugins.on_shutdown()
    for page in target.rglob("*.html"):
        html = _named(page.read_text(encoding="utf-8"))
        is_reference = page.parent.name == "reference"
        page.write_text(_linked_docstrings(html, site) if is_reference else html, encoding="utf-8")
    for path, text in site.pages.items():  # for llms.txt
        if not path.startswith(("reference/", "files/")):
            (target / path).write_text(text, encoding="utf-8")
    (target / "llms.txt").write_text(llms_txt(site), encoding="utf-8")
    print(f"{len(site.pages)} pages in {time.perf_counter() - started:.0f} s; open {target}/index.html")
    return 0


def _expanded(nav: list[Any], pages: dict[str, str]) -> list[Any]:
    """Return a nav with unnamed pages in place of patterns such as `import_*.md`, which may match none."""
    items: list[Any] = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            here = [path for path in sorted(pages) if path.count("/") == item.count("/")]
            items += [{title_of(pages[path]): path} for path in fnmatch.filter(here, item)]
        elif isinstance(item, dict):
            items.append({k: _expanded(v, pages) if isinstance(v, list) else v for k, v in item.items()})
        else:
            items.append(item)
    return items


def _filled(nav: list[Any], reference: list[Any]) -> list[Any]:
    return [
        {title: reference if entries == PLACEHOLDER else entries for title, entries in group.items()}
        if isinstance(group, dict)
        else group
        for group in nav
    ]


def _reference(root: Path) -> dict[str, tuple[str, str]]:
    """Return title and text of each page of the API reference, by name; every public name is on one."""
    public = public_names(root)
    groups = {
        page: (title, lead, [name for name in names if "." in name or name in public])
        for page, (title, lead, names) in REFERENCE.items()
    }
    rest = [name for name in public if not any(name in names for _, _, names in groups.values())]
    if rest:
        groups["other"] = ("Other names", "Public names that are not on another page yet.", rest)
    return {
        page: (title, "\n\n".join([f"# {title}", lead, *(f"::: parquet_loader.{name}" for name in names)]) + "\n")
        for page, (title, lead, names) in groups.items()
    }


def _rewritten(text: str, source: Path, path: str, root: Path, places: dict[str, str], linked: set[str]) -> str:
    """Return a page as the site has it: links by the new paths, pictures for light and dark."""
    here = os.path.dirname(path)

    def link(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if not target or ":" in target:
            return match[0]
        name = os.path.relpath(os.path.normpath(source.parent / target), root)
        if match["image"] or name.startswith(("docs/images/", "docs/assets/")):
            new = os.path.relpath(os.path.relpath(name, "docs"), here or ".")
            if match["image"] and new.endswith(".svg") and DARK.search((root / name).read_text(encoding="utf-8")):
                light, dark = (f"![{match['text']}]({new[:-4]}.{mode}.svg#only-{mode})" for mode in ("light", "dark"))
                return f"{light}{dark}"
        elif name in places:
            new = os.path.relpath(places[name], here or ".")
        elif not (root / name).exists():  # MkDocs names it
            return match[0]
        else:
            linked.add(name)
            new = os.path.relpath(_place_of_file(root / name, name), here or ".")
        text = LINK.sub(link, match["text"])  # a picture within a link
        return f"{match['image']}[{text}]({new}{anchor})"

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(link, text[end : fence.start()]), re.sub(r"^```python \w+", "```python", fence[0])]
        end = fence.end()
    return "".join([*parts, LINK.sub(link, text[end:])])


def _named(html: str) -> str:
    """Return a page whose search field has a name for screen readers; code blocks that scroll get focus by script."""
    search = 'data-md-component="search" role="dialog"'
    return html.replace(search, f'{search} aria-label="Search"')


def _linked_docstrings(html: str, site: Site) -> str:
    """Return a page of the reference with links where docstrings name a page: docs/types.md."""

    def link(match: re.Match[str]) -> str:
        path = match["path"]
        return f'<a href="../{path[:-3]}.html">{title_of(site.pages[path])}</a>' if path in site.pages else match[0]

    return re.sub(r"(?<![\w/])docs/(?P<path>[\w/-]+\.md)", link, html)


def _place_of_file(file: Path, name: str) -> str:
    return f"files/{name}.md" if file.is_dir() or file.suffix in LANGUAGES else f"files/{name}"


def _add_file(site: Site, file: Path, name: str) -> None:
    place = _place_of_file(file, name)
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n"
    if file.is_dir():
        names = sorted(path.relative_to(file).as_posix() for path in file.rglob("*") if path.suffix not in {".pyc", ""})
        site.pages[place] = head + "Files of this folder of the repository:\n\n" + "".join(f"- `{n}`\n" for n in names)
    elif file.suffix in LANGUAGES:
        site.pages[place] = f"{head}````{LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}````\n"
    else:
        site.raw[place] = file


if __name__ == "__main__":
    if sys.argv[1:] == ["stage"]:
        write(stage(), ROOT / STAGED)
    else:
        sys.exit(build())
