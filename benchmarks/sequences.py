"""Compares `TokenLoader` with the token loaders of other projects, interleaved, on the same documents of token ids.

    python -m benchmarks.sequences --nanochat ~/nanochat --torchtitan ~/torchtitan
    python -m benchmarks.sequences --systems ours trl --rounds 5 --seconds 2
    python -m benchmarks.sequences --epochs 12    whole epochs of 60 million tokens, packed and not packed

Needs `pip install datasets trl torchdata litdata lancedb tyro`; a system whose packages are missing is left out. The
loops of nanochat (`nanochat/dataloader.py`) and torchtitan (`torchtitan/hf_datasets/text_datasets.py`) run unchanged
from a checkout. Stubs replace modules that they import but do not need here, and the tokenizer returns the ids of the
column.
Each system delivers batches of [32, 2048] for some seconds, in its own process, in turns with the others. After some
batches its state is taken, and a new loader with that state must deliver the next batch.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import importlib.util
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader, TokenLoader, write_dataset

LENGTH, ROWS = 2048, 32
FILES, DOCUMENTS, GROUP = 5, 6000, 1000
BOS = 50_001


class Run(NamedTuple):
    """An iteration of one system.

    Attributes:
        batches: Yields batches.
        ids: Returns the ids of a batch, and how many of them are padding.
        state: Returns the state after the last batch.
    """

    batches: Iterator[Any]
    ids: Callable[[Any], tuple[Any, int]]
    state: Callable[[], Any]


def write(folder: Path) -> None:
    """Write documents with the lengths of web pages; nanochat leaves the last file for validation."""
    rng = np.random.default_rng(0)
    (folder / "parquet").mkdir()
    for number in range(FILES):
        lengths = rng.lognormal(6, 1.2, DOCUMENTS).astype(np.int64) + 1
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ids = rng.integers(0, 50_000, offsets[-1]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
        table = pa.table({"text": lists, "tokens": lengths.astype(np.int32)})
        pq.write_table(table, folder / "parquet" / f"{number}.parquet", row_group_size=GROUP, use_dictionary=False)


def paths(folder: Path) -> list[str]:
    return [str(path) for path in sorted((folder / "parquet").iterdir())]


def stub(name: str, **members: Any) -> None:
    """Put a module in the place of one that a loop imports."""
    parts = name.split(".")
    for stop in range(1, len(parts)):
        sys.modules.setdefault(".".join(parts[:stop]), types.ModuleType(".".join(parts[:stop])))
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(folder: Path, state: Any, checkout: Path | None) -> Run:  # noqa: ARG001
    loader = TokenLoader(
        paths(folder)[:-1], "text", length=LENGTH, batch_size=ROWS, shuffle=True, lengths="tokens", num_threads=2
    )
    if state is not None:
        loader.load_state_dict(state)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    return Run(batches(), _ids_of_ours, loader.state_dict)


def _ids_of_ours(batch: Any) -> tuple[Any, int]:
    return batch["input_ids"], batch["input_ids"].numel() - int(batch["seq_lens"].numpy().sum())


def ours_keys(folder: Path, state: Any, checkout: Path | None) -> Run:  # noqa: ARG001
    """Deliver only ids and labels, like nanochat, torchtitan and LitData."""
    loader = TokenLoader(
        paths(folder)[:-1], "text", length=LENGTH, batch_size=ROWS, shuffle=True, lengths="tokens", num_threads=2,
        keys=["input_ids", "labels", "seq_lens"],
    )  # fmt: skip
    if state is not None:
        loader.load_state_dict(state)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    return Run(batches(), _ids_of_ours, loader.state_dict)


def rows(folder: Path, state: Any, checkout: Path | None) -> Run:  # noqa: ARG001
    """Deliver documents without packing, with about as many tokens in a batch, to show the cost of packing."""
    loader = BatchedDataLoader(paths(folder)[:-1], 80, columns=["text"], shuffle=True, num_threads=2)
    if state is not None:
        loader.load_state_dict(state)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    return Run(batches(), lambda b: (b["text"].values, 0), loader.state_dict)


def nanochat(folder: Path, state: Any, checkout: Path | None) -> Run:
    assert checkout is not None
    stub("nanochat.common", get_dist_info=lambda: (False, 0, 0, 1))
    stub("nanochat.dataset", list_parquet_files=lambda **_: paths(folder))
    module = module_at(checkout / "nanochat" / "dataloader.py")

    class Ids:
        def get_bos_token_id(self) -> int:
            return BOS

        def encode(self, documents: list[list[int]], prepend: int, num_threads: int) -> list[list[int]]:  # noqa: ARG002
            return [[prepend, *ids] for ids in documents]

    last: list[Any] = [None]
    loop = module.tokenizing_distributed_data_loader_with_state_bos_bestfit(
        Ids(), ROWS, LENGTH, "train", device="cpu", resume_state_dict=state
    )

    def batches() -> Iterator[Any]:
        for inputs, _, found in loop:
            last[0] = found
            yield inputs

    return Run(batches(), lambda b: (b, 0), lambda: last[0])


def torchtitan(folder: Path, state: Any, checkout: Path | None) -> Run:
    assert checkout is not None
    from datasets import load_dataset  # noqa: PLC0415  (an extra)
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  (an extra)

    class Loader:
        Config = make_dataclass("Config", [], kw_only=True)

    stub("torchtitan.components.dataloader", ParallelAwareDataloader=Loader)
    stub("torchtitan.components.loss", IGNORE_INDEX=-100)
    stub("torchtitan.components.tokenizer", BaseTokenizer=object)
    stub("torchtitan.config", JobConfig=object)
    stub("torchtitan.hf_datasets.interleaved", InterleavedDataset=object)
    stub("torchtitan.hf_datasets", DatasetConfig=types.SimpleNamespace)
    stub("torchtitan.tools.logging", logger=logging.getLogger("torchtitan"))
    module = module_at(checkout / "torchtitan" / "hf_datasets" / "text_datasets.py")

    class Ids:
        def encode(self, ids: list[int], add_bos: bool, add_eos: bool) -> list[int]:  # noqa: ARG002
            return [BOS, *ids, BOS + 1]

    module.DATASETS["ids"] = types.SimpleNamespace(
        path="parquet",
        loader=lambda path: load_dataset(path, data_files=paths(folder)[:-1], split="train", streaming=True),
        sample_processor=lambda sample: sample["text"],
    )
    made = module.HuggingFaceTextDataset("ids", None, Ids(), seq_len=LENGTH, infinite=True)
    loader = StatefulDataLoader(made, batch_size=ROWS)
    if state is not None:
        loader.load_state_dict(state)
    return Run(iter(loader), lambda b: (b[0]["input"], 0), loader.state_dict)


def trl(folder: Path, state: Any, checkout: Path | None) -> Run:  # noqa: ARG001
    """Stream by `datasets`, pack by TRL's best fit (`pack_dataset`), collate by TRL's collator, without padding."""
    from datasets import load_dataset  # noqa: PLC0415  (an extra)
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  (an extra)
    from trl import pack_dataset  # noqa: PLC0415  (an extra)
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling  # noqa: PLC0415  (an extra)

    rows = load_dataset("parquet", data_files=paths(folder)[:-1], split="train", streaming=True)
    rows = rows.remove_columns("tokens").rename_column("text", "input_ids")
    packed = pack_dataset(rows, LENGTH)
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=False, return_position_ids=True)
    loader = StatefulDataLoader(packed, batch_size=ROWS, collate_fn=collator)
    if state is not None:
        loader.load_state_dict(state)

    def ids(batch: Any) -> tuple[Any, int]:
        return batch["input_ids"], ROWS * LENGTH - int((batch["labels"] >= 0).sum())

    return Run(epochs_of(loader), ids, loader.state_dict)


def epochs_of(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield batches for ever."""
    while True:
        yield from loader


def litdata(folder: Path, state: Any, checkout: Path | None) -> Run:  # noqa: ARG001
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader  # noqa: PLC0415  (an extra)

    made = StreamingDataset(
        str(folder / "litdata"), item_loader=TokensLoader(block_size=LENGTH + 1), shuffle=True, drop_last=True
    )
    loader = StreamingDataLoader(made, batch_size=ROWS, num_workers=0)
    if state is not None:
        loader.load_state_dict(state)
    return Run(epochs_of(loader), lambda b: (b[:, :-1], 0), loader.state_dict)


def lancedb(folder: Path, state: Any, checkout: Path | None) -> Run:  # noqa: ARG001
    """Read rows in random order in clumps of 64, and pack them end to end; a fresh epoch has a state of its own."""
    from lancedb import connect  # noqa: PLC0415  (an extra)
    from lancedb.streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415  (an extra)

    table = connect(str(folder / "lance")).open_table("documents")
    tokens = sum(
        pq.read_table(path, columns=["tokens"]).column(0).to_numpy().sum() + DOCUMENTS for path in paths(folder)[:-1]
    )
    last: list[Any] = [None]

    def made(epoch: int) -> Any:
        return StreamingDataset(
            table, columns=["text"], pack_sequences=LENGTH, eos_id=BOS, pad_id=BOS + 1, epoch=epoch,
            blocks_per_epoch=int(tokens) // LENGTH, shuffle_clump_size=64,
        )  # fmt: skip

    def batches() -> Iterator[Any]:
        epoch = 0 if state is None else state["epoch"]
        while True:
            dataset = last[0] = made(epoch)
            if state is not None and epoch == state["epoch"]:
                dataset.load_state_dict(state)
            yield from StreamingDataLoader(dataset, batch_size=ROWS, num_workers=0)
            epoch += 1

    def ids(batch: Any) -> tuple[Any, int]:
        return batch["input_ids"], int((batch["input_ids"] == BOS + 1).sum())

    def state_dict() -> Any:
        return last[0].state_dict()

    return Run(batches(), ids, state_dict)


SYSTEMS: dict[str, Callable[[Path, Any, Path | None], Run]] = {
    "ours": ours,
    "ours, ids and labels": ours_keys,
    "ours, not packed": rows,
    "litdata": litdata,
    "lancedb": lancedb,
    "nanochat": nanochat,
    "torchtitan": torchtitan,
    "trl": trl,
}


def _documents(path: str) -> Iterator[Any]:
    import torch  # noqa: PLC0415  (as litdata)

    for batch in pq.ParquetFile(path).iter_batches(GROUP, columns=["text"]):
        lists = batch.column(0)
        for number in range(len(lists)):
            yield torch.from_numpy(lists[number].values.to_numpy(zero_copy_only=True).copy())


def write_litdata(folder: Path) -> None:
    """Write the documents in LitData's format."""
    from litdata import TokensLoader, optimize  # noqa: PLC0415  (an extra)

    optimize(
        fn=_documents, inputs=paths(folder)[:-1], output_dir=str(folder / "litdata"), chunk_bytes="32MB",
        item_loader=TokensLoader(), num_workers=1,
    )  # fmt: skip


def write_lance(folder: Path) -> None:
    """Write the documents in Lance's format."""
    from lancedb import connect  # noqa: PLC0415  (an extra)

    table = pa.concat_tables(pq.read_table(path, columns=["text"]) for path in paths(folder)[:-1])
    connect(str(folder / "lance")).create_table("documents", table)


def serve(system: str, folder: Path, checkout: Path | None, seconds: float) -> None:
    """Answer each line on stdin with the figures of some seconds; the first answer is the exactness of a resume."""
    import torch  # noqa: PLC0415  (as the systems)

    torch.set_num_threads(1)  # threads of OpenMP that wait for a busy processor would be measured instead
    begin = SYSTEMS[system]
    run = begin(folder, None, checkout)
    for _ in range(7):
        next(run.batches)
    state = copy.deepcopy(run.state())  # as a checkpoint does: torchtitan's refers to the buffer that it fills
    expected = run.ids(next(run.batches))[0].numpy().copy()
    again = begin(folder, state, checkout)
    found = again.ids(next(again.batches))[0].numpy()
    print(json.dumps({"exact": bool(np.array_equal(expected, found))}), flush=True)
    for _ in sys.stdin:
        tokens = padding = 0
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < seconds:
            ids, some = run.ids(next(run.batches))
            tokens, padding = tokens + ids.numel(), padding + some
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        kept = tokens - padding
        print(json.dumps({"wall": kept / wall, "cpu": kept / cpu, "padding": padding / tokens}), flush=True)


EPOCH_DOCUMENTS = 72_000
EPOCH_KEYS: dict[str, list[str] | None] = {
    "all keys": None,
    "ids, labels, ends": ["input_ids", "labels", "cu_seqlens", "max_seqlen"],
    "ids": ["input_ids"],
}


def measure_epochs(folder: Path, epochs: int) -> None:
    """Print the time of whole epochs from one list column that `write_dataset` wrote; medians.

    ``ids`` are the tokens of the column, packed; the other keys are made of them. Before each epoch that is timed, the
    same loader reads another one: while other loaders have their turn, it has read the first window of its next epoch.
    """
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(6, 1.2, EPOCH_DOCUMENTS).astype(np.int64) + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = rng.integers(0, 50_000, offsets[-1]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    write_dataset(pa.table({"text": lists, "tokens": lengths.astype(np.int32)}), folder / "epochs")
    loaders: dict[str, Any] = {
        name: TokenLoader(
            folder / "epochs", "text", length=LENGTH, batch_size=ROWS, shuffle=True, lengths="tokens", num_threads=2,
            keys=keys,
        )
        for name, keys in EPOCH_KEYS.items()
    }  # fmt: skip
    loaders["not packed"] = BatchedDataLoader(folder / "epochs", 80, columns=["text"], shuffle=True, num_threads=2)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
    for _ in range(epochs):
        for name, loader in loaders.items():
            for _ in loader:
                pass
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in loader:
                pass
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    print(f"{len(ids):,} tokens, batches of [{ROWS}, {LENGTH}]")
    print("| | tokens/s | compared with not packed | ns of processor time per token |\n|---|---|---|---|")
    for name, found in seconds.items():
        ratios = [rows / own for (own, _), (rows, _) in zip(found[1:], seconds["not packed"][1:], strict=True)]
        wall, cpu = (statistics.median(values) for values in zip(*found[1:], strict=True))
        rate, ratio = len(ids) / wall / 1e6, statistics.median(ratios)
        print(f"| {name} | {rate:.0f} M | {ratio:.2f} | {cpu / len(ids) * 1e9:.2f} |")
        loaders[name].close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--nanochat", type=Path, help="a checkout")
    parser.add_argument("--torchtitan", type=Path, help="a checkout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=0, help="measure that many whole epochs instead, at least 3")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    checkouts = {"nanochat": given.nanochat, "torchtitan": given.torchtitan}
    if given.serve:
        serve(given.serve, given.folder, checkouts.get(given.serve), given.seconds)
        return
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if given.epochs:
            measure_epochs(folder, given.epochs)
            return
        write(folder)
        if "litdata" in given.systems:
            write_litdata(folder)
        if "lancedb" in given.systems:
            write_lance(folder)
        processes: dict[str, Any] = {}
        figures: dict[str, list[dict[str, float]]] = {}
        for system in given.systems:
            if system in checkouts and checkouts[system] is None:
                print(f"{system}: left out; name a checkout with --{system}")
                continue
            command = [sys.executable, "-m", "benchmarks.sequences", "--serve", system, "--folder", str(folder)]
            command += [f"--{system}={checkouts[system]}"] if system in checkouts else []
            command += ["--seconds", str(given.seconds)]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            answer = process.stdout.readline() if process.stdout else ""
            if not answer:
                print(f"{system}: left out; its error is above")
                continue
            print(f"{system}: resumes exactly: {json.loads(answer)['exact']}", flush=True)
            processes[system], figures[system] = process, []
        for _ in range(given.rounds):
            for system, process in processes.items():
                process.stdin.write("go\n")
                process.stdin.flush()
                figures[system].append(json.loads(process.stdout.readline()))
        for process in processes.values():
            process.stdin.close()
        print("| | tokens/s | tokens/s of processor time | fill |\n|---|---|---|---|")
        for system, rounds in figures.items():
            wall, cpu, padding = (statistics.median(r[name] for r in rounds) for name in ("wall", "cpu", "padding"))
            print(f"| {system} | {wall / 1e6:.2f} M | {cpu / 1e6:.2f} M | {1 - padding:.3f} |")


if __name__ == "__main__":
    main()
