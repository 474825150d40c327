"""Batches of JAX arrays: what 32 bits hold, memory, shardings, and several processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    OutputOptions,
    RaggedList,
    Scalar,
    Schema,
    Shard,
    ShardOptions,
    Tensor,
    WriteOptions,
    write_dataset,
)
from parquet_loader.schema import Field
from tests.support.datasets import write_numbered
from tests.support.ports import unused_port

jax = pytest.importorskip("jax", reason="jax is not installed: pip install '.[frameworks]'")
jax_transfers = pytest.importorskip("parquet_loader.collate.jax_transfers")
pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]
JAX = OutputOptions(format="jax")
put_by_jaxlib = jax_transfers.batched_device_put


def run(script: str, *arguments: str, devices: int = 1) -> subprocess.Popen[str]:
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def result_of(process: subprocess.Popen[str]) -> Any:
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return json.loads(out.splitlines()[-1])  # gloo prints lines of its own


def test_integers_of_64_bits_come_in_32_if_they_fit(tmp_path: Path) -> None:
    columns = {
        "a": np.array([-(2**31), 2**31 - 1]),
        "b": np.array([0, 2**32 - 1], np.uint64),
        "c": np.array([[1, 2], [3, 4]]),
        "d": [[1, 2, 3], []],
        "e": ["text", ""],
    }
    write_dataset(columns, str(tmp_path))
    with BatchedDataLoader(str(tmp_path), 2, output_options=JAX) as loader:
        batch = next(iter(loader))
    assert {name: str(batch[name].dtype) for name in "abc"} == {"a": "int32", "b": "uint32", "c": "int32"}
    assert batch["a"].tolist() == [-(2**31), 2**31 - 1]
    assert batch["b"].tolist() == [0, 2**32 - 1]
    assert batch["d"].values.tolist() == [1, 2, 3]
    assert batch["d"].offsets.tolist() == [0, 3, 3]
    assert np.asarray(batch["d"].to_padded(length=2)).tolist() == [[1, 2], [0, 0]]
    assert batch["e"].to_list() == ["text", ""]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_an_integer_that_32_bits_do_not_hold_is_an_error(tmp_path: Path, value: int) -> None:
    write_dataset({"x": np.array([1, 2, value])}, str(tmp_path))
    with BatchedDataLoader(str(tmp_path), 1, output_options=JAX) as loader:
        seen = []
        with pytest.raises(DataError, match=f"column 'x' holds {value}, which int32 cannot hold"):
            seen += [batch["x"].tolist() for batch in loader]
    with jax.enable_x64(True), BatchedDataLoader(str(tmp_path), 3, output_options=JAX) as loader:
        assert next(iter(loader))["x"].tolist() == [1, 2, value]


def test_floats_of_64_bits_are_an_error(tmp_path: Path) -> None:
    write_dataset({"x": np.array([0.1])}, str(tmp_path))
    with (
        BatchedDataLoader(str(tmp_path), 1, output_options=JAX) as loader,
        pytest.raises(ConfigurationError, match=r"'x' is float64, .*schema=Schema\(\{'x': Scalar\('float32'\)\}"),
    ):
        next(iter(loader))
    with jax.enable_x64(True), BatchedDataLoader(str(tmp_path), 1, output_options=JAX) as loader:
        assert next(iter(loader))["x"].tolist() == [0.1]


@pytest.mark.parametrize(
    ("column", "code", "field"),
    [
        (
            pa.array([[0.5, 1.5], [2.5, 3.5]], pa.list_(pa.float64(), 2)),
            "Tensor('float32', (2,))",
            Tensor("float32", (2,)),
        ),
        (pa.array([[0.5], [1.5, 2.5]]), "RaggedList(Scalar('float32'))", RaggedList(Scalar("float32"))),
        (
            pa.array([[[0.5], []], [[1.5, 2.5]]]),
            "RaggedList(RaggedList(Scalar('float32')))",
            RaggedList(RaggedList(Scalar("float32"))),
        ),
    ],
)
def test_the_field_in_an_error_about_64_bits_reads_the_column(
    tmp_path: Path, column: pa.Array, code: str, field: Field
) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    with (
        BatchedDataLoader(str(tmp_path), 2, output_options=JAX) as loader,
        pytest.raises(ConfigurationError, match=re.escape(f"schema=Schema({{'x': {code}}}, extra='infer')")),
    ):
        next(iter(loader))
    with BatchedDataLoader(str(tmp_path), 2, schema=Schema({"x": field}), output_options=JAX) as loader:
        assert len(next(iter(loader))["x"]) == 2


def test_a_donated_batch_does_not_change_others(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((64,) * 4,), ("wide",))
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    with BatchedDataLoader(str(tmp_path), 16, shuffle=True, window_rows=64, output_options=JAX) as loader:
        expected = [np.array(batch["wide"]) for batch in loader]
        loader.seek(0, 0)
        kept = []
        for number, batch in enumerate(loader):
            if number % 2:
                double(batch["wide"]).block_until_ready()
            else:
                kept.append((number, batch["wide"]))
    for number, wide in kept:
        np.testing.assert_array_equal(wide, expected[number])


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Columns that are cut from windows in compiled calls, next to others."""
    path = str(tmp_path_factory.mktemp("narrow"))
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 2100, np.uint64).astype(np.uint32)
    columns = {
        "id": np.arange(2100),
        "bits": bits.view(np.float32),  # among them NaNs of any kind, subnormal numbers and -0.0
        "half": bits.astype(np.uint16).view(np.float16),
        "ragged": [[row] * (row % 3) for row in range(2100)],
        "is": bits % 3 == 0,
        "small": bits.astype(np.uint8),
        "three": bits.astype(np.int16).reshape(-1, 1) + np.arange(3, dtype=np.int16),
        "unsigned": bits.astype(np.uint64),
        "pair": np.stack([np.arange(2100), -np.arange(2100)], axis=1),
        "wide": np.repeat(bits[:, None], 2000, axis=1),
        **{f"c{number}": bits.view(np.int32) + number for number in range(8)},
    }
    write_dataset(columns, path, options=WriteOptions(row_group_bytes="4MiB"))
    return path


@pytest.fixture(params=[True, False], ids=["transfers", "cuts"])
def transfers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether jaxlib has the function that puts arrays without the work of `jax.device_put`."""
    if not request.param:
        monkeypatch.setattr(jax_transfers, "batched_device_put", None)
    return bool(request.param)


def counted_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, function: Any) -> list[Any]:
    """Replace a function of a module, and return the list to which the arguments of its calls are added."""
    calls: list[Any] = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    monkeypatch.setattr(module, name, counted)
    return calls


def same_bits(found: Any, expected: Any, *, has_64_bits: bool = False) -> bool:
    assert isinstance(found, jax.Array)
    narrower = {} if has_64_bits else {"int64": np.int32, "uint64": np.uint32}
    expected = expected.astype(narrower.get(expected.dtype.name, expected.dtype))
    return bool(found.dtype == expected.dtype and found.shape == expected.shape) and (
        np.asarray(found).tobytes() == expected.tobytes()
    )


@pytest.mark.usefixtures("transfers")
@pytest.mark.parametrize("has_64_bits", [False, True])
@pytest.mark.parametrize(("batch_size", "window_rows"), [(16, 16 * 43), (13, 13 * 50), (32, 2100)])
def test_batches_cut_from_windows_are_those_of_numpy_and_stay_so(
    narrow: str, batch_size: int, window_rows: int, *, has_64_bits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted_calls(monkeypatch, jax, "device_put", jax.device_put)
    columns = ["id", "bits", "half", "is", "small", "three", "unsigned", "pair", *(f"c{number}" for number in range(8))]
    options: dict[str, Any] = {"shuffle": True, "window_rows": window_rows, "columns": columns}
    numpy_options = OutputOptions(format="numpy")
    with (
        jax.enable_x64(has_64_bits),
        BatchedDataLoader(narrow, batch_size, output_options=numpy_options, **options) as arrays,
        BatchedDataLoader(narrow, batch_size, output_options=JAX, **options) as loader,
    ):
        kept = [(expected, batch) for _ in range(2) for expected, batch in zip(arrays, loader, strict=True)]
    assert len(kept) == 2 * -(-2100 // batch_size)
    if batch_size != 13:  # the second half of whose windows is not aligned
        assert len(calls) < len(kept) / 3
    for expected, batch in kept:
        assert list(batch) == list(expected)
        for name, column in expected.items():
            assert same_bits(batch[name], column, has_64_bits=has_64_bits), name


@pytest.mark.usefixtures("transfers")
def test_columns_that_are_not_cut_stand_next_to_those_that_are(narrow: str) -> None:
    with (
        BatchedDataLoader(narrow, 16, shuffle=True, output_options=OutputOptions(format="numpy")) as arrays,
        BatchedDataLoader(narrow, 16, shuffle=True, output_options=JAX) as loader,
    ):
        for expected, batch in zip(arrays, loader, strict=True):
            assert list(batch) == list(expected)
            assert same_bits(batch["ragged"].values, expected["ragged"].values)
            assert all(same_bits(batch[name], expected[name]) for name in expected if name != "ragged")


@pytest.mark.usefixtures("transfers")
@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.transfer_guard("disallow"),
        lambda: jax.debug_nans(True),
        lambda: jax.debug_infs(True),
        lambda: jax.disable_jit(),
        lambda: jax.checking_leaks(),
        lambda: jax.no_tracing(),
    ],
)
@pytest.mark.parametrize("after", [0, 20])
def test_settings_of_jax_that_check_values_or_compilation_change_no_batch(
    narrow: str, setting: Any, after: int
) -> None:
    found = []
    with (
        BatchedDataLoader(narrow, 16, output_options=OutputOptions(format="numpy")) as arrays,
        BatchedDataLoader(narrow, 16, output_options=JAX) as loader,
    ):
        batches = iter(loader)
        found += [next(batches) for _ in range(after)]
        with setting():
            found += batches
        for expected, batch in zip(arrays, found, strict=True):
            assert same_bits(batch["bits"], expected["bits"])
            assert same_bits(batch["id"], expected["id"])


@pytest.mark.usefixtures("transfers")
@pytest.mark.parametrize("before", [0, 20])
def test_a_batch_taken_while_jax_traces_a_function_changes_no_later_batch(narrow: str, before: int) -> None:
    with BatchedDataLoader(narrow, 16, output_options=JAX) as loader:
        batches = iter(loader)
        for _ in range(before):
            next(batches)
        assert jax.eval_shape(lambda: next(batches)["id"]).shape == (16,)
        assert jax.jit(lambda: next(batches)["id"])().tolist() == list(range(16 * before + 16, 16 * before + 32))
        assert next(batches)["id"].tolist() == list(range(16 * before + 32, 16 * before + 48))


@pytest.mark.usefixtures("transfers")
def test_64_bits_may_be_switched_within_a_window(narrow: str) -> None:
    with BatchedDataLoader(narrow, 16, output_options=JAX) as loader:
        batches = iter(loader)
        assert [str(next(batches)["id"].dtype) for _ in range(3)] == ["int32"] * 3
        with jax.enable_x64(True):
            assert [str(next(batches)["id"].dtype) for _ in range(3)] == ["int64"] * 3
        assert next(batches)["id"].tolist() == list(range(96, 112))


@pytest.mark.usefixtures("transfers")
def test_an_integer_that_does_not_fit_is_an_error_of_its_batch_within_a_window(tmp_path: Path) -> None:
    numbers = np.arange(640)
    wrong = numbers + np.where(numbers == 500, 2**31, 0)
    write_dataset({"x": wrong, **dict.fromkeys("abcde", numbers)}, str(tmp_path))
    seen = []
    with (
        BatchedDataLoader(str(tmp_path), 16, output_options=JAX) as loader,
        pytest.raises(DataError, match="column 'x' holds 2147484148, which int32 cannot hold"),
    ):
        seen += [(batch["x"].tolist(), batch["a"].tolist()) for batch in loader]
    assert not seen  # of a list that was not finished
    with BatchedDataLoader(str(tmp_path), 16, output_options=JAX) as loader:
        batches = iter(loader)
        for number in range(500 // 16):
            batch = next(batches)
            assert batch["x"].tolist() == batch["a"].tolist() == list(range(16 * number, 16 * number + 16))
        with pytest.raises(DataError, match="column 'x'"):
            next(batches)


def test_batches_are_on_the_default_device_and_free_to_leave_it(narrow: str) -> None:
    script = """
        import sys, jax, numpy as np
        from parquet_loader import BatchedDataLoader, OutputOptions
        from parquet_loader.collate import jax_transfers
        one, two = jax.devices()
        columns = ["id", "bits", *(f"c{number}" for number in range(8))]
        options = OutputOptions(format="jax")

        def check():
            with BatchedDataLoader(sys.argv[1], 16, columns=columns, output_options=options, window_rows=700) as loader:
                for number, batch in enumerate(loader):
                    jax.config.update("jax_default_device", two if number % 50 > 9 else one)  # also within a window
                    assert not batch["c0"].committed
                    assert batch["id"].tolist() == list(range(16 * number, min(16 * number + 16, 2100)))
                    if number > 11 and number % 50 > 11:
                        assert batch["c0"].devices() == {two}, number

        check()
        jax.config.update("jax_default_device", None)
        jax_transfers.batched_device_put = None  # then batches are cut from windows
        check()
        print("true")
    """
    assert result_of(run(script, narrow, devices=2))


def test_batches_stay_on_one_device_while_a_mesh_is_set(narrow: str) -> None:
    script = """
        import sys, jax
        from parquet_loader import BatchedDataLoader, OutputOptions
        from parquet_loader.collate import jax_transfers
        columns = ["id", "bits", "wide", *(f"c{number}" for number in range(8))]
        mesh = jax.make_mesh((2,), ("data",))
        options = OutputOptions(format="jax")

        def check():
            with BatchedDataLoader(sys.argv[1], 16, columns=columns, output_options=options, window_rows=700) as loader:
                batches = iter(loader)
                found = [next(batches) for _ in range(5)]  # cuts before the mesh
                with jax.set_mesh(mesh):
                    found += [next(batches) for _ in range(70)]  # of two windows
                found += batches
            for number, batch in enumerate(found):
                assert batch["id"].tolist() == list(range(16 * number, min(16 * number + 16, 2100)))
                for column in batch.values():
                    assert not column.committed and column.devices() == {jax.devices()[0]}, number

        check()
        jax_transfers.batched_device_put = None  # then batches are cut from windows
        check()
        print("true")
    """
    assert result_of(run(script, narrow, devices=2))


@pytest.mark.parametrize("with_transform", [False, True])
def test_only_the_first_batch_is_put_by_device_put(
    narrow: str, monkeypatch: pytest.MonkeyPatch, *, with_transform: bool
) -> None:
    calls = counted_calls(monkeypatch, jax, "device_put", jax.device_put)
    transform = (lambda columns, _rng: columns) if with_transform else None
    options: dict[str, Any] = {"columns": ["wide", "bits"], "drop_last": True, "transform": transform}
    with BatchedDataLoader(narrow, 16, output_options=JAX, **options) as loader:
        for _ in range(2):
            for batch in loader:
                assert not batch["wide"].committed
                if not with_transform:
                    assert not batch["wide"].unsafe_buffer_pointer() % 64
        assert len(calls) == 1


def test_arrays_share_the_memory_of_the_window(narrow: str) -> None:
    with BatchedDataLoader(narrow, 16, columns=["bits", "wide"], window_rows=320, output_options=JAX) as loader:
        batches = list(loader)[:10]
    for name, step in (("bits", 16 * 4), ("wide", 16 * 8000)):
        addresses = [batch[name].unsafe_buffer_pointer() for batch in batches]
        assert np.diff(addresses).tolist() == [step] * 9


def test_arrays_of_a_transform_that_change_shape_and_dtype(narrow: str) -> None:
    def transform(batch: dict[str, Any], _rng: Any) -> dict[str, Any]:
        number = int(batch["c0"].sum()) % 3
        repeated = np.repeat(batch["c0"][:, None], 1 + number, axis=1)
        return {"x": repeated.astype(["i4", "f4", "u4"][number]), "y": list(repeated)}

    options: dict[str, Any] = {"columns": ["c0"], "transform": transform}
    with (
        BatchedDataLoader(narrow, 16, output_options=OutputOptions(format="numpy"), **options) as arrays,
        BatchedDataLoader(narrow, 16, output_options=JAX, **options) as loader,
    ):
        for expected, batch in zip(arrays, loader, strict=True):
            assert same_bits(batch["x"], expected["x"])
            assert all(map(same_bits, batch["y"], expected["y"]))


def refused(*_: Any) -> Any:
    raise TypeError("other arguments")


@pytest.mark.parametrize(
    "changed",
    [
        refused,
        lambda aval, sharding, arrays, devices, _: put_by_jaxlib(aval, sharding, arrays, devices, True),
        lambda aval, sharding, arrays, devices, _: put_by_jaxlib(aval, sharding, arrays, devices, False, True),
        lambda _aval, _sharding, arrays, _devices, _: arrays[0],
    ],
    ids=["raises", "commits", "copies", "returns numpy arrays"],
)
def test_another_function_in_jaxlib_is_not_used(narrow: str, changed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted_calls(monkeypatch, jax_transfers, "batched_device_put", changed)
    with (
        BatchedDataLoader(narrow, 16, output_options=OutputOptions(format="numpy")) as arrays,
        BatchedDataLoader(narrow, 16, output_options=JAX) as loader,
    ):
        for expected, batch in zip(arrays, loader, strict=True):
            assert all(same_bits(batch[name], expected[name]) for name in expected if name != "ragged")
            assert not batch["wide"].committed
    assert 1 <= len(calls) <= 2  # JAX copies the first column in any case, because its rows are not aligned


def test_on_an_accelerator_the_next_copy_begins_before_a_batch_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numbered(str(tmp_path), ((40,),))
    begun: list[Any] = []
    put = jax.device_put
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")

    def counted(arrays: Any) -> Any:
        begun.append(arrays)
        return put(arrays)

    monkeypatch.setattr(jax, "device_put", counted)
    with BatchedDataLoader(str(tmp_path), 8, output_options=JAX) as loader:
        for number, batch in enumerate(loader, 1):
            assert batch["id"].tolist() == list(range(8 * number - 8, 8 * number))
            assert len(begun) == min(number + 1, 5)
            assert loader.state_dict()["batch"] == number % 5


def sharding(*axes: str, spec: tuple[str | None, ...] = ("data",), shape: tuple[int, ...] = (1,)) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(shape), axes or ("data",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def test_shardings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((40,),), ("ragged",))
    path = str(tmp_path)

    def options(given: Any) -> OutputOptions:
        return OutputOptions(format="jax", sharding=given)

    with pytest.raises(ConfigurationError, match="only format='jax' has shardings"):
        OutputOptions(sharding=sharding())
    with pytest.raises(ConfigurationError, match=r"expected a jax\.sharding\.Sharding"):
        BatchedDataLoader(path, 8, output_options=options("data"), drop_last=True)
    with pytest.raises(ConfigurationError, match="pass drop_last=True"):
        BatchedDataLoader(path, 8, output_options=options(sharding()))
    two = sharding("data", "model", spec=("data", "model"), shape=(1, 1))
    with pytest.raises(ConfigurationError, match="divides the first axis only"):
        BatchedDataLoader(path, 8, output_options=options(two), drop_last=True)
    with pytest.raises(ConfigurationError, match="leave shard out"):
        BatchedDataLoader(path, 8, output_options=options(sharding()), drop_last=True, shard=Shard(0, 2))
    with pytest.raises(ConfigurationError, match="arrays go to JAX's default device"):
        BatchedDataLoader(path, 8, output_options=JAX, device="cuda")
    with (
        BatchedDataLoader(path, 8, output_options=options(sharding()), drop_last=True) as loader,
        pytest.raises(ConfigurationError, match="column 'ragged' has rows of different lengths"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("blocks", "shards"),
    [
        ({0: {(0, 2)}, 1: {(2, 4)}}, [(0, 2), (1, 2)]),
        ({0: {(2, 4)}, 1: {(0, 2)}}, [(1, 2), (0, 2)]),
        ({0: {(0, 1), (2, 3)}, 1: {(1, 2), (3, 4)}}, [(0, 2), (1, 2)]),
        ({0: {(0, 4)}, 1: {(0, 4)}}, [(0, 1), (0, 1)]),
        ({0: {(0, 2)}, 1: {(0, 2)}, 2: {(2, 4)}, 3: {(2, 4)}}, [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ({0: {(0, 2)}, 1: {(0, 2), (2, 4)}}, None),
        ({0: {(0, 1)}, 1: {(1, 4)}}, None),
        ({1: {(0, 1)}}, None),
    ],
)
def test_processes_with_the_same_rows_share_a_shard(
    blocks: dict[int, set[tuple[int, int]]], shards: list[tuple[int, int]] | None
) -> None:
    from parquet_loader.collate.jax_output import shard_of

    if shards is None:
        with pytest.raises(ConfigurationError, match=r"OutputOptions\(sharding=\.\.\.\): process"):
            shard_of(blocks, 0)
        return
    assert [shard_of(blocks, process) for process in blocks] == [Shard(*shard) for shard in shards]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("data"))
    write_numbered(path, ((30, 11), (25,), (), (38,)), ("wide",))
    return path


def test_devices_of_one_process_divide_a_batch(data: str) -> None:
    script = """
        import json, sys, jax, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from parquet_loader import BatchedDataLoader, ConfigurationError, OutputOptions
        mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
        options = OutputOptions(format="jax", sharding=NamedSharding(mesh, P("data")))
        with BatchedDataLoader(sys.argv[1], 8, shuffle=True, drop_last=True, output_options=options) as loader:
            seen = []
            for batch in loader:
                parts = {str(s.index): np.asarray(s.data) for s in batch["id"].addressable_shards}
                assert len(parts) == 2 and all(len(p) == 4 for p in parts.values())
                assert batch["wide"].sharding == options.sharding
                seen.append(batch["id"].tolist())
        try:
            BatchedDataLoader(sys.argv[1], 7, drop_last=True, output_options=options)
        except ConfigurationError as error:
            assert "choose a multiple of 2" in str(error)
            print(json.dumps(seen))
    """
    seen = result_of(run(script, data, devices=4))
    with BatchedDataLoader(data, 8, shuffle=True, drop_last=True) as loader:
        assert seen == [batch["id"].tolist() for batch in loader]


ON_PROCESSES = """
    import json, sys, jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from parquet_loader import BatchedDataLoader, OutputOptions, ShardOptions
    path, port, process, processes, batch_size, state, replicas = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(process))
    devices = np.array(jax.devices())
    if int(replicas) > 1:
        mesh = Mesh(devices.reshape(-1, int(replicas)), ("data", "model"))
    else:
        mesh = Mesh(devices, ("data",))
    options = OutputOptions(format="jax", sharding=NamedSharding(mesh, P("data")))
    total = jax.jit(lambda x: x.sum())
    with BatchedDataLoader(
        path, int(batch_size), shuffle=True, seed=3, drop_last=True, output_options=options,
        shard_options=ShardOptions(logical_shards=4),
    ) as loader:
        if state != "null":
            loader.load_state_dict(json.loads(state))
        steps, states = [], []
        for batch in loader:
            local = {s.index[0].start or 0: np.asarray(s.data).tolist() for s in batch["id"].addressable_shards}
            rows = [row for start in sorted(local) for row in local[start]]
            steps.append([rows, int(total(batch["id"])), batch["id"].shape[0]])
            states.append(loader.state_dict())
        shard = loader.shard
    print(json.dumps([steps, states, [shard.rank, shard.world_size]]))
    jax.distributed.shutdown()
"""


def on_processes(
    data: str, processes: int, batch_size: int, *, devices: int = 1, state: Any = None, replicas: int = 1
) -> list[Any]:
    port = str(unused_port())
    arguments = [str(processes), str(batch_size), json.dumps(state), str(replicas)]
    started = [run(ON_PROCESSES, data, port, str(n), *arguments, devices=devices) for n in range(processes)]
    try:
        return [result_of(process) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_two_processes_get_each_row_once_and_one_resumes(data: str) -> None:
    results = on_processes(data, 2, 4, devices=2)
    assert [shard for *_, shard in results] == [[0, 2], [1, 2]]
    assert [len(steps) for steps, *_ in results] == [13, 13]  # 104 rows
    rows = [row for steps, *_ in results for part, *_ in steps for row in part]
    assert sorted(rows) == list(range(104))
    for one, other in zip(results[0][0], results[1][0], strict=True):
        assert one[1] == other[1] == sum(one[0] + other[0])
        assert one[2] == other[2] == 8
    assert results[0][1] == results[1][1]
    (resumed,) = on_processes(data, 1, 8, state=results[0][1][4])
    both = [sorted(one[0] + other[0]) for one, other in zip(results[0][0], results[1][0], strict=True)]
    assert [sorted(part) for part, *_ in resumed[0]] == both[5:]


@pytest.mark.slow  # the test before resumes on one process
def test_four_processes_resume_where_two_stopped(data: str) -> None:
    sharded: dict[str, Any] = {"drop_last": True, "shard_options": ShardOptions(logical_shards=4)}
    with BatchedDataLoader(data, 8, shuffle=True, seed=3, **sharded) as loader:
        whole = [batch["id"].tolist() for batch in loader]
    two = on_processes(data, 2, 4)
    four = on_processes(data, 4, 2, state=two[1][1][6])
    assert [shard for *_, shard in four] == [[rank, 4] for rank in range(4)]
    assert {len(steps) for steps, *_ in four} == {6}
    for number, expected in enumerate(whole[7:]):
        assert sorted(row for steps, *_ in four for row in steps[number][0]) == sorted(expected)


def test_processes_that_hold_the_same_rows_read_the_same_rows(data: str) -> None:
    results = on_processes(data, 2, 8, replicas=2)
    assert [shard for *_, shard in results] == [[0, 1], [0, 1]]
    assert [part for part, *_ in results[0][0]] == [part for part, *_ in results[1][0]]
    assert sorted(row for part, *_ in results[0][0] for row in part) == list(range(104))
