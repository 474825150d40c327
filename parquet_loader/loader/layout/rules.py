"""Judges a source's layout: pure functions that turn facts into findings.

Each finding has a cost and the command or the argument that fixes it. The cost is in processor seconds of an epoch (for
`many_files`, in seconds of every start). It is measured if a trial was read, else estimated by the constants below.
Thresholds and the rule of mixing are those of the loader's own advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from parquet_loader.common import format_bytes, format_count, kernels_remedy
from parquet_loader.decode import is_known_codec
from parquet_loader.loader.advice import (
    FEWEST_TINY,
    HEAVY_CODECS,
    LEAST_COST_SHARE,
    SLOW_DECODING_BYTES_PER_S,
    TINY_CHUNK_BYTES,
    TINY_ROW_GROUP_BYTES,
    mixing_findings,
)
from parquet_loader.loader.layout.columns import StoredColumn
from parquet_loader.loader.layout.facts import LayoutFacts, Problem
from parquet_loader.read import REFUSES_NULLS

Level = Literal["error", "warning", "note"]

# Measured on two cores of an AMD EPYC (Zen 4), page cache warm, one thread: decoded bytes per second by route.
ROUTE_BYTES_PER_S = {"constant": 1e12, "pages to window": 9e9, "kernel to window": 4.5e9, "kernel": 2e9, "arrow": 1.5e9}
# Seconds of a column chunk, whatever it holds: alone, and if kernels read small row groups together.
CHUNK_S, JOINT_CHUNK_S = 25e-6, 5e-6
# Decompressed bytes per second on the same machine, used if the rate was not measured on the files' own pages.
CODEC_BYTES_PER_S = {"zstd": 1.0e9, "gzip": 0.35e9, "brotli": 0.3e9}
# Read seconds saved if nullable rows of bytes, and lists of one length, are stored as raw bytes without nulls.
RAW_SAVES = {"it is nullable": 0.27, "it is a list": 0.2}
# Seconds of cutting a batch from a window and handing it over. For larger batches this is less than a training step.
BATCH_S = 30e-6
SMALL_BATCH = 32
# The smallest share of the decoded bytes of columns that are worth a warning.
LEAST_COLUMN_SHARE = 0.2
# Row groups whose decoded form takes a larger share of `memory_limit` are giant: few fit into memory at a time.
GIANT_SHARE = 1 / 8
GIANT_BYTES = 512 * 2**20
FEW_ROW_GROUPS, FEW_BYTES = 4, 64 * 2**20
# Ranks with fewer bytes than this need no row groups of their own.
RANK_BYTES = 8 * 2**20
# A batch is huge if it takes a larger share of `memory_limit`.
HUGE_SHARE = 1 / 16
FEWEST_SMALL_FILES, SMALL_FILE_BYTES = 100, 4 * 2**20
LEFT_OUT_SHARE = 0.1
DELETED_SHARE = 0.2
# A dictionary of numbers is useless if it does not shrink them to this share.
USEFUL_DICTIONARY = 0.95
NARROW_COLUMNS = 32
_FLAT = "Write the columns at the top level, without dots in their names."
_WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


@dataclass(frozen=True, slots=True)
class LayoutFinding:
    """One thing about a source that costs time, spoils the shuffle, or stops a loader.

    Attributes:
        cause: A short name, for programs.
        level: ``"error"`` if a loader raises, ``"warning"`` if a change is worthwhile, ``"note"`` if it may be.
        text: The cause with its figures.
        remedy: What to do.
        command: The shell command that does it; "" if there is none.
        cost_s: Estimated processor seconds of an epoch that it costs; 0 if it costs none.
        gain: The gain of the remedy, in words, and whether it is measured.
    """

    cause: str
    level: Level
    text: str
    remedy: str
    command: str = ""
    cost_s: float = 0.0
    gain: str = ""


def layout_findings(facts: LayoutFacts) -> tuple[LayoutFinding, ...]:
    """Return the findings about a source: errors, warnings, notes; in each level those without a cost come first."""
    found = [finding for rule in _RULES for finding in rule(facts)]
    order = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(found, key=lambda finding: (order[finding.level], finding.cost_s != 0, -finding.cost_s)))


def rewrite_command(facts: LayoutFacts, *options: str) -> str:
    """Return the command that rewrites the source."""
    return " ".join(["parquet-loader rewrite", facts.source, facts.target, *options])


def decode_s(facts: LayoutFacts) -> float:
    """Return processor seconds of reading and decoding an epoch of all ranks: measured, or estimated."""
    if facts.trial is not None:
        return facts.trial.decode_s / facts.trial.share * facts.ranks
    return _estimated_s(facts)


def _estimated_s(facts: LayoutFacts) -> float:
    rates = {
        column.column.name: ROUTE_BYTES_PER_S[column.routes[0].route] for column in facts.delivered if column.routes
    }
    seconds = _chunk_s(facts) * sum(column.chunks for column in facts.columns)
    for column in facts.columns:
        rate = rates.get(column.path) or rates.get(column.name) or ROUTE_BYTES_PER_S["arrow"]
        seconds += column.encoded_bytes / rate
        heavy = [codec for codec in column.codecs if codec in CODEC_BYTES_PER_S]
        seconds += column.encoded_bytes / CODEC_BYTES_PER_S[heavy[0]] if heavy else 0.0
    return seconds


def _chunk_s(facts: LayoutFacts) -> float:
    """Return the seconds of a small column chunk, whatever it holds."""
    routes = {column.routes[0].route for column in facts.delivered if column.routes}
    return JOINT_CHUNK_S if routes <= {"kernel to window", "constant"} else CHUNK_S


def _gain(facts: LayoutFacts, cost_s: float) -> str:
    total = decode_s(facts)
    share = min(0.99, cost_s / total) if total else 0.0
    how = "measured" if facts.trial is not None else "estimated"
    return f"decoding an epoch takes about {_seconds(total)} ({how}), {share:.0%} less after it"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _names(columns: list[str]) -> str:
    return ", ".join(map(repr, columns[:3])) + (f" and {len(columns) - 3} more" if len(columns) > 3 else "")


# ---------------------------------------------------------------------- what stops a loader


def _refused(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    types = [p for p in facts.problems if p.column is not None and not p.nulls]
    nulls = [p for p in facts.problems if p.nulls]
    if types:
        others = [column.column.name for column in facts.delivered]
        columns = f"columns={others[:20]}" if 0 < len(others) <= 20 else "columns=[...]"
        yield LayoutFinding(
            "refused_types",
            "error",
            f"{_columns_have(types)} types that no tensor can hold: {types[0].column}: "
            f"{types[0].reason.splitlines()[0] if types[0].reason else ''}",
            f"Leave out {_names([p.column or '' for p in types])}: BatchedDataLoader(..., {columns}).",
        )
    if nulls:
        first = nulls[0]
        yield LayoutFinding(
            "refused_nulls",
            "error",
            f"{_columns_have(nulls)} nulls that would be refused: {first.column}: {first.reason.splitlines()[0]}",
            f"Pass a schema with fill= or null='mask' for {_names([p.column or '' for p in nulls])}.",
        )
    for problem in facts.problems:
        if problem.column is None:
            yield LayoutFinding(
                "refused", "error", problem.reason.splitlines()[0] if problem.reason else "", "See docs/errors.md."
            )
    if REFUSES_NULLS in facts.unreadable:  # of a column whose nulls the footers do not count
        yield LayoutFinding(
            "refused_nulls",
            "error",
            facts.unreadable.partition(f"; {REFUSES_NULLS}")[0],
            "Pass a schema with fill= or null='mask'; Schema.infer(source, nulls='mask') returns one.",
        )
    elif facts.unreadable:
        yield LayoutFinding(
            "unreadable", "error", facts.unreadable, "Write the file again, or pass on_error='skip' to leave it out."
        )


def _columns_have(problems: list[Problem]) -> str:
    return f"{format_count(len(problems), 'column')} {'has' if len(problems) == 1 else 'have'}"


def _memory(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    if facts.memory_error:
        most = max(2**16, facts.memory_limit_bytes // 64)
        yield LayoutFinding(
            "memory_limit",
            "error",
            facts.memory_error,
            "Raise memory_limit to the size that the message names, lower batch_size, or make row groups smaller.",
            rewrite_command(facts, f"--row-group-bytes {_binary(most)}"),
        )


def _binary(nbytes: int) -> str:
    return f"{nbytes // 2**20}MiB" if nbytes >= 2**20 else f"{max(1, nbytes // 2**10)}KiB"


# ---------------------------------------------------------------------- what spoils the shuffle


def _mixing(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    for finding in mixing_findings(facts.shuffling, facts.memory_limit_bytes):
        score = None if facts.shuffling is None else facts.shuffling.score
        gain = "" if score is None else f"the mixing score is {score.score:.2f} now, and 1 for rows in random order"
        yield LayoutFinding(
            "mixing", "warning", finding.text, "Put the rows into random order once.",
            rewrite_command(facts, "--shuffle"), gain=gain,
        )  # fmt: skip


def _uneven_ranks(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    per_step = facts.ranks * facts.batch_size
    if facts.ranks < 2:
        return
    left = facts.rows % per_step
    if facts.rows < facts.ranks:
        yield LayoutFinding(
            "uneven_ranks",
            "warning",
            f"There are {format_count(facts.rows, 'row')} for {facts.ranks:,} ranks, so ranks repeat the rows of "
            "others.",
            "Use fewer ranks, or more data.",
        )
    elif left > LEFT_OUT_SHARE * facts.rows:
        best = max(1, facts.rows // facts.ranks // max(1, round(facts.rows / per_step)))
        yield LayoutFinding(
            "uneven_ranks",
            "warning",
            f"{facts.rows:,} rows are {facts.rows // per_step} steps of {facts.ranks} ranks with batches of "
            f"{facts.batch_size:,}, and {left:,} rows ({left / facts.rows:.0%}) remain: with drop_last=True they are "
            "left out of each epoch, else each rank's last batch is smaller.",
            f"Use a batch_size that divides the rows of a rank, such as {best:,}.",
            gain=f"{facts.rows % (best * facts.ranks):,} rows remain with it",
        )


# ---------------------------------------------------------------------- row groups and files


def _row_groups(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    count, nbytes = len(facts.group_rows), int(facts.group_bytes.sum())
    if not count:
        return
    columns = max(1, len(facts.columns))
    mean = nbytes / count
    if count >= FEWEST_TINY and (mean < TINY_ROW_GROUP_BYTES or mean < TINY_CHUNK_BYTES * columns):
        cost_s = decode_s(facts) - nbytes / SLOW_DECODING_BYTES_PER_S
        if facts.trial is None:
            cost_s = _chunk_s(facts) * columns * count
        if cost_s > 0 and cost_s >= LEAST_COST_SHARE * decode_s(facts):
            yield LayoutFinding(
                "tiny_row_groups",
                "warning",
                f"Row groups are tiny: {count:,} of {np.mean(facts.group_rows):,.0f} rows and {format_bytes(mean)} "
                f"before compression, on average; each costs time of its own, whatever it holds.",
                "Make row groups of about 8 MiB.",
                rewrite_command(facts),
                cost_s,
                _gain(facts, cost_s),
            )
        return
    largest = int(np.argmax(facts.group_rows * max(facts.row_bytes, 1.0)))
    decoded = max(facts.group_rows[largest] * facts.row_bytes, 0.0)
    limit = min(GIANT_BYTES, facts.memory_limit_bytes * GIANT_SHARE)
    is_few = count < FEW_ROW_GROUPS and nbytes > FEW_BYTES
    if decoded > limit or is_few:
        cause = (
            f"The largest row group holds {int(facts.group_rows[largest]):,} rows, {format_bytes(decoded)} decoded"
            if decoded > limit
            else f"{'One row group holds' if count == 1 else f'{count} row groups hold'} {format_bytes(nbytes)} before "
            "compression"
        )
        yield LayoutFinding(
            "giant_row_groups",
            "warning",
            f"{cause}, under a memory_limit of {format_bytes(facts.memory_limit_bytes)}: windows mix neighbouring rows "
            "only, few threads can decode, and a remote row group is fetched whole.",
            "Make row groups of about 8 MiB.",
            rewrite_command(facts),
            gain="windows then mix rows of several row groups, and each thread decodes its own",
        )
    elif count < facts.ranks and nbytes >= facts.ranks * RANK_BYTES:
        pairs = facts.ranks + count - 1
        cost_s = decode_s(facts) * (1 - count / pairs) / 2
        size = max(2**16, int(facts.rows * max(facts.row_bytes, 1.0) / (4 * facts.ranks)))
        yield LayoutFinding(
            "few_row_groups",
            "warning",
            f"There are {count} row groups for {facts.ranks} ranks: several ranks open, and in part decode, the same.",
            f"Make at least {4 * facts.ranks} row groups.",
            rewrite_command(facts, f"--row-group-bytes {_binary(min(size, 2**23))}"),
            cost_s,
            _gain(facts, cost_s),
        )


def _files(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    count, mean = len(facts.file_bytes), float(np.mean(facts.file_bytes)) if len(facts.file_bytes) else 0.0
    if count >= FEWEST_SMALL_FILES and mean < SMALL_FILE_BYTES:
        yield LayoutFinding(
            "many_files",
            "warning",
            f"There are {count:,} files of {format_bytes(mean)} on average: listing them and reading their footers "
            f"took {_seconds(facts.opening_s)}, and every start of a loader pays that.",
            "Write files of about 512 MiB.",
            rewrite_command(facts),
            facts.opening_s,
            f"about {_seconds(facts.opening_s * (1 - 1 / count))} at each start (measured)",
        )


def _deleted(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    stored = int(facts.group_rows.sum())
    share = 1 - int(facts.alive_rows.sum()) / max(1, stored)
    if share > DELETED_SHARE:
        cost_s = share * decode_s(facts)
        engine = {"delta": "OPTIMIZE (Delta)", "iceberg": "rewrite_data_files (Iceberg)"}.get(facts.table or "", "")
        yield LayoutFinding(
            "deleted_rows",
            "warning",
            f"{share:.0%} of the stored rows are deleted: they are read, and then dropped.",
            f"Compact the table{f' with {engine}' if engine else ''}, or write a copy.",
            rewrite_command(facts),
            cost_s,
            _gain(facts, cost_s),
        )


# ---------------------------------------------------------------------- columns


def _compression(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    encoded, stored = dict[str, int](), dict[str, int]()
    for column in facts.columns:
        for codec in column.codecs:
            if codec in HEAVY_CODECS:
                encoded[codec] = encoded.get(codec, 0) + column.encoded_bytes // len(column.codecs)
                stored[codec] = stored.get(codec, 0) + column.stored_bytes // len(column.codecs)
    measured = {} if facts.storage is None else {c.codec: c.bytes_per_s for c in facts.storage.codecs}
    for codec, nbytes in encoded.items():
        rate = measured.get(codec)
        cost_s = nbytes / (rate or CODEC_BYTES_PER_S[codec])
        total = decode_s(facts)
        if not is_known_codec(codec):
            cost_s = max(cost_s, 0.5 * total * nbytes / max(1, sum(c.encoded_bytes for c in facts.columns)))
        cost_s = min(cost_s, 0.95 * total)
        if cost_s > 0.2 * total:
            yield LayoutFinding(
                "compression",
                "warning",
                f"{codec} holds {stored[codec] / max(1, sum(c.stored_bytes for c in facts.columns)):.0%} of the stored "
                f"bytes, {nbytes / max(1, stored[codec]):.1f} times smaller. One thread decompresses "
                f"{(rate or CODEC_BYTES_PER_S[codec]) / 1e6:,.0f} MB/s "
                f"({'measured on a page' if rate else 'typical, not measured'}; files do not say the level).",
                "Use a light codec, or none; keep it if the disk or the network sets the pace.",
                rewrite_command(facts),
                cost_s,
                f"{_gain(facts, cost_s)}; up to {nbytes / max(1, stored[codec]):.1f} times the stored bytes",
            )


def _encoded(facts: LayoutFacts) -> dict[str, int]:
    """Return the encoded bytes of each delivered column; 0 for a column of several stored ones."""
    by_path = {column.path: column.encoded_bytes for column in facts.columns}
    return {c.column.name: by_path.get(c.column.name, 0) for c in facts.delivered}


def _routes(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    if facts.kernels:
        cost_s = 0.5 * decode_s(facts)
        yield LayoutFinding(
            "kernels", "warning", f"The compiled kernels are not used: {facts.kernels}.", kernels_remedy() + ".",
            cost_s=cost_s, gain=_gain(facts, cost_s),
        )  # fmt: skip
        return
    sizes = _encoded(facts)
    total = max(1, sum(sizes.values()))
    seconds = decode_s(facts)
    raw: dict[str, list[str]] = {}
    slow: dict[str, list[str]] = {}
    for column in facts.delivered:
        name, kind = column.column.name, column.column.kind
        for share in column.routes[:1]:
            is_slow = share.route == "arrow" and "do not decompress" not in share.reason
            if share.reason in RAW_SAVES:
                raw.setdefault(share.reason, []).append(name)
            elif is_slow and (kind == "fixed" or (kind == "list" and "do not decode" in share.reason)):
                slow.setdefault(share.reason, []).append(name)
    for reason, names in raw.items():
        share_ = sum(sizes[name] for name in names) / total
        if share_ >= LEAST_COLUMN_SHARE:
            is_list = reason == "it is a list"
            cost_s = RAW_SAVES[reason] * share_ * seconds
            yield LayoutFinding(
                "lists" if is_list else "nullable",
                "warning",
                f"{_names(names)} ({share_:.0%} of the bytes before compression) "
                + (
                    "are lists of one length: their levels are decoded with their numbers."
                    if is_list
                    else "may hold nulls by the files' schema, so their pages are not copied to the batch as they are."
                ),
                "Store them as raw bytes." if is_list else "Write them not-null.",
                rewrite_command(facts),
                cost_s,
                f"{_gain(facts, cost_s)} (typical)",
            )
    for reason, names in slow.items():
        share_ = sum(sizes[name] for name in names) / total
        cost_s, is_inner = 0.5 * share_ * seconds, "encod" not in reason and "decode" not in reason
        if share_ >= LEAST_COLUMN_SHARE:
            yield LayoutFinding(
                "slow_columns",
                "warning",
                f"Arrow decodes {_names(names)} ({share_:.0%} of the bytes before compression): {reason}.",
                _FLAT if is_inner else "Store them with an encoding that the kernels know.",
                "" if is_inner else rewrite_command(facts),
                cost_s,
                f"{_gain(facts, cost_s)} (typical)",
            )


def _dictionaries(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    useless, wasted = list[StoredColumn](), 0
    for column in facts.columns:
        width = _WIDTHS.get(column.physical_types[0], 0) if len(column.physical_types) == 1 else 0
        plain = column.values * width
        if not column.dictionary_bytes or column.is_nested:
            continue
        if (plain and column.encoded_bytes > USEFUL_DICTIONARY * plain) or column.path in facts.mixed:
            useless.append(column)
            wasted += max(0, column.encoded_bytes - plain) if plain else column.dictionary_bytes
    if not useless:
        return
    stored = max(1, sum(column.stored_bytes for column in facts.columns))
    share = sum(column.stored_bytes for column in useless) / stored
    fell_back = [column.path for column in useless if column.path in facts.mixed]
    is_worth_it = share >= LEAST_COLUMN_SHARE and wasted > LEAST_COST_SHARE * stored
    yield LayoutFinding(
        "dictionary",
        "warning" if is_worth_it else "note",
        f"Dictionaries do not shrink {_names([c.path for c in useless])} ({share:.0%} of the stored bytes)"
        + (f"; the writer gave that of {_names(fell_back)} up within a row group." if fell_back else "."),
        "Store columns of many distinct values without a dictionary.",
        rewrite_command(facts),
        gain=f"about {format_bytes(wasted)} of {format_bytes(stored)} ({wasted / stored:.0%}) fewer bytes to read",
    )


def _huge_values(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    batch = facts.row_bytes * facts.batch_size
    if facts.plan is None or batch <= HUGE_SHARE * facts.memory_limit_bytes:
        return
    sizes = _encoded(facts)
    largest = max(sizes, key=lambda name: sizes[name], default="")
    size = max(1, int(HUGE_SHARE * facts.memory_limit_bytes / 4 / max(facts.row_bytes, 1.0)))
    yield LayoutFinding(
        "huge_values",
        "warning",
        f"Rows are {format_bytes(facts.row_bytes)} each, most of it {largest!r}: a batch of {facts.batch_size:,} takes "
        f"{format_bytes(batch)} of the {format_bytes(facts.memory_limit_bytes)}, and a window holds only "
        f"{facts.plan.window_rows:,} rows.",
        f"Lower batch_size to {min(size, facts.batch_size):,}, raise memory_limit, or store smaller values (crops, "
        "compressed images, float16).",
        gain="larger windows mix better, and more is read ahead",
    )


def _batches(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    rows = max(1, facts.rows // facts.ranks)  # if there are fewer rows than ranks, each rank gets one
    if facts.batch_size > rows:
        yield LayoutFinding(
            "batch_size",
            "warning",
            f"batch_size={facts.batch_size:,} is more than the {format_count(rows, 'row')} of a rank: an epoch is one "
            "batch that is not full, and with drop_last=True none.",
            f"Use a batch_size of at most {rows:,}.",
        )
        return
    cost_s = BATCH_S * facts.rows / facts.batch_size
    if facts.batch_size <= SMALL_BATCH and cost_s > decode_s(facts) and facts.rows >= 1000 * facts.batch_size:
        yield LayoutFinding(
            "batch_size",
            "warning",
            f"Batches of {facts.batch_size:,} rows are small: handing over {facts.rows // facts.batch_size:,} of them "
            f"takes about {_seconds(cost_s)}, and decoding all rows {_seconds(decode_s(facts))}.",
            "Raise batch_size; or load larger batches, and slice them in the loop.",
            cost_s=cost_s,
            gain=f"about {_seconds(cost_s * 0.9)} an epoch with batches ten times as large (estimated)",
        )


# ---------------------------------------------------------------------- notes


def _notes(facts: LayoutFacts) -> Iterator[LayoutFinding]:
    flat = [c for c in facts.columns if not c.is_nested and c.physical_types[:1] not in (["INT96"], [])]
    if facts.columns and not any(column.indexed_chunks for column in facts.columns):
        yield LayoutFinding(
            "page_index",
            "note",
            "No column chunk has a page index: rows by index find pages by their headers, which are read once.",
            "Write files with a page index (pyarrow: write_page_index=True) if a sampler reads rows by index.",
        )
    if flat and not any(column.bounded_chunks for column in flat):
        yield LayoutFinding(
            "statistics",
            "note",
            "No column has statistics, so filters cannot skip row groups.",
            "Write statistics of the columns that filters name.",
        )
    numbers = [c for c in facts.delivered if c.column.kind == "fixed" and not c.column.shape]
    by_type: dict[str, int] = {}
    for column in numbers:
        by_type[str(column.column.dtype)] = by_type.get(str(column.column.dtype), 0) + 1
    most = max(by_type, key=lambda dtype: by_type[dtype], default="")
    if most and by_type[most] >= NARROW_COLUMNS:
        yield LayoutFinding(
            "narrow_columns",
            "note",
            f"{by_type[most]} columns are single {most} values: each costs time in every step.",
            "Store those of one kind as one column, delivered as one matrix.",
            rewrite_command(facts, "--pack"),
            gain="an epoch of 40 narrow columns became 1.2 times as fast when it was packed (typical)",
        )


_RULES: tuple[Callable[[LayoutFacts], Iterator[LayoutFinding]], ...] = (
    _refused,
    _memory,
    _mixing,
    _uneven_ranks,
    _row_groups,
    _files,
    _deleted,
    _compression,
    _routes,
    _dictionaries,
    _huge_values,
    _batches,
    _notes,
)
