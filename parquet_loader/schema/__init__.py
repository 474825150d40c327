"""What columns mean: field kinds, the `Schema` made of them, and the rules for files that carry none.

arrow_types            names of types, dtypes in which they are delivered
base, encoded, fields  the kinds of field
json_form              fields as JSON
infer                  fields from Arrow types
schema                 `Schema`
encode                 batches of any form to Arrow tables in a schema's stored form
"""

from __future__ import annotations

from parquet_loader.schema.arrow_types import (
    arrow_type_of,
    decimals_to_float64,
    delivered_dtype,
    is_scalar_type,
    stored_type,
    type_name,
)
from parquet_loader.schema.fields import (
    Bytes,
    Category,
    Encoded,
    Field,
    Group,
    Image,
    NullPolicy,
    RaggedList,
    Scalar,
    Tensor,
    Text,
    policy_of,
    unpacked_field,
)
from parquet_loader.schema.infer import infer_fields
from parquet_loader.schema.schema import METADATA_KEY, Schema

__all__ = [
    "METADATA_KEY",
    "Bytes",
    "Category",
    "Encoded",
    "Field",
    "Group",
    "Image",
    "NullPolicy",
    "RaggedList",
    "Scalar",
    "Schema",
    "Tensor",
    "Text",
    "arrow_type_of",
    "decimals_to_float64",
    "delivered_dtype",
    "infer_fields",
    "is_scalar_type",
    "policy_of",
    "stored_type",
    "type_name",
    "unpacked_field",
]
