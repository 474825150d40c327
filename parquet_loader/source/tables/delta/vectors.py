"""Converts the description of a deletion vector in a Delta log to `Deletes`."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from parquet_loader.source.tables.deletes import Deletes, InlineVector, Vector

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
# Python's Base85 alphabet has another order, and some characters that ZeroMQ's lacks.
_PYTHON = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_PYTHON = bytes.maketrans(_Z85 + b";_`|~", _PYTHON + b"     ")
_UUID_CHARACTERS = 20
_FIELDS = frozenset({"storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality", "maxRowIndex"})


def vector_id(described: Mapping[str, Any] | None) -> str:
    """Return the identity of a deletion vector; "" without one."""
    if described is None:
        return ""
    offset = described.get("offset")
    name = f"{described['storageType']}{described['pathOrInlineDv']}"
    return name if offset is None else f"{name}@{offset}"


def deletes_of_vector(described: Mapping[str, Any], located: Callable[[str], str], root: str) -> Deletes:
    """Return the deleted rows of an action `add`.

    Args:
        described: The description of the deletion vector in the log.
        located: Returns the path within the file system of an absolute path or URL.
        root: The table's directory within the file system.

    Raises:
        ValueError, KeyError, TypeError: the description is damaged.
    """
    unknown = described.keys() - _FIELDS
    if unknown:  # it may be a damaged `offset`, whose default would select the first vector of the file
        raise ValueError(f"a field {min(unknown)!r}, which this library does not know")
    kind, text = described["storageType"], str(described["pathOrInlineDv"])
    size, count = int(described["sizeInBytes"]), int(described["cardinality"])
    if size < 0 or count < 0:
        raise ValueError(f"a deletion vector of {count} rows in {size} bytes")
    if kind == "i":
        data = z85(text)
        if not size <= len(data) < size + 4:
            raise ValueError(f"a deletion vector of {size} bytes is given as {len(data)}")
        return InlineVector(data[:size], count)
    offset = described.get("offset")
    start = 1 if offset is None else int(offset)  # the first byte of the file is its version
    if kind == "u":
        prefix, name = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
        file = f"deletion_vector_{uuid.UUID(bytes=z85(name))}.bin"
        return Vector("/".join(part for part in (root.rstrip("/"), prefix, file) if part), start, size, count)
    if kind == "p":
        return Vector(located(text), start, size, count)
    raise ValueError(f"a deletion vector stored as {kind!r}, which this library does not know")


def z85(text: str) -> bytes:
    """Decode Base85 text in ZeroMQ's alphabet.

    Raises:
        ValueError: the text is not of this form.
    """
    if len(text) % 5:
        raise ValueError(f"Base85 text of {len(text)} characters")
    return base64.b85decode(text.encode().translate(_AS_PYTHON))
