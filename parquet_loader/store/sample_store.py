"""`SampleStore`: a directory of Parquet files that grows while it is read, within a limit."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Any, NamedTuple

from parquet_loader.common import PathLike, check_int, parse_bytes, remove_file, resolve
from parquet_loader.errors import ConfigurationError, ResumeError, WriteError
from parquet_loader.loader.live_source import Follower
from parquet_loader.schema import Schema
from parquet_loader.store.atomic_publish import AtomicPublish
from parquet_loader.store.epochs import StoreFollower, StoreView
from parquet_loader.store.eviction_queue import clear_evictions
from parquet_loader.store.files.file_catalog import FileCatalog
from parquet_loader.store.files.file_lists import (
    KEPT_LISTS,
    FileList,
    HeldState,
    is_list_name,
    read_holds,
    read_list,
    write_hold,
)
from parquet_loader.store.files.paths import StorePaths, remove_half_replaced
from parquet_loader.store.files.stored_file import StoredFile
from parquet_loader.store.ledger import Ledger
from parquet_loader.store.open import open_settings
from parquet_loader.store.sampling_processes import Samplers
from parquet_loader.store.sampling_weights import Weight
from parquet_loader.store.settings import Eviction, StoreOptions, StoreSettings, check_seconds, eviction_word
from parquet_loader.store.space import Evicted, Space, reclaim
from parquet_loader.store.status import StoreStatus, status_of
from parquet_loader.store.writer import StoreWriter
from parquet_loader.store.writer_state import WhenFull, WriterOptions, WriterState
from parquet_loader.write import storage_errors


class _Parts(NamedTuple):
    """The parts of a store that know each other; they belong to the process that made them.

    Attributes:
        ledger: Its account, and the published files.
        files: The known facts of its files, for reading.
        space: Reservations and eviction.
        reading: What loaders see.
    """

    ledger: Ledger
    files: FileCatalog
    space: Space
    reading: StoreView


class SampleStore:
    """A growing directory of samples: any number of processes write, readers train, old files are evicted.

    The samples are plain Parquet files, each published whole. A store is opened anew by every process, with nothing but
    its path; its settings are kept in ``.store/`` next to the samples, and in their footers.

    Args:
        path: A local directory, created if there is a `schema`; it may hold other things, which are left alone.
        schema: The schema of the columns; needed once, to make the store.
        max_bytes: Most bytes of published files and files under way together, as a number or text (``"200GB"``).
            None keeps the limit; a new store has none.
        evict: Which files are removed when there is no space: ``"oldest"`` (the default), ``"random"``, ``"seen"``
            (delivered in the most epochs), ``"priority"`` (the lowest given to their writers), ``"never"``, or a
            function of a `StoredFile` that returns a number, the least of which goes first. A function is not kept:
            only processes that open the store with it evict.
        options: How files are cut.

    Any thread may use a store; it opens no file and starts no thread of its own. It may be pickled, if `evict` may.

    Raises:
        SourceError: there is no store at `path`, and no schema to make one.
        SchemaError: the store has another schema.
        ConfigurationError: an argument of the wrong kind, or a file system without locks.
        WriteError: the store cannot be made there.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        schema: Schema | None = None,
        max_bytes: int | str | None = None,
        evict: Eviction | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        if schema is not None and not isinstance(schema, Schema):
            raise ConfigurationError(f"schema={schema!r:.60}: expected a Schema or None")
        if options is not None and not isinstance(options, StoreOptions):
            raise ConfigurationError(f"options={options!r:.60}: expected StoreOptions or None")
        scheme, separator, _ = str(path).partition("://")
        if separator and scheme != "file":
            raise ConfigurationError(
                f"{path}: a sample store lies in a local directory (or a mounted one), because it relies on locks; "
                "pass a local path"
            )
        _, inner = resolve(path)
        self._paths = StorePaths(os.path.realpath(inner))
        self._function: Callable[[StoredFile], float] | None = evict if callable(evict) else None
        self._settings_changed = 0
        if evict is not None:
            eviction_word(evict)
        self._settings, self._is_read_only = open_settings(self._paths, schema, max_bytes, evict, options)
        self._pid = 0
        if not self._is_read_only:
            self.recover()

    def __repr__(self) -> str:
        return f"SampleStore({self.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.path, self._function)

    @property
    def path(self) -> str:
        """Its directory, absolute."""
        return self._paths.root

    @property
    def schema(self) -> Schema:
        """The schema of its columns."""
        return self._settings.schema

    @property
    def settings(self) -> StoreSettings:
        """The settings that all processes share, as they are now."""
        with contextlib.suppress(OSError):
            changed = os.stat(self._paths.settings).st_mtime_ns
            if changed != self._settings_changed:
                with open(self._paths.settings, "rb") as file:
                    self._settings = StoreSettings.from_json(file.read(), self._paths.settings)
                self._settings_changed = changed
        return self._settings

    @property
    def rows(self) -> int:
        """Rows published and there."""
        return self._parts().ledger.totals().rows

    def writer(
        self,
        *,
        evicts: bool = True,
        when_full: WhenFull = "wait",
        wait_s: float | None = None,
        roll_s: float | None = None,
        priority: float = 0.0,
        metadata: Mapping[str, str] | None = None,
    ) -> StoreWriter:
        """Return a writer, one of any number.

        Args:
            evicts: Whether it removes files, by the store's policy, when there is no space.
            when_full: What it does when there is no space and nothing may be evicted: ``"wait"``, ``"drop"`` the rows,
                or ``"fail"`` (`StoreFullError`).
            wait_s: Longest wait; then it fails. None: no limit.
            roll_s: A file is published at the latest that many seconds after its first row; None: as in `StoreOptions`.
            priority: For `evict="priority"`; kept in each file.
            metadata: Text by name, kept in each file, for functions that evict or weigh.

        Raises:
            WriteError: the directory is read-only.
        """
        if when_full not in ("wait", "drop", "fail"):
            raise ConfigurationError(f"when_full={when_full!r}: expected 'wait', 'drop' or 'fail'")
        if wait_s is not None:
            check_seconds("wait_s", wait_s)
        if isinstance(priority, bool) or not isinstance(priority, int | float) or isnan(priority):
            raise ConfigurationError(f"priority={priority!r}: expected a number")
        given = dict(metadata or {})
        if not all(isinstance(part, str) for pair in given.items() for part in pair):
            raise ConfigurationError(f"metadata={given!r:.80}: expected text by name")
        roll = self.settings.options.roll_s if roll_s is None else check_seconds("roll_s", roll_s)
        parts = self._writable()
        options = WriterOptions(bool(evicts), when_full, wait_s, roll, float(priority), given)
        return StoreWriter(WriterState(self._paths, parts.ledger, parts.space, lambda: self.settings, options))

    def evict(self, to_bytes: int | str | None = None) -> Evicted:
        """Evict by the store's policy until at most that many bytes are used, or nothing is left that may go.

        Args:
            to_bytes: None: the store's limit.
        """
        settings = self.settings
        goal = settings.max_bytes if to_bytes is None else _bytes(to_bytes)
        if goal is None:
            return Evicted()
        return self._writable().space.evict(goal)

    def files(self) -> list[StoredFile]:
        """Return the files that are there now, in order of publication; any of them may be evicted at any time."""
        parts = self._parts()
        names = parts.ledger.published()
        return parts.reading.with_counts(parts.files.examine(names))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[list[StoredFile]]:
        """Hold the files that are there now, for any other reader, until the body ends."""
        parts = self._parts()
        listed = parts.reading.lease_files("snapshot")
        try:
            yield parts.reading.with_counts(listed.files)
        finally:
            if listed.lease is not None:
                listed.lease.drop()

    def hold(self, state: Mapping[str, Any]) -> HeldState:
        """Keep the files that a loader's state names until `release`.

        Needs no process: no process evicts the files, also after this one has ended. A hold belongs to one snapshot,
        epoch and batch; to hold the same state again changes nothing. A state that was taken during an epoch names all
        files of that epoch's snapshot; those that still exist are held.

        Args:
            state: What `BatchedDataLoader.state_dict` returned, of a loader over this store.

        Raises:
            ResumeError: it is not a state, or the store no longer keeps its list of files.
            WriteError: the directory is read-only, or the disk full.
        """
        name, epoch, batch = _position_of(state, self.path)
        with self._writable().ledger.transaction():
            data = read_list(self._paths, name)
            if data is None:
                raise ResumeError(
                    f"{self.path}: the store does not keep the state's list of files ({name}); it keeps the last "
                    f"{KEPT_LISTS} and those that are held, so hold a state soon after it was taken"
                )
            found = FileList.load(data, self._paths)
            gone = set(found.gone.tolist())
            names = [name for number, name in enumerate(found.names) if number not in gone]
            held = HeldState(name, epoch, batch, time.time(), len(names), len(gone))
            try:
                write_hold(self._paths, held, names)
            except OSError as error:
                raise WriteError(
                    f"{self.path}: the hold cannot be written: {error.strerror}; free some space, or check permissions"
                ) from error
        return held

    def release(self, held: HeldState | Mapping[str, Any]) -> bool:
        """End a hold; return whether there was one. Files that nothing else needs may then be evicted.

        Args:
            held: An argument or result of `hold`, or a result of `holds`.

        Raises:
            ResumeError: `held` is neither.
            WriteError: the directory is read-only.
        """
        if not isinstance(held, HeldState):
            held = HeldState(*_position_of(held, self.path), 0.0, 0, 0)
        elif not held.is_sound:
            raise ResumeError(
                f"{self.path}: no hold has the name {held.name!r:.120}; pass what hold() or holds() returned"
            )
        path = os.path.join(self._paths.holds, held.name)
        with self._writable().ledger.transaction():
            return remove_file(path)

    def holds(self) -> list[HeldState]:
        """Return the states whose files are held on purpose, the oldest hold first."""
        return read_holds(self._paths)

    def follow(self, weights: Weight | None = None, seed: int = 0) -> Follower:
        """Return one loader's view; called by `BatchedDataLoader` itself."""
        return StoreFollower(lambda: self._parts().reading, self.path, weights, seed)

    def weighted(self, weights: Weight, *, seed: int = 0) -> WeightedStore:
        """Return a source for `BatchedDataLoader` in which some samples come more often than others.

        Args:
            weights: `RecentFirst`, `AtMost`, or a function of an `Arrival` that returns how often a file's rows come in
                an epoch, on average.
            seed: From 0 to 2**64 - 1; draws for fractions are a function of (seed, epoch, file).
        """
        if not callable(weights):
            raise ConfigurationError(f"weights={weights!r:.80}: expected RecentFirst, AtMost or a function")
        return WeightedStore(self, weights, check_int("seed", seed, 0, 2**64 - 1))

    def wait(self, *, rows: int = 1, timeout_s: float | None = None) -> int:
        """Wait until the store holds that many rows, and return how many it holds.

        Raises:
            TimeoutError: it took longer than `timeout_s` seconds.
        """
        check_int("rows", rows, 1, 2**62)
        began, delay = time.monotonic(), 0.02
        while (found := self.rows) < rows:
            left = delay if timeout_s is None else timeout_s - (time.monotonic() - began)
            if left <= 0:
                raise TimeoutError(f"{self.path}: the store holds {found} rows after {timeout_s} s, not {rows}")
            time.sleep(min(delay, left))
            delay = min(2 * delay, 0.5)
        return found

    def footer(self, metadata: Mapping[str, str]) -> dict[bytes, bytes]:
        """Return the footer metadata of files for `publish`; called by jobs.

        Args:
            metadata: As for `writer`.
        """
        return self.settings.footer("", 0.0, metadata)

    def publish(self, paths: Sequence[str]) -> list[str]:
        """Publish finished files in this order, all of them at once or none, and return their paths; called by jobs.

        Space for all of them is made, or waited for, first. Killed at any instant, a process leaves all of them or none
        to be seen: a commit that was cut short is completed by the next process that uses the store.

        Args:
            paths: Whole Parquet files with this store's `footer`, forced to the disk, in its file system. They are
                moved.

        Raises:
            WriteError: a file does not belong to this store, all of them exceed its limit, the file system refuses, or
                the directory is read-only. Nothing is published.
            UnfinishedCommitError: the file system refuses to complete the commit and to undo it: all of them appear
                when the store is opened next.
        """
        parts = self._writable()
        together = AtomicPublish(self._paths, parts.ledger, parts.space, lambda: self.settings)
        with storage_errors(self.path):
            return together.publish(paths)

    def sample(
        self,
        function: Callable[..., Iterator[Any]],
        *,
        processes: int = 1,
        arguments: Sequence[Any] = (),
        **writer: Any,
    ) -> Samplers:
        """Run ``function(number, *arguments)`` in several processes, and write the batches that it yields.

        Args:
            function: Importable, since processes are spawned.
            processes: How many; `number` counts them from 0.
            arguments: Handed over to each.
            **writer: As for `writer`.
        """
        self._writable()
        return Samplers(partial(self.writer, **writer), function, processes, tuple(arguments))

    def status(self) -> StoreStatus:
        """Return the contents and rates of the store; print it for a table."""
        settings = self.settings
        return status_of(self._paths, self._parts().ledger, settings.max_bytes, self._policy_name(settings))

    def recover(self) -> int:
        """Remove what dead writers and readers left, and make the account anew; done whenever a store is opened.

        Returns the number of things removed.
        """
        with self._writable().ledger.transaction(rebuild=True) as totals:
            clear_evictions(self._paths)  # a writer that still waits names them again
            return reclaim(self._paths, self._parts().ledger, totals) + remove_half_replaced(self._paths)

    def _policy_name(self, settings: StoreSettings) -> str:
        return "function" if self._function is not None else settings.evict

    def _parts(self) -> _Parts:
        """Return what belongs to this process; made anew after a fork, when a lock may be held by nobody here."""
        if self._pid != os.getpid():
            paths, identity = self._paths, self._settings.identity
            ledger, files = Ledger(paths, self._settings.tag), FileCatalog(paths, identity)
            space = Space(
                paths,
                ledger,
                FileCatalog(paths, identity),  # eviction has a lock of its own
                policy=lambda: self._function or self.settings.evict,
                limit=lambda: self.settings.max_bytes,
            )
            self._made = _Parts(ledger, files, space, StoreView(paths, ledger, files, may_hold=not self._is_read_only))
            self._pid = os.getpid()
        return self._made

    def _writable(self) -> _Parts:
        if self._is_read_only:
            raise WriteError(f"{self.path}: the directory is read-only for this process; the store can only be read")
        return self._parts()


@dataclass(frozen=True, slots=True)
class WeightedStore:
    """A store in which some samples come more often than others; see `SampleStore.weighted`."""

    store: SampleStore
    weights: Weight
    seed: int

    def follow(self) -> Follower:
        """Return one loader's view."""
        return self.store.follow(self.weights, self.seed)


def _position_of(state: Mapping[str, Any], path: str) -> tuple[str, int, int]:
    """Return the name of the list, the epoch and the batch of a loader's state."""
    name, position = state.get("snapshot"), (state.get("epoch"), state.get("batch"))
    if not is_list_name(name) or not all(isinstance(n, int) and n >= 0 for n in position):
        raise ResumeError(
            f"{path}: the state names no snapshot of a store; pass what state_dict() of a loader over this store "
            f"returned after an epoch had begun, found {dict(state)!r:.120}"
        )
    return name, *position  # type: ignore[return-value]


def _opened(path: str, function: Callable[[StoredFile], float] | None) -> SampleStore:
    """Open a store that was pickled."""
    store = SampleStore(path)
    store._function = function
    store._pid = 0
    return store


def _bytes(value: int | str) -> int:
    return 0 if value == 0 else parse_bytes(value, "to_bytes")
