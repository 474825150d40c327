"""Batches of numpy arrays: the same values as tensors, with no torch anywhere; and arrays handed on by DLPack."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parquet_loader import BatchedDataLoader, ConfigurationError, OutputOptions, Ragged
from tests.support import oracle
from tests.support.datasets import Layout, write_layout, write_numbered
from tests.support.examples import each_kind

NUMPY = OutputOptions(format="numpy")
LAYOUT = Layout(((20, 7), (10, 1), (), (3, 0, 16)), ("float_null", "flag", "half", "uint16", "text", "wide"), seed=4)


def leaves(value: Any) -> list[Any]:
    return [*leaves(value.values), value.offsets] if isinstance(value, Ragged) else [value]


@each_kind
def test_arrays_hold_what_tensors_hold(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    write_layout(Layout(((20, 7), (10,)), kinds, seed=2), str(tmp_path))
    with (
        BatchedDataLoader(str(tmp_path), 8, shuffle=True) as tensors,
        BatchedDataLoader(str(tmp_path), 8, shuffle=True, output_options=NUMPY) as arrays,
    ):
        for a, b in zip(tensors, arrays, strict=True):
            assert list(a) == list(b)
            assert {n: oracle.column_of(v) for n, v in a.items()} == {n: oracle.column_of(v) for n, v in b.items()}
            for x, y in zip(
                (x for v in a.values() for x in leaves(v)), (y for v in b.values() for y in leaves(v)), strict=True
            ):
                assert isinstance(y, np.ndarray)
                assert x.numpy().dtype == y.dtype
                assert x.shape == y.shape
                assert y.flags.c_contiguous
                assert y.flags.writeable
        assert arrays.state_dict() == tensors.state_dict()


@pytest.mark.parametrize("isolation", [pytest.param("thread", marks=pytest.mark.slow), "process"])
def test_arrays_need_no_torch(tmp_path: Path, isolation: str) -> None:
    write_layout(LAYOUT, str(tmp_path))
    script = """
        import json, sys
        sys.modules["torch"] = None  # importing it fails
        import numpy as np
        import parquet_loader as pl
        seen = []
        for transform in (None, lambda columns, rng: {**columns, "twice": columns["id"] * 2}):
            with pl.BatchedDataLoader(
                sys.argv[1], 8, shuffle=True, seed=3, isolation=sys.argv[2], transform=transform,
                output_options=pl.OutputOptions(format="numpy"),
            ) as loader:
                seen.append([batch["id"].tolist() for batch in loader])
                loader.load_state_dict(loader.state_dict())
                next(iter(loader))
        try:
            pl.BatchedDataLoader(sys.argv[1], 8)
        except pl.ConfigurationError as error:
            seen.append(str(error))
        assert not [name for name in sys.modules if name.split(".")[0] == "torch" and sys.modules[name]]
        print(json.dumps(seen))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), isolation]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    plain, transformed, error = json.loads(done.stdout)
    with BatchedDataLoader(str(tmp_path), 8, shuffle=True, seed=3) as loader:
        assert plain == transformed == [batch["id"].tolist() for batch in loader]
    assert "need torch: pip install" in error
    assert "OutputOptions(format='numpy')" in error


def test_arrays_that_the_caller_keeps_never_change(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((40,) * 30,), ("wide",))
    with BatchedDataLoader(str(tmp_path), 16, shuffle=True, window_rows=80, output_options=NUMPY) as loader:
        kept = [(batch, {name: array.copy() for name, array in batch.items()}) for batch in loader]
    for batch, copy in kept:
        for name, array in batch.items():
            np.testing.assert_array_equal(array, copy[name])


def test_arrays_are_handed_on_without_a_copy(tmp_path: Path) -> None:
    write_layout(LAYOUT, str(tmp_path))
    with BatchedDataLoader(str(tmp_path), 8, columns=["id", "wide"], output_options=NUMPY) as loader:
        for batch in loader:
            for array in batch.values():
                there = torch.utils.dlpack.from_dlpack(array)
                assert there.data_ptr() == array.__array_interface__["data"][0]
                np.testing.assert_array_equal(there.numpy(), array)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"output_options": NUMPY, "device": "cuda"}, "arrays stay on the CPU"),
        ({"output_options": "numpy"}, "expected an OutputOptions"),
    ],
)
def test_what_arrays_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    write_numbered(str(tmp_path), ((30,),))
    with pytest.raises(ConfigurationError, match=reason):
        BatchedDataLoader(str(tmp_path), 8, **options)
    with pytest.raises(ConfigurationError, match="expected 'torch', 'numpy', "):
        OutputOptions(format="tensors")  # type: ignore[arg-type]
