"""Petastorm's documented examples run with the import changed and nothing else; see petastorm_examples.py.

Each runs as a script in a process of its own, on data that the examples themselves write, but for what they would
download: digits are drawn here instead. The wheel comes from the package index, or from where PETASTORM_WHEEL says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.interop.petastorm_examples import readme_blocks, unpack, with_our_import

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent.parent.parent
TRAIN, TEST = 1200, 200

# Runs before each script: digits that a network can learn.
BEGIN = f"""
import sys
import numpy as np

def digits(rows, seed):
    rng = np.random.default_rng(seed)
    shapes = np.random.default_rng(0).integers(0, 2, (10, 7, 7)).repeat(4, 1).repeat(4, 2) * 200
    labels = rng.integers(0, 10, rows)
    return [(np.clip(shapes[n] + rng.integers(0, 56, (28, 28)), 0, 255).astype(np.uint8), int(n)) for n in labels]

class Image:
    def __init__(self, pixels):
        self.pixels = pixels
    def getdata(self):
        return self.pixels

def mnist():
    return {{name: [(Image(pixels), digit) for pixels, digit in digits(rows, seed)]
            for name, rows, seed in (("train", {TRAIN}, 1), ("test", {TEST}, 2))}}
"""


def test_only_lines_that_import_petastorm_are_changed() -> None:
    text = 'from petastorm import x\n    import petastorm.y\nfrom petastorms import z\n"petastorm from petastorm"\n'
    changed = with_our_import(text).splitlines()
    assert changed[:2] == ["from parquet_loader.petastorm import x", "    import parquet_loader.petastorm.y"]
    assert changed[2:] == text.splitlines()[2:]
    assert readme_blocks("a\n\n.. code-block:: python\n\n   x = 1\n\n    y = 2\n\nb\n") == ["x = 1\n\ny = 2\n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds the examples, and the data sets that they write."""
    for module in ("pyspark", "torch"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    place = tmp_path_factory.mktemp("petastorm")
    wheel = os.environ.get("PETASTORM_WHEEL")
    if wheel is None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "petastorm==0.13.1"]
        if subprocess.run(command, cwd=place, capture_output=True, check=False).returncode:
            pytest.skip("the package index does not give petastorm==0.13.1")
        wheel = str(next(place.glob("*.whl")))
    assert len(unpack(Path(wheel), place)) == 25
    assert not [path for path in place.rglob("*.py") if re.search(r"(from|import) petastorm\b", path.read_text())]
    script(place, GENERATE)
    return place


GENERATE = """
import readme_1
from examples.hello_world.external_dataset.generate_external_dataset import generate_external_dataset
from examples.hello_world.petastorm_dataset.generate_petastorm_dataset import generate_petastorm_dataset
from examples.hello_world.petastorm_dataset.pyspark_hello_world import pyspark_hello_world
from examples.mnist.generate_petastorm_mnist import mnist_data_to_petastorm_dataset

generate_petastorm_dataset("file://HERE/hello")
readme_1.generate_petastorm_dataset("file://HERE/readme")
generate_external_dataset("file://HERE/external")
mnist_data_to_petastorm_dataset(None, "file://HERE/mnist", mnist_data=mnist())
pyspark_hello_world("file://HERE/hello")
"""


def script(folder: Path, text: str) -> str:
    """Run a script where the examples lie; return what it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{HERE}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + text.replace("HERE", str(folder))],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    return done.stdout


def numbers(text: str) -> list[int]:
    return sorted(int(n) for n in re.findall(r"\d+", text))


def test_generated_data_sets_are_read_by_python_and_torch(folder: Path) -> None:
    printed = script(
        folder,
        """
from examples.hello_world.external_dataset import python_hello_world as external, pytorch_hello_world as external_torch
from examples.hello_world.petastorm_dataset import python_hello_world as hello, pytorch_hello_world as hello_torch

for module in (hello.python_hello_world, hello_torch.pytorch_hello_world):
    module("file://HERE/hello")
    print("---")
for module in (external.python_hello_world, external_torch.pytorch_hello_world):
    module("file://HERE/external")
    print("---")
""",
    )
    rows, one, batches, batch, _ = printed.split("---")
    assert numbers(rows) == list(range(10))
    assert re.fullmatch(r"\s*tensor\(\[\d\], dtype=torch.int32\)\s*", one)
    assert sorted(n for found in re.findall(r"id: \[([\d ]*)\]", batches) for n in numbers(found)) == list(range(10))
    assert re.fullmatch(r"\s*id batch: tensor\(\[\d\]\)\s*", batch)


def test_generated_data_sets_are_read_by_tensorflow(folder: Path) -> None:
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    printed = script(
        folder,
        """
import tensorflow.compat.v1 as tf
from examples.hello_world.external_dataset import tensorflow_hello_world as external
from examples.hello_world.petastorm_dataset import tensorflow_hello_world as hello

with tf.Graph().as_default():  # they were written for TensorFlow 1
    hello.tensorflow_hello_world("file://HERE/hello")
    print("---")
    external.tensorflow_hello_world("file://HERE/external")
""",
    )
    rows, batches = printed.split("---")
    assert len(numbers(rows)) == 2
    assert len(re.findall(r"id batch: \[[\d ]+\]", batches)) == 2


def test_the_readme_reads_with_python_and_tensorflow(folder: Path) -> None:
    """Blocks 5 to 7 are fragments: they lack a network and frames, and the examples below run the same calls."""
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    for number in (2, 3, 4):
        path = folder / f"readme_{number}.py"
        text = path.read_text().replace("hdfs://myhadoop/some_dataset", f"file://{folder}/readme")
        path.write_text(text.replace("file:///some/localpath/a_dataset", f"file://{folder}/readme"))
    printed = script(
        folder,
        """
import tensorflow.compat.v1 as tf

names = {"tf": tf}
with tf.Graph().as_default():
    for number in (2, 3, 4):
        exec(open(f"readme_{number}.py").read(), names)
        print("---")
""",
    )
    rows, tensors, sample, _ = printed.split("---")
    assert rows.count("HelloWorldSchema_view(") == 10
    assert tensors.count("HelloWorldSchema_view(") == 3
    assert len(numbers(sample)) == 1


def test_a_network_learns_the_digits_with_torch(folder: Path) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    printed = script(
        folder,
        """
from examples.mnist import pytorch_example
sys.argv[1:] = ["--dataset-url", "file://HERE/mnist", "--epochs", "6", "--lr", "0.05", "--no-cuda"]
pytorch_example.main()
sys.argv[4] = "2"
sys.argv.append("--all-epochs")
pytorch_example.main()
""",
    )
    right = [(int(a), int(b)) for a, b in re.findall(r"Accuracy: (\d+)/(\d+)", printed)]
    assert [rows for _, rows in right] == [TEST] * 6 + [2 * TEST]
    assert right[5][0] > 0.9 * TEST


def test_a_network_learns_the_digits_with_tensorflow(folder: Path) -> None:
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    printed = script(
        folder,
        """
import tensorflow.compat.v1 as tf
from examples.mnist import tf_example
sys.argv[1:] = ["--dataset-url", "file://HERE/mnist", "--training-iterations", "60"]
with tf.Graph().as_default():
    tf_example.main()
""",
    )
    assert float(re.findall(r"After 59 .* is: ([\d.]+)", printed)[0]) > 0.9


def test_petastorms_tests_of_the_digits_example_pass(folder: Path) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    printed = script(
        folder,
        """
import pytest
options = ["-q", "-p", "no:cacheprovider", "--rootdir", "HERE"]
sys.exit(pytest.main([*options, "examples/mnist/tests/test_pytorch_mnist.py"]))
""",
    )
    assert re.search(r"3 passed, 1 skipped", printed)  # the download is what they skip themselves


@pytest.mark.parametrize("package", ["pytorch", "tensorflow"])
def test_a_network_learns_from_a_spark_frame_here_and_on_a_spark_worker(folder: Path, package: str) -> None:
    pytest.importorskip({"pytorch": "torch"}.get(package, package), reason=f"{package} is not installed")
    pytest.importorskip("requests", reason="requests, which the example imports for its download, is not installed")
    lines = []
    rng = np.random.default_rng(3)
    shapes = np.random.default_rng(0).random((10, 784)) < 0.2
    for label in rng.integers(0, 10, 600):
        pixels = np.flatnonzero(shapes[label]) + 1
        lines.append(f"{label} " + " ".join(f"{n}:{rng.integers(100, 256)}" for n in pixels))
    (folder / "digits.libsvm").write_text("\n".join(lines) + "\n")
    printed = script(
        folder,
        f"""
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from examples.spark_dataset_converter import {package}_converter_example as example
example.run("file://HERE/digits.libsvm")
""",
    )
    accuracies = [float(n) for n in re.findall(r"INFO:root:Accuracy: ([\d.]+)", printed)]
    assert len(accuracies) == 2
    assert min(accuracies) > 0.9
