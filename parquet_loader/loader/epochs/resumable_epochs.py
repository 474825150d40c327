"""`ResumableEpochs`: saves the state of a loader and continues from one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

from parquet_loader.common import check_choice, check_int
from parquet_loader.dataset import MOST_OPEN_ROW_GROUPS, WindowNeeds
from parquet_loader.errors import ResumeError
from parquet_loader.loader.epochs.loader_epochs import LoaderEpochs
from parquet_loader.loader.live_datasets import LiveDatasets, files_named
from parquet_loader.loader.state import OF_FILES, check_state, make_state, order_identity

_OF_WINDOWS = ("window_rows", "open_row_groups")


class ResumableEpochs(LoaderEpochs):
    """Epochs whose position is a state: a small dict of JSON values; see `state`."""

    _filters: Any
    _split: str | None
    _chooses_window: bool

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position of the loader as a small dict of JSON values, the same on all ranks.

        The position is the batch after the last one delivered in the running epoch, or in the last epoch, even if it
        was left early. After `set_epoch`, `seek` or `load_state_dict` it is the chosen batch, and after an epoch's last
        batch the beginning of the next epoch.

        Args:
            batches: Batches of this epoch that were used, if fewer than were delivered; for trainers that prefetch.
        """
        last = self._described_epoch()
        epoch, batch = (self._next_epoch, self._next_batch) if last is None else last.position
        if batches is not None:
            epoch = epoch if last is None else last.epoch
            batch = check_int("batches", batches, 0, max(len(self), batch))
        if batch >= len(self) > 0:
            epoch, batch = epoch + 1, 0
        left_out = last.left_out if last is not None and self._options.skips else 0
        if self._live_datasets is None:
            return make_state(self._identity, epoch, batch, left_out)
        named = {name: value for name, value in self._identity.items() if batch or name not in OF_FILES}
        return make_state({**named, "snapshot": self._live_datasets.keep()}, epoch, batch, left_out)

    def load_state_dict(self, state: dict[str, Any], *, if_gone: Literal["raise", "next_epoch"] = "raise") -> None:
        """Continue from a state, with the next batch; ends a running iteration.

        At most two windows are read again. If the loader chose `window_rows` itself, it uses the state's value, so that
        another `memory_limit` does not change the order. It also uses the state's number of row groups in a window.

        Over a `SampleStore`, the rest of the epoch reads the state's own files, if the store still has them; they are
        leased from now on. All ranks call this together.

        Args:
            state: The result of `state_dict`.
            if_gone: What happens if a store has evicted some of these files: ``"next_epoch"`` continues with the first
                batch of the next epoch, over the store's files at that time.

        Raises:
            ResumeError: The state belongs to other files, columns, filters, or arguments, or files of a store are
                gone; the message names them.
            MemoryLimitError: The state's windows do not fit into `memory_limit`.
            LoaderStateError: The loader is closed.
        """
        check_choice("if_gone", if_gone, ("raise", "next_epoch"))
        following = self._live_datasets
        if following is None:
            epoch, batch = self._accept_state(state)
        else:
            epoch, batch = following.with_broadcast(lambda: self._position_of(state))
            if batch:
                epoch, batch = self._recall(following, state, skips_to_next=if_gone == "next_epoch")
            else:
                following.remember(state.get("snapshot"))
        self._set_position(*((epoch + 1, 0) if batch == len(self) > 0 else (epoch, batch)))

    def _position_of(self, state: dict[str, Any]) -> tuple[int, int]:
        """Check a state of a loader like this one, over any files; return its epoch and batch."""
        self._end_for_state()
        return check_state(state, self._identity, 2**62, OF_FILES)

    def _recall(self, following: LiveDatasets, state: dict[str, Any], *, skips_to_next: bool) -> tuple[int, int]:
        """Let the next epoch read the files that a state names; return the state's epoch and batch.

        If files are gone and `skips_to_next` is set, return the first batch of the next epoch.

        Raises:
            ResumeError: Files are gone, and `skips_to_next` is not set.
        """
        before, epoch = self._dataset, int(state["epoch"])
        remedy = "store.hold(state), called when a state is taken, keeps its files"
        seen = following.recall(state.get("snapshot"), epoch)
        try:
            self._use(seen.dataset)
            epoch, batch = following.with_broadcast(lambda: self._accept_state(state))
            missing = following.resume(seen, self._dataset, self._plan(epoch), batch)
            if not missing:
                return epoch, batch
            reason = (
                f"the store has evicted {len(missing)} of the files that the rest of epoch {epoch} needs: "
                f"{files_named(missing)}"
            )
        except BaseException as error:
            seen.files.close()
            is_list_gone = isinstance(error, ResumeError) and state.get("files") != self._identity["files"]
            self._use(before)
            if not is_list_gone:
                raise
            reason = f"the store no longer has the list of the state's files, and has other files now: {error}"
            if before.snapshot.table is not None:
                what = "repository" if before.snapshot.table.format == "hub" else "table"
                reason = f"the {what} no longer has {state.get('snapshot')!r}, the state's version: {error}"
                remedy = f"keep versions of the {what} for longer than you want to resume"
        self._use(before)
        if skips_to_next:
            return epoch + 1, 0
        raise ResumeError(
            f"{reason}; load_state_dict(state, if_gone='next_epoch') continues with epoch {epoch + 1}; {remedy}"
        )

    def _accept_state(self, state: dict[str, Any]) -> tuple[int, int]:
        """Check a state as `load_state_dict` does, and use its windows; return its epoch and batch."""
        self._end_for_state()
        with unchanged_on_error(self):
            windows = self._other_windows(state)
            if windows is not None:
                self._use(self._dataset.with_window(*windows, self._window_needs()))
            return check_state(state, self._identity, len(self), table=self._dataset.snapshot.table)

    def _other_windows(self, state: Any) -> tuple[int, int] | None:
        """Return the window rows and open row groups of a state; None if they equal the loader's, or cannot be used.

        Releases may choose different numbers of open row groups, because they measure memory differently.
        """
        rows, groups = (state.get(name) if isinstance(state, dict) else None for name in _OF_WINDOWS)
        if not isinstance(rows, int) or not isinstance(groups, int):
            return None
        sizing, most = self._dataset.sizing, max(MOST_OPEN_ROW_GROUPS, self._window_needs().side_by_side)
        if (rows, groups) == (sizing.window_rows, sizing.open_row_groups) or rows < 1 or not 1 <= groups <= most:
            return None
        return (rows, groups) if self._chooses_window or rows == sizing.window_rows else None

    @property
    def _delivered(self) -> tuple[int, int] | None:
        """The last epoch, and the number of the batch after the last one delivered; None before the first epoch."""
        last = self._described_epoch()
        return None if last is None else (last.epoch, last.next_batch)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """Everything that the order of rows, and so a state, depends on; see `order_identity`."""
        identity = order_identity(
            self._planned,
            self._sharding,
            self._filters,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
        )
        return identity if self._split is None else {**identity, "split": self._split}

    def _end_for_state(self) -> None:
        self._check_open()
        self._end("load_state_dict was called, which ended this iterator; the next batches come from iter(loader)")

    def _window_needs(self) -> WindowNeeds:
        """Return what windows must fit, for the smallest number of ranks that the job may run on."""
        return WindowNeeds(self._sharding.largest_batch(self.batch_size), self.shuffle, self._sharding.side_by_side)


@contextmanager
def unchanged_on_error(loader: ResumableEpochs) -> Iterator[None]:
    """Restore the windows and the position of a loader if the block raises; used by loaders that accept states."""
    dataset, position = loader._dataset, (loader._next_epoch, loader._next_batch, loader._is_position_chosen)
    try:
        yield
    except BaseException:
        if loader._dataset is not dataset:
            loader._use(dataset)
        loader._next_epoch, loader._next_batch, loader._is_position_chosen = position
        raise
