"""Short names of Arrow types: ``list<float32>[768]``, ``timestamp[us, UTC]``, ``decimal(10, 2)``."""

from __future__ import annotations

import pyarrow as pa

_NAMES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
    "date64[ms]": "date",
}


def type_text(type_: pa.DataType) -> str:
    """Return the name of a type; for a nested type, with its children."""
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return f"{type_.extension_name}<{type_text(type_.storage_type)}>"
    if types.is_dictionary(type_):
        return f"dictionary<{type_text(type_.value_type)}>"
    if types.is_fixed_size_list(type_):
        return f"list<{type_text(type_.value_type)}>[{type_.list_size}]"
    if types.is_map(type_):
        return f"map<{type_text(type_.key_type)}, {type_text(type_.item_type)}>"
    if types.is_struct(type_):
        return f"struct<{', '.join(f'{field.name}: {type_text(field.type)}' for field in type_)}>"
    if types.is_decimal(type_):
        return f"decimal({type_.precision}, {type_.scale})"
    if types.is_timestamp(type_):
        return f"timestamp[{type_.unit}{f', {type_.tz}' if type_.tz else ''}]"
    if types.is_time(type_):
        return f"time[{type_.unit}]"
    if types.is_fixed_size_binary(type_):
        return f"binary[{type_.byte_width}]"
    if type_.num_fields == 1 and hasattr(type_, "value_type"):  # lists of all kinds
        return f"list<{type_text(type_.value_type)}>"
    return _NAMES.get(str(type_), str(type_))
