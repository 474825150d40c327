"""The tree is the pipeline: imports run one way, the core stays light, and the public names are these."""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import parquet_loader

PACKAGE = Path(__file__).parent.parent / "parquet_loader"

# A room (a module, or a package with all it holds) imports only from rooms before it, and from itself.
ROOMS = [
    "errors",
    "common",
    "schema",
    "source",
    "remote",
    "unischema",
    "plan",
    "native",
    "decode",
    "cache",
    "read",
    "dataset",
    "window",
    "engine",
    "collate",
    "write",
    "rewrite",
    "loader",
    "frames",
    "petastorm",
    "store",
    "cli",
]
# Side rooms: nothing on the way from files to batches needs them, and they need nothing of it.
NARROWER = {"write": {"errors", "failures", "hints", "trust", "types", "schema", "filesystem", "table_formats", "plan"}}
# `jagged` imports torch only inside methods that are called with tensors, `ranks` where there are several.
MAY_IMPORT_TORCH = {"collate", "device", "tensors", "samplers", "iterable", "store", "petastorm", "cli"}
MAY_IMPORT_TORCH_INSIDE_FUNCTIONS = MAY_IMPORT_TORCH | {"jagged", "ranks"}
HEAVY = ("torch", "pandas", "polars", "PIL", "dask", "pyspark", "tqdm", "simplejpeg")

MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.split(".")[1]


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

    visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return found


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return name.startswith("parquet_loader.") and (path.is_dir() or path.with_suffix(".py").is_file())


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_run_from_earlier_to_later_rooms(path: Path) -> None:
    room = room_of(name_of(path))
    assert room in ROOMS or room == "__main__", f"{room} has no place in the order yet: add it to ROOMS"
    if room == "__main__":
        return
    allowed = NARROWER.get(room, set(ROOMS[: ROOMS.index(room)])) | {room}
    imported = {name for name in imports_of(path) if name.split(".")[0] == "parquet_loader"}
    assert "parquet_loader" not in imported, "import the module that defines a name, not the package"
    wrong = sorted(name for name in imported if room_of(name) not in allowed)
    assert not wrong, f"{name_of(path)} may not import {', '.join(wrong)}"


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


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_last_stages_import_torch(path: Path) -> None:
    room = room_of(name_of(path))
    for inside, rooms in ((False, MAY_IMPORT_TORCH), (True, MAY_IMPORT_TORCH_INSIDE_FUNCTIONS)):
        torch = sorted(n for n in imports_of(path, inside_functions=inside) if n.split(".")[0] == "torch")
        assert not torch or room in rooms


@pytest.mark.parametrize(
    "module",
    [
        "parquet_loader",
        "parquet_loader.engine.engine",
        "parquet_loader.write",
        "parquet_loader.write.rewrite",
        "parquet_loader.loader.batched",
        "parquet_loader.write.dask",
        "parquet_loader.write.spark",
    ],
)
def test_importing_loads_no_heavy_package(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_public_names_are_these() -> None:
    names = [name for name in parquet_loader.__all__ if getattr(parquet_loader, name) is not None]
    assert names == [
        "Batch",
        "BatchedDataLoader",
        "Bytes",
        "CacheStats",
        "Category",
        "ConfigurationError",
        "ConvertedLoader",
        "DataError",
        "DatasetWriter",
        "Encoded",
        "EpochPlan",
        "Group",
        "Image",
        "LoaderStateError",
        "LoaderStats",
        "LocalCache",
        "MemoryLimitError",
        "MixedLoader",
        "OutOfMemoryError",
        "OutputOptions",
        "ParquetIterable",
        "ParquetLoaderError",
        "PerformanceWarning",
        "Ragged",
        "RaggedList",
        "ReadOptions",
        "RemoteError",
        "RemoteOptions",
        "ResumeError",
        "RewriteReport",
        "SampleStore",
        "Scalar",
        "Schema",
        "SchemaError",
        "Shard",
        "ShardOptions",
        "SourceError",
        "StoreFullError",
        "StoreOptions",
        "SystemReadError",
        "Tensor",
        "Text",
        "TransformError",
        "UnsupportedError",
        "WriteError",
        "WriteOptions",
        "from_dask",
        "from_pandas",
        "from_spark",
        "rewrite_dataset",
        "split",
        "split_rows",
        "write_dataset",
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
    own = subprocess.run(
        [sys.executable, "-c", "import pyarrow; print(pyarrow.default_memory_pool().backend_name, end='')"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    if expected == "jemalloc" and (sys.platform != "linux" or platform.machine() != "x86_64"):
        expected = None
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected or own.stdout, str(variable)]
    assert not done.stderr
