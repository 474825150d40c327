"""`SampleStore`: a directory of Parquet files that grows while it is read, within a limit."""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Any, NamedTuple

from parquet_loader.common import (
    PathLike,
    check_int,
    is_number,
    parse_bytes,
    reading_errors,
    remove_file,
    resolve,
    unfit_call,
)
from parquet_loader.errors import ConfigurationError, ResumeError, SourceError, WriteError
from parquet_loader.loader.live_source import Follower
from parquet_loader.schema import Schema, check_schema
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

_ADVICE = "; free some space, or check permissions"


class _Parts(NamedTuple):
    """The parts of a store; they belong to the process that made them.

    Attributes:
        ledger: Its totals and its lock; lists the published files.
        files: The known facts of its files, for reading.
        space: Reservations and eviction.
        view: Lists and leases files for readers.
    """

    ledger: Ledger
    files: FileCatalog
    space: Space
    view: StoreView


class SampleStore:
    """A growing directory of samples: any number of processes write, readers train, old files are evicted.

    The samples are plain Parquet files, each published atomically. Every process opens the store by its path alone; the
    settings are stored in ``.store/`` next to the samples, and in their footers.

    Args:
        path: A local directory, created if there is a `schema`; other files in it are not touched.
        schema: The schema of the columns; needed once, to make the store.
        max_bytes: The most bytes of published files and files being written together, as a number or text
            (``"200GB"``). None keeps the limit; a new store has none.
        evict: The files to remove when there is no space: ``"oldest"`` (the default), ``"random"``, ``"seen"``
            (delivered in the most epochs), ``"priority"`` (the lowest priority of their writers), ``"never"``, or a
            function of a `StoredFile` that returns a number; the file with the least number is removed first. A
            function is not stored: only processes that open the store with it evict.
        options: How files are cut.

    Any thread may use a store; it opens no file and starts no thread of its own. It may be pickled, if `evict` may.

    Raises:
        SourceError: There is no store at `path`, and no schema to make one.
        SchemaError: The store has another schema.
        ConfigurationError: An argument has the wrong kind, or the file system has no locks.
        WriteError: The store cannot be made at `path`.
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
        check_schema(schema)
        if options is not None and not isinstance(options, StoreOptions):
            raise ConfigurationError(f"options={options!r:.60}: expected StoreOptions or None")
        scheme, separator, _ = str(path).partition("://")
        if separator and scheme != "file":
            raise ConfigurationError(
                f"{path}: a sample store needs a local directory (or a mounted one), because it relies on locks; "
                "pass a local path"
            )
        _, inner = resolve(path)
        self._paths = StorePaths(os.path.realpath(inner))
        self._function: Callable[[StoredFile], float] | None = evict if callable(evict) else None
        self._settings_version = (0, 0)  # inode and modification time of the file
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
        """The current settings, which all processes share.

        Raises:
            SourceError: The store was moved or removed, or another one was created at its path.
        """
        try:
            stat = os.stat(self._paths.settings)
            version = stat.st_ino, stat.st_mtime_ns
            if version != self._settings_version:
                with open(self._paths.settings, "rb") as file:
                    found = StoreSettings.from_json(file.read(), self._paths.settings)
                if found.identity != self._settings.identity:
                    raise SourceError(
                        f"{self.path}: another store has been created here since this one was opened; open it again: "
                        "SampleStore(path)"
                    )
                self._settings, self._settings_version = found, version
        except (FileNotFoundError, NotADirectoryError) as error:
            needed = self._paths.root if self._is_read_only else self._paths.hidden
            if not os.path.isdir(needed):
                raise SourceError(
                    f"{needed}: this directory was moved or removed since the store was opened; open the store again, "
                    "at its present path: SampleStore(path)"
                ) from error
        except OSError:
            pass  # the known settings hold
        return self._settings

    @property
    def rows(self) -> int:
        """Rows in the published files that still exist.

        Raises:
            SystemReadError, OpenFilesError: The system cannot read the directory.
        """
        with reading_errors(self.path):
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
            when_full: What it does when there is no space and no file may be evicted: ``"wait"``, ``"drop"`` the rows,
                or ``"fail"`` (`StoreFullError`).
            wait_s: The longest wait in seconds, after which it raises `StoreFullError`; None for no limit.
            roll_s: A file is published at most this many seconds after its first row; None for the value in
                `StoreOptions`.
            priority: The priority for `evict="priority"`; stored in each file.
            metadata: Text by name, stored in each file, for functions that evict or weigh.

        Raises:
            WriteError: The directory is read-only, or the disk is full.
            SystemReadError: The system starts no more threads.
        """
        options = self._writer_options(evicts, when_full, wait_s, roll_s, priority, metadata)
        parts = self._writable()
        return StoreWriter(WriterState(self._paths, parts.ledger, parts.space, lambda: self.settings, options))

    def _writer_options(
        self,
        evicts: bool,
        when_full: WhenFull,
        wait_s: float | None,
        roll_s: float | None,
        priority: float,
        metadata: Mapping[str, str] | None,
    ) -> WriterOptions:
        if when_full not in ("wait", "drop", "fail"):
            raise ConfigurationError(f"when_full={when_full!r}: expected 'wait', 'drop' or 'fail'")
        if wait_s is not None:
            wait_s = check_seconds("wait_s", wait_s)
        if not is_number(priority) or isnan(priority):
            raise ConfigurationError(f"priority={priority!r}: expected a number")
        given = dict(metadata or {})
        if not all(isinstance(part, str) for pair in given.items() for part in pair):
            raise ConfigurationError(f"metadata={given!r:.80}: expected text by name")
        roll = self.settings.options.roll_s if roll_s is None else check_seconds("roll_s", roll_s)
        return WriterOptions(bool(evicts), when_full, wait_s, roll, float(priority), given)

    def evict(self, to_bytes: int | str | None = None) -> Evicted:
        """Evict by the store's policy until at most `to_bytes` are used, or no file is left that may be evicted.

        Args:
            to_bytes: The goal in bytes; None for the store's limit.

        Raises:
            WriteError: The directory is read-only, or the file system refuses.
        """
        settings = self.settings
        goal = settings.max_bytes if to_bytes is None else _bytes(to_bytes)
        if goal is None:
            return Evicted()
        space = self._writable().space
        with storage_errors(self.path, "files cannot be evicted: {}", _ADVICE):
            return space.evict(goal)

    def files(self) -> list[StoredFile]:
        """Return the present files, in order of publication; any of them may be evicted at any time.

        Raises:
            SystemReadError, OpenFilesError: The system cannot read the directory or a file.
        """
        parts = self._parts()
        with reading_errors(self.path):
            names = parts.ledger.published()
            return parts.view.with_counts(parts.files.examine_all(names))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[list[StoredFile]]:
        """Lease the present files until the body ends, so that any reader can read them."""
        parts = self._parts()
        listed = parts.view.lease_files("snapshot")
        try:
            with reading_errors(self.path):
                files = parts.view.with_counts(listed.files)
            yield files
        finally:
            if listed.lease is not None:
                listed.lease.drop()

    def hold(self, state: Mapping[str, Any]) -> HeldState:
        """Keep the files that a loader's state names until `release`.

        The hold outlives this process: no process evicts the files. A hold belongs to one snapshot, epoch and batch;
        to hold the same state again changes nothing. A state that was saved during an epoch names all files of that
        epoch's snapshot; those that still exist are held.

        Args:
            state: The result of `BatchedDataLoader.state_dict` of a loader over this store.

        Raises:
            ResumeError: It is not a state, or the store no longer keeps its list of files.
            WriteError: The directory is read-only, or the disk is full.
        """
        name, epoch, batch = _position_of(state, self.path)
        ledger = self._writable().ledger
        with storage_errors(self.path, "the hold cannot be written: {}", _ADVICE), ledger.transaction():
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
            write_hold(self._paths, held, names)
        return held

    def release(self, held: HeldState | Mapping[str, Any]) -> bool:
        """End a hold; return whether it existed. Files that nothing else needs may then be evicted.

        Args:
            held: An argument or result of `hold`, or a result of `holds`.

        Raises:
            ResumeError: `held` is neither.
            WriteError: The directory is read-only, or the file system refuses.
        """
        if not isinstance(held, HeldState):
            held = HeldState(*_position_of(held, self.path), 0.0, 0, 0)
        elif not held.is_sound:
            raise ResumeError(
                f"{self.path}: no hold has the name {held.name!r:.120}; pass what hold() or holds() returned"
            )
        path = os.path.join(self._paths.holds, held.name)
        ledger = self._writable().ledger
        with storage_errors(self.path, "the hold cannot be removed: {}", _ADVICE), ledger.transaction():
            return remove_file(path)

    def holds(self) -> list[HeldState]:
        """Return all holds, the oldest first.

        Raises:
            SystemReadError, OpenFilesError: The system cannot read the directory.
        """
        self._parts()
        with reading_errors(self.path):
            return read_holds(self._paths)

    def follow(self, weights: Weight | None = None, seed: int = 0) -> Follower:
        """Return a view for one loader; called by `BatchedDataLoader`."""
        return StoreFollower(lambda: self._parts().view, self.path, weights, seed)

    def weighted(self, weights: Weight, *, seed: int = 0) -> WeightedStore:
        """Return a source for `BatchedDataLoader` that delivers some samples more often than others.

        Args:
            weights: `RecentFirst`, `AtMost`, or a function of an `Arrival` that returns how often a file's rows are
                delivered in an epoch, on average.
            seed: From 0 to 2**64 - 1; draws for fractions are a function of (seed, epoch, file).
        """
        if not callable(weights):
            raise ConfigurationError(f"weights={weights!r:.80}: expected RecentFirst, AtMost or a function")
        if (unfit := unfit_call(weights, None)) is not None:
            raise ConfigurationError(f"weights={weights!r:.80}: is called with an Arrival, and {unfit}; take it")
        return WeightedStore(self, weights, check_int("seed", seed, 0, 2**64 - 1))

    def wait(self, *, rows: int = 1, timeout_s: float | None = None) -> int:
        """Wait until the store holds at least `rows` rows, and return their number.

        Raises:
            TimeoutError: The wait took longer than `timeout_s` seconds.
        """
        check_int("rows", rows, 1, 2**62)
        if timeout_s is not None and not is_number(timeout_s):
            raise ConfigurationError(f"timeout_s={timeout_s!r:.80}: expected a number of seconds, or None")
        began, delay = time.monotonic(), 0.02
        while (found := self.rows) < rows:
            left = delay if timeout_s is None else timeout_s - (time.monotonic() - began)
            if left <= 0:
                raise TimeoutError(
                    f"{self.path}: waited {timeout_s} s for {rows} rows, and the store holds {found}; check that its "
                    f"writers run, with store.status(), or pass a longer timeout_s"
                )
            time.sleep(min(delay, float(left)))
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

        Space for all of them is freed or awaited first. If the process is killed at any moment, readers see all of them
        or none: the next process that uses the store completes an interrupted commit.

        Args:
            paths: Complete Parquet files with this store's `footer`, synced to the disk, in its file system. They are
                moved.

        Raises:
            WriteError: A file does not belong to this store, all of them exceed its limit, the file system refuses, or
                the directory is read-only. Nothing is published.
            UnfinishedCommitError: The file system refuses to complete the commit and to undo it: all of them appear
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
            function: An importable function, because processes are spawned.
            processes: Number of processes; `number` counts them from 0.
            arguments: Further arguments of the function.
            **writer: Arguments of `writer`.
        """
        self._writable()
        if isinstance(arguments, str) or not isinstance(arguments, Iterable):
            raise ConfigurationError(f"arguments={arguments!r:.80}: expected a list or a tuple of arguments")
        given = inspect.signature(self.writer).bind(**writer)
        given.apply_defaults()
        self._writer_options(**given.arguments)  # raises here, not in each process again and again
        return Samplers(partial(self.writer, **writer), function, processes, tuple(arguments))

    def status(self) -> StoreStatus:
        """Return the contents and rates of the store; print it for a table.

        Raises:
            SystemReadError, OpenFilesError: The system cannot read the directory or a file.
        """
        settings = self.settings
        policy = "function" if self._function is not None else settings.evict
        with reading_errors(self.path):
            return status_of(self._paths, self._parts().ledger, settings.max_bytes, policy)

    def recover(self) -> int:
        """Remove the remains of dead writers and readers, and count all files again; done whenever a store is opened.

        Returns the number of files removed.

        Raises:
            WriteError: The directory is read-only, or the file system refuses.
        """
        ledger = self._writable().ledger
        refused = storage_errors(self.path, "the store's own files cannot be written: {}", _ADVICE)
        with refused, ledger.transaction(rebuild=True) as totals:
            clear_evictions(self._paths)  # a writer that still waits queues them again
            return reclaim(self._paths, ledger, totals) + remove_half_replaced(self._paths)

    def _parts(self) -> _Parts:
        """Return the parts of this process; made again after a fork, because a lock may be held by a lost thread.

        Raises:
            SourceError: As for `settings`.
        """
        _ = self.settings
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
            self._made = _Parts(ledger, files, space, StoreView(paths, ledger, files, may_lease=not self._is_read_only))
            self._pid = os.getpid()
        return self._made

    def _writable(self) -> _Parts:
        if self._is_read_only:
            raise WriteError(f"{self.path}: the directory is read-only for this process; the store can only be read")
        return self._parts()


@dataclass(frozen=True, slots=True)
class WeightedStore:
    """A source that delivers some samples of a store more often than others; see `SampleStore.weighted`."""

    store: SampleStore
    weights: Weight
    seed: int

    def follow(self) -> Follower:
        """Return one loader's view."""
        return self.store.follow(self.weights, self.seed)


def _position_of(state: Mapping[str, Any], path: str) -> tuple[str, int, int]:
    """Return the name of the list, the epoch and the batch of a loader's state."""
    found: Any = state
    given = found if isinstance(found, Mapping) else {}
    name, position = given.get("snapshot"), (given.get("epoch"), given.get("batch"))
    if not is_list_name(name) or not all(isinstance(n, int) and n >= 0 for n in position):
        raise ResumeError(
            f"{path}: the state names no snapshot of a store; pass what state_dict() of a loader over this store "
            f"returned after an epoch had begun, found {found!r:.120}"
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
