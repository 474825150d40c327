"""Defines the regression to learn: the delay of the flights, or a column of the user's own data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from demo.fetch import CACHE, TRAIN, VALIDATION
from parquet_loader import DatasetWriter, Scalar, Schema
from schemas.flights import CATEGORIES, DENSE, FLIGHTS

VALIDATION_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    """A regression.

    Attributes:
        train: The training data set.
        validation: The validation data set.
        schema: The schema of both.
        label: The column to predict.
        dense: Columns ``[batch]`` and groups ``[batch, n]`` of numbers.
        categories: Columns of codes, with the size of each vocabulary.
        rule_of_thumb: Another prediction without a model, besides the mean: its name, and a function of a batch.
    """

    train: Path | list[str]
    validation: Path | list[str]
    schema: Schema
    label: str
    dense: tuple[str, ...]
    categories: dict[str, int] = field(default_factory=dict)
    rule_of_thumb: tuple[str, Callable[[Any], Any]] | None = None


def flights() -> Task:
    """Return the demo's own task: predict the arrival delay from the data known when a flight leaves the gate."""
    dep_delay = list(DENSE.fields).index("dep_delay")
    return Task(
        train=TRAIN,
        validation=VALIDATION,
        schema=FLIGHTS,
        label="arr_delay",
        dense=("dense",),
        categories={name: len(category.vocabulary) for name, category in CATEGORIES.items()},
        rule_of_thumb=("as late as at departure", lambda batch: batch["dense"][:, dep_delay]),
    )


def own_data(path: str, target: str) -> Task:
    """Return the task of predicting `target` from all other numeric columns of the Parquet files at `path`.

    The last fifth of the files is held out. A single file is split row by row into two data sets under `.demo`.
    """
    data = ds.dataset(path, format="parquet")
    numeric = {column.name: column.type for column in data.schema if _is_numeric(column.type)}
    if target not in numeric or len(numeric) < 2:
        raise SystemExit(f"{path}: {target!r} is not one of two or more numeric columns, which are {list(numeric)}")
    # Nulls in features read as zero. A null target is an error, because a row without a label cannot be used.
    schema = Schema({name: Scalar(type_, fill=None if name == target else 0) for name, type_ in numeric.items()})
    features = tuple(name for name in numeric if name != target)
    held_out = round(len(data.files) * VALIDATION_SHARE) or 1
    if len(data.files) == 1:
        train, validation = _split(data, schema)
        return Task(train, validation, schema, target, features)
    return Task(data.files[:-held_out], data.files[-held_out:], schema, target, features)


def _is_numeric(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_boolean(type_) or t.is_integer(type_) or t.is_floating(type_))


def _split(data: ds.Dataset, schema: Schema) -> tuple[Path, Path]:
    train, validation = (CACHE / "own" / name for name in ("train", "validation"))
    chosen = np.random.default_rng(0)
    with (
        DatasetWriter(train, schema, mode="overwrite") as train_writer,
        DatasetWriter(validation, schema, mode="overwrite") as validation_writer,
    ):
        for rows in data.to_batches(columns=schema.arrow_schema().names):
            held_out = chosen.random(len(rows)) < VALIDATION_SHARE
            train_writer.write(rows.filter(pa.array(~held_out)))
            validation_writer.write(rows.filter(pa.array(held_out)))
    return train, validation
