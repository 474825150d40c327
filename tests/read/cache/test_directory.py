"""Processes that share a cache: a row group is fetched once, nobody waits for the dead, and accounts agree."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from parquet_loader.common.storage.file_locks import exclusive
from parquet_loader.read.cache.directory import CacheDirectory, CacheFullError, LookupResult, RequestedRowGroup
from parquet_loader.read.cache.entry_file import Checksum, Index, occupied_bytes
from parquet_loader.read.cache.ledger import transaction
from parquet_loader.read.cache.paths import CachePaths, EntryName, file_id, row_group_id, row_group_ids
from parquet_loader.read.cache.pending_entry import PendingEntry
from tests.read.cache.remote import account, copies

SIZE = 2**20
LIMIT = 2**22


def wanted(row_group: int = 0, *, nbytes: int = 100_000, columns: int = 1) -> RequestedRowGroup:
    span = ((10_000, 10_000 + nbytes),)
    return RequestedRowGroup(file_id("somewhere", "file"), row_group, columns, SIZE, lambda: (span, span))


def fill(filling: PendingEntry | None, nbytes: int = 100_000) -> PendingEntry:
    assert filling is not None
    filling.write(0, bytes(range(250)) * (nbytes // 250))
    return filling


def test_who_comes_second_waits_for_the_first_and_reads_what_it_fetched(tmp_path: Path) -> None:
    one, other = CacheDirectory(str(tmp_path), LIMIT), CacheDirectory(str(tmp_path), LIMIT, patience_s=600.0)
    filling = fill(one.begin(wanted()))
    assert other.begin(wanted()) is None
    second = other.begin(wanted(1))
    assert second is not None
    second.abandon()
    assert other.is_fetched_by_other(wanted())
    waiting = Thread(target=other.wait_for_other, args=(wanted(),))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    path = one.published(filling)
    waiting.join(60)
    assert not waiting.is_alive()
    assert not other.is_fetched_by_other(wanted())
    assert other.find(wanted()).path == path


def test_nobody_waits_for_one_that_is_stuck(tmp_path: Path) -> None:
    one, other = CacheDirectory(str(tmp_path), LIMIT), CacheDirectory(str(tmp_path), LIMIT, patience_s=0.05)
    filling = one.begin(wanted())
    assert filling is not None
    other.wait_for_other(wanted())  # comes back
    assert other.find(wanted()) == LookupResult(None)
    filling.abandon()
    again = other.begin(wanted())
    assert again is not None
    again.abandon()
    assert account(tmp_path) == 0


def test_a_lock_that_is_not_released_is_given_up(tmp_path: Path) -> None:
    opened = CacheDirectory(str(tmp_path), LIMIT, patience_s=0.05)
    path = opened.published(fill(opened.begin(wanted())))
    with exclusive(str(tmp_path / "ledger")):
        assert opened.find(wanted()) == LookupResult(path, 100_000)  # what is there is read all the same
        with pytest.raises(TimeoutError, match=r"another process has held the lock for more than 0\.05 s"):
            opened.begin(wanted(1))
        with pytest.raises(TimeoutError):
            CacheDirectory(str(tmp_path), LIMIT, patience_s=0.05)


DIES = """
import os, sys
from tests.read.cache.test_directory import CacheDirectory, LIMIT, fill, wanted
import numpy as np
opened = CacheDirectory(sys.argv[1], LIMIT)
lease = opened.lease(np.arange(5, dtype=np.uint64), frozenset({1}))
opened.published(fill(opened.begin(wanted())))
filling = fill(opened.begin(wanted(1)))
os._exit(0)
"""


def test_what_a_dead_process_left_is_taken_back(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=True, timeout=60)
    assert len(os.listdir(tmp_path / "unfinished-1")) == len(os.listdir(tmp_path / "readers")) == 1
    opened = CacheDirectory(str(tmp_path), LIMIT)
    assert os.listdir(tmp_path / "unfinished-1") == os.listdir(tmp_path / "readers") == []
    (path,) = copies(tmp_path)
    assert opened.find(wanted()) == LookupResult(str(path), 100_000)
    assert account(tmp_path) == wanted().name(4096).nbytes


def test_an_account_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    opened = CacheDirectory(str(tmp_path), LIMIT)
    opened.published(fill(opened.begin(wanted())))
    right = account(tmp_path)
    for spoiled in (b"!" + (tmp_path / "ledger").read_bytes()[1:], b"", b"=" + b"9" * 28, b"=" + bytes(29)):
        (tmp_path / "ledger").write_bytes(spoiled)
        with transaction(CachePaths(str(tmp_path))) as found:
            assert found.taken_bytes == right
    with pytest.raises(ZeroDivisionError), transaction(CachePaths(str(tmp_path))) as found:
        found.taken_bytes = 1 // 0
    with transaction(CachePaths(str(tmp_path))) as found:
        assert found.taken_bytes == right


def test_a_row_group_that_can_never_fit_is_refused(tmp_path: Path) -> None:
    opened = CacheDirectory(str(tmp_path), LIMIT)
    kept = opened.published(fill(opened.begin(wanted())))
    span = ((0, LIMIT),)
    with pytest.raises(CacheFullError):
        opened.begin(RequestedRowGroup(file_id("large"), 0, 1, LIMIT, lambda: (span, span)))
    assert os.path.exists(kept)  # and nothing leaves for it


def test_row_groups_deleted_by_hand_make_room_soon(tmp_path: Path) -> None:
    kept = wanted().name(4096).nbytes
    opened = CacheDirectory(str(tmp_path), 72 * 4096 + 3 * kept)
    ids = [row_group_id(wanted().file, number) for number in range(9)]
    lease = opened.lease(np.array(ids, np.uint64), frozenset({1}))
    for number in range(3):
        opened.published(fill(opened.begin(wanted(number))))
    for path in copies(tmp_path)[:2]:
        path.unlink()
    with pytest.raises(CacheFullError):
        opened.begin(wanted(3))  # the account was made a moment ago
    opened.count_again_s = 0.0
    for number in range(3, 5):
        opened.published(fill(opened.begin(wanted(number))))
    with pytest.raises(CacheFullError):
        opened.begin(wanted(5))
    assert account(tmp_path) == 3 * kept
    lease.release()


def test_a_limit_below_what_the_directories_take_is_refused_and_nothing_leaves(tmp_path: Path) -> None:
    opened = CacheDirectory(str(tmp_path), LIMIT)
    path = opened.published(fill(opened.begin(wanted())))
    with pytest.raises(
        OSError, match=r"max_bytes=64\.0 KiB leaves no space for row groups: the directories .* take 284\.0 KiB"
    ):
        CacheDirectory(str(tmp_path), 2**16)
    assert opened.find(wanted()) == LookupResult(path, 100_000)


def test_a_directory_that_is_deleted_while_it_is_open_is_an_error_and_no_more(tmp_path: Path) -> None:
    opened = CacheDirectory(str(tmp_path / "cache"), LIMIT)
    filling = fill(opened.begin(wanted()))
    subprocess.run(["rm", "-rf", str(tmp_path / "cache")], check=True)
    assert opened.find(wanted()) == LookupResult(None)
    with pytest.raises(OSError, match="No such file"):
        opened.published(filling)
    filling.abandon()
    with pytest.raises(OSError, match="No such file"):
        opened.begin(wanted())
    CacheDirectory(str(tmp_path / "cache"), LIMIT)
    filling = fill(opened.begin(wanted()))
    opened.published(filling)


@pytest.mark.parametrize("deleted", ["unfinished-1", "."])
def test_one_whose_file_was_deleted_never_publishes_what_another_has_begun(tmp_path: Path, deleted: str) -> None:
    root = tmp_path / "cache"
    one, other = CacheDirectory(str(root), LIMIT), CacheDirectory(str(root), LIMIT)
    first = one.begin(wanted())
    assert first is not None
    subprocess.run(["find", str(root / deleted), "-type", "f", "-delete"], check=True)
    second = other.begin(wanted())  # it has the same name, and nothing in it yet
    assert second is not None
    with pytest.raises(OSError, match="No such file"):
        one.published(fill(first))
    first.abandon()
    assert one.find(wanted()) == LookupResult(None)
    assert len(os.listdir(root / "unfinished-1")) == 1
    path = other.published(fill(second))
    assert one.find(wanted()) == LookupResult(path, 100_000)
    assert Path(path).read_bytes()[10_000:110_000] == bytes(range(250)) * 400
    assert account(root) == wanted().name(4096).nbytes


def test_one_whose_file_was_deleted_in_the_last_moment_trusts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = CacheDirectory(str(tmp_path), LIMIT)
    filling = fill(opened.begin(wanted()))
    real = os.rename

    def rename(source: str, target: str) -> None:
        os.unlink(source)
        Path(source).write_bytes(bytes(SIZE))  # as another process would that has a new ledger
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(FileNotFoundError):
        opened.published(filling)
    filling.abandon()
    assert opened.find(wanted()) == LookupResult(None, damaged=1)


def test_a_row_group_that_cannot_be_accounted_is_released_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = CacheDirectory(str(tmp_path), LIMIT), CacheDirectory(str(tmp_path), LIMIT)
    real, failures = os.pwrite, [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if data == b"=" and failures:  # the account is written, and its mark is not removed
            raise failures.pop()
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="No space left") as held:  # the traceback keeps all frames alive
        one.begin(wanted())
    assert not other.is_fetched_by_other(wanted())
    assert os.listdir(tmp_path / "unfinished-1") == []
    path = other.published(fill(other.begin(wanted())))
    assert other.find(wanted()) == LookupResult(path, 100_000)
    assert account(tmp_path) == wanted().name(4096).nbytes
    del held


def test_a_file_system_whose_locks_exclude_nobody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(OSError, match="one lock to two holders"):
        CacheDirectory(str(tmp_path), LIMIT)


def test_names_that_are_none_of_ours_are_left_alone(tmp_path: Path) -> None:
    opened = CacheDirectory(str(tmp_path), LIMIT)
    bucket = Path(CachePaths(str(tmp_path)).entry(wanted().name(4096))).parent
    strange = [bucket / "notes.txt", tmp_path / "README"]
    strange += [tmp_path / folder / "mine" for folder in ("unfinished-1", "readers")]
    for path in strange:
        path.write_text("mine")
    (tmp_path / "readers" / "lost+found").mkdir()
    opened.published(fill(opened.begin(wanted())))
    CacheDirectory(str(tmp_path), LIMIT // 8)
    assert all(path.read_text() == "mine" for path in strange)
    assert (tmp_path / "readers" / "lost+found").is_dir()


def test_ids_of_many_row_groups_are_those_of_each() -> None:
    files = [file_id("one"), file_id("other")]
    place, number = np.array([0, 1, 1, 0]), np.array([0, 0, 7, 2**31 - 1])
    one_by_one = [row_group_id(files[f], n) for f, n in zip(place.tolist(), number.tolist(), strict=True)]
    assert row_group_ids(files, place, number).tolist() == one_by_one
    assert len(set(one_by_one)) == 4
    assert EntryName.parse(str(EntryName(files[0], 7, 2**64 - 1, 5))) == EntryName(files[0], 7, 2**64 - 1, 5)
    assert EntryName.parse("notes.txt") is None


def checksum(data: Any) -> int:
    adding = Checksum()
    adding.add(data)
    return adding.value


@pytest.mark.parametrize("nbytes", [1, 7, 4095, 4096, 4097, 50_001])
def test_a_checksum_finds_every_flipped_bit_and_every_lost_or_exchanged_block(nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(1, 256, nbytes, dtype=np.uint8)
    right = checksum(data)
    parts = Checksum()
    for begin in range(0, nbytes, 8192):
        parts.add(data[begin : begin + 8192])
    assert parts.value == right
    for at in {0, nbytes // 2, nbytes - 1}:
        for bit in range(8):
            data[at] ^= 1 << bit
            assert checksum(data) != right
            data[at] ^= 1 << bit
    lost = data.copy()
    lost[nbytes // 4096 * 4096 // 2 :][:4096] = 0
    assert checksum(lost) != right
    if nbytes > 8192:
        exchanged = np.concatenate([data[4096:8192], data[:4096], data[8192:]])
        assert checksum(exchanged) != right


def test_ranges_that_touch_hold_what_spans_them() -> None:
    index = Index(1000, ((0, 100), (100, 200), (300, 400)), (0, 0, 0))
    assert index.covering([(50, 150)]) == [0, 1]
    assert index.covering([(0, 10), (390, 400)]) == [0, 2]
    assert index.covering([(150, 301)]) is None
    assert index.covering([(400, 401)]) is None
    assert index.covering([]) == []


def test_blocks_are_counted_once() -> None:
    assert occupied_bytes(100_000, [(0, 10), (20, 4090)], 4096) == 2 * 4096  # one block, and the index
    assert occupied_bytes(100_000, [(4095, 4097)], 4096) == 3 * 4096
    assert occupied_bytes(4096, [(0, 4096)], 4096) == 2 * 4096
