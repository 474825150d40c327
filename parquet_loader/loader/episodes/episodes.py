"""`Episodes`: chooses the rows around each row that are delivered together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from parquet_loader.common import IntArray, check_choice, check_int, is_number
from parquet_loader.errors import ConfigurationError
from parquet_loader.plan import SampleRule

# The largest distance of a time in `deltas` from the time of a row, in rows.
_TOLERANCE = 1e-2
_MOST_ROWS = 2**20


@dataclass(frozen=True)
class Episodes:
    """Samples of consecutive rows, each within one episode.

    Every `stride`-th row of an episode is an *anchor*. A sample is the anchor with the rows around it.

    Args:
        by: The column that identifies episodes: integers, text, or a category. The rows of an episode are consecutive
            in the files, and may continue in the next row group or file.
        history: Rows before the anchor.
        future: Rows after the anchor. A sample has T = `history` + 1 + `future` rows.
        stride: Rows from one anchor to the next, from the beginning of each episode.
        pad: With ``"mask"``, samples that exceed the ends of an episode repeat its first or last row for the missing
            rows, and the mask is False for these. With ``"drop"``, such samples are left out.
        deltas: The rows to deliver for each column, relative to the anchor, instead of `history` and `future`:
            ``{"state": [-1, 0], "action": range(16)}``. Columns that are not named are delivered for the anchor alone.
        fps: Rows a second; with it, `deltas` are seconds, like LeRobot's ``delta_timestamps``.
        order: A column, such as ``"frame_index"``, that rises from row to row of an episode; this is checked.

    Raises:
        ConfigurationError: An argument has the wrong kind or value.
    """

    by: str
    history: int = 0
    future: int = 0
    stride: int = 1
    pad: Literal["mask", "drop"] = "mask"
    deltas: Mapping[str, Sequence[float]] | None = None
    fps: float | None = None
    order: str | None = None

    def __post_init__(self) -> None:
        for label, name in (("by", self.by), ("order", self.order)):
            if (name is not None or label == "by") and (not isinstance(name, str) or not name):
                raise ConfigurationError(f"{label}={name!r:.80}: expected a column's name")
        for label, low, high in (("history", 0, _MOST_ROWS), ("future", 0, _MOST_ROWS), ("stride", 1, 2**40)):
            object.__setattr__(self, label, check_int(label, getattr(self, label), low, high))
        check_choice("pad", self.pad, ("mask", "drop"))
        if self.fps is not None and not is_number(self.fps):
            raise ConfigurationError(f"fps={self.fps!r:.80}: expected a number of rows a second")
        if self.fps is not None and not 0 < self.fps < float("inf"):
            raise ConfigurationError(f"fps={self.fps}: expected a number of rows a second, greater than 0")
        if self.deltas is None:
            if self.fps is not None:
                raise ConfigurationError("fps: only with deltas=, which are seconds then; leave it out")
            return
        if self.history or self.future:
            raise ConfigurationError(
                f"history={self.history}, future={self.future}: deltas= says which rows are delivered; leave them out"
            )
        if not isinstance(self.deltas, Mapping) or not self.deltas:
            raise ConfigurationError(f"deltas={self.deltas!r:.80}: expected a dict of rows by column")
        rows = {name: self._rows(name, given) for name, given in self.deltas.items()}
        object.__setattr__(self, "deltas", rows)
        object.__setattr__(self, "fps", None)

    def _rows(self, name: str, given: Sequence[float]) -> tuple[int, ...]:
        """Return the rows of a column relative to the anchor."""
        wrong = ConfigurationError(f"deltas[{name!r}]={given!r:.80}: expected a list of numbers")
        if isinstance(given, str | bytes):
            raise wrong
        try:
            values = [float(value) for value in given]
        except (TypeError, ValueError):
            raise wrong from None
        if not values or not isinstance(name, str):
            raise ConfigurationError(f"deltas[{name!r:.80}]: expected at least one row for a column")
        found = []
        for value in values:
            row = value * (self.fps or 1)
            if not abs(row) <= _MOST_ROWS:
                raise ConfigurationError(f"deltas[{name!r}]: {value} is more than {_MOST_ROWS} rows away")
            if abs(row - round(row)) > (_TOLERANCE if self.fps is not None else 0):
                raise ConfigurationError(
                    f"deltas[{name!r}]: {value} s at fps={self.fps} is {row:.4g} rows; give multiples of 1 / fps"
                    if self.fps is not None
                    else f"deltas[{name!r}]: {value} is not a whole number of rows; with seconds, pass fps="
                )
            found.append(round(row))
        return tuple(found)

    def offsets(self, column: str) -> IntArray | None:
        """Return the rows of a column relative to the anchor, int64 ``[T]``; None for the anchor, without an axis."""
        if self.deltas is None:
            return np.arange(-self.history, self.future + 1)
        rows = self.deltas.get(column)
        return None if rows is None else np.array(rows, np.int64)


def rule_of(episodes: Episodes) -> SampleRule:
    """Return the rows of a sample, from the first to the last that any column needs."""
    drops = episodes.pad == "drop"
    if episodes.deltas is None:
        return SampleRule(episodes.history, episodes.future, episodes.stride, drops)
    rows = [int(row) for some in episodes.deltas.values() for row in some]
    return SampleRule(max(0, -min(rows)), max(0, *rows), episodes.stride, drops)
