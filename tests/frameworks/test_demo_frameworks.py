"""The demo's network in JAX, TensorFlow and Keras learns about as much as in torch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demo.task import flights
from demo.train import train
from parquet_loader import write_dataset
from schemas.flights import CATEGORIES, DENSE, FLIGHTS

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


def trained(module: str, parts: dict[str, str]) -> dict[str, float]:
    """Return the validation errors of training in a process of its own, because Keras has one backend a process."""
    script = f"""
        import json, sys
        from dataclasses import replace
        from demo.{module} import train
        from demo.task import flights
        errors = train(replace(flights(), **json.loads(sys.argv[1])), epochs=3)
        print(json.dumps({{name: found.mse for name, found in errors.items()}}))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), json.dumps(parts)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the paths of rows whose label depends on a number and on a category."""
    folder = tmp_path_factory.mktemp("flights")
    rng = np.random.default_rng(0)
    found = {}
    for name, rows in (("train", 30_500), ("validation", 5_100)):
        dense = {column: rng.normal(size=rows).astype(np.float32) for column in DENSE.fields}
        codes = {column: rng.integers(0, len(category.vocabulary), rows) for column, category in CATEGORIES.items()}
        words = {column: np.array(CATEGORIES[column].vocabulary)[values] for column, values in codes.items()}
        label = 3 * dense["dep_delay"] + np.abs(codes["carrier"] - 8.0) + rng.normal(size=rows)
        found[name] = str(folder / name)
        write_dataset({**dense, **words, "arr_delay": label.astype(np.float32)}, found[name], FLIGHTS)
    return found


@pytest.fixture(scope="module")
def torch_error(parts: dict[str, str]) -> float:
    task = replace(flights(), train=Path(parts["train"]), validation=Path(parts["validation"]))
    return train(task, epochs=3)["model"].mse


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("train_jax", "flax"),
        ("train_tensorflow", "tensorflow"),  # has the network of `train_keras`
        pytest.param("train_keras", "keras", marks=pytest.mark.slow),
    ],
)
def test_the_network_learns_about_as_much_as_in_torch(
    module: str, package: str, parts: dict[str, str], torch_error: float
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '.[frameworks]'")
    errors = trained(module, parts)
    assert errors["model"] < 0.2 * errors["the mean"]
    assert errors["model"] < 1.3 * torch_error
