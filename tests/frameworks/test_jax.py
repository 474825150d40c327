"""Batches of JAX arrays: what 32 bits hold, memory, shardings, and several processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader import BatchedDataLoader, ConfigurationError, DataError, OutputOptions, Shard, write_dataset
from tests.support.datasets import write_numbered

jax = pytest.importorskip("jax", reason="jax is not installed: pip install '.[frameworks]'")
pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]
JAX = OutputOptions(format="jax")


def run(script: str, *arguments: str, devices: int = 1) -> subprocess.Popen[str]:
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


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
    port = str(free_port())
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


def test_four_processes_resume_where_two_stopped(data: str) -> None:
    whole = on_processes(data, 1, 8)[0][0]
    two = on_processes(data, 2, 4)
    four = on_processes(data, 4, 2, state=two[1][1][6])
    assert [shard for *_, shard in four] == [[rank, 4] for rank in range(4)]
    assert {len(steps) for steps, *_ in four} == {6}
    for number, (expected, *_) in enumerate(whole[7:]):
        assert sorted(row for steps, *_ in four for row in steps[number][0]) == sorted(expected)


def test_processes_that_hold_the_same_rows_read_the_same_rows(data: str) -> None:
    results = on_processes(data, 2, 8, replicas=2)
    assert [shard for *_, shard in results] == [[0, 1], [0, 1]]
    assert [part for part, *_ in results[0][0]] == [part for part, *_ in results[1][0]]
    assert sorted(row for part, *_ in results[0][0] for row in part) == list(range(104))
