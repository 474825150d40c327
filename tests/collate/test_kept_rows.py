"""``cache="device"``: rows that stay on the device, here a CPU "device" by the same operations."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    OutputOptions,
    ParquetDataset,
    Shard,
    ShardOptions,
)
from parquet_loader.collate.device.windows import DeviceWindows
from tests.support.datasets import BY_NAME, Layout, write_layout
from tests.support.examples import grid

Values = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _needs_kernels(request: pytest.FixtureRequest) -> None:
    from parquet_loader.common import KERNELS

    if KERNELS is None:
        pytest.skip("without kernels, rows do not stay on a device")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """120 rows, and the names of their columns of fixed width."""
    path = str(tmp_path_factory.mktemp("everything"))
    write_layout(Layout(((20, 7), (10, 1), (), (3, 0, 16), (50, 13)), tuple(BY_NAME), seed=4), path)
    with BatchedDataLoader(path, 8) as loader:
        names = [name for name, value in next(iter(loader)).items() if isinstance(value, torch.Tensor)]
    assert len(names) > 20
    return path, names


def write(path: Path) -> str:
    """Write 3,000 rows in 3 files and 30 row groups: `id`, `small`, `wide` of 300 and `triple` of 3."""
    path.mkdir(exist_ok=True)
    for file in range(3):
        ids = np.arange(1000) + 1000 * file
        wide = np.repeat(ids[:, None], 300, axis=1).astype(np.float32)
        triple = np.repeat(ids[:, None], 3, axis=1).astype(np.int32)
        columns = {
            "id": ids,
            "small": (ids % 100).astype(np.int8),
            "wide": pa.FixedSizeListArray.from_arrays(wide.reshape(-1), 300),
            "triple": pa.FixedSizeListArray.from_arrays(triple.reshape(-1), 3),
        }
        pq.write_table(pa.table(columns), path / f"{file}.parquet", row_group_size=100, compression="NONE")
    return str(path)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("table"))


def kept(path: Any, batch_size: int = 64, **options: Any) -> BatchedDataLoader:
    return BatchedDataLoader(path, batch_size, **{"cache": "device", "device": "cpu", **options})


def values(batches: Any) -> Values:
    return [{name: (v.dtype, v.shape, v.numpy().tobytes()) for name, v in batch.items()} for batch in batches]


def is_read(loader: BatchedDataLoader) -> bool:
    """Whether the last epoch was read from files."""
    return loader.stats().row_groups > 0


@grid(
    "shuffle, isolation",
    [True, False],
    ["thread", "process"],
    everyday=lambda shuffle, isolation: isolation == "thread" or shuffle,
)
def test_later_epochs_read_nothing_and_are_those_of_the_cpu(
    everything: tuple[str, list[str]], shuffle: bool, isolation: Any
) -> None:
    path, columns = everything
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 1, "window_rows": 40, "columns": columns}
    with kept(path, 7, isolation=isolation, **options) as loader, BatchedDataLoader(path, 7, **options) as plain:
        for epoch in range(3):
            assert values(loader) == values(plain)
            figures = loader.stats().device
            assert figures is not None
            assert figures.kept_rows == 120
            assert is_read(loader) == (epoch == 0)
            assert loader.state_dict() == plain.state_dict()


def test_files_may_be_gone_after_the_first_epoch(table: str, tmp_path: Path) -> None:
    path = write(tmp_path / "data")
    with (
        kept(path, shuffle=True, window_rows=700) as loader,
        BatchedDataLoader(table, 64, shuffle=True, window_rows=700) as plain,
    ):
        assert values(loader) == values(plain)
        for file in Path(path).iterdir():
            file.unlink()
        for _ in range(2):
            assert values(loader) == values(plain)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"drop_last": True}, marks=pytest.mark.slow),
        {"filters": [("small", "<", 37)], "output_options": OutputOptions(row_numbers="number")},
        pytest.param({"columns": ["wide"]}, marks=pytest.mark.slow),
        pytest.param({"batch_size": 1000, "drop_last": True}, marks=pytest.mark.slow),
        {"shard": Shard(0, 1), "shard_options": ShardOptions(logical_shards=4), "batch_size": 32},
        {"num_threads": 1, "memory_limit": "8MiB", "window_rows": None},
    ],
    ids=lambda options: "-".join(options),
)
def test_every_batch_of_a_kept_epoch_can_be_resumed_at(table: str, options: dict[str, Any]) -> None:
    options = {"batch_size": 420, "shuffle": True, "window_rows": 1100, "seed": 5, **options}
    size = options.pop("batch_size")
    with kept(table, size, **options) as loader, BatchedDataLoader(table, size, **options) as plain:
        assert values(loader) == values(plain)
        every = values(plain)
        for number in range(0, len(every), max(1, len(every) // 8)):
            loader.seek(1, number)
            state = loader.state_dict()
            assert values(loader) == every[number:]
            assert not is_read(loader)
            plain.load_state_dict(state)
            assert plain.state_dict() == state


def test_a_state_of_a_kept_epoch_resumes_on_a_new_loader_and_the_reverse(table: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700}
    with (
        kept(table, **options) as first,
        kept(table, **options) as second,
        BatchedDataLoader(table, 64, **options) as plain,
    ):
        list(first)
        plain.set_epoch(1)
        every = values(plain)
        iterator = iter(first)
        for _ in range(20):
            next(iterator)
        second.load_state_dict(first.state_dict())
        assert values(second) == every[20:]
        assert is_read(second)
        first.load_state_dict({**second.state_dict(), "epoch": 1, "batch": 31})
        assert values(first) == every[31:]
        assert not is_read(first)


def test_an_epoch_that_was_left_early_is_completed_by_the_next(table: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700}
    with kept(table, **options) as loader, BatchedDataLoader(table, 64, **options) as plain:
        for number, _ in enumerate(loader):
            if number == 15:
                break
        loader.seek(0, 30)
        plain.seek(0, 30)
        assert values(loader) == values(plain)
        for reads in (True, False):
            assert values(loader) == values(plain)
            assert is_read(loader) == reads


def test_the_first_epoch_may_run_in_inference_mode(table: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700}
    with kept(table, **options) as loader, BatchedDataLoader(table, 64, **options) as plain:
        with torch.inference_mode():
            next(iter(loader))
        loader.reset()
        loader.seek(0, 0)
        weights = torch.ones(300, requires_grad=True)
        for _ in range(2):
            for batch, expected in zip(loader, plain, strict=True):
                assert torch.equal(batch["wide"], expected["wide"])
                (batch["wide"] * weights).sum().backward()
        assert not is_read(loader)


def test_ranks_read_until_they_have_the_rows_of_an_epoch(table: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 500, "seed": 2}
    part = Shard(1, 2)
    with kept(table, shard=part, **options) as loader, BatchedDataLoader(table, 64, shard=part, **options) as plain:
        reads = []
        for _ in range(9):
            assert values(loader) == values(plain)
            reads.append(is_read(loader))
        assert reads[0]
        assert not reads[-1]


def test_batches_can_be_kept_and_written_to(table: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700}
    with kept(table, **options) as loader, BatchedDataLoader(table, 64, **options) as plain:
        for _ in range(3):
            batches = list(loader)
            assert values(batches) == values(plain)
            for batch in batches:
                for column in batch.values():
                    column.fill_(1)


def test_row_groups_that_are_skipped_are_skipped_in_each_epoch(tmp_path: Path) -> None:
    path = write(tmp_path / "data")
    file = tmp_path / "data" / "1.parquet"
    data = bytearray(file.read_bytes())
    for group in (2, 3, 7):
        start = pq.read_metadata(file).row_group(group).column(0).dictionary_page_offset
        data[start : start + 8] = b"\xff" * 8
    file.write_bytes(data)
    options: dict[str, Any] = {"shuffle": True, "window_rows": 500, "on_error": "skip"}
    with kept(path, 130, **options) as loader, BatchedDataLoader(path, 130, **options) as plain:
        for _ in range(2):
            assert values(loader) == values(plain)
            assert len(loader.stats().skipped_row_groups) == 3
            figures = loader.stats().device
            assert figures is not None
            assert figures.kept_rows == 2700


def test_rows_that_do_not_fit_are_read_in_each_epoch_with_a_warning(table: str) -> None:
    output = OutputOptions(device_memory_limit="4MiB")
    options: dict[str, Any] = {"shuffle": True, "window_rows": 500}
    with kept(table, output_options=output, **options) as loader, BatchedDataLoader(table, 64, **options) as plain:
        with pytest.warns(
            RuntimeWarning, match="the rows do not stay on the device, and are read in each epoch: they take"
        ):
            assert values(loader) == values(plain)
        assert values(loader) == values(plain)  # without a warning, which would be an error
        figures = loader.stats().device
        assert figures is not None
        assert figures.kept_rows == 0
        assert figures.windows == 6
        assert figures.not_kept is not None
        assert "device_memory_limit is 4.0 MiB" in figures.not_kept
        assert is_read(loader)


def test_without_memory_for_all_rows_windows_are_permuted_on_the_device(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.empty

    def failing(*size: Any, **options: Any) -> torch.Tensor:
        if size[0] == 3000 * 1200:  # all rows of `wide`
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return empty(*size, **options)

    options: dict[str, Any] = {"shuffle": True, "window_rows": 500}
    with kept(table, **options) as loader, BatchedDataLoader(table, 64, **options) as plain:
        monkeypatch.setattr(torch, "empty", failing)
        with pytest.warns(RuntimeWarning, match="the device has no memory for them"):
            assert values(loader) == values(plain)
        assert values(loader) == values(plain)  # without a warning, which would be an error
        figures = loader.stats().device
        assert figures is not None
        assert figures.not_kept is not None
        assert not figures.reasons


def test_without_memory_for_a_window_its_batches_are_permuted_one_by_one(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, most = DeviceWindows._copy, 64

    def failing(self: DeviceWindows, source: torch.Tensor) -> torch.Tensor:
        if source.dtype == torch.int32 and len(source) > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return copy(self, source)

    options: dict[str, Any] = {"shuffle": True, "window_rows": 500}
    with kept(table, **options) as loader, BatchedDataLoader(table, 64, **options) as plain:
        list(loader)
        list(plain)
        monkeypatch.setattr(DeviceWindows, "_copy", failing)
        assert values(loader) == values(plain)
        figures = loader.stats().device
        assert figures is not None
        assert figures.windows == 0
        assert figures.reasons == {"out of device memory": 6}
        assert not is_read(loader)
        most = 0
        with pytest.raises(torch.cuda.OutOfMemoryError):
            list(loader)


def large_tensors() -> int:
    return sum(type(one) is torch.Tensor and one.numel() >= 3000 * 1200 for one in gc.get_objects())


def test_close_releases_the_rows(table: str) -> None:
    loader = kept(table, shuffle=True, window_rows=500)
    list(loader)
    next(iter(loader))
    assert large_tensors() == 1
    loader.close()
    gc.collect()
    assert large_tensors() == 0


def test_other_readers_of_the_loader_get_its_rows(table: str) -> None:
    from parquet_loader.collate.numpy_output import ArrayOutput

    with kept(table, shuffle=True, window_rows=700) as loader:
        list(loader)
        arrays = [{n: (v.shape, v.tobytes()) for n, v in batch.items()} for batch in loader._iterate(ArrayOutput(None))]
        loader.set_epoch(1)
        assert [{n: v[1:] for n, v in batch.items()} for batch in values(loader)] == arrays


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": None}, "cache='device': device=None delivers batches on the CPU; pass device='cuda'"),
        ({"transform": lambda columns, rng: columns}, "cache='device' with a transform"),
        ({"output_options": OutputOptions(format="numpy"), "device": None}, "has no device; use tensors"),
        ({"cache": "gpu"}, "cache='gpu'"),
    ],
)
def test_what_cannot_be_kept_is_refused(table: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigurationError, TypeError), match=re.escape(message)):
        kept(table, **options)


def test_rows_of_a_data_set_that_is_listed_already_are_kept_by_the_loader(table: str) -> None:
    where = re.escape("BatchedDataLoader(source, ..., cache='device')")
    with pytest.raises(TypeError, match=where):
        ParquetDataset(table, cache="device")  # type: ignore[arg-type]
    data = ParquetDataset(table)
    with pytest.raises(TypeError, match=re.escape("'device' to BatchedDataLoader(data, ...)")):
        data.batches(64, cache="device")  # type: ignore[call-arg]
    with kept(data, 64) as loader:
        list(loader)
        list(loader)
        assert not is_read(loader)


def test_columns_that_cannot_be_kept_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "bc"]}), tmp_path / "0.parquet")
    with kept(str(tmp_path), 2) as loader, pytest.raises(ConfigurationError, match="'text' cannot stay on the device"):
        next(iter(loader))
    with kept(str(tmp_path), 2, columns=["id"]) as loader:
        assert next(iter(loader))["id"].tolist() == [1, 2]


@pytest.mark.cuda
def test_on_a_gpu_kept_epochs_are_those_of_the_cpu_and_close_frees_their_memory(table: str) -> None:
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    options: dict[str, Any] = {"shuffle": True, "window_rows": 500}
    with (
        kept(table, device="cuda", **options) as loader,
        BatchedDataLoader(table, 64, device="cpu", **options) as plain,
    ):
        copies: list[dict[str, torch.Tensor]] = []
        for _ in range(3):
            copies.clear()
            for batch in loader:
                torch.cuda._sleep(100_000)  # the next windows are permuted while copies of this batch wait
                copies.append({name: value.clone() for name, value in batch.items()})
                del batch
            assert values({n: v.cpu() for n, v in batch.items()} for batch in copies) == values(plain)
        assert not is_read(loader)
        copies.clear()
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
