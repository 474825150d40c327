"""Errors about arguments are also the built-in types that callers expect."""

from __future__ import annotations

import errno
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader import (
    ArgumentTypeError,
    BatchedDataLoader,
    ConfigurationError,
    MissingDeviceError,
    MissingPackageError,
    SystemReadError,
    write_dataset,
)
from parquet_loader.common import system_error


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("errors") / "data")
    write_dataset({"x": np.arange(10)}, path)
    return path


@pytest.mark.parametrize(
    "given",
    [{"batch_size": "8"}, {"shuffle": 1}, {"columns": "x"}, {"schema": {"x": "int"}}, {"transform": 3}, {"shard": 0}],
)
def test_a_wrong_type_is_a_type_error(data: str, given: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as caught:
        BatchedDataLoader(data, **{"batch_size": 4, **given})
    assert isinstance(caught.value, ArgumentTypeError)
    assert isinstance(caught.value, ConfigurationError | ValueError)


def test_a_source_of_the_wrong_type_is_a_type_error() -> None:
    source: Any = {"x": [1]}
    with pytest.raises(TypeError, match="source is a dict"):
        BatchedDataLoader(source, 4)


def test_a_value_out_of_range_is_no_type_error(data: str) -> None:
    with pytest.raises(ValueError, match="batch_size=0") as caught:
        BatchedDataLoader(data, 0)
    assert not isinstance(caught.value, TypeError)


def test_a_missing_package_is_an_import_error(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="progress=True needs tqdm") as caught:
        BatchedDataLoader(data, 4, progress=True)
    assert isinstance(caught.value, MissingPackageError)


def test_a_missing_gpu_is_a_runtime_error(data: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="CUDA device") as caught:
        BatchedDataLoader(data, 4, device="cuda:77")
    assert isinstance(caught.value, MissingDeviceError | ConfigurationError)


def test_an_error_of_the_system_keeps_its_number_on_the_way_from_another_process() -> None:
    failure = system_error("a.parquet, row group 3", OSError(errno.EIO, "Input/output error"))
    assert isinstance(failure, SystemReadError)
    failure.add_note("in worker 1")
    again = pickle.loads(pickle.dumps(failure))
    assert type(again) is SystemReadError
    assert (again.errno, str(again), again.__notes__) == (errno.EIO, str(failure), ["in worker 1"])
