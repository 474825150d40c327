"""Field kinds, the `Schema` made of them, and the rules that infer one for files without a schema."""

from __future__ import annotations

from parquet_loader.schema.arrow_types import (
    arrow_type_of,
    decimals_to_float64,
    delivered_dtype,
    empty_table,
    is_bytes,
    is_list_like,
    is_text,
    list_values,
    plain_type,
    type_name,
)
from parquet_loader.schema.base import NullPolicy, describe
from parquet_loader.schema.encode.blobs import encode_array, encode_png
from parquet_loader.schema.encode.columns import constant
from parquet_loader.schema.encode.images import sixteen_bits
from parquet_loader.schema.encode.sources import is_in_memory, slices_of
from parquet_loader.schema.encode.tables import (
    SLICE_BYTES,
    complete_schema,
    encode_columns,
    infer_schema,
    iter_tables,
    to_table,
)
from parquet_loader.schema.encoded import Category, Encoded
from parquet_loader.schema.features import are_file_references, hub_features, is_file_reference, is_media
from parquet_loader.schema.fields import (
    Bytes,
    Field,
    Group,
    RaggedList,
    Scalar,
    Tensor,
    Text,
    companion_of,
    masks_of,
    policy_of,
    unpacked_field,
)
from parquet_loader.schema.image import Image
from parquet_loader.schema.infer import (
    NOT_UNDERSTOOD_KEY,
    heads,
    infer_columns,
    infer_fields,
    is_index_column,
    nodes,
)
from parquet_loader.schema.media import Audio, Video
from parquet_loader.schema.nulls import (
    MOST_FIELDS_IN_SOURCE,
    Nulls,
    lenient,
    null_levels,
    refuses_nulls,
    source_of,
    with_nulls,
)
from parquet_loader.schema.ragged import Ragged, object_array, row_objects, split_ragged
from parquet_loader.schema.ragged_registration import register_where_imported
from parquet_loader.schema.raw_numbers import raw_difference
from parquet_loader.schema.schema import METADATA_KEY, Schema, check_schema, named_codes

__all__ = [
    "METADATA_KEY",
    "MOST_FIELDS_IN_SOURCE",
    "NOT_UNDERSTOOD_KEY",
    "SLICE_BYTES",
    "Audio",
    "Bytes",
    "Category",
    "Encoded",
    "Field",
    "Group",
    "Image",
    "NullPolicy",
    "Nulls",
    "Ragged",
    "RaggedList",
    "Scalar",
    "Schema",
    "Tensor",
    "Text",
    "Video",
    "are_file_references",
    "arrow_type_of",
    "check_schema",
    "companion_of",
    "complete_schema",
    "constant",
    "decimals_to_float64",
    "delivered_dtype",
    "describe",
    "empty_table",
    "encode_array",
    "encode_columns",
    "encode_png",
    "heads",
    "hub_features",
    "infer_columns",
    "infer_fields",
    "infer_schema",
    "is_bytes",
    "is_file_reference",
    "is_in_memory",
    "is_index_column",
    "is_list_like",
    "is_media",
    "is_text",
    "iter_tables",
    "lenient",
    "list_values",
    "masks_of",
    "named_codes",
    "nodes",
    "null_levels",
    "object_array",
    "plain_type",
    "policy_of",
    "raw_difference",
    "refuses_nulls",
    "register_where_imported",
    "row_objects",
    "sixteen_bits",
    "slices_of",
    "source_of",
    "split_ragged",
    "to_table",
    "type_name",
    "unpacked_field",
    "with_nulls",
]
