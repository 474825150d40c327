"""`NGram`: sequences of consecutive rows of a row group, by a timestamp field."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from parquet_loader.petastorm.unischema import Unischema, UnischemaField, match_unischema_fields


class NGram:
    """Consecutive rows, each at a step that has its own fields.

    Args:
        fields: Fields, or regular expressions of names, by step: consecutive integers such as -1, 0, 1.
        delta_threshold: The largest difference between the timestamps of two consecutive rows.
        timestamp_field: The field, or a regular expression of one name, by which rows are sorted in their row group.
        timestamp_overlap: Whether a row may be part of several n-grams.

    Raises:
        ValueError: an argument has the wrong type.
    """

    def __init__(
        self,
        fields: Mapping[int, Sequence[UnischemaField | str]],
        delta_threshold: float,
        timestamp_field: UnischemaField | str,
        timestamp_overlap: bool = True,
    ) -> None:
        if not isinstance(fields, dict) or not fields:
            raise ValueError(f"NGram: fields={fields!r:.80}; expected a dict of lists of fields by step")
        for step_fields in fields.values():
            if not isinstance(step_fields, list) or not all(isinstance(f, UnischemaField | str) for f in step_fields):
                raise ValueError(
                    f"NGram: fields holds {step_fields!r:.80}; expected a list of UnischemaField or regular expressions"
                )
        if not isinstance(delta_threshold, numbers.Number):
            raise ValueError(f"NGram: delta_threshold={delta_threshold!r:.80}; expected a number")
        if not isinstance(timestamp_field, UnischemaField | str):
            raise ValueError(
                f"NGram: timestamp_field={timestamp_field!r:.80}; expected a UnischemaField or a regular expression"
            )
        if not isinstance(timestamp_overlap, bool):
            raise ValueError(f"NGram: timestamp_overlap={timestamp_overlap!r:.80}; expected a bool")
        self._fields: dict[int, list[Any]] = {step: list(f) for step, f in fields.items()}
        self._delta_threshold: Any = delta_threshold
        self._timestamp_field: Any = timestamp_field
        self.timestamp_overlap = timestamp_overlap

    @property
    def length(self) -> int:
        """Number of rows of an n-gram."""
        return max(self._fields) - min(self._fields) + 1

    @property
    def fields(self) -> dict[int, list[Any]]:
        """The fields by step."""
        return self._fields

    @property
    def delta_threshold(self) -> Any:
        """The largest difference between the timestamps of two consecutive rows."""
        return self._delta_threshold

    @property
    def timestamp_name(self) -> str:
        """Name of the timestamp field."""
        name: str = self._timestamp_field.name
        return name

    def resolve_regex_field_names(self, schema: Unischema) -> None:
        """Replace regular expressions with the fields of a schema."""
        self._fields = {step: self.convert_fields(schema, fields) for step, fields in self._fields.items()}
        found = self.convert_fields(schema, [self._timestamp_field])
        if len(found) != 1:
            raise ValueError(f"NGram: timestamp_field matches {len(found)} fields, expected one")
        self._timestamp_field = found[0]

    def convert_fields(self, unischema: Unischema, field_list: Sequence[Any]) -> list[UnischemaField]:
        """Return the fields that fields and regular expressions mean."""
        exact = [field for field in field_list if isinstance(field, UnischemaField)]
        patterns = [field for field in field_list if isinstance(field, str)]
        return [*exact, *match_unischema_fields(unischema, patterns)]

    def get_field_names_at_timestep(self, timestep: int) -> list[str]:
        """Return the names of the fields at a step."""
        return [field.name for field in self._fields.get(timestep, [])]

    def get_field_names_at_all_timesteps(self) -> list[UnischemaField]:
        """Return the fields of all steps."""
        return list(dict.fromkeys(field for fields in self._fields.values() for field in fields))

    def get_schema_at_timestep(self, schema: Unischema, timestep: int) -> Unischema:
        """Return the schema of the rows at a step."""
        names = set(self.get_field_names_at_timestep(timestep))
        return schema.create_schema_view([field for name, field in schema.fields.items() if name in names])

    def form_ngram(self, data: Sequence[Mapping[str, Any]], schema: Unischema) -> list[dict[int, dict[str, Any]]]:  # noqa: ARG002
        """Return the n-grams of a row group's rows.

        Raises:
            NotImplementedError: the rows are not sorted by the timestamp.
        """
        name, length, first_step = self.timestamp_name, self.length, min(self._fields)
        times = [row[name] for row in data]
        wanted = {first_step + k: self.get_field_names_at_timestep(first_step + k) for k in range(length)}
        found: list[dict[int, dict[str, Any]]] = []
        last = None
        for start in range(len(data) - length + 1):
            window = times[start : start + length]
            steps = [later - earlier for earlier, later in itertools.pairwise(window)]
            if any(later < earlier for earlier, later in itertools.pairwise(window)):
                raise NotImplementedError(f"NGram: the rows are not sorted by {name}; read without shuffle_rows")
            if not self.timestamp_overlap and last is not None and window[0] <= last:
                continue
            if any(step > self._delta_threshold for step in steps):
                continue
            rows = enumerate(data[start : start + length])
            found.append({first_step + k: {n: row[n] for n in row if n in wanted[first_step + k]} for k, row in rows})
            last = window[-1]
        return found

    def make_namedtuple(self, schema: Unischema, ngram_as_dicts: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """Return an n-gram with its rows as namedtuples."""
        return {
            step: self.get_schema_at_timestep(schema, step).make_namedtuple(**row)
            for step, row in ngram_as_dicts.items()
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NGram) or set(self._fields) != set(other._fields):
            return False
        return all(set(fields) == set(other._fields[step]) for step, fields in self._fields.items())

    __hash__ = None  # type: ignore[assignment]  # its fields change when names are resolved
