"""`Unischema`: the schema of a Petastorm data set; encodes rows and makes namedtuples."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from parquet_loader.schema import delivered_dtype, is_bytes, is_list_like, is_text, plain_type


class UnischemaField(NamedTuple):
    """One field. Fields are equal if name, type, shape and nullability are; codecs do not count.

    Attributes:
        name: Its column.
        numpy_dtype: numpy's scalar type, or `decimal.Decimal`.
        shape: Lengths, None for a varying one; ``()`` for scalars.
        codec: Encodes and decodes values; None: as Spark stores the type.
        nullable: Whether values may be None.
    """

    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...]
    codec: Any = None
    nullable: bool = False

    def _key(self) -> tuple[Any, ...]:
        return self.name, self.numpy_dtype, self.shape, self.nullable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnischemaField) and self._key() == other._key()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._key())


@cache
def _row_type(schema_name: str, names: tuple[str, ...]) -> Any:
    """Return the type of rows: one type for each name and fields, so that types can be compared."""
    return namedtuple(f"{schema_name}_view", names)  # noqa: PYI024  (its fields are dynamic)


class Unischema:
    """Fields by name, in order; each is also an attribute.

    Args:
        name: Name of the schema.
        fields: The fields.
    """

    def __init__(self, name: str, fields: Iterable[UnischemaField]) -> None:
        self._name = name
        self._fields = OrderedDict((field.name, field) for field in fields)
        for field in self._fields.values():
            if hasattr(self, field.name):
                warnings.warn(
                    f"Unischema {name!r}: the field {field.name!r} is not an attribute, because another has its name",
                    stacklevel=2,
                )
            else:
                setattr(self, field.name, field)

    def __getattr__(self, item: str) -> Any:
        raise AttributeError(f"the Unischema {self.__dict__.get('_name')!r} has no field or attribute {item!r}")

    @property
    def fields(self) -> OrderedDict[str, UnischemaField]:
        """The fields by name."""
        return self._fields

    def create_schema_view(self, fields: Iterable[UnischemaField | str]) -> Unischema:
        """Return a schema of some of the fields.

        Args:
            fields: Fields, or regular expressions that match whole names.

        Raises:
            ValueError: one is neither, or is not a field of this schema.
        """
        wanted = list(fields)
        patterns = [field for field in wanted if isinstance(field, str)]
        exact = [field for field in wanted if isinstance(field, tuple)]
        if len(patterns) + len(exact) != len(wanted):
            raise ValueError("fields are UnischemaField objects or regular expressions (str)")
        unknown = {field.name for field in exact} - set(self._fields)
        if unknown:
            raise ValueError(f"field {', '.join(sorted(unknown))} does not belong to the schema {self}")
        chosen = [self._fields[field.name] for field in exact] + match_unischema_fields(self, patterns)
        return Unischema(f"{self._name}_view", chosen)

    def make_namedtuple(self, **values: Any) -> Any:
        """Return a row as a namedtuple."""
        return self._get_namedtuple()(**values)

    def make_namedtuple_tf(self, *args: Any, **kwargs: Any) -> Any:
        """Return tensors of a row as a namedtuple."""
        return self._get_namedtuple()(*args, **kwargs)

    def _get_namedtuple(self) -> Any:
        return _row_type(self._name, tuple(self._fields))

    def as_spark_schema(self) -> Any:
        """Return the `StructType` of the encoded rows; needs pyspark."""
        from pyspark.sql.types import StructField, StructType  # noqa: PLC0415  (only writers need Spark)

        return StructType([StructField(f.name, spark_type_of(f), f.nullable) for f in self._fields.values()])

    @classmethod
    def from_arrow_schema(
        cls, schema: pa.Schema, partitions: pa.Schema | None = None, omit_unsupported_fields: bool = True
    ) -> Unischema:
        """Return the schema of a data set that Petastorm did not write.

        Args:
            schema: The columns of the files.
            partitions: Columns from directory names; they go first.
            omit_unsupported_fields: Warn about columns of unsupported types, instead of raising.

        Raises:
            ValueError: a column has an unsupported type.
        """
        fields = [UnischemaField(f.name, _numpy_type(f.type), (), None, False) for f in partitions or []]
        for column in schema:
            type_ = plain_type(column.type)
            shape: tuple[int | None, ...] = ()
            if is_list_like(type_):
                type_, shape = plain_type(type_.value_type), (None,)
            try:
                fields.append(UnischemaField(column.name, _numpy_type(type_), shape, None, column.nullable))
            except ValueError:
                if not omit_unsupported_fields:
                    raise
                warnings.warn(f"column {column.name!r} is left out: no field has the type {column.type}", stacklevel=2)
        return cls("inferred_schema", fields)

    def __str__(self) -> str:
        lines = [
            f"  UnischemaField('{f.name}', {f.numpy_dtype.__name__}, {f.shape}, {f.codec}, {f.nullable}),\n"
            for f in self._fields.values()
        ]
        return f"Unischema({self._name}, [\n{''.join(lines)}])"


def match_unischema_fields(schema: Unischema, field_regex: Iterable[str]) -> list[UnischemaField]:
    """Return the fields whose whole name matches one of the patterns, in the order of the schema."""
    patterns = [re.compile(pattern) for pattern in field_regex or []]
    return [f for name, f in schema.fields.items() if any(p.fullmatch(name) for p in patterns)]


def insert_explicit_nulls(unischema: Unischema, row_dict: dict[str, Any]) -> None:
    """Add None for the nullable fields that a row lacks.

    Raises:
        ValueError: it lacks a field that is not nullable.
    """
    for name, field in unischema.fields.items():
        if name not in row_dict:
            if not field.nullable:
                raise ValueError(f"field {name} is not in the row, and is not nullable")
            row_dict[name] = None


def encode_row(unischema: Unischema, row_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored form of a row, in the order of the schema.

    Raises:
        ValueError: a field is missing or unknown, or cannot hold its value.
    """
    row = dict(row_dict)
    insert_explicit_nulls(unischema, row)
    if set(row) != set(unischema.fields):
        unknown = ", ".join(sorted(set(row) - set(unischema.fields)))
        raise ValueError(f"the row has fields that are not in the schema: {unknown}")
    encoded: dict[str, Any] = {}
    for name, field in unischema.fields.items():
        value = row[name]
        if value is None:
            if not field.nullable:
                raise ValueError(f"field {name} is None, and is not nullable")
            encoded[name] = None
        elif field.codec is not None:
            encoded[name] = field.codec.encode(field, value)
        else:
            encoded[name] = value.tolist() if isinstance(value, np.generic) else value
    return encoded


def dict_to_spark_row(unischema: Unischema, row_dict: Mapping[str, Any]) -> Any:
    """Return the stored form of a row as a `pyspark.Row`; raises as `encode_row`."""
    import pyspark  # noqa: PLC0415

    encoded = encode_row(unischema, row_dict)
    row = pyspark.Row(*encoded.values())
    row.__fields__ = list(encoded)
    return row


_SPARK_TYPES = {
    "int8": "ByteType",
    "uint8": "ShortType",
    "int16": "ShortType",
    "uint16": "IntegerType",
    "int32": "IntegerType",
    "uint32": "LongType",
    "int64": "LongType",
    "float32": "FloatType",
    "float64": "DoubleType",
    "str_": "StringType",
    "bytes_": "StringType",
    "bool": "BooleanType",
}


def spark_type_of(field: UnischemaField) -> Any:
    """Return the Spark type of a field's stored form; needs pyspark."""
    if field.codec is not None:
        return field.codec.spark_dtype()
    if field.shape != ():
        raise ValueError(f"field {field.name!r} is not a scalar, and has no codec; give it an NdarrayCodec")
    from pyspark.sql import types  # noqa: PLC0415

    name = _SPARK_TYPES.get(dtype_name(field.numpy_dtype))
    if name is None:
        raise ValueError(f"field {field.name!r}: there is no Spark type for {field.numpy_dtype}; give it a ScalarCodec")
    return getattr(types, name)()


def dtype_name(numpy_dtype: Any) -> str:
    """Return the name of a numpy scalar type, or ``"Decimal"``."""
    if numpy_dtype is Decimal:
        return "Decimal"
    if isinstance(numpy_dtype, type) and issubclass(numpy_dtype, np.generic):
        name: str = np.dtype(numpy_dtype).name if not issubclass(numpy_dtype, np.flexible) else numpy_dtype.__name__
        return {"datetime64": "datetime64", "timedelta64": "timedelta64"}.get(numpy_dtype.__name__, name)
    return str(np.dtype(numpy_dtype).name)


def _numpy_type(type_: pa.DataType) -> Any:
    t = pa.types
    if is_text(type_):
        return np.str_
    if is_bytes(type_) or t.is_fixed_size_binary(type_):
        return np.bytes_
    if t.is_decimal(type_):
        return Decimal
    if t.is_date(type_) or t.is_timestamp(type_):
        return np.datetime64
    if t.is_boolean(type_) or t.is_integer(type_) or t.is_floating(type_):
        return delivered_dtype(type_).type
    raise ValueError(f"the type {type_} is not supported")
