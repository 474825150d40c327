"""The examples of README and docs, and usual annotations of users, pass mypy (strict) and pyright without a cast."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
# Their examples need packages of the extra `frameworks`, some of which ship no types, or have tables as batches.
OF_FRAMEWORKS = {
    "accelerate.md",
    "grain.md",
    "jax.md",
    "keras.md",
    "lightning.md",
    "maxtext.md",
    "orbax.md",
    "ray.md",
    "scikit-learn.md",
    "tables.md",
    "tensorflow.md",
    "tfdata.md",
    "torchtitan.md",
    "transformers.md",
}
SETTINGS = """
[mypy]
strict = True
# Examples leave out annotations; other packages ship no types, or names that they do not export.
disable_error_code = no-untyped-def, no-untyped-call, import-untyped, import-not-found, no-any-return, type-arg
# Most of the time would go to 4,000 modules of other packages, most of torch's compiler. pyright reads them all.
follow_imports = skip

[mypy-parquet_loader.*,numpy.*,torch,torch._tensor.*,torch._C.*,torch.types,torch.nn.*,torch.optim.*,torch.utils.data.*]
follow_imports = silent
"""

PYRIGHT = {
    "include": ["."],
    "extraPaths": [str(ROOT)],
    "pythonVersion": "3.11",
    "typeCheckingMode": "standard",
    "reportMissingImports": False,
    "reportPossiblyUnboundVariable": False,  # examples use after a loop what the loop assigns
    "reportUnusedExpression": False,
}

USER = """
from pathlib import Path

import numpy as np
import torch

from parquet_loader import Batch, BatchedDataLoader, Category, Ragged, RaggedList, Scalar, Schema, Tensor, Text
from parquet_loader import write_dataset

words = ["red", "green"]
names = ["image", "label"]
paths = [Path("a.parquet"), Path("b.parquet")]
schema = Schema({"image": Tensor("float32", [3, 8, 8]), "label": Category(words), "size": Scalar(np.float32)})
fields = {"label": Category((1, 5, 9)), "note": Text(null="mask"), "embedding": RaggedList("float32")}
other = Schema(fields)


def loss_of(batch: Batch, model: torch.nn.Module) -> torch.Tensor:
    column = batch["label"]
    assert not isinstance(column, Ragged)
    return torch.nn.functional.cross_entropy(model(batch["image"]), column)


def sum_of(batch: dict[str, torch.Tensor]) -> float:
    return float(batch["size"].sum())


def halved(columns: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return columns | {"size": columns["size"] / 2}


with BatchedDataLoader(paths, 32, schema=schema, columns=names, shuffle=True, transform=halved) as loader:
    for batch in loader:
        images = batch["image"].to("cpu", non_blocking=True)
        loss = torch.nn.functional.cross_entropy(images.flatten(1), batch["label"])
        texts: list[str] = batch["text"].to_list()
        padded = batch["tokens"].to_padded(fill=0)
        loss_of(batch, torch.nn.Flatten()) + sum_of(batch)
        kept: Batch = batch

write_dataset(({"size": number} for number in range(3)), Path("data"), mode="append")
"""


# Each is to be an error; a type that were `Any` would let it pass.
MISUSES = {
    "loss_of(batch, torch.nn.Flatten()) + sum_of(batch)": "loss_of(batch, 3)",
    'return float(batch["size"].sum())': 'return batch["size"].sum()',
    '"label": Category(words)': '"label": Category(3)',
    "columns=names": "columns=3",
    "transform=halved": "transform=sum_of",
    'mode="append"': 'mode="amend"',
}


def code_of(page: Path) -> str:
    """A page's Python blocks as one module whose lines have the numbers of the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in FENCE.finditer(text):
        first = text[: block.start("code")].count("\n")
        code = block["code"].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a module for each page, and `USER`."""
    directory = tmp_path_factory.mktemp("examples")
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "design"]
    for page in [ROOT / "README.md", *pages]:
        if page.name not in OF_FRAMEWORKS:
            module = re.sub(r"\W", "_", page.relative_to(ROOT).as_posix())
            (directory / f"{module}.py").write_text(code_of(page), encoding="utf-8")
    (directory / "user.py").write_text(USER, encoding="utf-8")
    for number, (right, wrong) in enumerate(MISUSES.items()):
        assert USER.count(right) == 1
        (directory / f"misuse{number}.py").write_text(USER.replace(right, wrong), encoding="utf-8")
    return directory


def check(module: str, *arguments: str, directory: Path) -> None:
    """Fail unless the misuses, each of them, are all that the module finds in the directory."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=directory, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.findall(r"(\w+)\.py:\d.*\berror:", done.stdout)
    assert sorted(found) == [f"misuse{number}" for number in range(len(MISUSES))], done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_examples_and_usual_annotations_pass_mypy(examples: Path) -> None:
    (examples / "mypy.ini").write_text(SETTINGS, encoding="utf-8")
    cache = str(ROOT / ".mypy_cache" / "examples")
    check("mypy", "--cache-dir", cache, "--config-file", "mypy.ini", ".", directory=examples)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_examples_and_usual_annotations_pass_pyright(examples: Path) -> None:
    (examples / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
    check("basedpyright", "--pythonpath", sys.executable, "--level", "error", directory=examples)
