"""``transform_workers=N``: the same batches from processes, which never outlive their use."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import BatchedDataLoader, OutputOptions, Scalar
from parquet_loader.engine.child.shared_memory import SharedMemoryReceiver, SharedMemorySender
from parquet_loader.errors import (
    ConfigurationError,
    DataError,
    LoaderStateError,
    ReadingProcessError,
    TransformError,
    UnsupportedError,
)
from tests.engine.test_isolation import assert_same, numbered, read_line, running
from tests.support import transforms
from tests.support.datasets import Layout, write_layout
from tests.support.processes import children, needs_transform_processes, passes_on_both_sides_of_a_fork
from tests.support.signals import interrupted_at_random_moments

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="transform_workers needs Linux (memfd)"),
    needs_transform_processes,
]

KINDS = ("double", "flag", "half_null", "text", "blob", "ragged", "ragged_text", "wide", "decimal", "category")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 rows of several kinds of columns, in files of several row groups."""
    path = str(tmp_path_factory.mktemp("workers") / "data")
    write_layout(Layout(((30, 20), (50,), (25,) * 8), KINDS, dictionary=False), path)
    return path


def over_processes(
    source: str, transform: Any, batch_size: int = 10, workers: int = 1, **options: Any
) -> BatchedDataLoader:
    return BatchedDataLoader(source, batch_size, transform=transform, transform_workers=workers, **options)


def test_a_partial_of_a_function_of_a_script_without_cloudpickle_names_it(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def transform(columns: dict[str, Any], _: Any) -> dict[str, Any]:
        return columns

    transform.__module__, transform.__qualname__ = "__main__", "transform"
    monkeypatch.setattr(sys.modules["__main__"], "transform", transform, raising=False)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with (
        pytest.raises(ConfigurationError, match=r"a transform defined in a script or notebook .* needs cloudpickle"),
        over_processes(root, functools.partial(transform)) as loader,
    ):
        next(iter(loader))


@pytest.mark.parametrize("options", [{"transform_workers": 1}, {"isolation": "process"}], ids=str)
@pytest.mark.parametrize("module", [__name__, "__main__"])
def test_a_lambda_without_cloudpickle_names_it(
    root: str, module: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def transform(columns: dict[str, Any], _: Any) -> dict[str, Any]:
        return columns

    transform.__module__ = module
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with (
        pytest.raises(ConfigurationError, match=r"cloudpickle: pip install 'torch-parquet-loader\[process\]'$"),
        BatchedDataLoader(root, 10, transform=transform, **options) as loader,
    ):
        next(iter(loader))


# ---- the batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "options"),
    [
        (transforms.of_all_kinds, {"workers": 2, "shuffle": True, "window_rows": 70}),
        pytest.param(transforms.returned_unchanged, {"drop_last": True, "num_threads": 1}, marks=pytest.mark.slow),
        pytest.param(transforms.of_all_kinds, {"isolation": "process", "shuffle": True}, marks=pytest.mark.slow),
    ],
    ids=["two", "in place", "below a process that reads"],
)
def test_the_batches_are_those_of_threads_bit_for_bit(root: str, transform: Any, options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if name not in ("workers", "isolation")}
    with BatchedDataLoader(root, 7, transform=transform, **given) as threads:
        expected = [list(threads), list(threads)]
    with over_processes(root, transform, 7, **options) as loader:
        for epoch in expected:  # all of an epoch's batches are kept while it goes on, and then the next one is read
            assert_same(list(loader), epoch)
    for epoch in expected:
        assert [sorted(batch) for batch in epoch] == [sorted(epoch[0])] * len(epoch)
    assert children() == set()


@pytest.mark.slow
def test_a_state_of_threads_resumes_in_processes(root: str) -> None:
    with BatchedDataLoader(root, 7, transform=transforms.of_all_kinds, shuffle=True, seed=3) as threads:
        batches = iter(threads)
        kept = [next(batches) for _ in range(12)]
        state = threads.state_dict()
        rest = list(batches)
    with over_processes(root, transforms.of_all_kinds, 7, shuffle=True, seed=3) as loader:
        loader.load_state_dict(state)
        assert_same(list(loader), rest)
    assert len(kept) + len(rest) == 43


@pytest.mark.slow
def test_images_are_decoded_in_the_process(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from parquet_loader import Image, Schema, write_dataset

    def png(size: int) -> bytes:
        data = io.BytesIO()
        image.new("RGB", (size, size + 1), (size, 2, 3)).save(data, "PNG")
        return data.getvalue()

    written = Schema({"image": Image()})
    write_dataset({"image": [png(3 + n % 5) for n in range(40)]}, str(tmp_path), written)
    with (
        BatchedDataLoader(str(tmp_path), 8, transform=transforms.unchanged) as threads,
        over_processes(str(tmp_path), transforms.unchanged, 8) as loader,
    ):
        assert_same(list(loader), list(threads))


@pytest.mark.slow
def test_a_damaged_image_is_the_error_of_threads_or_is_replaced_as_there(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from parquet_loader import Image, Schema

    data = io.BytesIO()
    image.new("RGB", (4, 5), (1, 2, 3)).save(data, "PNG")
    rows = [data.getvalue() if n != 23 else data.getvalue()[:40] for n in range(40)]
    pq.write_table(pa.table({"image": rows, "id": range(40)}), tmp_path / "a.parquet")
    schema = Schema({"image": Image((5, 4, 3)), "id": Scalar("int64")})
    found = []
    for workers in (0, 2):
        options: dict[str, Any] = {
            "transform": transforms.unchanged,
            "transform_workers": workers,
            "schema": schema,
        }
        with (
            BatchedDataLoader(str(tmp_path), 8, **options) as strict,
            pytest.raises(DataError, match=r"column 'image', row 7 of batch 2") as raised,
        ):
            list(strict)
        with BatchedDataLoader(str(tmp_path), 8, on_error="skip_row", **options) as lenient:
            found.append((str(raised.value), list(lenient), lenient.stats().replaced_rows))
    assert_same(found[1][1], found[0][1])
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2]


@pytest.mark.slow
def test_batches_that_are_kept_never_change(tmp_path: Path) -> None:
    rows = 4_000
    values = np.arange(rows * 64, dtype="f4").reshape(rows, 64)
    rows_as_bytes = pa.FixedSizeBinaryArray.from_buffers(pa.binary(256), rows, [None, pa.py_buffer(values.tobytes())])
    pq.write_table(pa.table({"id": np.arange(rows), "wide": rows_as_bytes}), tmp_path / "a.parquet", row_group_size=500)
    with over_processes(str(tmp_path), transforms.doubled, 100, shuffle=True, memory_limit="8MiB") as loader:
        kept = [batch for _ in range(3) for batch in loader]
    assert len(kept) == 120
    for batch in kept:
        assert (batch["wide"].numpy().view("f4") == values[batch["id"].numpy()]).all()
        assert (batch["twice"] == 2 * batch["id"]).all()


def test_processes_run_transform_at_the_same_time(root: str, tmp_path: Path) -> None:
    transform = functools.partial(transforms.in_several_processes, str(tmp_path), 3)  # else it raises
    options = {"columns": ["id"], "output_options": OutputOptions(format="numpy")}
    with over_processes(root, transform, 20, workers=3, **options) as loader:
        used = {process for batch in loader for process in batch["process"].tolist()}
        stats = loader.stats()
    assert sorted(map(str, used)) == sorted(os.listdir(tmp_path))
    assert (len(used), os.getpid() in used) == (3, False)
    assert (stats.transform_workers, stats.num_threads, stats.batches) == (3, loader.num_threads, 15)


@pytest.mark.slow
def test_memory_stays_within_the_limit_and_is_used_again(tmp_path: Path) -> None:
    rows, limit = 8_000, 48 * 2**20
    table = pa.table({"id": np.arange(rows), "x": pa.FixedSizeListArray.from_arrays(np.zeros(rows * 256, "f4"), 256)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000, use_dictionary=False, compression="none")

    def shared_bytes() -> int:
        """Bytes of shared memory that this process maps, of both directions."""
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
        blocks = [number for number, line in enumerate(lines) if "memfd:parquet_loader" in line]
        return sum(int(line.split()[1]) for at in blocks for line in lines[at : at + 5] if line.startswith("Rss"))

    gc.collect()  # of other tests
    most, before = 0, shared_bytes()
    with over_processes(str(tmp_path), transforms.doubled, 250, workers=2, shuffle=True, memory_limit=limit) as loader:
        for _ in range(3):
            for number, _ in enumerate(loader):
                most = max(most, 0 if number % 8 else shared_bytes())
        assert loader.stats().peak_bytes <= limit
    batch = 250 * (256 * 4 + 8)
    assert 0 < (most - before) * 1024 <= 16 * batch  # the rows of 2, the batches of 4, and what is kept for reuse
    assert shared_bytes() <= before


def test_memory_of_a_batch_that_nobody_has_is_freed_before_its_process_makes_another() -> None:
    sender, receiver = SharedMemorySender("a test"), SharedMemoryReceiver("a test")
    sender.limit(2**24)
    array = sender.arenas.allocate(2**20).array

    def received(value: int) -> Any:
        array[:] = value
        message, files = sender.pack(array)
        for (number, nbytes), file in zip(message.new, files, strict=True):
            receiver.add_block(number, nbytes, file)
        sender.sent(message)
        return receiver.unpack(message)

    kept, dropped = received(1).copy(), received(2)
    assert receiver.has_ended  # the first one
    receiver.free_ended()
    assert (dropped == 0).all()  # the same memory in this test, in which all of its pages were freed
    del dropped
    receiver.free_ended()
    assert not receiver.has_ended
    ended = receiver.ended()
    assert len(ended) == 2
    sender.take_back(ended)
    assert (received(3) == 3).all()
    assert (kept == 1).all()
    sender.close()


def test_a_window_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(200_000)}), tmp_path / "a.parquet", row_group_size=20_000)
    sizes = {
        over_processes(str(tmp_path), transforms.doubled, 1000, workers, memory_limit="3MiB", shuffle=True).window_rows
        for workers in (1, 2, 9)
    }
    with BatchedDataLoader(
        str(tmp_path), 1000, transform=transforms.doubled, memory_limit="3MiB", shuffle=True
    ) as threads:
        assert sizes == {threads.window_rows}
        assert threads.window_rows < 200_000


# ---- the number of rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_transform_may_return_another_number_of_rows_that_is_declared(root: str, workers: int) -> None:
    with BatchedDataLoader(
        root, 16, transform=transforms.two_views, rows_out=32, transform_workers=workers, shuffle=True
    ) as loader:
        assert len(loader) == 19
        whole = list(loader)
        assert [len(batch["id"]) for batch in whole] == [32] * 18 + [24]
        assert loader.stats().rows == 600
        loader.seek(0, 7)
        assert_same(list(loader), whole[7:])


@pytest.mark.parametrize(
    ("transform", "rows_out", "message"),
    [
        (transforms.two_views, 31, r"column 'id': expected the 31 rows of rows_out, found 32"),
        (transforms.as_many_as_the_second, 16, r"column 'half': expected the other columns' 16 rows, found 8"),
        (transforms.unequal, None, r"column 'few': expected the batch's 16 rows, found 3; .*rows_out=<rows>"),
    ],
)
def test_another_number_of_rows_than_declared_is_an_error(
    root: str, transform: Any, rows_out: int | None, message: str
) -> None:
    with (
        BatchedDataLoader(root, 16, transform=transform, rows_out=rows_out) as loader,
        pytest.raises(TransformError, match=message),
    ):
        list(loader)


def test_a_last_batch_may_have_fewer_rows_and_not_more(root: str) -> None:
    with (
        BatchedDataLoader(root, 16, transform=transforms.twice_the_last, rows_out=16) as loader,
        pytest.raises(
            TransformError, match=r"expected 1 to 16 rows \(rows_out\) for the last batch, which has 12 of 16"
        ),
    ):
        list(loader)


# ---- arguments -----------------------------------------------------------------------------------------------------


def test_arguments_without_a_meaning_are_refused(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="transform_workers=2: there is no transform"):
        BatchedDataLoader(root, 10, transform_workers=2)
    with pytest.raises(ConfigurationError, match="rows_out=5: there is no transform"):
        BatchedDataLoader(root, 10, rows_out=5)
    with pytest.raises(ValueError, match="transform_workers"):
        over_processes(root, transforms.doubled, workers=-1)
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"transform_workers=1: transform=.* cannot be sent to another process"):
        over_processes(root, lambda columns, rng: columns if lock.locked() else {})
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(UnsupportedError, match=r"transform_workers=1 needs Linux \(memfd\); transform_workers=0 gives"):
        over_processes(root, transforms.doubled)


def test_threads_run_a_transform_on_a_free_threaded_python(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with over_processes(root, transforms.doubled, columns=["id"]) as loader:
        for batch in loader:
            assert (batch["twice"] == 2 * batch["id"]).all()
            assert children() == set()
        assert loader.stats().transform_workers == 0


@pytest.mark.slow
def test_a_loader_with_processes_can_be_pickled(root: str) -> None:
    with over_processes(root, transforms.doubled, columns=["id"]) as loader:
        list(loader)
        with pickle.loads(pickle.dumps(loader)) as copy:
            loader.set_epoch(0)
            assert_same(list(copy), list(over_processes(root, transforms.doubled, columns=["id"])))


# ---- errors --------------------------------------------------------------------------------------------------------


def notes(error: BaseException) -> str:
    return "".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_an_error_comes_in_its_place_with_the_traceback_of_the_process(root: str, isolation: Any) -> None:
    with over_processes(root, transforms.fails_at_55, isolation=isolation) as loader:
        delivered = 0
        with pytest.raises(ZeroDivisionError) as raised:  # noqa: PT012
            for _ in loader:
                delivered += 1
        assert delivered == 5
        assert "raised by transform in batch 5 of epoch 0" in notes(raised.value)
        assert "in a process that runs transform" in notes(raised.value)
        assert "1 // 0}  # the line of the transform" in notes(raised.value)
        assert children() == set()
        loader.seek(0, 6)
        assert len(list(loader)) == 24


@pytest.mark.slow
def test_an_error_that_cannot_be_pickled_becomes_its_text(root: str) -> None:
    with (
        over_processes(root, transforms.failing) as loader,
        pytest.raises(ReadingProcessError, match=r"OddError: odd 1 and 2"),
    ):
        next(iter(loader))


@pytest.mark.slow
def test_a_module_that_only_the_caller_can_import_is_an_error_of_the_first_batch(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_at_home.py").write_text("def same(columns, rng):\n    return columns\n", encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        loader = over_processes(root, importlib.import_module("only_at_home").same)
    with loader, pytest.raises(ModuleNotFoundError, match="only_at_home") as raised:
        next(iter(loader))
    assert "raised while transform was unpickled in a process that runs transform" in notes(raised.value)


@pytest.mark.slow  # a process that is killed is an error in another test
@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_crash_is_an_error_of_its_batch_even_if_a_forked_process_keeps_the_files(root: str, isolation: Any) -> None:
    with over_processes(root, transforms.crashing, isolation=isolation) as loader:
        delivered = 0
        began = time.monotonic()
        with pytest.raises(ReadingProcessError, match=r"a process that runs transform .*SIGSEGV") as raised:  # noqa: PT012
            for _ in loader:
                delivered += 1
        assert time.monotonic() - began < 60  # the forked process lives for 90 s
        assert (delivered, raised.value.exitcode) == (5, -11)
        loader.seek(0, 6)
        assert len(list(loader)) == 24


def test_a_killed_process_is_an_error_and_the_next_epoch_starts_another(root: str) -> None:
    with over_processes(root, transforms.doubled, shuffle=True, columns=["id"]) as loader:
        list(loader)
        (idle,) = children()
        idle.kill()
        idle.wait(60)
        batches = iter(loader)
        next(batches)
        (child,) = children()
        child.kill()
        with pytest.raises(ReadingProcessError, match=r"killed by SIGKILL \(exit code -9\)"):
            list(batches)
        assert len(list(loader)) == 30


# ---- endings -------------------------------------------------------------------------------------------------------


def test_an_epoch_left_early_leaves_nothing_and_a_finished_one_keeps_the_processes_until_the_loader_goes(
    root: str,
) -> None:
    before = psutil.Process().num_fds()
    loader = over_processes(root, transforms.doubled, columns=["id"], window_rows=20)
    for taken in (1, 17):
        for number, _ in enumerate(loader, 1):
            if number == taken:
                break
        assert children() == set()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("parquet_loader-transform")]
    list(loader)
    kept = children()
    assert len(kept) == 1
    list(loader)
    assert children() == kept
    del loader
    gc.collect()
    assert children() == set()
    assert psutil.Process().num_fds() <= before


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_closing_does_not_wait_for_a_transform_that_never_ends(root: str, isolation: Any) -> None:
    loader = over_processes(root, transforms.endless, isolation=isolation)
    batches = iter(loader)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            next(batches)
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not any(thread.name.startswith("parquet_loader-transform") for thread in threading.enumerate()) and (
        isolation == "thread"
    ):
        time.sleep(0.01)
    while len(children()) < (1 if isolation == "thread" else 2):
        time.sleep(0.01)
    loader.close()
    waiting.join()  # `endless` never returns: an end that waits for it fails by the limit of a test
    assert [type(error) for error in raised] in ([LoaderStateError], [ReadingProcessError])
    assert children() == set()


@pytest.mark.slow
def test_nothing_has_a_name_in_shared_memory(root: str) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:parquet_loader")

    def named() -> set[str]:
        """The named shared memory that this process and its children have mapped."""
        maps = [Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8") for process in (this, *children())]
        return {word for word in " ".join(maps).split() if word.startswith("/dev/shm/")}

    this = psutil.Process()
    gc.collect()  # of other tests
    before, names = mapped(), named()
    with over_processes(root, transforms.doubled, columns=["id"]) as loader:
        next(iterator := iter(loader))
        assert mapped() > before
        assert children()
        assert named() <= names
    del iterator
    assert mapped() == before


@pytest.mark.slow
def test_both_sides_of_a_fork_have_processes_of_their_own(tmp_path: Path) -> None:
    passes_on_both_sides_of_a_fork(
        "from parquet_loader import BatchedDataLoader, OutputOptions\n"
        "from tests.support.transforms import doubled\n"
        "loader = BatchedDataLoader(sys.argv[1], 10, transform=doubled, transform_workers=2,"
        " output_options=OutputOptions(format='numpy'))",
        numbered(tmp_path),
    )


class InWorkers(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A loader that is made where it is used."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __iter__(self) -> Any:
        with over_processes(self.source, transforms.doubled) as loader:
            yield from loader


@pytest.mark.slow
def test_it_works_inside_the_workers_of_a_torch_data_loader(tmp_path: Path) -> None:
    batches = list(torch.utils.data.DataLoader(InWorkers(numbered(tmp_path)), batch_size=None, num_workers=2))
    assert sorted(int(i) for b in batches for i in b["twice"]) == sorted(2 * i for i in [*range(300), *range(300)])
    deadline = time.monotonic() + 60
    while left := children():
        assert time.monotonic() < deadline, left
        psutil.wait_procs(left, 1)


SCRIPT = """
    import os, signal, sys
    from parquet_loader import BatchedDataLoader, OutputOptions

    numpy = OutputOptions(format="numpy")  # imports no torch
    scale = 3
    def scaled(columns, rng):
        return {"id": columns["id"] * scale}

    loader = BatchedDataLoader(
        sys.argv[1], 10, transform=scaled, transform_workers=2, output_options=numpy, isolation=ISOLATION
    )
    total = 0
    for batch in loader:
        total += int(batch["id"].sum())
    print(total, flush=True)
    iterator = iter(loader)
    next(iterator)
    print(*[p.pid for p in __import__("psutil").Process().children(recursive=True)], flush=True)
    ENDING
"""


FORKED_AND_KILLED = "if not os.fork():\n        signal.pause()\n    os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("ending", "code", "isolation"),
    [
        pytest.param("sys.exit(7)", 7, "thread", marks=pytest.mark.slow),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "thread"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", -9, "process", marks=pytest.mark.slow),
        pytest.param("raise KeyboardInterrupt", -2, "thread", marks=pytest.mark.slow),
        pytest.param(FORKED_AND_KILLED, -9, "thread", marks=pytest.mark.slow),
    ],
    ids=["exit", "kill", "kill with isolation", "ctrl-c", "kill with a forked child alive"],
)
def test_a_script_without_a_main_guard_and_however_it_ends(
    tmp_path: Path, ending: str, code: int, isolation: str
) -> None:
    script = SCRIPT.replace("ENDING", ending).replace("ISOLATION", repr(isolation))
    process = running(script, numbered(tmp_path), start_new_session=True)
    try:
        assert read_line(process) == str(3 * sum(range(300)))
        started = read_line(process).split()
        assert len(started) == (2 if isolation == "thread" else 3)
        for child in started:
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have gone with its parent already
                psutil.Process(int(child)).wait(60)
        process.wait(60)
        assert process.returncode == code
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


OF_A_SCRIPT = """
    import sys
    from parquet_loader import BatchedDataLoader, OutputOptions

    class Unlucky(Exception):
        pass

    def failing(columns, rng):
        raise Unlucky(int(columns["id"][0]))

    for isolation in ("thread", "process"):
        with BatchedDataLoader(
            sys.argv[1], 10, transform=failing, transform_workers=1, output_options=OutputOptions(format="numpy"),
            isolation=isolation,
        ) as loader:
            try:
                next(iter(loader))
            except Unlucky as error:
                print(error.args, "raise Unlucky" in "".join(error.__notes__) or "Unlucky: 0" in error.__notes__[-1])
"""


@pytest.mark.slow
def test_an_error_of_a_class_in_the_script_is_of_that_class(tmp_path: Path) -> None:
    process = running(OF_A_SCRIPT, numbered(tmp_path))
    out, err = process.communicate(timeout=100)
    assert out.splitlines() == ["(0,) True"] * 2, out + err


@pytest.mark.slow
def test_ctrl_c_at_random_moments_ends_the_processes(tmp_path: Path) -> None:
    options = "window_rows=20, transform=lambda columns, rng: columns, transform_workers=2"
    options += ', output_options=OutputOptions(format="numpy")'
    said = interrupted_at_random_moments(numbered(tmp_path), options, attempts=12, longest_s=(0.002, 0.1, 0.6))
    assert said == "done True True []"
