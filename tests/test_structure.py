"""The tree is the pipeline: imports run one way, the core stays light, and the public names are these."""

from __future__ import annotations

import ast
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import parquet_loader

PACKAGE = Path(__file__).parent.parent / "parquet_loader"

# Packages in the order of imports: each imports from itself and from earlier lines only.
ORDER = [
    ["errors"],
    ["common"],
    ["schema"],
    ["source", "plan"],
    ["decode"],
    ["read"],
    ["dataset", "window"],
    ["engine"],
    ["collate", "write"],
    ["loader", "petastorm"],
    ["store"],
    ["cli"],
]
# Packages are imported through what their `__init__` hands out; what needs torch or is a way in of its own, by module.
INNER = (
    "common.storage.hdfs",
    "collate.device.cuda",
    "collate.grain_dataset",
    "collate.jax_output",
    "collate.keras_dataset",
    "collate.device.pinned_memory",
    "collate.samplers",
    "collate.tensors",
    "collate.tf_dataset",
    "collate.torch_output",
    "loader",
    "petastorm",
    "store",
    "write.dask",
    "write.imports",
    "write.rewrite",
    "write.spark",
)
# `schema` imports torch only inside methods that are called with tensors, `common` where there are several ranks.
MAY_IMPORT_TORCH = {"collate", "loader", "store", "petastorm", "cli"}
MAY_IMPORT_TORCH_INSIDE_FUNCTIONS = MAY_IMPORT_TORCH | {"schema", "common"}
HEAVY = (
    "torch", "tensorflow", "jax", "keras", "grain", "pandas", "polars", "PIL", "dask", "pyspark", "tqdm", "simplejpeg"
)  # fmt: skip

# Stages of the pipeline, whose `__init__` imports what other packages may use. The others have an `__all__` for users.
STAGES = (
    "collate", "common", "dataset", "decode", "decode/media", "engine",
    "plan", "read", "source", "store", "window", "write",
)  # fmt: skip

MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    return module.split(".")[1]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports_of(path: Path, *, inside_functions: bool = True) -> set[str]:
    """Every module that the file imports, by full name, `if TYPE_CHECKING` included."""
    found: set[str] = set()
    module = name_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            # `from package import module` names a module too.
            found.update(f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not inside_functions:
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree_of(path))
    return found


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return name.startswith("parquet_loader.") and (path.is_dir() or path.with_suffix(".py").is_file())


def test_imports_run_from_earlier_to_later_packages() -> None:
    assert [fault for path in MODULES for fault in faults_of_imports(path)] == []


def faults_of_imports(path: Path) -> Iterator[str]:
    package = package_of(name_of(path))
    if package == "__main__":
        return
    level = next(number for number, packages in enumerate(ORDER) if package in packages)
    allowed = {package, *(name for packages in ORDER[:level] for name in packages)}
    imported = {name for name in imports_of(path) if name.split(".")[0] == "parquet_loader"}
    if "parquet_loader" in imported:
        yield f"{name_of(path)} imports the root: import the package that hands out a name"
        imported.remove("parquet_loader")
    if wrong := sorted(name for name in imported if package_of(name) not in allowed):
        yield f"{name_of(path)} may not import {', '.join(wrong)}"
    foreign = {name.removeprefix("parquet_loader.") for name in imported if package_of(name) != package}
    if inner := sorted(n for n in foreign if "." in n and not any(n == i or n.startswith(f"{i}.") for i in INNER)):
        yield f"{name_of(path)} imports {', '.join(inner)}: import what the package hands out"


@cache
def imports_from_packages() -> list[tuple[Path, str, set[str]]]:
    """Each import of names in this package, in tests and in benchmarks: the file, the module, the names."""
    form = re.compile(r"^ *from (parquet_loader[\w.]*) import (\([^)]*\)|[^\n]+)", re.MULTILINE)
    files = (p for root in ("parquet_loader", "tests", "benchmarks") for p in (PACKAGE.parent / root).rglob("*.py"))
    found = ((path, form.findall(path.read_text(encoding="utf-8"))) for path in files)
    return [(path, module, set(re.findall(r"\w+", names))) for path, imports in found for module, names in imports]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_hands_out_only_names_that_others_import(stage: str) -> None:
    """No `__all__` repeats these names, and ruff does not ask whether they are used; here they are."""
    imports = [node for node in tree_of(PACKAGE / stage / "__init__.py").body if isinstance(node, ast.ImportFrom)]
    handed_out = {alias.asname or alias.name for node in imports if node.module != "__future__" for alias in node.names}
    module = f"parquet_loader.{stage.replace('/', '.')}"
    elsewhere = [
        names for path, one, names in imports_from_packages() if one == module and PACKAGE / stage not in path.parents
    ]
    assert handed_out
    assert handed_out.difference(*elsewhere) == set()


# Modules that call a kernel, each with what does the same without it; and the one that decides how columns travel.
MAY_ASK_FOR_KERNELS = {
    "collate.token_rows",
    "common",
    "common.native.bindings",
    "common.native.permute",
    "common.permutations",
    "decode.jpeg",
    "decode.media.resizing",
    "decode.native.column_reader",
    "decode.native.list_reader",
    "decode.native.page_check",
    "decode.native.page_list",
    "decode.native.vocabulary",
    "decode.native.whole_row_groups",
    "decode.plain_pages",
    "decode.routes",
    "plan.packing",
    "source.metadata",
    "write.imports.crc32c",
    "window.variable_width",  # takes views, which only kernels find
}


def test_only_callers_of_kernels_and_the_routes_ask_whether_there_are_kernels() -> None:
    asking = {
        name_of(path).removeprefix("parquet_loader.")
        for path in MODULES
        if any(isinstance(node, ast.Name) and node.id in {"KERNELS", "IS_BUILT"} for node in ast.walk(tree_of(path)))
    }
    assert asking <= MAY_ASK_FOR_KERNELS


def test_the_guide_to_the_source_names_every_lock() -> None:
    guide = (PACKAGE / "README.md").read_text(encoding="utf-8")
    kept = re.compile(r"( +self\.)?(\w+)[^=]*= .*\bR?Lock\(\)")  # of objects and of modules, not of functions
    missing = []
    for path in MODULES:
        owner = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            owner = re.split(r"[(:]", line[6:])[0] if line.startswith("class ") else owner
            if found := kept.match(line):
                lock = f"`{owner}.{found[2]}`" if found[1] else f"`{found[2]}` (`{path.relative_to(PACKAGE)}`)"
                missing += [] if lock in guide else [f"{name_of(path)}: {lock}"]
    assert not missing


def test_the_tree_is_small_enough_to_see_at_once() -> None:
    def shown(folder: Path) -> list[Path]:
        return [e for e in folder.iterdir() if e.name != "__pycache__" and e.suffix != ".so"]

    assert len(shown(PACKAGE)) <= 20
    folders = [p for p in PACKAGE.rglob("*") if p.is_dir() and p.name != "__pycache__"]
    files = {str(f.relative_to(PACKAGE)): sum(e.is_file() for e in shown(f)) for f in folders}
    assert {name: count for name, count in files.items() if count > 20} == {}


def test_no_two_public_classes_share_a_name() -> None:
    """Except `BatchedDataLoader`: Petastorm has one too, and `petastorm/` keeps its names."""
    modules: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(name_of(path))
    doubled = {name: sorted(names) for name, names in modules.items() if len(names) > 1}
    assert doubled == {"BatchedDataLoader": ["parquet_loader.loader.batched", "parquet_loader.petastorm.pytorch"]}


def test_no_module_uses_private_members_of_the_classes_of_another() -> None:
    """A class's own module may, and so may those of its subclasses. Petastorm's own names begin with ``_``, too."""
    members: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                members.setdefault(node.name, set()).update(private_members(node))
                bases.setdefault(node.name, set()).update(ast.unparse(base) for base in node.bases)

    def with_inherited(name: str) -> set[str]:
        return members.get(name, set()).union(*(with_inherited(base) for base in bases.get(name, set()) - {name}))

    private = set().union(*members.values())
    found = []
    for path in MODULES:
        if package_of(name_of(path)) == "petastorm":
            continue
        nodes = list(ast.walk(tree_of(path)))
        own = set().union(*(with_inherited(node.name) for node in nodes if isinstance(node, ast.ClassDef)))
        uses = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr in private - own)
        found += [f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}" for node in uses]
    assert found == []


def private_members(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's private methods, attributes and slots."""
    names = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(inner.name)
        elif isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == "self":
            names.add(inner.attr)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.add(inner.id)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            names.add(inner.value)
    tuples = {"_fields", "_replace", "_asdict", "_make"}  # public members of named tuples
    return {name for name in names if name.startswith("_") and not name.startswith("__")} - tuples


def test_modules_do_not_import_in_a_circle() -> None:
    graph = {name_of(p): {n for n in imports_of(p) if is_module(n)} - {name_of(p)} for p in MODULES}
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"imports run in a circle: {' -> '.join([*trail, module])}"
        if module not in done:
            for other in sorted(graph.get(module, ())):
                # A package's __init__ gathers its own modules; they do not import it back.
                walk(other, (*trail, module))
            done.add(module)

    for module in graph:
        walk(module, ())


def test_only_the_last_stages_import_torch() -> None:
    for inside, packages in ((False, MAY_IMPORT_TORCH), (True, MAY_IMPORT_TORCH_INSIDE_FUNCTIONS)):
        importing = [
            name_of(path)
            for path in MODULES
            if any(name.split(".")[0] == "torch" for name in imports_of(path, inside_functions=inside))
        ]
        assert [module for module in importing if package_of(module) not in packages] == []


def test_importing_loads_no_heavy_package() -> None:
    modules = ("engine.engine", "write", "write.rewrite", "loader.batched", "write.dask", "write.spark")
    code = f"""
import importlib, sys
for module in ("parquet_loader", *(f"parquet_loader.{{name}}" for name in {modules!r})):
    importlib.import_module(module)
    print(*(f"{{module}}: {{name}}" for name in {HEAVY!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_public_names_are_these() -> None:
    names = [name for name in parquet_loader.__all__ if getattr(parquet_loader, name) is not None]
    assert names == [
        "ArgumentTypeError",
        "Arrival",
        "AtMost",
        "Audio",
        "Batch",
        "BatchLineage",
        "BatchedDataLoader",
        "Bytes",
        "CacheStats",
        "Category",
        "CodecFigures",
        "ColumnReport",
        "ConfigurationError",
        "ConvertedLoader",
        "DataError",
        "DatasetWriter",
        "DeltaSource",
        "DeviceFigures",
        "Encoded",
        "EpisodeLoader",
        "EpisodePlan",
        "Episodes",
        "EpochPlan",
        "Evicted",
        "Finding",
        "Group",
        "HeldState",
        "HubSource",
        "IcebergSource",
        "Image",
        "JobSummary",
        "LeRobotDataset",
        "LoadedRows",
        "LoaderStateError",
        "LoaderStats",
        "LocalCache",
        "MemoryLimitError",
        "MissingDeviceError",
        "MissingPackageError",
        "MixedLoader",
        "MixingFigures",
        "MixingScore",
        "OpenFilesError",
        "OutOfMemoryError",
        "OutputOptions",
        "ParquetDataset",
        "ParquetIterable",
        "ParquetLoaderDeprecationWarning",
        "ParquetLoaderError",
        "ParquetRows",
        "PerformanceWarning",
        "Ragged",
        "RaggedList",
        "ReadOptions",
        "ReadingProcessError",
        "RecentFirst",
        "RemoteError",
        "RemoteFigures",
        "RemoteOptions",
        "ReplacedRow",
        "ResumeError",
        "RewriteReport",
        "RowGroup",
        "RowReader",
        "SampleStore",
        "SamplerStatus",
        "Samplers",
        "Scalar",
        "Schema",
        "SchemaError",
        "Shard",
        "ShardOptions",
        "ShuffleFigures",
        "SkippedRowGroup",
        "SlowColumns",
        "SortingFigures",
        "SourceChange",
        "SourceError",
        "StorageFigures",
        "StoreFullError",
        "StoreOptions",
        "StoreSettings",
        "StoreStatus",
        "StoreWriter",
        "StoredFile",
        "SystemReadError",
        "Tensor",
        "Text",
        "TokenLoader",
        "TokenPlan",
        "TokenizerOptions",
        "TransformError",
        "UnfinishedCommitError",
        "UnsupportedError",
        "Video",
        "WeightedStore",
        "WriteError",
        "WriteOptions",
        "WriteSummary",
        "WrittenRows",
        "from_dask",
        "from_pandas",
        "from_spark",
        "package_archive",
        "rewrite_dataset",
        "split",
        "split_rows",
        "write_dask",
        "write_dataset",
        "write_spark",
    ]


def test_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize(
    ("imports", "variable", "expected"),
    [
        ("parquet_loader, pyarrow", None, "jemalloc"),
        ("pyarrow, parquet_loader", None, None),
        ("parquet_loader, pyarrow", "system", "system"),
    ],
)
def test_importing_settles_arrows_allocator_and_leaves_the_environment_alone(
    imports: str, variable: str | None, expected: str | None
) -> None:
    name = "ARROW_DEFAULT_MEMORY_POOL"
    environment = {key: value for key, value in os.environ.items() if key != name} | (
        {name: variable} if variable else {}
    )
    code = f"import os, {imports}; print(pyarrow.default_memory_pool().backend_name, os.environ.get({name!r}))"
    if expected == "jemalloc" and (sys.platform != "linux" or platform.machine() != "x86_64"):
        expected = None
    if expected is None:
        own = "import pyarrow; print(pyarrow.default_memory_pool().backend_name, end='')"
        expected = subprocess.run(
            [sys.executable, "-c", own], env=environment, capture_output=True, text=True, check=True
        ).stdout
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, str(variable)]
    assert not done.stderr
