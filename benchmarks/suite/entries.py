"""Lists which systems run on which workload, and how. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from benchmarks.suite.workloads import WORKLOADS, Workload

Role = Literal["ours", "peer", "limit"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A system, set up for a workload.

    Attributes:
        name: On the command line and in results.
        system: Module in `benchmarks.suite.systems`.
        environment: Where it runs.
        title: For the report.
        role: Ours, a peer, or a limit.
        layout: Which layout of the data it reads or converts; "" stands for the first.
        options: For the system.
        share_rows: It loads a data set of only so many rows, made in the same way; None: all.
        shuffles: What it mixes, for the report.
    """

    name: str
    system: str
    environment: str
    title: str
    role: Role
    layout: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    share_rows: int | None = None
    shuffles: str = "rows of a window"


OURS = Entry("ours", "ours", "ours", "parquet_loader, threads", "ours")
PROCESS = Entry("ours-process", "ours", "ours", "parquet_loader, process", "ours", options={"isolation": "process"})
DECODE = Entry(
    "decode", "limits", "limits", "decoding alone, pyarrow", "limit", options={"limit": "pyarrow"}, shuffles="nothing"
)
POLARS = Entry(
    "decode-polars", "limits", "limits", "decoding alone, Polars", "limit", options={"limit": "polars"},
    shuffles="nothing",
)  # fmt: skip
COPY = Entry(
    "copy", "limits", "limits", "memory copy, one thread", "limit", options={"limit": "copy"}, shuffles="nothing"
)
JPEG = Entry(
    "decode-jpeg", "limits", "limits", "JPEG decoding alone", "limit", options={"limit": "jpeg"}, shuffles="nothing"
)
PETASTORM = Entry("petastorm", "petastorm_batched", "petastorm", "Petastorm BatchedDataLoader", "peer")
TORCH_0 = Entry("torch-0", "torch_dataloader", "torch", "torch DataLoader by hand, 0 workers", "peer",
                options={"workers": 0})  # fmt: skip
TORCH_2 = replace(TORCH_0, name="torch-2", title="torch DataLoader by hand, 2 workers", options={"workers": 2})
HUGGING_FACE = Entry(
    "huggingface", "huggingface", "huggingface", "Hugging Face datasets, streaming", "peer", options={"shuffled": True}
)
HUGGING_FACE_ORDER = replace(
    HUGGING_FACE,
    name="huggingface-unshuffled",
    title="Hugging Face datasets, streaming, unshuffled",
    options={"shuffled": False},
    shuffles="nothing",
)
RAY = Entry("ray", "ray_data", "ray", "Ray Data", "peer")
TENSORFLOW = Entry("tfrecord", "tensorflow_records", "tensorflow", "tf.data over TFRecord", "peer")
LANCE = Entry("lance", "lance_format", "lance", "Lance, scan", "peer", options={"shuffled": False}, shuffles="nothing")
LANCE_TAKE = replace(
    LANCE, name="lance-take", title="Lance, random take", options={"shuffled": True}, shuffles="all rows"
)
MOSAIC = Entry("mosaic", "mosaic", "mosaic", "MosaicML Streaming, 2 workers", "peer", options={"workers": 2})

LARGER_WINDOW = {"window_rows": 400_000}


def _with(entry: Entry, **options: Any) -> Entry:
    return replace(entry, options={**entry.options, **options})


def _layouts(entry: Entry, titles: Mapping[str, str]) -> tuple[Entry, ...]:
    """Return the entry for further layouts."""
    return tuple(
        replace(entry, name=f"{entry.name}-{layout}", title=f"{entry.title}, {title}", layout=layout)
        for layout, title in titles.items()
    )


OUR_LAYOUT = {"ours": "our layout"}
PACKED = {"ours": "our layout", "packed": "packed groups"}
_TABULAR_OURS = _with(OURS, **LARGER_WINDOW)

ENTRIES: dict[str, tuple[Entry, ...]] = {
    "tabular": (
        _TABULAR_OURS,
        replace(OURS, name="ours-200k", title="parquet_loader, threads, window of 200,000"),
        _with(PROCESS, **LARGER_WINDOW),
        *_layouts(_TABULAR_OURS, PACKED),
        DECODE,
        *_layouts(DECODE, PACKED),
        POLARS,
        PETASTORM,
        TORCH_0,
        TORCH_2,
        replace(HUGGING_FACE, share_rows=10_000),
        replace(HUGGING_FACE_ORDER, share_rows=400_000),
        RAY,
        LANCE,
        replace(LANCE_TAKE, share_rows=100_000),
        replace(MOSAIC, share_rows=100_000),
    ),
    "tabular-256": (
        _TABULAR_OURS,
        replace(_with(_TABULAR_OURS, grouped=True), name="ours-grouped", title="parquet_loader, threads, grouped"),
        _with(PROCESS, **LARGER_WINDOW),
        DECODE,
        PETASTORM,
        TORCH_0,
        LANCE,
    ),
    "science": (
        replace(OURS, layout="raw"),
        replace(PROCESS, layout="raw"),
        *_layouts(OURS, {"list": "lists of other writers"}),
        COPY,
        replace(DECODE, layout="raw"),
        *_layouts(DECODE, {"list": "lists of other writers"}),
        PETASTORM,
        TORCH_0,
        TORCH_2,
        *_layouts(TORCH_0, {"raw": "our raw tensors"}),
        replace(HUGGING_FACE, share_rows=4096),
        replace(HUGGING_FACE_ORDER, share_rows=4096),
        RAY,
        TENSORFLOW,
        LANCE,
        LANCE_TAKE,
        MOSAIC,
    ),
    "wide": (
        OURS,
        PROCESS,
        *_layouts(OURS, OUR_LAYOUT),
        DECODE,
        *_layouts(DECODE, OUR_LAYOUT),
        POLARS,
        replace(PETASTORM, share_rows=32_768),
        TORCH_0,
        LANCE,
    ),
    "ragged": (
        OURS,
        PROCESS,
        *_layouts(OURS, OUR_LAYOUT),
        DECODE,
        *_layouts(DECODE, OUR_LAYOUT),
        POLARS,
        PETASTORM,
        TORCH_0,
        TORCH_2,
        replace(HUGGING_FACE, share_rows=16_384),
        RAY,
        LANCE,
        LANCE_TAKE,
        MOSAIC,
    ),
    "text": (
        OURS,
        PROCESS,
        *_layouts(OURS, OUR_LAYOUT),
        DECODE,
        *_layouts(DECODE, OUR_LAYOUT),
        POLARS,
        PETASTORM,
        TORCH_0,
        TORCH_2,
        replace(HUGGING_FACE, share_rows=65_536),
        RAY,
        LANCE,
        LANCE_TAKE,
        MOSAIC,
    ),
    "images": (
        OURS,
        PROCESS,
        JPEG,
        PETASTORM,
        TORCH_0,
        TORCH_2,
        HUGGING_FACE,
        RAY,
        LANCE,
        LANCE_TAKE,
        MOSAIC,
    ),
}
assert set(ENTRIES) == set(WORKLOADS)
assert {entry.layout for entries in ENTRIES.values() for entry in entries if entry.layout} <= {
    layout for workload in WORKLOADS.values() for layout in workload.data.layouts
}


def layout_of(workload: Workload, entry: Entry) -> str:
    """Return the layout that an entry reads."""
    return entry.layout or workload.data.layouts[0]


def rows_of(workload: Workload, entry: Entry, scale: float) -> int:
    """Return the rows that an entry loads when everything is made `scale` times as large."""
    least = workload.data.files * 16
    full = max(least, round(workload.data.rows * scale))
    return full if entry.share_rows is None else max(least, min(full, entry.share_rows))


def select(workload: Workload, names: tuple[str, ...]) -> tuple[Entry, ...]:
    """Return the entries that have one of the names, or whose system or first word is one of them; all if none given.

    Raises:
        KeyError: nothing bears that name.
    """
    entries = ENTRIES[workload.name]
    if not names:
        return entries
    known = {alias for all_ in ENTRIES.values() for entry in all_ for alias in _aliases(entry)}
    for name in names:
        if name not in known:
            raise KeyError(name)
    return tuple(entry for entry in entries if set(names) & _aliases(entry))


def _aliases(entry: Entry) -> set[str]:
    return {entry.name, entry.system, entry.name.split("-", maxsplit=1)[0], entry.environment} - {""}
