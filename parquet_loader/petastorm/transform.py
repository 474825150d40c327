"""`TransformSpec`: a function applied to rows or batches by the threads that read, and its effect on the schema."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from parquet_loader.petastorm.unischema import Unischema, UnischemaField


def edit_field(
    name: str, numpy_dtype: Any, shape: tuple[int | None, ...], nullable: bool = False
) -> tuple[str, Any, tuple[int | None, ...], bool]:
    """Return an entry of `TransformSpec.edit_fields`."""
    return name, numpy_dtype, shape, nullable


class TransformSpec:
    """A transformation of rows or batches, applied by the threads that read.

    Args:
        func: Takes a row as a dict (`make_reader`) or a row group as a pandas DataFrame (`make_batch_reader`), and
            returns one that fits the transformed schema. None: only the fields change.
        edit_fields: Fields that `func` adds or changes: ``(name, numpy_dtype, shape, nullable)``.
        removed_fields: Names of the fields to remove.
        selected_fields: Names of the fields to keep, in this order; not together with `removed_fields`.
    """

    def __init__(
        self,
        func: Callable[[Any], Any] | None = None,
        edit_fields: Sequence[Any] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        if removed_fields is not None and selected_fields is not None:
            raise ValueError("TransformSpec: give one of removed_fields and selected_fields, not both")
        self.func = func
        self.edit_fields = list(edit_fields or [])
        self.removed_fields = list(removed_fields or [])
        self.selected_fields = selected_fields


def transform_schema(schema: Unischema, transform_spec: TransformSpec) -> Unischema:
    """Return the transformed schema."""
    removed = set(transform_spec.removed_fields)
    _warn_of_unknown("removed_fields", removed - set(schema.fields))
    left_out = {field[0] for field in transform_spec.edit_fields} | removed
    fields = [field for name, field in schema.fields.items() if name not in left_out]
    fields += [
        UnischemaField(name, dtype, shape, None, null) for name, dtype, shape, null in transform_spec.edit_fields
    ]
    if transform_spec.selected_fields is not None:
        by_name = {field.name: field for field in fields}
        _warn_of_unknown("selected_fields", set(transform_spec.selected_fields) - set(by_name))
        fields = [by_name[name] for name in transform_spec.selected_fields if name in by_name]
    return Unischema(f"{schema._name}_transformed", fields)


def _warn_of_unknown(argument: str, names: set[str]) -> None:
    if names:
        warnings.warn(f"{argument} names no field of the schema: {', '.join(sorted(names))}", stacklevel=4)
