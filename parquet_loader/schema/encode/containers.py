"""Reads data sets and loaders of known libraries as rows or batches, or says which alternative to use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from parquet_loader.errors import SchemaError
from parquet_loader.schema.fields import Category, Field, Group
from parquet_loader.schema.ragged import Ragged
from parquet_loader.schema.schema import Schema

_ROWS_AT_ONCE = 1000
_PARTITIONED = {"dask": "write_dask", "dask_expr": "write_dask", "distributed": "write_dask", "pyspark": "write_spark"}


class RowsOrBatches(NamedTuple):
    """The rows or batches of another library's data set, in order.

    Attributes:
        items: Rows or batches.
        are_rows: Whether a dict among them is one row; None if its values decide.
        arrow_schema: An Arrow schema with the features that the data set declares, or with metadata about the codes in
            a loader's batches; None if there are none.
    """

    items: Iterable[Any]
    are_rows: bool | None
    arrow_schema: pa.Schema | None = None


def as_items(data: Any) -> RowsOrBatches | None:
    """Return the rows or batches of a data set or loader of a known library, or None for any other object.

    Raises:
        SchemaError: a `datasets.DatasetDict`, which holds several data sets.
    """
    kinds = _kinds(data)
    if ("datasets", "DatasetDict") in kinds or ("datasets", "IterableDatasetDict") in kinds:
        names = list(data)
        raise SchemaError(
            f"{type(data).__name__} holds the splits {', '.join(map(repr, names))}; write them one by one, "
            f"write_dataset(data[{names[0] if names else 'train'!r}], path)"
        )
    if ("datasets", "Dataset") in kinds:
        return _hugging_face(data)
    if ("datasets", "IterableDataset") in kinds:
        # If it infers the types of its Arrow tables, they can differ between batches, and then it fails itself.
        rows = data.with_format(None)
        return RowsOrBatches(
            map(dict, rows.decode(False) if hasattr(rows, "decode") and data.features else rows),
            are_rows=True,
            arrow_schema=_features_of(data),
        )
    if type(data).__module__.startswith("pyarrow._dataset"):  # a scanner, or a data set or fragment to scan
        return RowsOrBatches([(data if hasattr(data, "to_reader") else data.scanner()).to_reader()], are_rows=False)
    if _makes_batches(data, kinds):
        return RowsOrBatches(data, are_rows=False, arrow_schema=_codes_of(data))
    if ("torch", "DataLoader") in kinds:  # it passes on rows, or batches of a sampler of batches
        return RowsOrBatches(data, are_rows=None, arrow_schema=_codes_of(data))
    return None


def _codes_of(loader: Any) -> pa.Schema | None:
    """Return metadata with the vocabularies of the codes in a loader's batches; None if nothing says which they are."""
    fields = _coded_fields(loader)
    fields |= {name: part for field in fields.values() if isinstance(field, Group) for name, part in field.members}
    words = {name: field.vocabulary for name, field in fields.items() if isinstance(field, Category)}
    coded = {name: Category(vocabulary, storage="codes") for name, vocabulary in words.items()}
    return pa.schema([], Schema(coded).arrow_schema().metadata) if coded else None


def _coded_fields(loader: Any) -> dict[str, Field]:
    """Return the fields whose codes are in the batches or rows of a loader or data set, as far as they are known.

    Raises:
        SchemaError: Its parts have codes by different vocabularies.
    """
    if hasattr(loader, "__code_schema__"):
        return dict(loader.__code_schema__() or {})
    if hasattr(loader, "collate_fn"):  # torch's DataLoader; the caller's own function may return other codes
        is_torchs = (getattr(loader.collate_fn, "__module__", None) or "").startswith("torch.utils.data")
        return _coded_fields(loader.dataset) if is_torchs else {}
    package = type(loader).__module__
    if package.startswith("parquet_loader."):  # a ParquetIterable, or a MixedLoader
        parts = [loader.loader] if hasattr(loader, "loader") else list(getattr(loader, "loaders", {}).values())
    elif package.startswith("torch.utils.data."):  # a Subset, or a ConcatDataset
        parts = [loader.dataset] if hasattr(loader, "dataset") else list(getattr(loader, "datasets", []))
    else:
        parts = []
    if not parts:
        return {}
    first, *others = map(_coded_fields, parts)
    for name, field in first.items():
        found = [field, *(other[name] for other in others if name in other)]
        if len({tuple(part.vocabulary) for part in found if isinstance(part, Category)}) > 1:
            raise SchemaError(
                f"the parts of {type(loader).__name__} have codes of {name!r} by different vocabularies; load all of "
                "them with one schema=, or write them one by one"
            )
    return {name: field for name, field in first.items() if all(other.get(name) == field for other in others)}


def _makes_batches(data: Any, kinds: list[tuple[str, str]]) -> bool:
    """Whether the dicts of a loader are batches: of this library's, and of torch's unless it passes items on."""
    if ("torch", "DataLoader") in kinds:
        return data.batch_sampler is not None or _makes_batches(data.dataset, _kinds(data.dataset))
    is_own = any(package == "parquet_loader" for package, _ in kinds)
    return is_own and isinstance(data, Iterable) and not isinstance(data, Mapping | Ragged)


def _kinds(data: Any) -> list[tuple[str, str]]:
    """Return the packages and names of an object's class and of its bases."""
    return [(base.__module__.partition(".")[0], base.__name__) for base in type(data).__mro__]


def _hugging_face(data: Any) -> RowsOrBatches:
    """Return a data set's rows, as Arrow tables if possible: the columns that its format names, in order."""
    if data.format["type"] == "custom":  # a transform that is applied to rows as they are read
        return RowsOrBatches(data, are_rows=True, arrow_schema=_features_of(data))
    return RowsOrBatches(_arrow_tables(data), are_rows=False, arrow_schema=_features_of(data))


def _features_of(data: Any) -> pa.Schema | None:
    """Return the features of a data set as an Arrow schema with metadata; None if they are not known."""
    return None if data.features is None else data.features.arrow_schema


def _arrow_tables(data: Any) -> Iterator[Any]:
    names = data.format["columns"]
    arrow = data.with_format("arrow", columns=names)
    if len(data) == 0:
        yield arrow[:0]
    for table in arrow.iter(batch_size=_ROWS_AT_ONCE):
        yield table.select(names)


def what_to_use(data: Any) -> str | None:
    """Return advice for data that cannot be read directly, or None if their kind is unknown."""
    package, name = type(data).__module__.partition(".")[0], type(data).__name__
    if package in _PARTITIONED and not isinstance(data, Mapping):
        return f"{_PARTITIONED[package]}(data, path) writes it in parallel"
    if isinstance(data, str | os.PathLike):
        return "rewrite_dataset(source, path) copies the rows of Parquet files"
    if isinstance(data, bytes | bytearray | memoryview):
        return "a file's bytes are read by pyarrow.parquet.read_table(pyarrow.BufferReader(data))"
    if (package, name) == ("polars", "LazyFrame"):
        return "collect() makes it a frame, and collect_batches() an iterator of frames"
    if package in ("pandas", "polars") and name == "Series":
        return "to_frame() makes it a frame of one column"
    if isinstance(data, np.ndarray) or (hasattr(data, "__dlpack__") and hasattr(data, "shape")):
        return "an array is one column: {'x': array} gives it a name"
    if (package, name) == ("pyarrow", "ParquetFile"):
        return "iter_batches() gives its rows; rewrite_dataset(source, path) copies the rows of Parquet files"
    if not any(hasattr(data, name) for name in ("__iter__", "__arrow_c_stream__", "__arrow_c_array__")) and (
        hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        return (
            "a map-style data set is written as rows: ({'x': x, 'y': y} for x, y in data), "
            "or (data[n] for n in range(len(data))) if they are dicts"
        )
    return None
