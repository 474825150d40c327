"""A file's Arrow schema, with a mark on columns whose Parquet type Arrow reports as a plainer one.

Arrow has no type for INTERVAL and reports bytes. It reports VARIANT as a struct, and an unknown annotation as the type
below it. If the Arrow schema that a writer stored has a type that pyarrow lacks, only the Parquet types are known, so
bytes of fixed width may be numbers. `infer_fields` refuses marked columns by name; a declared schema still reads their
stored values. INT96 is marked because Arrow wraps values that do not fit into nanoseconds, and the `read` package has
to look for them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.schema import NOT_UNDERSTOOD_KEY, nodes

UNKNOWN_ARROW_SCHEMA_KEY = b"ARROW_schema"
"""Key in a file's metadata: its Arrow schema, which has a type that pyarrow lacks."""
INT96_KEY = b"parquet_loader.int96"
_UNKNOWN = "an annotation that this version of pyarrow does not know"
_ANNOTATIONS = {"Interval": "INTERVAL", "Undefined": _UNKNOWN}
_UNKNOWN_ARROW = "FIXED_LEN_BYTE_ARRAY in a file with an Arrow type that this version of pyarrow does not know"
_SPARK_METADATA = b"org.apache.spark.sql.parquet.row.metadata"


def arrow_schema_of(schema: pq.ParquetSchema, refused: Collection[str] = ()) -> pa.Schema:
    """Return the Arrow schema of a file, with marks on the columns that Arrow does not understand.

    Args:
        schema: The file's schema.
        refused: Columns with group annotations that pyarrow does not know; they were removed from `schema`.

    Raises:
        ArrowException, ValueError: the schema cannot be read.
    """
    arrow = schema.to_arrow_schema()
    text = str(schema)
    # Spark before 4.1 writes VARIANT without the annotation, and names it only in its own metadata.
    has_variants = "(Variant" in text or b'"variant"' in (arrow.metadata or {}).get(_SPARK_METADATA, b"")
    has_unknown = UNKNOWN_ARROW_SCHEMA_KEY in (arrow.metadata or {})
    is_marked = has_variants or has_unknown or any(word in text for word in ("(Interval)", "(UNKNOWN)", " int96 "))
    if not refused and not is_marked:
        return arrow
    leaves = (schema.column(number) for number in range(len(schema)))
    marked = [_marked(f, leaves, has_variants, has_unknown, is_refused=f.name in refused) for f in arrow]
    return pa.schema(marked, metadata=arrow.metadata)


def has_int96(field: pa.Field) -> bool:
    """Whether a column of `arrow_schema_of`, or a part of it, is stored as INT96."""
    return INT96_KEY in (field.metadata or {})


def _marked(
    field: pa.Field, leaves: Iterator[pq.ColumnSchema], has_variants: bool, has_unknown: bool, *, is_refused: bool
) -> pa.Field:
    marks: dict[str, str] = {field.name: _UNKNOWN} if is_refused else {}
    is_int96 = False
    for name, type_ in nodes(field.type, field.name):
        if has_variants and pa.types.is_struct(type_) and _is_variant(type_):
            marks[name] = "VARIANT"
        if not pa.types.is_nested(type_):
            leaf = next(leaves)
            is_int96 = is_int96 or leaf.physical_type == "INT96"
            if str(leaf.logical_type) in _ANNOTATIONS:
                marks[name] = _ANNOTATIONS[str(leaf.logical_type)]
            elif has_unknown and (leaf.physical_type, str(leaf.logical_type)) == ("FIXED_LEN_BYTE_ARRAY", "None"):
                marks[name] = _UNKNOWN_ARROW
    found = {INT96_KEY: b"1"} if is_int96 else {}
    found |= {NOT_UNDERSTOOD_KEY: json.dumps(marks).encode()} if marks else {}
    return field.with_metadata({**(field.metadata or {}), **found}) if found else field


def _is_variant(struct: pa.StructType) -> bool:
    """Whether a struct has the members that the format prescribes for VARIANT, in either order."""
    names = {struct.field(i).name for i in range(struct.num_fields)}
    return {"metadata", "value"} <= names <= {"metadata", "value", "typed_value"}
