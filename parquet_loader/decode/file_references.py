"""Packs references to files, of Parquet's logical type FILE: structs of a URI and a byte range, or of the bytes.

A window holds each as one value, which begins with a zero byte, so that it differs from the path of a file.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_INLINE, _NAMED = b"\0i", b"\0f"
_REFERENCE = re.compile(rb"\0f(-?[0-9]{1,20})?\0(-?[0-9]{1,20})?\0(.*)", re.DOTALL)


class FileReference(NamedTuple):
    """A file, or a part of one.

    Attributes:
        uri: The file, as a reference by RFC 3986.
        offset, size: Offset and length of the part; None for the whole file, or the rest of it.
    """

    uri: bytes
    offset: int | None
    size: int | None


def packed_references(structs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return references as large binaries, with nulls for null structs.

    Args:
        structs: Structs of `is_file_reference`.
    """
    members = {field.name for field in structs.type}

    def member(name: str) -> pa.ChunkedArray:
        if name not in members:
            return pa.chunked_array([pa.nulls(len(structs), pa.large_binary())])
        found = pc.struct_field(structs, name)
        if pa.types.is_integer(found.type):
            found = found.cast(pa.string())
        if pa.types.is_string_view(found.type) or pa.types.is_dictionary(found.type):
            found = found.cast(pa.large_string())
        return found.cast(pa.large_binary())

    def joined(*parts: pa.ChunkedArray | bytes, by: bytes) -> pa.ChunkedArray:
        given = [pa.scalar(part, pa.large_binary()) if isinstance(part, bytes) else part for part in parts]
        separator = pa.scalar(by, pa.large_binary())
        return pc.binary_join_element_wise(*given, separator, null_handling="replace", null_replacement=b"")

    packed = joined(_NAMED, joined(member("offset"), member("size"), member("uri"), by=b"\0"), by=b"")
    if "inline" in members:
        inline = member("inline")
        packed = pc.if_else(pc.is_valid(inline), joined(_INLINE, inline, by=b""), packed)
    if structs.null_count:
        packed = pc.if_else(pc.is_valid(structs), packed, pa.scalar(None, pa.large_binary()))
    return packed


def unpacked_reference(value: bytes) -> bytes | FileReference | None:
    """Undo `packed_references` for one value; return None if the value is not a packed reference."""
    if value.startswith(_INLINE):
        return value[len(_INLINE) :]
    found = _REFERENCE.fullmatch(value)
    if found is None:
        return None
    offset, size, uri = found.groups()
    return FileReference(uri, int(offset) if offset else None, int(size) if size else None)
