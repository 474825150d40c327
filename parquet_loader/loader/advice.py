"""Finds what to change about an epoch: causes with figures and remedies, as a pure function of its `LoaderStats`.

A rule applies only if its figures are clear, those about the GIL only if Python has one. `Finding.cost_s` estimates the
caller's waiting time that the cause costs. Rules about time need an epoch long enough to judge and a loop that waits;
rules about mixing need neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parquet_loader.common import format_bytes, format_count, has_gil, kernels_remedy
from parquet_loader.decode import is_known_codec
from parquet_loader.loader.mixing import WELL_MIXED_SHARE
from parquet_loader.loader.stats import JUDGED_FROM_S, LEAST_WAIT_SHARE, Finding, LoaderStats, ShuffleFigures

# Causes below this share of the epoch are not worth a change.
LEAST_COST_SHARE = 0.05

# Decoding takes a few microseconds for each row group and column, of any size; see docs/tuning.md.
TINY_ROW_GROUP_BYTES = 256 * 1024
TINY_CHUNK_BYTES = 4 * 1024
FEWEST_TINY = 50
# A lower bound of decoding speed for large row groups, with any types, on any current machine.
SLOW_DECODING_BYTES_PER_S = 300e6
HEAVY_CODECS = frozenset({"zstd", "gzip", "brotli"})
# The kernels take about half of Arrow's processor time.
KERNELS_SAVE = 0.5
# A batch is cut and handed over in 10 to 50 µs; if it takes much longer, its size is not the cause.
MOST_DELIVERY_S = 1e-3
# This many row groups from all over the data set mix well enough, even if it is sorted.
ENOUGH_ROW_GROUPS = 10
REWRITE = "parquet-loader rewrite SOURCE TARGET"


def findings_of(stats: LoaderStats, *, judged_from_s: float = JUDGED_FROM_S) -> tuple[Finding, ...]:
    """Return the findings: first those about mixing, then those about time, by cost.

    Args:
        stats: The figures of an epoch.
        judged_from_s: Seconds of the shortest epoch whose costs are judged.
    """
    timed: list[Finding] = []
    if stats.lasted(judged_from_s) and stats.wait_share >= LEAST_WAIT_SHARE:
        found = [finding for rule in _RULES for finding in rule(stats)]
        timed = [finding for finding in found if finding.cost_s >= LEAST_COST_SHARE * stats.seconds]
        timed = timed or list(_anything(stats))
    return (
        *mixing_findings(stats.shuffling, stats.memory_limit_bytes),
        *sorted(timed, key=lambda finding: -finding.cost_s),
    )


def _finding(stats: LoaderStats, cause: str, worker_s: float, text: str) -> Finding:
    """Return a finding that costs `worker_s` seconds of the workers' work."""
    return Finding(cause, text, stats.wait_s * min(1.0, worker_s / max(stats.work_s, 1e-9)))


def _lost(stats: LoaderStats, cause: str, worker_s: float, text: str) -> Finding:
    """Return a finding that keeps workers idle for `worker_s` seconds in all."""
    return Finding(cause, text, min(stats.wait_s, worker_s / max(1, stats.num_threads)))


# ---------------------------------------------------------------------- mixing


def mixing_findings(shuffling: ShuffleFigures | None, memory_limit_bytes: int) -> Iterator[Finding]:
    """Find out if windows mix the rows badly."""
    if shuffling is None or not shuffling.is_shuffled or shuffling.windows < 2 or shuffling.batch_size < 2:
        return
    sources = f"{shuffling.row_groups_per_window:.1f}".removesuffix(".0")
    window = (
        f"a window holds {_share(shuffling.window_share)} of the rows, from {sources} of {shuffling.row_groups:,} row "
        f"group{'s' if shuffling.row_groups > 1 else ''}"
    )
    if shuffling.score is not None:
        window += f", which mixes sorted rows as a shuffle buffer of {shuffling.score.buffer_rows:,} rows does"
    remedy = f"Put the rows into random order once (`{REWRITE} --shuffle`), or raise window_rows"
    if shuffling.is_cut_by_memory:
        remedy = f"Raise memory_limit (now {format_bytes(memory_limit_bytes)}, which cuts windows short), or put "
        remedy += f"the rows into random order once (`{REWRITE} --shuffle`)"
    measured, sorting, sources_each = shuffling.measured, shuffling.sorting, shuffling.row_groups_per_window
    if measured is not None and measured.between_share > WELL_MIXED_SHARE:
        values = ""
        if measured.is_distinct:
            values = f" (harmless if {measured.column!r} only numbers the rows)"
        elif measured.values_in_window is not None and measured.values is not None:
            values = f"; {measured.values_in_window:.0f} of its {measured.values:,} values seen are in a window"
        yield Finding(
            "mixing",
            f"Batches are badly mixed: {measured.between_share:.0%} of the variance of {measured.column!r} lies "
            f"between windows, almost none if rows are mixed{values}; {window}. {remedy}.",
        )
    elif measured is not None and measured.misses_values:
        yield Finding(
            "mixing",
            f"Batches are badly mixed: {measured.values_in_window:.0f} of the {measured.values:,} values of "
            f"{measured.column!r} that were seen are in a window; {window}. {remedy}.",
        )
    elif sorting is not None and sources_each < ENOUGH_ROW_GROUPS and sources_each * sorting.overlap_share < 0.5:
        yield Finding(
            "mixing",
            f"The data is sorted by {sorting.column!r}: the footers say that {_share(sorting.overlap_share)} of pairs "
            f"of row groups have values in common, and {window}. {remedy}.",
        )
    elif measured is None and sources_each < 2:
        yield Finding(
            "mixing",
            f"Shuffling mixes neighbours only: {window}. If the rows are sorted or grouped, batches see few of the "
            f"values. {remedy}.",
        )


# ---------------------------------------------------------------------- reading


def _decoding(stats: LoaderStats) -> Iterator[Finding]:
    """Find out why decoding takes long; time explained by one cause is not counted for the next."""
    storage, left_s = stats.storage, stats.cpu_s["read"]
    if storage is None or left_s < 0.2 * stats.work_s or not stats.row_groups:
        return
    rows_read, shuffling = stats.rows, stats.shuffling
    if shuffling is not None and shuffling.row_groups:  # if the loop was left early, more rows were read than delivered
        rows_read = max(rows_read, int(shuffling.rows * min(1.0, stats.row_groups / shuffling.row_groups)))
    rows, nbytes = rows_read / stats.row_groups, rows_read * storage.row_bytes
    group_bytes = nbytes / stats.row_groups
    is_tiny = group_bytes < TINY_ROW_GROUP_BYTES or group_bytes < TINY_CHUNK_BYTES * storage.columns
    overhead_s = left_s - nbytes / SLOW_DECODING_BYTES_PER_S
    if is_tiny and stats.row_groups >= FEWEST_TINY and overhead_s > 0.5 * left_s:
        yield _finding(
            stats,
            "tiny_row_groups",
            overhead_s,
            f"Row groups are tiny: {rows:,.0f} rows ({format_bytes(group_bytes)} decoded) on average, and each of the "
            f"{stats.row_groups:,} took {left_s / stats.row_groups * 1e6:,.0f} µs to decode. Rewrite the files with "
            f"row groups of about 8 MiB: `{REWRITE}`.",
        )
        left_s -= overhead_s
    for codec in storage.codecs:
        if codec.codec not in HEAVY_CODECS or codec.bytes_per_s is None:
            continue
        plain_bytes = stats.bytes_read * codec.stored_share * codec.ratio
        spent_s, also, by_arrow_s = min(left_s, plain_bytes / codec.bytes_per_s), "", 0.0
        if storage.number_share > 0.1 and not stats.kernels and not is_known_codec(codec.codec):
            by_arrow_s = KERNELS_SAVE * storage.number_share * codec.stored_share * (left_s - spent_s)
            also = "; the kernels do not know it, so Arrow decodes its numbers in about twice the time"
        if spent_s + by_arrow_s > 0.2 * stats.cpu_s["read"]:
            yield _finding(
                stats,
                "compression",
                spent_s + by_arrow_s,
                f"Decompressing {codec.codec} takes about {spent_s / stats.cpu_s['read']:.0%} of the decoding time "
                f"({codec.bytes_per_s / 1e6:,.0f} MB/s a thread, {codec.stored_share:.0%} of the stored bytes, "
                f"{codec.ratio:.1f} times smaller){also}. Rewrite the files with a light codec, or none: `{REWRITE}`.",
            )
            left_s -= spent_s
    if stats.kernels:
        saved_s = KERNELS_SAVE * storage.number_share * left_s
        yield _finding(
            stats,
            "kernels",
            saved_s,
            f"The compiled kernels are not used: {stats.kernels}. They halve the time of decoding numbers, "
            f"{storage.number_share:.0%} of the decoded bytes; {kernels_remedy()}.",
        )
        return
    for slow in storage.slow:
        names = ", ".join(map(repr, slow.columns[:3])) + (", ..." if len(slow.columns) > 3 else "")
        why, remedy = _SLOW[slow.reason]
        yield _finding(
            stats,
            f"slow_{slow.reason.replace(' ', '_')}",
            KERNELS_SAVE * slow.share * left_s,
            f"Arrow decodes {format_count(len(slow.columns), 'column')} of numbers ({names}; {slow.share:.0%} of the "
            f"decoded bytes) in about twice the time: {why}. {remedy}.",
        )


_SLOW = {
    "encoding": ("the kernels do not know the encodings", f"Rewrite the files: `{REWRITE}`"),
    "options": ("verify_checksums is on", "Leave it out of ReadOptions"),
}


def _parallelism(stats: LoaderStats) -> Iterator[Finding]:
    """Find out why workers are idle while the loop waits."""
    shuffling, idle_s = stats.shuffling, stats.idle_s
    if stats.remote is not None or shuffling is None or stats.idle_share < 0.4 or stats.num_threads < 2:
        return
    at_once = shuffling.row_groups_per_window
    if shuffling.row_groups < stats.num_threads and stats.bound_by == "decoding":
        yield _lost(
            stats,
            "few_row_groups",
            idle_s / 2,
            f"{stats.num_threads} workers were idle {stats.idle_share:.0%} of the time: there "
            f"{'is one row group' if shuffling.row_groups == 1 else f'are {shuffling.row_groups} row groups'}, and one "
            f"worker at a time can decode a row group. Rewrite the files with smaller ones: `{REWRITE}`.",
        )
    elif stats.peak_bytes > 0.45 * stats.memory_limit_bytes and shuffling.is_cut_by_memory:
        yield _lost(
            stats,
            "memory_limit",
            idle_s / 2,
            f"memory_limit={format_bytes(stats.memory_limit_bytes)} prevents reading ahead: the workers were idle "
            f"{stats.idle_share:.0%} of the time while {format_bytes(stats.peak_bytes)} were held, and a window takes "
            f"{at_once:.0f} row groups of up to {shuffling.largest_row_group_rows:,} rows. Raise it, or rewrite the "
            f"files with smaller row groups.",
        )


def _threads(stats: LoaderStats) -> Iterator[Finding]:
    """Find out if there are too few threads for the processors, or too few processors for the threads."""
    busy, processors, threads = stats.busy_s, stats.processors, stats.num_threads
    queued_s, worked_s = busy - stats.work_s, sum(stats.cpu_s.values())
    if threads > processors > 0 and queued_s > 0.3 * busy:
        yield _lost(
            stats,
            "too_many_threads",
            queued_s / 2,
            f"{threads} workers share {processors} processor{'s' if processors > 1 else ''}: they waited for one "
            f"{queued_s / busy:.0%} of their working time. Set num_threads={processors}, or give the job more "
            "processors.",
        )
    elif queued_s > 0.5 * busy:
        yield _lost(
            stats,
            "busy_processors",
            queued_s,
            f"The processors are busy with other work, the training step included: {threads} workers waited for one "
            f"{queued_s / busy:.0%} of their working time, although the process may use {processors}. Give the job "
            "processors of its own.",
        )
    elif (
        processors > threads
        and stats.remote is None
        and stats.idle_share < 0.15
        and not stats.transform_workers
        and worked_s > 0.7 * stats.work_s
        and queued_s < 0.3 * busy
        and stats.bound_by in ("decoding", "shuffle", "transform")
    ):
        yield _finding(
            stats,
            "too_few_threads",
            worked_s * (1 - threads / processors),
            f"{threads} worker{'s were' if threads > 1 else ' was'} busy {1 - stats.idle_share:.0%} of the time, and "
            f"the process may use {processors} processors. Set num_threads={min(processors, 16)}.",
        )


def _disk(stats: LoaderStats) -> Iterator[Finding]:
    waited_s = stats.waited_s("read")
    if stats.remote is None and stats.bytes_from_disk > stats.bytes_read // 16 and waited_s > 0.3 * stats.work_s:
        yield _finding(
            stats,
            "disk",
            waited_s,
            f"The disk is slow: it gave {format_bytes(stats.bytes_from_disk / stats.seconds)} a second, and reads "
            f"waited {waited_s / stats.work_s:.0%} of the workers' time. More num_threads keep more reads in flight; "
            "stronger compression reads less; a local SSD is faster.",
        )


def _network(stats: LoaderStats) -> Iterator[Finding]:
    remote = stats.remote
    if remote is None or stats.bound_by != "network":
        return
    waited_share = stats.idle_share
    if stats.is_fetched:
        waited_share = min(1.0, waited_share + stats.waited_s("read") / (stats.seconds * max(1, stats.num_threads)))
    rate = format_bytes(remote.fetched_bytes / stats.seconds)
    silence = ""
    if stats.longest_wait_s > 0.5 * stats.wait_s:
        silence = f" One wait of {stats.longest_wait_s:.1f} s is most of it: look for what kept the store then."
    again = f", {remote.retries} of them retries" if remote.retries else ""
    remedy = "Keep row groups on a local disk (cache=LocalCache(...)), read fewer columns, or move the job to the data"
    if stats.max_requests is not None and remote.most_in_flight >= stats.max_requests:
        remedy = f"Raise RemoteOptions.max_requests (now {stats.max_requests}). {remedy}"
    elif stats.peak_bytes > 0.5 * stats.memory_limit_bytes:
        remedy = f"A larger memory_limit (now {format_bytes(stats.memory_limit_bytes)}) fetches more ahead. {remedy}"
    yield Finding(
        "network",
        f"The network sets the pace: {rate} a second arrived in {remote.requests:,} requests{again}, at most "
        f"{remote.most_in_flight} at a time, and the workers waited {waited_share:.0%} of the time.{silence} {remedy}.",
        stats.wait_s * waited_share,
    )


# ---------------------------------------------------------------------- after reading


def _transform(stats: LoaderStats) -> Iterator[Finding]:
    """Find out if a transform waits for the GIL, for something else, or not at all."""
    cpu_s, waited_s, threads = stats.cpu_s["process"], stats.waited_s("process"), stats.num_threads
    spent_s = cpu_s + waited_s
    if not stats.transforms or spent_s < 0.3 * stats.work_s:
        return
    if stats.transform_workers:
        yield from _transform_workers(stats, cpu_s, waited_s)
        return
    # Without `queued_s`, a wait may be a wait for a processor. Under the GIL one thread runs while the others wait, so
    # together they wait at most (threads - 1) times as long as they run, and use one processor's time.
    knows_queue = stats.queued_s is not None
    is_one_at_a_time = has_gil() and threads > 1 and cpu_s <= 1.3 * stats.seconds
    if knows_queue and is_one_at_a_time and 0.3 * cpu_s < waited_s <= 1.5 * (threads - 1) * cpu_s:
        yield _finding(
            stats,
            "gil",
            spent_s,
            f"transform is bound by the GIL: {threads} workers ran it for {cpu_s:.1f} s of processor time, and waited "
            f"{waited_s:.1f} s for each other. Make it a few large numpy calls on whole columns, do the work on the "
            f"GPU, or run it in processes: transform_workers={max(2, stats.processors)}; more num_threads do not help.",
        )
    elif knows_queue and waited_s > 1.5 * max(1, threads - 1) * cpu_s:
        yield _finding(
            stats,
            "transform_waits",
            spent_s,
            f"transform waits: it was blocked for {waited_s:.1f} s of its {spent_s:.1f} s, by files, locks or sleep. "
            "Store what it waits for in the data set; more num_threads let more batches wait at once.",
        )
    else:
        per_batch = cpu_s / max(1, stats.batches) * 1e3
        remedy = "; Python code holds the GIL, so write it as a few large numpy calls" if has_gil() else ""
        yield _finding(
            stats,
            "transform",
            spent_s,
            f"transform and image decoding take {per_batch:.1f} ms of processor time a batch, "
            f"{spent_s / stats.work_s:.0%} of the workers' work. Store results, do it on the GPU, or use more "
            f"processors{remedy}.",
        )


def _transform_workers(stats: LoaderStats, cpu_s: float, waited_s: float) -> Iterator[Finding]:
    """Find out if there are too few processes for a transform, or if the transform waits."""
    spent_s, workers = cpu_s + waited_s, stats.transform_workers
    if waited_s > 1.5 * cpu_s:
        yield _finding(
            stats,
            "transform_waits",
            spent_s,
            f"transform waits: it was blocked for {waited_s:.1f} s of its {spent_s:.1f} s, by files, locks or sleep. "
            "Store what it waits for in the data set; more transform_workers let more batches wait at once.",
        )
        return
    remedy = "Store results, do it on the GPU, or use more processors"
    if workers < stats.processors:
        remedy = f"The process may use {stats.processors} processors: raise transform_workers (now {workers})"
    yield _finding(
        stats,
        "transform",
        spent_s,
        f"transform and image decoding take {cpu_s / max(1, stats.batches) * 1e3:.1f} ms of processor time a batch in "
        f"{workers} processes. {remedy}.",
    )


def _gil_of_the_loop(stats: LoaderStats) -> Iterator[Finding]:
    """Find out if the training loop and the workers compete for the GIL."""
    waited_s = sum(map(stats.waited_s, ("read", "permute", "gather")))
    is_local = stats.remote is None and stats.bytes_from_disk <= stats.bytes_read // 16
    loop_share = 1 - stats.wait_share
    if (
        has_gil()
        and stats.isolation == "thread"
        and stats.queued_s is not None
        and is_local
        and loop_share > 0.3
        and waited_s > 0.3 * stats.work_s
    ):
        # Before the first batch the loop does not run, and workers wait only for each other.
        yield Finding(
            "gil_of_the_loop",
            f"Workers waited {waited_s:.1f} s, {waited_s / stats.work_s:.0%} of their work, for the GIL that "
            "the training loop holds. Set isolation='process'.",
            (stats.wait_s - stats.first_batch_s) * min(1.0, waited_s / stats.work_s),
        )


def _small_batches(stats: LoaderStats) -> Iterator[Finding]:
    """Find out if batches are so small that most time goes into handing them over."""
    each_s = stats.delivery_s / max(1, stats.batches)
    if stats.bound_by != "delivery" or stats.storage is None or each_s > MOST_DELIVERY_S:
        return
    yield Finding(
        "small_batches",
        f"Batches are small: {stats.rows / stats.batches:,.0f} rows each. Handing one over takes "
        f"{each_s * 1e6:,.0f} µs whatever it holds, with {stats.storage.columns} columns, and the workers were idle "
        f"{stats.idle_share:.0%} of the time. Raise batch_size; or load larger batches, and slice them in the loop.",
        stats.delivery_s,
    )


def _shuffling(stats: LoaderStats) -> Iterator[Finding]:
    spent_s = stats.cpu_s["permute"] + stats.cpu_s["gather"]
    storage = stats.storage
    if storage is None or stats.bound_by != "shuffle" or storage.columns < 16:
        return
    if storage.row_bytes > 8 * storage.columns:  # wide columns: memory bandwidth sets the pace
        return
    yield _finding(
        stats,
        "narrow_columns",
        spent_s / 2,
        f"Putting {storage.columns} narrow columns into order takes {spent_s / stats.work_s:.0%} of the workers' work. "
        "Deliver those of one kind as one matrix: Group(..., storage='packed') in a schema.",
    )


def _anything(stats: LoaderStats) -> Iterator[Finding]:
    """Name the stage that takes most time, if no rule knows why."""
    if stats.bound_by != "decoding":
        return
    rate = stats.bytes_read / max(stats.cpu_s["read"], 1e-9) / 1e6
    yield _finding(
        stats,
        "decoding",
        stats.cpu_s["read"],
        f"Decoding takes {stats.cpu_s['read'] / stats.work_s:.0%} of the workers' work, at {rate:,.0f} MB/s of stored "
        f"bytes a thread. Read fewer columns, use more processors, or try another layout: `{REWRITE}`.",
    )


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.001 else f"{share:.3%}"


_RULES: tuple[Callable[[LoaderStats], Iterator[Finding]], ...] = (
    _decoding,
    _parallelism,
    _threads,
    _disk,
    _network,
    _transform,
    _gil_of_the_loop,
    _small_batches,
    _shuffling,
)
