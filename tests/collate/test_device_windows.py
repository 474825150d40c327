"""Windows that a device permutes: on a CPU "device" by the same operations, and where there is one on a GPU."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    MemoryLimitError,
    OutputOptions,
    Ragged,
    Shard,
    ShardOptions,
)
from parquet_loader.collate.device.cuda import Upload, UploadedBatch
from parquet_loader.collate.device.pinned_memory import PinnedMemory
from parquet_loader.collate.device.windows import DeviceWindows, most_device_bytes, sorted_order
from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.common import KERNELS, permutation, random_words
from parquet_loader.common import Stream as RandomStream
from parquet_loader.common.permutations import sorted_words
from parquet_loader.window import Allocation
from tests.support.datasets import BY_NAME, Layout, write_layout
from tests.support.examples import grid
from tests.support.outputs import Leaves, leaves

ON_DEVICE = OutputOptions(shuffle_on_device=True)
# Columns of the table below: the device sorts the order of windows if all columns have rows of one width.
FIXED = ["id", "small", "wide", "triple"]
VARYING = ("text", "blob", "ragged", "map")  # in the names of kinds whose rows differ in length
FIXED_KINDS = [name for name in BY_NAME if not any(part in name for part in VARYING)] + ["fixed_blob", "wide_blob"]
ROW_GROUPS = ((20, 7), (10, 1), (), (3, 0, 16), (50, 13))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    """120 rows with a column of each type."""
    path = str(tmp_path_factory.mktemp("everything"))
    write_layout(Layout(ROW_GROUPS, tuple(BY_NAME), seed=4), path)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """3,000 rows in 30 row groups: numbers, wide rows, rows of 12 bytes, texts and lists; all follow from `id`."""
    path = tmp_path_factory.mktemp("table")
    for file in range(3):
        ids = np.arange(1000) + 1000 * file
        wide = np.repeat(ids[:, None], 300, axis=1).astype(np.float32)
        triple = np.repeat(ids[:, None], 3, axis=1).astype(np.int32)
        columns = {
            "id": ids,
            "small": (ids % 100).astype(np.int8),
            "wide": pa.FixedSizeListArray.from_arrays(wide.reshape(-1), 300),
            "triple": pa.FixedSizeListArray.from_arrays(triple.reshape(-1), 3),
            "text": [str(i) for i in ids],
            "word": [f"word {i % 7}" for i in ids],  # the same bytes for many rows of a window
            "list": [[i] * (i % 4) for i in ids.tolist()],
        }
        pq.write_table(pa.table(columns), path / f"{file}.parquet", row_group_size=100, compression="NONE")
    return str(path)


def on_device(path: str, batch_size: int, **options: Any) -> BatchedDataLoader:
    return BatchedDataLoader(path, batch_size, **{"device": "cpu", "output_options": ON_DEVICE, **options})


def host_leaves(value: Any) -> Leaves:
    """Return the arrays of a tensor or `Ragged`, copied from a GPU, or of an array."""
    return leaves(value.to("cpu") if isinstance(value, Ragged | torch.Tensor) else value)


def assert_equal(batches: Any, expected: Any) -> int:
    """Assert that batches have the same columns, dtypes, shapes and bytes; return their number."""
    count = 0
    for batch, other in zip(batches, expected, strict=True):
        assert type(batch) is dict
        assert list(batch) == list(other)
        for name in batch:
            for mine, its in zip(host_leaves(batch[name]), host_leaves(other[name]), strict=True):
                assert (mine.dtype, mine.shape) == (its.dtype, its.shape), name
                assert mine.tobytes() == its.tobytes(), name
        count += 1
    return count


def values_of(batch: dict[str, Any]) -> dict[str, list[bytes]]:
    return {name: [leaf.tobytes() for leaf in host_leaves(value)] for name, value in batch.items()}


WORDS = st.one_of(
    st.lists(st.integers(0, 2**64 - 1), max_size=200),
    st.lists(st.sampled_from([0, 1, 2**20, 2**33, 2**63 - 1, 2**63, 2**64 - 513, 2**64 - 1]), max_size=200),
)


@given(words=WORDS, carried=st.integers(0, 5))
def test_a_device_sorts_any_words_as_the_cpu_does(words: list[int], carried: int) -> None:
    given_words = np.array(words, np.uint64)
    expected = [*range(carried), *(sorted_words(given_words.copy()) + carried).tolist()]
    assert sorted_order(torch.from_numpy(given_words.view(np.int64)), carried).tolist() == expected


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1023, 2**16, 2**16 + 1, 200_001])
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_a_device_draws_the_permutation_of_the_method(size: int, seed: int) -> None:
    words = random_words(size, seed, RandomStream.ROWS, 3, 5, lambda rows: np.empty(rows, np.uint64))
    found = sorted_order(torch.from_numpy(words.view(np.int64)))
    assert np.array_equal(found.numpy(), permutation(size, seed, RandomStream.ROWS, 3, 5))


def windows_on_device() -> int:
    """Return of how many windows the column `wide` is alive."""
    tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape[1:] == (300,)]
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors})


@grid(
    "shuffle, isolation, columns",
    [pytest.param(True, id="True"), pytest.param(False, id="False")],
    [pytest.param("thread", id="thread"), pytest.param("process", id="process")],
    [pytest.param(None, id="all"), pytest.param(FIXED_KINDS, id="fixed")],
    everyday=lambda shuffle, isolation, columns: isolation == "thread" and shuffle == (columns is None),
)
def test_batches_are_those_of_the_cpu_for_all_types(
    everything: str, shuffle: bool, isolation: Any, columns: list[str] | None
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 1, "window_rows": 40, "columns": columns}
    with (
        on_device(everything, 8, isolation=isolation, **options) as loader,
        BatchedDataLoader(everything, 8, **options) as plain,
    ):
        for _ in range(2):
            assert assert_equal(loader, plain) == 15
        figures = loader.stats().device
        assert figures is not None
        assert figures.windows > 1
        assert not figures.reasons
        assert plain.stats().device is None
        assert loader.state_dict() == plain.state_dict()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"shard": Shard(0, 2)}, marks=pytest.mark.slow),
        {"shard": Shard(1, 3), "drop_last": True},
        {"shard": Shard(1, 2), "shard_options": ShardOptions(logical_shards=4), "batch_size": 32},
        {"filters": [("small", "<", 37)]},
        {"columns": ["text", "word", "list"]},
        pytest.param({"columns": ["wide"]}, marks=pytest.mark.slow),
        {"columns": FIXED},
        pytest.param({"columns": FIXED, "shard": Shard(1, 3)}, marks=pytest.mark.slow),
        {"columns": FIXED, "shard": Shard(1, 2), "shard_options": ShardOptions(logical_shards=4), "batch_size": 32},
        pytest.param({"columns": FIXED, "batch_size": 1000}, marks=pytest.mark.slow),
        {"columns": FIXED, "window_rows": 800, "batch_size": 790},
        pytest.param({"num_threads": 1}, marks=pytest.mark.slow),
        {"batch_size": 1000},
    ],
    ids=lambda options: "-".join(options),
)
def test_batches_are_those_of_the_cpu_for_ranks_filters_and_columns(table: str, options: dict[str, Any]) -> None:
    options = {"batch_size": 64, "shuffle": True, "seed": 5, "window_rows": 1000, **options}
    size = options.pop("batch_size")
    with on_device(table, size, **options) as loader, BatchedDataLoader(table, size, **options) as plain:
        assert assert_equal(loader, plain) == len(plain) > 0


@grid(
    "isolation, columns",
    ["thread", "process"],
    [FIXED, ["id", "wide", "list"]],
    everyday=lambda isolation, columns: isolation == "thread" and columns == FIXED,
)
def test_every_batch_can_be_resumed_at(table: str, isolation: Any, columns: list[str]) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700, "columns": columns}
    with (
        on_device(table, 420, isolation=isolation, **options) as loader,
        BatchedDataLoader(table, 420, **options) as plain,
    ):
        every = [values_of(batch) for batch in plain]
        for number in range(len(every)):
            loader.seek(0, number)
            assert [values_of(batch) for batch in loader] == every[number:]


@pytest.mark.parametrize(("columns", "is_sorted"), [(FIXED, True), (["id", "list"], False)])
def test_the_device_sorts_the_order_if_all_rows_have_one_width(
    table: str, monkeypatch: pytest.MonkeyPatch, columns: list[str], is_sorted: bool
) -> None:
    sort, calls = torch.Tensor.sort, 0

    def counted(words: torch.Tensor, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return sort(words, **options)

    monkeypatch.setattr(torch.Tensor, "sort", counted)
    with on_device(table, 64, shuffle=True, window_rows=700, columns=columns) as loader:
        assert sum(1 for _ in loader) == len(loader)
        figures = loader.stats().device
        assert figures is not None
        assert calls == (figures.windows if is_sorted and KERNELS is not None else 0)


def test_a_consumer_may_keep_all_batches_or_write_to_them(table: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700}
    with on_device(table, 50, **options) as loader, BatchedDataLoader(table, 50, **options) as plain:
        kept = list(loader)
        expected = [values_of(batch) for batch in plain]
        for batch in loader:  # the next epoch overwrites nothing
            for name in ("id", "wide", "triple"):
                batch[name].fill_(-1)
            batch["list"].values.fill_(-1)
        assert [values_of(batch) for batch in kept] == expected
    assert [values_of(batch) for batch in kept] == expected


@pytest.mark.parametrize("columns", [FIXED, ["wide"]])
def test_a_consumer_that_overwrites_batches_leaves_the_rows_that_fill_none(table: str, columns: list[str]) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700, "columns": columns}
    with on_device(table, 250, **options) as loader, BatchedDataLoader(table, 250, **options) as plain:
        assert loader.plan().windows == 5  # 600 rows each
        for batch, expected in zip(loader, plain, strict=True):
            assert values_of(batch) == values_of(expected)
            for column in batch.values():
                column.fill_(-1)


@pytest.mark.parametrize("columns", [pytest.param(None, marks=pytest.mark.slow), FIXED])
def test_row_groups_that_are_skipped_are_left_out_as_on_the_cpu(
    table: str, tmp_path: Path, columns: list[str] | None
) -> None:
    for source in sorted(Path(table).iterdir()):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    for file, groups in {"0": (0, 4), "1": (5, 6, 7), "2": (9,)}.items():
        path = tmp_path / f"{file}.parquet"
        data = bytearray(path.read_bytes())
        for group in groups:
            start = pq.read_metadata(path).row_group(group).column(0).dictionary_page_offset
            data[start : start + 8] = b"\xff" * 8
        path.write_bytes(data)
    options: dict[str, Any] = {"shuffle": True, "window_rows": 500, "on_error": "skip", "columns": columns}
    for size in (7, 64, 130):
        with (
            on_device(str(tmp_path), size, **options) as loader,
            BatchedDataLoader(str(tmp_path), size, **options) as plain,
        ):
            assert assert_equal(loader, plain) == -(-2400 // size)
            assert len(loader.stats().skipped_row_groups) == 6


def test_rows_that_differ_in_length_are_permuted_on_the_device_a_part_at_a_time(
    everything: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parquet_loader.collate.device.windows.CHUNK_BYTES", 8 * 50)  # 50 values; some rows have more
    options: dict[str, Any] = {"shuffle": True, "window_rows": 40}
    with on_device(everything, 7, **options) as loader, BatchedDataLoader(everything, 7, **options) as plain:
        first = next(iter(plain))
        nested = [n for n, v in first.items() if isinstance(v, Ragged) and isinstance(v.values, Ragged)]
        plain.seek(0, 0)
        assert_equal(loader, plain)
        figures = loader.stats().device
        assert figures is not None
        assert figures.windows == 3
        assert figures.cpu_columns == len(nested)


@pytest.mark.parametrize("columns", [None, FIXED])
def test_other_formats_get_the_same_rows(table: str, columns: list[str] | None) -> None:
    """`to_tf`, `to_keras` and `to_grain` take arrays of an engine that leaves the order to a device."""
    with on_device(table, 64, shuffle=True, window_rows=700, columns=columns) as loader:
        arrays = [values_of(batch) for batch in loader._iterate(ArrayOutput(None))]
        loader.set_epoch(0)
        assert [values_of(batch) for batch in loader] == arrays


def test_a_transform_sees_rows_in_order_and_is_counted(table: str) -> None:
    def doubled(columns: dict[str, Any], _: Any) -> dict[str, Any]:
        return {"id": columns["id"] * 2}

    options: dict[str, Any] = {"shuffle": True, "window_rows": 700, "transform": doubled}
    with on_device(table, 64, **options) as loader, BatchedDataLoader(table, 64, **options) as plain:
        batches = assert_equal(loader, plain)
        figures = loader.stats().device
        assert figures is not None
        assert figures.windows == 0
        assert figures.reasons == {"transform or media": batches}


@pytest.mark.parametrize(("columns", "failing_calls"), [(None, (2, 9)), (FIXED, (2, 4))])
def test_a_window_that_the_device_has_no_memory_for_is_permuted_on_the_cpu(
    table: str, monkeypatch: pytest.MonkeyPatch, columns: list[str] | None, failing_calls: tuple[int, int]
) -> None:
    copy, calls = DeviceWindows._copy, 0

    def failing(self: DeviceWindows, source: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls in failing_calls:  # in the midst of windows
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return copy(self, source)

    monkeypatch.setattr(DeviceWindows, "_copy", failing)
    options: dict[str, Any] = {"shuffle": True, "window_rows": 700, "columns": columns}
    with on_device(table, 64, **options) as loader, BatchedDataLoader(table, 64, **options) as plain:
        windows = loader.plan().windows
        assert_equal(loader, plain)
        figures = loader.stats().device
        assert figures is not None
        assert figures.reasons == {"out of device memory": 2}
        assert figures.windows == windows - 2


@grid(
    "isolation, columns",
    [pytest.param("thread", id="thread"), pytest.param("process", id="process")],
    [pytest.param(None, id="all"), pytest.param(FIXED_KINDS, id="fixed")],
    everyday=lambda isolation, columns: isolation == "thread",
)
def test_memory_owned_by_tensors_gives_the_same_batches(
    everything: str, monkeypatch: pytest.MonkeyPatch, isolation: Any, columns: list[str] | None
) -> None:
    """The path of pinned memory, with tensors that are not pinned."""

    def allocate(_: PinnedMemory, nbytes: int) -> Allocation:
        owner = torch.empty(nbytes + 100, dtype=torch.uint8)[:nbytes]
        return Allocation(owner.numpy(), owner)

    monkeypatch.setattr(PinnedMemory, "allocate", allocate)
    monkeypatch.setattr("parquet_loader.collate.torch_output.TensorOutput.allocator", lambda *_: PinnedMemory())
    options: dict[str, Any] = {"shuffle": True, "window_rows": 40, "columns": columns}
    with (
        on_device(everything, 7, isolation=isolation, **options) as loader,
        BatchedDataLoader(everything, 7, output_options=OutputOptions(format="numpy"), **options) as plain,
    ):
        # In this process, as with a GPU, the order and offsets are copied to pinned memory too.
        monkeypatch.setattr(loader._output, "_pinned", PinnedMemory())
        assert assert_equal(loader, plain) == 18


def test_at_most_two_windows_are_on_the_device_and_none_after_the_end(table: str) -> None:
    loader = on_device(table, 500, shuffle=True, window_rows=1000)
    most = 0
    for batch in loader:
        most = max(most, windows_on_device())
        del batch
    assert most == 2
    assert windows_on_device() == 0
    iterator = iter(loader)
    next(iterator)
    assert windows_on_device() == 1
    loader.close()
    del iterator
    assert windows_on_device() == 0


def interrupted(loader: BatchedDataLoader, error: type[BaseException]) -> None:
    for number, _ in enumerate(loader):
        if number == 9:
            raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_window_stays_on_the_device_after_an_exception(table: str, error: type[BaseException]) -> None:
    with on_device(table, 64, shuffle=True, window_rows=500) as loader:
        with pytest.raises(error):
            interrupted(loader, error)
        assert windows_on_device() == 0


def test_a_device_memory_limit_that_is_too_small_names_one_that_suffices(table: str) -> None:
    def limited(limit: str) -> BatchedDataLoader:
        options = OutputOptions(shuffle_on_device=True, device_memory_limit=limit)
        return on_device(table, 64, shuffle=True, window_rows=1000, columns=["id", "wide"], output_options=options)

    with pytest.raises(MemoryLimitError, match="cannot hold two windows") as refused:
        limited("1MiB")
    named = re.search(r"device_memory_limit=(\d+MiB) or more", str(refused.value))
    assert named is not None
    with limited(named[1]) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 3000
    options = OutputOptions(shuffle_on_device=True, device_memory_limit="4MiB")
    with pytest.raises(MemoryLimitError, match=r"use device_memory_limit=3\dMiB or more"):  # the numbers of its values
        next(iter(on_device(table, 64, shuffle=True, window_rows=1000, columns=["text"], output_options=options)))


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_device_memory_limit_counts_windows_only_if_they_go_to_the_device(table: str, isolation: Any) -> None:
    options = OutputOptions(shuffle_on_device=True, device_memory_limit=1)
    arguments: dict[str, Any] = {"columns": ["id"], "window_rows": 1000, "isolation": isolation}
    with on_device(table, 64, transform=as_given, output_options=options, **arguments) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 3000
    with pytest.raises(MemoryLimitError, match="cannot hold two windows"):
        on_device(table, 64, output_options=options, **arguments)


def as_given(columns: dict[str, Any], _: Any) -> dict[str, Any]:
    return columns


def test_a_device_memory_limit_counts_the_longest_rows_of_data_sorted_by_length(tmp_path: Path) -> None:
    lengths = np.repeat([10, 4000], 5000)
    texts = ["x" * int(length) for length in lengths]
    pq.write_table(pa.table({"text": texts}), tmp_path / "0.parquet", row_group_size=1000, use_dictionary=False)
    on_gpu = sum(sorted(lengths)[-4000:])  # two windows

    def limited(limit: int) -> BatchedDataLoader:
        options = OutputOptions(shuffle_on_device=True, device_memory_limit=limit)
        return on_device(str(tmp_path), 100, window_rows=2000, output_options=options)

    with limited(2**40) as loader:
        next(iter(loader))
        assert loader._dataset.sizing.extra_of_row > 0
    with limited((64 << 20) + on_gpu) as loader:
        next(iter(loader))
    # The values of a window in their old order, and the numbers of a part of them, are there too.
    with limited((32 << 20) + on_gpu) as loader, pytest.raises(MemoryLimitError, match="cannot hold two windows"):
        next(iter(loader))


@pytest.mark.parametrize("options", [{}, {"output_options": ON_DEVICE}, {"cache": "device"}], ids=str)
def test_a_batch_taken_in_inference_mode_leaves_ordinary_tensors_to_the_next_ones(
    table: str, options: dict[str, Any]
) -> None:
    """All batches of a window share memory, and an inference tensor is of no use to autograd."""
    weight = torch.ones(1, requires_grad=True)
    with BatchedDataLoader(
        table, 64, shuffle=True, window_rows=700, columns=["id", "wide"], device="cpu", **options
    ) as loader:
        for _ in range(2):
            batches = iter(loader)
            with torch.inference_mode():
                next(batches)
            for batch in batches:
                (batch["wide"] * weight).sum().backward()
                batch["wide"].fill_(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle_on_device": True}, "pass device='cuda'"),
        ({"device_memory_limit": "1GiB"}, "shuffle_on_device=True"),
        ({"device_memory_limit": "much"}, "expected a positive number of bytes"),
        ({"shuffle_on_device": 1}, "expected True or False"),
        ({"pin_memory": None}, "expected True or False"),
        ({"format": "numpy", "shuffle_on_device": True}, "are for tensors"),
    ],
)
def test_options_that_mean_nothing_are_refused(table: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        BatchedDataLoader(table, 64, output_options=OutputOptions(**arguments))


class Stream:
    """Stands for a CUDA stream; keeps what is asked of it."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number
        self.calls: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.calls.append(event.stream)


def test_each_stream_of_the_caller_waits_for_a_window_once_and_all_its_memory_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Event:
        def record(self, stream: Stream) -> None:
            self.stream = stream

    side, callers = Stream(0), [Stream(1), Stream(2)]
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: stream.calls.append(self.data_ptr()))
    rows, values = torch.arange(4), torch.arange(9)
    upload: Any = Upload(torch.device("cuda"), side, [rows, Ragged(values, rows)])  # type: ignore[arg-type]
    for stream in (callers[0], callers[0], callers[1]):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, stream=stream: stream)
        batch = UploadedBatch([("id", rows[:2])], upload).handed_over()
        assert type(batch) is dict
        assert torch.equal(batch["id"], rows[:2])
    expected = [side, rows.data_ptr(), *sorted((values.data_ptr(), rows.data_ptr()))]
    for stream in callers:
        assert [*stream.calls[:2], *sorted(stream.calls[2:])] == expected


# ---------------------------------------------------------------------- on a GPU


@pytest.fixture
def device_memory() -> Iterator[None]:
    """Check that device memory returns to what it was."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    yield
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.cuda
@pytest.mark.usefixtures("device_memory")
@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_a_gpu_delivers_the_batches_of_the_cpu(everything: str, isolation: Any, pin_memory: bool) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "window_rows": 40}
    output = OutputOptions(shuffle_on_device=True, pin_memory=pin_memory)
    with (
        BatchedDataLoader(
            everything, 8, device="cuda", isolation=isolation, output_options=output, **options
        ) as loader,
        BatchedDataLoader(everything, 8, device="cpu", **options) as plain,
    ):
        for _ in range(2):
            assert_equal(loader, plain)
        figures = loader.stats().device
        assert figures is not None
        assert figures.windows > 1


@pytest.mark.cuda
@pytest.mark.usefixtures("device_memory")
def test_on_a_gpu_batches_dropped_while_copies_of_them_are_queued_keep_their_values(table: str) -> None:
    options = OutputOptions(shuffle_on_device=True)
    with BatchedDataLoader(table, 32, device="cuda", shuffle=True, window_rows=500, output_options=options) as loader:
        stream = torch.cuda.Stream()
        for _ in range(5):
            copies: list[tuple[torch.Tensor, torch.Tensor]] = []
            for batch in loader:
                with torch.cuda.stream(stream) if len(copies) % 2 else torch.cuda.stream(torch.cuda.default_stream()):
                    torch.cuda._sleep(100_000)  # the copies wait, while the loader uploads the next windows
                    stream.wait_stream(torch.cuda.default_stream())
                    for name in ("id", "wide"):
                        batch[name].record_stream(torch.cuda.current_stream())
                    copies.append((batch["id"].clone(), batch["wide"].clone()))
                del batch
            assert len(copies) >= 64
            torch.cuda.synchronize()
            for ids, wide in copies:
                assert torch.equal(wide, ids[:, None].expand(-1, 300).float())
            assert sorted(torch.cat([ids for ids, _ in copies]).tolist()) == list(range(3000))


@pytest.mark.cuda
@pytest.mark.usefixtures("device_memory")
@pytest.mark.parametrize(
    ("columns", "row_bytes"), [(["small"], 1), (["id", "pair"], 24), (["text"], 15), (["list"], 24)]
)
def test_a_gpu_holds_no_more_memory_than_is_announced(tmp_path: Path, columns: list[str], row_bytes: int) -> None:
    ids = np.arange(400_000)
    pair = pa.FixedSizeListArray.from_arrays(np.repeat(ids, 2), 2)
    lists = pa.ListArray.from_arrays(np.arange(0, 2 * len(ids) + 1, 2, dtype=np.int32), np.repeat(ids, 2))
    texts = [f"{i:07}" for i in ids]
    rows = pa.table({"id": ids, "small": ids.astype(np.int8), "pair": pair, "text": texts, "list": lists})
    pq.write_table(rows, tmp_path / "0.parquet", row_group_size=20_000)
    options = OutputOptions(shuffle_on_device=True)
    with BatchedDataLoader(
        str(tmp_path), 1000, device="cuda", shuffle=True, window_rows=200_000, columns=columns, output_options=options
    ) as loader:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for batch in loader:
            del batch
        torch.cuda.synchronize()
        most = most_device_bytes(201_000, row_bytes, row_bytes, is_ragged=columns[0] in ("text", "list"))
        assert torch.cuda.max_memory_allocated() - before <= most + (1 << 20)


@pytest.mark.cuda
@pytest.mark.usefixtures("device_memory")
def test_device_memory_returns_after_an_exception(table: str) -> None:
    options = OutputOptions(shuffle_on_device=True)
    with BatchedDataLoader(table, 32, device="cuda", shuffle=True, window_rows=500, output_options=options) as loader:
        with pytest.raises(KeyboardInterrupt):
            interrupted(loader, KeyboardInterrupt)
        assert windows_on_device() == 0


@pytest.mark.cuda
@pytest.mark.usefixtures("device_memory")
def test_a_cuda_graph_with_static_inputs_gets_all_rows(table: str) -> None:
    ids, wide = torch.zeros(60, dtype=torch.int64, device="cuda"), torch.zeros(60, 300, device="cuda")
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total += (wide.double().mean(1) * 2 - ids).sum()
    total.zero_()
    options = OutputOptions(shuffle_on_device=True)
    with BatchedDataLoader(table, 60, device="cuda", shuffle=True, window_rows=500, output_options=options) as loader:
        for batch in loader:
            ids.copy_(batch["id"])
            wide.copy_(batch["wide"])
            graph.replay()
    assert total.item() == 3000 * 2999 / 2
