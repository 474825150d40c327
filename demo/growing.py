"""Train while four processes draw random records from a remote archive into a store of limited size.

    python -m demo.growing                                      a store of 1 GB, ten epochs: several minutes
    python -m demo.growing --store-bytes 64MB --epochs 4        a small run
    python -m demo.growing --plot growing.png                   also draws a picture (needs matplotlib)

Each epoch trains on the records that are in the store when it begins. It begins when its share of all records has been
drawn, so the run shows the store growing and, after two thirds of the records, evicting.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from demo.archive import RECORD_BYTES, SCHEMA, Archive, Server, draw, make_archive
from parquet_loader import BatchedDataLoader, Samplers, SampleStore
from parquet_loader.common.units import parse_bytes

BATCH_SIZE = 256
DRAWN = 1.5  # bytes drawn in the whole run, as a multiple of the store's limit
OBJECT_RECORDS = 1024


@dataclass(slots=True)
class Epoch:
    """Figures of one epoch; times are in seconds since the beginning of the run."""

    began_s: float
    ended_s: float
    rows: int
    new_rows: int
    gone_rows: int
    loss: float
    wait_share: float
    first_batch_s: float


@dataclass(slots=True)
class Run:
    """Figures of a run, for the plot."""

    limit_bytes: int
    size: list[tuple[float, int]] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    drawn_rows: int = 0
    seconds: float = 0.0


class Spectral(nn.Module):
    """Predicts the frequency ``[batch]`` of waves ``[batch, samples]`` from the magnitude of their spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, wave: Tensor) -> Tensor:
        """Return the frequency, in hundreds of periods per record."""
        spectrum = torch.fft.rfft(wave)[:, :256].abs()
        output: Tensor = self.layers(torch.log1p(spectrum))
        return output.squeeze(1)


def train(store: SampleStore, samplers: Samplers, epochs: int, records: int) -> Run:
    """Train for `epochs` epochs, each of which begins when its share of `records` has been drawn."""
    torch.manual_seed(0)
    model = Spectral()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    run = Run(store.settings.max_bytes or 0)
    began = time.perf_counter()

    def now() -> float:
        return time.perf_counter() - began

    def measure() -> None:
        status = store.status()
        run.size.append((now(), status.bytes + status.reserved_bytes))

    def have_drawn(rows: int) -> bool:
        measure()
        return sum(status.rows for status in samplers.status()) >= rows

    samplers.wait_for(lambda _: have_drawn(records // epochs))
    with BatchedDataLoader(store, BATCH_SIZE, shuffle=True, seed=0, memory_limit="512MiB") as loader:
        print("epoch      rows       new      gone      loss  waiting  first batch     store")
        for epoch in range(epochs):
            samplers.wait_for(lambda _, share=epoch + 1: have_drawn(records * share // epochs))  # type: ignore[misc]
            started, total = now(), 0.0
            for number, batch in enumerate(loader):
                loss = nn.functional.mse_loss(model(batch["wave"]), batch["frequency"] / 100)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.item() * len(batch["wave"])
                if number % 20 == 0:
                    measure()
            stats = loader.stats()
            assert stats.growth is not None
            new, gone = stats.growth.new_rows, stats.growth.gone_rows
            mean = total / max(1, stats.rows)
            run.epochs.append(Epoch(started, now(), stats.rows, new, gone, mean, stats.wait_share, stats.first_batch_s))
            print(
                f"{epoch:5}  {stats.rows:8,}  {new:8,}  {gone:8,}  {mean:8.4f}  {stats.wait_share:7.1%}"
                f"  {stats.first_batch_s:9.2f} s  {run.size[-1][1] / 1e6:5.0f} MB"
            )
    run.seconds = now()
    return run


def plot(run: Run, path: str) -> None:
    """Draw the store's size, the rows of each epoch, the loss and the share of waiting, over time."""
    import matplotlib as mpl  # noqa: PLC0415  (an optional package that only the picture needs)

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(4, 1, figsize=(8, 9), sharex=True, layout="constrained")
    size, rows, loss, wait = axes
    size.plot([t for t, _ in run.size], [bytes_ / 1e6 for _, bytes_ in run.size], color="tab:blue")
    size.axhline(run.limit_bytes / 1e6, color="tab:red", linestyle="--", linewidth=1)
    size.set_ylabel("store, MB\n(limit dashed)")
    middle = [(e.began_s + e.ended_s) / 2 for e in run.epochs]
    width = [e.ended_s - e.began_s for e in run.epochs]
    old = [e.rows - e.new_rows for e in run.epochs]
    rows.bar(middle, old, width, color="tab:gray", label="seen before")
    rows.bar(middle, [e.new_rows for e in run.epochs], width, bottom=old, color="tab:green", label="new")
    rows.legend(loc="upper left")
    rows.set_ylabel("rows per epoch")
    loss.plot(middle, [e.loss for e in run.epochs], marker="o", color="tab:purple")
    loss.set_yscale("log")
    loss.set_ylabel("training loss")
    wait.bar(middle, [100 * e.wait_share for e in run.epochs], width, color="tab:orange")
    wait.set_ylabel("waiting for data, %")
    wait.set_xlabel("seconds")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def growing(folder: str, store_bytes: int, epochs: int, processes: int, objects: int) -> Run:
    """Serve the archive, sample from it, and train on the store; return the figures of the run."""
    archive = Path(folder) / "archive"
    make_archive(archive, objects, OBJECT_RECORDS)
    store = SampleStore(Path(folder) / "store", schema=SCHEMA, max_bytes=store_bytes)
    records = int(DRAWN * store_bytes) // RECORD_BYTES
    with Server(archive) as server:
        where = Archive(server.endpoint, objects, OBJECT_RECORDS)
        with store.sample(draw, processes=processes, arguments=(where,), roll_s=2.0) as samplers:
            run = train(store, samplers, epochs, records)
        drawn = samplers.status()
    run.drawn_rows = sum(status.rows for status in drawn)
    print(*drawn, store.status(), sep="\n")
    failed = [status.last_error for status in drawn if status.last_error]
    if failed:
        print("sampling failed and was restarted:", *failed, sep="\n  ")
    return run


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m demo.growing", description="Train on a store while it grows.")
    parser.add_argument("--folder", help="for the archive and the store; default: a temporary one")
    parser.add_argument("--store-bytes", default="1GB", help="the store's limit")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--processes", type=int, default=4, help="sampling processes")
    parser.add_argument("--objects", type=int, default=32, help="of the archive, 16 MiB each")
    parser.add_argument("--plot", help="write a picture here")
    parser.add_argument("--json", help="write the figures here")
    given = parser.parse_args()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or temporary
        run = growing(folder, parse_bytes(given.store_bytes), given.epochs, given.processes, given.objects)
    print(f"{run.drawn_rows:,} records drawn in {run.seconds:.0f} s")
    if given.json:
        Path(given.json).write_text(json.dumps(asdict(run), indent=1) + "\n", encoding="utf-8")
    if given.plot:
        plot(run, given.plot)


if __name__ == "__main__":
    main()
