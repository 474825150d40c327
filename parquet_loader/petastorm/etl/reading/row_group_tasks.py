"""The work of a reader's thread on one row group: read it, select rows, decode, transform."""

from __future__ import annotations

import abc
import importlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import Stream, needs_package, permutation
from parquet_loader.errors import ConfigurationError, TransformError
from parquet_loader.petastorm.etl.reading.dataset import RowGroups
from parquet_loader.petastorm.etl.reading.decoding import batch_arrays, decode_columns
from parquet_loader.petastorm.ngram import NGram
from parquet_loader.petastorm.predicates import PredicateBase
from parquet_loader.petastorm.transform import TransformSpec
from parquet_loader.petastorm.unischema import Unischema


@dataclass(frozen=True, slots=True)
class RowGroupPart:
    """One of `count` equal parts of a row group, the unit of delivery.

    Attributes:
        row_group: Index of the row group in the snapshot.
        number: Number of the part.
        count: Parts of the row group.
    """

    row_group: int
    number: int
    count: int

    def rows(self, total: int, overlap: int = 0) -> slice:
        """Return the rows of this part, out of `total` rows, and `overlap` rows of the next part."""
        parts = min(total, self.count)
        if self.number >= parts:
            return slice(0, 0)
        first, stop = (-(-number * total // parts) for number in (self.number, self.number + 1))
        return slice(first, min(total, stop + overlap))


@dataclass(frozen=True, slots=True)
class Work(abc.ABC):
    """Makes rows or batches from row groups. Immutable; any thread may call it.

    Attributes:
        dataset: The row groups.
        read: Returns a row group's stored columns, by its number.
        stored: Fields that are read.
        delivered: Fields of the rows or batches returned.
        predicate: Selects rows; None selects all.
        transform: Changes rows or batches, or None.
        ngram: Makes n-grams of rows, or None.
        seed: Determines the order of rows, together with epoch and row group.
        shuffle_rows: Whether the rows of a row group are permuted.
    """

    dataset: RowGroups
    read: Callable[[int], pa.Table]
    stored: Unischema
    delivered: Unischema
    predicate: PredicateBase | None
    transform: TransformSpec | None
    ngram: NGram | None
    seed: int
    shuffle_rows: bool

    @abc.abstractmethod
    def __call__(self, part: RowGroupPart, epoch: int) -> deque[Any]:
        """Return the rows, n-grams or batches of a part, in order."""

    def _table(self, part: RowGroupPart, epoch: int) -> pa.Table:
        """Return the rows of a part in the order of the epoch: one permutation for all columns."""
        table = self.read(part.row_group)
        rows = part.rows(len(table), self.ngram.length - 1 if self.ngram is not None else 0)
        if self.shuffle_rows:
            order = permutation(len(table), self.seed, Stream.ROWS, epoch, part.row_group)
            return table.take(pa.array(order[rows]))
        return table.slice(rows.start, rows.stop - rows.start)

    def _check_fields(self, returned: Collection[str], origin: str) -> None:
        """Check the names of the fields that the function of the `TransformSpec` returned.

        Raises:
            TransformError: one is missing, or unknown.
        """
        assert self.transform is not None
        missing = [name for name in self.delivered.fields if name not in returned]
        known = {*self.delivered.fields, *self.transform.removed_fields}
        unknown = [] if self.transform.selected_fields is not None else [n for n in returned if n not in known]
        if missing or unknown:
            raise TransformError(
                f"{origin}: the function of the TransformSpec returned "
                f"{'no ' + ', '.join(missing) if missing else ', '.join(map(str, unknown))}; "
                f"expected the fields {', '.join(self.delivered.fields)} (see edit_fields and removed_fields)"
            )


@dataclass(frozen=True, slots=True)
class RowWork(Work):
    """Rows as namedtuples, or n-grams of them."""

    def __call__(self, part: RowGroupPart, epoch: int) -> deque[Any]:
        """Return the rows or n-grams of a part."""
        table = self._table(part, epoch)
        origin = self.dataset.snapshot.row_group(part.row_group).name
        known: dict[str, list[Any]] = {}
        if self.predicate is not None:
            known = decode_columns(table.select(sorted(self.predicate.get_fields())), self.dataset.unischema, origin)
            tested = [dict(zip(known, values, strict=True)) for values in zip(*known.values(), strict=True)]
            passing = [row for row, values in enumerate(tested) if self.predicate.do_include(values)]
            if not passing:
                return deque()
            if len(passing) < len(table):
                table = table.take(pa.array(passing, pa.int64()))
                known = {name: [values[row] for row in passing] for name, values in known.items()}
        others = [name for name in table.column_names if name not in known]
        known |= decode_columns(table.select(others), self.dataset.unischema, origin)
        names = [name for name in self.stored.fields if name in known]
        if self.ngram is not None:
            return self._ngrams(known, origin)
        if self.transform is None:
            make = self.delivered._get_namedtuple()._make
            return deque(map(make, zip(*(known[name] for name in self.delivered.fields), strict=True)))
        rows = [dict(zip(names, values, strict=True)) for values in zip(*(known[n] for n in names), strict=True)]
        return deque(self._transformed(row, origin) for row in rows)

    def _transformed(self, row: dict[str, Any], origin: str) -> Any:
        assert self.transform is not None
        changed = row if self.transform.func is None else self.transform.func(row)
        if not isinstance(changed, dict):
            raise TransformError(
                f"{origin}: the function of the TransformSpec returned {type(changed).__name__}, expected a dict"
            )
        self._check_fields(changed, origin)
        return self.delivered.make_namedtuple(**{name: changed[name] for name in self.delivered.fields})

    def _ngrams(self, columns: dict[str, list[Any]], origin: str) -> deque[Any]:
        assert self.ngram is not None
        rows: Sequence[dict[str, Any]]
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if self.transform is not None:
            time = self.ngram.timestamp_name
            changed = [self._transformed(row, origin)._asdict() for row in rows]
            rows = [{time: row[time], **new} for row, new in zip(rows, changed, strict=True)]
        steps = {s: self.ngram.get_schema_at_timestep(self.delivered, s) for s in self.ngram.fields}
        empty = Unischema(f"{self.delivered._name}_view", [])
        found = self.ngram.form_ngram(rows, self.delivered)
        return deque({s: steps.get(s, empty).make_namedtuple(**row) for s, row in gram.items()} for gram in found)


@dataclass(frozen=True, slots=True)
class BatchWork(Work):
    """Row groups as namedtuples of arrays."""

    def __call__(self, part: RowGroupPart, epoch: int) -> deque[Any]:
        """Return the batch of a part, or nothing if no row passes."""
        table = self._table(part, epoch)
        origin = self.dataset.snapshot.row_group(part.row_group).name
        if self.predicate is not None and len(table):
            tested = table.select(sorted(self.predicate.get_fields()))
            included = np.asarray(self.predicate.do_include(_pandas(tested)), bool)
            if included.shape != (len(table),):
                raise ConfigurationError(
                    f"the predicate returned the shape {included.shape} for {len(table)} rows; a predicate of "
                    "make_batch_reader takes pandas Series and returns a Series of bools"
                )
            table = table.filter(pa.array(included))
        if not len(table):
            return deque()
        table = table.select(list(self.stored.fields))
        if self.transform is None:
            arrays = batch_arrays(table, self.stored, origin)
        else:
            frame = self._frame(table, origin)
            if not len(frame):
                return deque()
            arrays = {name: _from_series(frame[name], self.delivered.fields[name], origin) for name in frame.columns}
        return deque([self.delivered._get_namedtuple()(*(arrays[name] for name in self.delivered.fields))])

    def _frame(self, table: pa.Table, origin: str) -> Any:
        """Return the transformed frame of a table, with the columns that are delivered."""
        assert self.transform is not None
        frame = _pandas(table)
        if self.transform.func is not None:
            frame = self.transform.func(frame)
        self._check_fields(list(frame.columns), origin)
        return frame[list(self.delivered.fields)]


def _from_series(series: Any, field: Any, origin: str) -> Any:
    """Return a column of a frame as an array; arrays in its cells are stacked, and must have the field's shape."""
    values = series.to_numpy()
    if values.dtype != object or not len(values):
        return values if values.flags.writeable else values.copy()
    if any(isinstance(v, np.ndarray | list | tuple) for v in values):
        cells = [np.asarray(v) for v in values]
        if len({cell.shape for cell in cells}) != 1:
            raise TransformError(f"{origin}, column {field.name!r}: the arrays of a batch must have one shape")
        expected = field.shape
        stacked = np.stack(cells)
        if len(expected) > 1 and None not in expected and stacked.shape[1:] != tuple(expected):
            raise TransformError(
                f"{origin}, column {field.name!r}: the arrays have the shape {stacked.shape[1:]}, expected {expected}"
            )
        return stacked
    if all(isinstance(v, str) for v in values):
        return np.array(values.tolist(), np.str_)
    return values if values.flags.writeable else values.copy()


def _pandas(table: pa.Table) -> Any:
    with needs_package(
        "pandas",
        "predicates and transformations of make_batch_reader take pandas DataFrames, and pandas is not installed: "
        "pip install 'torch-parquet-loader[pandas]'",
    ):
        importlib.import_module("pandas")
    return table.to_pandas()
