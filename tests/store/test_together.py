"""Files that appear together: all or none, for whoever looks, whoever dies, and whatever the file system refuses."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, SampleStore, StoreOptions, WriteError
from parquet_loader.common import format_account
from parquet_loader.errors import UnfinishedCommitError
from parquet_loader.store import ledger
from parquet_loader.store.commits import Commit, finish_commits, read_commits, record_commit
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import NONE_KNOWN, StorePaths
from parquet_loader.store.ledger import Ledger, Totals
from parquet_loader.write.jobs.store_job import StoreJob
from parquet_loader.write.jobs.task import write_partition
from tests.store.deaths import ALIVE, DIED, FILES, ROWS, ends, open_store, run_job
from tests.support.examples import examples
from tests.support.job_places import SCHEMA, rows

TAG = "0a1b2c3d"
WRITER = "00112233445566ff"
OPTIONS = StoreOptions(durable=False)
SIZED = StoreOptions(file_bytes=30_000, row_group_bytes=10_000, durable=False)


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore(tmp_path / "store", schema=SCHEMA, options=OPTIONS)


def commit_job(store: SampleStore, first: int = 0, files: int = FILES, each: int = ROWS) -> Any:
    with StoreJob(store, SCHEMA) as job:
        reports = [
            file
            for number in range(files)
            for file in write_partition(job.spec, number, rows(first + number * each, first + (number + 1) * each))
        ]
        return job.commit(reports)


def ids(path: str | Path) -> list[int]:
    names = sorted(name for name in os.listdir(path) if name.endswith(".parquet"))
    return [i for name in names for i in pq.read_table(os.path.join(path, name))["id"].to_pylist()]


def left_behind(path: str | Path) -> list[str]:
    """What lies in a store beside its files, its settings and its account."""
    hidden = Path(path) / ".store"
    found = [f"{place}/{name}" for place in ("unfinished", "commits", "writers") for name in os.listdir(hidden / place)]
    found += [name for name in os.listdir(hidden) if name.endswith(".tmp")]
    return found + [name for name in os.listdir(path) if name.startswith(".job-")]


# ---- deaths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_driver_that_dies_at_any_step_of_its_commit_leaves_all_or_none(tmp_path: Path, every: int) -> None:
    outcomes = Counter[int]()
    for step in itertools.count(1, every):
        path = tmp_path / str(step)
        watcher = SampleStore(path, schema=SCHEMA, options=OPTIONS)
        is_over = ends(run_job, path, step) == ALIVE
        seen = [len(watcher.files()), watcher.status().files, watcher.rows // ROWS]
        with watcher.snapshot() as files:
            seen.append(len(files))
        assert seen[0] in (0, FILES), f"step {step}: {seen}"
        assert all(count in (0, FILES) for count in seen), f"step {step}: {seen}"
        assert seen == sorted(seen), f"step {step}: {seen}"  # who takes the lock may finish it, and nobody undoes it
        SampleStore(path)
        assert ids(path) == (list(range(FILES * ROWS)) if seen[-1] else []), f"step {step}"
        commit_job(watcher, first=1000)
        assert left_behind(path) == [], f"step {step}"
        check_account(path)
        outcomes[seen[-1]] += 1
        if is_over:
            break
    assert outcomes[0] > 12 / every
    assert outcomes[FILES] > 12 / every


def test_who_finishes_a_commit_may_die_at_any_step_of_that_too(tmp_path: Path) -> None:
    """The first dies amid its renames; the next, which opens the store, at every step in turn."""
    draw = random.Random(7)
    for second in itertools.count(1):
        path = tmp_path / str(second)
        SampleStore(path, schema=SCHEMA, options=OPTIONS)
        assert ends(run_job, path, FILES + draw.randint(1, FILES), ("rename",)) == DIED  # as many have moved in
        assert len(os.listdir(path / ".store" / "commits")) == 1
        is_over = ends(open_store, path, second) == ALIVE
        with SampleStore(path).snapshot() as files:
            assert len(files) == FILES, f"step {second}"
        assert ids(path) == list(range(FILES * ROWS))
        commit_job(SampleStore(path), first=1000)
        assert left_behind(path) == []
        check_account(path)
        if is_over:
            break


def check_account(path: Path) -> None:
    status = SampleStore(path).status()
    files = [path / name for name in os.listdir(path) if name.endswith(".parquet")]
    assert (status.files, status.bytes) == (len(files), sum(file.stat().st_size for file in files))
    assert status.reserved_bytes == 0
    assert len({FileName.parse(file.name).sequence for file in files}) == len(files)  # type: ignore[union-attr]


# ---- readers amid a commit -------------------------------------------------------------------------------------------


def test_amid_a_commit_nobody_sees_a_part(store: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks without the lock, at any step; one that takes the lock waits, and then sees all."""
    reader, access = SampleStore(store.path), os.access
    with monkeypatch.context() as denied:
        denied.setattr(os, "access", lambda path, mode: access(path, mode) and not mode & os.W_OK)
        only = SampleStore(store.path)
    seen: list[tuple[int, int, int, int]] = []
    plain: list[int] = []
    rename = os.rename

    def looking(*arguments: Any) -> None:
        rename(*arguments)
        if os.path.dirname(arguments[1]) == store.path and arguments[1].endswith(".parquet"):
            plain.append(len([n for n in os.listdir(store.path) if n.endswith(".parquet")]))
            with only.snapshot() as files:
                seen.append((len(reader.files()), reader.rows // ROWS, reader.status().files, len(files)))

    monkeypatch.setattr(os, "rename", looking)
    commit_job(store, first=0)
    assert plain == [1, 2, FILES]  # as any other reader has it
    assert seen == [(0, 0, 0, 0), (0, 0, 0, 0), (FILES, FILES, FILES, FILES)]
    assert (len(reader.files()), reader.rows) == (FILES, FILES * ROWS)
    commit_job(store, first=1000)
    assert seen[FILES:] == [(FILES,) * 4, (FILES,) * 4, (2 * FILES,) * 4]


@pytest.mark.parametrize("is_undone", [False, True], ids=["to its end", "undone"])
def test_a_listing_without_the_lock_is_whole_however_it_interleaves_with_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_undone: bool
) -> None:
    """Every order of the steps of a commit and of a look: state n of the store is what n steps of the commit left."""
    names = [str(FileName(number, 0, 1, TAG, WRITER)) for number in (1, 2, 3)]
    commit = Commit(WRITER, ((f"{WRITER}-1.parquet", names[1]), (f"{WRITER}-2.parquet", names[2])))
    # Of each state: how many files have their names, whether the record is there, and how many commits are counted.
    steps = [(0, False, 0), (0, True, 0), (1, True, 0), (2, True, 0)]
    if is_undone:  # the disk refused to be forced
        steps += [(1, True, 0), (0, True, 0), (0, True, 1), (0, False, 1), (0, False, 1)]
    else:
        steps += [(2, True, 1), (2, False, 1)]

    def state(number: int) -> StorePaths:
        """A store with one file, in which two more appear."""
        renamed, is_recorded, commits = steps[number]
        places = StorePaths(str(tmp_path / str(number)))
        places.make()
        Path(places.file(names[0])).touch()
        for place, (source, target) in enumerate(commit.moves):
            if place < renamed:
                Path(places.file(target)).touch()
            elif not is_undone or number < len(steps) - 1:  # in the end what is left over is removed
                Path(places.unfinished, source).touch()
        if is_recorded:
            record_commit(places, commit, durable=False)
        Path(places.ledger).write_bytes(b"!" + format_account(ledger.format_totals(Totals(commits=commits))))
        return places

    class Look(Ledger):
        """Looks at the state of each moment in turn, and at the last one from then on."""

        def __init__(self, moments: Sequence[int]) -> None:
            super().__init__(states[0], TAG)
            self._moments = iter(moments)
            self.records: StorePaths | None = None

        def published(self, known: Any = NONE_KNOWN) -> dict[str, FileName]:
            self._paths: Any = Moment(states[0].root, self)
            return super().published(known)

        def next(self) -> StorePaths:
            self.records = None
            return states[next(self._moments, len(states) - 1)]

        def _read(self) -> Any:
            return Ledger(self.next(), TAG)._read()

    class Moment(StorePaths):
        """The store as it is at the moment of a listing."""

        look: Look

        def __init__(self, root: str, look: Look) -> None:
            super().__init__(root)
            object.__setattr__(self, "look", look)

        def published(self, *arguments: Any) -> Any:
            return self.look.next().published(*arguments)

        @property
        def unfinished(self) -> str:
            return self.look.next().unfinished

        @property
        def commits(self) -> str:
            """All records that are read one after another are of one moment."""
            self.look.records = self.look.records or self.look.next()
            return self.look.records.commits

    states = [state(number) for number in range(len(steps))]
    looks = Counter[int]()
    for moments in itertools.combinations_with_replacement(range(len(states)), 7):
        found = list(Look(moments).published())
        assert found in (names[:1], names), f"{moments}: {found}"
        if moments[0] == moments[-1]:
            is_there = moments[0] == 3 if is_undone else moments[0] >= 3
            assert len(found) == (3 if is_there else 1), moments
        looks[len(found)] += 1
    assert min(looks[1], looks[3]) > 20


@pytest.mark.parametrize("jobs", [5, pytest.param(12, marks=pytest.mark.slow)])
def test_a_loader_reads_all_of_a_job_or_none_while_jobs_are_committed(store: SampleStore, jobs: int) -> None:
    commit_job(store)
    seen: list[int] = []
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(1, jobs):
                commit_job(SampleStore(store.path), first=1000 * number)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    with BatchedDataLoader(store, 16, shuffle=True, num_threads=1) as loader:
        thread.start()
        while thread.is_alive():
            found = Counter(i // 1000 for batch in loader for i in batch["id"].tolist())
            assert set(found.values()) == {FILES * ROWS}
            seen.append(len(found))
    thread.join()
    assert errors == []
    assert seen == sorted(seen)
    assert len(store.files()) == jobs * FILES


# ---- what the file system refuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("works", range(FILES + 2))
def test_where_a_name_cannot_be_given_all_of_them_are_taken_back(
    store: SampleStore, monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    commit_job(store, first=500)
    rename, done = os.rename, itertools.count()

    def full(source: str, target: str) -> None:
        if target.endswith(".parquet") and os.path.dirname(target) == store.path and next(done) >= works:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target)

    if works < FILES:
        monkeypatch.setattr(os, "rename", full)
    else:  # it is the record that is refused, or is there and said not to be
        replace = os.replace

        def refuse(source: str, target: str) -> None:
            if "commits" not in target or works > FILES:
                replace(source, target)
            if "commits" in target:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(WriteError, match="nothing of it was published"):
        commit_job(store)
    monkeypatch.undo()
    assert ids(store.path) == list(range(500, 500 + FILES * ROWS))
    assert left_behind(store.path) == []
    check_account(Path(store.path))
    commit_job(store)
    assert len(ids(store.path)) == 2 * FILES * ROWS


def test_where_there_is_neither_a_way_forward_nor_back_nobody_sees_a_part_until_there_is(
    store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_job(store, first=500)
    rename, done = os.rename, itertools.count()

    def broken(source: str, target: str) -> None:
        records = os.listdir(os.path.join(store.path, ".store", "commits"))
        if any(name in source + target for name in records) and next(done) >= 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(WriteError, match="until the next process that opens the store completes the commit"):
        commit_job(store)
    assert len([n for n in os.listdir(store.path) if n.endswith(".parquet")]) == FILES + 1
    again = SampleStore(store.path)  # and cannot finish it either
    assert len(again.files()) == FILES == again.status().files
    with again.snapshot() as files:
        assert len(files) == FILES
    assert again.evict(to_bytes=1).files == FILES  # none of those that are being written
    with again.writer() as writer:
        writer.write(rows(900, 910))
    monkeypatch.undo()
    check_all_appeared(SampleStore(store.path))


def check_all_appeared(store: SampleStore) -> None:
    assert sorted(ids(store.path)) == [*range(FILES * ROWS), *range(900, 910)]
    assert left_behind(store.path) == []
    check_account(Path(store.path))


JOB_IS_TOLD = {
    "nothing": "nothing of it was published",
    "later": "until the next process that opens the store completes the commit",
}
WRITER_IS_TOLD = {
    "lost": "rows written since are lost",
    "not forced": "samples were published, but could not be synced to the disk",
}
CALLS = ("rename", "replace", "unlink", "pwrite", "ftruncate", "fsync")


class Refusing:
    """Lets the file system refuse a call that changes it: the n-th from 1, and those after it if `for_good`."""

    def __init__(self, step: int, *, for_good: bool) -> None:
        self.step = step
        self._for_good = for_good
        self._steps = itertools.count(1)
        self.refused = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            monkeypatch.setattr(os, name, self._refusing(getattr(os, name)))

    def _refusing(self, call: Any) -> Any:
        def change(*arguments: Any, **more: Any) -> Any:
            number = next(self._steps)
            if number == self.step or (self._for_good and number > self.step):
                self.refused += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments, **more)

        return change


def each_refused(*, for_good: bool) -> Iterator[Refusing]:
    """Yield one for each call that is made, and at last one for a call that is not."""
    for step in itertools.count(1):
        refusing = Refusing(step, for_good=for_good)
        yield refusing
        if not refusing.refused:
            return


class Told:
    """What callers were told: "published", or what the text of an error means.

    Args:
        texts: Each answer but "published", and a text that only its error has.

    Attributes:
        answers: How often each was given.
        kinds: The types of the errors that gave it.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts
        self.answers = Counter[str]()
        self.kinds = defaultdict[str, set[type]](set)
        self._errors: list[WriteError] = []  # their tracebacks keep objects alive, as a debugger does

    def by(self, call: Callable[[], object]) -> str:
        """Return the answer of a call."""
        answer = "published"
        try:
            call()
        except WriteError as error:
            (answer,) = (known for known, text in self._texts.items() if text in str(error))
            self.kinds[answer].add(type(error))
            self._errors.append(error)
        self.answers[answer] += 1
        return answer


@pytest.mark.parametrize("for_good", [pytest.param(False, marks=pytest.mark.slow), True], ids=["once", "for good"])
def test_whatever_call_is_refused_a_job_is_told_what_became_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_good: bool
) -> None:
    """A driver that is told "nothing" runs its job again: nothing may be there then, nor when the store is opened."""
    path = tmp_path / "store"
    store = SampleStore(path, schema=SCHEMA)  # durable
    there: set[int] = set()
    told = Told(JOB_IS_TOLD)
    for refusing in each_refused(for_good=for_good):
        step = refusing.step
        first = 1000 * step
        with StoreJob(store, SCHEMA) as job:
            reports = [
                file
                for number in range(FILES)
                for file in write_partition(job.spec, number, rows(first + number, first + number + 1))
            ]
            with monkeypatch.context() as patch:
                refusing.install(patch)
                answer = told.by(functools.partial(job.commit, reports))
                visible = sum(file.rows for file in store.files()) - len(there)
        assert visible in {"published": [FILES], "nothing": [0], "later": [0, FILES]}[answer], f"step {step}: {answer}"
        there |= set(range(first, first + FILES)) if answer != "nothing" else set()
        SampleStore(path)
        assert sorted(ids(path)) == sorted(there), f"step {step}: {answer}"
        left = [name for name in left_behind(path) if not name.startswith(".job-")]  # whose process lives
        assert left == [], f"step {step}: {answer}"
        check_account(path)
    assert told.answers["nothing"] > 5
    assert told.answers["published"] > 3
    assert (told.answers["later"] > 0) == for_good
    assert told.kinds == {"nothing": {WriteError}, **({"later": {UnfinishedCommitError}} if for_good else {})}


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_whatever_call_is_refused_a_writer_is_told_what_became_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_good: bool
) -> None:
    path = tmp_path / "store"
    store = SampleStore(path, schema=SCHEMA)
    there: list[int] = []
    told = Told(WRITER_IS_TOLD)
    for refusing in each_refused(for_good=for_good):
        step = refusing.step
        writer = store.writer()
        writer.write(rows(step, step + 1))
        with monkeypatch.context() as patch:
            refusing.install(patch)
            answer = told.by(writer.close)
        assert writer.done.rows == (answer != "lost"), f"step {step}: {answer}"
        there += [step] if answer != "lost" else []
        SampleStore(path)
        assert ids(path) == there, f"step {step}: {answer}"
        assert left_behind(path) == [], f"step {step}: {answer}"
        check_account(path)
    assert told.answers["lost"] > 2
    assert told.answers["not forced"] > 0
    assert told.kinds == {"lost": {WriteError}, "not forced": {UnfinishedCommitError}}
    assert told.answers["published"] > 3


def test_files_that_are_not_the_stores_are_refused(store: SampleStore, tmp_path: Path) -> None:
    commit_job(store, first=500)
    good = tmp_path / "good.parquet"
    with pq.ParquetWriter(good, pa.schema([("id", pa.int64())])) as writer:
        writer.write_table(pa.table({"id": [1]}))
        writer.add_key_value_metadata(store.footer({}))
    other, cut = tmp_path / "other.parquet", tmp_path / "cut.parquet"
    pq.write_table(pa.table({"id": [1]}), other)
    cut.write_bytes(good.read_bytes()[:-9])
    for bad, what in ((other, "does not name the store"), (cut, "not a complete Parquet file")):
        with pytest.raises(WriteError, match=what):
            store.publish([str(good), str(bad)])
    with pytest.raises(WriteError, match="No such file"):
        store.publish([str(good), str(tmp_path / "missing.parquet")])
    assert good.exists()
    assert ids(store.path) == list(range(500, 500 + FILES * ROWS))
    assert left_behind(store.path) == []
    assert store.publish([]) == []


# ---- room ------------------------------------------------------------------------------------------------------------


def test_a_job_of_more_than_the_store_may_hold_is_refused_and_evicts_nothing(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "store", schema=SCHEMA, max_bytes=20_000, options=SIZED)
    commit_job(store)
    there = ids(store.path)
    with pytest.raises(WriteError, match=r"the rows come to .*, the store's limit is .*; raise max_bytes, or divide"):
        commit_job(store, first=1000, each=2000)
    assert ids(store.path) == there
    assert left_behind(store.path) == []


def test_jobs_that_fit_only_one_at_a_time_wait_without_holding_room(tmp_path: Path) -> None:
    size = commit_job(SampleStore(tmp_path / "probe", schema=SCHEMA, options=SIZED)).bytes
    store = SampleStore(tmp_path / "store", schema=SCHEMA, max_bytes=int(1.6 * size), options=SIZED)
    errors: list[BaseException] = []

    def run(first: int) -> None:
        try:
            commit_job(SampleStore(store.path), first=first)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.status().written_bytes >= 4 * size - 100
    assert store.status().bytes <= 1.6 * size
    assert left_behind(store.path) == []


def test_a_job_waits_for_readers_and_the_limit_is_kept_meanwhile(tmp_path: Path) -> None:
    size = commit_job(SampleStore(tmp_path / "probe", schema=SCHEMA, options=SIZED)).bytes
    store = SampleStore(tmp_path / "store", schema=SCHEMA, max_bytes=int(1.6 * size), options=SIZED)
    commit_job(store)
    thread = threading.Thread(target=commit_job, args=(SampleStore(store.path), 1000))
    with store.snapshot() as files:
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert len(ids(store.path)) == FILES * ROWS
        assert store.status().bytes + store.status().reserved_bytes <= 1.6 * size
        for file in files:
            assert os.path.exists(file.path)
    thread.join()
    assert set(range(1000, 1000 + FILES * ROWS)) <= set(ids(store.path))
    assert store.status().bytes <= 1.6 * size


# ---- the record ------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_records_are_finished_from_any_state_and_twice_is_once(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Against a model: where each file of several commits lies, some renamed, some evicted; foreign records between."""
    places = StorePaths(str(tmp_path_factory.mktemp("places")))
    places.make()
    sequence = itertools.count(1)
    expected: set[str] = set()
    writers = [f"{number:016x}" for number in range(data.draw(st.integers(0, 3)))]
    untouched: set[str] = set()
    for writer in writers:
        count = data.draw(st.integers(1, 4))
        moves = tuple(
            (f"{writer}-{n}.parquet", str(FileName(next(sequence), 0, 1, TAG, writer))) for n in range(1, count + 1)
        )
        kind = data.draw(st.sampled_from(["sound", "sound", "foreign tag", "outside", "damaged"]))
        renamed = data.draw(st.integers(0, count)) if kind == "sound" else 0
        for place, (source, target) in enumerate(moves):
            path = places.file(target) if place < renamed else os.path.join(places.unfinished, source)
            Path(path).touch()
        record = os.path.join(places.commits, writer)
        if kind == "sound":
            expected |= {target for _, target in moves}
            record_commit(places, Commit(writer, moves), durable=False)
        else:
            untouched |= {source for source, _ in moves}
            wrong = {
                "foreign tag": json.dumps([(s, t.replace(TAG, "ffffffff")) for s, t in moves]),
                "outside": json.dumps([*moves[:-1], (f"../writers/{writer}", moves[-1][1])]),
                "damaged": json.dumps(moves)[:-2],
            }[kind]
            Path(record).write_text(wrong)
    sound = {commit.name for commit in read_commits(places, TAG)}
    account = Ledger(places, TAG)
    seen = set(account.published())
    assert all(set(names(commit)) <= seen or not seen & set(names(commit)) for commit in read_commits(places, TAG))
    for _ in range(2):
        assert set(finish_commits(places, TAG)) == sound
        assert {name for name in os.listdir(places.root) if name.endswith(".parquet")} == expected
        assert set(os.listdir(places.unfinished)) == untouched
    with account.transaction(rebuild=True) as totals:
        assert (totals.files, totals.commits) == (len(expected), len(sound))
    assert not sound & set(os.listdir(places.commits))
    assert set(account.published()) == expected


def names(commit: Commit) -> list[str]:
    return [target for _, target in commit.moves]


def test_sequence_numbers_go_on_behind_those_of_a_commit(store: SampleStore) -> None:
    for number in range(3):
        with store.writer() as writer:
            writer.write(rows(10_000 + number, 10_001 + number))
        commit_job(store, first=1000 * number)
    sequences = [file.sequence for file in store.files()]
    assert sequences == list(range(1, 3 * (FILES + 1) + 1))
    assert np.array_equal([file.rows for file in store.files()], ([1] + FILES * [ROWS]) * 3)
