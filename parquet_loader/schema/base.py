"""The base class of all field kinds: equality, `repr`, and argument checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from parquet_loader.errors import ConfigurationError
from parquet_loader.schema.arrow_types import type_name

NullPolicy: TypeAlias = Literal["refuse", "mask"]


class FieldBase:
    """Gives all kinds a `repr` without default arguments, and an equality under which NaN equals NaN."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, FieldBase)
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return describe(self)

    def _settle(self, value_of: Callable[[str, Any], Any] = lambda _, value: value) -> None:
        """Check `null`, convert `aliases` to a tuple, and `fill` and `missing` to values of the field.

        Args:
            value_of: Converts a given value; takes ``"<Kind>(fill=<value>)"`` for messages, and the value.
        """
        given: Any = self
        if given.null not in ("refuse", "mask"):
            raise ConfigurationError(
                f"null={given.null!r}: expected 'refuse' or 'mask'; to fill nulls give fill=<value>"
            )
        object.__setattr__(self, "aliases", checked_aliases(given.aliases))
        for label in ("fill", "missing"):
            value = getattr(self, label, None)
            if value is not None:
                object.__setattr__(self, label, value_of(f"{type(self).__name__}({label}={value!r})", value))


class FileField(FieldBase):
    """Base of the kinds whose values are encoded files: their bytes, or with ``storage="path"`` the paths of files."""

    __slots__ = ()

    def _settle_files(self) -> None:
        """Check `storage`, and that `fill` and `missing` are bytes or paths accordingly."""
        given: Any = self
        if given.storage not in ("bytes", "path"):
            raise ConfigurationError(f"{type(self).__name__}(storage={given.storage!r}): expected 'bytes' or 'path'")
        kind = str if given.storage == "path" else bytes
        self._settle(lambda where, value: instance_of(where, value, kind))

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column as stored."""
        given: Any = self
        return pa.string() if given.storage == "path" else pa.binary()


def describe(field: FieldBase, most_words: int | None = None) -> str:
    """Return Python source that makes the field, without arguments that have their default values.

    Args:
        field: Any kind of field.
        most_words: How many words of a vocabulary to show; None shows all.
    """
    parts = []
    for f in fields(field):  # type: ignore[arg-type]
        value = getattr(field, f.name)
        if f.default is not MISSING and repr(value) == repr(f.default):
            continue
        if f.name == "dtype" and str(value) == f.default:
            continue
        text = repr(value)
        if isinstance(value, pa.DataType):
            text = repr(type_name(value))
        elif isinstance(value, np.dtype):
            text = repr(value.name)
        elif f.name in ("vocabulary", "names") and most_words is not None and len(value) > most_words:
            text = f"({', '.join(map(repr, value[:most_words]))}, ... {len(value)} words)"
        elif f.name == "members":
            text = "{" + ", ".join(f"{name!r}: {describe(m, most_words)}" for name, m in value) + "}"
        parts.append(text if f.default is MISSING else f"{f.name}={text}")
    return f"{type(field).__name__}({', '.join(parts)})"


def checked_aliases(aliases: object) -> tuple[str, ...]:
    """Return the aliases of a column as a tuple; a single alias may be a str."""
    given: object = (aliases,) if isinstance(aliases, str) else aliases
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"aliases={aliases!r:.80}: expected names of columns")
    names = tuple(given)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"aliases={aliases!r:.80}: expected names of columns")
    return tuple(map(str, names))


def refuse_set(where: str, given: object) -> None:
    """Raise ConfigurationError for a set, in which the order of text differs from process to process."""
    if isinstance(given, set | frozenset):
        raise ConfigurationError(
            f"{where} is a set, which has no order, and codes are positions; pass sorted(...) of it"
        )


def instance_of(where: str, value: Any, kind: type) -> Any:
    """Return `value` as a str or bytes, as `kind` says; numpy has subclasses of both, with another `repr`."""
    if not isinstance(value, kind):
        raise ConfigurationError(f"{where}: expected {'a str' if kind is str else kind.__name__}")
    return kind(value)


def number_of(where: str, value: Any, dtype: np.dtype[Any]) -> bool | int | float:
    """Return `value` as a Python number of the dtype's kind, so that equal fields have equal values.

    Raises:
        ConfigurationError: It is not a number, or one that the dtype cannot hold. Only fractions are rounded.
    """
    error = ConfigurationError(f"{where}: the value is not a {dtype} number")
    if not isinstance(value, bool | int | float | Decimal | np.generic):
        raise error
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            number = np.array(value).astype(dtype)
        if dtype.kind == "f":
            if np.isinf(number) and math.isfinite(value):
                raise error
            if isinstance(value, int | np.integer) and float(number) != int(value):
                raise error
            return float(value)
        if not number == value:
            raise error
    except (TypeError, ValueError, OverflowError):
        raise error from None
    return number.item()  # type: ignore[no-any-return]
