"""Workers of Dask and executors of Spark need numpy, pyarrow and this package: an environment that holds nothing else.

The environment is built with pip, the package installed into it without its dependencies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.job_places import Place

ROOT = Path(__file__).parents[2]
ABSENT = ("torch", "pandas", "polars", "PIL", "tqdm")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with numpy, pyarrow and the package; Dask is there for its own workers."""
    home = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=100)
    interpreter = str(home / "bin" / "python")
    pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    needed = ["numpy", "pyarrow", "dask", "distributed", "--constraint", str(ROOT / "constraints.txt")]
    for arguments in (needed, ["--no-deps", str(ROOT)]):
        done = subprocess.run([*pip, *arguments], capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"pip cannot build the environment: {done.stderr[-300:]}")
    look = f"import importlib.util as u, sys; sys.exit(any(map(u.find_spec, {ABSENT!r})))"
    subprocess.run([interpreter, "-I", "-c", look], check=True, timeout=60)
    return interpreter


DASK = """
    import os, sys
    import dask
    from distributed import Client, LocalCluster
    from parquet_loader import Scalar, Schema, Tensor
    from parquet_loader.write.dask import write_dask

    SCHEMA = Schema({"id": Scalar("int64"), "vector": Tensor("float32", (4,))})

    def rows(number):
        return [{"id": 100 * number + n, "vector": [1.0, 2.0, 3.0, n]} for n in range(100)]

    if __name__ == "__main__":
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
            parts = [dask.delayed(rows)(number) for number in range(6)]
            for shuffle in (False, True):
                write_dask(parts, os.path.join(sys.argv[1], "set"), SCHEMA, mode="overwrite", shuffle=shuffle)
"""


def test_a_whole_dask_job_runs_without_torch_and_pandas(python: str, tmp_path: Path) -> None:
    run(python, DASK, tmp_path)
    assert Place("local", tmp_path).ids() == list(range(600))


# The driver runs where the tests do, with this checkout; it passes on neither its path nor its working directory.
SPARK = """
    import os, sys
    sys.path.insert(0, sys.argv[2])
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import SparkSession
    from parquet_loader import Scalar, Schema, Tensor
    from parquet_loader.write.spark import write_spark

    LIGHT = os.environ["PYSPARK_PYTHON"]
    SCHEMA = Schema({"id": Scalar("int64"), "vector": Tensor("float32", (4,))})

    def found(batches):
        import importlib.util
        import pyarrow as pa
        import parquet_loader

        there = [name for name in ("torch", "pandas", "polars", "PIL", "tqdm") if importlib.util.find_spec(name)]
        for _ in batches:
            where = [[sys.executable], [parquet_loader.__file__], [",".join(there)]]
            yield pa.record_batch([pa.array(column) for column in where], ["python", "package", "there"])

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    for row in spark.range(2).mapInArrow(found, "python string, package string, there string").collect():
        assert row["python"] == LIGHT, row
        assert row["package"].startswith(os.path.dirname(os.path.dirname(LIGHT))), row
        assert row["there"] == "", row
    df = spark.createDataFrame([(n, Vectors.dense([1.0, 2.0, 3.0, n])) for n in range(600)], ["id", "vector"])
    for shuffle in (False, True):
        write_spark(df, os.path.join(sys.argv[1], "set"), SCHEMA, mode="overwrite", shuffle=shuffle)
    spark.stop()
"""


@pytest.mark.spark
def test_executors_run_without_torch_and_pandas(python: str, tmp_path: Path) -> None:
    run(sys.executable, SPARK, tmp_path, PYSPARK_PYTHON=python)
    assert Place("local", tmp_path).ids() == list(range(600))


def run(interpreter: str, code: str, directory: Path, **environment: str) -> None:
    (directory / "job.py").write_text(textwrap.dedent(code))
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [interpreter, str(directory / "job.py"), str(directory), str(ROOT)],
        env=inherited | environment, cwd=directory, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
