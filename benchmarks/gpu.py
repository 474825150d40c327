"""Measures the loader with a GPU, in about 8 minutes: bandwidth, a training step, tables, images, memory.

    python benchmarks/gpu.py [--out benchmarks/results/gpu.json] [--only bandwidth,step] [--minutes 8]
    python benchmarks/gpu.py --device cpu --scale 0.01 --minutes 1    a rehearsal without a GPU
    python benchmarks/gpu.py --device cpu --only host --rounds 15     needs no GPU

The parts run one after another; each is saved with its plot before the next begins. If a part fails, its error is
saved, and the other parts still run. Every timing ends with a synchronisation of the device.

*values*: checks that the batches of each kind of loader equal those of the CPU. *memory*: device memory after an epoch,
an exception and `close`. *bandwidth*: rows of 4,096 float32, compared with `non_blocking` copies of one pinned batch.
*step*: a multilayer perceptron trained on those batches, compared with one batch kept on the device. *tabular*: 40
columns in batches of 4,096 with two reading threads, permuted by the CPU, by the GPU, or kept there, and torch's
`DataLoader` over row groups with workers and `pin_memory`. *pinning*: first and later epochs with and without pinned
memory. *images*: JPEGs decoded by the workers, and on the device, as stored and as random crops, compared with nvJPEG
(torchcodec or torchvision) on one batch, and DALI if it is installed. *host*: processor time of *tabular* permuted on a
device, compared with the decoding kernels alone; a CPU takes the place of the device, whose own work is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
import torch
from pyarrow.fs import LocalFileSystem

from benchmarks.suite.generate import generate
from benchmarks.suite.results import hardware, load, now, save, spread
from benchmarks.suite.workloads import IMAGES, SCIENCE, TABULAR, DataSet
from parquet_loader import BatchedDataLoader, Image, OutputOptions, Scalar, Schema
from parquet_loader.collate.device import windows
from parquet_loader.common import KERNELS
from parquet_loader.decode import NativeChunks, decodable_chunks
from parquet_loader.source import SourceFile
from parquet_loader.source.footer_reading import read_footer

BATCH_ROWS = {"science": 1024, "tabular": 4096, "images": 64}
WINDOW_ROWS = {"science": 8192, "tabular": 200_000, "images": 1024}
ON_DEVICE = OutputOptions(shuffle_on_device=True)
MODES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "gpu": {"output_options": ON_DEVICE},
    "gpu_process": {"output_options": ON_DEVICE, "isolation": "process"},
    "kept": {"cache": "device"},
}
Found = dict[str, Any]


@dataclass(slots=True)
class Bench:
    """What all parts need.

    Attributes:
        device: ``"cuda"``, or ``"cpu"`` for a rehearsal.
        home: Where data sets are kept.
        scale: Share of their full rows.
        rounds: Most rounds of a part.
        until: The part begins no round after this time, but for the first.
    """

    device: str
    home: Path
    scale: float
    rounds: int
    until: float = 0.0

    def data(self, data: DataSet, layout: str) -> Path:
        """Return the folder of a data set, written if it is not there."""
        rows = max(4 * BATCH_ROWS[data.name], data.files * 64, int(data.rows * self.scale))
        home = self.home / f"{data.name}-{rows}"
        for needed in dict.fromkeys((data.layouts[0], layout)):
            generate(data, rows, needed, home)
        return home / layout

    def loader(self, data: DataSet, layout: str, mode: str, **options: Any) -> BatchedDataLoader:
        """Return a loader of a data set."""
        given: dict[str, Any] = {
            "shuffle": True,
            "window_rows": WINDOW_ROWS[data.name],
            "memory_limit": "4GiB",
            "device": self.device,
            **MODES[mode],
            **options,
        }
        return BatchedDataLoader(self.data(data, layout), BATCH_ROWS[data.name], **given)

    def each_round(self) -> Iterator[int]:
        """Yield the numbers of rounds, until there are enough or the time is over."""
        for number in range(self.rounds):
            if number and time.perf_counter() > self.until:
                return
            yield number

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """Time work until the device has done it."""
        self.synchronize()
        began = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - began

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory like that of a tensor, pinned if there is a GPU."""
        host = torch.empty_like(tensor, device="cpu")
        return host if self.device == "cpu" else host.pin_memory()

    def used_bytes(self) -> int:
        """Return the bytes that torch's tensors take on the device."""
        gc.collect()
        self.synchronize()
        return 0 if self.device == "cpu" else torch.cuda.memory_allocated()


def drain(batches: Iterable[Any]) -> int:
    """Consume batches; return the number of rows of their first columns."""
    rows = 0
    for batch in batches:
        rows += len(next(iter(batch.values())))
        del batch
    return rows


def values(bench: Bench) -> Found:
    """Compare the batches of three epochs, in each mode, with those of the CPU."""
    found: Found = {}
    small = Bench(bench.device, bench.home, min(bench.scale, 0.05), 1)
    for data, layout in ((TABULAR, "default"), (SCIENCE, "raw")):
        for mode in MODES:
            with small.loader(data, layout, mode) as loader, small.loader(data, layout, "cpu", device="cpu") as plain:
                for epoch in range(3):
                    for number, (batch, expected) in enumerate(zip(loader, plain, strict=True)):
                        for name, column in expected.items():
                            assert torch.equal(batch[name].cpu(), column), (data.name, mode, epoch, number, name)
                figures = loader.stats().device
                found[f"{data.name}_{mode}"] = "not permuted on the device" if figures is None else str(figures)
    return found


def interrupted(loader: BatchedDataLoader) -> None:
    """Leave an epoch by an exception; a function, whose variables then keep no batch."""
    for number, _ in enumerate(loader):
        if number == 3:
            raise KeyboardInterrupt


def memory(bench: Bench) -> Found:
    """Return what remains on the device after an epoch, an exception and `close`, in bytes."""
    found: Found = {}
    before = bench.used_bytes()
    for mode in MODES:
        loader = bench.loader(SCIENCE, "raw", mode)
        drain(loader)
        found[f"{mode}_after_epoch"] = bench.used_bytes() - before
        with contextlib.suppress(KeyboardInterrupt):
            interrupted(loader)
        found[f"{mode}_after_exception"] = bench.used_bytes() - before
        loader.close()
        found[f"{mode}_after_close"] = bench.used_bytes() - before
        assert not found[f"{mode}_after_close"], f"{mode}: device memory is still in use after close()"
        assert mode == "kept" or not found[f"{mode}_after_exception"], f"{mode}: device memory after an exception"
    return found


def bandwidth(bench: Bench) -> Found:
    """Return bytes a second of each mode, and of bare copies of one pinned batch."""
    loaders = {mode: bench.loader(SCIENCE, "raw", mode, drop_last=True) for mode in MODES}
    first = next(iter(loaders["cpu"]))["x"]
    loaders["cpu"].reset()
    pinned, count = bench.pinned(first), len(loaders["cpu"])
    nbytes = first.nbytes * count
    found: dict[str, list[float]] = {}

    def copies() -> None:
        for _ in range(count):
            pinned.to(bench.device, non_blocking=True, copy=True)

    for loader in loaders.values():  # the first epochs allocate memory
        drain(loader)
    bench.seconds(copies)
    for _ in bench.each_round():
        bare = bench.seconds(copies)
        found.setdefault("copy_bytes_per_s", []).append(nbytes / bare)
        for mode, loader in loaders.items():
            seconds = bench.seconds(lambda loader=loader: drain(loader))  # type: ignore[misc]
            found.setdefault(f"{mode}_bytes_per_s", []).append(nbytes / seconds)
            found.setdefault(f"{mode}_share_of_copy", []).append(bare / seconds)
    for loader in loaders.values():
        loader.close()
    return {name: spread(of) for name, of in found.items()}


class Training:
    """A model heavy enough to be the bottleneck of its own loop, and its optimiser."""

    def __init__(self, width: int, device: str, layers: int) -> None:
        self.width = width
        hidden = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*hidden, torch.nn.Linear(width, 1)).to(device)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def run(self, batches: Iterable[Any]) -> None:
        """Train on batches."""
        for batch in batches:
            loss = self.model(batch["x"][:, : self.width]).square().mean()
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self.optimiser.step()


def step(bench: Bench) -> Found:
    """Return seconds of a training step on delivered batches, and on one batch kept on the device."""
    loaders = {mode: bench.loader(SCIENCE, "raw", mode, drop_last=True) for mode in MODES}
    kept = next(iter(loaders["cpu"]))
    loaders["cpu"].reset()
    count = len(loaders["cpu"])
    training = Training(kept["x"].shape[1] if bench.device != "cpu" else 64, bench.device, 8)
    training.run([kept] * 3)
    for loader in loaders.values():
        drain(loader)
    found: dict[str, list[float]] = {}
    for _ in bench.each_round():
        same = bench.seconds(lambda: training.run([kept] * count)) / count
        found.setdefault("same_batch_step_s", []).append(same)
        for mode, loader in loaders.items():
            seconds = bench.seconds(lambda loader=loader: training.run(loader)) / count  # type: ignore[misc]
            found.setdefault(f"{mode}_step_s", []).append(seconds)
            found.setdefault(f"{mode}_step_ratio", []).append(seconds / same)
    for loader in loaders.values():
        loader.close()
    return {name: spread(of) for name, of in found.items()}


def peer(bench: Bench, data: DataSet, layout: str, workers: int) -> Callable[[], int]:
    """Return an epoch of torch's `DataLoader` over row groups, copied to the device."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

    from benchmarks.suite.systems.base import Job  # noqa: PLC0415
    from benchmarks.suite.systems.torch_dataloader import RowGroups  # noqa: PLC0415

    job = Job.from_json(
        {
            "folder": str(bench.data(data, layout)),
            "copies": str(bench.home),
            "columns": [asdict(column) for column in data.columns],
            "rows": 0,
            "batch_size": BATCH_ROWS[data.name],
            "threads": workers,
            "window_rows": WINDOW_ROWS[data.name] // workers,
            "options": {"workers": workers},
        }
    )
    loader = DataLoader(
        RowGroups(job), batch_size=None, num_workers=workers, pin_memory=bench.device != "cpu", persistent_workers=True
    )

    def epoch() -> int:
        return drain({n: v.to(bench.device, non_blocking=True) for n, v in batch.items()} for batch in loader)

    return epoch


def tabular(bench: Bench) -> Found:
    """Return rows a second of time and of processor time, by two reading threads."""
    loaders = {mode: bench.loader(TABULAR, "default", mode, num_threads=2) for mode in MODES}
    workers = max(1, min(8, (os.cpu_count() or 1) - 1))
    epochs: dict[str, Callable[[], int]] = {
        mode: (lambda loader=loader: drain(loader))  # type: ignore[misc]
        for mode, loader in loaders.items()
    }
    errors: Found = {}
    try:
        epochs["dataloader"] = peer(bench, TABULAR, "default", workers)
    except Exception as error:  # the loader's own figures are worth having without it
        errors["dataloader_error"] = repr(error)
    found: dict[str, list[float]] = {}
    rows = 0
    for epoch in epochs.values():
        rows = epoch()
    for _ in bench.each_round():
        for mode, epoch in epochs.items():
            cpu_s = time.process_time()
            seconds = bench.seconds(epoch)
            cpu_s = time.process_time() - cpu_s
            found.setdefault(f"{mode}_rows_per_s", []).append(rows / seconds)
            if mode in ("cpu", "gpu"):
                found.setdefault(f"{mode}_rows_per_cpu_s", []).append(rows / cpu_s)
                found.setdefault(f"{mode}_cpu_of_decoding", []).append(cpu_s / loaders[mode].stats().cpu_s["read"])
    for loader in loaders.values():
        loader.close()
    return {**{name: spread(of) for name, of in found.items()}, "dataloader_workers": workers, **errors}


def decoding(folder: Path, window_rows: int) -> Callable[[], None]:
    """Return a function that decodes *tabular* by the kernels alone, in two threads, to the memory of three windows."""
    widths = np.array([column.row_bytes for column in TABULAR.columns])
    starts = window_rows * (np.cumsum(widths) - widths)
    blocks = [np.zeros(window_rows * int(widths.sum()), np.uint8) for _ in range(3)]
    jobs = []
    first = window = 0
    for path in sorted(folder.glob("*.parquet")):
        found = path.stat()
        file = SourceFile(str(path), found.st_size, found.st_mtime_ns)
        footer = read_footer(LocalFileSystem(), file).parsed
        for number, rows in enumerate(footer.row_group_rows.tolist()):
            if first + rows > window_rows:
                first, window = 0, window + 1
            addresses = starts + first * widths + blocks[window % len(blocks)].ctypes.data
            known = decodable_chunks(footer, number, footer.schema.arrow.names, footer.schema.arrow)
            jobs.append((str(path), known, rows, addresses, blocks))
            first += rows

    def decode(job: tuple[str, Any, int, Any, object]) -> None:
        with NativeChunks(*job[:2]) as chunks:
            chunks.read_into(0, *job[2:4])

    def epoch() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(decode, jobs))

    return epoch


@contextlib.contextmanager
def without_device() -> Iterator[None]:
    """Replace the operations of the device by functions that return tensors of the right shape, with any values.

    Its memory too: torch keeps a GPU's freed memory for reuse, but the CPU returns large blocks to the system.
    """
    kept: dict[Any, torch.Tensor] = {}

    def empty(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        key = dtype, shape
        return kept[key] if key in kept else kept.setdefault(key, torch.empty(shape, dtype=dtype))

    operations: dict[tuple[Any, str], Callable[..., torch.Tensor]] = {
        (torch, "empty_like"): lambda source, **_: empty(source.dtype, tuple(source.shape)),
        (torch.Tensor, "copy_"): lambda target, *_, **__: target,
        (torch.Tensor, "index_select"): lambda source, dim, index: empty(
            source.dtype, (*source.shape[:dim], len(index), *source.shape[dim + 1 :])
        ),
        (torch.Tensor, "gather"): lambda source, _, index: empty(source.dtype, tuple(index.shape)),
        (torch, "stack"): lambda _, out: out,
        (windows, "sorted_order"): lambda words, carried: empty(torch.int64, (len(words) + carried,)),
    }
    with contextlib.ExitStack() as stack:
        for (owner, name), operation in operations.items():
            stack.enter_context(mock.patch.object(owner, name, operation))
        yield


def host(bench: Bench) -> Found:
    """Return processor seconds of a million rows: the kernels alone, and the whole way without the device's work."""
    loader = bench.loader(TABULAR, "default", "gpu", device="cpu", num_threads=2)
    alone = decoding(bench.data(TABULAR, "default"), WINDOW_ROWS["tabular"])
    found: dict[str, list[float]] = {}
    with without_device():
        alone()
        millions = drain(loader) / 1e6

        def cpu_s(epoch: Callable[[], object]) -> float:
            began = time.process_time()
            for _ in range(3):
                epoch()
            return (time.process_time() - began) / 3 / millions

        for _ in bench.each_round():
            found.setdefault("kernels_cpu_s", []).append(cpu_s(alone))
            loader.seek(0, 0)  # forgets the window that was read ahead, so that no read is missing
            found.setdefault("whole_cpu_s", []).append(cpu_s(partial(drain, loader)))
            found.setdefault("whole_of_kernels", []).append(found["whole_cpu_s"][-1] / found["kernels_cpu_s"][-1])
            for stage, seconds in loader.stats().cpu_s.items():
                found.setdefault(f"{stage}_cpu_s", []).append(seconds / millions)
    loader.close()
    return {name: spread(of) for name, of in found.items()}


def pinning(bench: Bench) -> Found:
    """Return seconds of the first epoch of a loader, and of its second, with and without pinned memory."""
    found: dict[str, list[float]] = {}
    for _ in bench.each_round():
        for permutes in (False, True):
            for pins in (True, False):
                if bench.device != "cpu":
                    torch.cuda.empty_cache()
                output = OutputOptions(pin_memory=pins, shuffle_on_device=permutes)
                name = f"{'gpu' if permutes else 'cpu'}_{'pinned' if pins else 'ordinary'}"
                with bench.loader(SCIENCE, "raw", "cpu", output_options=output) as loader:
                    for which in ("first", "second"):
                        seconds = bench.seconds(lambda loader=loader: drain(loader))  # type: ignore[misc]
                        found.setdefault(f"{name}_{which}_epoch_s", []).append(seconds)
    return {name: spread(of) for name, of in found.items()}


def images(bench: Bench) -> Found:
    """Return images a second: decoded by the loader's threads, and on the device; bare nvJPEG on one batch; DALI."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    cropped = Image(size=176, crop="random", flip=0.5, dtype="float32", mean=mean, std=std, channels_first=True)
    loaders: dict[str, BatchedDataLoader] = {}
    found: dict[str, list[float]] = {}
    count = 0
    encoded = first_images(bench.data(IMAGES, "default"), BATCH_ROWS["images"])
    others: dict[str, Callable[[], int]] = {}
    errors: Found = {}
    for name, opened in (("nvjpeg", nvjpeg), ("dali", dali)):
        try:
            others[name] = opened(bench, encoded)
            others[name]()
        except Exception as error:  # not installed, or built without it
            others.pop(name, None)
            errors[f"{name}_error"] = repr(error)[:300]
    for form, field in (("loader", Image((224, 224, 3))), ("crops", cropped)):
        schema = Schema({"image": field, "y": Scalar("int32")})
        for where, on_device in (("", False), ("_on_device", True)):
            name, output = f"{form}{where}", OutputOptions(decode_on_device=on_device)
            try:
                loaders[name] = bench.loader(IMAGES, "default", "cpu", schema=schema, output_options=output)
                count = drain(loaders[name])
            except Exception as error:  # no package decodes on the device
                loaders.pop(name, None)
                errors[f"{name}_error"] = repr(error)[:300]
    for _ in bench.each_round():
        bare = 0.0
        for name, decode in others.items():
            seconds = bench.seconds(lambda decode=decode: [decode() for _ in range(10)])  # type: ignore[misc]
            found.setdefault(f"{name}_images_per_s", []).append(10 * len(encoded) / seconds)
            bare = found[f"{name}_images_per_s"][-1] if name == "nvjpeg" else bare
        for name, loader in loaders.items():
            cpu_s = time.process_time()
            rate = count / bench.seconds(lambda loader=loader: drain(loader))  # type: ignore[misc]
            found.setdefault(f"{name}_images_per_s", []).append(rate)
            found.setdefault(f"{name}_cpu_s_per_image", []).append((time.process_time() - cpu_s) / count)
            if bare:
                found.setdefault(f"{name}_share_of_nvjpeg", []).append(rate / bare)
    figures = {f"{name}_device": str(loader.stats().device) for name, loader in loaders.items() if "device" in name}
    for loader in loaders.values():
        loader.close()
    return {**{name: spread(of) for name, of in found.items()}, **figures, **errors}


def first_images(folder: Path, count: int) -> list[bytes]:
    """Return the first encoded images of a data set."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pq.read_table(min(folder.glob("*.parquet")), columns=["image"])
    return table["image"].slice(0, count).to_pylist()  # type: ignore[no-any-return]


def nvjpeg(bench: Bench, encoded: list[bytes]) -> Callable[[], int]:
    """Return a function that decodes images by torchcodec or torchvision, on a GPU by nvJPEG."""
    tensors = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in encoded]
    try:
        decode = importlib.import_module("torchcodec.decoders").decode_jpeg
    except (ImportError, OSError, RuntimeError, AttributeError):  # not there, not loadable, or too old
        decode = importlib.import_module("torchvision.io").decode_jpeg
    return lambda: len(decode(tensors, device=bench.device))


def dali(bench: Bench, encoded: list[bytes]) -> Callable[[], int]:
    """Return a function that decodes images by DALI."""
    library = importlib.import_module("nvidia.dali")
    fn = importlib.import_module("nvidia.dali.fn")
    arrays = [np.frombuffer(one, np.uint8) for one in encoded]

    @library.pipeline_def(batch_size=len(arrays), num_threads=4, device_id=None if bench.device == "cpu" else 0)  # type: ignore[untyped-decorator]
    def decoding() -> Any:
        source = fn.external_source(source=lambda: arrays, batch=True)
        return fn.decoders.image(source, device="cpu" if bench.device == "cpu" else "mixed")

    pipeline = decoding()
    pipeline.build()
    return lambda: len(pipeline.run()[0])


PARTS: dict[str, Callable[[Bench], Found]] = {
    "values": values,
    "memory": memory,
    "bandwidth": bandwidth,
    "step": step,
    "tabular": tabular,
    "host": host,
    "pinning": pinning,
    "images": images,
}


def plot(results: Found, path: Path) -> None:
    """Draw the medians of all parts that have some."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    wanted = {"bandwidth": "_bytes_per_s", "step": "_step_s", "tabular": "_rows_per_s", "images": "_images_per_s"}
    shown = [part for part in wanted if any(k.endswith(wanted[part]) for k in results["parts"].get(part, {}))]
    if not shown:
        return
    figure, axes = plt.subplots(len(shown), figsize=(8, 2.2 * len(shown)), squeeze=False)
    for axis, part in zip(axes[:, 0], shown, strict=True):
        bars = {k: v["median"] for k, v in results["parts"][part].items() if k.endswith(wanted[part])}
        axis.barh([name.removesuffix(wanted[part]) for name in bars], list(bars.values()))
        axis.set_title(f"{part}: {wanted[part].strip('_').replace('_per_s', ' a second').replace('_s', ' (seconds)')}")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def checked(device: str) -> None:
    """Exit with a reason if nothing could be measured."""
    if KERNELS is None:
        raise SystemExit("there are no kernels: run python parquet_loader/common/native/build.py first")
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device: use a machine with a GPU, or rehearse with --device cpu")
    torch.ones(1, device=device).add_(1).item()  # fails here if this build of torch has no kernels for the GPU


def main() -> None:
    """Measure part by part; save and print each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "parquet_loader-bench")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="begin no second round of a part after its share of this time"
    )
    parser.add_argument("--only", help=f"parts, with commas: {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="results; the plot is beside it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=0.5, help="share of the data sets' full rows")
    arguments = parser.parse_args()
    checked(arguments.device)
    parts = arguments.only.split(",") if arguments.only else list(PARTS)
    unknown = sorted(set(parts) - PARTS.keys())
    if unknown:
        raise SystemExit(f"--only {','.join(unknown)}: expected {', '.join(PARTS)}")
    name = "cpu" if arguments.device == "cpu" else torch.cuda.get_device_name(arguments.device)
    results: Found = {
        "date": now(),
        "command": f"python benchmarks/gpu.py {' '.join(sys.argv[1:])}".strip(),
        "hardware": {**hardware(), "device": name},
        "versions": {"pyarrow": pa.__version__, "torch": torch.__version__, "numpy": np.__version__},
        "scale": arguments.scale,
        "parts": load(arguments.out).get("parts", {}) if arguments.only else {},
    }
    bench = Bench(arguments.device, arguments.cache, arguments.scale, arguments.rounds)
    began = time.perf_counter()
    for number, part in enumerate(parts):
        since = time.perf_counter()
        left = began + 60 * arguments.minutes - since
        bench.until = since + left / (len(parts) - number)
        try:
            found = PARTS[part](bench)
        except Exception as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:2000]}
        results["parts"][part] = {**found, "took_s": round(time.perf_counter() - since, 1)}
        save(arguments.out, results)
        print(f"{part}, {results['parts'][part]['took_s']} s", flush=True)
        for key, value in found.items():
            print(f"  {key}: {value['median']:.6g}" if isinstance(value, dict) else f"  {key}: {value}", flush=True)
        try:
            plot(results, arguments.out.with_suffix(".svg"))
        except ImportError as error:
            print(f"no plot: {error}", flush=True)
    failed = [part for part in parts if "error" in results["parts"][part]]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
