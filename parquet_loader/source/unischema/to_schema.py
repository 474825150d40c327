"""Converts a Unischema to a `Schema`."""

from __future__ import annotations

import pyarrow as pa

from parquet_loader.errors import ConfigurationError, SchemaError
from parquet_loader.schema import (
    Bytes,
    Encoded,
    Field,
    NullPolicy,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    is_bytes,
    is_list_like,
    plain_type,
)
from parquet_loader.source.unischema.records import FieldRecord, UnischemaRecord

_ENCODINGS = {"NdarrayCodec": "npy", "CompressedNdarrayCodec": "npz"}
_TEXTS = {"str_": "string", "bytes_": "binary"}


def schema_of(record: UnischemaRecord, files: pa.Schema, partitions: pa.Schema) -> Schema:
    """Return the schema of a Unischema for the batches of `BatchedDataLoader`.

    Args:
        record: The Unischema.
        files: The Arrow schema of the files, for the exact types of decimals, dates and times.
        partitions: Columns that come from directory names.

    Raises:
        SchemaError: no tensor can hold a field; the message names it.
    """
    fields: dict[str, Field] = {}
    types = dict(zip(files.names, files.types, strict=True))
    directories = set(partitions.names)
    for field in record.fields:
        stored = types.get(field.name)
        if stored is None and field.name in directories:
            stored = partition_type(field)
        try:
            fields[field.name] = _field(field, stored)
        except ConfigurationError as error:
            raise SchemaError(
                f"column {field.name!r} of the Unischema {record.name!r} cannot be delivered: {error}; "
                "leave it out with columns=[...]"
            ) from None
    return Schema(fields)


def partition_type(field: FieldRecord) -> pa.DataType:
    """Return the type of a partition column: its values are names of directories."""
    if field.dtype == "str_":
        return pa.string()
    if field.dtype == "Decimal":
        spark = field.codec.spark if field.codec is not None else None
        return pa.decimal128(spark.precision or 10, spark.scale or 0) if spark is not None else pa.decimal128(38, 18)
    if field.dtype == "datetime64":
        spark = field.codec.spark if field.codec is not None else None
        return pa.date32() if spark is not None and spark.name == "DateType" else pa.timestamp("us")
    try:
        return pa.from_numpy_dtype(field.dtype)
    except (TypeError, pa.ArrowNotImplementedError):
        return pa.string()


def _field(field: FieldRecord, stored: pa.DataType | None) -> Field:
    null: NullPolicy = "mask" if field.nullable else "refuse"
    codec = field.codec.kind if field.codec is not None else None
    if codec in _ENCODINGS:
        return Encoded(_TEXTS.get(field.dtype, field.dtype), field.shape, _ENCODINGS[codec], null)  # type: ignore[arg-type]
    if codec == "CompressedImageCodec":
        assert field.codec is not None
        return Encoded(field.dtype, field.shape, field.codec.image_codec, null)  # type: ignore[arg-type]
    type_ = None if stored is None else plain_type(stored)
    if field.shape and type_ is not None and is_list_like(type_):
        return _list(field, type_, null)
    if field.dtype == "str_":
        return Text(null=null)
    if field.dtype == "bytes_":
        return Text(null=null) if type_ is not None and not is_bytes(type_) else Bytes(null=null)
    if field.dtype in ("Decimal", "datetime64", "timedelta64"):
        default = pa.decimal128(38, 18) if field.dtype == "Decimal" else pa.timestamp("us")
        return Scalar(default if type_ is None else type_, null=null)
    return Scalar(field.dtype, null=null)


def _list(field: FieldRecord, stored: pa.DataType, null: NullPolicy) -> Field:
    """Return the field of a column that holds Arrow lists."""
    element = plain_type(stored.value_type)
    if field.dtype == "str_":
        return RaggedList(Text(), null=null)
    if field.dtype == "bytes_":
        return RaggedList(Bytes(), null=null)
    type_ = element if field.dtype in ("Decimal", "datetime64", "timedelta64") else field.dtype
    if None in field.shape or len(field.shape) != 1:
        return RaggedList(Scalar(type_), null=null)
    return Tensor(type_, tuple(n for n in field.shape if n is not None), null=null, storage="list")
